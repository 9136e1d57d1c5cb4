"""A stream as Server-Sent Events: its records as they come.

Knows where a tail begins, what it asks for, and when its caller may not read any more. Refuses to know how streams are
followed (`service.reads.tails`).
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Header, Query
from fastapi.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.document import router_of
from service.api.reads import MAX_CURSOR, OfCondition, OfKey, check_condition
from service.api.streams import NamedStream
from service.auth import Reader, is_still_known
from service.catalog import streams
from service.catalog.tables import PartitionRow, StreamRow
from service.payloads.answers import KeyEncoding
from service.positions import cursor_of, position_of
from service.problems import declared, refused
from service.reads.places import offset_at
from service.reads.tails import TailedRecords, TailedStream, TailPlace
from service.streams.errors import OffsetTruncated, UnknownPartition

router = router_of("streams")

EVENTS: Final = "text/event-stream"
EVENT: Final = {  # of Server-Sent Events, as OpenAPI 3.2 describes one (4.14.4)
    "type": "object",
    "properties": {
        "data": {"type": "string", "description": "A record as JSON, or why a tail ends."},
        "event": {"type": "string", "description": "`overrun` or `error`; absent: a record."},
        "id": {"type": "string", "description": "The cursor behind the record."},
        "retry": {"type": "integer", "minimum": 0, "description": "After how long to come back, ms."},
    },
}
EVENT_EXAMPLE: Final = {"id": "eyJzIjoiY2xpY2tzIn0", "data": '{"partition":0,"offset":41,"key":"u1","value":{"n":3}}'}
MAX_FOLLOW_MS: Final = 86_400_000
FROM: Final = "latest, earliest, a time (ms), a cursor of a page or an event, or the position of a post"


@router.get(
    "/v1/streams/{stream:name}/tail",
    response_class=Response,  # what it is of is said below
    responses={
        200: {
            "description": "Events: `data` is a record as pages show it, `id` the cursor behind it. A heartbeat, a "
            "comment with an `id`, where nothing comes for 15 s. `event: overrun` ends a tail that is too slow, says "
            "where to go on; `event: error` ends one that can not go on, and says why.",
            "content": {EVENTS: {"schema": EVENT, "example": EVENT_EXAMPLE}},
        },
        **declared(401, 403, 404, 410, 414, 422, 429, 503),
    },
)
async def tail_stream(
    request: Request,
    stream: NamedStream,
    _: Reader,
    begin: Annotated[
        str, Query(alias="from", max_length=MAX_CURSOR, description=f"Where to begin: {FROM}.")
    ] = "latest",
    partition: Annotated[int | None, Query(ge=0, description="Records of this one alone.")] = None,
    key: OfKey = None,
    where: OfCondition = None,
    key_encoding: Annotated[
        KeyEncoding, Query(description="How keys are shown; those of changelogs are always base64.")
    ] = "utf8",
    timeout_ms: Annotated[
        int | None, Query(ge=0, le=MAX_FOLLOW_MS, description="How long to follow; for ever when absent.")
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            max_length=MAX_CURSOR,
            description="The last `id` that was seen; it counts before `from`.",
        ),
    ] = None,
) -> Response:
    """Follow a stream: each record once, in order within its partition, also those that come from now on.

    Who comes back with the last `id` in `Last-Event-ID`, as browsers do, misses nothing and gets nothing twice.

    `where` is a condition as of the operator filter. It is evaluated in a process of its own, within the bounds of a
    simulation; where it passes them, the tails that have it end with `event: error`. A record for which it fails (a
    cast of what is no number, say) is left out, as one for which it is null.
    """
    state = request.state
    until_s = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    found, place = await run_in_threadpool(_place, state, stream, begin, last_event_id)
    if partition is not None and partition >= found.partitions:
        raise UnknownPartition(f"{found.name}/{partition}")
    encoding: KeyEncoding = "base64" if found.kind == "changelog" else key_encoding
    if where is not None:
        await run_in_threadpool(check_condition, where)
        state.filters.check_room(found.id, where)
    followed = TailedStream(found.id, state.catalog.lineage, encoding, where)
    wanted = TailedRecords(partition, None if key is None else key.encode())
    events = state.tails.follow(followed, place, wanted, partial(is_still_known, request), until_s=until_s)
    return EventSourceResponse(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


def _place(state: Any, name: str, begin: str, last_event_id: str | None) -> tuple[StreamRow, TailPlace]:
    """The stream, and an offset of each of its partitions. Raises OffsetTruncated."""
    stream: StreamRow = state.catalog.read(streams.get_stream, name)
    bounds: list[PartitionRow] = state.catalog.read(streams.partitions_of, stream.id)
    if last_event_id is not None:
        return stream, _of_cursor(stream, state.catalog.lineage, bounds, last_event_id, "Last-Event-ID:")
    if begin in {"latest", "earliest"}:
        return stream, {at.partition: at.end_offset if begin == "latest" else at.start_offset for at in bounds}
    if begin.isascii() and begin.isdigit() and len(begin) <= 18:
        if stream.kind == "changelog":
            raise refused("invalid_request", "?from", "the entries of a changelog have no timestamps")
        first = partial(offset_at, state.catalog, state.storage, stream.id, timestamp=int(begin))
        return stream, {at.partition: first(at.partition) for at in bounds}
    return stream, _of_cursor(stream, state.catalog.lineage, bounds, begin, "?from")


def _of_cursor(stream: StreamRow, lineage: str, bounds: list[PartitionRow], text: str, pointer: str) -> TailPlace:
    """Of partitions that it does not name: the end."""
    found = cursor_of(text) or position_of(text)
    if found is None or found.stream != stream.id or found.lineage != lineage:
        raise refused("invalid_cursor", pointer, f"it is no place in the stream {stream.name!r}: {FROM}")
    said = found.place
    for at in bounds:
        if said.get(at.partition, at.start_offset) < at.start_offset:
            raise OffsetTruncated(at.start_offset)
    return {at.partition: said.get(at.partition, at.end_offset) for at in bounds}
