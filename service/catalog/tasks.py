"""Tasks as a poll hands them to their slot: where they stand, what to read next, what to pass over.

It knows positions, ends of logs and copies; it refuses to know who should own a task (`service.coordinator`), what a
commit changes (`commits`) and what an operator does. Shapes are those of the slot protocol (`service.protocol`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service.catalog import replays
from service.catalog.adoptions import Adoptions
from service.catalog.driver import Prepared
from service.catalog.engine import Now
from service.catalog.inputs import READ, TaskInput, inputs_of
from service.catalog.jobs import stores_of, streams_of
from service.catalog.progress import JobLogs
from service.catalog.repartitions import NextChunks
from service.catalog.replicas import ACTIVE, IS_CHANGELOG_OF, IS_STORE_OF, behind
from service.catalog.segments import next_range
from service.catalog.tables import JobRow, Json, PartitionRow, ReplicaRow, SkipRow, StoreRow, TaskInputRow, TaskRow
from service.protocol import (
    Adoption,
    AdvanceReason,
    AssignedTask,
    FollowedTask,
    InputHead,
    InputRange,
    JobToRun,
    Role,
    StoreRef,
    StreamRef,
)


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
    stream_time: int
    spec_version: int
    next_version: int | None
    set_back_to: int | None
    role: Role
    state: str
    target_slot_id: str | None
    applied: Json
    inputs: list[TaskInput] = field(default_factory=list)
    heads_digest: int = 0
    feeds_others: bool = False  # other tasks of the job read what it writes

    @property
    def is_truncated(self) -> bool:
        """Retention went past its position: what it should read is gone."""
        return any(at.position < at.start for at in self.inputs)

    @property
    def has_work(self) -> bool:
        """Whether there is something to read."""
        return any(at.has_work for at in self.inputs)

    @property
    def unread(self) -> list[tuple[int, TaskInput, int]]:
        """The number of each input that has something, the input, and up to where to read it: what came after a flush
        was asked for waits for it, so that it closes what was open then, and ends. Of several inputs each is read on:
        what lies behind the mark of one may come before what another has in front of its own.
        """
        marks = self.flush_at if len(self.inputs) == 1 else None
        ends = marks or [at.end for at in self.inputs]
        read = enumerate(zip(self.inputs, ends, strict=True))
        return [(number, at, end) for number, (at, end) in read if at.has_work and at.position < end]


@dataclass(frozen=True, slots=True)
class ChangelogEnd:
    """A store of a task: its id, its name, the stream that is its changelog, and where that ends."""

    store_id: str
    store: str
    end: int
    stream_id: str


@dataclass(slots=True)
class Followed:
    """A copy that a slot keeps of a task that it does not run, as one poll sees it. `age_ms`: of what was last reported
    (None: nothing was).
    """

    id: str
    name: str
    sub_topology: int
    partition: int
    role: Literal["standby", "warm-up"]
    state: str
    applied: Json
    age_ms: int | None
    changelogs: list[ChangelogEnd] = field(default_factory=list)

    def lag(self, applied: Mapping[str, int]) -> int:
        """Records that it is behind, with these positions."""
        return behind(applied, {each.store_id: each.end for each in self.changelogs})


@dataclass(frozen=True, slots=True)
class Changelogs:
    """Of a slot: task id → the changelogs of its stores, of the tasks that it runs; and the copies that it keeps."""

    of_tasks: Mapping[str, Sequence[ChangelogEnd]]
    followed: Sequence[Followed]


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
    TaskRow.stream_time,
    TaskRow.spec_version,
    TaskRow.next_version,
    TaskRow.set_back_to,
    ReplicaRow.role,
    ReplicaRow.state,
    ReplicaRow.target_slot_id,
    ReplicaRow.applied,
)
_ASSIGNED = Prepared(
    READ.add_columns(*(column.label(f"task_{column.key}") for column in _TASK))
    .join(ReplicaRow, ReplicaRow.task_id == TaskRow.id)
    .where(ReplicaRow.slot_id == bindparam("slot_id"), ReplicaRow.role == ACTIVE)
    .order_by(TaskRow.sub_topology, TaskRow.partition, TaskInputRow.number)
)
_CHANGELOGS = Prepared(
    select(TaskRow.id, StoreRow.id, StoreRow.name, PartitionRow.end_offset, StoreRow.changelog_stream_id)
    .add_columns(ReplicaRow.role, TaskRow.name, TaskRow.sub_topology, TaskRow.partition, ReplicaRow.state)
    .add_columns(ReplicaRow.applied, Now() - ReplicaRow.reported_ms)
    .join(ReplicaRow, ReplicaRow.task_id == TaskRow.id)
    .join(StoreRow, IS_STORE_OF)
    .join(PartitionRow, IS_CHANGELOG_OF)
    .where(ReplicaRow.slot_id == bindparam("slot_id"), StoreRow.is_removed.is_(False))
)


def job_to_run(job: JobRow) -> JobToRun:
    """A job, for those who run it."""
    return JobToRun(job.id, job.name, job.spec, job.topology, job.spec_sha256, job.spec_version)


def ids_of_job(s: Session, job_id: str) -> tuple[dict[str, StreamRef], dict[str, StoreRef]]:
    """The ids behind the names of a job's streams and stores, for those who run it."""
    stores = stores_of(s, job_id)
    return (
        {stream.name: StreamRef(stream.id, stream.partitions) for stream in streams_of(s, job_id)},
        {store.name: StoreRef(store.id, store.changelog_stream_id) for store in stores},
    )


