"""Aggregators over HTTP: the functions that `aggregate` has, and those that are installed here. Listed, never sent.

Knows the shape of the list. Refuses to know how one is found or run (`…operators.installed_aggregators`).
"""

from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.bodies import answer
from service.api.document import router_of
from service.api.models import Cursor, Limit, PageView, short_page
from service.auth import Reader
from service.problems import declared
from service.streams.operators.functions import FUNCTIONS
from service.streams.operators.installed_aggregators import Installed, described

router = router_of("jobs")


class AggregatorView(BaseModel):
    """A function of `aggregate`, built in or installed."""

    name: str
    kind: Annotated[
        Literal["built_in", "installed"],
        Field(description='`{"fn": name}`, or `{"fn": "custom", "aggregator": name}`.'),
    ]
    package: Annotated[str | None, Field(description="The distribution that it comes with.")]
    version: str | None
    origin: Annotated[str | None, Field(description="`module:object`, of those that are installed.")]
    doc: str
    merges: Annotated[bool, Field(description="Whether it has a merger: session windows need one.")]
    problem: Annotated[str | None, Field(description="Why it can not be used.")]


@router.get("/v1/aggregators", responses={200: {"model": PageView[AggregatorView]}, **declared(401, 403, 422)})
def list_aggregators(_: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List the functions of `aggregate`, then the aggregators that are installed beside this service."""
    listed = [*(_built_in(name, doc) for name, doc in FUNCTIONS.items()), *map(_installed, described())]
    return answer(short_page(listed, lambda each: f"{each['kind']}/{each['name']}", limit=limit, cursor=cursor))


def _built_in(name: str, doc: str) -> dict[str, Any]:
    made = {"package": "millrace", "version": version("millrace"), "origin": None}
    return {"name": name, "kind": "built_in", **made, "doc": doc, "merges": True, "problem": None}


def _installed(found: Installed) -> dict[str, Any]:
    return {
        "name": found.name,
        "kind": "installed",
        "package": found.package,
        "version": found.version,
        "origin": found.origin,
        "doc": found.doc,
        "merges": found.has_merger,
        "problem": found.problem,
    }
