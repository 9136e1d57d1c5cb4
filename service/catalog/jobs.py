"""Jobs: made with all that belongs to them, moved from state to state, described, deleted.

It knows the states and the one table of transitions between them, where a job starts to read, and what `caught up`
means. It refuses to know operators (a topology comes compiled) and who should own a task (`service.coordinator`).

Locks are taken in the order of the catalog: jobs, tasks, then partitions by id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from sqlalchemy import Select, delete, func, insert, select
from sqlalchemy.orm import Session

from service.catalog.closing import ask_to_flush
from service.catalog.engine import JOBS, job_topic, now_ms, progress_topic, wake
from service.catalog.streams import (
    create_stream,
    find_stream,
    get_stream,
    lock_partitions_of,
    partitions_of,
    remove_streams,
)
from service.catalog.tables import (
    INPUT_PARTITION,
    ChunkRow,
    JobRow,
    JobStreamRow,
    JobTransitionRow,
    Json,
    PartitionRow,
    RebalanceRow,
    SkipRow,
    SlotRow,
    StoreRow,
    StreamRow,
    TaskPositionRow,
    TaskRow,
)
from service.streams import measures
from service.streams.errors import (
    IllegalTransition,
    InternalStream,
    InvalidSpec,
    JobExists,
    Problem,
    StreamExists,
    UnknownJob,
    UnknownPartition,
)
from service.streams.topology.graph import SubTopology, Topology
from service.streams.topology.spec import JobSpec, StartOffsets

STARTING, RUNNING, REBALANCING = "starting", "running", "rebalancing"
PAUSED, DRAINING, STOPPED, FAILED = "paused", "draining", "stopped", "failed"
WORKING = frozenset({STARTING, RUNNING, REBALANCING})  # work is handed out
STAFFED = WORKING | {PAUSED}  # slots are wanted

TRANSITIONS: dict[str, tuple[frozenset[str], str]] = {
    # what people ask for
    "pause": (WORKING, PAUSED),
    "resume": (frozenset({PAUSED}), STARTING),
    "stop": (STAFFED | {FAILED}, DRAINING),
    "restart": (frozenset({STOPPED, FAILED}), STARTING),
    # what happens
    "run": (frozenset({STARTING, REBALANCING}), RUNNING),
    "rebalance": (frozenset({RUNNING}), REBALANCING),
    "drain": (frozenset({DRAINING}), STOPPED),
    "fail": (STAFFED | {DRAINING}, FAILED),
}
MAY_DELETE = frozenset({STOPPED})
MAY_SKIP = frozenset({FAILED})
MAY_CHANGE = frozenset({STOPPED, FAILED})
_STOP_FIRST = "`:stop` it first, and wait until it is stopped"

Start = Mapping[tuple[str, int], int]


class Position(NamedTuple):
    """How far a job has read one partition of a source, by the stream's name."""

    stream: str
    partition: int
    position: int
    end: int
    lag: int


# ---------------------------------------------------------------- making one


def create_job(
    s: Session, spec: JobSpec, topology: Topology, *, who: str = "", start: Start | None = None
) -> tuple[JobRow, bool]:
    """Make a job with its sinks, stores, changelogs, tasks and positions; False: an equal one was there.

    `start` overrides where single partitions (stream name, partition) begin: a start at a timestamp is otherwise as
    fine as a chunk (see `chunk_at_timestamp`). Raises what `find_equal` does, and UnknownStream.
    """
    known = find_equal(s, spec, topology)
    if known is not None:
        return known, False
    job = JobRow(name=spec.name, state=STARTING, reason="created", **_specified(spec, topology))
    s.add(job)
    s.flush()
    _note(s, job, None, STARTING, "created", who)
    for sub_topology in topology.sub_topologies:
        _add_sub_topology(s, job, spec, sub_topology, start or {})
    wake(s, JOBS)
    return job, True


def find_equal(s: Session, spec: JobSpec, topology: Topology) -> JobRow | None:
    """The job that is there and equal to this one; None: it can be made.

    Raises, each with its pointer, JobExists, InternalStream (a sink), StreamExists (in the place of an internal
    stream), InvalidSpec (where it starts).
    """
    known = s.scalars(select(JobRow).where(JobRow.name == spec.name)).one_or_none()
    if known is not None:
        if known.spec_sha256 != _digest(spec.to_json()):
            raise JobExists(spec.name).at("/name")
        return known
    for i, sink in enumerate(spec.sinks):
        there = find_stream(s, sink.stream)
        if there is not None and there.kind != "user":
            raise InternalStream(sink.stream).at("/sink" if isinstance(spec.sink, str) else f"/sink/{i}/stream")
    for name in topology.internal_streams():
        if find_stream(s, name) is not None:
            way_out = "the job would keep its own there; delete it, or name the job otherwise"
            raise StreamExists(name, way_out).at("/name")
    if isinstance(spec.start, StartOffsets):
        for source in spec.sources:
            for partition in partitions_of(s, get_stream(s, source).id):
                _start_offset(spec.start.offsets, partition)
    return None


