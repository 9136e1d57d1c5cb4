"""Jobs: made with all that belongs to them, given another specification, deleted.

It knows which rows a compiled topology becomes. It refuses to know operators (a topology comes compiled) and states
(`job_states`).

Locks are taken in the order of the catalog: jobs, tasks, then partitions by id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service.catalog import task_moves
from service.catalog.engine import JOBS, job_topic, now_ms, progress_topic, wake
from service.catalog.inputs import pack
from service.catalog.job_states import (
    MAY_DELETE,
    STARTING,
    STOP_FIRST,
    lock_job,
    lock_tasks,
    note_transition,
)
from service.catalog.job_versions import note_version
from service.catalog.jobs import streams_of
from service.catalog.start_positions import FirstRecords, start_of, start_offset
from service.catalog.streams import (
    create_stream,
    find_stream,
    get_stream,
    lock_partitions_of,
    partitions_of,
    remove_streams,
    widen_stream,
)
from service.catalog.tables import (
    JobRow,
    JobStreamRow,
    JobTransitionRow,
    JobVersionRow,
    Json,
    RebalanceRow,
    ReplicaRow,
    ShareRow,
    SkipRow,
    SlotRow,
    StoreRow,
    StreamRow,
    TaskInputRow,
    TaskRow,
    new_id,
)
from service.streams.errors import (
    IllegalTransition,
    InternalStream,
    InvalidSpec,
    JobExists,
    Problem,
    StreamExists,
    StreamInUse,
)
from service.streams.inputs import InputPosition
from service.streams.topology.graph import SubTopology, Topology
from service.streams.topology.spec import JobSpec
from service.streams.topology.starts import StartOffsets

UNREADABLE = {
    "changelog": "changelog: its entries are no records",
    "repartition": "repartition stream: its records go as soon as the tasks of its own job have read them",
}  # kinds of streams that are no source


def create_job(
    s: Session, spec: JobSpec, topology: Topology, *, who: str = "", records: FirstRecords | None = None
) -> tuple[JobRow, bool]:
    """Make a job with its sinks, stores, changelogs, tasks and positions; False: an equal one was there.

    `records`: the first ones of a start at a timestamp, which is otherwise as fine as a chunk (see `start_of`). Raises
    what `find_equal` does, and UnknownStream.
    """
    known = find_equal(s, spec, topology)
    if known is not None:
        return known, False
    job = JobRow(name=spec.name, state=STARTING, reason="created", **specified(spec, topology))
    s.add(job)
    s.flush()
    note_transition(s, job, None, STARTING, "created", who)
    note_version(s, job, "create", who=who, reason="created")
    keep_dropped(s, job, topology)
    for sub_topology in topology.sub_topologies:
        _add_sub_topology(s, job, spec, sub_topology, records)
    wake(s, JOBS)
    return job, True


def find_equal(s: Session, spec: JobSpec, topology: Topology) -> JobRow | None:
    """The job that is there and equal to this one; None: it can be made.

    Raises, each with its pointer, JobExists, InternalStream (a sink), StreamExists (in the place of an internal
    stream), InvalidSpec (where it starts).
    """
    known = s.scalars(select(JobRow).where(JobRow.name == spec.name)).one_or_none()
    if known is not None:
        if not has_spec(known, spec):
            raise JobExists(spec.name).at("/name")
        return known
    require_free(s, spec, topology)
    if isinstance(spec.start, StartOffsets):
        for source in spec.sources:
            for partition in partitions_of(s, get_stream(s, source).id):
                start_offset(spec.start, source, partition)
    return None


def has_spec(job: JobRow, spec: JobSpec) -> bool:
    """Whether a job has this specification. What it was stored as may know less fields: those have their defaults."""
    try:
        return job.spec == spec.to_json() or JobSpec.parse(job.spec).to_json() == spec.to_json()
    except InvalidSpec:  # an operator of it is not installed any more
        return False


def require_free(s: Session, spec: JobSpec, topology: Topology) -> None:
    """Raises, each with its pointer, InternalStream (a sink), StreamExists (in the place of an internal stream)."""
    require_user_sinks(s, spec)
    for name in topology.internal_streams():
        if find_stream(s, name) is not None:
            way_out = "the job would keep its own there; delete it, or name the job otherwise"
            raise StreamExists(name, way_out).at("/name")


def require_user_sinks(s: Session, spec: JobSpec) -> None:
    """Raises InternalStream, with its pointer, where a sink is kept by some job for itself."""
    for i, sink in enumerate(spec.sinks):
        there = find_stream(s, sink.stream)
        if there is not None and there.kind != "user":
            raise InternalStream(sink.stream).at("/sink" if isinstance(spec.sink, str) else f"/sink/{i}/stream")


def set_spec(
    s: Session,
    job: JobRow,
    spec: JobSpec,
    topology: Topology,
    *,
    reason: str = "",
    who: str = "",
    details: Json | None = None,
) -> None:
    """Give a locked job another specification, for the same sinks, stores and tasks; `details`: what was asked for.

    Raises StreamExists in the place of the stream of dropped records.
    """
    if has_spec(job, spec):
        return
    columns = specified(spec, topology, has_several=job.max_repartition_bytes is not None)
    for column, value in columns.items():
        setattr(job, column, value)
    keep_dropped(s, job, topology)
    job.etag += 1
    job.spec_version += 1
    note_version(s, job, "patch", who=who, reason=reason or "changed", details=details and {"change": details})
    note_transition(s, job, job.state, job.state, reason or "changed", who, kind="spec", details=details)
    wake(s, JOBS, job_topic(job.id), progress_topic(job.id))


def delete_job(s: Session, name: str) -> None:
    """Delete a stopped job, its stores and internal streams; sinks stay. Raises UnknownJob, IllegalTransition."""
    job = lock_job(s, name=name)
    if job.state not in MAY_DELETE:
        raise IllegalTransition(job.state, "be deleted", STOP_FIRST)
    tasks = [task.id for task in lock_tasks(s, job.id)]
    internal = [stream.id for stream in streams_of(s, job.id, "internal")]
    _require_unread(s, job, internal)
    s.execute(delete(TaskInputRow).where(TaskInputRow.task_id.in_(tasks)))
    s.execute(delete(ReplicaRow).where(ReplicaRow.task_id.in_(tasks)))
    task_moves.forget(s, tasks)
    for table in (TaskRow, StoreRow, SkipRow, JobStreamRow, JobTransitionRow, JobVersionRow, RebalanceRow, SlotRow):
        s.execute(delete(table).where(table.job_id == job.id))
    s.execute(delete(ShareRow).where(ShareRow.job_id == job.id))
    remove_streams(s, internal)
    s.delete(job)
    wake(s, JOBS, job_topic(job.id), progress_topic(job.id))


def _require_unread(s: Session, job: JobRow, stream_ids: Sequence[str]) -> None:
    """Raises StreamInUse where another job reads one of these: dropped records may be a source."""
    others = (
        select(StreamRow.name, JobRow.name)
        .join(JobStreamRow, JobStreamRow.stream_id == StreamRow.id)
        .join(JobRow, JobRow.id == JobStreamRow.job_id)
        .where(StreamRow.id.in_(stream_ids), JobRow.id != job.id)
    )
    read = sorted((stream, reader) for stream, reader in s.execute(others))
    if read:
        raise StreamInUse(read[0][0], [reader for stream, reader in read if stream == read[0][0]])


def specified(spec: JobSpec, topology: Topology, *, has_several: bool = False) -> Json:
    """The columns of a job that its specification gives; `has_several`: its tasks have more than one input, and be it
    one that is removed.
    """
    body = spec.to_json()
    has_several = has_several or any(len(each.sources) > 1 or each.repartitions for each in topology.sub_topologies)
    return {
        "spec": body,
        "spec_sha256": _digest(body),
        "topology": topology.to_json(),
        "parallelism": spec.parallelism,
        "max_batch_records": spec.max_batch_records,
        "idle_close_after_ms": spec.idle_close_after_ms,
        "max_repartition_bytes": spec.max_repartition_bytes if has_several else None,
        "max_task_idle_ms": spec.max_task_idle_ms if has_several else None,
    }


def _digest(body: Json) -> str:
    """Equal bodies have equal digests, in whatever order their fields were written."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _add_sub_topology(
    s: Session, job: JobRow, spec: JobSpec, sub_topology: SubTopology, records: FirstRecords | None
) -> None:
    sources = [get_stream(s, name) for name in sub_topology.sources]
    users = [source for source in sources if source.kind != "repartition"]
    _require_partitions(sub_topology, users)
    relate(s, job, users, "source")
    relate(s, job, [sink_stream(s, sink.stream, sub_topology.partitions) for sink in sub_topology.sinks], "sink")
    for repartition in sub_topology.repartitions:
        stream = create_stream(
            s, repartition.stream, partitions=sub_topology.partitions, kind="repartition", job_id=job.id
        )
        relate(s, job, [stream], "internal", sub_topology.id)
    _add_stores(s, job, sub_topology)
    add_tasks(s, job, spec, sub_topology, sources, records)


