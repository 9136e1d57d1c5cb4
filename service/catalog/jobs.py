"""Jobs as people look at them: one, all of them, their positions, tasks, counters, history, streams and stores.

It knows what `caught up` means. It refuses to change anything: `job_creation` makes and deletes, `job_states` moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from service.catalog.inputs import TaskInput, inputs_of_job, lag_of
from service.catalog.replicas import BACKLOG, HAS_OWNER, IS_ACTIVE, IS_CHANGELOG_OF, IS_STORE_OF, NOT_SHOWN
from service.catalog.tables import (
    JobRow,
    JobStreamRow,
    JobTransitionRow,
    Json,
    PartitionRow,
    ReplicaRow,
    SlotRow,
    StoreRow,
    StreamRow,
    TaskInputRow,
    TaskRow,
)
from service.streams import measures
from service.streams.errors import UnknownJob

READS_USER = exists().where(TaskInputRow.task_id == TaskRow.id, TaskInputRow.sub_log.is_(None))


class SourcePosition(NamedTuple):
    """A job's position in one partition of a source or of a repartition stream, by the stream's name."""

    stream: str
    partition: int
    position: int
    end: int
    lag: int


class JobMarks(NamedTuple):
    """Whether a flush or a replay is under way in a job, its highest stream time, and its stores by name."""

    is_flushing: bool
    is_replaying: bool
    stream_time: int | None
    stores: list[str]


def get_job(s: Session, name: str) -> JobRow:
    """The job of this name. Raises UnknownJob."""
    job = s.scalars(select(JobRow).where(JobRow.name == name)).one_or_none()
    if job is None:
        raise UnknownJob(name)
    return job


def list_jobs(s: Session, *, limit: int = 100, after: str | None = None, state: str | None = None) -> list[JobRow]:
    """Jobs in the order of their names, beyond `after`; in one state, or in any."""
    query = select(JobRow).order_by(JobRow.name).limit(limit)
    if after is not None:
        query = query.where(JobRow.name > after)
    return list(s.scalars(query if state is None else query.where(JobRow.state == state)))


def positions(s: Session, job_id: str, inputs: Mapping[str, Sequence[TaskInput]] | None = None) -> list[SourcePosition]:
    """Positions and ends of all logs that a job reads, by stream and partition: of one with several targets that of the
    task which is least far. `inputs`: those of its tasks, where they are known.
    """
    known = inputs_of_job(s, job_id) if inputs is None else inputs
    names = {stream.id: stream.name for stream in streams_of(s, job_id)}
    lowest: dict[tuple[str, int], TaskInput] = {}
    read = (at for at in chain.from_iterable(known.values()) if not at.is_removed)
    for at in read:
        log = (at.stream_id, at.partition)
        lowest[log] = min(lowest.get(log, at), at, key=lambda each: each.position)
    return sorted(_source_position(names, at) for at in lowest.values())


def is_caught_up(
    s: Session,
    job_id: str,
    inputs: Mapping[str, Sequence[TaskInput]] | None = None,
    marks: JobMarks | None = None,
) -> bool:
    """Every input of every task is read to its end, with all results out; no flush and no replay is under way; every
    task has taken over the present version; every replica is at its changelog's end.
    """
    known = inputs_of_job(s, job_id) if inputs is None else inputs
    under_way = marks_of(s, [job_id])[job_id] if marks is None else marks
    is_busy = under_way.is_flushing or under_way.is_replaying
    if is_busy or any(lag_of(each).records for each in known.values()):
        return False
    changelogs = (
        select(ReplicaRow.state, TaskRow.has_backlog, ReplicaRow.applied, StoreRow.id, PartitionRow.end_offset)
        .add_columns(TaskRow.next_version)
        .select_from(TaskRow)
        .outerjoin(ReplicaRow, IS_ACTIVE)
        .join(StoreRow, IS_STORE_OF)
        .join(PartitionRow, IS_CHANGELOG_OF)
        .where(TaskRow.job_id == job_id, StoreRow.is_removed.is_(False))
    )
    return all(
        state != BACKLOG
        and not has_backlog
        and next_version is None
        and (end == 0 or (state not in NOT_SHOWN and (applied or {}).get(store_id, 0) >= end))
        for state, has_backlog, applied, store_id, end, next_version in s.execute(changelogs)
    )


def marks_of(s: Session, job_ids: Sequence[str]) -> dict[str, JobMarks]:
    """What is under way in each of these jobs, in as many queries as for one."""
    flushed = set(s.scalars(select(JobRow.id).where(JobRow.id.in_(job_ids), JobRow.flush.is_not(None))))
    stores: dict[str, list[str]] = {job_id: [] for job_id in job_ids}
    named = select(StoreRow.job_id, StoreRow.name).where(StoreRow.job_id.in_(job_ids), StoreRow.is_removed.is_(False))
    for job_id, name in s.execute(named.order_by(StoreRow.name)):
        stores[job_id].append(name)
    tasks = select(
        TaskRow.job_id, func.count(TaskRow.flush_at), func.count(TaskRow.replay), func.max(TaskRow.stream_time)
    ).where(TaskRow.job_id.in_(job_ids))
    found = {
        job_id: JobMarks(job_id in flushed or flushing > 0, replaying > 0, _known_time(time), stores[job_id])
        for job_id, flushing, replaying, time in s.execute(tasks.group_by(TaskRow.job_id))
    }
    return {job_id: found.get(job_id) or JobMarks(job_id in flushed, False, None, stores[job_id]) for job_id in job_ids}


def is_flushing(s: Session, job_id: str) -> bool:
    """Whether a flush is under way."""
    is_marked = exists().where(TaskRow.job_id == JobRow.id, TaskRow.flush_at.is_not(None))
    query = select(JobRow.id).where(JobRow.id == job_id, JobRow.flush.is_not(None) | is_marked)
    return s.execute(query).first() is not None


def is_replaying(s: Session, job_id: str) -> bool:
    """Whether dropped records are still to be taken in again."""
    query = select(TaskRow.id).where(TaskRow.job_id == job_id, TaskRow.replay.is_not(None)).limit(1)
    return s.execute(query).first() is not None


def task_rows(s: Session, job_id: str) -> Sequence[TaskRow]:
    """The tasks of a job, by sub-topology and partition."""
    query = select(TaskRow).where(TaskRow.job_id == job_id)
    return s.scalars(query.order_by(TaskRow.sub_topology, TaskRow.partition)).all()


def _known_time(time: int | None) -> int | None:
    return None if time is None or time < 0 else time


def task_summary(s: Session, job_id: str) -> Json:
    """What the tasks of a job are like, all together; `slowest`: of those in which something is open, and to which a
    record came, the first with the lowest stream time.
    """
    query = select(TaskRow.name, TaskRow.stream_time, TaskRow.is_closed, HAS_OWNER.label("has_owner"))
    rows = s.execute(query.where(TaskRow.job_id == job_id).order_by(TaskRow.sub_topology, TaskRow.partition)).all()
    is_open = [row for row in rows if not row.is_closed]
    slowest = min((row for row in is_open if row.stream_time >= 0), key=lambda row: row.stream_time, default=None)
    return {
        "count": len(rows),
        "without_owner": sum(not row.has_owner for row in rows),
        "open": len(is_open),
        "slowest": None if slowest is None else {"task": slowest.name, "stream_time": slowest.stream_time},
    }


def tasks_of(s: Session, job_id: str) -> list[Json]:
    """The tasks of a job in order, each with its owner, positions and counters."""
    names = {stream.id: stream.name for stream in streams_of(s, job_id)}
    inputs = inputs_of_job(s, job_id)
    rows = s.execute(
        select(TaskRow, ReplicaRow, SlotRow.instance_id)
        .outerjoin(ReplicaRow, IS_ACTIVE)
        .outerjoin(SlotRow, SlotRow.id == ReplicaRow.slot_id)
        .where(TaskRow.job_id == job_id)
        .order_by(TaskRow.sub_topology, TaskRow.partition)
    )
    return [
        {
            "task": task.name,
            "id": task.id,
            "epoch": task.epoch,
            "version": task.version,
            "slot": None if active is None else active.slot_id,
            "instance": instance_id,
            "moving_to": None if active is None else active.target_slot_id,
            "stream_time": task.stream_time,
            "is_closed": task.is_closed,
            "is_flushing": task.flush_at is not None,
            "replay": None if task.replay is None else {name: task.replay[name] for name in ("position", "end")},
            "advanced": task.advanced,
            "counters": task.counters,
            "applied": {} if active is None else active.applied,
            "updated_ms": task.updated_ms,
            "positions": [_source_position(names, at)._asdict() for at in inputs[task.id] if not at.is_removed],
        }
        for task, active, instance_id in rows
    ]


def _source_position(names: Mapping[str, str], at: TaskInput) -> SourcePosition:
    return SourcePosition(names[at.stream_id], at.partition, at.position, at.end, at.lag)


def metrics(s: Session, job_id: str) -> Json:
    """The counters of the job's tasks, as those of one; `records_in` of what users posted."""
    total: Json = {}
    for counters, reads_user in s.execute(select(TaskRow.counters, READS_USER).where(TaskRow.job_id == job_id)):
        total = measures.beside(total, of_job(counters, reads_user=reads_user))
    return total


