"""Copies of jobs: a second job with the specification, positions and stores of a first one, which goes on as it is.

It knows which rows of a job its copy has too: positions, and the chunks of changelogs and repartition streams. Chunks
name segments, which both jobs share from then on; the collector frees a segment once nobody's chunk names it. Sinks,
counters, dropped records and history are the copy's own. It refuses to know who runs either.

Locks: the first job, its tasks, then partitions by id. So positions and chunks are of one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from sqlalchemy import insert, literal, select, update
from sqlalchemy.orm import Session

from service.catalog.engine import JOBS, now_ms, wake
from service.catalog.job_creation import keep_dropped, relate, require_free, sink_stream, specified
from service.catalog.job_states import PAUSED, STARTING, lock_tasks, note_transition
from service.catalog.job_versions import note_version
from service.catalog.jobs import stores_of, streams_of
from service.catalog.streams import create_stream, lock_partitions_of
from service.catalog.tables import (
    ChunkRow,
    JobRow,
    JobStreamRow,
    PartitionRow,
    SkipRow,
    StoreRow,
    StreamRow,
    TaskInputRow,
    TaskRow,
    new_id,
)
from service.streams.errors import IllegalTransition, IncompatibleChange, JobExists, Problem
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec

_CHUNK: Final = [column.key for column in ChunkRow.__table__.columns if column.key != "stream_id"]
_PARTITION: Final = ("start_offset", "end_offset", "bytes", "records", "published_ms", "appended_bytes")


def copy_job(
    s: Session, first: JobRow, spec: JobSpec, topology: Topology, *, is_paused: bool = False, who: str = ""
) -> JobRow:
    """Make a job of another name and other sinks that goes on where this locked one stands.

    `spec`, `topology`: those of the first, but for names and sinks. Raises JobExists, IllegalTransition (a task has
    still to take a change over), IncompatibleChange (a sink of the first), InternalStream, StreamExists.
    """
    tasks = lock_tasks(s, first.id)
    if any(task.next_version is not None for task in tasks):
        way_out = "its tasks have still to take its last change over, which they do once it runs"
        raise IllegalTransition(first.state, "be copied", way_out)
    if s.scalars(select(JobRow.id).where(JobRow.name == spec.name)).first() is not None:
        raise JobExists(spec.name).at("/name")
    require_free(s, spec, topology)
    _require_other_sinks(s, first, spec)
    state = PAUSED if is_paused else STARTING
    reason = f"copied from {first.name!r}"
    columns = specified(spec, topology, has_several=first.max_repartition_bytes is not None)
    job = JobRow(name=spec.name, state=state, reason=reason, **columns)
    s.add(job)
    s.flush()
    details = {"job": first.name, "version": first.spec_version}
    note_transition(s, job, None, state, reason, who, kind="copy", details=details)
    note_version(s, job, "copy", who=who, reason=reason, details=details)
    _Copying(s, first, job, topology).copy(tasks)
    wake(s, JOBS)
    return job


def _require_other_sinks(s: Session, first: JobRow, spec: JobSpec) -> None:
    """Raises IncompatibleChange where both jobs would write a stream: each result would lie there twice."""
    written = {stream.name for stream in streams_of(s, first.id, "sink")}
    shared = [(i, sink.stream) for i, sink in enumerate(spec.sinks) if sink.stream in written]
    if shared:
        is_one = isinstance(spec.sink, str)
        raise IncompatibleChange(
            [
                Problem(
                    "/sink" if is_one else f"/sink/{i}/stream",
                    f"{first.name!r} writes {stream!r}, so each result would lie there twice: name another, or null",
                )
                for i, stream in shared
            ]
        )


class _Copying:
    """The rows of a job that its copy has too, and what they are called and refer to there."""

    def __init__(self, s: Session, first: JobRow, job: JobRow, topology: Topology) -> None:
        self._s, self._first, self._job, self._topology = s, first, job, topology
        self._streams: dict[str, str] = {}  # ids: of the first's internal streams → of the copy's

    def copy(self, tasks: Sequence[TaskRow]) -> None:
        """All of it; `tasks`: the locked ones of the first."""
        s, job = self._s, self._job
        read = streams_of(s, self._first.id, "source")
        names = self._names()
        kept = [stream for stream in streams_of(s, self._first.id, "internal") if stream.id in names]
        partitions = lock_partitions_of(s, [stream.id for stream in [*read, *kept]])
        relate(s, job, read, "source")
        for sub_topology in self._topology.sub_topologies:
            sinks = [sink_stream(s, sink.stream, sub_topology.partitions) for sink in sub_topology.sinks]
            relate(s, job, sinks, "sink")
        for stream in kept:
            self._copy_stream(stream, names[stream.id], [at for at in partitions if at.stream_id == stream.id])
        keep_dropped(s, job, self._topology)
        self._copy_stores()
        self._copy_tasks(tasks)
        self._copy_skips()

    def _names(self) -> dict[str, str]:
        """Ids of the first's changelogs and repartition streams → what the copy calls its own."""
        changelogs = {store.operator: store.changelog for store in self._topology.stores()}
        found = {store.changelog_stream_id: changelogs[store.operator] for store in stores_of(self._s, self._first.id)}
        repartitions = Topology.from_json(self._first.topology).repartitions()
        called = dict(zip(repartitions, self._topology.repartitions(), strict=True))
        internal = streams_of(self._s, self._first.id, "internal")
        return found | {stream.id: called[stream.name] for stream in internal if stream.name in called}

    def _copy_stream(self, stream: StreamRow, name: str, partitions: Iterable[PartitionRow]) -> None:
        s, job = self._s, self._job
        made = create_stream(s, name, partitions=stream.partitions, kind=stream.kind, job_id=job.id)
        self._streams[stream.id] = made.id
        role = s.get_one(JobStreamRow, (self._first.id, stream.id, "internal"))
        relate(s, job, [made], "internal", role.sub_topology)
        stands = [
            {"stream_id": made.id, "partition": at.partition, **{name: getattr(at, name) for name in _PARTITION}}
            for at in partitions
        ]
        s.execute(update(PartitionRow), stands)
        columns = [getattr(ChunkRow, name) for name in _CHUNK]
        of_first = select(literal(made.id), *columns).where(ChunkRow.stream_id == stream.id)
        s.execute(insert(ChunkRow).from_select(["stream_id", *_CHUNK], of_first))

    def _copy_stores(self) -> None:
        described = {store.operator: store for store in self._topology.stores()}
        for row in stores_of(self._s, self._first.id):
            store = described[row.operator]
            self._s.add(
                StoreRow(
                    name=store.name,
                    job_id=self._job.id,
                    operator=store.operator,
                    type=store.type,
                    kind=store.kind,
                    sub_topology=row.sub_topology,
                    changelog_stream_id=self._streams[row.changelog_stream_id],
                    spec=asdict(store),
                )
            )

    def _copy_tasks(self, tasks: Sequence[TaskRow]) -> None:
        s, at_ms = self._s, now_ms(self._s)
        ids: dict[str, str] = {}
        for each in tasks:
            task = TaskRow(id=new_id(), job_id=self._job.id, name=each.name, updated_ms=at_ms)
            task.sub_topology, task.partition = each.sub_topology, each.partition
            task.positions, task.stream_time = each.positions, each.stream_time
            task.is_closed, task.has_backlog = each.is_closed, each.has_backlog
            s.add(task)
            ids[each.id] = task.id
        s.flush()
        read = s.execute(select(TaskInputRow.__table__).where(TaskInputRow.task_id.in_(ids))).mappings().all()
        rows = [{**row, "task_id": ids[row["task_id"]], "stream_id": self._own(row["stream_id"])} for row in read]
        s.execute(insert(TaskInputRow), rows)

    def _copy_skips(self) -> None:
        skipped = self._s.execute(select(SkipRow.__table__).where(SkipRow.job_id == self._first.id)).mappings().all()
        if skipped:
            rows = [{**row, "job_id": self._job.id, "stream_id": self._own(row["stream_id"])} for row in skipped]
            self._s.execute(insert(SkipRow), rows)

    def _own(self, stream_id: str) -> str:
        """What the copy reads where the first reads this stream."""
        return self._streams.get(stream_id, stream_id)
