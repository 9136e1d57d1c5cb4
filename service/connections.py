"""The border of a connection: how long its heads may be and take, how slow a body, how long it idles; how many.

Knows bytes, times and HTTP's parser. Refuses to know what is asked: a request that came in is `service.border`'s.

The parser has no limits. It joins the pieces of a field by copying them: one header of 100 MB, sent without a key,
stopped everybody for 8 s and took 900 MB. uvicorn waits for ever for the rest of a head or a body, lets in as many
connections as there are files, and answers what is no HTTP as text. What is refused here is a problem like any other,
and ends the connection.

Clients that keep a connection repeat their fields byte for byte. Where the parser took them for a GET without a body,
and an answerer knows them (`QuickGets`), the next request with the same bytes after its first line is answered without
parser and framework (ADR 14).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import httptools
import structlog

from service import prometheus
from service.incoming import MAX_LEFT_OVER_BYTES
from service.one_write import OneWrite
from service.problems import MEDIA_TYPE, new_request_id, phrase, problem_body
from service.settings import Settings

MAX_HEAD_BYTES: Final = 64 << 10  # request line and fields; also trailers, and the extensions of a chunk
MAX_FIELDS: Final = 100
MAX_REPEATED_BYTES: Final = 4 << 10  # of a head whose fields are remembered
MAX_PIPELINED: Final = 64  # requests that wait for the answers before theirs
LINGER_S: Final = 1.0  # how long what still comes is thrown away, so that the answer is not lost by a reset

_TOO_LONG = f"a request may have {MAX_HEAD_BYTES} bytes of head, {MAX_FIELDS} fields"


# By its target: the fields and the body of an answer 200, now or soon; None where the framework is to answer.
QuickGet: TypeAlias = Callable[[bytes], "bytes | asyncio.Future[bytes | None] | None"]
# By target and fields (lower-case names) of a GET, and the app's state: who answers others with the same fields.
QuickGets: TypeAlias = Callable[[bytes, Sequence[tuple[bytes, bytes]], Mapping[str, Any]], QuickGet | None]
_LINE = re.compile(rb"GET (/[A-Za-z0-9/_.~%+:@,=?&!$'()*;-]*) HTTP/1\.1\r\n")
_NOT_PLAIN: Final = frozenset({b"connection", b"content-length", b"expect", b"transfer-encoding", b"upgrade"})


class _Refused(Exception):
    """Raised in the parser's callbacks, which turn it into an error of their own."""


class _Fields(NamedTuple):
    """The bytes behind the first line of a GET without a body, and who answers such requests."""

    text: bytes
    answer: QuickGet


