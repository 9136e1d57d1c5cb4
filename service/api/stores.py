"""Stores over HTTP: which there are, and what is in them: by key, by range of keys, all of it; paged or exported.

Knows the shapes of requests and answers. Refuses to know what an entry is (`streams.stores`), where it lies and how
fresh that is (`service.lookups`). A lookup by key without further wishes is the hot route: it goes past FastAPI, and
its answer is prepared bytes.
"""

import asyncio
import base64
import binascii
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

import orjson
import pyarrow as pa
from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.bodies import UNCHANGED, accepts, answer, page, read_model, tagged
from service.api.document import takes
from service.api.models import Cursor as PageCursor
from service.api.models import Limit, Page, require_name
from service.auth import MAY, Reader
from service.catalog.stores import StoreNow, stores_now
from service.lookups import Freshness, Known, Look, Lookups
from service.payloads import ARROW, JSON, NDJSON
from service.positions import Position, StoreCursor, opaque, position_of, store_cursor_of
from service.problems import ProblemError, declared
from service.streams.errors import KeyHasNoOwner, PositionNotOfStore, StreamError, UnknownStore, WrongStoreType
from service.streams.stores.reading import END_OF_TIME, Found, Place, Told
from service.streams.stores.reading import Page as Entries
from service.streams.stores.reading import Query as StoreQuery

Kind = Literal["sessions", "windows", "keys"]
KeyEncoding = Literal["utf8", "base64"]

NAME = r"^[a-z][a-z0-9_]{0,63}-[a-z][a-z0-9_]{0,63}$"
TYPES: Final[dict[Kind, str]] = {"sessions": "session", "windows": "window", "keys": "key_value"}
DEFAULT_LIMIT: Final = 100
EXPORT_PAGE: Final = 1000
BATCH_AT_ONCE: Final = 100
NEXT_HEADER: Final = "Millrace-Next"
AS_OF_HEADER: Final = "Millrace-As-Of"
_PLAIN_ACCEPTS: Final = frozenset({b"*/*", JSON.encode(), b""})
_JSON_HEADERS: Final = {"Content-Type": JSON}

EXPORT_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("window_start", pa.int64()),
        pa.field("window_end", pa.int64()),
        pa.field("value", pa.utf8()),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("closes_at", pa.int64()),
        pa.field("is_final", pa.bool_(), nullable=False),
    ]
)


class _KeyConvertor(StringConvertor):
    """The rest of a path: a key, which may hold slashes."""

    regex = ".+"


register_url_convertor("key", _KeyConvertor())


# ---------------------------------------------------------------- what is asked for

Time = Annotated[int, Field(ge=0, le=END_OF_TIME)]


class Fresh(BaseModel):
    """How fresh an answer must be."""

    model_config = ConfigDict(extra="ignore")

    min_position: Annotated[
        str | None,
        Field(
            description="A `position` of an ingest answer, or of an earlier lookup: the answer reflects it, or is 503.",
        ),
    ] = None
    max_lag_records: Annotated[int | None, Field(ge=0, description="The answer is no staler, or is 503.")] = None
    timeout_ms: Annotated[int, Field(ge=0, le=60_000, description="How long to wait for that.")] = 10_000


class Lookup(Fresh):
    """Keys, order and page of a lookup."""

    key: Annotated[str | None, Field(description="One key; as in the path, and may be empty.")] = None
    from_key: Annotated[str | None, Field(description="Keys from this one on.")] = None
    to_key: Annotated[str | None, Field(description="Keys up to this one.")] = None
    reverse: Annotated[bool, Field(description="From the last entry down.")] = False
    limit: Annotated[
        int | None,
        Field(ge=1, le=1000, description=f"How many entries at most: {DEFAULT_LIMIT}, or all of them in an export."),
    ] = None
    cursor: Annotated[str | None, Field(description="`next` of the page before.")] = None
    key_encoding: Annotated[KeyEncoding, Field(description="How keys are written, here and in the answer.")] = "utf8"

    @property
    def times(self) -> tuple[int, int]:
        """The bounds of a query's times."""
        return 0, END_OF_TIME


