"""Jobs as people look at them: one, all of them, their positions, tasks, counters, history, streams and stores.

It knows what `caught up` means. It refuses to change anything: `job_creation` makes and deletes, `job_states` moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from service.catalog.inputs import TaskInput, inputs_of_job, lags
from service.catalog.replicas import BACKLOG, IS_ACTIVE, IS_CHANGELOG_OF, IS_STORE_OF, NOT_SHOWN
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


def positions(s: Session, job_id: str) -> list[SourcePosition]:
    """Positions and ends of all logs that a job reads, by stream and partition: of one with several targets that of the
    task which is least far.
    """
    names = {stream.id: stream.name for stream in streams_of(s, job_id)}
    lowest: dict[tuple[str, int], TaskInput] = {}
    read = (at for at in chain.from_iterable(inputs_of_job(s, job_id).values()) if not at.is_removed)
    for at in read:
        log = (at.stream_id, at.partition)
        lowest[log] = min(lowest.get(log, at), at, key=lambda each: each.position)
    return sorted(_source_position(names, at) for at in lowest.values())


def is_caught_up(s: Session, job_id: str) -> bool:
    """Every input of every task is read to its end, with all results out; no flush and no replay is under way; every
    task has taken over the present version; every replica is at its changelog's end.
    """
    if any(lag.records for lag in lags(s, job_id).values()) or is_flushing(s, job_id) or is_replaying(s, job_id):
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


def stream_time(s: Session, job_id: str) -> int | None:
    """The highest stream time of the job's tasks; None before the first record."""
    time = s.scalars(select(func.max(TaskRow.stream_time)).where(TaskRow.job_id == job_id)).one()
    return None if time is None or time < 0 else time


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
