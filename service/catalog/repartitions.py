"""Repartition logs: what a target reads of them next, how much of them is unread, and what may go.

It knows that a chunk holds the records of one commit for all targets (`service.ranges`), and that a target which has
nothing in a chunk passes over it. It refuses to know who reads and why (`tasks`, `progress`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.catalog.driver import Driver, values
from service.catalog.inputs import TaskInput, lowest_positions
from service.catalog.streams import lock_partitions_of
from service.catalog.tables import ChunkRow, PartitionRow, StreamRow
from service.protocol import InputRange
from service.ranges import RANGE, unpack
from service.streams.records import Chunk

CHUNKS_OF_A_STREAM: Final = 1024  # in one answer, all of its logs together, at least one of each
LOGS_AT_ONCE: Final = 8_000  # that one statement can name
TRUNCATED_AT_ONCE: Final = 1_000

_COLUMNS = "path, segment_id, idx, byte_offset, byte_length, crc32, first_offset, end_offset, chunks.records, ranges"
_NEXT = (  # CROSS JOIN: SQLite takes the tables in this order, so that it finds each log by the primary key
    "SELECT chunks.partition, " + _COLUMNS + " FROM ({lows}) AS low CROSS JOIN chunks"
    " JOIN segments ON segments.id = chunks.segment_id"
    " WHERE chunks.stream_id = ? AND chunks.partition = low.column1 AND chunks.end_offset > low.column2"
    " AND chunks.end_offset <= COALESCE((SELECT beyond.end_offset FROM chunks AS beyond WHERE beyond.stream_id = ?"
    " AND beyond.partition = low.column1 AND beyond.end_offset > low.column2"
    " ORDER BY beyond.end_offset LIMIT 1 OFFSET ?), 9223372036854775807)"
    " ORDER BY chunks.partition, chunks.end_offset"
)
_UNREAD = (
    "SELECT chunks.partition, SUM(byte_length) FROM ({lows}) AS low CROSS JOIN chunks"
    " WHERE chunks.stream_id = ? AND chunks.partition = low.column1 AND chunks.end_offset > low.column2"
    " GROUP BY chunks.partition"
)
_PASSED = (
    "SELECT chunks.partition, end_offset, records, byte_length FROM ({lows}) AS low CROSS JOIN chunks"
    " WHERE chunks.stream_id = ? AND chunks.partition = low.column1 AND chunks.end_offset <= low.column2"
    " ORDER BY chunks.partition, end_offset LIMIT ?"
)


# ---------------------------------------------------------------- reading


class _Own(NamedTuple):
    """A target's records in a chunk: how many, the offset of the first, and the packed range."""

    first: int
    rows: int
    packed: bytes


@dataclass(slots=True)
class _LogChunks:
    """Chunks of a log, one behind the other, and in each the records of every target."""

    chunks: list[Chunk] = field(default_factory=list)
    by_target: list[dict[int, _Own]] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        packed, size = chunk.ranges or b"", RANGE.itemsize
        ranges = unpack(packed)
        columns = (ranges[name].tolist() for name in ("target", "first_row", "rows"))
        self.chunks.append(chunk)
        self.by_target.append(
            {
                target: _Own(chunk.first_offset + first, rows, packed[i * size : (i + 1) * size])
                for i, (target, first, rows) in enumerate(zip(*columns, strict=True))
            }
        )


