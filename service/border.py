"""The border of a request: its id, its log line, its measure, and the one place where an error that nobody foresaw
becomes an answer (500).

Knows headers and time spent. Refuses to know routes, and bodies (`service.incoming`).
"""

import re
import time
from collections.abc import Iterable

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import prometheus
from service.incoming import IncomingBody
from service.problems import new_request_id, problem
from service.settings import Settings

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_WHILE_DRAINING = ("/v1/instances", "/healthz", "/readyz", "/metrics")  # instances commit and leave
# Asked all the time: what goes well is counted, not logged.
_BUSY = ("/v1/instances", "/v1/stores", "/v1/streams/{stream}/records")
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_WENT_AWAY = 499  # as nginx counts a caller who did not wait for the answer: no fault of ours, and nobody waits for it


class RequestBorder:
    """Outermost of all, around the framework too; plain ASGI, since every poll and commit passes here."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["request_id"] = request_id = given_request_id(scope["headers"]) or new_request_id()
        structlog.contextvars.bind_contextvars(request_id=request_id)  # of this request's own task
        started = time.perf_counter()
        status = 0
        body = None if scope["method"] in _BODILESS else IncomingBody(scope, receive, self._settings)

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if (entry := scope.get("audit")) is not None:
                    await entry.settle(status)
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if body is not None and body.is_left_over:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            if scope["app"].state.is_draining and not scope["path"].startswith(_WHILE_DRAINING):
                await _draining(Request(scope))(scope, receive, send_named)
                return
            await self._app(scope, receive if body is None else body.receive, send_named)
        except ClientDisconnect:
            status = _WENT_AWAY
        except Exception:  # the border of a request: whatever it is, the caller gets a problem
            self._log.exception("request_broke", method=scope["method"], path=scope["path"])
            if status:
                raise  # half an answer is out: only closing the connection is honest
            answer = problem(Request(scope), 500, "internal_error", "this is a fault of the service; it was logged")
            await answer(scope, receive, send_named)
        finally:
            self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path_format", "unknown")
        prometheus.count_request(scope["method"], route, status, seconds)
        if scope["path"] in _QUIET or (status < 400 and route.startswith(_BUSY)):
            return
        self._log.info(
            "request", method=scope["method"], path=scope["path"], status=status, ms=round(seconds * 1000, 2)
        )


def given_request_id(fields: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The caller's own id where it is a decent one."""
    for name, value in fields:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(given):
                return str(given)
    return None


def _draining(request: Request) -> Response:
    headers = {"Retry-After": "5", "Connection": "close"}
    return problem(request, 503, "draining", "the service is about to stop", headers=headers)
