"""What a task does next, and what comes of it: records → operators → segments and the commit that publishes them.

It knows the kinds of work and which one is next, how ranges of inputs become a batch, how outputs are cut by
partition, and what a commit says. It refuses to know Spark, the API and where replicas live: state comes in as readers,
so any work can be done and tested anywhere.

Restore   the replicas are behind their changelogs: nothing else is possible
Adopt     a version of the job that the task's stores do not stand at yet: nothing is done by it before
GoOn      operators still have output of what they have read: it comes before anything new
Replay    records that were dropped and kept, to take in again
Run       records to read, a range an input
Advance   close what is open without a record: move stream time
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

import msgspec
import numpy as np
import pyarrow as pa

from service.protocol import (
    Adoption,
    Advanced,
    AdvanceReason,
    AssignedTask,
    Counters,
    FlowFigures,
    InputRange,
    KeptRange,
    MissedFigures,
    Move,
    SpreadFigures,
    StoreRef,
    StreamRef,
    TakenOrder,
    TaskCommit,
)
from service.storage.segments import EncodedSegment, encode_repartitions, encode_segment
from service.streams import clock
from service.streams.errors import OperatorFailed, SuppressionFull
from service.streams.inputs import Batch, Input, InputPosition, Part, Unread, batch_of, split_words
from service.streams.measures import spread
from service.streams.operators.adoption import adopt
from service.streams.partitioner import split_by_partition
from service.streams.records import REPARTITION_SCHEMA, StateReader, as_records
from service.streams.topology.chain import Chain, ChainResult, Repartitioned, Throughput
from service.streams.topology.dropped import counted, kept, missed
from service.streams.topology.replays import select_kept
from spark_jobs.reading import ChunkReader

MAX_BATCH_BYTES: Final = 192 << 20  # of decoded records: what a slot holds at once, however many were asked for
LEAST_AFTER_CUT: Final = 1000  # records that are read where a batch was cut to less
FIRST_RECORDS: Final = 10_000  # of a task of which nobody knows how fast it is
BATCH_S: Final = 1.0  # what a batch is to take: a task that has to move, or to close, waits for the one that runs
FASTER: Final = 50  # times as much as the batch before, at most

States = Mapping[str, StateReader]

# ---------------------------------------------------------------- what is next


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring the replicas to the ends of their changelogs."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Have the stores remember what the version before made of them; inputs stay."""

    given: Adoption


@dataclass(frozen=True, slots=True)
class GoOn:
    """Let operators give more of what they were given, where that was too much for one commit; inputs stay."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run the operators over ranges of inputs, at most one an input, in the order of the inputs."""

    ranges: Sequence[InputRange]


@dataclass(frozen=True, slots=True)
class Advance:
    """Close what is open in the stores; inputs stay."""

    reason: AdvanceReason


@dataclass(frozen=True, slots=True)
class Replay:
    """Run the operators over what they dropped before; inputs stay."""

    given: KeptRange


Work = Restore | Adopt | GoOn | Replay | Run | Advance


def next_work(assigned: AssignedTask, *, is_restored: bool, has_backlog: bool, most: int | None) -> Work | None:
    """What a task does next; None: nothing. `most`: records to read at once, an input (None: as many as assigned)."""
    if not is_restored:
        return Restore()
    if assigned.adopt is not None:
        return Adopt(assigned.adopt)
    if has_backlog:
        return GoOn()
    if assigned.replay is not None:
        given = assigned.replay.range if most is None else at_most(assigned.replay.range, most)
        return Replay(msgspec.structs.replace(assigned.replay, range=given))
    if assigned.work:
        return Run(assigned.work if most is None else [at_most(each, most) for each in assigned.work])
    return None if assigned.advance is None else Advance(assigned.advance)


def at_most(given: InputRange, offsets: int) -> InputRange:
    """The beginning of a range: no more than so many offsets."""
    end = min(given.end, given.start + offsets)
    return msgspec.structs.replace(given, end=end, chunks=[each for each in given.chunks if each.first_offset < end])


def most_after(most: int, assigned: Sequence[InputRange], cut_after: int | None, took_s: float) -> int:
    """How many records of an input to read at once after a run of assigned ranges that took `took_s` and was cut behind
    `cut_after` records (None: it was taken whole): about as many as take BATCH_S.

    After a cut not much more than was taken, as the rest would be read in vain; then more and more again.
    """
    if cut_after is not None:
        most = min(most, 2 * cut_after)
    else:
        largest = max(each.end - each.start for each in assigned)
        by_time = int(min(most, largest) * min(FASTER, BATCH_S / max(took_s, 1e-3)))
        most = by_time if largest > most or took_s > BATCH_S else most
    return max(most, LEAST_AFTER_CUT)


