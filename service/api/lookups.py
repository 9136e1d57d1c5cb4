"""Lookups over HTTP: entries of a store by key, by range of keys, all of it; paged or exported.

Knows the routes. Refuses to know how requests and answers are written (`lookup_requests`, `lookup_answers`), where an
entry lies and how fresh that is (`service.lookups`). A plain lookup by key is answered ahead of them (`quick_lookups`).
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import accepts, read_model
from service.api.document import router_of, takes
from service.api.lookup_answers import (
    AS_OF_HEADER,
    EXPORT_PAGE,
    NEXT_HEADER,
    LookupPage,
    as_json,
    export,
    following_cursor,
)
from service.api.lookup_requests import (
    DEFAULT_LIMIT,
    TYPES,
    BatchRequest,
    Fresh,
    Kind,
    Lookup,
    PageStart,
    PathKey,
    SessionLookup,
    StoreName,
    WindowLookup,
    cursor_of_start,
    decoded_key,
    page_start,
    path_key,
    query_digest,
    query_of,
    wanted_position,
)
from service.auth import Reader
from service.lookups import Freshness, Known, Look, Lookups
from service.payloads import ARROW, JSON, NDJSON
from service.problems import declared, refused
from service.streams.errors import PositionNotOfStore, WrongStoreType
from service.streams.stores.reading import Findings, Found, Place
from service.streams.stores.reading import Page as Entries
from service.streams.stores.reading import Query as StoreQuery

BATCH_AT_ONCE: Final = 100
_JSON_HEADERS: Final = {"Content-Type": JSON}


class _KeyConvertor(StringConvertor):
    """The rest of a path: a key, which may hold slashes, and line ends."""

    regex = "(?s:.+)"


register_url_convertor("key", _KeyConvertor())

router = router_of("stores")

_LOOKUP: dict[str, Any] = {
    "responses": {
        200: {
            "model": LookupPage,
            "description": "A page; or, by `Accept`, all entries: one a line, or an Arrow stream with the columns key, "
            "window_start, window_end, value, timestamp, closes_at, is_final. Then `as_of` is in the header "
            f"`{AS_OF_HEADER}` and, where there is a `limit`, the cursor of the next page in `{NEXT_HEADER}`",
            "headers": {
                AS_OF_HEADER: {
                    "description": "Of exports: `as_of` of a page, as JSON.",
                    "schema": {"type": "string"},
                },
                NEXT_HEADER: {
                    "description": "Of exports with a `limit`: the cursor of the next page; absent at the end.",
                    "schema": {"type": "string"},
                },
            },
            "content": {
                NDJSON: {"schema": {"type": "string"}},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **declared(401, 403, 404, 406, 409, 422, 503),
    }
}


@router.get("/v1/stores/{store:name}/sessions", **_LOOKUP)
async def find_sessions(
    request: Request, store: StoreName, _: Reader, asked: Annotated[SessionLookup, Query()]
) -> Response:
    """Find sessions: of one key, of a range of keys, or all."""
    return await _look(request, store, "sessions", asked, None)


@router.get("/v1/stores/{store:name}/sessions/{key:key}", **_LOOKUP)
async def find_sessions_of_key(
    request: Request, store: StoreName, key: PathKey, _: Reader, asked: Annotated[SessionLookup, Query()]
) -> Response:
    """Find the sessions of a key, oldest first."""
    return await _look(request, store, "sessions", asked, path_key(request))


@router.get("/v1/stores/{store:name}/windows", **_LOOKUP)
async def find_windows(
    request: Request, store: StoreName, _: Reader, asked: Annotated[WindowLookup, Query()]
) -> Response:
    """Find windows: of one key, of a range of keys, or all."""
    return await _look(request, store, "windows", asked, None)


@router.get("/v1/stores/{store:name}/windows/{key:key}", **_LOOKUP)
async def find_windows_of_key(
    request: Request, store: StoreName, key: PathKey, _: Reader, asked: Annotated[WindowLookup, Query()]
) -> Response:
    """Find the windows of a key, oldest first."""
    return await _look(request, store, "windows", asked, path_key(request))


@router.get("/v1/stores/{store:name}/keys", **_LOOKUP)
async def find_keys(request: Request, store: StoreName, _: Reader, asked: Annotated[Lookup, Query()]) -> Response:
    """Find entries: of one key, of a range of keys, or all."""
    return await _look(request, store, "keys", asked, None)


@router.get("/v1/stores/{store:name}/keys/{key:key}", **_LOOKUP)
async def find_key(
    request: Request, store: StoreName, key: PathKey, _: Reader, asked: Annotated[Lookup, Query()]
) -> Response:
    """Find what is stored for a key."""
    return await _look(request, store, "keys", asked, path_key(request))


@router.post(
    "/v1/stores/{store:name}:lookup",
    responses={200: {"model": LookupPage}, **declared(400, 401, 403, 404, 409, 413, 415, 422, 503)},
    openapi_extra=takes(BatchRequest, {"keys": ["u1", "u2"]}),
)
async def look_up_keys(request: Request, store: StoreName, _: Reader, fresh: Annotated[Fresh, Query()]) -> Response:
    """Look several keys up at once, whatever the type of the store."""
    body = await read_model(request, BatchRequest)
    keys = [decoded_key(key, body.key_encoding, f"/keys/{i}") for i, key in enumerate(body.keys)]
    queries = [StoreQuery.of_key(key, reverse=body.reverse) for key in keys]
    known = await _fresh_enough(request, store, fresh, queries)
    lineage = request.state.catalog.lineage
    digest = query_digest("lookup", queries)
    start = page_start(body.cursor, known, lineage, digest, "/cursor")
    look, following = await _batch(request.state.lookups, known, queries, body.limit, start)
    cursor = None if following is None else cursor_of_start(known, lineage, digest, following)
    return Response(as_json(look, lineage, body.key_encoding, cursor), headers=_JSON_HEADERS)


async def _look(request: Request, store: str, kind: Kind, asked: Lookup, path_key: bytes | None) -> Response:
    media_type = accepts(request, JSON, NDJSON, ARROW)
    query = query_of(request, asked, path_key)
    known = await _fresh_enough(request, store, asked, [query], kind)
    lineage = request.state.catalog.lineage
    digest = query_digest(kind, [query])
    _, after = page_start(asked.cursor, known, lineage, digest)
    limit = asked.limit or (DEFAULT_LIMIT if media_type == JSON else EXPORT_PAGE)
    look = await request.state.lookups.reader.page(known, query, limit, after)
    if media_type != JSON:
        return export(request, look, query, media_type, asked, digest)
    following = following_cursor(look, lineage, digest)
    return Response(as_json(look, lineage, asked.key_encoding, following), headers=_JSON_HEADERS)


async def _fresh_enough(
    request: Request, store: str, fresh: Fresh, queries: Sequence[StoreQuery], kind: Kind | None = None
) -> Known:
    """The store, fresh enough for all queries, and of the type that is asked for."""
    lookups: Lookups = request.state.lookups
    known = await lookups.stores.get(store)
    if kind is not None and known.now.type != TYPES[kind]:
        raise WrongStoreType(store, known.now.type, kind)
    wanted = Freshness(
        wanted_position(fresh, request.state.catalog.lineage), fresh.max_lag_records, fresh.timeout_ms / 1000
    )
    if not wanted.is_asked_for:
        return known
    try:
        return await lookups.fresh(store, queries, wanted)
    except PositionNotOfStore as error:
        raise refused("invalid_position", "?min_position", str(error)) from error


async def _batch(
    lookups: Lookups, known: Known, queries: Sequence[StoreQuery], limit: int, start: PageStart
) -> tuple[Look, PageStart | None]:
    """Entries of keys in their order, `limit` of them, from a place on; with where to go on."""
    number, after = start
    items: list[Found] = []
    findings: dict[int, Findings] = {}
    served_by = ""
    while number < len(queries):
        if len(items) == limit:
            return Look(Entries(items, None, findings), known, served_by), (number, after)
        group = queries[number : number + BATCH_AT_ONCE]
        places = [after, *[None] * (len(group) - 1)]
        asked = (
            lookups.reader.page(known, query, limit - len(items), place)
            for query, place in zip(group, places, strict=True)
        )
        for look in await asyncio.gather(*asked):
            following = look.page.next
            room = limit - len(items)
            items += look.page.items[:room]
            findings, served_by = findings | look.page.findings, look.served_by
            if len(look.page.items) > room:
                last = look.page.items[room - 1]
                following = Place(last.entry.within, last.partition) if room else after
            if following is not None or len(look.page.items) > room:
                return Look(Entries(items, None, findings), known, served_by), (number, following)
            number, after = number + 1, None
    return Look(Entries(items, None, findings), known, served_by), None