class SessionLookup(Lookup):
    """Which sessions."""

    earliest_end: Annotated[Time, Field(description="Sessions that end then or later.")] = 0
    latest_start: Annotated[Time, Field(description="Sessions that start then or earlier.")] = END_OF_TIME

    @property
    def times(self) -> tuple[int, int]:
        return self.earliest_end, self.latest_start


class WindowLookup(Lookup):
    """Which windows."""

    from_: Annotated[Time, Field(alias="from", description="Windows that start then or later.")] = 0
    to: Annotated[Time, Field(description="Windows that start then or earlier.")] = END_OF_TIME

    @property
    def times(self) -> tuple[int, int]:
        return self.from_, self.to


class BatchRequest(BaseModel):
    """Several keys at once; the entries come key after key, in the order asked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    keys: Annotated[list[str], Field(min_length=1, max_length=1000)]
    reverse: bool = False
    limit: Annotated[int, Field(ge=1, le=1000, description="How many entries at most, of all keys.")] = 1000
    cursor: str | None = None
    key_encoding: KeyEncoding = "utf8"


# ---------------------------------------------------------------- what is answered


class Window(BaseModel):
    """In ms; the end of a session or sliding window is included."""

    start: int
    end: int


class EntryView(BaseModel):
    """One entry."""

    key: Annotated[str | None, Field(description="Null where only a hash of a very long identity is kept.")]
    window: Window | None
    value: Any
    timestamp: int
    closes_at: Annotated[
        int | None,
        Field(description="The stream time at which the window closes; past which, if its end is inclusive."),
    ]
    is_final: Annotated[bool, Field(description="Whether it has closed: nothing changes the entry any more.")]


class AsOf(BaseModel):
    """The moment that an answer is of."""

    stream_time: Annotated[int | None, Field(description="The highest of the partitions that answered.")]
    position: Annotated[str, Field(description="Opaque; as `min_position`, the next answer is no older.")]
    lag_records: Annotated[int, Field(description="Records and changes that are there and that it does not reflect.")]
    served_by: Annotated[str, Field(description="The instance whose replica was read, or `redis`.")]


class LookupPage(BaseModel):
    """Entries by key, then as in the store; a page may be short and have a next one all the same."""

    store: str
    items: list[EntryView]
    as_of: AsOf
    next: str | None


class StorePartitionView(BaseModel):
    """One partition of a store."""

    partition: int
    task: str
    instance: str | None
    stream_time: int | None
    position: Annotated[int | None, Field(description="The changelog offset up to which the replica is replayed.")]
    end: Annotated[int, Field(description="The end of the changelog.")]
    lag: int
    entries: Annotated[int | None, Field(description="Store keys, those of indexes and of expired entries included.")]
    bytes: int | None


class StoreView(BaseModel):
    """The state of one operator of a job."""

    id: str
    name: str
    type: Literal["session", "window", "key_value"]
    kind: Literal["aggregate", "distinct", "deduplicate", "suppress"]
    job: str
    operator: str
    partitions: list[StorePartitionView]
    entries: int | None
    bytes: int | None
    position: str
    lag: int


class OwnerInstance(BaseModel):
    """Where a task runs."""

    id: str
    name: str
    host: str
    slot: str


class Owner(BaseModel):
    """Who has a key."""

    store: str
    key: str
    partition: int
    task: str
    active: OwnerInstance | None
    standbys: list[OwnerInstance]


# ---------------------------------------------------------------- the hot route


Start = tuple[int, Place | None]  # where a page begins: the number of a key in a batch, and behind which place


class QuickLookups:
    """Answers a plain lookup by key ahead of the framework; what is not one, or is refused, goes on to the routes.

    Matching and unpacking a request costs FastAPI more than the lookup itself.
    """

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
    async def _body(scope: Scope, asked: "_Asked") -> bytes | None:
        """The answer, if all is as it is nearly always: a valid key, a store of the type asked for, known already."""
        state = scope["state"]
        known = state["lookups"].at_hand(asked.store)
        if known is None or known.now.type != TYPES[asked.kind]:
            return None
        if not _may_read(scope):
            return None
        try:
            look = await state["lookups"].look(known, StoreQuery.of_key(asked.key), DEFAULT_LIMIT)
            return None if look.page.next else _json(look, state["catalog"].lineage, "utf8", None)
        except (StreamError, ProblemError):
            return None


def _may_read(scope: Scope) -> bool:
    """Whether the caller is known to be a reader; if not, that is found out on the way to the routes."""
    state = scope["state"]
    if state["settings"].auth == "off":
        return True
    header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, secret = header.decode("latin-1").partition(" ")
    caller = state["keys"].at_hand(secret.strip()) if scheme.lower() == "bearer" else None
    return caller is not None and caller.role in MAY["reader"]


class _Asked(NamedTuple):
    store: str
    kind: Kind
    key: bytes


def _plain_lookup(scope: Scope) -> _Asked | None:
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
    return _Asked(parts[3].decode("latin-1"), _KINDS[parts[4]], key)


class _Route(NamedTuple):
    """What the border counts a request under."""

    path_format: str


_ROUTES: dict[Kind, _Route] = {kind: _Route(f"/v1/stores/{{store}}/{kind}/{{key}}") for kind in TYPES}
_STORES: Final = [b"v1", b"stores"]
_KINDS: dict[bytes, Kind] = {b"sessions": "sessions", b"windows": "windows", b"keys": "keys"}


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


def _only_known_parameters(request: Request, _: Reader) -> None:
    """A lookup with a mistyped wish would be answered as if there were none: 422 for a parameter that the route does
    not have, or that is given twice.
    """
    if not request.scope["query_string"]:
        return
    operation = request.app.openapi()["paths"][request.scope["route"].path_format][request.method.lower()]
    known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    given = Counter(name for name, _ in parse_qsl(request.url.query, keep_blank_values=True))
    wrong = {name: "is given more than once" for name, times in given.items() if times > 1}
    wrong |= {name: f"is not known here; known: {', '.join(known) or 'none'}" for name in given if name not in known}
    items = [{"pointer": f"?{name}", "detail": detail} for name, detail in wrong.items()]
    if items:
        raise ProblemError(422, "invalid_request", items[0]["detail"], items)


router = APIRouter(tags=["stores"], dependencies=[Depends(_only_known_parameters)])


def _named(store: Annotated[str, Path(description="The store's name: `<job>-<operator>`.")]) -> str:
    """A name that no store can have is not looked for (a database may not even take it)."""
    if not re.fullmatch(NAME, store):
        raise UnknownStore(store)
    return store


Named = Annotated[str, Depends(_named)]
Key = Annotated[str, Path(description="A key; it may hold slashes.")]

_LOOKUP: dict[str, Any] = {
    "responses": {
        200: {
            "model": LookupPage,
            "description": "A page; or, by `Accept`, all entries: one a line, or an Arrow stream with the columns key, "
            "window_start, window_end, value, timestamp, closes_at, is_final. Then `as_of` is in the header "
            f"`{AS_OF_HEADER}` and, where there is a `limit`, the cursor of the next page in `{NEXT_HEADER}`",
            "content": {
                NDJSON: {"schema": {"type": "string"}},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **declared(401, 403, 404, 406, 409, 422, 503),
    }
}


@router.get("/v1/stores", responses={200: {"model": Page[StoreView]}, **declared(401, 403, 422)})
async def list_stores(request: Request, _: Reader, limit: Limit = 100, cursor: PageCursor = None) -> Response:
    """List stores by name."""
    require_name(cursor, NAME)
    found = await run_in_threadpool(request.state.catalog.read, stores_now, limit=limit + 1, after=cursor)
    return answer(page([await _view(request, now) for now in found], limit=limit))


@router.get(
    "/v1/stores/{store:name}", responses={200: {"model": StoreView}, **UNCHANGED, **declared(401, 403, 404, 422)}
)
async def get_store(request: Request, store: Named, _: Reader) -> Response:
    """Show a store: its type, how much is in it, how far its replicas are."""
    known = await request.state.lookups.as_of_now(store)
    return tagged(request, await _view(request, known.now))


@router.get("/v1/stores/{store:name}/sessions", **_LOOKUP)
async def find_sessions(
    request: Request, store: Named, _: Reader, asked: Annotated[SessionLookup, Query()]
) -> Response:
    """Find sessions: of one key, of a range of keys, or all."""
    return await _look(request, store, "sessions", asked, None)


@router.get("/v1/stores/{store:name}/sessions/{key:key}", **_LOOKUP)
async def find_sessions_of_key(
    request: Request, store: Named, key: Key, _: Reader, asked: Annotated[SessionLookup, Query()]
) -> Response:
    """Find the sessions of a key, oldest first."""
    return await _look(request, store, "sessions", asked, _path_key(request))


@router.get("/v1/stores/{store:name}/windows", **_LOOKUP)
async def find_windows(request: Request, store: Named, _: Reader, asked: Annotated[WindowLookup, Query()]) -> Response:
    """Find windows: of one key, of a range of keys, or all."""
    return await _look(request, store, "windows", asked, None)


@router.get("/v1/stores/{store:name}/windows/{key:key}", **_LOOKUP)
async def find_windows_of_key(
    request: Request, store: Named, key: Key, _: Reader, asked: Annotated[WindowLookup, Query()]
) -> Response:
    """Find the windows of a key, oldest first."""
    return await _look(request, store, "windows", asked, _path_key(request))


@router.get("/v1/stores/{store:name}/keys", **_LOOKUP)
async def find_keys(request: Request, store: Named, _: Reader, asked: Annotated[Lookup, Query()]) -> Response:
    """Find entries: of one key, of a range of keys, or all."""
    return await _look(request, store, "keys", asked, None)


@router.get("/v1/stores/{store:name}/keys/{key:key}", **_LOOKUP)
async def find_key(request: Request, store: Named, key: Key, _: Reader, asked: Annotated[Lookup, Query()]) -> Response:
    """Find what is stored for a key."""
    return await _look(request, store, "keys", asked, _path_key(request))


@router.post(
    "/v1/stores/{store:name}:lookup",
    responses={200: {"model": LookupPage}, **declared(400, 401, 403, 404, 409, 413, 415, 422, 503)},
    openapi_extra=takes(BatchRequest, {"keys": ["u1", "u2"]}),
)
async def look_up_keys(request: Request, store: Named, _: Reader, fresh: Annotated[Fresh, Query()]) -> Response:
    """Look several keys up at once, whatever the type of the store."""
    body = await read_model(request, BatchRequest)
    keys = [_decoded(key, body.key_encoding, f"/keys/{i}") for i, key in enumerate(body.keys)]
    queries = [StoreQuery.of_key(key, reverse=body.reverse) for key in keys]
    known = await _fresh_enough(request, store, fresh, queries)
    lineage = request.state.catalog.lineage
    digest = _digest("lookup", queries)
    start = _start(body.cursor, known, lineage, digest, "/cursor")
    look, following = await _batch(request.state.lookups, known, queries, body.limit, start)
    cursor = None if following is None else _cursor(known, lineage, digest, following)
    return Response(_json(look, lineage, body.key_encoding, cursor), headers=_JSON_HEADERS)


@router.get("/v1/stores/{store:name}/owner", responses={200: {"model": Owner}, **declared(401, 403, 404, 409, 422)})
async def get_owner(
    request: Request,
    store: Named,
    _: Reader,
    key: Annotated[str, Query(description="The key.")],
    key_encoding: KeyEncoding = "utf8",
) -> Response:
    """Show which task has a key, and where it runs."""
    wanted = _decoded(_query_bytes(request, b"key") or b"", key_encoding, "?key")
    known = await request.state.lookups.as_of_now(store)
    if not known.now.is_keyed and len(known.now.partitions) > 1:
        raise KeyHasNoOwner(store)
    at = known.now.partitions[known.partition_of(wanted)]
    active = None
    if at.instance_id is not None:
        active = {"id": at.instance_id, "name": at.instance, "host": at.host, "slot": at.slot_id}
    shown = {"store": store, "key": key, "partition": at.partition, "task": at.task}
    return answer({**shown, "active": active, "standbys": []})


# ---------------------------------------------------------------- looking


async def _look(request: Request, store: str, kind: Kind, asked: Lookup, path_key: bytes | None) -> Response:
    media_type = accepts(request, JSON, NDJSON, ARROW)
    query = _query(request, asked, path_key)
    known = await _fresh_enough(request, store, asked, [query], kind)
    lineage = request.state.catalog.lineage
    digest = _digest(kind, [query])
    _, after = _start(asked.cursor, known, lineage, digest)
    limit = asked.limit or (DEFAULT_LIMIT if media_type == JSON else EXPORT_PAGE)
    look = await request.state.lookups.look(known, query, limit, after)
    if media_type != JSON:
        return _export(request, look, query, media_type, asked, digest)
    following = _following(look, lineage, digest)
    return Response(_json(look, lineage, asked.key_encoding, following), headers=_JSON_HEADERS)


async def _fresh_enough(
    request: Request, store: str, fresh: Fresh, queries: Sequence[StoreQuery], kind: Kind | None = None
) -> Known:
    """The store, fresh enough for all queries, and of the type that is asked for."""
    lookups: Lookups = request.state.lookups
    known = await lookups.known(store)
    if kind is not None and known.now.type != TYPES[kind]:
        raise WrongStoreType(store, known.now.type, kind)
    wanted = Freshness(_position(fresh, request.state.catalog.lineage), fresh.max_lag_records, fresh.timeout_ms / 1000)
    if not wanted.is_asked_for:
        return known
    try:
        return await lookups.reflecting(store, queries, wanted)
    except PositionNotOfStore as error:
        raise _refused("invalid_position", "?min_position", str(error)) from error


async def _batch(
    lookups: Lookups, known: Known, queries: Sequence[StoreQuery], limit: int, start: Start
) -> tuple[Look, Start | None]:
    """Entries of keys in their order, `limit` of them, from a place on; with where to go on."""
    number, after = start
    items: list[Found] = []
    told: dict[int, Told] = {}
    served_by = ""
    while number < len(queries):
        if len(items) == limit:
            return Look(Entries(items, None, told), known, served_by), (number, after)
        group = queries[number : number + BATCH_AT_ONCE]
        places = [after, *[None] * (len(group) - 1)]
        asked = (
            lookups.look(known, query, limit - len(items), place) for query, place in zip(group, places, strict=True)
        )
        for look in await asyncio.gather(*asked):
            following = look.page.next
            room = limit - len(items)
            items += look.page.items[:room]
            told, served_by = told | look.page.told, look.served_by
            if len(look.page.items) > room:
                last = look.page.items[room - 1]
                following = Place(last.entry.within, last.partition) if room else after
            if following is not None or len(look.page.items) > room:
                return Look(Entries(items, None, told), known, served_by), (number, following)
            number, after = number + 1, None
    return Look(Entries(items, None, told), known, served_by), None


def _query(request: Request, asked: Lookup, path_key: bytes | None) -> StoreQuery:
    """The query of a request; keys are read from its bytes, for a key is bytes."""
    low, high = asked.times
    given = {name: _query_bytes(request, name.encode()) for name in ("key", "from_key", "to_key")}
    names = [name for name, value in given.items() if value is not None]
    if path_key is not None:
        names.insert(0, "the path")
    if len(names) > 1 and names != ["from_key", "to_key"]:
        detail = f"{' and '.join(names)} say different things: one key, or a range of keys"
        raise _refused("invalid_request", f"?{names[-1]}", detail)
    decoded = {
        name: None if value is None else _decoded(value, asked.key_encoding, f"?{name}")
        for name, value in given.items()
    }
    key = _decoded(path_key, asked.key_encoding, "{key}") if path_key is not None else decoded["key"]
    if key is not None:
        return StoreQuery.of_key(key, low, high, reverse=asked.reverse)
    return StoreQuery(decoded["from_key"], decoded["to_key"], low, high, asked.reverse)


def _path_key(request: Request) -> bytes:
    parts: list[bytes] = request.scope["raw_path"].split(b"/", 5)
    return unquote_to_bytes(parts[5])


def _query_bytes(request: Request, name: bytes) -> bytes | None:
    """A parameter, as the bytes that were sent; the last one of its name."""
    found = [part.partition(b"=") for part in request.scope["query_string"].split(b"&")]
    values = [value for key, _, value in found if unquote_to_bytes(key) == name]
    return unquote_to_bytes(values[-1].replace(b"+", b" ")) if values else None


def _decoded(key: bytes | str, encoding: KeyEncoding, pointer: str) -> bytes:
    """A key as it is stored."""
    try:
        raw = key.encode() if isinstance(key, str) else key
        if encoding == "base64":
            return base64.b64decode(raw.replace(b"-", b"+").replace(b"_", b"/"), validate=True)
        raw.decode()
    except (UnicodeError, binascii.Error) as error:
        what = "base64" if encoding == "base64" else "UTF-8; write keys in base64 with key_encoding=base64"
        raise _refused("invalid_key", pointer, f"the key is not {what}") from error
    return raw


def _refused(code: str, pointer: str, detail: str) -> ProblemError:
    """A part of the request that makes no sense, and where it is."""
    return ProblemError(422, code, detail, [{"pointer": pointer, "detail": detail}])


def _position(fresh: Fresh, lineage: str) -> Position | None:
    if fresh.min_position is None:
        return None
    found = position_of(fresh.min_position)
    if found is None or found.lineage != lineage:
        raise _refused("invalid_position", "?min_position", "this is not the `position` of an answer of this service")
    return found


def _digest(kind: str, queries: Sequence[StoreQuery]) -> int:
    """What a cursor belongs to."""
    return zlib.crc32(repr((kind, queries)).encode())


def _start(cursor: str | None, known: Known, lineage: str, digest: int, pointer: str = "?cursor") -> Start:
    """Where a page begins."""
    if cursor is None:
        return 0, None
    found = store_cursor_of(cursor)
    if found is None or (found.store, found.lineage, found.query) != (known.now.id, lineage, digest):
        detail = f"the cursor is not the `next` of a page of this lookup in the store {known.now.name!r}"
        raise _refused("invalid_cursor", pointer, detail)
    return found.number, None if found.within is None else Place(found.within, found.partition)


def _cursor(known: Known, lineage: str, digest: int, start: Start) -> str:
    number, place = start
    within, partition = (None, 0) if place is None else place
    return opaque(StoreCursor(known.now.id, lineage, digest, within, partition, number))


def _following(look: Look, lineage: str, digest: int) -> str | None:
    return None if look.page.next is None else _cursor(look.known, lineage, digest, (0, look.page.next))


# ---------------------------------------------------------------- answers


def _json(look: Look, lineage: str, encoding: KeyEncoding, following: str | None) -> bytes:
    """`{"store", "items", "as_of", "next"}`."""
    items = [_item(found, encoding) for found in look.page.items]
    shown = {"store": look.known.now.name, "items": items, "as_of": _as_of(look, lineage), "next": following}
    return orjson.dumps(shown)


def _item(found: Found, encoding: KeyEncoding) -> dict[str, Any]:
    entry = found.entry
    return {
        "key": None if entry.key is None else _shown_key(entry.key, encoding),
        "window": None if entry.window is None else {"start": entry.window[0], "end": entry.window[1]},
        "value": None if entry.value is None else orjson.Fragment(entry.value),
        "timestamp": entry.timestamp,
        "closes_at": entry.closes_at,
        "is_final": found.is_final,
    }


def _shown_key(key: bytes, encoding: KeyEncoding) -> str:
    if encoding == "base64":
        return base64.b64encode(key).decode()
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        detail = "a key in the answer is not UTF-8: ask with key_encoding=base64"
        raise _refused("key_not_text", "?key_encoding", detail) from error


def _as_of(look: Look, lineage: str) -> dict[str, Any]:
    told = look.page.told
    offsets = tuple((partition, each.position) for partition, each in told.items())
    stream_time = max((each.stream_time for each in told.values()), default=-1)
    return {
        "stream_time": stream_time if stream_time >= 0 else None,
        "position": _opaque(look.known.now.changelog, lineage, offsets),
        "lag_records": look.known.lag(told),
        "served_by": _server(look),
    }


@lru_cache(maxsize=4096)
def _opaque(changelog: str, lineage: str, offsets: tuple[tuple[int, int], ...]) -> str:
    """The position of a store: offsets of its changelog by partition."""
    return opaque(Position(changelog, lineage, {str(partition): offset for partition, offset in offsets}))


def _server(look: Look) -> str:
    """The instance by its name, where the catalog still knows it as an owner."""
    names = {at.instance_id: at.instance for at in look.known.now.partitions}
    return names.get(look.served_by) or look.served_by


def _export(request: Request, look: Look, query: StoreQuery, media_type: str, asked: Lookup, digest: int) -> Response:
    """All entries (or `limit` of them), page by page, each as of its own moment; no more in memory than one page."""
    lineage = request.state.catalog.lineage
    headers = {AS_OF_HEADER: orjson.dumps(_as_of(look, lineage)).decode()}
    is_page = asked.limit is not None
    if is_page and (following := _following(look, lineage, digest)) is not None:
        headers[NEXT_HEADER] = following
    if media_type == NDJSON:
        _written(look.page.items, asked.key_encoding)  # what is no text is refused while there is time
    pages = _pages(request.state.lookups, look, query, is_page=is_page)
    body = _arrow(pages) if media_type == ARROW else _lines(pages, asked.key_encoding)
    return StreamingResponse(body, headers=headers, media_type=media_type)


async def _pages(lookups: Lookups, look: Look, query: StoreQuery, *, is_page: bool) -> AsyncIterator[list[Found]]:
    while True:
        yield look.page.items
        if look.page.next is None or is_page:
            return
        look = await lookups.look(look.known, query, EXPORT_PAGE, look.page.next)


async def _lines(pages: AsyncIterator[list[Found]], encoding: KeyEncoding) -> AsyncIterator[bytes]:
    async for items in pages:
        yield _written(items, encoding)


def _written(items: Sequence[Found], encoding: KeyEncoding) -> bytes:
    return b"".join(orjson.dumps(_item(found, encoding), option=orjson.OPT_APPEND_NEWLINE) for found in items)


async def _arrow(pages: AsyncIterator[list[Found]]) -> AsyncIterator[bytes]:
    sink = _Parts()
    with pa.ipc.new_stream(sink, EXPORT_SCHEMA) as writer:
        async for items in pages:
            if items:
                writer.write_batch(_as_arrow(items))
            yield sink.taken()
    yield sink.taken()


class _Parts:
    """A file that is handed on as it is written."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        return len(self._parts[-1])

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _as_arrow(items: Sequence[Found]) -> pa.RecordBatch:
    entries = [found.entry for found in items]
    windows = [entry.window or (None, None) for entry in entries]
    columns: list[list[Any]] = [
        [entry.key for entry in entries],
        [start for start, _ in windows],
        [end for _, end in windows],
        [entry.value for entry in entries],
        [entry.timestamp for entry in entries],
        [entry.closes_at for entry in entries],
        [found.is_final for found in items],
    ]
    arrays = [pa.array(column, part.type) for column, part in zip(columns, EXPORT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EXPORT_SCHEMA)


async def _view(request: Request, now: StoreNow) -> Mapping[str, Any]:
    """A store as it is listed."""
    lineage = request.state.catalog.lineage
    partitions = [await _partition_view(request.state.lookups, now, number) for number in range(len(now.partitions))]
    offsets = tuple((at["partition"], at["position"]) for at in partitions if at["position"] is not None)
    return {
        "id": now.id,
        "name": now.name,
        "type": now.type,
        "kind": now.kind,
        "job": now.job,
        "operator": now.operator,
        "partitions": partitions,
        "entries": _total(at["entries"] for at in partitions),
        "bytes": _total(at["bytes"] for at in partitions),
        "position": _opaque(now.changelog, lineage, offsets),
        "lag": sum(at["lag"] for at in partitions),
    }


async def _partition_view(lookups: Lookups, now: StoreNow, partition: int) -> dict[str, Any]:
    at, figures = now.partitions[partition], await lookups.figures(now, partition)
    return {
        "partition": at.partition,
        "task": at.task,
        "instance": at.instance,
        "stream_time": figures.stream_time if figures is not None and figures.stream_time >= 0 else None,
        "position": None if figures is None else figures.position,
        "end": at.end,
        "lag": at.input_lag + max(0, at.end - (0 if figures is None else figures.position)),
        "entries": None if figures is None else figures.entries,
        "bytes": None if figures is None else figures.bytes,
    }


def _total(figures: Iterable[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None