# ---------------------------------------------------------------- reading


def read_batch(reader: ChunkReader, assigned: AssignedTask, run: Run) -> Batch:
    """The records of the ranges in the order in which they run, or as much of their beginnings as memory allows.

    Raises SegmentMissing and SegmentDamaged, which name the file; OSError.
    """
    unread = _unread(assigned)
    for given in run.ranges:
        parts, end = _read_range(reader, given, MAX_BATCH_BYTES // len(run.ranges))
        unread[given.input] = replace(unread[given.input], end=end, parts=parts)
    for number, head in enumerate(assigned.inputs):
        if unread[number].end < head.end:  # what comes next is there, and was not looked at
            unread[number] = replace(unread[number], bound=head.frontier)
    return batch_of(unread, assigned.skips)


def read_kept(reader: ChunkReader, assigned: AssignedTask, given: KeptRange) -> Batch:
    """Dropped records as they were kept, as a batch of the task's last input, or as much of their beginning as memory
    allows. Raises as `read_batch`.
    """
    parts, end = _read_range(reader, given.range, MAX_BATCH_BYTES)
    source = Input(given.stream_id, assigned.partition)
    inputs = [replace(each, bound=None) for each in _unread(assigned)]
    return batch_of([*inputs, Unread(source, InputPosition(given.range.start), end, parts)], assigned.skips)


def _unread(assigned: AssignedTask) -> list[Unread]:
    """The inputs of a task, before any of their records is read."""
    return [
        Unread(
            Input(head.stream_id, head.partition, head.sub_log or 0),
            InputPosition(head.position, head.frontier),
            head.position,
            [],
            None if head.is_caught_up else head.bound,
        )
        for head in assigned.inputs
    ]


def _read_range(reader: ChunkReader, given: InputRange, max_bytes: int) -> tuple[list[Part], int]:
    """The records of a range, and the offset where they end: at least one chunk, then as long as memory allows."""
    parts: list[Part] = []
    end, size = given.start, 0
    for chunk in given.chunks:
        if size >= max_bytes:
            return parts, end
        part = reader.read(chunk, given.start, given.end)
        parts.append(part)
        end, size = min(chunk.end_offset, given.end), size + part.records.nbytes
    return parts, given.end


# ---------------------------------------------------------------- doing


@dataclass(frozen=True, slots=True)
class Routes:
    """Where results of a job go: sinks by stream name, changelogs by store name."""

    streams: Mapping[str, StreamRef]
    stores: Mapping[str, StoreRef]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a piece of work gave, before anybody sees it.

    `commit` is complete but for `segments`, which are to be written first. `changelogs`: store name → the number of
    its chunk among all chunks of the segments. `cut_after`: so many records were taken of a batch that was cut, and the
    rest of it is to run right behind them.
    """

    commit: TaskCommit
    segments: list[EncodedSegment] = field(default_factory=list)
    changelogs: Mapping[str, int] = field(default_factory=dict)
    cut_after: int | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to commit: what was read has to wait."""
        commit = self.commit
        is_of_time = commit.advance or commit.replayed or commit.has_backlog
        return not (commit.positions or is_of_time or self.segments or commit.adopted)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is to be written, in memory."""
        return sum(batch.nbytes for segment in self.segments for batch in segment.batches)


@dataclass(frozen=True, slots=True)
class TaskRunner:
    """The operators of one task and where their results go."""

    assigned: AssignedTask
    chain: Chain
    routes: Routes

    def run(self, batch: Batch, states: States) -> Outcome:
        """Run the operators over a batch, against the state as of its first record.

        Where it is too much at once it is the beginning of the batch; where a record fails, those before it. Raises
        OperatorFailed with the record where it is the first one.
        """
        started_s = time.perf_counter()
        result = self._run_up_to_failure(batch, states)
        moves = [
            Move(number, start.offset, position.offset, position.frontier)
            for number, (start, position) in enumerate(zip(batch.starts, batch.positions(result.taken), strict=True))
            if position.offset > start.offset
        ]
        outcome = self._outcome(result, batch, started_s, positions=moves, order=self._order(batch, result.taken))
        return replace(outcome, cut_after=result.taken if result.taken < batch.rows.num_rows else None)

    def replay(self, kept: Batch, given: KeptRange, states: States) -> Outcome:
        """Take in again what operators dropped, from there on: the first records, as far as one operator dropped them.

        What is not wanted is passed over. Otherwise as `run`.
        """
        started_s = time.perf_counter()
        chosen = select_kept(kept, given.wanted, self.chain.names)
        if chosen.operator is None:
            return Outcome(self._commit(clock.NOT_STARTED, replayed=_replay_move(given, chosen.batch, 0)))
        result = self._run_up_to_failure(chosen.first, states, chosen.operator)
        outcome = self._outcome(result, kept, started_s, replayed=_replay_move(given, chosen.batch, result.taken))
        return replace(outcome, cut_after=result.taken if result.taken < chosen.batch.rows.num_rows else None)

    def _run_up_to_failure(self, batch: Batch, states: States, operator: str | None = None) -> ChainResult:
        """A failing record holds back nothing that came before it: its own batch begins with it."""
        while True:
            try:
                return self.chain.run(batch, states, operator)
            except SuppressionFull:
                raise  # the figures are those of the batch that was too much, and it stays uncommitted
            except OperatorFailed as error:
                ordinals = batch.rows.column("ordinal").to_numpy()
                before = 0 if error.ordinal is None else int(np.searchsorted(ordinals, error.ordinal))
                if not before:
                    raise
                batch = replace(batch, rows=batch.rows.slice(0, before))

    def go_on(self, states: States) -> Outcome:
        """A part of what operators have still to give of what they were given before. Raises OperatorFailed."""
        started_s = time.perf_counter()
        nothing = self._nothing()
        return self._outcome(self.chain.go_on(states, nothing.origins), nothing, started_s)

    def adopt(self, states: States, given: Adoption) -> Outcome:
        """What the stores remember of the operators that filled them before, and nothing else."""
        stores = self.routes.stores
        changes = {name: adopt(states[name], handover) for name, handover in given.stores.items()}
        written = {name: batch for name, batch in changes.items() if batch is not None}
        pieces = [(stores[name].changelog, self.assigned.partition, batch) for name, batch in written.items()]
        segments = [encode_segment(pieces)] if pieces else []
        commit = self._commit(clock.NOT_STARTED, adopted=given.version)
        return Outcome(commit, segments, {name: number for number, name in enumerate(written)})

    def advance(self, states: States, reason: AdvanceReason) -> Outcome:
        """Close what is open in the stores; the task is done when nothing is found to be."""
        started_s = time.perf_counter()
        if self.chain.horizon(states) is None:
            return Outcome(self._commit(clock.NOT_STARTED, advance=Advanced(None, reason)))
        nothing = self._nothing()
        result = self.chain.close(states, reason, nothing.origins)
        return self._outcome(result, nothing, started_s, advance=Advanced(result.stream_time, reason))

    def _nothing(self) -> Batch:
        """No rows: what waits in stores says where in the task's inputs it comes from."""
        unread = _unread(self.assigned)
        dropped = self.routes.streams.get(self.chain.dropped or "")
        if dropped is not None:
            unread.append(Unread(Input(dropped.id, self.assigned.partition), InputPosition(0), 0, []))
        return batch_of(unread, self.assigned.skips)

    def _outcome(
        self,
        result: ChainResult,
        batch: Batch,
        started_s: float,
        *,
        positions: Sequence[Move] = (),
        order: TakenOrder | None = None,
        advance: Advanced | None = None,
        replayed: Move | None = None,
    ) -> Outcome:
        """The operators' results of a batch as segments and a commit."""
        outputs = list(self._outputs(result))
        partition, stores = self.assigned.partition, self.routes.stores
        pieces = outputs + [(stores[name].changelog, partition, batch) for name, batch in result.changes.items()]
        if (dropped := self.chain.to_keep(result.dropped)) and self.chain.dropped is not None:
            pieces.append((self.routes.streams[self.chain.dropped].id, partition, kept(dropped, result.origins)))
        segments = [encode_segment(pieces)] if pieces else []
        if result.repartitioned:  # apart: their bytes are read once, and go long before a changelog does
            segments.append(encode_repartitions([self._by_target(each, batch) for each in result.repartitioned]))
        counters: Counters = {
            "records_in": result.taken,
            "records_out": sum(records.num_rows for _, _, records in outputs),
            "dropped": counted(result.dropped),
            "batch_us": cast("SpreadFigures", spread(np.array([(time.perf_counter() - started_s) * 1e6], np.int64))),
            "operators": result.measures,
            "flow": {name: _flow_figures(flow) for name, flow in result.flow.items()},
        }
        if late := missed(result.dropped):
            counters["missed_by_ms"] = cast("dict[str, dict[str, MissedFigures]]", late)
        if repartitioned := self._repartitioned(batch, result.taken):
            counters["repartitioned_in"] = repartitioned
        if advance is not None:
            counters["advances"] = {advance.reason: 1}
        commit = self._commit(
            result.stream_time,
            positions=positions,
            order=order,
            advance=advance,
            replayed=replayed,
            counters=counters,
            has_backlog=result.is_more,
        )
        return Outcome(commit, segments, {name: len(outputs) + n for n, name in enumerate(result.changes)})

    def _order(self, batch: Batch, taken: int) -> TakenOrder | None:
        """Where the first rows of a batch of several inputs begin and end in their order."""
        heads = self.assigned.inputs
        if not taken or batch.aligned_at is None:
            return None
        ordinals, records = batch.rows.column("ordinal").to_numpy()[:taken], list[int]()
        if any(head.sub_log is not None for head in heads):
            numbers, _ = split_words(batch.origins.words(ordinals))
            records = np.bincount(numbers, minlength=len(heads)).tolist()
        ends = ordinals[[0, -1]]
        numbers, _ = split_words(batch.origins.words(ends))
        (first, last), (first_input, last_input) = batch.aligned_at[ends].tolist(), numbers.tolist()
        return TakenOrder(first, first_input, last, last_input, records)

    def _repartitioned(self, batch: Batch, taken: int) -> int:
        """How many of the first rows of a batch come from repartition streams."""
        numbers = [number for number, head in enumerate(self.assigned.inputs) if head.sub_log is not None]
        if len(numbers) in (0, len(batch.starts)):
            return taken if numbers else 0
        words = batch.origins.words(batch.rows.column("ordinal").to_numpy()[:taken])
        return int(np.isin(split_words(words)[0], numbers).sum())

    def _commit(
        self,
        stream_time: int,
        *,
        positions: Sequence[Move] = (),
        order: TakenOrder | None = None,
        advance: Advanced | None = None,
        replayed: Move | None = None,
        counters: Counters | None = None,
        has_backlog: bool = False,
        adopted: int | None = None,
    ) -> TaskCommit:
        return TaskCommit(
            commit_id=uuid.uuid4().hex,
            task=self.assigned.task,
            epoch=self.assigned.epoch,
            version=self.assigned.version,
            positions=list(positions),
            order=order,
            advance=advance,
            replayed=replayed,
            counters=counters or {},
            stream_time=stream_time,
            has_backlog=has_backlog,
            adopted=adopted,
        )

    def _outputs(self, result: ChainResult) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """(stream id, partition, records) of every sink, in the order in which they were forwarded."""
        for name, records in result.outputs:
            sink = self.routes.streams[name]
            keys = records.column("key")
            for target, part in _by_partition(records, keys, sink.partitions, self.assigned.partition):
                yield sink.id, target, part

    def _by_target(self, given: Repartitioned, batch: Batch) -> tuple[str, int, list[tuple[int, pa.RecordBatch]]]:
        """(stream id, the task's partition of it, records (REPARTITION_SCHEMA) by target) of what other tasks go on
        with.
        """
        reached = pa.array(batch.reached(given.rows.column("ordinal").to_numpy()))
        columns = [*as_records(given.rows).columns, reached]
        records = pa.RecordBatch.from_arrays(columns, schema=REPARTITION_SCHEMA)
        own = self.assigned.partition
        return self.routes.streams[given.stream].id, own, list(_by_partition(records, given.keys, given.targets, own))


def _flow_figures(flow: Throughput) -> FlowFigures:
    return {"records_in": flow.records_in, "records_out": flow.records_out, "busy_us": round(flow.busy_ns / 1000)}


def _replay_move(given: KeptRange, batch: Batch, taken: int) -> Move:
    """How far a replay is once so many rows are taken."""
    return Move(given.range.input, given.range.start, batch.positions(taken)[-1].offset)


def _by_partition(
    records: pa.RecordBatch, keys: pa.Array, count: int, own: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Records by the partition that their keys belong to, rising. Where all go to one, as they do with unchanged keys,
    nothing is copied.
    """
    for target, places in split_by_partition(keys, count, own):
        yield target, records if len(places) == records.num_rows else records.take(pa.array(places))
