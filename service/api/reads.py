"""Records read from a stream: pages of one partition, by offset or on from a cursor, as JSON or Arrow.

Knows the shapes of request and answer, and how much a page holds. Refuses to know how segments lie (`service.storage`).
"""

from typing import Annotated, Any

import pyarrow as pa
from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import accepts
from service.api.document import router_of
from service.api.models import Cursor as PageCursor
from service.api.models import WindowView
from service.api.streams import NamedStream
from service.auth import Reader
from service.catalog import segments, start_positions, streams
from service.catalog.tables import StreamRow
from service.payloads import ARROW, JSON
from service.payloads.answers import KeyEncoding, arrow_answer, as_page, json_answer, rows_within
from service.positions import Cursor, cursor_of, opaque
from service.problems import declared, refused
from service.protocol import ChunkRange
from service.storage.segments import offsets_of, part_of
from service.streams.errors import (
    OffsetTruncated,
    SegmentMissing,
    UnknownPartition,
)

router = router_of("streams")

MAX_PAGE_RECORDS = 100_000
MAX_PAGE_BYTES = 32 << 20
MAX_OFFSET = 2**63 - 1
NEXT_HEADER = "Millrace-Next"


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
    """Records of one partition, in order."""

    records: list[RecordView]
    next: Annotated[str | None, Field(description="Cursor of the next page; null when the end is reached.")]


@router.get(
    "/v1/streams/{stream:name}/records",
    responses={
        200: {
            "model": RecordPage,
            "description": "A page; as Arrow with the columns partition, offset, key, value, timestamp, window_start, "
            f"window_end, headers, and the cursor of the next page in the header `{NEXT_HEADER}`",
            "content": {ARROW: {"schema": {"type": "string", "format": "binary"}}},
        },
        **declared(401, 403, 404, 406, 410, 422, 503),
    },
)
def read_records(
    request: Request,
    stream: NamedStream,
    _: Reader,
    partition: Annotated[int | None, Query(ge=0, description="0 unless the cursor says otherwise.")] = None,
    from_offset: Annotated[
        int | None, Query(ge=0, le=MAX_OFFSET, description="Where to begin; at the start when absent.")
    ] = None,
    from_timestamp: Annotated[
        int | None,
        Query(ge=0, le=MAX_OFFSET, description="Begin with the first record that is of this time (ms) or later."),
    ] = None,
    cursor: PageCursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_RECORDS, description="How many records at most.")] = 500,
    key_encoding: Annotated[
        KeyEncoding, Query(description="How JSON shows keys; those of changelogs are always base64.")
    ] = "utf8",
) -> Response:
    """Read records of one partition by offset, from a time on, or on from a cursor; as JSON, or as Arrow by `Accept`.

    A page ends at `limit`, at 32 MiB, or where it takes too many files; `next` tells whether there is more.
    """
    kind = accepts(request, JSON, ARROW)
    state = request.state
    found = state.catalog.read(streams.get_stream, stream)
    place = _place(found, state.catalog.lineage, partition, from_offset, cursor)
    if from_timestamp is not None:
        if from_offset is not None or cursor is not None:
            detail = "begin at a time, at an offset, or on from a cursor: one of them"
            raise refused("invalid_request", "?from_timestamp", detail)
        place = place[0], _offset_at(state, found, place[0], from_timestamp)
    try:
        pages, end = _pages(state, found, *place, limit)
    except SegmentMissing:  # the collector was faster: ask the catalog where the records are now
        pages, end = _pages(state, found, *place, limit)
    following = None
    if pages:
        offset = pages[-1].column("offset")[-1].as_py() + 1
        if offset < end:
            following = opaque(Cursor(found.id, state.catalog.lineage, place[0], offset))
    if kind == ARROW:
        headers = {NEXT_HEADER: following} if following else {}
        return Response(arrow_answer(pages), headers=headers, media_type=ARROW)
    encoding: KeyEncoding = "base64" if found.kind == "changelog" else key_encoding
    return Response(json_answer(pages, encoding, following), media_type=JSON)


def _place(
    stream: StreamRow, lineage: str, partition: int | None, from_offset: int | None, cursor: str | None
) -> tuple[int, int | None]:
    """(partition, offset) to read from; None: the start."""
    if cursor is None:
        return partition or 0, from_offset
    found = cursor_of(cursor)
    if found is None or found.stream != stream.id or found.lineage != lineage:
        raise refused("invalid_cursor", "?cursor", f"the cursor does not belong to the stream {stream.name!r}")
    if from_offset is not None or partition not in (None, found.partition):
        raise refused("invalid_cursor", "?cursor", "the cursor says where to read on, the query says otherwise")
    return found.partition, found.offset


def _offset_at(state: Any, stream: StreamRow, partition: int, timestamp: int) -> int:
    """The offset of the first record of `timestamp` or later, the end where there is none."""
    if stream.kind == "changelog":
        raise refused("invalid_request", "?from_timestamp", "the entries of a changelog have no timestamps")
    _require_partition(stream, partition)
    wanted = state.catalog.read(_chunk_at, stream.id, partition, timestamp)
    for chunk in wanted.chunks:
        part = part_of(chunk, state.storage.read_chunk(chunk), wanted.start)
        is_there = part.records.column("timestamp").to_numpy() >= timestamp
        return int(offsets_of(part)[is_there.argmax()])
    return int(wanted.end)


def _chunk_at(s: Session, stream_id: str, partition: int, timestamp: int) -> ChunkRange:
    """The first chunk that holds such a record, if any, and where the partition begins and ends."""
    first = start_positions.chunk_at_timestamp(s, stream_id, partition, timestamp)
    return segments.chunks_from(s, stream_id, partition, MAX_OFFSET if first is None else first, 1)


def _require_partition(stream: StreamRow, partition: int) -> None:
    if partition >= stream.partitions:
        raise UnknownPartition(f"{stream.name}/{partition}")


def _pages(
    state: Any, stream: StreamRow, partition: int, offset: int | None, limit: int
) -> tuple[list[pa.RecordBatch], int]:
    """Batches of PAGE_SCHEMA from `offset` on, and the partition's end. Raises OffsetTruncated."""
    _require_partition(stream, partition)
    wanted = state.catalog.read(segments.chunks_from, stream.id, partition, offset or 0, limit)
    if offset is not None and offset < wanted.start:
        raise OffsetTruncated(wanted.start)
    pages: list[pa.RecordBatch] = []
    rows_left, bytes_left = limit, MAX_PAGE_BYTES
    for chunk in wanted.chunks:
        part = part_of(chunk, state.storage.read_chunk(chunk), offset or 0)
        found = as_page(part.records.slice(0, rows_left), partition, offsets_of(part)[:rows_left])
        rows, size = rows_within(found, bytes_left)
        pages.append(found.slice(0, max(rows, 0 if pages else 1)))
        rows_left, bytes_left = rows_left - rows, bytes_left - size
        if rows < found.num_rows or rows_left <= 0:
            break
    return [found for found in pages if found.num_rows], wanted.end
