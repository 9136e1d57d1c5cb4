"""The work of a task, without Spark, API or catalog: what is next, read, sent where, committed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from service import ranges
from service.protocol import Adoption, AssignedTask, InputHead, InputRange, Move, StoreRef, StreamRef, TaskCommit
from service.storage.segments import Storage, encode_segment, open_storage, path_of
from service.streams import clock, inputs
from service.streams.errors import ExpressionFailed, SegmentDamaged, SuppressionFull
from service.streams.inputs import Batch, Input, InputPosition, Part, Unread
from service.streams.layouts.reserved import CLOSED_KEY, FLOOR_KEY, pack_time
from service.streams.partitioner import murmur2, partition_of
from service.streams.records import OFFSET_FIELD, RECORD_SCHEMA, Chunk, Handover, Published, as_records, as_task_rows
from service.streams.topology import graph
from service.streams.topology.chain import Chain
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec
from spark_jobs import commits, reading, work
from spark_jobs.client import Json
from spark_jobs.commits import SegmentWriter
from spark_jobs.reading import ChunkReader
from spark_jobs.tasks import StreamTask
from spark_jobs.work import Adopt, Advance, GoOn, Outcome, Restore, Routes, Run, TaskRunner, next_work, read_batch
from tests.target_ranges import of_target
from tests.task import DictState, rows_of, shown

ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1000}
CLOSING = {
    "op": "aggregate",
    "name": "closing",
    "window": {"type": "tumbling", "size_ms": 10, "grace_ms": 0},
    "aggregates": {"n": {"fn": "count"}},
    "emit": "on_window_close",
}
KEYS = [f"user-{i}" for i in range(40)]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def record(key: str | None, timestamp: int = 0, value: Any = 1) -> Json:
    return {"key": key, "value": value, "timestamp": timestamp}


def write(storage: Storage, first_offset: int, records: Sequence[Json]) -> Chunk:
    """A published chunk of a source stream."""
    return _published(storage, first_offset, first_offset + len(records), as_records(rows_of(records)))


def write_sparse(storage: Storage, end: int, records: dict[int, Json]) -> Chunk:
    """A published chunk whose records lie at these offsets."""
    batch = as_records(rows_of(list(records.values())))
    columns = [*batch.columns, pa.array(list(records), pa.int64())]
    stored = pa.RecordBatch.from_arrays(columns, schema=batch.schema.append(OFFSET_FIELD))
    return _published(storage, min(records), end, stored)


def _published(storage: Storage, first_offset: int, end: int, batch: pa.RecordBatch) -> Chunk:
    segment = encode_segment([("clicks", 0, batch)])
    segment_id = uuid.uuid4().hex
    storage.write(path_of(segment_id), segment)
    meta = segment.chunks[0]
    place = (meta.byte_offset, meta.byte_length, meta.crc32)
    return Chunk(path_of(segment_id), segment_id, 0, *place, first_offset, end, meta.records, meta.is_sparse)


def given(start: int, end: int, *chunks: Chunk) -> Run:
    return Run([InputRange(0, start, end, list(chunks))])


def read(storage: Storage, run: Run, *skips: tuple[int, int]) -> Batch:
    """Of a task whose inputs are `clicks`, which is read, and another one, which is not."""
    heads = [InputHead("clicks", 0, run.ranges[0].start, 99), InputHead("others", 0, 5, 5, is_caught_up=True)]
    return read_batch(
        ChunkReader(storage), AssignedTask("task-1", "0_0", 0, 0, 7, 3, inputs=heads, skips=list(skips)), run
    )


def assigned(partition: int = 0, **fields: Any) -> AssignedTask:
    """Task `0_<partition>`."""
    heads = [InputHead("clicks", partition, 10, 20)]
    return AssignedTask("task-1", f"0_{partition}", 0, partition, 7, 3, inputs=heads, **fields)


def compiled(operators: Sequence[Json], partitions: int = 1, **spec: Any) -> Topology:
    parsed = JobSpec.parse({"name": "job", "source": "in", "sink": "out", "operators": list(operators), **spec})
    return graph.compile(parsed, {"in": partitions})


def runner(topology: Topology, partition: int = 0, out: int = 1) -> TaskRunner:
    """Of the job's first sub-topology, whose sink has `out` partitions."""
    stores = {store.name: StoreRef(f"{store.name}-id", f"{store.name}-changelog-id") for store in topology.stores()}
    routes = Routes({"out": StreamRef("out-id", out)}, stores)
    return TaskRunner(assigned(partition), Chain(topology.sub_topologies[0], "fail"), routes)


