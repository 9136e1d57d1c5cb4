"""Entries as they are answered: JSON pages, NDJSON and Arrow exports, and the moment that an answer is of.

Knows the shapes of answers. Refuses to know how entries are found (`service.lookups`).
"""

import base64
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias

import orjson
import pyarrow as pa
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.api.lookup_requests import KeyEncoding, Lookup, TimesAs, cursor_of_start
from service.api.models import WindowView
from service.lookups import Answer, Known, Look, Lookups
from service.payloads import ARROW, NDJSON
from service.payloads.answers import ArrowPieces
from service.payloads.typed import TIMESTAMP
from service.positions import Position, opaque
from service.problems import refused
from service.streams.stores.reading import Found, Page
from service.streams.stores.reading import Query as StoreQuery

NEXT_HEADER: Final = "Millrace-Next"
AS_OF_HEADER: Final = "Millrace-As-Of"
EXPORT_PAGE: Final = 1000
Offsets: TypeAlias = tuple[tuple[int, int], ...]  # of a changelog, by partition

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


def export_schema(times_as: TimesAs) -> pa.Schema:
    """EXPORT_SCHEMA, its times as they are asked for."""
    if times_as == "integer":
        return EXPORT_SCHEMA
    return pa.schema([each.with_type(TIMESTAMP) if pa.types.is_int64(each.type) else each for each in EXPORT_SCHEMA])


class EntryView(BaseModel):
    """One entry."""

    key: Annotated[str | None, Field(description="Null where only a hash of a very long identity is kept.")]
    window: WindowView | None
    value: Any
    timestamp: int
    closes_at: Annotated[
        int | None,
        Field(description="The stream time at which the window closes; past which, if its end is inclusive."),
    ]
    is_final: Annotated[bool, Field(description="Whether it has closed: nothing changes the entry any more.")]


class AsOfView(BaseModel):
    """The moment that an answer is of."""

    stream_time: Annotated[int | None, Field(description="The highest of the partitions that answered.")]
    position: Annotated[str, Field(description="Opaque; as `min_position`, the next answer is no older.")]
    lag_records: Annotated[int, Field(description="Records and changes that are there and that it does not reflect.")]
    served_by: Annotated[
        str,
        Field(
            description="The instance whose replica was read, `redis`, or the node of a replica that nobody keeps. "
            "Where it is not the active copy its role follows: `two (standby)`."
        ),
    ]


class LookupPage(BaseModel):
    """Entries by key, then as in the store; a page may be short and have a next one all the same."""

    store: str
    items: list[EntryView]
    as_of: AsOfView
    next: str | None


def as_json(look: Look, lineage: str, encoding: KeyEncoding, following: str | None) -> bytes:
    """`{"store", "items", "as_of", "next"}`."""
    as_of = orjson.dumps(_as_of(look, lineage))
    return _enclosed(look.known.now.name, items_as_json(look.page, encoding), as_of, following)


def page_as_json(known: Known, lineage: str, items: bytes, partition: int, answer: Answer) -> bytes:
    """As `as_json`, of items that are JSON already: all that one partition had."""
    findings = answer.findings
    lag, served_by = known.lag_of(partition, findings.position), known.server_of(partition, answer.served_by)
    as_of = _moment_as_json(
        known.now.changelog, lineage, ((partition, findings.position),), findings.stream_time, lag, served_by
    )
    return _enclosed(known.now.name, items, as_of, None)


def items_as_json(page: Page, encoding: KeyEncoding) -> bytes:
    """`[{"key", "window", …}, …]`. Raises ProblemError."""
    return orjson.dumps([_item(found, encoding) for found in page.items])


def _enclosed(store: str, items: bytes, as_of: bytes, following: str | None) -> bytes:
    return b'{"store":%b,"items":%b,"as_of":%b,"next":%b}' % (_name(store), items, as_of, orjson.dumps(following))


_name = lru_cache(maxsize=1024)(orjson.dumps)


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
        raise refused("key_not_text", "?key_encoding", detail) from error


def _as_of(look: Look, lineage: str) -> dict[str, Any]:
    findings, known = look.page.findings, look.known
    offsets = tuple([(partition, each.position) for partition, each in findings.items()])
    stream_time = max([each.stream_time for each in findings.values()], default=-1)
    return _moment(known.now.changelog, lineage, offsets, stream_time, known.lag(findings), look.served_by)


def _moment(
    changelog: str, lineage: str, offsets: Offsets, stream_time: int, lag: int, served_by: str
) -> dict[str, Any]:
    return {
        "stream_time": stream_time if stream_time >= 0 else None,
        "position": opaque_position(changelog, lineage, offsets),
        "lag_records": lag,
        "served_by": served_by,
    }


@lru_cache(maxsize=4096)
def _moment_as_json(
    changelog: str, lineage: str, offsets: Offsets, stream_time: int, lag: int, served_by: str
) -> bytes:
    return orjson.dumps(_moment(changelog, lineage, offsets, stream_time, lag, served_by))


@lru_cache(maxsize=4096)
def opaque_position(changelog: str, lineage: str, offsets: Offsets) -> str:
    """The position of a store: offsets of its changelog by partition."""
    return opaque(Position(changelog, lineage, {str(partition): offset for partition, offset in offsets}))


def following_cursor(look: Look, lineage: str, digest: int) -> str | None:
    return None if look.page.next is None else cursor_of_start(look.known, lineage, digest, (0, look.page.next))


def export(request: Request, look: Look, query: StoreQuery, media_type: str, asked: Lookup, digest: int) -> Response:
    """All entries (or `limit` of them), page by page, each as of its own moment; no more in memory than one page."""
    lineage = request.state.catalog.lineage
    headers = {AS_OF_HEADER: orjson.dumps(_as_of(look, lineage)).decode()}
    is_page = asked.limit is not None
    if is_page and (following := following_cursor(look, lineage, digest)) is not None:
        headers[NEXT_HEADER] = following
    if media_type == NDJSON:
        _written(look.page.items, asked.key_encoding)  # what is no text is refused while there is time
    pages = _pages(request.state.lookups, look, query, is_page=is_page)
    body = _arrow(pages, export_schema(asked.times_as)) if media_type == ARROW else _lines(pages, asked.key_encoding)
    return StreamingResponse(body, headers=headers, media_type=media_type)


async def _pages(lookups: Lookups, look: Look, query: StoreQuery, *, is_page: bool) -> AsyncIterator[list[Found]]:
    while True:
        yield look.page.items
        if look.page.next is None or is_page:
            return
        look = await lookups.reader.page(look.known, query, EXPORT_PAGE, look.page.next)


async def _lines(pages: AsyncIterator[list[Found]], encoding: KeyEncoding) -> AsyncIterator[bytes]:
    async for items in pages:
        yield _written(items, encoding)


def _written(items: Sequence[Found], encoding: KeyEncoding) -> bytes:
    return b"".join(orjson.dumps(_item(found, encoding), option=orjson.OPT_APPEND_NEWLINE) for found in items)


async def _arrow(pages: AsyncIterator[list[Found]], schema: pa.Schema) -> AsyncIterator[bytes]:
    pieces = ArrowPieces(schema)
    async for items in pages:
        if items:
            yield pieces.of(_as_arrow(items, schema))
    yield pieces.end()


def _as_arrow(items: Sequence[Found], schema: pa.Schema) -> pa.RecordBatch:
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
    arrays = [pa.array(column, part.type) for column, part in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
