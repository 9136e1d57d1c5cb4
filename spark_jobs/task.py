"""One batch of one task: chunks → records → operators → one segment and the commit that publishes it.

It knows how a range of input is read, how outputs are cut by partition, and what a commit says. It refuses to know
Spark, the API and where replicas live: state comes in as readers, so a batch can be run and tested anywhere.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import msgspec
import numpy as np
import pyarrow as pa

from service.protocol import (
    Advanced,
    AssignedTask,
    Counters,
    InputRange,
    Measured,
    Move,
    Spread,
    StoreRef,
    StreamRef,
    TaskCommit,
    WrittenSegment,
)
from service.storage.segments import EncodedSegment, Storage, encode_segment, part_of
from service.streams import clock
from service.streams.inputs import Batch, Input, Origins, Part, Position, Unread, batch_of
from service.streams.measures import spread
from service.streams.partitioner import sink_partition_of
from service.streams.records import StateReader
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.dropped import counted, kept

MAX_BATCH_BYTES = 192 << 20  # of decoded records: what a slot holds at once, however many records were asked for


@dataclass(frozen=True, slots=True)
class Routes:
    """Where results of a job go: sinks by stream name, changelogs by store name."""

    streams: Mapping[str, StreamRef]
    stores: Mapping[str, StoreRef]


@dataclass(frozen=True, slots=True)
class Done:
    """A batch that was run: what it wrote (None: nothing), and the commit, complete but for the segment's id."""

    segment: EncodedSegment | None
    changelogs: dict[str, int]  # store name → its chunk in the segment
    commit: TaskCommit
    cut_after: int | None = None  # so many records: the rest of the batch is to be run right behind them


def at_most(work: InputRange, records: int) -> InputRange:
    """No more than so many records of it."""
    end = min(work.end, work.start + records)
    return msgspec.structs.replace(work, end=end, chunks=[chunk for chunk in work.chunks if chunk.first_offset < end])


def read_batch(storage: Storage, task: AssignedTask, work: InputRange) -> Batch:
    """Read the range of `work`, an input of the task, or as much of its beginning as memory allows.

    Raises SegmentMissing and SegmentDamaged, which name the file; OSError.
    """
    parts: list[Part] = []
    end, size = work.start, 0
    for chunk in work.chunks:
        if size >= MAX_BATCH_BYTES:
            break
        part = part_of(chunk, storage.read_chunk(chunk), work.start, work.end)
        parts.append(part)
        end, size = min(chunk.end_offset, work.end), size + part.records.nbytes
    else:
        end = work.end
    unread = [
        Unread(each, Position(head.position, head.frontier), head.position, [])
        for each, head in zip(_inputs(task), task.inputs, strict=True)
    ]
    unread[work.input] = replace(unread[work.input], end=end, parts=parts)
    return batch_of(unread, task.skips)


def run_batch(
    task: AssignedTask, chain: Chain, batch: Batch, states: Mapping[str, StateReader], routes: Routes
) -> Done:
    """Run the operators over a batch, against the state as of its first record; nothing is written yet.

    Where it is too much at once it is the beginning of the batch. Raises OperatorFailed with the record.
    """
    started = time.perf_counter()
    result = chain.run(batch, states)
    positions = [
        Move(number, start.offset, position.offset, position.frontier)
        for number, (start, position) in enumerate(zip(batch.starts, batch.positions(result.taken), strict=True))
        if position.offset > start.offset
    ]
    done = _done(task, chain, result, routes, started, records_in=result.taken, positions=positions)
    return replace(done, cut_after=result.taken if result.taken < batch.rows.num_rows else None)


def go_on(task: AssignedTask, chain: Chain, states: Mapping[str, StateReader], routes: Routes) -> Done:
    """Let operators say more of what they were given, where that was too much for one commit; inputs stay."""
    started = time.perf_counter()
    result = chain.go_on(states, _nothing_of(task))
    return _done(task, chain, result, routes, started, records_in=0, positions=[])


