"""The body of a request on its way in: decoded piece by piece, never more than the route takes.

Knows bytes, lengths and encodings. Refuses to know what a body means, and how long it may take (`service.connections`).
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final

from starlette.types import Message, Receive, Scope

from service.problems import ProblemError
from service.settings import Settings

MAX_LEFT_OVER_BYTES: Final = 64 << 10  # of a body that nobody reads, for the sake of the connection's next request
STEP_BYTES: Final = 1 << 20  # decoded at once: 3 ms of the event loop


class IncomingBody:
    """The body of one request. `receive` is ASGI's, with the body decoded.

    It raises ProblemError: 413 for more than the route takes, also where only its length says so; 415 for another
    encoding than gzip; 400 for what is no gzip.
    """

    def __init__(self, scope: Scope, receive: Receive, settings: Settings) -> None:
        headers = dict(scope["headers"])
        self._receive = receive
        self._limit = settings.max_body_bytes if scope["path"].endswith("/records") else settings.max_json_bytes
        self._encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        length = headers.get(b"content-length", b"")
        self._left = int(length) if length.isdigit() else None  # of the encoded bytes; None: nobody knows
        if self._left is None and b"transfer-encoding" not in headers:
            self._left = 0
        self._gunzip = _Gunzip() if self._encoding == "gzip" else None
        self._decoded = 0
        self._is_last = False

    @property
    def is_left_over(self) -> bool:
        """Whether so much of it is unread that the connection is of no more use."""
        return not self._is_last and (self._left is None or self._left > MAX_LEFT_OVER_BYTES)

    async def receive(self) -> Message:
        """The next piece."""
        if self._encoding not in ("identity", "gzip"):
            detail = f"the body's encoding {self._encoding} is not understood: send gzip or none"
            raise ProblemError(415, "unsupported_encoding", detail, headers={"Accept-Encoding": "gzip"})
        if not self._decoded and (self._left or 0) > self._limit:
            raise _too_large(self._limit)
        if self._gunzip is not None and self._gunzip.has_more:
            await asyncio.sleep(0)  # others have their turn
            return self._bounded({"type": "http.request", "body": b"", "more_body": not self._is_last})
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._is_last = not message.get("more_body", False)
        if self._left is not None:
            self._left -= len(message.get("body", b""))
        return self._bounded(message)

    def _bounded(self, message: Message) -> Message:
        if self._gunzip is not None:
            message["body"] = self._gunzip(message.get("body", b""), is_last=self._is_last)
            message["more_body"] = self._gunzip.has_more or not self._is_last
        self._decoded += len(message.get("body", b""))
        if self._decoded > self._limit:
            raise _too_large(self._limit)
        return message


class _Gunzip:
    """Bytes of a gzip stream, STEP_BYTES at most at once (a bomb stops there)."""

    def __init__(self) -> None:
        self._stream: Any = zlib.decompressobj(wbits=31)
        self.has_more = False  # there are more of what was given already

    def __call__(self, part: bytes, *, is_last: bool) -> bytes:
        try:
            decoded: bytes = self._stream.decompress(self._stream.unconsumed_tail + part, STEP_BYTES)
        except zlib.error as error:
            raise ProblemError(400, "malformed_body", f"the body is not gzip: {error}") from error
        self.has_more = not self._stream.eof and len(decoded) == STEP_BYTES
        if self._stream.unused_data or (is_last and not self._stream.eof and not self.has_more):
            raise ProblemError(400, "malformed_body", "the body is not one whole gzip stream")
        return decoded


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, "payload_too_large", f"the body has more than the {limit} bytes this route takes")