def of_job(counters: Json, *, reads_user: bool) -> Json:
    """The counters of a task, as far as they count for its job: what it read of repartition streams does not."""
    found = {name: value for name, value in counters.items() if name not in ("records_in", "repartitioned_in")}
    if reads_user and "records_in" in counters:
        found["records_in"] = counters["records_in"] - counters.get("repartitioned_in", 0)
    return found


def transitions_of(
    s: Session, job_id: str, *, errors_only: bool = False, limit: int = 100, before: int | None = None
) -> list[JobTransitionRow]:
    """Changes of a job's state, latest first; `before` the row of this id."""
    query = (
        select(JobTransitionRow)
        .where(JobTransitionRow.job_id == job_id)
        .order_by(JobTransitionRow.id.desc())
        .limit(limit)
    )
    query = query if before is None else query.where(JobTransitionRow.id < before)
    return list(s.scalars(query.where(JobTransitionRow.error.is_not(None)) if errors_only else query))


def stores_of(s: Session, job_id: str) -> list[StoreRow]:
    """The stores of a job that its operators have, by name."""
    query = select(StoreRow).where(StoreRow.job_id == job_id, StoreRow.is_removed.is_(False))
    return list(s.scalars(query.order_by(StoreRow.name)))


def has_stream(s: Session, job_id: str, stream_id: str) -> bool:
    """Whether a job reads, writes or keeps the stream."""
    related = exists().where(JobStreamRow.job_id == job_id, JobStreamRow.stream_id == stream_id)
    return bool(s.scalar(select(related)))


def streams_of(s: Session, job_id: str, role: str | None = None) -> list[StreamRow]:
    """The streams that a job reads (`source`), writes (`sink`) and keeps (`internal`), each once."""
    ids = select(JobStreamRow.stream_id).where(JobStreamRow.job_id == job_id)
    ids = ids if role is None else ids.where(JobStreamRow.role == role)
    return list(s.scalars(select(StreamRow).where(StreamRow.id.in_(ids)).order_by(StreamRow.name)))