def assigned_to(s: Session, slot_id: str, logs: JobLogs | None = None) -> list[Assigned]:
    """The tasks of a slot with their inputs; one query, and one more where there are ranges of inputs and nothing is
    known of the job's `logs`.
    """
    tasks: dict[str, Assigned] = {}
    rows = _ASSIGNED.rows(s, slot_id=slot_id)
    for row, inputs in inputs_of(s, rows, None if logs is None else logs.by_stream):
        if row.task_id not in tasks:
            tasks[row.task_id] = Assigned(*row[-len(_TASK) :])
        tasks[row.task_id].inputs += inputs
    if logs is not None:
        for task in tasks.values():
            task.feeds_others = logs.feeds_others(task.sub_topology)
    return list(tasks.values())


def changelogs_of(s: Session, slot_id: str) -> Changelogs:
    """The changelogs that a slot is to follow, of its tasks and of its other copies; one query."""
    running: dict[str, list[ChangelogEnd]] = {}
    followed: dict[str, Followed] = {}
    for task_id, store_id, store, end, stream_id, role, *copy in _CHANGELOGS.rows(s, slot_id=slot_id):
        changelog = ChangelogEnd(store_id, store, end, stream_id)
        if role == ACTIVE:
            running.setdefault(task_id, []).append(changelog)
            continue
        if task_id not in followed:
            name, sub_topology, partition, *state = copy
            followed[task_id] = Followed(task_id, name, sub_topology, partition, role, *state)
        followed[task_id].changelogs.append(changelog)
    return Changelogs(running, list(followed.values()))


def describe_copies(followed: Iterable[Followed]) -> list[FollowedTask]:
    """The copies that a slot is to keep, as a poll answers them."""
    return [
        FollowedTask(
            each.id,
            each.name,
            each.sub_topology,
            each.partition,
            each.role,
            {changelog.store: changelog.end for changelog in each.changelogs},
        )
        for each in followed
    ]


def adoptions_of(s: Session, job_id: str, tasks: Iterable[Assigned]) -> dict[str, Adoption]:
    """By id, what those tasks have to take over whose next commit adopts another version; no query without any."""
    adopting = {task.id: (task, task.next_version) for task in tasks if task.next_version is not None}
    if not adopting:
        return {}
    given = Adoptions(s, s.get_one(JobRow, job_id))
    return {task_id: Adoption(version, given.of(task)) for task_id, (task, version) in adopting.items()}


def describe(
    s: Session,
    tasks: Sequence[Assigned],
    changelogs: Mapping[str, Sequence[ChangelogEnd]],
    advances: Mapping[str, AdvanceReason],
    resting: Collection[str] = frozenset(),
    adoptions: Mapping[str, Adoption] = MappingProxyType({}),
    *,
    job_id: str,
    max_records: int,
    has_skips: bool,
) -> list[AssignedTask]:
    """The tasks as a poll answers them, each with the records to run next: `max_records` 0 hands out none, a task that
    shall advance (id → why) or has a version to adopt gets none before it has done so, those that are `resting` get
    none now.
    """
    held = {*advances, *resting, *adoptions}
    working = [task for task in tasks if max_records > 0 and task.id not in held]
    work = _work(s, working, max_records)
    return [
        AssignedTask(
            task=task.id,
            name=task.name,
            sub_topology=task.sub_topology,
            partition=task.partition,
            epoch=task.epoch,
            version=task.version,
            role=task.role,
            inputs=[_head(at) for at in task.inputs],
            work=work.get(task.id, []),
            advance=advances.get(task.id),
            replay=replays.next_range(
                s, task.replay, task.partition, len(task.inputs), 0 if task.id in adoptions else max_records
            ),
            changelogs={each.store: each.end for each in changelogs.get(task.id, [])},
            skips=_skips(s, job_id, task) if has_skips else [],
            heads_digest=task.heads_digest,
            adopt=adoptions.get(task.id),
            can_wait=not task.feeds_others and task.replay is None and _only_passes_over(work.get(task.id, [])),
        )
        for task in tasks
    ]


def _only_passes_over(work: Sequence[InputRange]) -> bool:
    """Whether all that is there to be read is for other targets."""
    return bool(work) and not any(each.chunks for each in work)


def _head(at: TaskInput) -> InputHead:
    where = (at.stream_id, at.partition, at.position, at.end, at.frontier)
    return InputHead(*where, at.sub_log, at.bound, at.is_caught_up)


def _work(s: Session, tasks: Sequence[Assigned], max_records: int) -> dict[str, list[InputRange]]:
    """By task the next range of each input that has one, and the chunks that hold it: at most `max_records` records
    each. The repartition streams are read for all tasks together.
    """
    unread = [(task.id, *each) for task in tasks for each in task.unread]
    chunks = NextChunks(s, [at for _, _, at, _ in unread if at.sub_log is not None])
    found: dict[str, list[InputRange]] = {}
    for task_id, number, at, end in unread:
        given = (
            next_range(s, number, (at.stream_id, at.partition), at.position, end, max_records)
            if at.sub_log is None
            else chunks.range(number, at, end, max_records)
        )
        if given is not None:
            found.setdefault(task_id, []).append(given)
    return found


def _skips(s: Session, job_id: str, task: Assigned) -> list[tuple[int, int]]:
    """(input, offset) of the records to pass over: those ahead of a task, and what waits of its last one (ADR 7)."""
    skipped = select(SkipRow.stream_id, SkipRow.partition, SkipRow.offset).where(SkipRow.job_id == job_id)
    numbers = {(at.stream_id, at.partition): number for number, at in enumerate(task.inputs)}
    found = [(numbers.get((stream_id, p), -1), offset) for stream_id, p, offset in s.execute(skipped)]
    return sorted((i, offset) for i, offset in found if i >= 0 and offset >= task.inputs[i].position - 1)
