"""The time of a job: how far each task and each of its inputs is, how long these are silent, and when silence closes
what is open; all from one snapshot.

It knows rows, and which input of a task the others wait for. It refuses to know what is open in a store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.engine import now_ms
from service.catalog.inputs import TaskInput, inputs_of_job
from service.catalog.jobs import get_job, is_flushing, streams_of
from service.catalog.progress import JobProgress, Patience
from service.catalog.replicas import IS_ACTIVE
from service.catalog.tables import ChunkRow, InstanceRow, Json, PartitionRow, ReplicaRow, SlotRow, TaskRow

PUBLISHED_WITHIN_MS: Final = 2**52  # a partition that is silent for longer never had a record
InputRole = Literal["reading", "waited_for", "silent"]


@dataclass(frozen=True, slots=True)
class InputTime:
    """An input of a task. `read_to`: the highest time of what was read of it; `last_timestamp`: of what came last;
    `silent_ms`: for how long nothing has come; None: nothing ever did. `role`: `waited_for` by the others, whose
    records wait until it says how far it is; `silent`: nobody waits for it.
    """

    stream_id: str
    stream: str
    is_internal: bool
    partition: int
    position: int
    end: int
    read_to: int | None
    last_timestamp: int | None
    silent_ms: int | None
    role: InputRole


@dataclass(frozen=True, slots=True)
class TaskTime:
    """A task. `advanced`: the last time that its stream time was moved without a record."""

    name: str
    sub_topology: int
    partition: int
    instance: str | None
    stream_time: int | None
    is_closed: bool
    is_flushing: bool
    advanced: Json | None
    inputs: Sequence[InputTime]


@dataclass(frozen=True, slots=True)
class IdleClose:
    """Closing by silence: after so long; in how long, if nothing comes, None while something is unread or all is
    closed; the partition that has spoken last.
    """

    after_ms: int
    due_in_ms: int | None
    unread: int
    last: InputTime | None


@dataclass(frozen=True, slots=True)
class JobTime:
    """A job as of `now_ms`, by the catalog's clock. `sources`: ids of users' streams by name."""

    name: str
    state: str
    topology: Json
    now_ms: int
    is_flushing: bool
    idle_close: IdleClose | None
    sources: Mapping[str, str]
    tasks: Sequence[TaskTime]


def job_time(s: Session, name: str) -> JobTime:
    """The time of a job. Raises UnknownJob."""
    job = get_job(s, name)
    streams = {stream.id: stream for stream in streams_of(s, job.id)}
    inputs = inputs_of_job(s, job.id)
    patience = Patience.of(job)
    if patience is not None:
        progress = JobProgress(s, job.id, patience)
        for task_id, own in inputs.items():
            progress.note(task_id, own)
    sources = {at.stream_id for own in inputs.values() for at in own if at.sub_log is None and not at.is_removed}
    last = _last_timestamps(s, sources)
    rows = s.execute(
        select(TaskRow, InstanceRow.name)
        .outerjoin(ReplicaRow, IS_ACTIVE)
        .outerjoin(SlotRow, SlotRow.id == ReplicaRow.slot_id)
        .outerjoin(InstanceRow, InstanceRow.id == SlotRow.instance_id)
        .where(TaskRow.job_id == job.id)
        .order_by(TaskRow.sub_topology, TaskRow.partition)
    )
    tasks = [
        TaskTime(
            name=task.name,
            sub_topology=task.sub_topology,
            partition=task.partition,
            instance=instance,
            stream_time=_moment(task.stream_time),
            is_closed=task.is_closed,
            is_flushing=task.flush_at is not None,
            advanced=task.advanced,
            inputs=[
                InputTime(
                    stream_id=at.stream_id,
                    stream=streams[at.stream_id].name,
                    is_internal=streams[at.stream_id].kind != "user",
                    partition=at.partition,
                    position=at.position,
                    end=at.end,
                    read_to=_moment(at.frontier),
                    last_timestamp=last.get((at.stream_id, at.partition)),
                    silent_ms=at.silent_ms if at.silent_ms < PUBLISHED_WITHIN_MS and at.end else None,
                    role=role,
                )
                for at, role in _with_roles([at for at in inputs[task.id] if not at.is_removed])
            ],
        )
        for task, instance in rows
    ]
    return JobTime(
        name=job.name,
        state=job.state,
        topology=job.topology,
        now_ms=now_ms(s),
        is_flushing=is_flushing(s, job.id),
        idle_close=_idle_close(job.idle_close_after_ms, tasks),
        sources={streams[at].name: at for at in sources},
        tasks=tasks,
    )


def _with_roles(inputs: Sequence[TaskInput]) -> list[tuple[TaskInput, InputRole]]:
    """Who waits for whom, where a task reads several: what is read to its end holds the others back until it is silent
    for long enough, if it is not as far as they.
    """
    unread = [at.frontier for at in inputs if at.lag > 0]
    roles: list[tuple[TaskInput, InputRole]] = []
    for at in inputs:
        if at.lag > 0:
            roles.append((at, "reading"))
        elif unread and len(inputs) > 1 and not at.is_caught_up:
            roles.append((at, "waited_for"))
        else:
            roles.append((at, "silent"))
    return roles


def _idle_close(after_ms: int | None, tasks: Sequence[TaskTime]) -> IdleClose | None:
    """Of users' input, all of it together: one partition that speaks keeps the whole job from closing."""
    if after_ms is None:
        return None
    own = {(at.stream_id, at.partition): at for task in tasks for at in task.inputs if not at.is_internal}
    unread = sum(max(at.end - at.position, 0) for at in own.values())
    last = min((at for at in own.values() if at.silent_ms is not None), key=_silence, default=None)
    is_closed = all(task.is_closed for task in tasks)
    due_in_ms = None if unread or is_closed or last is None else max(after_ms - _silence(last), 0)
    return IdleClose(after_ms, due_in_ms, unread, last)


def _silence(at: InputTime) -> int:
    return at.silent_ms or 0


def _last_timestamps(s: Session, stream_ids: Collection[str]) -> dict[tuple[str, int], int]:
    """(stream id, partition) → the highest time in what was published last, of partitions that have something."""
    is_last = (
        (PartitionRow.stream_id == ChunkRow.stream_id)
        & (PartitionRow.partition == ChunkRow.partition)
        & (PartitionRow.end_offset == ChunkRow.end_offset)
    )
    query = select(ChunkRow.stream_id, ChunkRow.partition, ChunkRow.max_timestamp).join(PartitionRow, is_last)
    rows = s.execute(query.where(PartitionRow.stream_id.in_(sorted(stream_ids))))
    return {(row.stream_id, row.partition): row.max_timestamp for row in rows}


def _moment(time: int) -> int | None:
    return time if time >= 0 else None