def _require_partitions(sub_topology: SubTopology, users: Sequence[StreamRow]) -> None:
    """Raises InvalidSpec where sources have other partitions than those that the topology was compiled for."""
    most = max((source.partitions for source in users), default=0)
    for source in users:
        if (source.partitions if sub_topology.stores() else most) != sub_topology.partitions:
            raise InvalidSpec([Problem("/source", f"{source.name!r} has {source.partitions} partitions by now")])


def keep_dropped(s: Session, job: JobRow, topology: Topology) -> None:
    """Make the stream of dropped records where it is wanted, with a partition for each task of the largest
    sub-topology; it stays when that is no longer so. Raises StreamExists, StreamInUse (it needs more partitions than a
    job that reads it knows).
    """
    names = {each.dropped for each in topology.sub_topologies if each.dropped is not None}
    partitions = max(each.partitions for each in topology.sub_topologies)
    for name in names:
        found = find_stream(s, name)
        if found is None:
            kept = create_stream(s, name, partitions=partitions, kind="dropped", job_id=job.id)
            relate(s, job, [kept], "internal")
        elif found.job_id != job.id:
            raise StreamExists(name, "the job would keep dropped records there").at("/keep_dropped")
        elif found.partitions < partitions:
            _require_unread(s, job, [found.id])
            widen_stream(s, found, partitions)


