"""What tasks read and how far they are: every statement about inputs and positions is here.

It knows that a task's inputs are numbered once, when it is made, and that its positions are one packed value in the
order of these numbers. It refuses to know why somebody asks: lag, silence, retention, polls and commits all read this.

    task_inputs       (task, number) → (stream, partition), for ever
    tasks.positions   per input, in the order of the numbers: next offset, frontier (int64 each, little endian)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, bindparam, func, select
from sqlalchemy.orm import Session

from service.catalog.engine import Now
from service.catalog.tables import PartitionRow, TaskInputRow, TaskRow
from service.streams.inputs import InputPosition

_POSITION = struct.Struct("<qq")
_SILENT_MS = (Now() - func.coalesce(PartitionRow.published_ms, 0)).label("silent_ms")
READ = (  # a row an input; whoever adds columns gets the input with `input_of`
    select(TaskInputRow.task_id, TaskInputRow.number, TaskInputRow.stream_id, TaskInputRow.partition, TaskRow.positions)
    .add_columns(PartitionRow.start_offset, PartitionRow.end_offset, _SILENT_MS)
    .select_from(TaskInputRow)
    .join(TaskRow, TaskRow.id == TaskInputRow.task_id)
    .join(
        PartitionRow,
        (PartitionRow.stream_id == TaskInputRow.stream_id) & (PartitionRow.partition == TaskInputRow.partition),
    )
)
_IN_ORDER = READ.order_by(TaskInputRow.task_id, TaskInputRow.number)
_OF_TASKS = _IN_ORDER.where(TaskInputRow.task_id.in_(bindparam("task_ids", expanding=True)))
_OF_JOB = _IN_ORDER.where(TaskRow.job_id == bindparam("job_id"))
_READERS = select(TaskInputRow.number, TaskRow.positions).join(TaskRow, TaskRow.id == TaskInputRow.task_id)


@dataclass(slots=True)
class TaskInput:
    """One partition that a task reads: where the task stands in it, and which offsets [start, end) it has.

    `frontier`: the highest timestamp (ms) of all that was read of it, -1 while that is not known. `silent_ms`: for how
    long the partition has not grown.
    """

    stream_id: str
    partition: int
    position: int
    frontier: int
    start: int
    end: int
    silent_ms: int

    @property
    def lag(self) -> int:
        """Offsets that are there and were not read yet."""
        return self.end - self.position

    @property
    def has_work(self) -> bool:
        """Whether its next record is there; retention may have taken it."""
        return self.start <= self.position < self.end


def pack(positions: Iterable[InputPosition]) -> bytes:
    """Positions of a task's inputs, in the order of their numbers, as `tasks.positions` holds them."""
    return b"".join(_POSITION.pack(*position) for position in positions)


def unpack(packed: bytes) -> list[InputPosition]:
    """The positions in a value of `tasks.positions`."""
    return [InputPosition(*pair) for pair in _POSITION.iter_unpack(packed)]


def packed_positions(inputs: Iterable[TaskInput]) -> bytes:
    """Where a task stands in its inputs, as `tasks.positions` holds it."""
    return pack(InputPosition(at.position, at.frontier) for at in inputs)


def inputs_of_tasks(s: Session, task_ids: Iterable[str]) -> dict[str, list[TaskInput]]:
    """Task id → its inputs, by number."""
    return _inputs(s, _OF_TASKS, task_ids=sorted(task_ids))


def inputs_of_job(s: Session, job_id: str) -> dict[str, list[TaskInput]]:
    """Task id → its inputs, by number, of each task of a job."""
    return _inputs(s, _OF_JOB, job_id=job_id)


def lags(s: Session, job_id: str | None = None) -> dict[str, int]:
    """Task id → offsets that it has not read yet, of the tasks of one job or of all."""
    read = _inputs(s, _IN_ORDER) if job_id is None else inputs_of_job(s, job_id)
    return {task_id: sum(at.lag for at in inputs) for task_id, inputs in read.items()}


def lowest_position(s: Session, stream_id: str, partition: int) -> int | None:
    """The next offset of the task that is least far in a partition; None: nobody reads it."""
    readers = s.execute(_READERS.where(TaskInputRow.stream_id == stream_id, TaskInputRow.partition == partition))
    return min((unpack(packed)[number].offset for number, packed in readers), default=None)


def partitions_read_by(s: Session, job_ids: Iterable[str]) -> set[tuple[str, int]]:
    """Every (stream id, partition) that tasks of these jobs read."""
    query = select(TaskInputRow.stream_id, TaskInputRow.partition).join(TaskRow, TaskRow.id == TaskInputRow.task_id)
    return {(row.stream_id, row.partition) for row in s.execute(query.where(TaskRow.job_id.in_(sorted(job_ids))))}


def _inputs(s: Session, query: Select[Any], **parameters: Any) -> dict[str, list[TaskInput]]:
    found: dict[str, list[TaskInput]] = {}
    for row in s.execute(query, parameters):
        found.setdefault(row.task_id, []).append(input_of(row))
    return found


def input_of(row: Row[Any]) -> TaskInput:
    """The input that a row of `READ` tells of."""
    offset, frontier = _POSITION.unpack_from(row.positions, row.number * _POSITION.size)
    where = (row.stream_id, row.partition, offset, frontier)
    return TaskInput(*where, row.start_offset, row.end_offset, row.silent_ms)
