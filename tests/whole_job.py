"""A whole job without Spark, API or catalog: every task as a slot runs it, over segments in a folder.

What the catalog keeps is here in memory, and how far inputs are is found once more, as plainly as Python allows. Every
task's work is checked against the oracle (`tests/naive_repartition.py`): `WholeJob.check`.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from service import ranges
from service.protocol import Adoption, AssignedTask, InputHead, InputRange, StoreRef, StreamRef
from service.storage.segments import EncodedSegment, Storage, encode_segment, path_of
from service.streams import clock
from service.streams.inputs import Batch, InputPosition, split_words
from service.streams.operators.aggregate import Aggregate
from service.streams.operators.suppress import Suppress
from service.streams.records import Chunk, ChunkMeta, Handover, StoreSpec, as_records
from service.streams.topology import graph
from service.streams.topology.chain import Chain
from service.streams.topology.graph import SubTopology, Topology
from service.streams.topology.spec import JobSpec
from service.streams.topology.versions import Version, compare
from spark_jobs.reading import ChunkReader
from spark_jobs.work import Adopt, GoOn, Outcome, Routes, Run, TaskRunner, next_work, read_batch
from tests import naive_repartition
from tests.naive_repartition import Log, Row, Stage
from tests.target_ranges import of_target
from tests.task import DictState, rows_of, shown

Record = dict[str, Any]
SINK = "out"


class Taken(NamedTuple):
    """A record as a task took it: the number of the input, how far that was at it, and when what was there was looked
    up, in events of the job.
    """

    input: int
    aligned_at: int
    record: Record
    looked_at: int


@dataclass
class Published:
    """One partition of a stream: its chunks, and of a user's its records, each with the event that published it."""

    chunks: list[Chunk] = field(default_factory=list)
    end: int = 0
    records: list[tuple[int, Record]] = field(default_factory=list)
    last_event: int = -1

    def append(self, path: str, segment: str, index: int, meta: ChunkMeta) -> None:
        place = (meta.byte_offset, meta.byte_length, meta.crc32)
        end = self.end + meta.records
        self.chunks.append(
            Chunk(path, segment, index, *place, self.end, end, meta.records, meta.is_sparse, meta.ranges)
        )
        self.end = end


class Source(NamedTuple):
    """One input of a task. `target`: whose part of a repartition log it is; `since`: the event of the job at which it
    came.
    """

    stream: str
    partition: int
    target: int | None
    since: int = 0


class Era(NamedTuple):
    """A task under one version: its chain, what it adopted that by, and how many records it had taken before."""

    chain: Chain
    adoption: Adoption | None
    since: int


@dataclass
class TaskAtWork:
    """A task: what the catalog says of it, and what it has done. `moved`: by target what it gave to other tasks;
    `eras`: the versions that it ran by. `time`: its stream time. `gone`: the numbers of inputs that are removed.
    """

    sub: SubTopology
    partition: int
    sources: list[Source]
    chain: Chain
    states: dict[str, DictState]
    positions: list[InputPosition]
    has_backlog: bool = False
    time: int | None = None
    held_at: int = 0
    unapplied: list[dict[str, pa.RecordBatch]] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    sunk: dict[int, list[Record]] = field(default_factory=dict)
    moved: dict[int, list[Record]] = field(default_factory=dict)
    adoption: Adoption | None = None
    eras: list[Era] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    @property
    def name(self) -> tuple[int, int]:
        return self.sub.id, self.partition


class HowFar(NamedTuple):
    """Of a task: nothing that it writes has a lower `aligned_at`; nothing comes of it until something is posted."""

    bound: int
    is_caught_up: bool