def run(
    batch: Batch, operators: Sequence[Json] = (ONCE,), *, partition: int = 0, out: int = 1
) -> tuple[Outcome, DictState]:
    """Run a batch on task `0_<partition>`."""
    topology, state = compiled(operators, partition + 1), DictState()
    states = {store.name: state for store in topology.stores()}
    return runner(topology, partition, out).run(batch, states), state


def clicks(records: Sequence[Json], start: int) -> Batch:
    """Records of `clicks` from an offset on."""
    part = Part(as_records(rows_of(records)), start)
    return inputs.batch_of([Unread(Input("clicks", 0), InputPosition(start), start + len(records), [part])])


def batch(*records: Json) -> Batch:
    return clicks(records, 10)


def written(outcome: Outcome) -> list[tuple[str, int, pa.RecordBatch]]:
    """(stream id, partition, batch) of all that is to be written."""
    return [
        (meta.stream_id, meta.partition, records)
        for segment in outcome.segments
        for meta, records in zip(segment.chunks, segment.batches, strict=True)
    ]


def pieces(outcome: Outcome, stream: str) -> dict[int, list[str | None]]:
    """Keys by partition of what is written for a stream."""
    return {
        partition: [row["key"] for row in shown(records)]
        for stream_id, partition, records in written(outcome)
        if stream_id == stream
    }


def offsets(found: Batch) -> list[int]:
    listed: list[int] = found.origins.words(found.rows.column("ordinal").to_numpy()).tolist()
    return listed


# ---------------------------------------------------------------- what is next

RANGE = InputRange(0, 10, 20, [])
READY = {"is_restored": True, "has_backlog": False, "most": None}


def test_nothing_is_done_before_the_replicas_are_restored() -> None:
    found = next_work(assigned(work=[RANGE]), is_restored=False, has_backlog=True, most=None)
    assert found == Restore()


def test_what_operators_have_still_to_give_comes_before_what_is_to_be_read() -> None:
    assert next_work(assigned(work=[RANGE]), is_restored=True, has_backlog=True, most=None) == GoOn()


def test_a_version_is_adopted_before_anything_is_done_by_it() -> None:
    version = Adoption(2, {})
    task = assigned(work=[RANGE], adopt=version)
    assert task.is_due
    assert next_work(task, is_restored=True, has_backlog=True, most=None) == Adopt(version)
    assert next_work(task, is_restored=False, has_backlog=False, most=None) == Restore()


def test_what_was_assigned_is_run() -> None:
    assert next_work(assigned(work=[RANGE]), **READY) == Run([RANGE])


def test_time_is_advanced_where_nothing_is_to_be_read() -> None:
    assert next_work(assigned(advance="idle"), **READY) == Advance("idle")
    assert next_work(assigned(), **READY) is None


MUCH, LITTLE = [InputRange(0, 0, 1_000_000, [])], [InputRange(0, 0, 3_000, [])]


def test_after_a_cut_little_is_read_and_then_more_and_more_again() -> None:
    assert work.most_after(10_000, MUCH, 1, 0.0) == work.LEAST_AFTER_CUT
    assert work.most_after(10_000, MUCH, 3_000, 0.0) == 6_000
    assert work.most_after(6_000, MUCH, None, 0.0) == 300_000


@pytest.mark.parametrize(
    ("most", "assigned", "took_s", "after"),
    [
        (10_000, MUCH, 0.5, 20_000),
        (10_000, MUCH, 0.01, 500_000),
        (10_000, MUCH, 0.1, 100_000),
        (10_000, MUCH, 4.0, 2_500),
        (10_000, MUCH, 60.0, 1_000),
        (10_000, LITTLE, 2.0, 1_500),
        (10_000, LITTLE, 0.1, 10_000),
        (2_000_000, MUCH, 2.0, 500_000),
    ],
)
def test_a_batch_is_to_take_a_second(most: int, assigned: list[InputRange], took_s: float, after: int) -> None:
    assert work.most_after(most, assigned, None, took_s) == after