def sink_stream(s: Session, name: str, partitions: int) -> StreamRow:
    stream = find_stream(s, name) or create_stream(s, name, partitions=partitions)
    if stream.kind != "user":
        raise InternalStream(name)
    return stream


def relate(s: Session, job: JobRow, streams: Iterable[StreamRow], role: str, sub_topology: int | None = None) -> None:
    """Note what a job does with streams, once; `sub_topology`: of a repartition stream, whose tasks write it."""
    for stream in streams:
        s.merge(JobStreamRow(job_id=job.id, stream_id=stream.id, role=role, sub_topology=sub_topology))
    s.flush()


def _add_stores(s: Session, job: JobRow, sub_topology: SubTopology) -> None:
    for store in sub_topology.stores():
        changelog = create_stream(
            s, store.changelog, partitions=sub_topology.partitions, kind="changelog", job_id=job.id
        )
        relate(s, job, [changelog], "internal")
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


def add_tasks(
    s: Session,
    job: JobRow,
    spec: JobSpec,
    sub_topology: SubTopology,
    sources: list[StreamRow],
    records: FirstRecords | None = None,
) -> list[TaskRow]:
    """Make a task a partition; its inputs are numbered in the order of the sources, those of one by partition. The
    partitions of users are locked: retention can not pass the positions meanwhile.
    """
    users = [source.id for source in sources if source.kind != "repartition"]
    locked = {(at.stream_id, at.partition): at for at in lock_partitions_of(s, users)}
    at_ms = now_ms(s)
    ranges: list[Json] = []
    tasks: list[TaskRow] = []
    begun: list[task_moves.Begun] = []
    for p in range(sub_topology.partitions):
        task = TaskRow(id=new_id(), job_id=job.id, name=f"{sub_topology.id}_{p}", updated_ms=at_ms)
        task.sub_topology, task.partition = sub_topology.id, p
        positions: list[InputPosition] = []
        for source in sources:
            is_own = source.kind == "repartition"
            if not is_own and p >= source.partitions:
                continue
            first, count, sub_log = (0, source.partitions, p) if is_own else (p, 1, None)
            read = {"partition": first, "partitions": count, "sub_log": sub_log}
            ranges.append({"task_id": task.id, "number": len(positions), "stream_id": source.id, **read})
            if is_own:
                positions += [InputPosition(0)] * source.partitions
            else:
                offset = start_of(s, spec.start, source.name, locked[source.id, p], records)
                positions.append(InputPosition(offset))
        task.positions = pack(positions)
        tasks.append(task)
        is_behind_repartition = any(source.kind == "repartition" for source in sources)
        begun.append(task_moves.Begun(task, [at.offset for at in positions], is_behind_repartition))
    s.add_all(tasks)
    s.flush()
    s.execute(insert(TaskInputRow), ranges)
    task_moves.note_begin(s, begun, job.spec_version)
    return tasks
