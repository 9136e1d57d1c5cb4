"""Where a job begins to read a partition: at its start or end, at an offset, at a timestamp.

It knows chunks; the record of a timestamp inside a chunk is found by who reads chunks (`service.api.start_records`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.tables import ChunkRow, PartitionRow, SegmentRow
from service.streams.errors import InvalidSpec, Problem
from service.streams.topology.starts import Start, StartOffsets, StartTimestamp

FirstRecords = Mapping[tuple[str, int], int]  # (source, partition) → the offset of a record


class ChunkBegin(NamedTuple):
    """Where a chunk begins, and when it was published (ms)."""

    first_offset: int
    published_ms: int | None


def chunk_since(s: Session, stream_id: str, partition: int, timestamp: int) -> ChunkBegin | None:
    """The first chunk that holds a record of `timestamp` or later; None when none does.

    Earlier records of that chunk lie before the wanted one: the catalog knows chunks, not records.
    """
    query = (
        select(ChunkRow.first_offset, SegmentRow.published_ms)
        .join(SegmentRow, SegmentRow.id == ChunkRow.segment_id)
        .where(ChunkRow.stream_id == stream_id, ChunkRow.partition == partition, ChunkRow.max_timestamp >= timestamp)
    )
    row = s.execute(query.order_by(ChunkRow.end_offset).limit(1)).one_or_none()
    return None if row is None else ChunkBegin(*row)


def chunk_at_timestamp(s: Session, stream_id: str, partition: int, timestamp: int) -> int | None:
    """The first offset of that chunk."""
    found = chunk_since(s, stream_id, partition, timestamp)
    return None if found is None else found.first_offset


def start_of(
    s: Session, start: Start, source: str, partition: PartitionRow, records: FirstRecords | None = None
) -> int:
    """The offset at which a job begins to read a locked partition of a source.

    `records`: where a start at a timestamp finds its first records; of others it is as fine as a chunk. Raises
    InvalidSpec.
    """
    if isinstance(start, StartOffsets):
        return start_offset(start, source, partition)
    if isinstance(start, StartTimestamp):
        found = (records or {}).get((source, partition.partition))
        if found is not None:
            return max(found, partition.start_offset)  # retention may have taken it since
        found = chunk_at_timestamp(s, partition.stream_id, partition.partition, start.timestamp)
        return partition.end_offset if found is None else found
    return partition.start_offset if start == "earliest" else partition.end_offset


def start_offset(start: StartOffsets, source: str, partition: PartitionRow) -> int:
    """The offset given for a partition of a source; its earliest one where none is. Raises InvalidSpec."""
    offset = start.by_partition(source).get(str(partition.partition), partition.start_offset)
    if not partition.start_offset <= offset <= partition.end_offset:
        have = f"the partition holds {partition.start_offset} to {partition.end_offset}"
        raise InvalidSpec([Problem(start.pointer(source, partition.partition), f"{offset} is not there: {have}")])
    return offset
