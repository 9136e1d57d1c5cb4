"""Plain lookups by key, answered ahead of the framework: the hot route.

Knows the bytes of a request. What is no plain lookup, or is refused, goes on to the routes (`service.api.lookups`).

Matching and unpacking a request costs FastAPI more than the lookup itself. Standing around the framework, and not in it
as a middleware, took lookups from Redis from 4,600 to 5,500 a second, from LMDB from 5,000 to 5,200 (2 cores).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.lookup_answers import as_json
from service.api.lookup_requests import DEFAULT_LIMIT, TYPES, Kind
from service.auth import is_known
from service.payloads import JSON
from service.problems import ProblemError
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


class _PlainLookup(NamedTuple):
    store: str
    kind: Kind
    key: bytes


def _plain_lookup(scope: Scope) -> _PlainLookup | None:
    """The store and key of a GET by key that asks for nothing else."""
    if scope["method"] != "GET":
        return None
    parts = scope["raw_path"].split(b"/", 5)
    query = scope["query_string"]
    if parts[1:3] != _STORES or len(parts) < 5 or parts[4] not in _KINDS:
        return None
    if len(parts) == 6:
        key = None if query or not parts[5] else unquote_to_bytes(parts[5])
    elif query.startswith(b"key=") and b"&" not in query and b";" not in query:
        key = unquote_to_bytes(query[4:].replace(b"+", b" "))
    else:
        key = None
    if key is None or not _is_text(key) or any(value not in _PLAIN_ACCEPTS for value in _accepts(scope)):
        return None
    return _PlainLookup(parts[3].decode("latin-1"), _KINDS[parts[4]], key)


class _Route(NamedTuple):
    """The route under which the border counts a request."""

    path_format: str


_ROUTES: dict[Kind, _Route] = {kind: _Route(f"/v1/stores/{{store}}/{kind}/{{key}}") for kind in TYPES}
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


def _accepts(scope: Scope) -> Iterable[bytes]:
    return (value for name, value in scope["headers"] if name == b"accept")
