"""What tasks have to do, and the commit of what they did.

It knows positions, epochs, versions and offsets; it refuses to know who should own a task (`service.coordinator`) and
what an operator does. Shapes are those of the slot protocol, as JSON.

A commit is accepted when the slot holds the task under the epoch and version that the catalog holds, its positions
begin where the stored ones are, and its segment is pending. Each commit of a request is judged alone, before
anything of it is written. Repeating the id of a task's last commit gets the first answer; a writer asks again
before it commits anything else, so nothing older can be asked for.

Locks are taken in the order of the catalog: tasks by id, segments by id, partitions by (stream, partition).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict, cast

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from service.catalog import idle_and_flush
from service.catalog.engine import now_ms, progress_topic, wake
from service.catalog.idle_and_flush import Advance, Reason
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
from service.streams import measures
from service.streams.records import ChunkMeta

Move = TypedDict("Move", {"stream_id": str, "partition": int, "from": int, "to": int})


class SegmentToPublish(TypedDict):
    """A registered segment; its chunks (ChunkMeta as JSON) in the order of the file."""

    id: str
    bytes: int
    chunks: Sequence[Mapping[str, Any]]


class TaskCommit(TypedDict):
    """What a task did in one batch: inputs or stream time moved, at most one segment to publish."""

    commit_id: str
    task: str
    epoch: int
    version: int
    positions: Sequence[Move]
    segment: SegmentToPublish | None
    advance: NotRequired[Advance | None]
    counters: NotRequired[Json]
    stream_time: NotRequired[int]
    applied: NotRequired[dict[str, int]]


class Verdict(TypedDict):
    """What became of a commit; `version` is the one that the catalog holds now."""

    task: str
    commit_id: str
    status: str
    reason: str | None
    version: int | None
    published: list[Json]


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
    def input_with_work(self) -> Input | None:
        """The input to read next; one whose next record is gone has none."""
        return next((at for at in self.inputs if at.start <= at.position < at.end), None)


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
    select(TaskRow.id, StoreRow.name, StoreRow.changelog_stream_id, TaskRow.partition, PartitionRow.end_offset)
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
    advances: Mapping[str, Reason],
    *,
    job_id: str,
    max_records: int,
    has_skips: bool,
) -> list[Json]:
    """The tasks as a poll answers them, each with the records to run next: `max_records` 0 hands out none, and a task
    that shall advance (id → why) gets none before it has done so.
    """
    changelogs: dict[str, Json] = {task.id: {} for task in tasks}
    for task_id, name, stream_id, partition, end in s.execute(_CHANGELOGS, {"slot_id": slot_id}):
        if task_id in changelogs:
            changelogs[task_id][name] = {"stream_id": stream_id, "partition": partition, "end": end}
    return [
        {
            "task": task.id,
            "name": task.name,
            "sub_topology": task.sub_topology,
            "partition": task.partition,
            "epoch": task.epoch,
            "version": task.version,
            "inputs": [_describe_input(at) for at in task.inputs],
            "work": None if task.id in advances else _work(s, task.input_with_work, max_records),
            "advance": advances.get(task.id),
            "changelogs": changelogs[task.id],
            "skips": _skips(s, job_id, task) if has_skips else [],
        }
        for task in tasks
    ]


def _describe_input(at: Input) -> Json:
    return {"stream_id": at.stream_id, "partition": at.partition, "position": at.position, "end": at.end}


def _work(s: Session, at: Input | None, max_records: int) -> Json | None:
    """The next range [from, to) of an input and the chunks that hold it: at most `max_records` records."""
    if at is None or max_records <= 0:
        return None
    chunks, _, _ = chunks_from(s, at.stream_id, at.partition, at.position, max_records)
    last = chunks[-1].first_offset + chunks[-1].records
    return {
        "stream_id": at.stream_id,
        "partition": at.partition,
        "from": at.position,
        "to": min(last, max(at.position, chunks[0].first_offset) + max_records),
        "chunks": [chunk._asdict() for chunk in chunks],
    }


def _skips(s: Session, job_id: str, task: Assigned) -> list[int]:
    skipped = select(SkipRow.stream_id, SkipRow.partition, SkipRow.offset).where(SkipRow.job_id == job_id)
    ahead = {(at.stream_id, at.partition): at.position for at in task.inputs}
    return sorted(offset for stream, p, offset in s.execute(skipped) if offset >= ahead.get((stream, p), offset + 1))


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
        self._tasks = lock_tasks_by_id(s, {commit["task"] for commit in commits})
        self._inputs = self._read_inputs()
        segments = [commit["segment"] for commit in commits if commit["segment"] is not None]
        self._segments = lock_segments(s, {segment["id"] for segment in segments}) if segments else {}
        chunks = [chunk for segment in segments for chunk in segment["chunks"]]
        partitions = {(chunk["stream_id"], chunk["partition"]) for chunk in chunks}
        self._log = Appender(s, partitions | self._read_by_idle())

    def run(self) -> list[Verdict]:
        verdicts = [self._judge(commit) for commit in self._commits]
        self._s.flush()
        self._log.write()
        return verdicts

    def _read_inputs(self) -> dict[tuple[str, str, int], Input]:
        query = (
            select(
                TaskPositionRow.task_id, TaskPositionRow.stream_id, TaskPositionRow.partition, TaskPositionRow.position
            )
            .add_columns(PartitionRow.start_offset, PartitionRow.end_offset)
            .join(PartitionRow, INPUT_PARTITION)
            .where(TaskPositionRow.task_id.in_(sorted(self._tasks)))
        )
        return {(row[0], row[1], row[2]): Input(*row[1:]) for row in self._s.execute(query)}

    def _read_by_idle(self) -> set[tuple[str, int]]:
        """The sources of jobs that close on idle input: locked, so that what is idle stays so until we are done."""
        advances = [(commit["task"], commit.get("advance")) for commit in self._commits]
        idle = {task_id for task_id, advance in advances if advance is not None and advance["reason"] == "idle"}
        jobs = {task.job_id for task_id, task in self._tasks.items() if task_id in idle}
        return idle_and_flush.source_partitions(self._s, jobs) if jobs else set()

    def _judge(self, commit: TaskCommit) -> Verdict:
        task = self._tasks.get(commit["task"])
        if task is not None and task.last_commit_id == commit["commit_id"] and task.last_commit_result is not None:
            return cast(Verdict, task.last_commit_result)
        reason = "unknown_task" if task is None else self._objection(task, commit)
        if task is None or reason is not None:
            return _verdict(commit, "refused", reason, None if task is None else task.version, [])
        return self._accept(task, commit)

    def _objection(self, task: TaskRow, commit: TaskCommit) -> str | None:
        """Why a commit can not be accepted; None when it can."""
        if task.slot_id != self._slot_id or task.epoch != commit["epoch"]:
            return "stale_epoch"
        if task.version != commit["version"]:
            return "stale_version"
        for moved in commit["positions"]:
            at = self._inputs.get((task.id, moved["stream_id"], moved["partition"]))
            if at is None or at.position != moved["from"] or not at.position <= moved["to"] <= at.end:
                return "wrong_position"
        return self._objection_to_advance(task, commit) or self._objection_to_segment(commit["segment"])

    def _objection_to_advance(self, task: TaskRow, commit: TaskCommit) -> str | None:
        """A batch moves by records or by hand, never both; and what allowed the latter must still be so."""
        advance = commit.get("advance")
        if advance is None:
            return None
        if commit["positions"]:
            return "records_and_advance"
        if advance["reason"] == "idle":
            return None if idle_and_flush.is_idle(self._s, self._s.get_one(JobRow, task.job_id)) else "not_idle"
        inputs = [at for (task_id, *_), at in self._inputs.items() if task_id == task.id]
        return None if idle_and_flush.is_flush_due(task.flush_at, inputs) else "not_to_flush"

    def _objection_to_segment(self, segment: SegmentToPublish | None) -> str | None:
        if segment is None:
            return None
        if self._segments.get(segment["id"]) != PENDING:
            return "segment_not_pending"
        chunks = _metas(segment)
        if any(chunk.records < 1 for chunk in chunks):
            return "empty_chunk"
        return None if self._log.missing(chunks) is None else "unknown_partition"

    def _accept(self, task: TaskRow, commit: TaskCommit) -> Verdict:
        segment, published = commit["segment"], []
        if segment is not None:
            published = self._log.append(segment["id"], segment["bytes"], _metas(segment))
            self._segments[segment["id"]] = PUBLISHED
        for moved in commit["positions"]:
            self._move(task, moved)
            task.is_closed = False
        if (advance := commit.get("advance")) is not None:
            idle_and_flush.note(task, advance, self._at_ms)
        task.version += 1
        verdict = _verdict(commit, "accepted", None, task.version, [at._asdict() for at in published])
        task.last_commit_id, task.last_commit_result = commit["commit_id"], dict(verdict)
        task.counters = measures.after(task.counters, commit.get("counters") or {})
        task.applied = {**task.applied, **(commit.get("applied") or {})}
        task.stream_time = max(task.stream_time, commit.get("stream_time", -1))
        task.updated_ms = self._at_ms
        wake(self._s, progress_topic(task.job_id))
        return verdict

    def _move(self, task: TaskRow, moved: Move) -> None:
        self._inputs[task.id, moved["stream_id"], moved["partition"]].position = moved["to"]
        self._s.execute(
            update(TaskPositionRow)
            .where(
                TaskPositionRow.task_id == task.id,
                TaskPositionRow.stream_id == moved["stream_id"],
                TaskPositionRow.partition == moved["partition"],
            )
            .values(position=moved["to"])
            .execution_options(synchronize_session=False)
        )


def _metas(segment: SegmentToPublish) -> list[ChunkMeta]:
    return [ChunkMeta(**chunk) for chunk in segment["chunks"]]


def _verdict(
    commit: TaskCommit, status: str, reason: str | None, version: int | None, published: list[Json]
) -> Verdict:
    return {
        "task": commit["task"],
        "commit_id": commit["commit_id"],
        "status": status,
        "reason": reason,
        "version": version,
        "published": published,
    }