class WholeJob:
    """A job over sources with these partition counts. `idle`: events for which a partition has to be silent until it
    holds nobody back. `at_once`: what an operator lets go in one step (None: as much as ever). `forgets`: what is over
    is gone from stores at once. `others`: streams that are there, and are no sources (yet).
    """

    def __init__(
        self,
        storage: Storage,
        operators: list[Record],
        sources: Mapping[str, int],
        sink_partitions: int = 2,
        idle: int = 0,
        at_once: int | None = None,
        *,
        forgets: bool = False,
        others: Mapping[str, int] | None = None,
    ) -> None:
        self.operators, self.sources, self.sink_partitions = operators, dict(sources), sink_partitions
        self._spec, self.topology = _compiled(operators, sources)
        self._version, self._at_once, self._forgets = 1, at_once, forgets
        self._storage, self._idle, self.event = storage, idle, 0
        self._reader = ChunkReader(storage)
        self._writers = {name: writer for name, (writer, _) in self.topology.repartitions().items()}
        counts = {**sources, **{name: writer.partitions for name, writer in self._writers.items()}}
        posted_to = {**counts, **(others or {})}
        self.logs = {(name, i): Published() for name, count in posted_to.items() for i in range(count)}
        streams = {name: StreamRef(name, count) for name, count in {**counts, SINK: sink_partitions}.items()}
        self._streams = streams
        self._route()
        self.tasks = [
            self._task(sub, partition, counts, chain)
            for sub in self.topology.sub_topologies
            for chain in [_chain(sub, at_once)]
            for partition in range(sub.partitions)
        ]

    def _route(self) -> None:
        self._specs = {store.name: store for store in self.topology.stores()}
        self._routes = Routes(
            self._streams, {store.name: StoreRef(store.name, store.changelog) for store in self._specs.values()}
        )

    def _task(self, sub: SubTopology, partition: int, counts: Mapping[str, int], chain: Chain) -> TaskAtWork:
        found = []
        for name in sub.sources:
            if name in self._writers:
                found += [Source(name, i, partition) for i in range(counts[name])]
            elif partition < counts[name]:
                found.append(Source(name, partition, None))
        states = {store.name: DictState() for store in sub.stores()}
        task = TaskAtWork(sub, partition, found, chain, states, [InputPosition(0)] * len(found))
        task.eras.append(Era(chain, None, 0))
        return task

    # ------------------------------------------------------------ what happens to it

    def post(self, stream: str, partition: int, records: Sequence[Record]) -> None:
        """Publish records to a partition of a source."""
        self.event += 1
        log = self.logs[stream, partition]
        log.records += [(self.event, record) for record in records]
        log.last_event = self.event
        self._publish([encode_segment([(stream, partition, as_records(rows_of(records)))])])

    def change(self, operators: list[Record], restart: Collection[str] = ()) -> None:
        """Run by another version from here on; nothing waits in the stores of tasks, or between them."""
        assert not any(task.has_backlog for task in self.tasks)
        former = Version(self._spec, self.topology)
        spec, topology = _compiled(operators, self.sources)
        found = compare(former, Version(spec, topology), restart=restart)
        assert found.problems == []
        self._spec, self.topology, self._version = spec, found.topology, self._version + 1
        self._route()
        kept = {store.name for store in found.topology.stores() if store.operator in found.inherited}
        for task in self.tasks:
            if task.unapplied:
                self._apply(task, {store.name: store for store in former.topology.stores()})
            task.sub = self.topology.sub_topologies[task.sub.id]
            task.chain = _chain(task.sub, self._at_once)
            # What a store has not adopted yet it stands before: what comes now changes nothing of that.
            given = {**former.handovers(), **({} if task.adoption is None else task.adoption.stores)}
            names = [store.name for store in task.sub.stores()]
            task.states = {name: task.states[name] if name in kept else DictState() for name in names}
            stores = {name: given[name] if name in kept else Handover(begins_at=task.time) for name in names}
            task.adoption = Adoption(self._version, stores)

    def change_sources(self, sources: Mapping[str, int]) -> None:
        """Read these from here on, by the same operators; those that go are read to their ends."""
        former, self.event = Version(self._spec, self.topology), self.event + 1
        self._spec, topology = _compiled(self.operators, sources)
        found = compare(former, Version(self._spec, topology))
        assert found.problems == []
        added, removed = found.sources_that("added"), set(found.sources_that("removed"))
        self.sources, self.topology = dict(sources), found.topology
        for task in self.tasks:
            task.sub = self.topology.sub_topologies[task.sub.id]
            for number, source in enumerate(task.sources):
                if source.stream in removed and number not in task.gone:
                    assert task.positions[number].offset == self.logs[source[:2]].end
                    task.gone.add(number)
            for name in added:
                if name in task.sub.sources:
                    task.sources.append(Source(name, task.partition, None, self.event))
                    task.positions.append(InputPosition(0))

    def set_back(self, to: int) -> None:
        """Set stream time back; nothing waits in the stores of tasks, or between them."""
        version = Version(self._spec, self.topology)
        for task in self.tasks:
            assert not task.has_backlog
            if task.time is None or task.time <= to:
                continue
            if task.unapplied:
                self._apply(task)
            given = {**version.handovers(), **({} if task.adoption is None else task.adoption.stores)}
            own = {store.name: given[store.name] for store in task.sub.stores()}
            begins = {name: Handover(begins_at=to) for name, each in own.items() if each.begins_at is not None}
            handovers = {name: msgspec.structs.replace(each, stream_time=to) for name, each in own.items()}
            task.adoption = Adoption(self._version, {**handovers, **begins})
            task.positions = [InputPosition(at.offset, min(at.frontier, to)) for at in task.positions]
            task.time = to

    def drain(self, rng: Random, most: int) -> None:
        """Silence, and turns of all tasks in any order until none has anything to do: then nothing is left unread."""
        self.event += self._idle
        while sum(self.turn(task, rng, most) for task in rng.sample(self.tasks, len(self.tasks))):
            pass
        for task in self.tasks:
            for number, (source, position) in enumerate(zip(task.sources, task.positions, strict=True)):
                is_read = number in task.gone or position.offset == self.logs[source[:2]].end
                assert is_read, f"{task.name} does not go on in {source}"

    def turn(self, task: TaskAtWork, rng: Random, most: int, kill: float = 0.0) -> bool:
        """One turn of a task, up to its commit; whether it had something to do. `most`: records an input. `kill`: how
        likely it is killed before its commit, or right behind it, so that its stores follow later.
        """
        return self.carry_out(task, self.assigned(task, most), rng, kill)

    def carry_out(self, task: TaskAtWork, assigned: AssignedTask, rng: Random, kill: float = 0.0) -> bool:
        """What a task does with what it was assigned, perhaps a while ago."""
        self.event += 1
        if task.unapplied:
            self._apply(task)
        is_held = assigned.heads_digest and assigned.heads_digest == task.held_at
        if is_held and not task.has_backlog and not task.adoption:
            return False
        runner, taken = TaskRunner(assigned, task.chain, self._routes), list[Taken]()
        match next_work(assigned, is_restored=True, has_backlog=task.has_backlog, most=None):
            case Run() as run:
                batch = read_batch(self._reader, assigned, run)
                outcome = runner.run(batch, task.states)
                if outcome.is_nothing:
                    task.held_at = assigned.heads_digest
                    return False
                taken = _taken(batch, outcome, int(assigned.task))
            case GoOn():
                outcome = runner.go_on(task.states)
            case Adopt(version):
                outcome = runner.adopt(task.states, version)
            case _:
                return False
        files = self._write(outcome.segments)
        if rng.random() < kill:
            task.held_at = 0
            return True
        self._commit(task, outcome, files)
        task.taken += taken
        times = [each.record["timestamp"] for each in taken]
        task.time = max(times if task.time is None else [*times, task.time], default=None)
        if rng.random() >= kill:
            self._apply(task)
        return True

    def _write(self, segments: Sequence[EncodedSegment]) -> list[tuple[str, str]]:
        files = [(name, path_of(name)) for name in (uuid.uuid4().hex for _ in segments)]
        for (_, path), segment in zip(files, segments, strict=True):
            self._storage.write(path, segment)
        return files

    def _publish(self, segments: Sequence[EncodedSegment], files: Sequence[tuple[str, str]] | None = None) -> None:
        for (name, path), segment in zip(files or self._write(segments), segments, strict=True):
            for index, meta in enumerate(segment.chunks):
                log = self.logs.get((meta.stream_id, meta.partition))
                if log is not None:
                    log.append(path, name, index, meta)

    def _commit(self, task: TaskAtWork, outcome: Outcome, files: Sequence[tuple[str, str]]) -> None:
        if outcome.commit.adopted is not None:
            task.eras.append(Era(task.chain, task.adoption, len(task.taken)))
            task.adoption = None
        for move in outcome.commit.positions:
            assert task.positions[move.input].offset == move.start
            task.positions[move.input] = InputPosition(move.end, move.frontier)
        self._publish(outcome.segments, files)
        metas = [meta for segment in outcome.segments for meta in segment.chunks]
        for segment in outcome.segments:
            for meta, batch in zip(segment.chunks, segment.batches, strict=meta_is_one_batch(segment)):
                if meta.stream_id == SINK:
                    task.sunk.setdefault(meta.partition, []).extend(shown(batch))
            if not meta_is_one_batch(segment):
                targets = ranges.unpack(segment.chunks[0].ranges or b"")["target"].tolist()
                for target, batch in zip(targets, segment.batches, strict=True):
                    task.moved.setdefault(target, []).extend(shown(batch))
        if outcome.changelogs:
            batches = outcome.segments[0].batches
            assert all(metas[i].stream_id == self._specs[name].changelog for name, i in outcome.changelogs.items())
            task.unapplied.append({name: batches[i] for name, i in outcome.changelogs.items()})
        task.has_backlog = outcome.commit.has_backlog

    def _apply(self, task: TaskAtWork, specs: Mapping[str, StoreSpec] | None = None) -> None:
        for changes in task.unapplied:
            for name, batch in changes.items():
                task.states[name].replay(batch, (specs or self._specs)[name], forget=self._forgets)
        task.unapplied.clear()

    # ------------------------------------------------------------ what the catalog says

    def how_far(self) -> dict[tuple[int, int], HowFar]:
        """Of all tasks, those before first."""
        found: dict[tuple[int, int], HowFar] = {}
        for task in self.tasks:
            bound, reach, is_caught_up = clock.NOT_STARTED, [], not task.has_backlog
            for number, position in enumerate(task.positions):
                bound = max(bound, position.frontier)
                head = self._head(task, number, found)
                if position.offset < head.end:
                    reach.append(position.frontier)
                elif not head.is_caught_up:
                    reach.append(head.bound)
                is_caught_up = is_caught_up and position.offset == head.end and head.is_caught_up
            if reach and not task.has_backlog:
                bound = max(bound, min(reach))
            found[task.name] = HowFar(bound, is_caught_up)
        return found

    def _head(self, task: TaskAtWork, number: int, known: Mapping[tuple[int, int], HowFar]) -> InputHead:
        source, position = task.sources[number], task.positions[number]
        if number in task.gone:
            return InputHead("", 0, position.offset, position.offset, position.frontier, None, -1, True)
        log = self.logs[source[:2]]
        bound, is_caught_up = position.frontier, self.event - log.last_event >= self._idle
        if source.target is not None:
            writer = known[self._writers[source.stream].id, source.partition]
            bound, is_caught_up = max(bound, writer.bound), writer.is_caught_up
        at = (source.stream, source.partition, position.offset, log.end, position.frontier)
        return InputHead(*at, source.target, bound, is_caught_up)

    def assigned(self, task: TaskAtWork, most: int) -> AssignedTask:
        """A task as a poll answers it now: up to `most` records an input."""
        known = self.how_far()
        heads = [self._head(task, number, known) for number in range(len(task.sources))]
        unread = [(number, head) for number, head in enumerate(heads) if head.position < head.end]
        work = [] if task.adoption else [self._range(number, head, most) for number, head in unread]
        digested = [[head.position, head.end, head.bound, head.is_caught_up] for head in heads]
        return AssignedTask(
            str(self.event),
            "{}_{}".format(*task.name),
            *task.name,
            epoch=1,
            version=1,
            inputs=heads,
            work=work,
            heads_digest=zlib.crc32(msgspec.json.encode(digested)) if len(heads) > 1 else 0,
            adopt=task.adoption,
        )

    def _range(self, number: int, head: InputHead, most: int) -> InputRange:
        chunks, end, left = [], head.position, most
        for chunk in self.logs[head.stream_id, head.partition].chunks:
            if chunk.end_offset <= head.position:
                continue
            if not left:
                break
            first, rows, own = chunk.first_offset, chunk.records, chunk
            if head.sub_log is not None:
                packed = of_target(chunk.ranges, head.sub_log)
                if packed is None:
                    end = chunk.end_offset
                    continue
                [entry], own = ranges.unpack(packed), msgspec.structs.replace(chunk, ranges=packed)
                first, rows = first + int(entry["first_row"]), int(entry["rows"])
            begin = max(first, head.position)
            count = min(left, max(first + rows - begin, 0))
            chunks += [own] if count else []
            left -= count
            end = begin + count if begin + count < first + rows else chunk.end_offset
        return InputRange(number, head.position, end, chunks)

    # ------------------------------------------------------------ what came of it

    def check(self) -> dict[tuple[int, int], list[Log]]:
        """Each task took each record of its inputs once and in order, wrote what the oracle makes of them in the order
        in which it took them, and took them in the aligned order but for what was posted after it had looked.

        The results of the last stage by task and partition of the sink.
        """
        written: dict[tuple[str, int], list[Log]] = {}
        sunk: dict[tuple[int, int], list[Log]] = {}
        for task, stage in zip(self.tasks, self._stages(), strict=True):
            rows = _in_order_of(task, [self._rows(source, written) for source in task.sources])
            out = naive_repartition.run_task(self.operators, stage.places, rows)
            logs = naive_repartition.spread(out, task.partition, stage.targets, stage.by)
            if task.sub.repartitions:
                written[task.sub.repartitions[0].stream, task.partition] = logs
            else:
                sunk[task.name] = logs
                shown_logs = [[row.record for row in log] for log in logs]
                assert [task.sunk.get(i, []) for i in range(self.sink_partitions)] == shown_logs
        return sunk

    def results(self) -> list[tuple[int, int, Record]]:
        """What came out of each task of the last stage, for each partition of the sink."""
        return [
            (task.partition, partition, record)
            for task in self.tasks
            if not task.sub.repartitions
            for partition in range(self.sink_partitions)
            for record in task.sunk.get(partition, [])
        ]

    def expected(self) -> list[tuple[int, int, Record]]:
        """The same by the oracle, where all of it is there from the beginning."""
        sources = [[self.logs[name, i].records for i in range(count)] for name, count in self.sources.items()]
        found = naive_repartition.run(self.operators, sources, self.sink_partitions)
        return [(result.task, result.partition, result.record) for result in found]

    def lag(self, task: TaskAtWork) -> int:
        """Records that a task has not taken of those that are there for it."""
        there = sum(
            int(entry["rows"])
            for source in task.sources
            for chunk in self.logs[source[:2]].chunks
            for entry in ranges.unpack(of_target(chunk.ranges, source.target or 0) or b"")
        )
        return there - len(task.taken)

    def _stages(self) -> list[Stage]:
        """By task the oracle's stage."""
        partitions = max(self.sources.values())
        before = [
            Stage([], partitions)
            for count in self.sources.values()
            if count < partitions and any(each["op"] in naive_repartition.STATEFUL for each in self.operators)
        ]
        stages = [*before, *naive_repartition.stages(self.operators, partitions)]
        stages[-1].targets = self.sink_partitions
        assert len(stages) == len(self.topology.sub_topologies)
        return [stages[task.sub.id] for task in self.tasks]

    def _rows(self, source: Source, written: Mapping[tuple[str, int], list[Log]]) -> Log:
        if source.target is not None:
            return written[source[:2]][source.target]
        return [
            Row(record["timestamp"], max(event, source.since), {"window": None, **record})
            for event, record in self.logs[source[:2]].records
        ]