class NextChunks:
    """The next chunks of repartition streams for some tasks, from the least of their positions on."""

    def __init__(self, s: Session, inputs: Collection[TaskInput]) -> None:
        lows: dict[str, dict[int, int]] = {}
        for at in inputs:
            of_stream = lows.setdefault(at.stream_id, {})
            of_stream[at.partition] = min(at.position, of_stream.get(at.partition, at.position))
        self._logs: dict[tuple[str, int], _LogChunks] = {}
        for stream_id, of_stream in lows.items():
            for partition, chunk in _next_chunks(s, stream_id, sorted(of_stream.items())):
                self._logs.setdefault((stream_id, partition), _LogChunks()).add(chunk)

    def range(self, number: int, at: TaskInput, end: int, max_records: int) -> InputRange | None:
        """What a task takes next of its input of this number, up to the offset `end`, `max_records` of its own records
        at most; None: nothing of what is known here lies beyond its position.
        """
        log = self._logs.get((at.stream_id, at.partition), _LogChunks())
        reached, left, given = at.position, max_records, list[Chunk]()
        for i in range(bisect_right(log.chunks, at.position, key=lambda chunk: chunk.end_offset), len(log.chunks)):
            if reached >= end or left <= 0:
                break
            chunk, own = log.chunks[i], log.by_target[i].get(at.sub_log or 0)
            reached = chunk.end_offset
            first = 0 if own is None else max(own.first, at.position)
            if own is not None and first < own.first + own.rows:
                given.append(replace(chunk, ranges=own.packed))
                reached = min(reached, first + left) if first + left < own.first + own.rows else reached
                left -= own.first + own.rows - first
        return InputRange(number, at.position, min(reached, end), given) if reached > at.position else None


def _next_chunks(s: Session, stream_id: str, lows: Sequence[tuple[int, int]]) -> list[tuple[int, Chunk]]:
    """(partition, chunk) of logs from these positions (partition, offset) on, so many of each as all may have."""
    most = max(1, CHUNKS_OF_A_STREAM // len(lows))
    found = []
    for i in range(0, len(lows), LOGS_AT_ONCE):
        part = lows[i : i + LOGS_AT_ONCE]
        parameters = [*(number for low in part for number in low), stream_id, stream_id, most - 1]
        for partition, *row, ranges in Driver(s).rows(_NEXT.format(lows=values(len(part), 2)), parameters):
            found.append((partition, Chunk(*[*row, False, ranges])))
    return found


def unread_bytes(s: Session, stream_id: str, lowest: Mapping[int, int]) -> dict[int, int]:
    """Partition → bytes of the chunks that not every target has passed; `lowest`: partition → the least position."""
    found: dict[int, int] = {}
    lows = sorted(lowest.items())
    for i in range(0, len(lows), LOGS_AT_ONCE):
        part = lows[i : i + LOGS_AT_ONCE]
        parameters = [*(number for low in part for number in low), stream_id]
        found |= {p: int(size) for p, size in Driver(s).rows(_UNREAD.format(lows=values(len(part), 2)), parameters)}
    return found


# ---------------------------------------------------------------- what may go


def truncate_passed(s: Session) -> int:
    """Remove chunks of repartition streams that all targets have passed, whatever any retention says: nobody else
    reads them. Returns how many went.
    """
    streams = s.scalars(select(StreamRow.id).where(StreamRow.kind == "repartition").order_by(StreamRow.id)).all()
    return sum(_truncate(s, stream_id) for stream_id in streams)


def _truncate(s: Session, stream_id: str) -> int:
    lowest = lowest_positions(s, stream_id)
    starts = select(PartitionRow.partition, PartitionRow.start_offset).where(PartitionRow.stream_id == stream_id)
    passed = [(p, lowest[p]) for p, start in s.execute(starts) if lowest.get(p, start) > start]
    if not passed:
        return 0
    partitions = {at.partition: at for at in lock_partitions_of(s, [stream_id])}
    ends: dict[int, int] = {}
    going = _passed_chunks(s, stream_id, passed[:LOGS_AT_ONCE])
    for partition, end, records, size in going:
        at = partitions[partition]
        at.start_offset = ends[partition] = end
        at.records -= records
        at.bytes -= size
    for partition, end in ends.items():
        is_log = (ChunkRow.stream_id == stream_id) & (ChunkRow.partition == partition)
        s.execute(delete(ChunkRow).where(is_log, ChunkRow.end_offset <= end))
    return len(going)


def _passed_chunks(s: Session, stream_id: str, passed: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """(partition, end, records, bytes) of the oldest chunks of locked logs that end at these offsets or before."""
    parameters = [*(number for low in passed for number in low), stream_id, TRUNCATED_AT_ONCE]
    rows = Driver(s).rows(_PASSED.format(lows=values(len(passed), 2)), parameters)
    return [(partition, end, records, size) for partition, end, records, size in rows]
