"""Query parameters of a request: those that its route does not have are refused.

Knows the OpenAPI document. Refuses to know any resource.
"""

from collections import Counter
from urllib.parse import parse_qsl

from starlette.requests import Request

from service.problems import ProblemError


def refuse_unknown_parameters(request: Request) -> None:
    """A request with a mistyped wish would be answered as if there were none: 422 for a parameter that the route does
    not have, or that is given twice.
    """
    if not request.scope["query_string"]:
        return
    operation = request.app.openapi()["paths"][request.scope["route"].path_format][request.method.lower()]
    known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    given = Counter(name for name, _ in parse_qsl(request.url.query, keep_blank_values=True))
    wrong = {name: "is given more than once" for name, times in given.items() if times > 1}
    wrong |= {name: f"is not known here; known: {', '.join(known) or 'none'}" for name in given if name not in known}
    items = [{"pointer": f"?{name}", "detail": detail} for name, detail in wrong.items()]
    if items:
        raise ProblemError(422, "invalid_request", items[0]["detail"], items)