def chunk_at_timestamp(s: Session, stream_id: str, partition: int, timestamp: int) -> int | None:
    """The first offset of the first chunk that holds a record of `timestamp` or later; None when none does.

    Earlier records of that chunk lie before the wanted one: the catalog knows chunks, not records.
    """
    query = select(ChunkRow.first_offset).where(
        ChunkRow.stream_id == stream_id, ChunkRow.partition == partition, ChunkRow.max_timestamp >= timestamp
    )
    return s.scalars(query.order_by(ChunkRow.end_offset).limit(1)).one_or_none()


def _specified(spec: JobSpec, topology: Topology) -> Json:
    """The columns of a job that its specification gives."""
    body = spec.to_json()
    return {
        "spec": body,
        "spec_sha256": _digest(body),
        "topology": topology.to_json(),
        "parallelism": spec.parallelism,
        "max_batch_records": spec.max_batch_records,
        "idle_close_after_ms": spec.idle_close_after_ms,
    }


def _digest(body: Json) -> str:
    """Equal bodies have equal digests, in whatever order their fields were written."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _add_sub_topology(s: Session, job: JobRow, spec: JobSpec, sub_topology: SubTopology, start: Start) -> None:
    sources = [get_stream(s, name) for name in sub_topology.sources]
    for source in sources:
        if source.partitions != sub_topology.partitions:
            raise InvalidSpec([Problem("/source", f"{source.name!r} has {source.partitions} partitions by now")])
    _relate(s, job, sources, "source")
    _relate(s, job, [_sink(s, sink.stream, sub_topology.partitions) for sink in sub_topology.sinks], "sink")
    _add_stores(s, job, sub_topology)
    if sub_topology.dropped is not None:
        kept = create_stream(s, sub_topology.dropped, partitions=sub_topology.partitions, kind="dropped", job_id=job.id)
        _relate(s, job, [kept], "internal")
    at = now_ms(s)
    tasks = [
        TaskRow(job_id=job.id, name=f"{sub_topology.id}_{p}", sub_topology=sub_topology.id, partition=p, updated_ms=at)
        for p in range(sub_topology.partitions)
    ]
    s.add_all(tasks)
    s.flush()
    _add_positions(s, spec, tasks, sources, start)


def _sink(s: Session, name: str, partitions: int) -> StreamRow:
    stream = find_stream(s, name) or create_stream(s, name, partitions=partitions)
    if stream.kind != "user":
        raise InternalStream(name)
    return stream


def _relate(s: Session, job: JobRow, streams: Iterable[StreamRow], role: str) -> None:
    s.add_all(JobStreamRow(job_id=job.id, stream_id=stream.id, role=role) for stream in streams)
    s.flush()


def _add_stores(s: Session, job: JobRow, sub_topology: SubTopology) -> None:
    for store in sub_topology.stores():
        changelog = create_stream(
            s, store.changelog, partitions=sub_topology.partitions, kind="changelog", job_id=job.id
        )
        _relate(s, job, [changelog], "internal")
        s.add(
            StoreRow(
                name=store.name,
                job_id=job.id,
                operator=store.operator,
                type=store.type,
                kind=store.kind,
                sub_topology=sub_topology.id,
                changelog_stream_id=changelog.id,
                spec=asdict(store),
            )
        )
    s.flush()


def _add_positions(s: Session, spec: JobSpec, tasks: list[TaskRow], sources: list[StreamRow], start: Start) -> None:
    """One position per task and source. The partitions are locked: retention can not pass them meanwhile."""
    names = {source.id: source.name for source in sources}
    by_partition = {task.partition: task for task in tasks}
    rows = []
    for partition in lock_partitions_of(s, names):
        given = start.get((names[partition.stream_id], partition.partition))
        rows.append(
            {
                "task_id": by_partition[partition.partition].id,
                "stream_id": partition.stream_id,
                "partition": partition.partition,
                "position": _start_of(s, spec, partition) if given is None else given,
            }
        )
    s.execute(insert(TaskPositionRow), rows)


def _start_of(s: Session, spec: JobSpec, partition: PartitionRow) -> int:
    start: Any = spec.to_json()["start"]
    if start == "earliest":
        return partition.start_offset
    if start == "latest":
        return partition.end_offset
    if "offsets" in start:
        return _start_offset(start["offsets"], partition)
    found = chunk_at_timestamp(s, partition.stream_id, partition.partition, start["timestamp"])
    return partition.end_offset if found is None else found


def _start_offset(offsets: Mapping[str, int], partition: PartitionRow) -> int:
    """The offset that was asked for; the earliest one where a partition is not named."""
    offset = offsets.get(str(partition.partition), partition.start_offset)
    if not partition.start_offset <= offset <= partition.end_offset:
        have = f"the partition holds {partition.start_offset} to {partition.end_offset}"
        raise InvalidSpec([Problem(f"/start/offsets/{partition.partition}", f"{offset} is not there: {have}")])
    return offset


# ---------------------------------------------------------------- looking at them


def get_job(s: Session, name: str) -> JobRow:
    """The job of this name. Raises UnknownJob."""
    job = s.scalars(select(JobRow).where(JobRow.name == name)).one_or_none()
    if job is None:
        raise UnknownJob(name)
    return job


def list_jobs(s: Session, *, limit: int = 100, after: str | None = None) -> list[JobRow]:
    """Jobs in the order of their names, beyond `after`."""
    query = select(JobRow).order_by(JobRow.name).limit(limit)
    return list(s.scalars(query if after is None else query.where(JobRow.name > after)))


def positions(s: Session, job_id: str) -> list[Position]:
    """Positions and ends of every input of a job."""
    rows = s.execute(
        _inputs(job_id)
        .add_columns(StreamRow.name, TaskPositionRow.partition, TaskPositionRow.position, PartitionRow.end_offset)
        .join(StreamRow, StreamRow.id == TaskPositionRow.stream_id)
        .order_by(StreamRow.name, TaskPositionRow.partition)
    )
    return [Position(name, p, position, end, end - position) for _, name, p, position, end in rows]


def is_caught_up(s: Session, job_id: str) -> bool:
    """Every input is read to its end, no flush is under way, every replica has applied its changelog to its end."""
    is_behind = (TaskPositionRow.position < PartitionRow.end_offset) | TaskRow.flush_at.is_not(None)
    if s.execute(_inputs(job_id).where(is_behind).limit(1)).first() is not None:
        return False
    changelogs = (
        select(TaskRow.applied, StoreRow.id, PartitionRow.end_offset)
        .join(StoreRow, (StoreRow.job_id == TaskRow.job_id) & (StoreRow.sub_topology == TaskRow.sub_topology))
        .join(
            PartitionRow,
            (PartitionRow.stream_id == StoreRow.changelog_stream_id) & (PartitionRow.partition == TaskRow.partition),
        )
        .where(TaskRow.job_id == job_id)
    )
    return all(applied.get(store_id, 0) >= end for applied, store_id, end in s.execute(changelogs))


def _inputs(job_id: str) -> Select[str]:
    return (
        select(TaskRow.id)
        .join(TaskPositionRow, TaskPositionRow.task_id == TaskRow.id)
        .join(PartitionRow, INPUT_PARTITION)
        .where(TaskRow.job_id == job_id)
    )


def stream_time(s: Session, job_id: str) -> int | None:
    """The highest stream time of the job's tasks; None before the first record."""
    time = s.scalars(select(func.max(TaskRow.stream_time)).where(TaskRow.job_id == job_id)).one()
    return None if time is None or time < 0 else time


