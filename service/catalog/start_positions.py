"""Where a new job begins to read: earliest, latest, at offsets, at a timestamp.

It knows chunks; the record of a timestamp inside a chunk is found by who reads chunks (`service.api.job_creation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.tables import (
    ChunkRow,
    PartitionRow,
)
from service.streams.errors import InvalidSpec, Problem
from service.streams.topology.spec import JobSpec


def chunk_at_timestamp(s: Session, stream_id: str, partition: int, timestamp: int) -> int | None:
    """The first offset of the first chunk that holds a record of `timestamp` or later; None when none does.

    Earlier records of that chunk lie before the wanted one: the catalog knows chunks, not records.
    """
    query = select(ChunkRow.first_offset).where(
        ChunkRow.stream_id == stream_id, ChunkRow.partition == partition, ChunkRow.max_timestamp >= timestamp
    )
    return s.scalars(query.order_by(ChunkRow.end_offset).limit(1)).one_or_none()


def start_of(s: Session, spec: JobSpec, partition: PartitionRow) -> int:
    """The offset at which a new job begins to read a locked partition. Raises InvalidSpec."""
    start: Any = spec.to_json()["start"]
    if start == "earliest":
        return partition.start_offset
    if start == "latest":
        return partition.end_offset
    if "offsets" in start:
        return start_offset(start["offsets"], partition)
    found = chunk_at_timestamp(s, partition.stream_id, partition.partition, start["timestamp"])
    return partition.end_offset if found is None else found


def start_offset(offsets: Mapping[str, int], partition: PartitionRow) -> int:
    """The offset of `offsets` (by partition); the earliest one where a partition is not named. Raises InvalidSpec."""
    offset = offsets.get(str(partition.partition), partition.start_offset)
    if not partition.start_offset <= offset <= partition.end_offset:
        have = f"the partition holds {partition.start_offset} to {partition.end_offset}"
        raise InvalidSpec([Problem(f"/start/offsets/{partition.partition}", f"{offset} is not there: {have}")])
    return offset
