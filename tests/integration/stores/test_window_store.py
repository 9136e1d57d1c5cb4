"""The window store, read: fetch by key and time, ranges, all; on LMDB and on Redis.

Source: KIP-94 and KIP-67's ReadOnlyWindowStore: times are window starts, both bounds included (the cases of Kafka's
AbstractWindowBytesStoreTest: shouldGetBackward, testFetchRange, shouldFetchAllInTimeRange).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.streams.stores.reading import Query
from tests.stores import Engine, Job, Kept, at

TUMBLING = {"type": "tumbling", "size_ms": 10, "grace_ms": 5, "retention_ms": 1_000}
AGGREGATES = {"n": {"fn": "count"}, "v": {"fn": "sum", "of": "(value->>'v')::bigint"}}


def windows(engine: Engine, folder: Path, partitions: int = 1, **window: Any) -> tuple[Job, Kept]:
    count = {"op": "aggregate", "name": "w", "window": window or TUMBLING, "aggregates": AGGREGATES}
    job = Job(engine, folder, [count], partitions)
    return job, job.stores["x-w"]


@pytest.mark.parametrize(
    ("low", "high", "starts"),
    [
        (0, 10_000, [0, 10, 20, 30, 40]),
        (10, 30, [10, 20, 30]),
        (11, 29, [20]),
        (9, 31, [10, 20, 30]),
        (40, 40, [40]),
        (41, 10_000, []),
        (30, 10, []),
    ],
)
def test_fetch_takes_the_windows_that_start_between_both_bounds(
    engine: Engine, tmp_path: Path, low: int, high: int, starts: list[int]
) -> None:
    job, store = windows(engine, tmp_path)
    job.feed(at("a", 5, 15, 25, 35, 45) + at("b", 45))
    expected = [("a", start, start + 10) for start in starts]
    assert store.windows(Query.of_key(b"a", low, high)) == expected
    assert store.windows(Query.of_key(b"a", low, high, reverse=True)) == expected[::-1]


def test_ranges_and_all_go_key_by_key_then_by_start(engine: Engine, tmp_path: Path) -> None:
    job, store = windows(engine, tmp_path, partitions=3)
    job.feed(at("b", 5, 15, 25) + at("a", 15, 25) + at("ab", 25))
    every = [("a", 10, 20), ("a", 20, 30), ("ab", 20, 30), ("b", 0, 10), ("b", 10, 20), ("b", 20, 30)]
    assert store.windows() == every
    assert store.windows(Query(reverse=True)) == every[::-1]
    assert store.windows(Query(b"a", b"ab")) == every[:3]
    assert store.windows(Query(from_time=10, to_time=10)) == [("a", 10, 20), ("b", 10, 20)]


def test_a_tumbling_window_is_final_at_its_end_and_grace(engine: Engine, tmp_path: Path) -> None:
    job, store = windows(engine, tmp_path)
    job.feed(at("a", 3, 7))
    for stream_time, is_final in ((14, False), (15, True)):
        job.feed(at("b", stream_time))
        (found,) = store.of_key("a")
        assert (found["closes_at"], found["is_final"]) == (15, is_final)
    assert found["value"] == {"n": 2, "v": 2}
    assert found["timestamp"] == 7


def test_a_sliding_window_is_final_one_past_its_end_and_grace(engine: Engine, tmp_path: Path) -> None:
    job, store = windows(engine, tmp_path, type="sliding", time_difference_ms=10, grace_ms=5, retention_ms=1_000)
    job.feed(at("a", 20))
    for stream_time, is_final in ((25, False), (26, True)):
        job.feed(at("b", stream_time))
        (found,) = store.of_key("a")
        assert found["window"] == {"start": 10, "end": 20}  # both included
        assert (found["closes_at"], found["is_final"]) == (25, is_final)


def test_hopping_windows_overlap(engine: Engine, tmp_path: Path) -> None:
    job, store = windows(engine, tmp_path, type="hopping", size_ms=10, advance_ms=5)
    job.feed(at("a", 12))
    assert store.windows() == [("a", 5, 15), ("a", 10, 20)]


def test_a_window_that_stream_time_has_expired_is_hidden(engine: Engine, tmp_path: Path) -> None:
    job, store = windows(engine, tmp_path)
    kept_ms = 10 + 5 + 1_000
    job.feed(at("a", 5))
    job.feed(at("b", kept_ms))
    assert store.windows(Query.of_key(b"a")) == [("a", 0, 10)]
    job.feed(at("b", kept_ms + 1))
    assert store.windows(Query.of_key(b"a")) == []


def test_the_windows_of_distinct_hold_no_value(engine: Engine, tmp_path: Path) -> None:
    operator = {"op": "distinct", "name": "d", "window": {"type": "tumbling", "size_ms": 10}}
    job = Job(engine, tmp_path, [operator])
    job.feed(at("a", 5, 6, 15))
    found = job.stores["x-d"].all()
    assert [(one["window"]["start"], one["value"], one["timestamp"]) for one in found] == [(0, None, 5), (10, None, 15)]
    assert [one["is_final"] for one in found] == [True, False]


def test_the_sessions_of_distinct_grow(engine: Engine, tmp_path: Path) -> None:
    operator = {"op": "distinct", "name": "d", "window": {"type": "session", "gap_ms": 10}}
    job = Job(engine, tmp_path, [operator])
    job.feed(at("a", 5))
    job.feed(at("a", 9, 40))
    assert job.stores["x-d"].windows() == [("a", 5, 9), ("a", 40, 40)]