def meta_is_one_batch(segment: EncodedSegment) -> bool:
    """Whether each chunk of a segment is one batch: of a repartition stream it is one a target."""
    return all(meta.ranges is None for meta in segment.chunks)


def _compiled(operators: list[Record], sources: Mapping[str, int]) -> tuple[JobSpec, Topology]:
    spec = JobSpec.parse({"name": "t", "source": list(sources), "sink": SINK, "operators": operators})
    return spec, graph.compile(spec, sources)


def _chain(sub: SubTopology, at_once: int | None) -> Chain:
    chain = Chain(sub, "fail")
    for place in chain._places:
        if at_once is not None and isinstance(place.operator, Aggregate | Suppress):
            place.operator.at_once = at_once
    return chain


def _taken(batch: Batch, outcome: Outcome, looked_at: int) -> list[Taken]:
    """The records that were taken of a batch."""
    rows = batch.rows if outcome.cut_after is None else batch.rows.slice(0, outcome.cut_after)
    ordinals = rows.column("ordinal").to_numpy()
    numbers = split_words(batch.origins.words(ordinals))[0]
    if batch.aligned_at is None:
        times = clock.observe(batch.starts[0].frontier, rows.column("timestamp").to_numpy())
    else:
        times = batch.aligned_at[ordinals]
    found = zip(numbers.tolist(), np.asarray(times).tolist(), shown(as_records(rows)), strict=True)
    return [Taken(number, time, record, looked_at) for number, time, record in found]


def _in_order_of(task: TaskAtWork, inputs: Sequence[Log]) -> Log:
    """What the inputs hold, in the order in which a task took it."""
    found: Log = []
    unread, reached = [0] * len(inputs), [clock.NOT_STARTED] * len(inputs)
    for taken in task.taken:
        row = inputs[taken.input][unread[taken.input]]
        unread[taken.input] += 1
        reached[taken.input] = max(reached[taken.input], row.aligned_at)
        assert (taken.record, taken.aligned_at) == (row.record, reached[taken.input])
        for before in task.taken[: len(found)]:
            if (before.aligned_at, before.input) > (taken.aligned_at, taken.input):
                assert before.looked_at < row.cause, f"{task.name} took {before} before {taken}, which was posted"
        found.append(row)
    ends = [task.positions[number].offset if number in task.gone else len(rows) for number, rows in enumerate(inputs)]
    assert unread == ends
    return found
