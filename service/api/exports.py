"""A stream in one answer: all that is there, or what lies from a place on, as Arrow with typed columns or as NDJSON.

Knows the shapes of request and answer. Refuses to know what an export holds (`service.reads.exports`) and how a value
becomes columns (`service.payloads.typed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Final

import pyarrow as pa
from fastapi import Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.api.bodies import accepts
from service.api.document import router_of
from service.api.reads import (
    AT_END_HEADER,
    MAX_CURSOR,
    NEXT_HEADER,
    RECORD_LINE,
    FromOffset,
    FromTimestamp,
    OfPartition,
    ReadBegin,
    cursor_behind,
    place_of,
)
from service.api.streams import NamedStream
from service.auth import Reader
from service.catalog.tables import StreamRow
from service.payloads import ARROW, NDJSON
from service.payloads.answers import ArrowPieces, KeyEncoding, ndjson_answer
from service.payloads.typed import typed_columns, typed_schema
from service.problems import declared
from service.reads.exports import StreamSpan, batches, span_from, within_bytes
from service.reads.pages import MAX_OFFSET

router = router_of("streams")

NEXT_METADATA: Final = "millrace.next"


@router.get(
    "/v1/streams/{stream:name}/export",
    response_class=Response,  # what it is of is said below
    responses={
        200: {
            "description": "Arrow (the default) with the columns partition, offset, key, value, timestamp, "
            "window_start, window_end (timestamp[ms], UTC), headers, and `value.<name>` for each of the stream's "
            "`fields`; or, by `Accept`, a record a line.",
            "headers": {
                NEXT_HEADER: {
                    "description": "The cursor of what comes behind it, for another export, a page or a tail; in Arrow "
                    f"also the schema's metadata `{NEXT_METADATA}`.",
                    "required": True,
                    "schema": {"type": "string"},
                },
                AT_END_HEADER: {
                    "description": "Whether nothing was there beyond it when it began.",
                    "required": True,
                    "schema": {"type": "boolean"},
                },
            },
            "content": {
                ARROW: {"schema": {"type": "string", "format": "binary"}},
                NDJSON: {"schema": {"type": "string"}, "example": RECORD_LINE},
            },
        },
        **declared(401, 403, 404, 406, 410, 414, 422, 503),
    },
)
async def export_records(
    request: Request,
    stream: NamedStream,
    _: Reader,
    partition: OfPartition = None,
    from_offset: FromOffset = None,
    from_timestamp: FromTimestamp = None,
    cursor: Annotated[
        str | None, Query(max_length=MAX_CURSOR, description="Where an export or a page ended, or an event's `id`.")
    ] = None,
    limit: Annotated[
        int | None, Query(ge=1, le=MAX_OFFSET, description="How many records at most; all, when absent.")
    ] = None,
    max_bytes: Annotated[
        int | None,
        Query(
            ge=1,
            le=MAX_OFFSET,
            description="How many bytes of records at most, but one record: keys, values and headers as they are kept, "
            "and 128 for the rest of each.",
        ),
    ] = None,
    key_encoding: Annotated[
        KeyEncoding, Query(description="How NDJSON shows keys; those of changelogs are always base64.")
    ] = "utf8",
) -> Response:
    """Read a stream as it stands, in one answer of any length: partition after partition, each in order.

    It ends where the partitions ended when it began, or at `limit` or `max_bytes`, of which each partition has its
    share. An answer that breaks off (retention took the records meanwhile, say) ends without its closing chunk.
    """
    kind, state = accepts(request, ARROW, NDJSON), request.state
    begin = ReadBegin(partition, from_offset, from_timestamp, cursor)
    found, place, is_whole = await run_in_threadpool(place_of, state, stream, begin)
    span = await run_in_threadpool(span_from, state.catalog, found.id, place, limit)
    if max_bytes is not None:
        span = await run_in_threadpool(within_bytes, state.catalog, state.storage, found.id, span, max_bytes)
    following = cursor_behind(found, state.catalog.lineage, span.end, is_whole=is_whole)
    if kind == ARROW:
        pieces = _arrow(state, found, span, following)
    else:
        pieces = _lines(state, found, span, "base64" if found.kind == "changelog" else key_encoding)
    first = await run_in_threadpool(next, pieces, b"")  # what can not be read or shown is refused while there is time
    headers = {NEXT_HEADER: following, AT_END_HEADER: str(span.is_whole).lower()}
    return StreamingResponse(chain([first], pieces), headers=headers, media_type=kind)


def _arrow(state: Any, stream: StreamRow, span: StreamSpan, following: str) -> Iterator[bytes]:
    fields = stream.fields or {}
    schema = typed_schema(fields).with_metadata({NEXT_METADATA: following})
    pieces = ArrowPieces(schema)
    for batch in batches(state.catalog, state.storage, stream.id, span):
        yield pieces.of(pa.RecordBatch.from_arrays(typed_columns(batch, fields), schema=schema))
    yield pieces.end()


def _lines(state: Any, stream: StreamRow, span: StreamSpan, encoding: KeyEncoding) -> Iterator[bytes]:
    for batch in batches(state.catalog, state.storage, stream.id, span):
        yield ndjson_answer([batch], encoding)
