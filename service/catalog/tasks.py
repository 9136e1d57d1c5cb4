"""What tasks have to do, and the commit of what they did.

It knows positions, epochs, versions and offsets; it refuses to know who should own a task (`service.coordinator`) and
what an operator does. Shapes are those of the slot protocol (`service.protocol`).

A commit is accepted when the slot holds the task under the epoch and version that the catalog holds, its positions
begin where the stored ones are, and its segments are pending. Each commit of a request is judged alone, before
anything of it is written. Repeating the id of a task's last commit gets the first answer; a writer asks again
before it commits anything else, so nothing older can be asked for.

Locks are taken in the order of the catalog: tasks by id, segments by id, partitions by (stream, partition).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from service.catalog import idle_and_flush
from service.catalog.engine import now_ms, progress_topic, wake
from service.catalog.segments import PENDING, PUBLISHED, Appender, chunks_from, lock_segments
from service.catalog.tables import (
    INPUT_PARTITION,
    JobRow,
    Json,
    PartitionRow,
    SkipRow,
    StoreRow,
    TaskPositionRow,
    TaskRow,
)
from service.protocol import (
    AdvanceReason,
    AssignedTask,
    InputHead,
    InputRange,
    Move,
    TaskCommit,
    Verdict,
    WrittenSegment,
)
from service.streams import measures
from service.streams.records import Published


@dataclass(slots=True)
class Input:
    """One partition that a task reads: where it stands, and what is there."""

    stream_id: str
    partition: int
    position: int
    start: int
    end: int


# ---------------------------------------------------------------- what there is to do


@dataclass(slots=True)
class Assigned:
    """A task of a slot, as one poll sees it."""

    id: str
    name: str
    sub_topology: int
    partition: int
    epoch: int
    version: int
    target_slot_id: str | None
    is_closed: bool
    flush_at: Json | None
    applied: Json
    inputs: list[Input] = field(default_factory=list)

    @property
    def is_truncated(self) -> bool:
        """Retention went past its position: what it should read is gone."""
        return any(at.position < at.start for at in self.inputs)

    @property
    def input_with_work(self) -> int | None:
        """The number of the input to read next; one whose next record is gone has none."""
        return next((i for i, at in enumerate(self.inputs) if at.start <= at.position < at.end), None)


_INPUT_COLUMNS = 5
_TASK = (
    TaskRow.id,
    TaskRow.name,
    TaskRow.sub_topology,
    TaskRow.partition,
    TaskRow.epoch,
    TaskRow.version,
    TaskRow.target_slot_id,
)
_OWNED = (
    select(*_TASK, TaskRow.is_closed, TaskRow.flush_at, TaskRow.applied)
    .add_columns(TaskPositionRow.stream_id, TaskPositionRow.partition, TaskPositionRow.position)
    .add_columns(PartitionRow.start_offset, PartitionRow.end_offset)
    .join(TaskPositionRow, TaskPositionRow.task_id == TaskRow.id)
    .join(PartitionRow, INPUT_PARTITION)
    .where(TaskRow.slot_id == bindparam("slot_id"))
    .order_by(TaskRow.sub_topology, TaskRow.partition, TaskPositionRow.stream_id)
)
_CHANGELOGS = (
    select(TaskRow.id, StoreRow.name, PartitionRow.end_offset)
    .join(StoreRow, (StoreRow.job_id == TaskRow.job_id) & (StoreRow.sub_topology == TaskRow.sub_topology))
    .join(
        PartitionRow,
        (PartitionRow.stream_id == StoreRow.changelog_stream_id) & (PartitionRow.partition == TaskRow.partition),
    )
    .where(TaskRow.slot_id == bindparam("slot_id"))
)


def assigned_to(s: Session, slot_id: str) -> list[Assigned]:
    """The tasks of a slot with their inputs; one query."""
    tasks: dict[str, Assigned] = {}
    for row in s.execute(_OWNED, {"slot_id": slot_id}):
        about, at = row[:-_INPUT_COLUMNS], row[-_INPUT_COLUMNS:]
        task = tasks.setdefault(row.id, Assigned(*about))
        task.inputs.append(Input(*at))
    return list(tasks.values())


def describe(
    s: Session,
    slot_id: str,
    tasks: Sequence[Assigned],
    advances: Mapping[str, AdvanceReason],
    *,
    job_id: str,
    max_records: int,
    has_skips: bool,
) -> list[AssignedTask]:
    """The tasks as a poll answers them, each with the records to run next: `max_records` 0 hands out none, and a task
    that shall advance (id → why) gets none before it has done so.
    """
    changelogs: dict[str, dict[str, int]] = {task.id: {} for task in tasks}
    for task_id, name, end in s.execute(_CHANGELOGS, {"slot_id": slot_id}):
        if task_id in changelogs:
            changelogs[task_id][name] = end
    return [
        AssignedTask(
            task=task.id,
            name=task.name,
            sub_topology=task.sub_topology,
            partition=task.partition,
            epoch=task.epoch,
            version=task.version,
            inputs=[InputHead(at.stream_id, at.partition, at.position, at.end) for at in task.inputs],
            work=[] if task.id in advances else _work(s, task, max_records),
            advance=advances.get(task.id),
            changelogs=changelogs[task.id],
            skips=_skips(s, job_id, task) if has_skips else [],
        )
        for task in tasks
    ]


def _work(s: Session, task: Assigned, max_records: int) -> list[InputRange]:
    """The next range of an input and the chunks that hold it: at most `max_records` records."""
    number = task.input_with_work
    if number is None or max_records <= 0:
        return []
    at = task.inputs[number]
    chunks, _, _ = chunks_from(s, at.stream_id, at.partition, at.position, max_records)
    end = min(chunks[-1].end_offset, max(at.position, chunks[0].first_offset) + max_records)
    return [InputRange(number, at.position, end, chunks)]


def _skips(s: Session, job_id: str, task: Assigned) -> list[tuple[int, int]]:
    """(input, offset) of the records ahead of a task that it shall pass over."""
    skipped = select(SkipRow.stream_id, SkipRow.partition, SkipRow.offset).where(SkipRow.job_id == job_id)
    numbers = {(at.stream_id, at.partition): number for number, at in enumerate(task.inputs)}
    found = [(numbers.get((stream_id, p), -1), offset) for stream_id, p, offset in s.execute(skipped)]
    return sorted((i, offset) for i, offset in found if i >= 0 and offset >= task.inputs[i].position)


def note_applied(s: Session, tasks: Iterable[TaskRow], applied: Mapping[str, Mapping[str, int]]) -> None:
    """Keep how far the replicas of locked tasks are (task id → store id → changelog position)."""
    for task in tasks:
        found = {**task.applied, **applied.get(task.id, {})}
        if found != task.applied:
            task.applied = found
            wake(s, progress_topic(task.job_id))


# ---------------------------------------------------------------- what was done


def commit_tasks(s: Session, slot_id: str, commits: Sequence[TaskCommit]) -> list[Verdict]:
    """Judge each commit alone and write what is accepted; the verdicts come in the order of the commits."""
    return _Committing(s, slot_id, commits).run()


def lock_tasks_by_id(s: Session, task_ids: Iterable[str]) -> dict[str, TaskRow]:
    """Lock tasks in the order of their ids."""
    query = select(TaskRow).where(TaskRow.id.in_(sorted(task_ids))).order_by(TaskRow.id).with_for_update(key_share=True)
    return {task.id: task for task in s.scalars(query.execution_options(populate_existing=True))}


class _Committing:
    """One request of commits: everything it may touch is locked first, in order, then each is judged in memory."""

    def __init__(self, s: Session, slot_id: str, commits: Sequence[TaskCommit]) -> None:
        self._s, self._slot_id, self._commits = s, slot_id, commits
        self._at_ms = now_ms(s)
        self._tasks = lock_tasks_by_id(s, {commit.task for commit in commits})
        self._inputs = self._read_inputs()
        segments = [segment for commit in commits for segment in commit.segments]
        self._segments = lock_segments(s, {segment.id for segment in segments}) if segments else {}
        partitions = {(chunk.stream_id, chunk.partition) for segment in segments for chunk in segment.chunks}
        self._log = Appender(s, partitions | self._read_by_idle())

    def run(self) -> list[Verdict]:
        verdicts = [self._judge(commit) for commit in self._commits]
        self._s.flush()
        self._log.write()
        return verdicts

    def _read_inputs(self) -> dict[str, list[Input]]:
        """Task id → its inputs, by number."""
        query = (
            select(
                TaskPositionRow.task_id, TaskPositionRow.stream_id, TaskPositionRow.partition, TaskPositionRow.position
            )
            .add_columns(PartitionRow.start_offset, PartitionRow.end_offset)
            .join(PartitionRow, INPUT_PARTITION)
            .where(TaskPositionRow.task_id.in_(sorted(self._tasks)))
            .order_by(TaskPositionRow.stream_id)
        )
        found: dict[str, list[Input]] = {task_id: [] for task_id in self._tasks}
        for task_id, *at in self._s.execute(query):
            found[task_id].append(Input(*at))
        return found

    def _read_by_idle(self) -> set[tuple[str, int]]:
        """The sources of jobs that close on idle input: locked, so that what is idle stays so until we are done."""
        advances = [(commit.task, commit.advance) for commit in self._commits]
        idle = {task_id for task_id, advance in advances if advance is not None and advance.reason == "idle"}
        jobs = {task.job_id for task_id, task in self._tasks.items() if task_id in idle}
        return idle_and_flush.source_partitions(self._s, jobs) if jobs else set()

    def _judge(self, commit: TaskCommit) -> Verdict:
        task = self._tasks.get(commit.task)
        if task is not None and task.last_commit_id == commit.commit_id and task.last_commit_result is not None:
            return msgspec.convert(task.last_commit_result, Verdict)
        reason = "unknown_task" if task is None else self._objection(task, commit)
        if task is None or reason is not None:
            return Verdict(commit.task, commit.commit_id, "refused", reason, None if task is None else task.version)
        return self._accept(task, commit)

    def _objection(self, task: TaskRow, commit: TaskCommit) -> str | None:
        """Why a commit can not be accepted; None when it can."""
        if task.slot_id != self._slot_id or task.epoch != commit.epoch:
            return "stale_epoch"
        if task.version != commit.version:
            return "stale_version"
        inputs = self._inputs[task.id]
        if len({move.input for move in commit.positions}) < len(commit.positions):
            return "wrong_position"
        for move in commit.positions:
            at = inputs[move.input] if move.input < len(inputs) else None
            if at is None or at.position != move.start or not at.position <= move.end <= at.end:
                return "wrong_position"
        return self._objection_to_advance(task, commit) or self._objection_to_segments(commit.segments)

    def _objection_to_advance(self, task: TaskRow, commit: TaskCommit) -> str | None:
        """A batch moves by records or by hand, never both; and what allowed the latter must still be so."""
        if commit.advance is None:
            return None
        if commit.positions:
            return "records_and_advance"
        if commit.advance.reason == "idle":
            return None if idle_and_flush.is_idle(self._s, self._s.get_one(JobRow, task.job_id)) else "not_idle"
        return None if idle_and_flush.is_flush_due(task.flush_at, self._inputs[task.id]) else "not_to_flush"

    def _objection_to_segments(self, segments: Sequence[WrittenSegment]) -> str | None:
        if len({segment.id for segment in segments}) < len(segments):
            return "segment_twice"
        for segment in segments:
            if self._segments.get(segment.id) != PENDING:
                return "segment_not_pending"
            if any(chunk.records < 1 for chunk in segment.chunks):
                return "empty_chunk"
            if self._log.missing(segment.chunks) is not None:
                return "unknown_partition"
        return None

    def _accept(self, task: TaskRow, commit: TaskCommit) -> Verdict:
        published: list[Published] = []
        for segment in commit.segments:
            published += self._log.append(segment.id, segment.bytes, segment.chunks)
            self._segments[segment.id] = PUBLISHED
        for move in commit.positions:
            self._move(task, move)
            task.is_closed = False
        if commit.advance is not None:
            idle_and_flush.note(task, commit.advance, self._at_ms)
        task.version += 1
        verdict = Verdict(commit.task, commit.commit_id, "accepted", None, task.version, published)
        task.last_commit_id, task.last_commit_result = commit.commit_id, msgspec.to_builtins(verdict)
        task.counters = measures.after(task.counters, dict(commit.counters))
        task.applied = {**task.applied, **commit.applied}
        task.stream_time = max(task.stream_time, commit.stream_time)
        task.updated_ms = self._at_ms
        wake(self._s, progress_topic(task.job_id))
        return verdict

    def _move(self, task: TaskRow, move: Move) -> None:
        at = self._inputs[task.id][move.input]
        at.position = move.end
        self._s.execute(
            update(TaskPositionRow)
            .where(
                TaskPositionRow.task_id == task.id,
                TaskPositionRow.stream_id == at.stream_id,
                TaskPositionRow.partition == at.partition,
            )
            .values(position=move.end)
            .execution_options(synchronize_session=False)
        )