def tasks_of(s: Session, job_id: str) -> list[Json]:
    """The tasks of a job in order, each with its owner, positions and counters."""
    inputs: dict[str, list[Json]] = {}
    columns = (TaskPositionRow.position, PartitionRow.end_offset, StreamRow.name, TaskPositionRow.partition)
    query = _inputs(job_id).add_columns(*columns).join(StreamRow, StreamRow.id == TaskPositionRow.stream_id)
    for task_id, position, end, name, partition in s.execute(query):
        at = {"stream": name, "partition": partition, "position": position, "end": end, "lag": end - position}
        inputs.setdefault(task_id, []).append(at)
    rows = s.execute(
        select(TaskRow, SlotRow.instance_id)
        .outerjoin(SlotRow, SlotRow.id == TaskRow.slot_id)
        .where(TaskRow.job_id == job_id)
        .order_by(TaskRow.sub_topology, TaskRow.partition)
    )
    return [{**_describe(task, instance), "positions": inputs.get(task.id, [])} for task, instance in rows]


def _describe(task: TaskRow, instance_id: str | None) -> Json:
    return {
        "task": task.name,
        "id": task.id,
        "epoch": task.epoch,
        "version": task.version,
        "slot": task.slot_id,
        "instance": instance_id,
        "moving_to": task.target_slot_id,
        "stream_time": task.stream_time,
        "is_closed": task.is_closed,
        "is_flushing": task.flush_at is not None,
        "advanced": task.advanced,
        "counters": task.counters,
        "applied": task.applied,
        "updated_ms": task.updated_ms,
    }


