"""Plain lookups by key, answered ahead of the framework: the hot route.

Knows the bytes of a request. What is no plain lookup, or is refused, goes on to the routes (`service.api.lookups`).

Matching and unpacking a request costs FastAPI more than the lookup itself. Standing around the framework, and not in it
as a middleware, took lookups from Redis from 4,600 to 5,500 a second, from LMDB from 5,000 to 5,200 (2 cores). What is
asked again with the same fields is answered ahead of ASGI too (`RepeatedLookups`; ADR 14).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from service import prometheus
from service.api.lookup_answers import as_json
from service.api.lookup_requests import DEFAULT_LIMIT, TYPES, Kind
from service.auth import is_known
from service.border import given_request_id
from service.lookups import Look, Lookups
from service.payloads import JSON
from service.problems import ProblemError, new_request_id
from service.streams.errors import StreamError
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
        self._asker = {"headers": fields, "state": state}
        self._given_id = given_request_id(fields)
        self._lookups: Lookups = state["lookups"]
        self._lineage: str = state["catalog"].lineage

    def __call__(self, target: bytes) -> "bytes | asyncio.Future[bytes | None] | None":
        started_s = time.perf_counter()
        path, _, query = target.partition(b"?")
        asked = _plain_target(path, query)
        known = None if asked is None else self._lookups.stores.at_hand(asked.store)
        if asked is None or known is None or known.now.type != TYPES[asked.kind]:
            return None
        if self._is_draining() or not is_known(self._asker, "reader"):
            return None
        try:
            look = self._lookups.reader.page_of_key(known, StoreQuery.of_key(asked.key), DEFAULT_LIMIT)
        except (StreamError, ProblemError):
            return None
        if isinstance(look, Awaitable):
            return asyncio.ensure_future(self._awaited(look, asked.kind, started_s))
        return None if look is None else self._answer(look, asked.kind, started_s)

    async def _awaited(self, soon: Awaitable[Look | None], kind: Kind, started_s: float) -> bytes | None:
        try:
            look = await soon
        except (StreamError, ProblemError):
            return None
        return None if look is None else self._answer(look, kind, started_s)

    def _answer(self, look: Look, kind: Kind, started_s: float) -> bytes | None:
        try:
            body = as_json(look, self._lineage, "utf8", None)
        except ProblemError:
            return None
        prometheus.count_request("GET", _ROUTES[kind].path_format, 200, time.perf_counter() - started_s)
        request_id = self._given_id or new_request_id()
        head = f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n\r\n"
        return head.encode() + body


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
    return _plain_target(scope["raw_path"], scope["query_string"])


def _plain_target(path: bytes, query: bytes) -> _PlainLookup | None:
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
