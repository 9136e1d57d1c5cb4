"""Tasks as a poll hands them to their slot: where they stand, what to read next, what to pass over.

It knows positions, ends of logs and copies; it refuses to know who should own a task (`service.coordinator`), what a
commit changes (`commits`) and what an operator does. Shapes are those of the slot protocol (`service.protocol`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service.catalog import replays
from service.catalog.inputs import READ, TaskInput, input_of
from service.catalog.segments import chunks_from
from service.catalog.tables import JobRow, Json, PartitionRow, ReplicaRow, SkipRow, StoreRow, TaskInputRow, TaskRow
from service.protocol import AdvanceReason, AssignedTask, InputHead, InputRange, JobToRun, Role


@dataclass(slots=True)
class Assigned:
    """A task of a slot, and the slot's copy of it, as one poll sees them."""

    id: str
    name: str
    sub_topology: int
    partition: int
    epoch: int
    version: int
    is_closed: bool
    flush_at: list[int] | None
    replay: Json | None
    role: Role
    state: str
    target_slot_id: str | None
    applied: Json
    inputs: list[TaskInput] = field(default_factory=list)

    @property
    def is_truncated(self) -> bool:
        """Retention went past its position: what it should read is gone."""
        return any(at.position < at.start for at in self.inputs)

    @property
    def has_work(self) -> bool:
        """Whether there is something to read."""
        return any(at.has_work for at in self.inputs)

    @property
    def ends(self) -> list[int]:
        """Up to where to read each input: what came after a flush was asked for waits for it, so that it closes what
        was open then, and ends.
        """
        return [at.end for at in self.inputs] if self.flush_at is None else self.flush_at


@dataclass(frozen=True, slots=True)
class ChangelogEnd:
    """A store of a task: its id, its name, and where its changelog ends."""

    store_id: str
    store: str
    end: int


_TASK = (
    TaskRow.id,
    TaskRow.name,
    TaskRow.sub_topology,
    TaskRow.partition,
    TaskRow.epoch,
    TaskRow.version,
    TaskRow.is_closed,
    TaskRow.flush_at,
    TaskRow.replay,
    ReplicaRow.role,
    ReplicaRow.state,
    ReplicaRow.target_slot_id,
    ReplicaRow.applied,
)
_ASSIGNED = (
    READ.add_columns(*(column.label(f"task_{column.key}") for column in _TASK))
    .join(ReplicaRow, ReplicaRow.task_id == TaskRow.id)
    .where(ReplicaRow.slot_id == bindparam("slot_id"))
    .order_by(TaskRow.sub_topology, TaskRow.partition, TaskInputRow.number)
)
_CHANGELOGS = (
    select(TaskRow.id, StoreRow.id, StoreRow.name, PartitionRow.end_offset)
    .join(ReplicaRow, ReplicaRow.task_id == TaskRow.id)
    .join(StoreRow, (StoreRow.job_id == TaskRow.job_id) & (StoreRow.sub_topology == TaskRow.sub_topology))
    .join(
        PartitionRow,
        (PartitionRow.stream_id == StoreRow.changelog_stream_id) & (PartitionRow.partition == TaskRow.partition),
    )
    .where(ReplicaRow.slot_id == bindparam("slot_id"))
)


def job_to_run(job: JobRow) -> JobToRun:
    """A job, for those who run it."""
    return JobToRun(job.id, job.name, job.spec, job.topology, job.spec_sha256)


def assigned_to(s: Session, slot_id: str) -> list[Assigned]:
    """The tasks of a slot with their inputs; one query."""
    tasks: dict[str, Assigned] = {}
    for row in s.execute(_ASSIGNED, {"slot_id": slot_id}):
        if row.task_id not in tasks:
            tasks[row.task_id] = Assigned(*row[-len(_TASK) :])
        tasks[row.task_id].inputs.append(input_of(row))
    return list(tasks.values())


def changelogs_of(s: Session, slot_id: str) -> dict[str, list[ChangelogEnd]]:
    """Task id → the changelogs of its stores, of the tasks of a slot that have any; one query."""
    found: dict[str, list[ChangelogEnd]] = {}
    for task_id, store_id, store, end in s.execute(_CHANGELOGS, {"slot_id": slot_id}):
        found.setdefault(task_id, []).append(ChangelogEnd(store_id, store, end))
    return found


def describe(
    s: Session,
    tasks: Iterable[Assigned],
    changelogs: Mapping[str, Sequence[ChangelogEnd]],
    advances: Mapping[str, AdvanceReason],
    *,
    job_id: str,
    max_records: int,
    has_skips: bool,
) -> list[AssignedTask]:
    """The tasks as a poll answers them, each with the records to run next: `max_records` 0 hands out none, and a task
    that shall advance (id → why) gets none before it has done so.
    """
    return [
        AssignedTask(
            task=task.id,
            name=task.name,
            sub_topology=task.sub_topology,
            partition=task.partition,
            epoch=task.epoch,
            version=task.version,
            role=task.role,
            inputs=[InputHead(at.stream_id, at.partition, at.position, at.end, at.frontier) for at in task.inputs],
            work=[] if task.id in advances else _work(s, task, max_records),
            advance=advances.get(task.id),
            replay=replays.next_range(s, task.replay, task.partition, len(task.inputs), max_records),
            changelogs={each.store: each.end for each in changelogs.get(task.id, [])},
            skips=_skips(s, job_id, task) if has_skips else [],
        )
        for task in tasks
    ]


def _work(s: Session, task: Assigned, max_records: int) -> list[InputRange]:
    """The next range of each input that has one, and the chunks that hold it: at most `max_records` records each."""
    if max_records <= 0:
        return []
    read = zip(task.inputs, task.ends, strict=True)
    return [
        _range(s, number, at, end, max_records)
        for number, (at, end) in enumerate(read)
        if at.has_work and at.position < end
    ]


def _range(s: Session, number: int, at: TaskInput, end: int, max_records: int) -> InputRange:
    chunks = chunks_from(s, at.stream_id, at.partition, at.position, max_records).chunks
    end = min(end, chunks[-1].end_offset, max(at.position, chunks[0].first_offset) + max_records)
    return InputRange(number, at.position, end, [chunk for chunk in chunks if chunk.first_offset < end])


def _skips(s: Session, job_id: str, task: Assigned) -> list[tuple[int, int]]:
    """(input, offset) of the records to pass over: those ahead of a task, and what waits of its last one (ADR 7)."""
    skipped = select(SkipRow.stream_id, SkipRow.partition, SkipRow.offset).where(SkipRow.job_id == job_id)
    numbers = {(at.stream_id, at.partition): number for number, at in enumerate(task.inputs)}
    found = [(numbers.get((stream_id, p), -1), offset) for stream_id, p, offset in s.execute(skipped)]
    return sorted((i, offset) for i, offset in found if i >= 0 and offset >= task.inputs[i].position - 1)
