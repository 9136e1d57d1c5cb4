"""The records at which a job begins that starts at a timestamp: found in their chunks, which the catalog names.

Knows how a chunk is read. Refuses to know what else a start may be (`service.catalog.start_positions`).
"""

from collections.abc import Iterator, Sequence

from sqlalchemy.orm import Session
from starlette.requests import Request

from service.catalog import segments, start_positions, streams
from service.catalog.start_positions import FirstRecords
from service.catalog.tables import StreamRow
from service.storage.segments import offsets_of, part_of
from service.streams.records import Chunk
from service.streams.topology.starts import Start, StartTimestamp


def first_records(request: Request, sources: Sequence[str], start: Start) -> FirstRecords:
    """The first record of each partition of these sources from a timestamp on; none for another kind of start."""
    if not isinstance(start, StartTimestamp):
        return {}
    found = {}
    for name, partition, chunk in request.state.catalog.read(_chunks, sources, start.timestamp):
        part = part_of(chunk, request.state.storage.read_chunk(chunk), chunk.first_offset)
        row = int((part.records.column("timestamp").to_numpy() >= start.timestamp).argmax())
        found[name, partition] = int(offsets_of(part)[row])
    return found


def _chunks(s: Session, sources: Sequence[str], timestamp: int) -> list[tuple[str, int, Chunk]]:
    found = (stream for name in sources if (stream := streams.find_stream(s, name)) is not None)
    return [chunk for stream in found for chunk in _chunks_of(s, stream, timestamp)]


def _chunks_of(s: Session, stream: StreamRow, timestamp: int) -> Iterator[tuple[str, int, Chunk]]:
    for partition in range(stream.partitions):
        first = start_positions.chunk_at_timestamp(s, stream.id, partition, timestamp)
        if first is not None:
            yield stream.name, partition, segments.chunks_from(s, stream.id, partition, first, 1).chunks[0]
