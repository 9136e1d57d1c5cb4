"""What slots ask in every round, ahead of the framework: polls, segments' names, commits.

Knows the paths, and that the routes' own functions answer (`service.api.instances`): the two ways differ in cost alone.
Matching a request and solving what a function depends on takes the framework 0.6 ms, and a record that is posted waits
for a poll's answer and a commit. Who is not known at once, and anything with a query, takes the routes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fastapi.routing import APIRoute
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api import instances
from service.auth import NOBODY, is_known
from service.problems import ProblemError, answer_error, refusal_of
from service.streams.errors import StreamError

_PATH: Final = re.compile(r"/v1/instances/([A-Za-z0-9_-]+)/slots/([A-Za-z0-9_-]+)(:poll|:commit|/segments)")
_ROUTES: Final[Mapping[str, APIRoute]] = {
    route.path_format.rpartition("}")[2]: route
    for route in instances.workers.routes
    if isinstance(route, APIRoute)
    and route.endpoint in {instances.poll_slot, instances.commit_tasks, instances.register_segments}
}
_Answering = Callable[[Request, str, str, Any], Awaitable[Response]]


class QuickSlots:
    """Answers slots ahead of the framework; see the module."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = None
        if scope["type"] == "http" and scope["method"] == "POST" and not scope["query_string"]:
            asked = _PATH.fullmatch(scope["raw_path"].decode("latin-1"))
        if asked is None or not is_known(scope, "instance"):
            await self._app(scope, receive, send)
            return
        scope["route"] = route = _ROUTES[asked[3]]
        answer = await _answer(route.endpoint, Request(scope, receive), asked[1], asked[2])
        await answer(scope, receive, send)


async def _answer(answering: _Answering, request: Request, instance: str, slot: str) -> Response:
    try:
        return await answering(request, instance, slot, NOBODY)  # who asks was judged; the functions do not look at it
    except ProblemError as error:
        return refusal_of(error).answer(request)
    except (StreamError, SQLAlchemyError) as error:
        return answer_error(request, error)
