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
from service.streams.measures import spread
from service.streams.partitioner import sink_partition_of
from service.streams.records import TASK_SCHEMA, Chunk, StateReader, as_task_batch, empty
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.dropped import counted, kept
from spark_jobs.client import AssignedTask, Json, StoreRef, StreamRef, Work

MAX_BATCH_BYTES = 192 << 20  # of decoded records: what a slot holds at once, however many records were asked for


@dataclass(frozen=True, slots=True)
class Batch:
    """Records [start, end) of one input, skipped ones left out (TASK_SCHEMA); `end` may fall short of the work's."""

    records: pa.RecordBatch
    stream_id: str
    partition: int
    start: int
    end: int


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
    parts: list[pa.RecordBatch] = []
    end, size = work.start, 0
    for chunk in work.chunks:
        if size >= MAX_BATCH_BYTES:
            break
        part = _part(storage.read_chunk(chunk), chunk, work)
        parts.append(part)
        end, size = min(chunk.first_offset + chunk.records, work.end), size + part.nbytes
    else:
        end = work.end
    records = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
    return Batch(_without(records, skips), work.stream_id, work.partition, work.start, end)


def run_batch(
    task: AssignedTask, chain: Chain, batch: Batch, states: Mapping[str, StateReader], routes: Routes
) -> Done:
    """Run the operators over a batch, against the state as of its first record; nothing is written yet.

    Where more closes than is to be held at once it is the beginning of the batch, or only a part of what its first
    record closes. Raises ExpressionFailed with operator and source offset.
    """
    started = time.perf_counter()
    result = chain.run(batch.records, states)
    taken, is_cut = result.taken(batch.records), result.until is not None
    end = batch.end if result.until is None else result.until
    moved: Json = {"stream_id": batch.stream_id, "partition": batch.partition, "from": batch.start, "to": end}
    positions = [moved] if taken or not is_cut else []
    done = _done(task, chain, result, routes, started, records_in=taken, positions=positions)
    return replace(done, cut_after=taken if is_cut else None)


def go_on(task: AssignedTask, chain: Chain, states: Mapping[str, StateReader], routes: Routes) -> Done:
    """Let operators say more of what they were given, where that was too much for one commit; inputs stay."""
    started = time.perf_counter()
    result = chain.run(empty(TASK_SCHEMA), states)
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
    result = chain.advance(to, states, task.advance)
    done = _done(task, chain, result, routes, started, records_in=0, positions=[])
    done.commit["advance"] = advanced
    done.commit["counters"]["advances"] = {task.advance: 1}
    return done


def described(segment: EncodedSegment, segment_id: str) -> Json:
    """A written segment as a commit names it."""
    return {"id": segment_id, "bytes": segment.bytes, "chunks": [chunk._asdict() for chunk in segment.chunks]}


def _part(records: pa.RecordBatch, chunk: Chunk, work: Work) -> pa.RecordBatch:
    """The rows of a chunk that lie in the range, with their offsets; no copy of the records."""
    first = max(work.start - chunk.first_offset, 0)
    last = min(work.end - chunk.first_offset, chunk.records)
    offsets = np.arange(chunk.first_offset + first, chunk.first_offset + last, dtype=np.int64)
    return as_task_batch(records.slice(first, last - first), pa.array(offsets))


def _without(records: pa.RecordBatch, skips: frozenset[int]) -> pa.RecordBatch:
    if not skips:
        return records
    skipped = np.isin(records.column("offset").to_numpy(), list(skips))
    return records.filter(pa.array(~skipped)) if skipped.any() else records


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
        pieces.append((routes.streams[chain.dropped].id, task.partition, kept(result.dropped)))
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
