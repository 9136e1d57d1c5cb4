"""One stream of events of many resources: what their GETs answer, now and whenever it changes.

Knows which resources may be followed, how topics are written, and how the service asks itself. Refuses to know what any
answer says, and when it is asked for (`service.live`).
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, unquote

import structlog
from fastapi import Query
from fastapi.routing import APIRoute
from fastapi.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Message, Scope

from service.api.document import router_of
from service.api.tails import EVENTS, MAX_FOLLOW_MS
from service.auth import ASKING, Caller, Reader, is_still_known
from service.live import Answered, Topic
from service.problems import MEDIA_TYPE, ProblemError, declared, new_request_id, problem_body, refused

router = router_of("operations")

# By the id of the operation: answers in JSON that are the same for all who may ask, and done in a moment.
FOLLOWED: Final = frozenset(
    {
        "find_key",
        "find_keys",
        "find_sessions",
        "find_sessions_of_key",
        "find_windows",
        "find_windows_of_key",
        "get_group",
        "get_instance",
        "get_job",
        "get_job_metrics",
        "get_job_series",
        "get_job_time",
        "get_job_version",
        "get_overview",
        "get_owner",
        "get_rebalance",
        "get_series",
        "get_store",
        "get_stream",
        "get_stream_series",
        "get_stream_usage",
        "get_subscription",
        "get_topology",
        "info",
        "list_aggregators",
        "list_audit",
        "list_dropped",
        "list_instances",
        "list_job_errors",
        "list_job_history",
        "list_job_versions",
        "list_jobs",
        "list_rebalances",
        "list_stores",
        "list_stream_usage",
        "list_streams",
        "list_subscriptions",
        "list_tasks",
        "list_tokens",
        "readyz",
    }
)
WAITING: Final = (
    "wait",
    "timeout_ms",
    "min_position",
)  # parameters that make an answer come later: whoever follows waits anyway
MAX_TOPICS: Final = 100  # of one stream
MAX_LENGTH: Final = 16_000
EVENT: Final = {  # of Server-Sent Events, as OpenAPI 3.2 describes one (4.14.4)
    "type": "object",
    "properties": {
        "data": {"type": "string", "description": "`topic`, `status`, and `body` or `problem`, as JSON."},
        "event": {"type": "string", "description": "`heartbeat` or `error`; absent: a topic's answer."},
        "retry": {"type": "integer", "minimum": 0, "description": "After how long to come back, ms."},
    },
}
EVENT_EXAMPLE: Final = {"data": '{"topic":"/readyz","status":200,"body":{"status":"ready","parts":{"database":"ok"}}}'}


@router.get(
    "/v1/events",
    response_class=Response,  # what it is of is said below
    responses={
        200: {
            "description": "Events: `data` has the `topic`, the `status` of its GET, and the `body`, or the `problem` "
            "where there is one. `event: heartbeat` where nothing comes for 15 s; `event: error` ends a stream that "
            "can not go on, and says why.",
            "content": {EVENTS: {"schema": EVENT, "example": EVENT_EXAMPLE}},
        },
        **declared(401, 403, 414, 422, 429),
    },
)
async def follow_topics(
    request: Request,
    caller: Reader,
    topics: Annotated[
        str,
        Query(
            min_length=1,
            max_length=MAX_LENGTH,
            description="Addresses of GETs that answer JSON (`/v1/jobs,/v1/jobs/visits/metrics`), at most "
            f"{MAX_TOPICS}, separated by commas; a comma inside of one is `%2C`.",
        ),
    ],
    timeout_ms: Annotated[
        int | None,
        Query(
            ge=0,
            le=MAX_FOLLOW_MS,
            description="How long to follow, each topic's first answer in any case; for ever when absent.",
        ),
    ] = None,
) -> Response:
    """Follow resources: each topic's answer at once, then whenever it differs, at most once a second.

    A topic is the path of a resource, with its query, as a GET has it. One that is refused (there is no such job, it
    is not for this role) comes as an event with the problem, and with its body once there is one. Who reads slowly
    gets the newest answer of each topic, and none of those before it. Averages since a job was made (`…_rate`) change
    all the time: where nothing else does, nothing is sent.
    """
    live = request.state.live
    until_s = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    names = dict.fromkeys(topics.split(","))
    if len(names) > MAX_TOPICS:  # before each is looked at: that is work of the event loop
        raise _refused(f"{len(names)} topics are too many: at most {MAX_TOPICS}")
    asked = {}
    for name in names:
        _require_followed(request, name)
        asked[Topic(name, caller.role)] = partial(_ask, request.scope, name, caller.role, new_request_id())
    live.require_room(caller.id, asked)
    events = live.follow(asked, caller.id, partial(is_still_known, request), until_s=until_s)
    return EventSourceResponse(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


def _require_followed(request: Request, name: str) -> None:
    """Raises ProblemError 422 unless a topic is a resource that may be followed."""
    path, _, query = name.partition("?")
    is_address = name.isascii() and name.isprintable() and "#" not in name
    if not (is_address and name.startswith("/") and not name.startswith("//")):
        raise _refused(f"{name[:200]!r} is no path, with its query as an address has it")
    if not _is_followed(request, path):
        raise _refused(f"{name[:200]!r} is no resource that can be followed")
    waiting = [parameter for parameter, _ in parse_qsl(query) if parameter in WAITING]
    if waiting:
        raise _refused(f"{name[:200]!r}: what is followed does not wait; leave out {waiting[0]}")


def _is_followed(request: Request, path: str) -> bool:
    """Whether the route that a GET of this path would get may be followed."""
    scope = {"type": "http", "method": "GET", "path": unquote(path), "root_path": "", "headers": []}
    route = next((each for each in request.app.routes if each.matches(scope)[0] is Match.FULL), None)
    return isinstance(route, APIRoute) and route.name in FOLLOWED


def _refused(detail: str) -> ProblemError:
    return refused("invalid_topic", "?topics", detail)


async def _ask(viewer: Scope, name: str, role: str, request_id: str) -> Answered:
    """What a GET of this address answers now to whoever has the role: the service asks itself."""
    path, _, query = name.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": viewer["asgi"],
        "http_version": "1.1",
        "method": "GET",
        "scheme": viewer["scheme"],
        "server": viewer["server"],
        "client": None,
        "root_path": "",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [],
        "state": dict(viewer["state"]),
        "request_id": request_id,  # always the same: a problem that stays is no news
        ASKING: Caller("", "events", role),
    }
    status, media_type, parts = 0, b"", []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, media_type
        if message["type"] == "http.response.start":
            status = message["status"]
            media_type = dict(message["headers"]).get(b"content-type", b"")
        else:
            parts.append(message.get("body", b""))

    try:
        await viewer["app"].ask(scope, receive, send)
    except Exception:  # noqa: BLE001  as at the border of a request: who follows gets a problem, the other topics go on
        structlog.get_logger().exception("event_topic_broke", topic=name)
        detail = "this is a fault of the service; it was logged"
        body = problem_body(500, "internal_error", detail, instance=scope["path"], request_id=request_id)
        return Answered(500, body, is_problem=True)
    return Answered(status, b"".join(parts), media_type.startswith(MEDIA_TYPE.encode()))
