"""What tasks read and how far they are: every statement about inputs and positions is here.

It knows that a task's inputs are numbered once, when it is made, and that its positions are one packed value in the
order of these numbers. It refuses to know why somebody asks: lag, silence, retention, polls and commits all read this.

    task_inputs       (task, first number) → (stream, first partition), so many of each, as long as it reads them
    tasks.positions   per input, in the order of the numbers: next offset, frontier (int64 each, little endian)

A task has a row in `task_inputs` for each stream that it reads, not for each partition: with 64 tasks that read a
repartition stream of 64 partitions there are 64 rows. Numbers are given once: where a source was removed there is a
number without a row, and its position stays. It is shown as an input that was read to its end, where nothing comes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from service.catalog.driver import Prepared
from service.catalog.engine import Now
from service.catalog.tables import PartitionRow, TaskInputRow, TaskRow
from service.streams.inputs import InputPosition

_POSITION = struct.Struct("<qq")
POSITION_BYTES: Final = _POSITION.size
LONG_MS: Final = 2**62  # longer than anybody waits for an input
SILENT_MS = (Now() - func.coalesce(PartitionRow.published_ms, 0)).label("silent_ms")
READ = (  # a row a range of inputs, with the log of its first partition; `inputs_of` makes inputs of it
    select(TaskInputRow.task_id, TaskInputRow.number, TaskInputRow.stream_id, TaskInputRow.partition, TaskRow.positions)
    .add_columns(TaskInputRow.partitions, TaskInputRow.sub_log)
    .add_columns(PartitionRow.start_offset, PartitionRow.end_offset, SILENT_MS)
    .select_from(TaskInputRow)
    .join(TaskRow, TaskRow.id == TaskInputRow.task_id)
    .join(
        PartitionRow,
        (PartitionRow.stream_id == TaskInputRow.stream_id) & (PartitionRow.partition == TaskInputRow.partition),
    )
)
_IN_ORDER = READ.order_by(TaskInputRow.task_id, TaskInputRow.number)
_OF_TASKS = Prepared(_IN_ORDER.where(TaskInputRow.task_id.in_(bindparam("task_ids", expanding=True))))
_OF_JOB = Prepared(_IN_ORDER.where(TaskRow.job_id == bindparam("job_id")))
_OF_ALL = Prepared(_IN_ORDER)
_LOGS = Prepared(
    select(PartitionRow.stream_id, PartitionRow.start_offset, PartitionRow.end_offset, SILENT_MS)
    .where(PartitionRow.stream_id.in_(bindparam("stream_ids", expanding=True)))
    .order_by(PartitionRow.stream_id, PartitionRow.partition)
)
_READERS = select(
    TaskInputRow.number, TaskInputRow.partition, TaskInputRow.partitions, TaskInputRow.sub_log, TaskRow.positions
).join(TaskRow, TaskRow.id == TaskInputRow.task_id)


class Log(NamedTuple):
    """The offsets [start, end) of a partition, and for how long it has not grown (ms)."""

    start: int
    end: int
    silent_ms: int


Logs = Mapping[str, Sequence[Log]]  # stream id → its partitions, in order


@dataclass(slots=True)
class TaskInput:
    """One partition that a task reads: where the task stands in it, and which offsets [start, end) it has.

    `stream_id`: empty where the source was removed. `frontier`: how far the input had come (ms, its highest
    `aligned_at`) at all that was read of it, -1 while that is not known. `silent_ms`: for how long the partition has
    not grown. `sub_log`: the target whose part of a repartition log the task reads. `bound`, `is_caught_up`: as a slot
    is given them (`protocol.InputHead`), where `progress` found them.
    """

    stream_id: str
    partition: int
    position: int
    frontier: int
    start: int
    end: int
    silent_ms: int
    sub_log: int | None = None
    bound: int = -1
    is_caught_up: bool = False

    @property
    def is_removed(self) -> bool:
        """Whether nothing but its number is left of it."""
        return not self.stream_id

    @property
    def lag(self) -> int:
        """Offsets that are there and were not read yet."""
        return self.end - self.position

    @property
    def has_work(self) -> bool:
        """Whether its next record is there; retention may have taken it."""
        return self.start <= self.position < self.end


class Lag(NamedTuple):
    """Offsets that are there and were not read yet: of users' streams, and of repartition streams (records for all
    their targets: a task's own are not more than that).
    """

    of_users: int
    of_repartitions: int

    @property
    def records(self) -> int:
        """All of them."""
        return self.of_users + self.of_repartitions


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


def inputs_of_all(s: Session) -> dict[str, list[TaskInput]]:
    """Task id → its inputs, by number, of every task of every job."""
    return _inputs(s, _OF_ALL)


def lag_of(inputs: Iterable[TaskInput]) -> Lag:
    """What is unread of these inputs of a task."""
    found = [0, 0]
    for at in inputs:
        found[at.sub_log is not None] += at.lag
    return Lag(*found)


def unread_of_repartitions(inputs: Iterable[TaskInput]) -> dict[str, int]:
    """Stream id → records in logs of a repartition stream that not every one of its targets has passed."""
    most: dict[tuple[str, int], int] = {}
    for at in inputs:
        if at.sub_log is not None:
            log = (at.stream_id, at.partition)
            most[log] = max(at.lag, most.get(log, 0))
    found: dict[str, int] = {}
    for (stream_id, _), lag in most.items():
        found[stream_id] = found.get(stream_id, 0) + lag
    return found


def lowest_position(s: Session, stream_id: str, partition: int) -> int | None:
    """The next offset of the task that is least far in a partition; None: nobody reads it."""
    is_read = TaskInputRow.partition.between(partition - TaskInputRow.partitions + 1, partition)
    readers = s.execute(_READERS.where(TaskInputRow.stream_id == stream_id, is_read))
    offsets = (_offset(row.positions, row.number + partition - row.partition) for row in readers)
    return min(offsets, default=None)


def lowest_positions(s: Session, stream_id: str) -> dict[int, int]:
    """Partition → the next offset of the task that is least far in it, of each partition that somebody reads."""
    found: dict[int, int] = {}
    for row in s.execute(_READERS.where(TaskInputRow.stream_id == stream_id)):
        for i in range(row.partitions):
            offset = _offset(row.positions, row.number + i)
            found[row.partition + i] = min(offset, found.get(row.partition + i, offset))
    return found


class ReadBy(NamedTuple):
    """A partition as a job reads it."""

    stream_id: str
    job_id: str
    partition: int


def lowest_positions_by_job(s: Session, stream_ids: Iterable[str]) -> dict[ReadBy, int]:
    """Of each job and each partition of these streams that it reads, the next offset of its task that is least far."""
    query = _READERS.add_columns(TaskInputRow.stream_id, TaskRow.job_id)
    found: dict[ReadBy, int] = {}
    for row in s.execute(query.where(TaskInputRow.stream_id.in_(sorted(stream_ids)))):
        for i in range(row.partitions):
            at = ReadBy(row.stream_id, row.job_id, row.partition + i)
            offset = _offset(row.positions, row.number + i)
            found[at] = min(offset, found.get(at, offset))
    return found


def partitions_read_by(s: Session, job_ids: Iterable[str]) -> set[tuple[str, int]]:
    """Every (stream id, partition) that tasks of these jobs read."""
    columns = (TaskInputRow.stream_id, TaskInputRow.partition, TaskInputRow.partitions)
    query = select(*columns).distinct().join(TaskRow, TaskRow.id == TaskInputRow.task_id)
    rows = s.execute(query.where(TaskRow.job_id.in_(sorted(job_ids))))
    return {(row.stream_id, row.partition + i) for row in rows for i in range(row.partitions)}


def logs_of(s: Session, stream_ids: Collection[str]) -> Logs:
    """The partitions of these streams."""
    found: dict[str, list[Log]] = {}
    if stream_ids:
        for stream_id, *log in _LOGS.rows(s, stream_ids=sorted(stream_ids)):
            found.setdefault(stream_id, []).append(Log(*log))
    return found


def inputs_of(s: Session, rows: Sequence[Any], logs: Logs | None = None) -> Iterator[tuple[Any, list[TaskInput]]]:
    """Each row of `READ`, those of a task one after the other, and the inputs that it tells of, with those beside it
    that are removed. `logs`: all of them, as tasks are to see them.
    """
    known = logs_of(s, {row.stream_id for row in rows if row.partitions > 1}) if logs is None else logs
    for row, begin, end in with_removed(rows):
        is_told = logs is None and row.partitions == 1
        one = [Log(row.start_offset, row.end_offset, row.silent_ms)]
        found = _range(row, one if is_told else known[row.stream_id][row.partition :])
        following = row.number + row.partitions
        yield row, [*_removed(row, begin, row.number), *found, *_removed(row, following, end)]


def with_removed(rows: Sequence[Any]) -> Iterator[tuple[Any, int, int]]:
    """Each row of ranges of inputs (with `task_id`, `number`, `partitions`, `positions`; those of a task together, by
    number), and the numbers [begin, end) of its task that it stands for: its own, and those beside it without a row.
    """
    for i, row in enumerate(rows):
        is_first = i == 0 or rows[i - 1].task_id != row.task_id
        is_last = i + 1 == len(rows) or rows[i + 1].task_id != row.task_id
        end = len(row.positions) // POSITION_BYTES if is_last else rows[i + 1].number
        yield row, 0 if is_first else row.number, end


def _inputs(s: Session, query: Prepared, **parameters: Any) -> dict[str, list[TaskInput]]:
    found: dict[str, list[TaskInput]] = {}
    for row, inputs in inputs_of(s, query.rows(s, **parameters)):
        found.setdefault(row.task_id, []).extend(inputs)
    return found


def _range(row: Any, logs: Sequence[Log]) -> list[TaskInput]:
    first = row.number * POSITION_BYTES
    positions = _POSITION.iter_unpack(row.positions[first : first + row.partitions * POSITION_BYTES])
    return [
        TaskInput(row.stream_id, row.partition + i, offset, frontier, *log, row.sub_log)
        for i, ((offset, frontier), log) in enumerate(zip(positions, logs, strict=False))
    ]


def _removed(row: Any, begin: int, end: int) -> list[TaskInput]:
    """The inputs of a row's task with numbers in [begin, end), which have no stream."""
    positions = _POSITION.iter_unpack(row.positions[begin * POSITION_BYTES : end * POSITION_BYTES])
    return [
        TaskInput("", 0, offset, frontier, offset, offset, LONG_MS, is_caught_up=True) for offset, frontier in positions
    ]


def _offset(packed: bytes, number: int) -> int:
    offset: int = _POSITION.unpack_from(packed, number * POSITION_BYTES)[0]
    return offset
