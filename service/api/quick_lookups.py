"""Plain lookups by key, answered ahead of the framework: the hot route.

Knows the bytes of a request. What is no plain lookup, or is refused, goes on to the routes (`service.api.lookups`).

Matching and unpacking a request costs FastAPI more than the lookup itself. Standing around the framework, and not in it
as a middleware, took lookups from Redis from 4,600 to 5,500 a second, from LMDB from 5,000 to 5,200 (2 cores). What is
asked again with the same fields is answered ahead of ASGI too (`RepeatedLookups`; ADR 14).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from service import prometheus
from service.api.key_pages import MAX_NAME_BYTES, MAX_PAGES, KeyPage, KeyPages
from service.api.lookup_answers import as_json, page_as_json
from service.api.lookup_requests import DEFAULT_LIMIT, TYPES, Kind
from service.auth import SameCaller, is_known
from service.border import given_request_id
from service.lookups import Answer, Known, Lookups
from service.payloads import JSON
from service.problems import ProblemError, new_request_id
from service.streams.errors import StoreNotReadable, StreamError
from service.streams.stores.reading import Query as StoreQuery


class QuickLookups:
    """An ASGI application in front of another, which gets every request that is not answered here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = _plain_lookup(scope) if scope["type"] == "http" else None
        body = None if asked is None else await self._body(scope, asked)
        if asked is None or body is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = _ROUTES[asked.kind]
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    @staticmethod
    async def _body(scope: Scope, asked: "_PlainLookup") -> bytes | None:
        """The answer, if all is as it is nearly always: a valid key, a store of the type asked for, known already."""
        state = scope["state"]
        known = state["lookups"].stores.at_hand(asked.store)
        if known is None or known.now.type != TYPES[asked.kind]:
            return None
        if not is_known(scope, "reader"):
            return None
        try:
            look = await state["lookups"].reader.page(known, StoreQuery.of_key(asked.key), DEFAULT_LIMIT)
            return None if look.page.next else as_json(look, state["catalog"].lineage, "utf8", None)
        except (StreamError, ProblemError):
            return None


class RepeatedLookups:
    """Plain lookups with the same fields, one after another on a connection: by target the rest of an answer 200 behind
    its first line, None where the framework is to answer.
    """

    def __init__(
        self, fields: Sequence[tuple[bytes, bytes]], state: Mapping[str, Any], is_draining: Callable[[], bool]
    ) -> None:
        self._is_draining = is_draining
        self._caller = SameCaller(fields, state, "reader")
        self._given_id = given_request_id(fields)
        self._lookups: Lookups = state["lookups"]
        self._pages: KeyPages = state["key_pages"]
        self._lineage: str = state["catalog"].lineage

    def __call__(self, target: bytes) -> "bytes | asyncio.Future[bytes | None] | None":
        started_s = time.perf_counter()
        asked = _plain_short_target(target) if len(target) <= MAX_NAME_BYTES else _plain_target(target)
        known = None if asked is None else self._lookups.stores.at_hand(asked.store)
        if asked is None or known is None or known.now.type != TYPES[asked.kind]:
            return None
        if self._is_draining() or not self._caller.is_known():
            return None
        page = self._pages.page(target, known, asked.key)
        if page is None:
            return None
        try:
            answer = self._lookups.reader.answer(known, page.ask)
        except StoreNotReadable:
            return None
        asking = _Asking(asked.kind, known, page, started_s)
        if isinstance(answer, Answer):
            return self._answer(asking, answer)
        soon: asyncio.Future[bytes | None] = answer.get_loop().create_future()
        answer.add_done_callback(lambda done: self._pass_on(asking, done, soon))
        return soon

    def _pass_on(self, asking: "_Asking", done: "asyncio.Future[Answer]", soon: "asyncio.Future[bytes | None]") -> None:
        if not soon.done():  # else nobody waits any more
            failed = done.cancelled() or done.exception() is not None
            soon.set_result(None if failed else self._answer(asking, done.result()))

    def _answer(self, asking: "_Asking", answer: Answer) -> bytes | None:
        try:
            items = asking.page.items(answer.findings)
        except (StreamError, ProblemError):
            return None
        if items is None:
            return None
        body = page_as_json(asking.known, self._lineage, items, asking.page.ask.partition, answer)
        seconds = time.perf_counter() - asking.started_s
        prometheus.count_request("GET", _ROUTES[asking.kind].path_format, 200, seconds)
        request_id = self._given_id or new_request_id()
        head = f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n\r\n"
        return head.encode() + body


class _Asking(NamedTuple):
    """A lookup on its way."""

    kind: Kind
    known: Known
    page: KeyPage
    started_s: float


def is_like_a_lookup(target: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether requests with these fields (lower-case names) may be plain lookups, as the one with this target is."""
    return target.startswith(_PREFIX) and _is_json_accepted(fields)


class _PlainLookup(NamedTuple):
    store: str
    kind: Kind
    key: bytes


def _plain_lookup(scope: Scope) -> _PlainLookup | None:
    """The store and key of a GET by key that asks for nothing else."""
    if scope["method"] != "GET" or not _is_json_accepted(scope["headers"]):
        return None
    return _plain_parts(scope["raw_path"], scope["query_string"])


def _plain_target(target: bytes) -> _PlainLookup | None:
    path, _, query = target.partition(b"?")
    return _plain_parts(path, query)


_plain_short_target = lru_cache(MAX_PAGES)(_plain_target)


def _plain_parts(path: bytes, query: bytes) -> _PlainLookup | None:
    parts = path.split(b"/", 5)
    if parts[1:3] != _STORES or len(parts) < 5 or parts[4] not in _KINDS:
        return None
    if len(parts) == 6:
        key = None if query or not parts[5] else unquote_to_bytes(parts[5])
    elif query.startswith(b"key=") and b"&" not in query and b";" not in query:
        key = unquote_to_bytes(query[4:].replace(b"+", b" "))
    else:
        key = None
    if key is None or not _is_text(key):
        return None
    return _PlainLookup(parts[3].decode("latin-1"), _KINDS[parts[4]], key)


class _Route(NamedTuple):
    """The route under which the border counts a request."""

    path_format: str


_ROUTES: dict[Kind, _Route] = {kind: _Route(f"/v1/stores/{{store}}/{kind}/{{key}}") for kind in TYPES}
_PREFIX: Final = b"/v1/stores/"
_STORES: Final = [b"v1", b"stores"]
_KINDS: dict[bytes, Kind] = {b"sessions": "sessions", b"windows": "windows", b"keys": "keys"}
_PLAIN_ACCEPTS: Final = frozenset({b"*/*", JSON.encode(), b""})


def _is_text(key: bytes) -> bool:
    if key.isascii():
        return True
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_json_accepted(fields: Iterable[tuple[bytes, bytes]]) -> bool:
    return all(value in _PLAIN_ACCEPTS for name, value in fields if name == b"accept")
