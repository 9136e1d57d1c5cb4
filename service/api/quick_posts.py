"""Small posts of records ahead of the framework: checked as plain values on the event loop, handed in as rows.

Knows when a request is plain: JSON or NDJSON of a few records, by a known writer, for a stream of people. Anything else
goes on to the route, whose answers are the definition; the two differ in cost alone. The stream's settings are those
read before; a post is published only while the stream has that version, and takes the route when it has not.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import prometheus
from service.auth import is_known
from service.catalog.streams import find_stream
from service.ingest import AppendBuffer, SettingsChanged, Target
from service.payloads import JSON, NDJSON, Rules
from service.payloads.rows import SMALL_BYTES, Row, small_rows
from service.problems import answer_error
from service.streams.errors import BufferFull, StreamError

STREAMS_AT_HAND: Final = 1024
_PREFIX: Final = b"/v1/streams/"
_SUFFIX: Final = b"/records"
_TYPES: Final = {JSON.encode(): False, NDJSON.encode(): True}  # Content-Type -> whether it is a record a line
_REFUSED: Final = frozenset({b"content-encoding", b"transfer-encoding", b"idempotency-key", b"expect"})


class _Route(NamedTuple):
    """What the border counts a request under."""

    path_format: str


_ROUTE: Final = _Route("/v1/streams/{stream}/records")


class _Plain(NamedTuple):
    """A request that may be answered here."""

    stream: str
    is_ndjson: bool


class QuickPosts:
    """Answers a small post ahead of the framework; see the module."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._at_hand: dict[str, Target] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain = _plain_post(scope) if scope["type"] == "http" else None
        target = None
        if plain is not None and is_known(scope, "writer"):
            target = await self._target(scope, plain.stream)
        if plain is None or target is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        answered = await self._post(scope, plain, target, message)
        if answered is None:
            await self._app(scope, _first(message, receive), send)
            return
        scope["route"] = _ROUTE
        if isinstance(answered, StreamError | SQLAlchemyError):
            await answer_error(Request(scope), answered)(scope, receive, send)
            return
        length = str(len(answered)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answered})

    async def _post(
        self, scope: Scope, plain: _Plain, target: Target, message: Message
    ) -> bytes | StreamError | SQLAlchemyError | None:
        """The answer, or the error that kept the records out; None where the route is to say."""
        body = message.get("body", b"")
        if message["type"] != "http.request" or message.get("more_body") or len(body) > SMALL_BYTES:
            return None
        rows = _rows(body, plain, target)
        if rows is None:
            return None
        if not target.is_custom and any(row.partition is not None for row in rows):
            self._at_hand.pop(target.name, None)  # the route marks the stream; then it is another target
            return None
        ingest: AppendBuffer = scope["state"]["ingest"]
        answer: bytes | StreamError | SQLAlchemyError
        try:
            answer = await ingest.post(target, rows, len(body))
        except (BufferFull, SettingsChanged):
            self._at_hand.pop(target.name, None)
            return None
        except (StreamError, SQLAlchemyError) as error:
            answer = error
        prometheus.INGESTED_BYTES.inc(len(body))
        return answer

    async def _target(self, scope: Scope, name: str) -> Target | None:
        """The settings of a stream that people may write; read where they are not at hand."""
        found = self._at_hand.get(name)
        if found is None:
            stream = await run_in_threadpool(_read, scope["state"]["catalog"], name)
            if stream is not None:
                if len(self._at_hand) >= STREAMS_AT_HAND:
                    self._at_hand.clear()
                found = self._at_hand[name] = stream
        return found


def _read(catalog: Any, name: str) -> Target | None:
    try:
        stream = catalog.read(find_stream, name)
    except StreamError:
        return None
    return None if stream is None or stream.kind != "user" else Target.of(stream)


def _plain_post(scope: Scope) -> _Plain | None:
    path: bytes = scope["raw_path"]
    if scope["method"] != "POST" or scope["query_string"] or not path.startswith(_PREFIX):
        return None
    name = path[len(_PREFIX) : -len(_SUFFIX)]
    if not path.endswith(_SUFFIX) or b"/" in name or b"%" in name:
        return None
    kind, size = None, b""
    for header, value in scope["headers"]:
        if header == b"content-type":
            if kind is not None:
                return None
            kind = _TYPES.get(value)
        elif header == b"content-length":
            size = value
        elif header in _REFUSED:
            return None
    if kind is None or not size.isdigit() or int(size) > SMALL_BYTES:
        return None
    return _Plain(name.decode("latin-1"), kind)


def _rows(body: bytes, plain: _Plain, target: Target) -> list[Row] | None:
    rules = Rules(
        partitions=target.partitions,
        now_ms=time.time_ns() // 1_000_000,
        max_future_ms=target.max_future_ms,
        fields=target.fields,
    )
    return small_rows(body, rules, is_ndjson=plain.is_ndjson)


def _first(message: Message, receive: Receive) -> Receive:
    """`receive`, with a message that was taken from it put back."""
    held: list[Message] = [message]

    async def receive_on() -> Message:
        return held.pop() if held else await receive()

    return receive_on
