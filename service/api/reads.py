"""Records read from a stream: pages of one partition or of all, by offset, from a time, or on from a cursor, as JSON,
NDJSON or Arrow; at the end a reader may wait for more.

Knows the shapes of request and answer, and how long one waits. Refuses to know what a page holds (`service.reads`) and
how segments lie (`service.storage`).
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import pyarrow as pa
from fastapi import Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import accepts
from service.api.document import router_of
from service.api.models import WindowView
from service.api.streams import NamedStream
from service.auth import Reader
from service.catalog import streams
from service.catalog.engine import partition_topic, stream_topic
from service.catalog.tables import StreamRow
from service.payloads import ARROW, JSON, NDJSON
from service.payloads.answers import KeyEncoding, arrow_answer, json_answer, ndjson_answer
from service.positions import Cursor, StreamCursor, cursor_of, opaque
from service.problems import declared, refused
from service.reads.pages import MAX_OFFSET, Place, StreamPage, read_page, read_page_back
from service.reads.places import offset_at
from service.reads.searches import Criteria, Read, search
from service.streams.errors import FilterFailed, InvalidExpression, UnknownPartition
from service.streams.expressions.words import MAX_TEXT
from service.streams.operators.fields import admitted, kind_name

router = router_of("streams")

MAX_PAGE_RECORDS: Final = 100_000
MAX_WAIT_MS: Final = 60_000
MAX_CURSOR: Final = 32_000  # characters: an offset of each of 1,024 partitions
NEXT_HEADER: Final = "Millrace-Next"
AT_END_HEADER: Final = "Millrace-At-End"
RECORD_LINE: Final = (
    '{"partition":0,"offset":41,"timestamp":1700000000000,"key":"u1","value":{"n":3},"window":null,"headers":{}}\n'
)

OfPartition = Annotated[
    int | None, Query(ge=0, description="Of which to read; all, when absent and the cursor does not say.")
]
FromOffset = Annotated[
    int | None, Query(ge=0, le=MAX_OFFSET, description="Where to begin in a partition; at the start when absent.")
]
FromTimestamp = Annotated[
    int | None,
    Query(ge=0, le=MAX_OFFSET, description="Begin with the first record that is of this time (ms) or later."),
]


OfKey = Annotated[str | None, Query(max_length=10_000, description="Records with this key alone.")]
OfCondition = Annotated[
    str | None, Query(min_length=1, max_length=MAX_TEXT, description="Records for which this condition (SQL) is true.")
]


class RecordView(BaseModel):
    """One record."""

    partition: int
    offset: int
    timestamp: Annotated[int | None, Field(description="Null in changelogs alone.")]
    key: str | None
    value: Any
    window: WindowView | None
    headers: dict[str, str]


class RecordPage(BaseModel):
    """Records of one partition or of all, in order within each."""

    records: list[RecordView]
    next: Annotated[str, Field(description="Cursor of what comes next, also where nothing is there yet.")]
    at_end: Annotated[bool, Field(description="Whether there was nothing beyond these records.")]


@dataclass(frozen=True, slots=True)
class ReadBegin:
    """Where a request begins, as it says so."""

    partition: int | None
    from_offset: int | None
    from_timestamp: int | None
    cursor: str | None


@router.get(
    "/v1/streams/{stream:name}/records",
    responses={
        200: {
            "model": RecordPage,
            "description": "A page; as NDJSON a record a line; as Arrow with the columns partition, offset, key, "
            "value, timestamp, window_start, window_end, headers. Of both the cursor of what comes next is in the "
            f"header `{NEXT_HEADER}`, and in `{AT_END_HEADER}` whether there was nothing beyond (true, false)",
            "headers": {
                NEXT_HEADER: {
                    "description": "Of NDJSON and Arrow: the cursor of what comes next.",
                    "schema": {"type": "string"},
                },
                AT_END_HEADER: {
                    "description": "Of NDJSON and Arrow: whether there was nothing beyond.",
                    "schema": {"type": "boolean"},
                },
            },
            "content": {
                NDJSON: {"schema": {"type": "string"}, "example": RECORD_LINE},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **declared(401, 403, 404, 406, 410, 414, 422, 429, 503),
    },
)
async def read_records(
    request: Request,
    stream: NamedStream,
    _: Reader,
    partition: OfPartition = None,
    from_offset: FromOffset = None,
    from_timestamp: FromTimestamp = None,
    cursor: Annotated[
        str | None, Query(max_length=MAX_CURSOR, description="`next` of the page before, or the `id` of an event.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_RECORDS, description="How many records at most.")] = 500,
    wait_ms: Annotated[
        int, Query(ge=0, le=MAX_WAIT_MS, description="How long to wait for a record where there is none yet.")
    ] = 0,
    key: OfKey = None,
    where: OfCondition = None,
    reverse: Annotated[
        bool,
        Query(
            description="From there backwards, within each partition the last one first: from the end, or from what "
            "lies before `from_offset`, `from_timestamp`, `cursor`."
        ),
    ] = False,
    key_encoding: Annotated[
        KeyEncoding, Query(description="How JSON shows keys; those of changelogs are always base64.")
    ] = "utf8",
) -> Response:
    """Read records by offset, from a time on, or on from a cursor; as JSON, or by `Accept` as NDJSON or Arrow.

    A page ends at `limit`, at 32 MiB, or where it takes too many files; `at_end` tells whether there was more. Over all
    partitions each one's records are in order, and each has its share of a page.

    `key` and `where` leave out others, within bounds as those of tails. A page that looks for records ends after 2 s
    too, with what was found, if anything: `next` says where to look on.
    """
    kind, state = accepts(request, JSON, NDJSON, ARROW), request.state
    if reverse and wait_ms:
        raise refused("invalid_request", "?wait_ms", "backwards nothing comes that could be waited for")
    if where is not None:
        await run_in_threadpool(check_condition, where)
    until_s = time.monotonic() + wait_ms / 1000
    begin = ReadBegin(partition, from_offset, from_timestamp, cursor)
    found, place, is_whole = await run_in_threadpool(place_of, state, stream, begin)
    topic = partition_topic(found.id, next(iter(place))) if len(place) == 1 else stream_topic(found.id)
    read = partial(read_page_back if reverse else read_page, state.catalog, state.storage, found.id)
    with nullcontext() if where is None else state.filters.shared(found.id, where) as condition:
        wanted = Criteria(None if key is None else key.encode(), condition, reverse)
        while True:
            seen = state.hub.seen
            if wanted.is_everything and not reverse:
                page = await run_in_threadpool(read, place, limit)
            else:
                page = await _found(read, place, wanted, limit)
            left_s = until_s - time.monotonic()
            has_more = not wanted.is_everything and not page.at_end
            if page.batches or has_more or left_s <= 0 or state.hub.is_closed:
                break
            place = page.following
            await state.hub.wait([topic], seen, left_s)
    encoding: KeyEncoding = "base64" if found.kind == "changelog" else key_encoding
    following = cursor_behind(found, state.catalog.lineage, page.following, is_whole=is_whole)
    return await run_in_threadpool(_answer, page, kind, encoding, following)


def _answer(page: StreamPage, kind: str, encoding: KeyEncoding, following: str) -> Response:
    if kind == JSON:
        return Response(json_answer(page.batches, encoding, following, at_end=page.at_end), media_type=JSON)
    headers = {NEXT_HEADER: following, AT_END_HEADER: str(page.at_end).lower()}
    body = arrow_answer(page.batches) if kind == ARROW else ndjson_answer(page.batches, encoding)
    return Response(body, headers=headers, media_type=kind)


async def _found(read: Read, place: Place, wanted: Criteria, limit: int) -> StreamPage:
    """Raises what `read` does, FilterFailed of the parameter `where`."""
    try:
        return await search(read, place, wanted, limit)
    except FilterFailed as error:
        error.at("?where")
        raise


def check_condition(text: str) -> None:
    """Raises InvalidExpression, of the parameter `where`."""
    try:
        kind = admitted(text).type
        if not pa.types.is_boolean(kind):
            raise InvalidExpression(f"must be a condition (true or false), this gives {kind_name(kind)}")
    except InvalidExpression as error:
        raise InvalidExpression(error.detail).at("?where") from error


# ---------------------------------------------------------------- where to begin


def place_of(state: Any, name: str, begin: ReadBegin) -> tuple[StreamRow, Place, bool]:
    """The stream, where to begin in it, and whether all its partitions are read, also where there is but one."""
    stream: StreamRow = state.catalog.read(streams.get_stream, name)
    if begin.cursor is not None:
        return stream, *_of_cursor(stream, state.catalog.lineage, begin)
    if begin.partition is not None and begin.partition >= stream.partitions:
        raise UnknownPartition(f"{stream.name}/{begin.partition}")
    is_whole = begin.partition is None
    partitions = range(stream.partitions) if begin.partition is None else [begin.partition]
    if begin.from_timestamp is not None:
        return stream, _of_time(state, stream, partitions, begin), is_whole
    if begin.from_offset and len(partitions) > 1:
        detail = f"an offset is of one partition, and the stream has {stream.partitions}: say ?partition= too"
        raise refused("invalid_request", "?from_offset", detail)
    return stream, dict.fromkeys(partitions, begin.from_offset), is_whole


def _of_cursor(stream: StreamRow, lineage: str, begin: ReadBegin) -> tuple[Place, bool]:
    found = cursor_of(begin.cursor or "")
    is_ours = found is not None and found.stream == stream.id and found.lineage == lineage
    if found is None or not is_ours or (isinstance(found, StreamCursor) and len(found.offsets) != stream.partitions):
        raise refused("invalid_cursor", "?cursor", f"the cursor does not belong to the stream {stream.name!r}")
    said = found.partition if isinstance(found, Cursor) else None
    if begin.from_timestamp is not None:
        raise refused("invalid_request", "?from_timestamp", _ONE_OF_THEM)
    if begin.from_offset is not None or begin.partition not in (None, said):
        raise refused("invalid_cursor", "?cursor", "the cursor says where to read on, the query says otherwise")
    return found.place, isinstance(found, StreamCursor)


def _of_time(state: Any, stream: StreamRow, partitions: Sequence[int], begin: ReadBegin) -> Place:
    """The offset of the first record of a time or later, the end where there is none."""
    if begin.from_offset is not None:
        raise refused("invalid_request", "?from_timestamp", _ONE_OF_THEM)
    if stream.kind == "changelog":
        raise refused("invalid_request", "?from_timestamp", "the entries of a changelog have no timestamps")
    timestamp = begin.from_timestamp or 0
    return {each: offset_at(state.catalog, state.storage, stream.id, each, timestamp) for each in partitions}


_ONE_OF_THEM: Final = "begin at a time, at an offset, or on from a cursor: one of them"


# ---------------------------------------------------------------- where to read on


def cursor_behind(stream: StreamRow, lineage: str, place: Mapping[int, int], *, is_whole: bool) -> str:
    """The cursor of a place: of one partition, or of all where these were asked for."""
    if is_whole:
        return opaque(StreamCursor(stream.id, lineage, [place[at] for at in sorted(place)]))
    [(partition, offset)] = place.items()
    return opaque(Cursor(stream.id, lineage, partition, offset))
