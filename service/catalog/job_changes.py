"""Changes of jobs: another version over the same stores and positions, in one transaction, once it is quiet.

It knows which rows say what a job is, and what is left to do before it may be another. Tasks go on where what they read
stays; others end, with their stores and the repartition streams that they read, and new ones begin. It refuses to know
what a change means for an operator (`service.streams.topology.versions`), who owns a task (`service.coordinator`) and
what a task takes over by its next commit (`service.catalog.adoptions`).

quiet   no task owes output of what it has read. Where records that the present version made would be read by tasks of
        the next one, also: all that was in users' streams when the change was asked for is read, and so is every
        repartition stream. So nothing comes late, and no version reads what another one meant for itself

Locks: the job and its tasks are locked; then partitions by id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from service.catalog import task_moves
from service.catalog.adoptions import Adoptions, version_of
from service.catalog.converters import converter
from service.catalog.engine import now_ms
from service.catalog.inputs import POSITION_BYTES, inputs_of_job, pack, unpack
from service.catalog.job_creation import UNREADABLE, add_tasks, keep_dropped, relate, sink_stream, specified
from service.catalog.job_states import CHANGING, WORKING, move, note_transition
from service.catalog.job_versions import INHERITS, LEFT, RETURNS, Kind, Standing, last_with_store, note_version, stood
from service.catalog.jobs import is_flushing, is_replaying, stores_of, streams_of, task_rows
from service.catalog.start_positions import FirstRecords, start_of
from service.catalog.streams import (
    create_stream,
    find_stream,
    get_stream,
    lock_partitions_of,
    partitions_of,
    remove_streams,
)
from service.catalog.tables import (
    JobRow,
    JobStreamRow,
    Json,
    ReplicaRow,
    SkipRow,
    StoreRow,
    StreamRow,
    TaskInputRow,
    TaskRow,
)
from service.streams.errors import IllegalTransition, InvalidSpec, Problem, ReplayUnderWay, StreamExists
from service.streams.inputs import InputPosition
from service.streams.operators.declaration import StatefulSpec
from service.streams.topology import graph, versions
from service.streams.topology.complaints import pointer
from service.streams.topology.graph import SubTopology, Topology
from service.streams.topology.spec import JobSpec
from service.streams.topology.starts import Start, StartTimestamp
from service.streams.topology.versions import LeftStore, Version

PENDING = "pending"
BECOME_ANOTHER = "become another version"
ReadTo = dict[str, list[int]]  # stream id → an offset a partition


class BufferBound(msgspec.Struct, frozen=True):
    """What the buffer of a store may hold in a task when the change is made (None: any number), else why it is not."""

    store: str
    max_records: int | None
    max_bytes: int | None
    detail: str


class WantedChange(msgspec.Struct, frozen=True):
    """A change as it was asked for and judged, while it waits as `jobs.change`. `details` as in `job_versions`;
    `renames`: former operator → the name of it now; `reads_on`: what is on its way, and in `removed` sources, is read
    before; `starts`: where sources that are added begin (an offset a partition), as far as that is known by now;
    `tasks`: (sub-topology, the former one whose tasks go on with it), None: all of them do.
    """

    spec: Json
    topology: Json
    kind: Kind
    who: str
    reason: str
    details: Json
    renames: dict[str, str]
    reads_on: bool
    bounds: list[BufferBound] = []
    removed: list[str] = []
    starts: dict[str, list[int]] = {}
    tasks: list[tuple[int, int]] | None = None
    state: str = PENDING


_wanted_change = converter(WantedChange)


# ---------------------------------------------------------------- whether it may be


def compare(
    s: Session,
    job: JobRow,
    spec: JobSpec,
    *,
    renames: Mapping[str, str],
    restart: Sequence[str],
    left: Mapping[str, LeftStore] | None = None,
) -> versions.Comparison:
    """What a specification would mean for a job; `left`: removed stores that may come back. Raises InvalidSpec."""
    present = version_of(job)
    found = [find_stream(s, name) for name in sorted({*spec.sources, *present.spec.sources})]
    known = {stream.name: stream for stream in found if stream is not None}
    counts = {name: stream.partitions for name, stream in known.items()}
    if refused := [*_unfit_sources(spec, present.spec, known)]:
        raise InvalidSpec(refused)
    topology = graph.compile_again(spec, counts, present.spec, present.topology)
    return versions.compare(present, Version(spec, topology), renames=renames, restart=restart, left=left)


def left_stores(s: Session, job: JobRow, at: int) -> dict[str, LeftStore]:
    """The stores that no operator of a job has any more, by what their operators were called in version `at`: those
    that a rollback to it may have back.
    """
    found = {}
    for row in s.scalars(select(StoreRow).where(StoreRow.job_id == job.id, StoreRow.is_removed)).all():
        last = last_with_store(s, job.id, row.name)
        if last is None or last.version < at:
            continue
        then = stood(s, job.id, at, {row.id: Standing(last.version, row.operator)}).get(row.id)
        if then is not None and then.version == at:
            found[then.operator] = LeftStore(last.version, version_of(last), row.operator, row.sub_topology)
    return found


def _unfit_sources(spec: JobSpec, present: JobSpec, streams: Mapping[str, StreamRow]) -> Iterator[Problem]:
    """Streams that a job can not begin to read where it stands."""
    has_state = any(isinstance(operator, StatefulSpec) for operator in spec.operators)
    for i, name in enumerate(spec.sources):
        stream = streams.get(name)
        if stream is None or name in present.sources:
            continue
        at = "/source" if isinstance(spec.source, str) else pointer("source", i)
        if stream.kind in UNREADABLE:
            yield Problem(at, f"{name!r} is a {UNREADABLE[stream.kind]}")
        elif stream.custom_partitioning and stream.partitions > 1 and has_state and not spec.trust_partitions:
            detail = f"{name!r} was written with partitions of its writers' choice, where equal keys may lie apart"
            yield Problem(at, f"{detail}: `repartition` it by a job of its own before")


def bounds_of(found: versions.Comparison) -> list[BufferBound]:
    """What buffers may hold when the change is made."""
    return [BufferBound(store, *condition) for store, condition in found.conditions]


def wanted(
    s: Session,
    job: JobRow,
    spec: JobSpec,
    found: versions.Comparison,
    *,
    kind: Kind,
    who: str,
    reason: str,
    renames: Mapping[str, str],
    restart: Sequence[str],
    records: FirstRecords | None = None,
) -> WantedChange:
    """A change of a locked job that is possible, as it waits or is made. `records`: the first ones of sources that are
    added, of a start at a timestamp (see `start_of`). Raises UnknownStream.
    """
    removed = found.sources_that("removed")
    details = {
        "operators": [asdict(each) for each in found.operators],
        "sinks": [asdict(each) for each in found.sinks],
        "sources": [asdict(each) for each in found.sources],
        "renames": dict(renames),
        "restart": list(restart),
        INHERITS: found.inherited,
        RETURNS: found.returned,
    }
    return WantedChange(
        spec=spec.to_json(),
        topology=found.topology.to_json(),
        kind=kind,
        who=who,
        reason=reason,
        details=details,
        renames=dict(renames),
        reads_on=bool(removed) or reads_on(Topology.from_json(job.topology), found),
        bounds=bounds_of(found),
        removed=removed,
        tasks=sorted(found.tasks.items()),
        starts=_starts(s, spec.start, found.sources_that("added"), records),
    )


def _starts(s: Session, start: Start, sources: Iterable[str], records: FirstRecords | None) -> dict[str, list[int]]:
    """Where sources begin at a timestamp: found now, as nobody can look into chunks when the change is made."""
    if not isinstance(start, StartTimestamp):
        return {}
    partitions = {name: partitions_of(s, get_stream(s, name).id) for name in sources}
    return {name: [start_of(s, start, name, at, records) for at in each] for name, each in partitions.items()}


def reads_on(old: Topology, found: versions.Comparison) -> bool:
    """Whether other tasks come, or anything changes that makes records for other tasks of the job: what is on its way
    is read before.
    """
    new, stay = found.topology.sub_topologies, {each.id: each.id for each in old.sub_topologies}
    if found.tasks != stay or len(new) != len(stay):
        return True
    before, writes = set[int](), [each.id for each in old.sub_topologies if each.repartitions]
    while writes:
        before.add(writer := writes.pop())
        writes += set(old.sub_topologies[writer].upstreams) - before
    return any(_made(old.sub_topologies[each]) != _made(new[each]) for each in before)


def _made(sub_topology: SubTopology) -> list[Any]:
    """What says how a sub-topology makes records for others."""
    nodes = [(node.op, node.spec, node.upstream, node.parent) for node in sub_topology.nodes]
    return [nodes, [(each.by, each.targets, each.parent) for each in sub_topology.repartitions]]


def require_nothing_asked(s: Session, job: JobRow, verb: str = BECOME_ANOTHER) -> None:
    """Raises IllegalTransition, ReplayUnderWay where a locked job has still to do what somebody asked it for."""
    if is_flushing(s, job.id):
        raise IllegalTransition(job.state, verb, "a flush is under way: wait until it has `caught_up`")
    if is_replaying(s, job.id):
        raise ReplayUnderWay(job.name)


def what_is_left(s: Session, job: JobRow, *, reads_on: bool, read_to: ReadTo | None) -> str | None:
    """What a job has to do before it is quiet, in words; None: it is. `read_to`: its marks."""
    if s.scalar(select(exists().where(TaskRow.job_id == job.id, TaskRow.has_backlog))):
        return "results of what its tasks have read are still to come"
    if not reads_on:
        return None
    marked = read_to or {}
    for at in chain.from_iterable(inputs_of_job(s, job.id).values()):
        if at.sub_log is not None and at.lag:
            return "its tasks have still to read what others of them wrote"
        if at.sub_log is None and at.stream_id in marked and at.position < marked[at.stream_id][at.partition]:
            return "what was there when the change was asked for is still to be read"
    return None


def too_full(stores: Iterable[StoreRow], tasks: Sequence[TaskRow], bounds: Iterable[BufferBound]) -> list[BufferBound]:
    """The bounds that a buffer is over."""
    operators = {store.name: store.operator for store in stores}
    return [bound for bound in bounds if any(_is_over(task, operators.get(bound.store), bound) for task in tasks)]


def _is_over(task: TaskRow, operator: str | None, bound: BufferBound) -> bool:
    reading = task.counters.get("operators", {}).get(operator, {})
    held = [reading.get(name, {}).get("last", 0) for name in ("buffer_records", "buffer_bytes")]
    most = (bound.max_records, bound.max_bytes)
    return any(limit is not None and has > limit for has, limit in zip(held, most, strict=True))


def require_own_names(s: Session, job: JobRow, topology: Topology) -> None:
    """Raises StreamExists where the job would keep something under the name of a stream that is not its own."""
    for name in topology.internal_streams():
        found = find_stream(s, name)
        if found is not None and found.job_id != job.id:
            raise StreamExists(name, "the job would keep its own there; delete it, or name the operator otherwise").at(
                "/operators"
            )


# ---------------------------------------------------------------- waiting for it


def wait_until_quiet(s: Session, job: JobRow, wanted: WantedChange, read_to: ReadTo | None) -> None:
    """Have a locked job that works come to rest for this change; it reads up to these marks, or nothing (None)."""
    move(s, job, "change", who=wanted.who, reason=wanted.reason, details={"version": job.spec_version + 1})
    job.change = msgspec.to_builtins(wanted)
    job.read_to = read_to


def marks(s: Session, job: JobRow, wanted: WantedChange) -> ReadTo | None:
    """Up to where a job has to have read users' streams, where they end now: all where it works and reads on, those
    that it parts with in any case. None: none.
    """
    if not wanted.reads_on or not (wanted.removed or job.state in WORKING):
        return None
    going = {stream.id for stream in streams_of(s, job.id, "source") if stream.name in wanted.removed}
    found: dict[str, dict[int, int]] = {}
    for at in chain.from_iterable(inputs_of_job(s, job.id).values()):
        is_user = at.sub_log is None and not at.is_removed
        if is_user and (job.state in WORKING or at.stream_id in going):
            found.setdefault(at.stream_id, {})[at.partition] = at.end
    return {stream_id: [ends[p] for p in sorted(ends)] for stream_id, ends in found.items()}


def pending(job: JobRow) -> WantedChange | None:
    """The change that a job is coming to rest for."""
    return _wanted_change(job.change) if job.state == CHANGING and job.change is not None else None


def is_due(s: Session, job_id: str) -> bool:
    """Whether a change waits for a job that is quiet by now."""
    job = s.get_one(JobRow, job_id)
    wanted = pending(job)
    return wanted is not None and what_is_left(s, job, reads_on=wanted.reads_on, read_to=job.read_to) is None


# ---------------------------------------------------------------- making it


def make_version(s: Session, job: JobRow, tasks: Sequence[TaskRow], wanted: WantedChange) -> None:
    """Make a quiet, locked job the version that is wanted: its specification, streams and stores, and what its locked
    tasks have to take over. Their epochs are for who knows owners. Raises StreamExists, InternalStream.
    """
    old, new = Topology.from_json(job.topology), Topology.from_json(wanted.topology)
    require_own_names(s, job, new)
    details = {**wanted.details, LEFT: _left_behind(job, tasks, wanted, old)}
    job.spec_version += 1
    has_several = bool(wanted.removed) or any(len(task.positions) > POSITION_BYTES for task in tasks)
    for column, value in specified(JobSpec.parse(wanted.spec), new, has_several=has_several).items():
        setattr(job, column, value)
    job.change = job.read_to = None
    job.etag += 1
    left = _part_with_sources(s, job, tasks, wanted.removed)
    staying = _Rows(s, job, wanted, old, new).change(tasks)
    _add_sources(s, job, staying, new, wanted.starts)
    note_version(s, job, wanted.kind, who=wanted.who, reason=wanted.reason, details=details)
    details = {"version": job.spec_version, "renames": wanted.renames, "restart": wanted.details.get("restart", [])}
    details |= {"removed_sources": left} if left else {}
    note_transition(s, job, job.state, job.state, wanted.reason, wanted.who, kind="version", details=details)
    s.flush()
    _hand_over(s, job, task_rows(s, job.id), wanted)


def _left_behind(
    job: JobRow, tasks: Iterable[TaskRow], wanted: WantedChange, old: Topology
) -> dict[str, dict[str, int]]:
    """Of operators whose stores go, by partition the version that a store is of, where that is not the present one: its
    task has not taken it over, and never will.
    """
    inherited = set(wanted.details[INHERITS].values())
    behind = [task for task in tasks if task.spec_version < job.spec_version]
    found = {
        store.operator: {str(task.partition): task.spec_version for task in behind if task.sub_topology == each.id}
        for each in old.sub_topologies
        for store in each.stores()
        if store.operator not in inherited
    }
    return {operator: by_partition for operator, by_partition in found.items() if by_partition}


def _part_with_sources(
    s: Session, job: JobRow, tasks: Iterable[TaskRow], names: Collection[str]
) -> dict[str, dict[str, int]]:
    """Have tasks read these sources no more. The numbers of their inputs stay: what waits in stores names inputs by
    them. Returns by source and partition where it was read up to, as a start has it.
    """
    going = {stream.id: stream.name for stream in streams_of(s, job.id, "source") if stream.name in names}
    if not going:
        return {}
    left: dict[str, dict[str, int]] = {}
    for at in chain.from_iterable(inputs_of_job(s, job.id).values()):
        if at.stream_id in going:
            left.setdefault(going[at.stream_id], {})[str(at.partition)] = at.position
    is_of_tasks = TaskInputRow.task_id.in_([task.id for task in tasks])
    s.execute(delete(TaskInputRow).where(is_of_tasks, TaskInputRow.stream_id.in_(going)))
    is_source = (JobStreamRow.job_id == job.id) & (JobStreamRow.role == "source")
    s.execute(delete(JobStreamRow).where(is_source, JobStreamRow.stream_id.in_(going)))
    s.execute(delete(SkipRow).where(SkipRow.job_id == job.id, SkipRow.stream_id.in_(going)))
    return left


def _add_sources(
    s: Session, job: JobRow, tasks: Iterable[TaskRow], new: Topology, starts: Mapping[str, Sequence[int]]
) -> None:
    """Have tasks read what the new version has as further sources, under numbers behind all that they had: from where
    its `start` says, or these `starts`. Raises UnknownStream, InvalidSpec.
    """
    spec = JobSpec.parse(job.spec)
    had = {stream.name for stream in streams_of(s, job.id, "source")}
    added = [get_stream(s, name) for name in spec.sources if name not in had]
    if not added:
        return
    relate(s, job, added, "source")
    locked = {(at.stream_id, at.partition): at for at in lock_partitions_of(s, [stream.id for stream in added])}
    for task in tasks:
        read = new.sub_topologies[task.sub_topology].sources
        for stream in added:
            if stream.name not in read or task.partition >= stream.partitions:
                continue
            positions = unpack(task.positions)
            at = {"stream_id": stream.id, "partition": task.partition, "partitions": 1}
            s.add(TaskInputRow(task_id=task.id, number=len(positions), **at))
            first = locked[stream.id, task.partition]
            known = starts.get(stream.name)
            offset = (
                start_of(s, spec.start, stream.name, first)
                if known is None
                else max(known[task.partition], first.start_offset)  # retention may have taken it since
            )
            task.positions = pack([*positions, InputPosition(offset)])
    s.flush()


class _Rows:
    """The streams and stores of a job, on their way from one topology to the next."""

    def __init__(self, s: Session, job: JobRow, wanted: WantedChange, old: Topology, new: Topology) -> None:
        self._s, self._job, self._old, self._new = s, job, old, new
        stay = [(each.id, each.id) for each in old.sub_topologies] if wanted.tasks is None else wanted.tasks
        self._now = {was: now for now, was in stay}  # former sub-topology → the one that its tasks are of from now on
        self._inherits: Mapping[str, str] = wanted.details[INHERITS]
        self._returns = {now: Standing(*was) for now, was in wanted.details.get(RETURNS, {}).items()}
        self._renames = wanted.renames
        self._names: list[tuple[StoreRow | StreamRow, str]] = []  # what is called otherwise from now on

    def change(self, tasks: Sequence[TaskRow]) -> list[TaskRow]:
        """All of it. Returns the tasks that stay, of the locked ones of the former version."""
        keep_dropped(self._s, self._job, self._new)
        self._change_sinks()
        time = max((task.stream_time for task in tasks), default=-1)
        staying = self._end_tasks(tasks)
        self._renumber(staying)
        self._rename_repartitions()
        self._change_stores()
        self._begin_tasks(time)
        return staying

    def _end_tasks(self, tasks: Sequence[TaskRow]) -> list[TaskRow]:
        """Remove the tasks that nobody goes on with, their stores, and the streams that were for them; they have read
        all of these.
        """
        s, job = self._s, self._job
        ended = [task for task in tasks if task.sub_topology not in self._now]
        if not ended:
            return list(tasks)
        is_of_ended = TaskInputRow.task_id.in_([task.id for task in ended])
        s.execute(delete(TaskInputRow).where(is_of_ended))
        s.execute(delete(ReplicaRow).where(ReplicaRow.task_id.in_([task.id for task in ended])))
        task_moves.forget(s, [task.id for task in ended])
        for task in ended:
            s.delete(task)
        s.flush()
        for row in s.scalars(select(StoreRow).where(StoreRow.job_id == job.id)).all():
            if row.sub_topology not in self._now:
                drop_store(s, row)
        read = {source for each in self._old.sub_topologies if each.id not in self._now for source in each.sources}
        going = [stream.id for stream in streams_of(s, job.id, "internal") if stream.name in read]
        for table in (SkipRow, JobStreamRow):
            s.execute(delete(table).where(table.job_id == job.id, table.stream_id.in_(going)))
        remove_streams(s, going)
        return [task for task in tasks if task.sub_topology in self._now]

    def _renumber(self, tasks: Iterable[TaskRow]) -> None:
        """Have what stays belong to the sub-topologies of the new version."""
        s, job = self._s, self._job
        for task in tasks:
            task.sub_topology = self._now[task.sub_topology]
            task.name = f"{task.sub_topology}_{task.partition}"
        for row in s.scalars(select(StoreRow).where(StoreRow.job_id == job.id)):
            row.sub_topology = self._now[row.sub_topology]
        for relation in s.scalars(select(JobStreamRow).where(JobStreamRow.job_id == job.id)):
            if relation.sub_topology is not None:
                relation.sub_topology = self._now[relation.sub_topology]
        s.flush()

    def _begin_tasks(self, time: int) -> None:
        """Make the tasks that the new version has besides, with the streams that they read. Their stores begin at this
        stream time: what was before went through the tasks of the former version.
        """
        s, job, made = self._s, self._job, self._new.repartitions()
        for each in self._new.sub_topologies:
            if each.id in self._now.values():
                continue
            sources = []
            for name in each.sources:
                writer, _ = made[name]
                stream = create_stream(s, name, partitions=writer.partitions, kind="repartition", job_id=job.id)
                relate(s, job, [stream], "internal", writer.id)
                sources.append(stream)
            for task in add_tasks(s, job, JobSpec.parse(job.spec), each, sources):
                task.spec_version, task.stream_time = job.spec_version - 1, time
        s.flush()

    def _change_sinks(self) -> None:
        s, job = self._s, self._job
        wanted: dict[str, StreamRow] = {}
        for sub_topology in self._new.sub_topologies:
            for sink in sub_topology.sinks:
                stream = sink_stream(s, sink.stream, sub_topology.partitions)
                wanted[stream.id] = stream
        relate(s, job, wanted.values(), "sink")
        is_sink = (JobStreamRow.job_id == job.id) & (JobStreamRow.role == "sink")
        s.execute(delete(JobStreamRow).where(is_sink, JobStreamRow.stream_id.not_in(wanted)))

    def _rename_repartitions(self) -> None:
        """Those that stay have the names of the operators that need them now."""
        internal = {stream.name: stream for stream in streams_of(self._s, self._job.id, "internal")}
        for was, now in self._now.items():
            before = self._of_repartitions(self._old, was)
            after = self._of_repartitions(self._new, now)
            only = dict(zip(before, after.values(), strict=False)) if len(before) == 1 else {}
            for operator, name in before.items():
                called = after.get(self._renames.get(operator, operator), only.get(operator))
                if called is not None:
                    self._names.append((internal[name], called))

    @staticmethod
    def _of_repartitions(topology: Topology, sub_topology: int) -> dict[str, str]:
        """The repartition streams that a sub-topology reads, by the operator, or source, that they are for."""
        known = topology.repartitions()
        read = topology.sub_topologies[sub_topology].sources
        return {known[name][1].operator: name for name in read if name in known}

    def _change_stores(self) -> None:
        s, job = self._s, self._job
        present = {row.operator: row for row in stores_of(s, job.id)}
        is_left = (StoreRow.job_id == job.id) & StoreRow.is_removed
        left = {row.operator: row for row in s.scalars(select(StoreRow).where(is_left))}
        kept = {now: present[was] for now, was in self._inherits.items()}
        kept |= {now: left[was.operator] for now, was in self._returns.items()}
        wanted = {store.operator: (store, each) for each in self._new.sub_topologies for store in each.stores()}
        taken = {store.name for store, _ in wanted.values()}
        self._part_with({row.id for row in kept.values()}, taken)
        for operator, row in kept.items():
            store, _ = wanted[operator]
            self._names += [(row, store.name), (s.get_one(StreamRow, row.changelog_stream_id), store.changelog)]
            row.operator, row.type, row.kind, row.spec = operator, store.type, store.kind, asdict(store)
            row.is_removed = False
        self._rename()
        for operator, (store, each) in wanted.items():
            if operator not in kept:
                self._add_store(store, each)
        s.flush()

    def _part_with(self, kept: Collection[str], taken: Collection[str]) -> None:
        """Stores that nobody goes on with: one whose name another one has now goes at once."""
        s, job = self._s, self._job
        for row in s.scalars(select(StoreRow).where(StoreRow.job_id == job.id)).all():
            if row.id not in kept and row.name not in taken:
                row.is_removed = True
            elif row.id not in kept:
                drop_store(s, row)
        s.flush()

    def _rename(self) -> None:
        """In two steps: names may be exchanged, and no two rows may have one meanwhile."""
        renamed = [(row, name) for row, name in self._names if row.name != name]
        for row, _ in renamed:
            row.name = row.id
        self._s.flush()
        for row, name in renamed:
            row.name = name
        self._s.flush()

    def _add_store(self, store: Any, sub_topology: SubTopology) -> None:
        s, job = self._s, self._job
        changelog = create_stream(
            s, store.changelog, partitions=sub_topology.partitions, kind="changelog", job_id=job.id
        )
        relate(s, job, [changelog], "internal")
        row = StoreRow(name=store.name, job_id=job.id, operator=store.operator, type=store.type, kind=store.kind)
        row.sub_topology, row.changelog_stream_id, row.spec = sub_topology.id, changelog.id, asdict(store)
        row.since_version = job.spec_version
        s.add(row)


def drop_store(s: Session, row: StoreRow) -> None:
    """Remove a store of a locked job, with its changelog."""
    changelog_id = row.changelog_stream_id
    s.delete(row)
    s.flush()
    s.execute(delete(JobStreamRow).where(JobStreamRow.stream_id == changelog_id))
    remove_streams(s, [changelog_id])


def _hand_over(s: Session, job: JobRow, tasks: Sequence[TaskRow], wanted: WantedChange) -> None:
    at_ms, adoptions = now_ms(s), Adoptions(s, job)
    for task in tasks:
        if adoptions.of(task):
            task.next_version = job.spec_version
        else:
            task.spec_version, task.next_version = job.spec_version, None
        task.counters = _recounted(task.counters, wanted)
        task.updated_ms = at_ms


def _recounted(counters: Json, wanted: WantedChange) -> Json:
    """The counters of a task by the operators of the new version: those of stores that go on, go on."""
    measured = counters.get("operators", {})
    inherits: Mapping[str, str] = wanted.details[INHERITS]
    found = dict(counters)
    if measured:
        found["operators"] = {now: measured[was] for now, was in inherits.items() if was in measured}
    for by_operator in found.keys() & {"dropped", "missed_by_ms", "flow"}:
        found[by_operator] = {wanted.renames.get(name, name): each for name, each in counters[by_operator].items()}
    return found
