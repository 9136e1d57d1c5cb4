"""One batch of one task, without Spark, API or catalog: what is read, where results go, what the commit says."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.protocol import AssignedTask, InputHead, InputRange, Move, StoreRef, StreamRef
from service.storage.segments import Storage, encode_segment, open_storage, path_of
from service.streams import inputs
from service.streams.errors import ExpressionFailed, SegmentDamaged
from service.streams.inputs import Batch, Input, Part, Position, Unread
from service.streams.partitioner import murmur2
from service.streams.records import Chunk, as_records
from service.streams.topology import graph
from service.streams.topology.chain import Chain
from service.streams.topology.spec import JobSpec
from spark_jobs import task
from spark_jobs.client import Json
from spark_jobs.task import Done, Routes, read_batch, run_batch
from tests.task import DictState, rows_of, shown

ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1000}
KEYS = [f"user-{i}" for i in range(40)]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def record(key: str | None, timestamp: int = 0, value: Any = 1) -> Json:
    return {"key": key, "value": value, "timestamp": timestamp}


def write(storage: Storage, first_offset: int, records: Sequence[Json]) -> Chunk:
    """A published chunk of a source stream."""
    segment = encode_segment([("clicks", 0, as_records(rows_of(records)))])
    segment_id = uuid.uuid4().hex
    storage.write(path_of(segment_id), segment)
    meta = segment.chunks[0]
    place = (meta.byte_offset, meta.byte_length, meta.crc32)
    return Chunk(path_of(segment_id), segment_id, 0, *place, first_offset, first_offset + meta.records, meta.records)


def work(start: int, end: int, *chunks: Chunk) -> InputRange:
    return InputRange(0, start, end, list(chunks))


def read(storage: Storage, work: InputRange, skips: Sequence[tuple[int, int]] = ()) -> Batch:
    head = InputHead("clicks", 0, work.start, work.end)
    return read_batch(storage, AssignedTask("task-1", "0_0", 0, 0, 7, 3, inputs=[head], skips=list(skips)), work)


def run(
    batch: Batch, operators: Sequence[Json] = (ONCE,), *, partition: int = 0, out: int = 1, **spec: Any
) -> tuple[Done, DictState]:
    """Run a batch on task `0_<partition>`, whose sink has `out` partitions."""
    parsed = JobSpec.parse({"name": "job", "source": "in", "sink": "out", "operators": list(operators), **spec})
    part = graph.compile(parsed, {"in": partition + 1}).sub_topologies[0]
    state = DictState()
    now = AssignedTask("task-1", f"0_{partition}", 0, partition, 7, 3)
    routes = Routes({"out": StreamRef("out-id", out)}, {"job-once": StoreRef("store-1", "changelog-id")})
    return run_batch(now, Chain(part, parsed.on_error), batch, {"job-once": state}, routes), state


def clicks(records: Sequence[Json], start: int) -> Batch:
    """Records of `clicks` from an offset on."""
    part = Part(as_records(rows_of(records)), start)
    return inputs.batch_of([Unread(Input("clicks", 0), Position(start), start + len(records), [part])])


def batch(*records: Json) -> Batch:
    return clicks(records, 10)


def pieces(done: Done, stream: str) -> dict[int, list[str | None]]:
    """Keys by partition of what a segment holds for a stream."""
    assert done.segment is not None
    told = zip(done.segment.chunks, done.segment.batches, strict=True)
    return {
        meta.partition: [row["key"] for row in shown(records)] for meta, records in told if meta.stream_id == stream
    }


def offsets(found: Batch) -> list[int]:
    listed: list[int] = found.origins.words(found.rows.column("ordinal").to_numpy()).tolist()
    return listed


# ---------------------------------------------------------------- reading


def test_records_carry_the_offsets_of_their_chunk(storage: Storage) -> None:
    chunk = write(storage, 100, [record("a"), record("b"), record("c")])
    assert offsets(read(storage, work(100, 103, chunk))) == [100, 101, 102]


def test_a_range_may_begin_and_end_inside_chunks(storage: Storage) -> None:
    first = write(storage, 0, [record(key) for key in "abcd"])
    second = write(storage, 4, [record(key) for key in "efgh"])
    found = read(storage, work(2, 6, first, second))
    assert offsets(found) == [2, 3, 4, 5]
    assert [row["key"] for row in shown(found.rows)] == ["c", "d", "e", "f"]
    assert (found.starts[0].offset, found.ends) == (2, [6])


def test_a_gap_between_chunks_is_passed(storage: Storage) -> None:
    found = read(storage, work(0, 12, write(storage, 0, [record("a")]), write(storage, 10, [record("b")])))
    assert offsets(found) == [0, 10]
    assert found.ends == [12]


def test_skipped_offsets_are_left_out_and_passed(storage: Storage) -> None:
    chunk = write(storage, 0, [record(key) for key in "abcd"])
    found = read(storage, work(0, 4, chunk), skips=[(0, 1), (0, 3), (0, 99), (1, 0)])
    assert offsets(found) == [0, 2]
    assert found.ends == [4]


def test_a_batch_that_is_skipped_as_a_whole_still_moves_the_position(storage: Storage) -> None:
    found = read(storage, work(0, 1, write(storage, 0, [record("a")])), skips=[(0, 0)])
    done, _ = run(found)
    assert done.segment is None
    assert done.commit.positions == [Move(0, 0, 1, -1)]


def test_memory_bounds_a_batch_before_its_record_count_does(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MAX_BATCH_BYTES", 1)
    first, second = write(storage, 0, [record("a")]), write(storage, 1, [record("b")])
    found = read(storage, work(0, 2, first, second))
    assert offsets(found) == [0]
    assert (found.starts[0].offset, found.ends) == (0, [1])


def test_a_torn_segment_is_named(storage: Storage, tmp_path: Path) -> None:
    chunk = write(storage, 0, [record("a")])
    file = tmp_path / chunk.path
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(SegmentDamaged, match=chunk.segment):
        read(storage, work(0, 1, chunk))


# ---------------------------------------------------------------- running


def test_outputs_go_to_the_partition_that_kafka_would_choose() -> None:
    done, _ = run(batch(*map(record, KEYS)), operators=(), out=5)
    found = pieces(done, "out-id")
    assert sorted(found) == [0, 1, 2, 3, 4]
    for partition, keys in found.items():
        assert keys == [key for key in KEYS if (murmur2(key.encode()) & 0x7FFFFFFF) % 5 == partition]


def test_null_keys_stay_with_their_task() -> None:
    done, _ = run(batch(record(None), record(None)), operators=(), partition=3, out=2)
    assert pieces(done, "out-id") == {1: [None, None]}


def test_order_is_kept_within_a_partition() -> None:
    done, _ = run(batch(*(record("same", i, i) for i in range(50))), operators=(), out=3)
    assert done.segment is not None
    (records,) = done.segment.batches
    assert [row["value"] for row in shown(records)] == list(range(50))


def test_records_of_one_partition_are_not_copied() -> None:
    source = batch(*(record("same", i) for i in range(10)))
    done, _ = run(source, operators=(), out=8)
    assert done.segment is not None
    assert done.segment.batches[0].column("key").buffers()[2].address == source.rows.column("key").buffers()[2].address


def test_the_changelog_is_a_chunk_of_the_same_segment() -> None:
    done, _ = run(batch(record("a", 5), record("b", 6), record("a", 7)), out=1)
    assert done.segment is not None
    assert [(meta.stream_id, meta.records) for meta in done.segment.chunks] == [("out-id", 2), ("changelog-id", 3)]
    assert done.changelogs == {"job-once": 1}


def test_the_state_does_not_move_before_the_commit() -> None:
    _, state = run(batch(record("a", 5)))
    assert state == {}


def test_duplicates_are_counted_by_operator_and_reason() -> None:
    done, _ = run(batch(record("a", 5), record("a", 6), record("a", 7)))
    counters = done.commit.counters
    assert (counters["records_in"], counters["records_out"]) == (3, 1)
    assert counters["dropped"] == {"once": {"duplicate": 2}}


def test_a_batch_of_which_nothing_comes_out_writes_no_segment() -> None:
    done, _ = run(batch(record("a")), operators=[{"op": "filter", "where": "false"}])
    assert done.segment is None
    assert done.commit.segments == []


def test_a_commit_names_epoch_version_and_a_fresh_id() -> None:
    first, second = run(batch(record("a", 5)))[0].commit, run(batch(record("a", 5)))[0].commit
    assert (first.task, first.epoch, first.version, first.stream_time) == ("task-1", 7, 3, 5)
    assert first.commit_id != second.commit_id


def test_a_poisoned_record_is_named_by_its_source_offset() -> None:
    bad = [{"op": "filter", "where": "(value->>'n')::bigint > 0"}]
    with pytest.raises(ExpressionFailed) as failed:
        run(batch(record("a", value={"n": 1}), record("b", value={"n": "x"})), operators=bad)
    assert failed.value.offset == 11


def test_the_cut_into_batches_changes_nothing() -> None:
    records = [record(f"k{i % 7}", i * 90) for i in range(60)]
    whole = pieces(run(batch(*records))[0], "out-id")[0]
    parsed = JobSpec.parse({"name": "job", "source": "in", "sink": "out", "operators": [ONCE]})
    topology = graph.compile(parsed, {"in": 1})
    chain, state, keys = Chain(topology.sub_topologies[0], "fail"), DictState(), []
    routes = Routes({"out": StreamRef("out-id", 1)}, {"job-once": StoreRef("store-1", "changelog-id")})
    for start in range(0, 60, 7):
        now = AssignedTask("task-1", "0_0", 0, 0, 1, 0)
        part = clicks(records[start : start + 7], start)
        done = run_batch(now, chain, part, {"job-once": state}, routes)
        if done.segment is not None:
            keys += pieces(done, "out-id").get(0, [])
            changes: pa.RecordBatch = done.segment.batches[done.changelogs["job-once"]]
            state.replay(changes, topology.stores()[0])
    assert keys == whole
