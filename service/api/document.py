"""The OpenAPI document: what the routes declare, and the schemas of the bodies that they read themselves.

Knows OpenAPI. Refuses to know any resource: routes say `openapi_extra=takes(Model, example)`.
"""

import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import msgspec
import orjson
from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.api.bodies import answer
from service.problems import ProblemView, declared

_REF = "#/components/schemas/{model}"
_BODIES: dict[str, type[Any]] = {"ProblemView": ProblemView}
ASSETS = "/docs/assets"
TAGS = [
    {"name": "streams", "description": "Named, partitioned, append-only logs of records: make, post, read."},
    {"name": "jobs", "description": "Operators over a stream: submit, watch, pause, stop, simulate."},
    {"name": "stores", "description": "The state of operators, looked up by key, by range, as a whole."},
    {"name": "instances", "description": "Spark applications that run jobs, and the protocol of their slots."},
    {"name": "tokens", "description": "API keys and their roles."},
    {"name": "operations", "description": "Health, metrics and this document."},
]


def router_of(tag: str) -> APIRouter:
    """A router for routes under one of `TAGS`, whose operation ids are their functions' names."""
    return APIRouter(tags=[tag], generate_unique_id_function=lambda route: route.name)


def takes(
    body: type[Any],
    example: Mapping[str, Any] | None = None,
    *,
    other: type[Any] | None = None,
    is_required: bool = True,
) -> dict[str, Any]:
    """The `openapi_extra=` of a route that reads a JSON body of this pydantic model or msgspec struct, or the other."""
    bodies = [body] if other is None else [body, other]
    _BODIES.update({each.__name__: each for each in bodies})
    schemas = [{"$ref": _REF.format(model=each.__name__)} for each in bodies]
    content: dict[str, Any] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    if example is not None:
        content["example"] = dict(example)
    return {"requestBody": {"required": is_required, "content": {"application/json": content}}}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the routes that the app has now."""
    made = get_openapi(
        title="Millrace",
        version=version("millrace"),
        summary="Stateful stream operators as a REST service, on Spark.",
        description="Post records to streams; submit jobs that filter, map, deduplicate and aggregate them (for ever, "
        "over windows and sessions) or hold updates back until they are final; read what comes out, exactly once; "
        "look up what the operators keep. Every error is an `application/problem+json` (RFC 9457) with a `code` and "
        "the `request_id`.",
        routes=app.routes,
        tags=TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    schemas |= _schemas_of_bodies()
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own; ours are problems
        schemas.pop(unused, None)
    for path in made["paths"].values():
        for operation in path.values():
            _declare_problems(operation["responses"])
            _require_preconditions(operation)
    return _tidied(made)


def install(app: FastAPI) -> None:
    """Serve the document and its pages, and make FastAPI believe it is its own."""
    app.openapi = _once(lambda: document(app))  # type: ignore[method-assign]

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi_json() -> Response:
        return answer(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def docs(_: Request) -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Millrace",
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
        )

    # The pages' own assets, from a package: they work where no content network is reached.
    app.mount(ASSETS, StaticFiles(packages=[("fastapi_offline", "static")]), name="docs-assets")


def _schemas_of_bodies() -> dict[str, Any]:
    models = [(body, "validation") for body in _BODIES.values() if issubclass(body, BaseModel)]
    structs = [body for body in _BODIES.values() if not issubclass(body, BaseModel)]
    _, described = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
    _, components = msgspec.json.schema_components(structs, ref_template=_REF.replace("{model}", "{name}"))
    return {**described.get("$defs", {}), **components}


def _declare_problems(responses: dict[str, Any]) -> None:
    """Any other status is a problem as well; nothing of FastAPI's own errors is left."""
    if "HTTPValidationError" in str(responses.get("422", "")):
        del responses["422"]
    responses["default"] = {**declared(500)[500], "description": "Any other error"}


def _require_preconditions(operation: dict[str, Any]) -> None:
    """`If-Match` is read by the routes, whose answer to its absence is 428; a request without it is not valid."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "If-Match":
            parameter |= {"required": True, "schema": {"type": "string", "title": "If-Match"}}


def _tidied(made: dict[str, Any]) -> dict[str, Any]:
    """Names and patterns for readers who know neither pydantic nor Rust: `TokenPage`, and `$` where `\\z` was."""
    text = orjson.dumps(made).replace(rb'\\z"', b'$"')
    tidied: dict[str, Any] = orjson.loads(re.sub(rb"\bPage_(\w+?)(?:View)?_(?=\W)", rb"\1Page", text))
    return tidied


def _once(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    made: list[dict[str, Any]] = []

    def get() -> dict[str, Any]:
        if not made:
            made.append(make())
        return made[0]

    return get
