"""One batch of one task: chunks → records → operators → one segment and the commit that publishes it.

It knows how a range of input is read, how outputs are cut by partition, and what a commit says. It refuses to know
Spark, the API and where replicas live: state comes in as readers, so a batch can be run and tested anywhere.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from service.storage.segments import EncodedSegment, Storage, encode_segment
from service.streams import clock
from service.streams.inputs import Batch, Input, Origins, Part, Position, Unread, batch_of
from service.streams.measures import spread
from service.streams.partitioner import sink_partition_of
from service.streams.records import Chunk, StateReader
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.dropped import counted, kept
from spark_jobs.client import AssignedTask, Json, StoreRef, StreamRef, Work

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
    commit: Json
    cut_after: int | None = None  # so many records: the rest of the batch is to be run right behind them


def at_most(work: Work, records: int) -> Work:
    """No more than so many records of it."""
    end = min(work.end, work.start + records)
    return replace(work, end=end, chunks=[chunk for chunk in work.chunks if chunk.first_offset < end])


def read_batch(storage: Storage, work: Work, skips: frozenset[int] = frozenset()) -> Batch:
    """Read the range of `work`, or as much of its beginning as memory allows.

    Raises SegmentMissing and SegmentDamaged, which name the file; OSError.
    """
    parts: list[Part] = []
    end, size = work.start, 0
    for chunk in work.chunks:
        if size >= MAX_BATCH_BYTES:
            break
        part = _part(storage.read_chunk(chunk), chunk, work)
        parts.append(part)
        end, size = min(chunk.first_offset + chunk.records, work.end), size + part.records.nbytes
    else:
        end = work.end
    unread = Unread(Input(work.stream_id, work.partition), Position(work.start), end, parts)
    return batch_of([unread], [(0, offset) for offset in skips])


def run_batch(
    task: AssignedTask, chain: Chain, batch: Batch, states: Mapping[str, StateReader], routes: Routes
) -> Done:
    """Run the operators over a batch, against the state as of its first record; nothing is written yet.

    Where it is too much at once it is the beginning of the batch. Raises OperatorFailed with the record.
    """
    started = time.perf_counter()
    result = chain.run(batch, states)
    moved: list[Json] = [
        {"stream_id": read.stream_id, "partition": read.partition, "from": start.offset, "to": position.offset}
        for read, start, position in zip(batch.origins.inputs, batch.starts, batch.positions(result.taken), strict=True)
    ]
    done = _done(task, chain, result, routes, started, records_in=result.taken, positions=moved)
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
    advanced: Json = {"to": to, "reason": task.advance}
    if to is None or task.advance is None:
        return Done(None, {}, _commit(task, [], {}, clock.NOT_STARTED) | {"advance": advanced})
    result = chain.advance(to, states, task.advance, _nothing_of(task))
    done = _done(task, chain, result, routes, started, records_in=0, positions=[])
    done.commit["advance"] = advanced
    done.commit["counters"]["advances"] = {task.advance: 1}
    return done


def described(segment: EncodedSegment, segment_id: str) -> Json:
    """A written segment as a commit names it."""
    return {"id": segment_id, "bytes": segment.bytes, "chunks": [chunk._asdict() for chunk in segment.chunks]}


def _part(records: pa.RecordBatch, chunk: Chunk, work: Work) -> Part:
    """The rows of a chunk that lie in the range; no copy of the records."""
    first = max(work.start - chunk.first_offset, 0)
    last = min(work.end - chunk.first_offset, chunk.records)
    return Part(records.slice(first, last - first), chunk.first_offset + first)


def _nothing_of(task: AssignedTask) -> Origins:
    """Of no records: what waits in stores says where in the task's input it comes from."""
    read = Input("", task.partition) if task.work is None else Input(task.work.stream_id, task.work.partition)
    return Origins.none([read], [(0, offset) for offset in task.skips])


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
    positions: list[Json],
) -> Done:
    """What the operators gave, as one segment and a commit."""
    outputs = list(_outputs(result, task.partition, routes))
    changes = [(store, routes.stores[store].changelog, batch) for store, batch in result.changes.items()]
    pieces = outputs + [(changelog, task.partition, batch) for _, changelog, batch in changes]
    if chain.dropped is not None and result.dropped:
        pieces.append((routes.streams[chain.dropped].id, task.partition, kept(result.dropped, result.origins)))
    segment = encode_segment(pieces) if pieces else None
    counters = {
        "records_in": records_in,
        "records_out": sum(records.num_rows for _, _, records in outputs),
        "dropped": counted(result.dropped),
        "batch_us": spread(np.array([(time.perf_counter() - started) * 1e6], np.int64)),
        "operators": result.measures,
    }
    changelogs = {store: len(outputs) + i for i, (store, _, _) in enumerate(changes)}
    return Done(segment, changelogs, _commit(task, positions, counters, result.stream_time))


def _commit(task: AssignedTask, positions: list[Json], counters: Json, stream_time: int) -> Json:
    return {
        "commit_id": uuid.uuid4().hex,
        "task": task.id,
        "epoch": task.epoch,
        "version": task.version,
        "positions": positions,
        "segment": None,
        "counters": counters,
        "stream_time": stream_time,
    }