def advance(task: AssignedTask, chain: Chain, states: Mapping[str, StateReader], routes: Routes) -> Done:
    """Close what is open in the stores: move stream time to the lowest time that does it; inputs stay where they are.

    What this sends down the chain may be open there: the task is done when nothing is found to be.
    """
    started = time.perf_counter()
    to = chain.horizon(states)
    reason = task.advance
    if reason is None:
        raise ValueError(f"Task {task.name} has nothing to advance for")
    if to is None:
        return Done(None, {}, _commit(task, [], {}, clock.NOT_STARTED, Advanced(None, reason)))
    result = chain.advance(to, states, reason, _nothing_of(task))
    return _done(task, chain, result, routes, started, records_in=0, positions=[], advance=Advanced(to, reason))


def described(segment: EncodedSegment, segment_id: str) -> WrittenSegment:
    """A written segment as a commit names it."""
    return WrittenSegment(segment_id, segment.bytes, segment.chunks)


def _inputs(task: AssignedTask) -> list[Input]:
    return [Input(head.stream_id, head.partition) for head in task.inputs]


def _nothing_of(task: AssignedTask) -> Origins:
    """Of no records: what waits in stores says where in the task's inputs it comes from."""
    return Origins.none(_inputs(task), task.skips)


def _outputs(result: ChainResult, partition: int, routes: Routes) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """(stream id, partition, records) of every sink, in the order in which they were forwarded."""
    for name, records in result.outputs:
        sink = routes.streams[name]
        for target, part in _cut(records, sink.partitions, partition):
            yield sink.id, target, part


def _cut(records: pa.RecordBatch, count: int, partition: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Records by sink partition. Where all of them go to one, as they do with unchanged keys, nothing is copied."""
    if not records.num_rows:
        return
    targets = sink_partition_of(records.column("key"), count, partition)
    sizes = np.bincount(targets, minlength=count)
    used = np.flatnonzero(sizes)
    if len(used) == 1:
        yield int(used[0]), records
        return
    rows = np.argsort(targets.astype(np.uint16) if count <= 1 << 16 else targets, kind="stable")  # radix: linear
    ends = np.cumsum(sizes)
    for target in used.tolist():
        yield target, records.take(pa.array(rows[ends[target] - sizes[target] : ends[target]]))


def _done(
    task: AssignedTask,
    chain: Chain,
    result: ChainResult,
    routes: Routes,
    started: float,
    *,
    records_in: int,
    positions: list[Move],
    advance: Advanced | None = None,
) -> Done:
    """What the operators gave, as one segment and a commit."""
    outputs = list(_outputs(result, task.partition, routes))
    changes = [(store, routes.stores[store].changelog, batch) for store, batch in result.changes.items()]
    pieces = outputs + [(changelog, task.partition, batch) for _, changelog, batch in changes]
    if chain.dropped is not None and result.dropped:
        pieces.append((routes.streams[chain.dropped].id, task.partition, kept(result.dropped, result.origins)))
    segment = encode_segment(pieces) if pieces else None
    counters: Counters = {
        "records_in": records_in,
        "records_out": sum(records.num_rows for _, _, records in outputs),
        "dropped": counted(result.dropped),
        "batch_us": cast("Spread", spread(np.array([(time.perf_counter() - started) * 1e6], np.int64))),
        "operators": cast("dict[str, Measured]", result.measures),
    }
    if advance is not None:
        counters["advances"] = {advance.reason: 1}
    changelogs = {store: len(outputs) + i for i, (store, _, _) in enumerate(changes)}
    return Done(segment, changelogs, _commit(task, positions, counters, result.stream_time, advance))


def _commit(
    task: AssignedTask, positions: list[Move], counters: Counters, stream_time: int, advance: Advanced | None
) -> TaskCommit:
    return TaskCommit(
        commit_id=uuid.uuid4().hex,
        task=task.task,
        epoch=task.epoch,
        version=task.version,
        positions=positions,
        advance=advance,
        counters=counters,
        stream_time=stream_time,
    )
