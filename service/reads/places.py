"""Where the records of a time begin in a stream.

It knows the times of chunks and of the records in them. It refuses to know who asks.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy.orm import Session

from service.catalog import segments, start_positions
from service.catalog.engine import Catalog
from service.protocol import ChunkRange
from service.reads.pages import MAX_OFFSET
from service.storage.segments import Storage, offsets_of, part_of


class Beginning(NamedTuple):
    """A record: its offset and timestamp, and when it was published (ms)."""

    offset: int
    timestamp: int
    published_ms: int | None


def offset_at(catalog: Catalog, storage: Storage, stream_id: str, partition: int, timestamp: int) -> int:
    """The offset of the first record that is of this time (ms) or later, the partition's end where there is none; of a
    stream whose records have times. Raises UnknownPartition, SegmentUnreadable.
    """
    wanted = catalog.read(_chunk_at, stream_id, partition, timestamp)
    for chunk in wanted.chunks:
        part = part_of(chunk, storage.read_chunk(chunk), wanted.start)
        is_there = part.records.column("timestamp").to_numpy() >= timestamp
        return int(offsets_of(part)[is_there.argmax()])
    return wanted.end


def begins(catalog: Catalog, storage: Storage, stream_id: str, partition: int, timestamp: int) -> Beginning | None:
    """The first record that is of this time (ms) or later; None where there is none. Raises UnknownPartition,
    SegmentUnreadable.
    """
    found = catalog.read(start_positions.chunk_since, stream_id, partition, timestamp)
    if found is None:
        return None
    for chunk in catalog.read(segments.chunks_from, stream_id, partition, found.first_offset, 1).chunks:
        part = part_of(chunk, storage.read_chunk(chunk), found.first_offset)
        times = part.records.column("timestamp").to_numpy()
        row = int((times >= timestamp).argmax())
        return Beginning(int(offsets_of(part)[row]), int(times[row]), found.published_ms)
    return None


def _chunk_at(s: Session, stream_id: str, partition: int, timestamp: int) -> ChunkRange:
    """The first chunk that holds such a record, if any, and where the partition begins and ends."""
    first = start_positions.chunk_at_timestamp(s, stream_id, partition, timestamp)
    return segments.chunks_from(s, stream_id, partition, MAX_OFFSET if first is None else first, 1)
