"""Where the records of a time begin in a stream.

It knows the times of chunks and of the records in them. It refuses to know who asks.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from service.catalog import segments, start_positions
from service.catalog.engine import Catalog
from service.protocol import ChunkRange
from service.storage.segments import Storage, offsets_of, part_of

MAX_OFFSET: Final = 2**63 - 1


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


def _chunk_at(s: Session, stream_id: str, partition: int, timestamp: int) -> ChunkRange:
    """The first chunk that holds such a record, if any, and where the partition begins and ends."""
    first = start_positions.chunk_at_timestamp(s, stream_id, partition, timestamp)
    return segments.chunks_from(s, stream_id, partition, MAX_OFFSET if first is None else first, 1)