def test_no_chunk_is_read_that_lies_behind_the_limit(storage: Storage) -> None:
    chunks = [write(storage, 0, [record("a")]), write(storage, 1, [record("b")])]
    task = assigned(work=[InputRange(0, 0, 2, chunks)])
    found = next_work(task, is_restored=True, has_backlog=False, most=1)
    assert found == given(0, 1, chunks[0])


# ---------------------------------------------------------------- reading


def test_records_carry_the_offsets_of_their_chunk(storage: Storage) -> None:
    chunk = write(storage, 100, [record("a"), record("b"), record("c")])
    assert offsets(read(storage, given(100, 103, chunk))) == [100, 101, 102]


def test_a_range_may_begin_and_end_inside_chunks(storage: Storage) -> None:
    first = write(storage, 0, [record(key) for key in "abcd"])
    second = write(storage, 4, [record(key) for key in "efgh"])
    found = read(storage, given(2, 6, first, second))
    assert offsets(found) == [2, 3, 4, 5]
    assert [row["key"] for row in shown(found.rows)] == ["c", "d", "e", "f"]
    assert (found.starts[0].offset, found.ends) == (2, [6, 5])


def test_a_gap_between_chunks_is_passed(storage: Storage) -> None:
    found = read(storage, given(0, 12, write(storage, 0, [record("a")]), write(storage, 10, [record("b")])))
    assert offsets(found) == [0, 10]
    assert (found.starts[0].offset, found.ends) == (0, [12, 5])


def test_records_of_a_sparse_chunk_carry_the_offsets_that_it_holds(storage: Storage) -> None:
    chunk = write_sparse(storage, 20, {3: record("a"), 7: record("b"), 15: record("c")})
    found = read(storage, given(4, 20, chunk))
    assert offsets(found) == [7, 15]
    assert (found.starts[0].offset, found.ends) == (4, [20, 5])


def test_skipped_offsets_are_left_out_and_passed(storage: Storage) -> None:
    chunk = write(storage, 0, [record(key) for key in "abcd"])
    found = read(storage, given(0, 4, chunk), (0, 1), (0, 3), (0, 99), (1, 2))
    assert offsets(found) == [0, 2]
    assert (found.starts[0].offset, found.ends) == (0, [4, 5])


def test_a_batch_that_is_skipped_as_a_whole_still_moves_the_position(storage: Storage) -> None:
    outcome, _ = run(read(storage, given(0, 1, write(storage, 0, [record("a")])), (0, 0)))
    assert outcome.segments == []
    assert outcome.commit.positions == [Move(0, 0, 1, clock.NOT_STARTED)]


def test_several_inputs_are_one_batch_in_the_order_of_their_times_and_each_moves(storage: Storage) -> None:
    first = InputRange(0, 0, 2, [write(storage, 0, [record("a", 1), record("c", 3)])])
    second = InputRange(1, 5, 7, [write(storage, 5, [record("b", 2), record("d", 4)])])
    heads = [InputHead("clicks", 0, 0, 2, is_caught_up=True), InputHead("others", 0, 5, 7, is_caught_up=True)]
    task = AssignedTask("task-1", "0_0", 0, 0, 7, 3, inputs=heads, skips=[(1, 6)])
    found = read_batch(ChunkReader(storage), task, Run([first, second]))
    assert [row["key"] for row in shown(found.rows)] == ["a", "b", "c"]
    outcome, _ = run(found)
    assert outcome.commit.positions == [Move(0, 0, 2, 3), Move(1, 5, 7, 2)]