class Connection(OneWrite):
    """uvicorn's protocol within the limits of `settings`."""

    def __init__(self, *args: Any, settings: Settings, quick_gets: QuickGets | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._settings = settings
        self._quick_gets = quick_gets
        self._fields: _Fields | None = None  # of the last request that may be repeated
        self._quick_get: QuickGet | None = None  # for the fields of the request that was just parsed
        self._begun = 0  # requests, in the bytes that are being parsed
        self._awaited: bytes | None = None  # a request whose quick answer is on its way
        self._held = b""  # came behind it
        self._is_last = False  # the service ends: close once it is answered
        self.url = b""
        self.idle_since = 0.0  # when the last answer was out, or the connection was made
        self._part: Literal["head", "body"] | None = None  # what of a request is being read
        self._unparsed = 0  # bytes since the parser last came on: of a head, a trailer, blank lines
        self._body_bytes = 0  # since the last look at their rate
        self._was_paused = False  # reading, since then: then it is not the caller who is slow
        self._timer: asyncio.TimerHandle | None = None  # until when a head, or a part of a body, must be here
        self._stalled: asyncio.TimerHandle | None = None  # until when an answer must be read on
        self._is_deaf = False

    # ------------------------------------------------------------ beginning and end

    def connection_made(self, transport: Any) -> None:
        """Begin; where there are as many as may be, the one that idles longest ends for it."""
        super().connection_made(_Lingering(transport, self))
        self.idle_since = time.monotonic()
        if len(self.connections) > self._settings.max_connections and not self._is_room_made():
            self.connections.discard(self)
            self._refuse(503, "too_many_connections", "as many connections are open as may be; try again")
        else:
            self._arm(self._settings.header_timeout_ms, self._end_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Over."""
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer here."""
        return (self.cycle is None or self.cycle.response_complete) and self._awaited is None

    @property
    def is_unread(self) -> bool:
        """Whether the caller may still be sending."""
        return self._is_deaf or self._part is not None

    def throw_away(self) -> None:
        """Read no more of what comes."""
        self._is_deaf = True
        self._disarm()

    def _is_room_made(self) -> bool:
        protocols = self.connections - {self}
        others = (other for other in protocols if isinstance(other, Connection) and other.is_idle)
        longest = min(others, key=lambda other: other.idle_since, default=None)
        if longest is None:
            return False
        self.connections.discard(longest)
        longest.transport.abort()
        return True

    # ------------------------------------------------------------ bytes

    def data_received(self, data: bytes) -> None:
        """Answer what is like the request before; parse anything else."""
        if self._is_deaf:
            return
        if self._awaited is not None:
            self._held += data
            self.flow.pause_reading()
        elif self._fields is None or not self._answer_quickly(self._fields, data):
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse; refuse what is no HTTP, too long or late."""
        self._unset_keepalive_if_required()
        is_between = self._is_between
        self._begun, self._quick_get = 0, None
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # to what nobody speaks here: what follows is no HTTP
            self._hear_no_more()
        except httptools.HttpParserError as error:
            if not self._is_deaf:
                self._refuse(400, "bad_request", _what_is_wrong(error))
            return
        if self._quick_get is not None and is_between and self._is_between and self._begun == 1:
            self._remember(data, self._quick_get)
        elif self._unparsed > MAX_HEAD_BYTES:
            self._refuse_long_head()
        elif self._timer is None and not self._is_deaf:
            if self._part == "body":
                self._await_body()
            elif self._unparsed:
                self._arm(self._settings.header_timeout_ms, self._end_late_head)

    def eof_received(self) -> None:
        """The caller sends no more: nothing to wait for."""
        self._disarm()

    # ------------------------------------------------------------ what is asked again

    @property
    def _is_between(self) -> bool:
        """Whether all requests that were begun are here whole, and no byte of another one is."""
        return self._part is None and not self._unparsed

    def _quick_get_for(self, quick_gets: QuickGets) -> QuickGet | None:
        """Who answers GETs with the fields that were just parsed, unless these say anything of connection or body."""
        for name, value in self.headers:
            if name in _NOT_PLAIN and (name != b"connection" or value.lower() != b"keep-alive"):
                return None
        return quick_gets(self.url, self.headers, self.app_state)

    def _remember(self, data: bytes, answer: QuickGet) -> None:
        """The fields of the one request in `data`, which was parsed as a GET without a body."""
        line = _LINE.match(data)
        is_small = len(data) < MAX_REPEATED_BYTES
        if line is not None and is_small and line[1] == self.url and data.endswith(b"\r\n\r\n"):
            self._fields = _Fields(data[line.end() :], answer)

    def _answer_quickly(self, fields: _Fields, data: bytes) -> bool:
        """Answer one whole request with these fields; False where the parser is to see the bytes."""
        if not data.endswith(fields.text) or len(data) > MAX_HEAD_BYTES or self.flow.write_paused:
            return False
        line = _LINE.fullmatch(data, 0, len(data) - len(fields.text))
        if line is None or not self.is_idle or not self._is_between or self.transport.is_closing():
            return False
        answer = fields.answer(line[1])
        if answer is None:
            return False
        if isinstance(answer, bytes):
            self._write_quick(answer)
        else:
            self._awaited = data
            answer.add_done_callback(self._write_awaited)
        return True

    def _write_quick(self, answer: bytes) -> None:
        self.write_whole(_head_of_200(tuple(self.server_state.default_headers)) + answer)
        self.server_state.total_requests += 1
        self.idle_since = time.monotonic()
        if self._is_last:
            self.transport.close()

    def _write_awaited(self, done: asyncio.Future[bytes | None]) -> None:
        request, self._awaited = self._awaited, None
        held, self._held = self._held, b""
        if request is None or self.parser is None or self.transport.is_closing():
            return
        answer = None if done.cancelled() or done.exception() is not None else done.result()
        if answer is not None:
            self._write_quick(answer)
        else:
            self._parse(request)
            if self._is_last:
                self.shutdown()
        self.flow.resume_reading()
        if held:
            self.data_received(held)

    def shutdown(self) -> None:
        """Close, once what is being answered is."""
        if self._awaited is None:
            super().shutdown()
        else:
            self._is_last = True

    def timeout_keep_alive_handler(self) -> None:
        """Close what has idled for long; quick answers leave the timer as it is."""
        left_s = self.idle_since + self.timeout_keep_alive - time.monotonic() if self.is_idle else 1.0
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    # ------------------------------------------------------------ the parser's callbacks

    def on_message_begin(self) -> None:
        """A request."""
        self._begun += 1
        self._part = "head"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head: hand it on, unless it is too long."""
        if len(self.headers) > MAX_FIELDS or (self._unparsed > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES):
            self._refuse_long_head()
            raise _Refused
        if len(self.pipeline) >= MAX_PIPELINED:
            self._hear_no_more()
            raise _Refused
        self._disarm()
        super().on_headers_complete()
        if self._quick_gets is not None and self.scope["method"] == "GET":
            self._quick_get = self._quick_get_for(self._quick_gets)
        self._part, self._unparsed, self._body_bytes = "body", 0, 0
        self.headers = []  # where trailers go: they are no headers

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._unparsed = 0
        self._body_bytes += len(body)
        super().on_body(body)
        if self.flow.read_paused:
            self._was_paused = True
        elif self.cycle.response_complete and self._body_bytes > MAX_LEFT_OVER_BYTES:
            self.transport.close()

    def on_message_complete(self) -> None:
        """All of it is here."""
        if len(self.headers) > MAX_FIELDS:  # trailers
            self._refuse_long_head()
            raise _Refused
        self._part, self._unparsed = None, 0
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """It is answered."""
        self.idle_since = time.monotonic()
        self._body_bytes = 0
        super().on_response_complete()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    # ------------------------------------------------------------ time

    def pause_writing(self) -> None:
        """The caller does not read as fast as it is answered; who does not read at all is let go."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._settings.idle_timeout_ms / 1000, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read on."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _arm(self, after_ms: int, late: Callable[[], None]) -> None:
        self._disarm()
        self._timer = self.loop.call_later(after_ms / 1000, late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_late_head(self) -> None:
        if self._part is None and not self._unparsed:  # nothing was sent: nothing to answer
            self.transport.close()
            return
        seconds = self._settings.header_timeout_ms / 1000
        self._refuse(408, "request_timeout", f"the head of a request must be here within {seconds:g} s")

    def _await_body(self) -> None:
        self._body_bytes, self._was_paused = 0, False
        self._arm(self._settings.body_timeout_ms, self._judge_body)

    def _judge_body(self) -> None:
        if self.is_idle:  # it was answered before it was read
            self.transport.close()
            return
        rate, seconds = self._settings.min_body_rate, self._settings.body_timeout_ms / 1000
        if self._was_paused or self.flow.read_paused or self._body_bytes >= rate * seconds:
            self._await_body()
        else:
            detail = f"a body must come with at least {rate} bytes a second, over {seconds:g} s"
            self._refuse(408, "request_timeout", detail)

    # ------------------------------------------------------------ refusals

    def _refuse_long_head(self) -> None:
        if self._part is None and not self.headers:
            self._refuse(400, "bad_request", "there is no request")
        elif self._part == "head" and len(self.url) > MAX_HEAD_BYTES // 2:
            self._refuse(414, "uri_too_long", _TOO_LONG)
        else:
            self._refuse(431, "headers_too_large", _TOO_LONG)

    def _hear_no_more(self) -> None:
        """Answer what is whole, then close."""
        self.throw_away()
        if self.is_idle:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer what can be no request, or can not become one, and close. Whole requests before it are answered."""
        if not self.is_idle and self._part != "body":
            self._hear_no_more()
            return
        self.throw_away()
        is_begun = not self.is_idle and (self.cycle.response_started or bool(self.pipeline))
        if not self.is_idle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        structlog.get_logger().info("connection_refused", status=status, code=code, has_answer=not is_begun)
        if is_begun:
            self.transport.abort()
            return
        prometheus.count_request("none", "unknown", status, 0.0)
        self.transport.write(self._answer(status, code, detail))
        self.transport.close()

    def _answer(self, status: int, code: str, detail: str) -> bytes:
        request_id = new_request_id()
        path = self.url.partition(b"?")[0].decode("latin-1") if len(self.url) < 1_000 else ""
        body = problem_body(status, code, detail, instance=path, request_id=request_id)
        lines = [
            f"HTTP/1.1 {status} {phrase(status)}",
            f"content-type: {MEDIA_TYPE}",
            f"content-length: {len(body)}",
            f"x-request-id: {request_id}",
            "connection: close",
            *(["retry-after: 1"] if status == 503 else []),
            *(f"{name.decode()}: {value.decode()}" for name, value in self.server_state.default_headers),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


@lru_cache(maxsize=4)  # they are the same for a second: the time is among them
def _head_of_200(fields: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + b"".join([b"%b: %b\r\n" % field for field in fields])


def _what_is_wrong(error: httptools.HttpParserError) -> str:
    """In the parser's words, where it has some; a fault in a callback is one of the request line."""
    if isinstance(error, httptools.HttpParserCallbackError) or not str(error):
        return "the request is no HTTP that is understood here: its target is no path"
    return f"the request is no HTTP that is understood here: {error}"


class _Lingering:
    """A transport that closes by halves while the caller may still be sending: a socket that is closed with something
    unread is reset, and that can overtake the answer.
    """

    def __init__(self, transport: Any, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self._is_ending = False
        self.write, self.writelines = transport.write, transport.writelines  # past __getattr__, for they are busy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether no more is to be written."""
        return self._is_ending or bool(self._transport.is_closing())

    def close(self) -> None:
        """Close, once all is written and, as far as one can wait for that, read."""
        if self._is_ending or not self._connection.is_unread or self._transport.is_closing():
            self._transport.close()
            return
        self._is_ending = True
        self._connection.throw_away()
        self._transport.write_eof()
        self._transport.resume_reading()
        self._connection.loop.call_later(LINGER_S, self._transport.abort)