def metrics(s: Session, job_id: str) -> Json:
    """The counters of the job's tasks, as those of one."""
    total: Json = {}
    for counters in s.scalars(select(TaskRow.counters).where(TaskRow.job_id == job_id)):
        total = measures.beside(total, counters)
    return total


def transitions_of(
    s: Session, job_id: str, *, errors_only: bool = False, limit: int = 100, before: int | None = None
) -> list[JobTransitionRow]:
    """What happened to a job, latest first; `before` the row of this id."""
    query = (
        select(JobTransitionRow)
        .where(JobTransitionRow.job_id == job_id)
        .order_by(JobTransitionRow.id.desc())
        .limit(limit)
    )
    query = query if before is None else query.where(JobTransitionRow.id < before)
    return list(s.scalars(query.where(JobTransitionRow.error.is_not(None)) if errors_only else query))


def stores_of(s: Session, job_id: str) -> list[StoreRow]:
    """The stores of a job, by name."""
    return list(s.scalars(select(StoreRow).where(StoreRow.job_id == job_id).order_by(StoreRow.name)))


def streams_of(s: Session, job_id: str, role: str | None = None) -> list[StreamRow]:
    """The streams that a job reads (`source`), writes (`sink`) and keeps (`internal`), each once."""
    ids = select(JobStreamRow.stream_id).where(JobStreamRow.job_id == job_id)
    ids = ids if role is None else ids.where(JobStreamRow.role == role)
    return list(s.scalars(select(StreamRow).where(StreamRow.id.in_(ids)).order_by(StreamRow.name)))


# ---------------------------------------------------------------- from state to state


def lock_job(s: Session, *, name: str | None = None, job_id: str | None = None) -> JobRow:
    """Lock one job by name or id. Raises UnknownJob."""
    which = JobRow.id == job_id if name is None else JobRow.name == name
    query = select(JobRow).where(which).with_for_update(key_share=True).execution_options(populate_existing=True)
    job = s.scalars(query).one_or_none()
    if job is None:
        raise UnknownJob(name or job_id or "")
    return job


def lock_tasks(s: Session, job_id: str) -> list[TaskRow]:
    """Lock the tasks of a job in the order of their ids."""
    query = select(TaskRow).where(TaskRow.job_id == job_id).order_by(TaskRow.id).with_for_update(key_share=True)
    return list(s.scalars(query.execution_options(populate_existing=True)))


def move(s: Session, job: JobRow, verb: str, *, reason: str = "", who: str = "", error: Json | None = None) -> None:
    """Take a locked job through one transition. Raises IllegalTransition."""
    allowed, state = TRANSITIONS[verb]
    if job.state not in allowed:
        raise IllegalTransition(job.state, verb)
    _note(s, job, job.state, state, reason or verb, who, error)
    job.state, job.reason = state, reason or verb
    job.etag += 1
    if verb in {"fail", "restart"}:
        job.error = error
    wake(s, JOBS, job_topic(job.id), progress_topic(job.id))


def settle(s: Session, job: JobRow) -> None:
    """Let a locked job's state follow from who owns its tasks: running, rebalancing, stopped."""
    if job.state == DRAINING and not _live_slots(s, job.id):
        move(s, job, "drain", reason="the last slot left")
    if job.state not in WORKING:
        return
    owners = s.execute(select(TaskRow.slot_id, TaskRow.target_slot_id).where(TaskRow.job_id == job.id)).all()
    is_owned = all(owner is not None for owner, _ in owners)
    is_moving = any(target is not None for _, target in owners)
    if job.state == STARTING and is_owned:
        move(s, job, "run", reason="every task has an owner")
    elif job.state == REBALANCING and is_owned and not is_moving:
        move(s, job, "run", reason="every task is where it should be")
    elif job.state == RUNNING and not (is_owned and not is_moving):
        move(s, job, "rebalance", reason="tasks move" if is_owned else "tasks lost their owner")