def test_memory_bounds_a_batch_before_its_record_count_does(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_BATCH_BYTES", 1)
    first, second = write(storage, 0, [record("a")]), write(storage, 1, [record("b")])
    found = read(storage, given(0, 2, first, second))
    assert offsets(found) == [0]
    assert (found.starts[0].offset, found.ends) == (0, [1, 5])


def test_a_torn_segment_is_named(storage: Storage, tmp_path: Path) -> None:
    chunk = write(storage, 0, [record("a")])
    file = tmp_path / chunk.path
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(SegmentDamaged, match=chunk.segment):
        read(storage, given(0, 1, chunk))


# ---------------------------------------------------------------- running


def test_outputs_go_to_the_partition_that_kafka_would_choose() -> None:
    outcome, _ = run(batch(*map(record, KEYS)), operators=(), out=5)
    found = pieces(outcome, "out-id")
    assert sorted(found) == [0, 1, 2, 3, 4]
    for partition, keys in found.items():
        assert keys == [key for key in KEYS if (murmur2(key.encode()) & 0x7FFFFFFF) % 5 == partition]


def test_null_keys_stay_with_their_task() -> None:
    outcome, _ = run(batch(record(None), record(None)), operators=(), partition=3, out=2)
    assert pieces(outcome, "out-id") == {1: [None, None]}


def test_order_is_kept_within_a_partition() -> None:
    outcome, _ = run(batch(*(record("same", i, i) for i in range(50))), operators=(), out=3)
    ((_, _, records),) = written(outcome)
    assert [row["value"] for row in shown(records)] == list(range(50))


def test_records_of_one_partition_are_not_copied() -> None:
    source = batch(*(record("same", i) for i in range(10)))
    outcome, _ = run(source, operators=(), out=8)
    ((_, _, records),) = written(outcome)
    assert records.column("key").buffers()[2].address == source.rows.column("key").buffers()[2].address


def test_the_changelog_is_a_chunk_of_the_same_segment() -> None:
    outcome, _ = run(batch(record("a", 5), record("b", 6), record("a", 7)), out=1)
    (segment,) = outcome.segments
    found = [(meta.stream_id, meta.records) for meta in segment.chunks]
    assert found == [("out-id", 2), ("job-once-changelog-id", 4)]  # a, b, stream time, how long they live
    assert outcome.changelogs == {"job-once": 1}


def test_the_state_does_not_move_before_the_commit() -> None:
    _, state = run(batch(record("a", 5)))
    assert state == {}


def test_duplicates_are_counted_by_operator_and_reason() -> None:
    outcome, _ = run(batch(record("a", 5), record("a", 6), record("a", 7)))
    counters = outcome.commit.counters
    assert (counters["records_in"], counters["records_out"]) == (3, 1)
    assert counters["dropped"] == {"once": {"duplicate": 2}}


def test_a_batch_of_which_nothing_comes_out_writes_no_segment() -> None:
    outcome, _ = run(batch(record("a")), operators=[{"op": "filter", "where": "false"}])
    assert outcome.segments == []


def test_a_commit_names_epoch_version_and_a_fresh_id() -> None:
    first, second = run(batch(record("a", 5)))[0].commit, run(batch(record("a", 5)))[0].commit
    assert (first.task, first.epoch, first.version, first.stream_time) == ("task-1", 7, 3, 5)
    assert first.commit_id != second.commit_id


def test_a_poisoned_record_is_named_by_its_source_offset() -> None:
    bad = [{"op": "filter", "where": "(value->>'n')::bigint > 0"}]
    with pytest.raises(ExpressionFailed) as failed:
        run(batch(record("a", value={"n": 1}), record("b", value={"n": "x"})).rest(1), operators=bad)
    assert failed.value.offset == 11


NEEDS_N = [ONCE, {"op": "filter", "name": "positive", "where": "(value->>'n')::bigint > 0"}]


def test_the_records_before_a_poisoned_one_are_committed_and_its_own_batch_begins_with_it() -> None:
    good = [record(key, at, {"n": 1}) for at, key in enumerate("abc")]
    poisoned = batch(*good, record("d", 3, {"n": "x"}), record("e", 4, {"n": 1}), record("f", 5, {"n": "y"}))
    outcome, _ = run(poisoned, NEEDS_N)
    assert pieces(outcome, "out-id") == {0: ["a", "b", "c"]}
    assert outcome.commit.positions == [Move(0, 10, 13, 2)]
    assert (outcome.commit.counters["records_in"], outcome.cut_after) == (3, 3)
    alone, _ = run(batch(*good), NEEDS_N)
    assert [part.to_pylist() for _, _, part in written(outcome)] == [part.to_pylist() for _, _, part in written(alone)]
    with pytest.raises(ExpressionFailed) as failed:
        run(poisoned.rest(3), NEEDS_N)
    assert failed.value.offset == 13


def test_of_several_operators_the_first_record_that_fails_is_the_one_that_ends_the_batch() -> None:
    late = {"op": "filter", "name": "late", "where": "(value->>'m')::bigint > 0"}
    rows = [record("a", 0, {"n": 1, "m": 1}), record("b", 1, {"n": 1, "m": "x"}), record("c", 2, {"n": "x"})]
    outcome, _ = run(batch(*rows), [NEEDS_N[1], late])
    assert pieces(outcome, "out-id") == {0: ["a"]}


def test_a_full_buffer_leaves_its_batch_uncommitted() -> None:
    full = {"op": "suppress", "name": "s", "until": "time_limit", "time_limit_ms": 1000}
    full["buffer"] = {"max_records": 2, "when_full": "shut_down"}
    with pytest.raises(SuppressionFull):
        run(batch(*(record(key) for key in "abc")), [full])


def test_the_cut_into_batches_changes_nothing() -> None:
    records = [record(f"k{i % 7}", i * 90) for i in range(60)]
    whole = pieces(run(batch(*records))[0], "out-id")[0]
    topology, state, keys = compiled([ONCE]), DictState(), []
    task = runner(topology)
    for start in range(0, 60, 7):
        outcome = task.run(clicks(records[start : start + 7], start), {"job-once": state})
        keys += pieces(outcome, "out-id").get(0, [])
        for stream_id, _, changes in written(outcome):
            if stream_id == "job-once-changelog-id":
                state.replay(changes, topology.stores()[0])
    assert keys == whole


# ---------------------------------------------------------------- time


def test_a_version_is_adopted_by_a_commit_of_its_own() -> None:
    topology, state = compiled([CLOSING]), DictState()
    running, states = runner(topology), {"job-closing": state}
    ((_, _, first),) = written(running.run(batch(record("a", 25)), states))
    state.replay(first, topology.stores()[0])
    outcome = running.adopt(states, Adoption(3, {"job-closing": Handover(delay_ms=5, kept_ms=20)}))
    ((stream, partition, changes),) = written(outcome)
    assert (stream, partition, outcome.changelogs) == ("job-closing-changelog-id", 0, {"job-closing": 0})
    assert dict(zip(*(column.to_pylist() for column in changes.columns), strict=True)) == {
        CLOSED_KEY: pack_time(20),
        FLOOR_KEY: pack_time(5),
    }
    assert (outcome.commit.adopted, outcome.commit.positions, outcome.commit.stream_time) == (3, [], clock.NOT_STARTED)
    assert not outcome.is_nothing


def test_a_version_is_adopted_though_there_is_nothing_to_remember() -> None:
    outcome = runner(compiled([CLOSING])).adopt({"job-closing": DictState()}, Adoption(2, {"job-closing": Handover(5)}))
    assert (outcome.segments, outcome.commit.adopted, outcome.is_nothing) == ([], 2, False)


def test_time_is_advanced_to_what_closes_everything_and_then_nothing_is_open() -> None:
    topology, state = compiled([CLOSING]), DictState()
    task, store = runner(topology), topology.stores()[0]
    opened = task.run(batch(record("a", 5)), {store.name: state})
    state.replay(written(opened)[-1][2], store)
    closed = task.advance({store.name: state}, "idle")
    assert pieces(closed, "out-id") == {0: ["a"]}
    assert closed.commit.positions == []
    assert closed.commit.advance is not None
    assert (closed.commit.advance.to, closed.commit.advance.reason) == (10, "idle")
    assert closed.commit.counters["advances"] == {"idle": 1}
    state.replay(written(closed)[-1][2], store)
    done = task.advance({store.name: state}, "idle")
    assert done.segments == []
    assert done.commit.advance is not None
    assert done.commit.advance.to is None


# ---------------------------------------------------------------- what is committed


class Names:
    """Registers segments, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def register(self, count: int) -> list[tuple[str, str]]:
        self.asked.append(count)
        ids = [uuid.uuid4().hex for _ in range(count)]
        return [(segment_id, path_of(segment_id)) for segment_id in ids]


def two_segments() -> Outcome:
    """An outcome in two segments; the changelog lies in the second."""
    records = as_records(rows_of([record("a"), record("b")]))
    segments = [encode_segment([("out-id", 0, records)]), encode_segment([("out-id", 1, records), ("log", 0, records)])]
    return Outcome(TaskCommit("c", "task-1", 7, 3, []), segments, {"job-once": 2})


def test_segments_are_written_before_they_are_committed_and_the_commit_names_them(storage: Storage) -> None:
    prepared = SegmentWriter(storage, Names().register).prepare(two_segments())
    assert [len(segment.chunks) for segment in prepared.commit.segments] == [1, 2]
    assert [segment.id in path for segment, path in zip(prepared.commit.segments, prepared.paths, strict=True)] == [
        True,
        True,
    ]


def test_a_committed_changelog_is_found_in_its_segment_at_its_offsets(storage: Storage) -> None:
    prepared = SegmentWriter(storage, Names().register).prepare(two_segments())
    published = [Published("out-id", 0, 5, 7), Published("out-id", 1, 8, 10), Published("log", 0, 30, 32)]
    ((store, chunk),) = prepared.changelog_chunks(published)
    assert (store, chunk.first_offset, chunk.end_offset, chunk.index) == ("job-once", 30, 32, 1)
    assert chunk.path == prepared.paths[1]
    assert storage.read_chunk(chunk).num_rows == 2


def test_names_are_registered_ahead(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "NAMES_AT_ONCE", 4)
    monkeypatch.setattr(commits, "LEAST_NAMES", 3)
    names = Names()
    writer = SegmentWriter(storage, names.register)
    writer.prepare(two_segments())
    assert names.asked == [4]
    writer.top_up()
    assert names.asked == [4, 4]
    writer.top_up()
    writer.prepare(two_segments())
    assert names.asked == [4, 4]


# ---------------------------------------------------------------- repartitioning

REKEY = {"op": "select_key", "key": "value->>'id'"}


def rekeyed(storage: Storage, source: Batch, own: int = 1) -> tuple[Outcome, Chunk]:
    """Task `0_<own>` of a job that repartitions by id to four targets, run over a batch; the chunk that it writes."""
    topology = compiled([REKEY, ONCE], 4)
    routes = Routes({"job-once-repartition": StreamRef("between", 4)}, {})
    outcome = TaskRunner(assigned(own), Chain(topology.sub_topologies[0], "fail"), routes).run(source, {})
    (segment,) = outcome.segments
    (meta,) = segment.chunks
    path = path_of(uuid.uuid4().hex)
    storage.write(path, segment)
    place = (meta.byte_offset, meta.byte_length, meta.crc32)
    assert (meta.stream_id, meta.partition) == ("between", own)
    return outcome, Chunk(path, "s", 0, *place, 100, 100 + meta.records, meta.records, ranges=meta.ranges)


def for_target(chunk: Chunk, target: int) -> Chunk:
    return msgspec.structs.replace(chunk, ranges=of_target(chunk.ranges, target))


def test_each_target_reads_its_own_range_with_the_time_that_its_source_task_had_reached(storage: Storage) -> None:
    ids = [{"id": name} for name in "abcdefgh"]
    times = [5, 3, 9, 8, 7, 12, 11, 1]
    outcome, chunk = rekeyed(storage, batch(*map(record, KEYS[:8], times, ids)))
    assert (outcome.commit.positions, outcome.commit.has_backlog) == ([Move(0, 10, 18, 12)], False)
    found: dict[int, list[tuple[str, int, int]]] = {}
    for target in range(4):
        own = for_target(chunk, target)
        if own.ranges is not None:
            part = storage.read_range(own)
            rows = shown(as_task_rows(part.records, pa.array(range(part.records.num_rows))))
            assert part.aligned_at is not None
            found[target] = [
                (row["key"], row["timestamp"], time) for row, time in zip(rows, part.aligned_at.tolist(), strict=True)
            ]
    everything = [each for records in found.values() for each in records]
    reached = [5, 5, 9, 9, 9, 12, 12, 12]
    assert sorted(everything) == list(zip("abcdefgh", times, reached, strict=True))
    for target, records in found.items():
        assert [key for key, _, _ in records] == [
            key for key in "abcdefgh" if partition_of(pa.array([key.encode()]), 4)[0] == target
        ]


def test_everybody_else_reads_all_targets_one_after_the_other(storage: Storage) -> None:
    _, chunk = rekeyed(storage, batch(*(record("k", 1, {"id": str(i)}) for i in range(50))))
    whole = storage.read_chunk(chunk)
    assert (whole.num_rows, whole.schema) == (50, RECORD_SCHEMA)
    firsts = [storage.read_range(for_target(chunk, target)).offsets for target in range(4)]
    assert firsts == sorted(firsts)
    assert firsts[0] == chunk.first_offset


def test_a_range_that_is_torn_is_named(storage: Storage, tmp_path: Path) -> None:
    _, chunk = rekeyed(storage, batch(*(record("k", 1, {"id": str(i)}) for i in range(50))))
    file = tmp_path / chunk.path
    body = bytearray(file.read_bytes())
    own = for_target(chunk, 2)
    place = chunk.byte_offset + int(ranges.unpack(own.ranges or b"")["byte_offset"][0]) + 40
    body[place] ^= 1
    file.write_bytes(body)
    with pytest.raises(SegmentDamaged, match="a range of chunk 0"):
        storage.read_range(own)
    assert storage.read_range(for_target(chunk, 0)).records.num_rows


def test_what_can_not_run_yet_is_nothing_to_commit(storage: Storage) -> None:
    waiting = InputRange(1, 5, 6, [write(storage, 5, [record("b", 20)])])
    heads = [InputHead("clicks", 0, 3, 3, frontier=9, bound=9), InputHead("others", 0, 5, 6, is_caught_up=True)]
    task = AssignedTask("task-1", "0_0", 0, 0, 7, 3, inputs=heads, work=[waiting], heads_digest=77)
    outcome, _ = run(read_batch(ChunkReader(storage), task, Run([waiting])))
    assert outcome.is_nothing
    held = StreamTask(task, {}, lambda: pytest.fail("its operators are not asked"))
    held.hold()
    assert (held.held({}).held_at, held.is_due) == (77, False)


@pytest.mark.parametrize(
    ("targets", "expected"), [((None, None), None), ((None, 0), 2), ((0, 0), 5)], ids=["users'", "both kinds", "none"]
)
def test_records_of_repartition_streams_are_counted_apart(
    targets: tuple[int | None, int | None], expected: int | None
) -> None:
    found = [as_records(rows_of([record(str(i), i) for i in range(count)])) for count in (3, 2)]
    parts = [Part(records, 0, np.arange(records.num_rows)) for records in found]
    unread = [Unread(Input("x", i), InputPosition(0), part.records.num_rows, [part]) for i, part in enumerate(parts)]
    heads = [InputHead("x", i, 0, 9, sub_log=target) for i, target in enumerate(targets)]
    task = runner(compiled([]))
    task = replace(task, assigned=msgspec.structs.replace(task.assigned, inputs=heads))
    counters = task.run(inputs.batch_of(unread), {}).commit.counters
    assert (counters["records_in"], counters.get("repartitioned_in")) == (5, expected)


def test_a_chunk_that_is_read_bit_by_bit_is_decoded_once(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = write(storage, 10, [record(str(i), i) for i in range(6)])
    read_chunk, decoded = storage.read_chunk, []
    monkeypatch.setattr(storage, "read_chunk", lambda each: (decoded.append(each), read_chunk(each))[1])
    reader = ChunkReader(storage)
    parts = [reader.read(chunk, at, at + 2) for at in (10, 12, 14)]
    assert [(part.offsets, part.records.column("timestamp").to_pylist()) for part in parts] == [
        (10, [0, 1]),
        (12, [2, 3]),
        (14, [4, 5]),
    ]
    assert len(decoded) == 1
    reader.read(chunk, 10, 11)
    reader.clear()
    reader.read(chunk, 10, 16)
    assert len(decoded) == 3


def test_what_is_kept_of_read_chunks_is_bounded(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [write(storage, 10 * i, [record(str(i), 1)] * 10) for i in range(3)]
    reader = ChunkReader(storage)
    size = reader.read(chunks[0], 0, 1).records.nbytes * 10
    monkeypatch.setattr(reading, "MAX_KEPT_BYTES", 2 * size)
    for chunk in chunks:
        reader.read(chunk, chunk.first_offset, chunk.first_offset + 1)
    assert len(reader._kept) == 2
    assert reader._bytes <= 2 * size
