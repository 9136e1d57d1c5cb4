"""The border of a request: its id, its log line, its measure, the size and encoding of its body, and the
one place where an error that nobody foresaw becomes an answer (500).

Knows bytes, headers and time spent. Refuses to know routes, except that posts of records may be larger.
"""

import random
import re
import time
import zlib
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import prometheus
from service.problems import ProblemError, problem
from service.settings import Settings

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_WHILE_DRAINING = ("/v1/instances", "/healthz", "/readyz", "/metrics")  # instances commit and leave
# Asked all the time: what goes well is counted, not logged.
_BUSY = ("/v1/instances", "/v1/stores", "/v1/streams/{stream}/records")
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
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
        scope["request_id"] = request_id = _request_id(scope)
        structlog.contextvars.bind_contextvars(request_id=request_id)  # of this request's own task
        started = time.perf_counter()
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            if scope["app"].state.is_draining and not scope["path"].startswith(_WHILE_DRAINING):
                await _draining(Request(scope))(scope, receive, send_named)
                return
            await self._app(scope, _bounded(scope, receive, self._settings), send_named)
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


def _request_id(scope: Scope) -> str:
    """The caller's own id when it is a decent one, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(given):
                return str(given)
    return f"{random.getrandbits(128):032x}"  # it only has to differ from others: no system call


def _bounded(scope: Scope, receive: Receive, settings: Settings) -> Receive:
    """`receive`, which decodes the body and refuses more decoded bytes than the route takes."""
    if scope["method"] in ("GET", "HEAD", "DELETE", "OPTIONS"):
        return receive
    limit = settings.max_body_bytes if scope["path"].endswith("/records") else settings.max_json_bytes
    headers = dict(scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    declared = headers.get(b"content-length", b"")
    gunzip = _Gunzip(limit) if encoding == "gzip" else None
    taken = 0

    async def receive_bounded() -> Message:
        nonlocal taken
        if encoding not in ("identity", "gzip"):
            detail = f"the body's encoding {encoding} is not understood: send gzip or none"
            raise ProblemError(415, "unsupported_encoding", detail, headers={"Accept-Encoding": "gzip"})
        if declared.isdigit() and int(declared) > limit:
            raise too_large(limit)
        message = await receive()
        if message["type"] == "http.request":
            if gunzip is not None:
                message["body"] = gunzip(message.get("body", b""), is_last=not message.get("more_body", False))
            taken += len(message.get("body", b""))
            if taken > limit:
                raise too_large(limit)
        return message

    return receive_bounded


def _draining(request: Request) -> Response:
    headers = {"Retry-After": "5", "Connection": "close"}
    return problem(request, 503, "draining", "the service is about to stop", headers=headers)


class _Gunzip:
    """Bytes of a gzip stream, part by part, never more than `limit` + 1 at once (a bomb stops there)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stream: Any = zlib.decompressobj(wbits=31)

    def __call__(self, part: bytes, *, is_last: bool) -> bytes:
        try:
            decoded: bytes = self._stream.decompress(part, self._limit + 1)
        except zlib.error as error:
            raise ProblemError(400, "malformed_body", f"the body is not gzip: {error}") from error
        if self._stream.unused_data or (is_last and not self._stream.eof and len(decoded) <= self._limit):
            raise ProblemError(400, "malformed_body", "the body is not one whole gzip stream")
        return decoded


def too_large(limit: int) -> ProblemError:
    """The refusal of a body of more than `limit` decoded bytes."""
    return ProblemError(413, "payload_too_large", f"the body has more than the {limit} bytes this route takes")