def fail_job(s: Session, job: JobRow, error: Json) -> None:
    """Fail a locked job for `error` (`code`, `detail`, …); one that has failed or stopped keeps its reason."""
    if job.state in TRANSITIONS["fail"][0]:
        move(s, job, "fail", reason=str(error.get("detail", error.get("code", ""))), error=error)


def _live_slots(s: Session, job_id: str) -> bool:
    live = select(SlotRow.id).where(SlotRow.job_id == job_id, SlotRow.state == "live").limit(1)
    return s.scalars(live).one_or_none() is not None


def set_spec(s: Session, job: JobRow, spec: JobSpec, topology: Topology, *, reason: str = "", who: str = "") -> None:
    """Give a locked job another specification, for the same streams, stores and tasks. Raises IllegalTransition."""
    require_changeable(job)
    columns = _specified(spec, topology)
    if columns["spec_sha256"] == job.spec_sha256:
        return
    for column, value in columns.items():
        setattr(job, column, value)
    job.etag += 1
    _note(s, job, job.state, job.state, reason or "changed", who)
    wake(s, JOBS, job_topic(job.id), progress_topic(job.id))


def require_changeable(job: JobRow) -> None:
    """Nobody runs by its specification. Raises IllegalTransition."""
    if job.state not in MAY_CHANGE:
        raise IllegalTransition(job.state, "be changed", _STOP_FIRST)


def flush_job(s: Session, name: str, *, who: str = "") -> JobRow:
    """Have a job close all that is open once it has read what is there now. Raises UnknownJob, IllegalTransition."""
    job = lock_job(s, name=name)
    if job.state not in WORKING:
        raise IllegalTransition(job.state, "flush")
    ask_to_flush(s, job.id, lock_tasks(s, job.id))
    _note(s, job, job.state, job.state, "flush", who)
    return job


def is_flushing(s: Session, job_id: str) -> bool:
    """Whether a flush is under way."""
    query = select(TaskRow.id).where(TaskRow.job_id == job_id, TaskRow.flush_at.is_not(None)).limit(1)
    return s.execute(query).first() is not None


def _note(
    s: Session, job: JobRow, from_state: str | None, to_state: str, reason: str, who: str, error: Json | None = None
) -> None:
    s.add(
        JobTransitionRow(
            job_id=job.id,
            at_ms=now_ms(s),
            from_state=from_state,
            to_state=to_state,
            reason=reason,
            who=who,
            error=error,
        )
    )


# ---------------------------------------------------------------- skipping and deleting


def skip_record(s: Session, name: str, *, partition: int, offset: int, stream: str | None = None) -> None:
    """Let a failed job pass over one record of a source that it has not read yet; asking twice changes nothing.

    Raises UnknownJob, IllegalTransition (not failed), UnknownPartition, InvalidSpec (read already).
    """
    job = lock_job(s, name=name)
    if job.state not in MAY_SKIP:
        raise IllegalTransition(job.state, "skip a record", "only a failed one can")
    sources = {source.name: source.id for source in streams_of(s, job.id, "source")}
    at = next((p for p in positions(s, job.id) if p.partition == partition and stream in {None, p.stream}), None)
    if at is None:
        raise UnknownPartition(f"{stream or '/'.join(sources)}/{partition}")
    if not at.position <= offset < at.end:
        detail = f"the job stands at {at.position} and the partition ends at {at.end}"
        raise InvalidSpec([Problem("/offset", f"{offset} can not be skipped: {detail}")])
    key = {"job_id": job.id, "stream_id": sources[at.stream], "partition": partition, "offset": offset}
    if s.get(SkipRow, key) is None:
        s.add(SkipRow(**key))


def delete_job(s: Session, name: str) -> None:
    """Delete a stopped job, its stores and internal streams; sinks stay. Raises UnknownJob, IllegalTransition."""
    job = lock_job(s, name=name)
    if job.state not in MAY_DELETE:
        raise IllegalTransition(job.state, "be deleted", _STOP_FIRST)
    tasks = [task.id for task in lock_tasks(s, job.id)]
    internal = [stream.id for stream in streams_of(s, job.id, "internal")]
    s.execute(delete(TaskPositionRow).where(TaskPositionRow.task_id.in_(tasks)))
    for table in (TaskRow, StoreRow, SkipRow, JobStreamRow, JobTransitionRow, RebalanceRow, SlotRow):
        s.execute(delete(table).where(table.job_id == job.id))
    remove_streams(s, internal)
    s.delete(job)
    wake(s, JOBS, job_topic(job.id), progress_topic(job.id))
