"""The session store as KIP-94 describes it, read: find_sessions, fetch, ranges; on LMDB and on Redis.

Sources: KIP-94 "SessionStore" with the bounds as Kafka ships them (both inclusive), and the cases of Kafka's own
AbstractSessionBytesStoreTest (shouldFindSessionsToMerge, shouldFetchExactKeys, shouldFetchResultsFromAdjacentSessions,
the backward ones).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from service.streams.stores.reading import Query
from tests.stores import Engine, Job, Kept, at

GAP_MS, GRACE_MS, RETENTION_MS = 10, 5, 1_000
AGGREGATES = {"n": {"fn": "count"}, "v": {"fn": "sum", "of": "(value->>'v')::bigint"}}


def sessions(engine: Engine, folder: Path, partitions: int = 1, **window: int) -> tuple[Job, Kept]:
    chosen = {"type": "session", "gap_ms": GAP_MS, "grace_ms": GRACE_MS, "retention_ms": RETENTION_MS} | window
    count = {"op": "aggregate", "name": "visits", "window": chosen, "aggregates": AGGREGATES}
    job = Job(engine, folder, [count], partitions)
    return job, job.stores["x-visits"]


@pytest.fixture
def five(engine: Engine, tmp_path: Path) -> Kept:
    """Sessions [0, 100], [101, 200], [201, 300], [301, 400], [401, 500] of the key a."""
    job, store = sessions(engine, tmp_path, gap_ms=1, grace_ms=10_000, retention_ms=1_000_000)
    for first in (0, 102, 204, 306, 408):
        job.feed(at("a", *range(first, first + 101)))
    assert store.windows() == [("a", first, first + 100) for first in (0, 102, 204, 306, 408)]
    return store


# KIP-94: findSessions(key, earliestSessionEndTime, latestSessionStartTime); fetch(key) is (0, ∞).
FETCH = [
    pytest.param(0, 10_000, [0, 102, 204, 306, 408], id="fetch: all of the key, oldest first"),
    pytest.param(150, 304, [102, 204], id="those that end at 150 or later and start at 304 or before"),
    pytest.param(100, 10_000, [0, 102, 204, 306, 408], id="an end exactly at the bound counts"),
    pytest.param(101, 10_000, [102, 204, 306, 408], id="an end just before the bound does not"),
    pytest.param(0, 204, [0, 102, 204], id="a start exactly at the bound counts"),
    pytest.param(0, 203, [0, 102], id="a start just after the bound does not"),
    pytest.param(150, 150, [102], id="the session that holds a moment"),
    pytest.param(101, 101, [], id="between two sessions there is none"),
    pytest.param(10_000, 10_000, [], id="nothing ends so late"),
]


@pytest.mark.parametrize(("earliest_end", "latest_start", "starts"), FETCH)
def test_find_sessions_as_the_table_says(five: Kept, earliest_end: int, latest_start: int, starts: list[int]) -> None:
    found = five.windows(Query.of_key(b"a", earliest_end, latest_start))
    assert found == [("a", start, start + 100) for start in starts]


@pytest.mark.parametrize(("earliest_end", "latest_start", "starts"), FETCH)
def test_backward_find_sessions_gives_the_same_in_reverse(
    five: Kept, earliest_end: int, latest_start: int, starts: list[int]
) -> None:
    found = five.windows(Query.of_key(b"a", earliest_end, latest_start, reverse=True))
    assert found == [("a", start, start + 100) for start in reversed(starts)]


def test_sessions_packed_together_and_sessions_on_their_own_come_in_one_order(engine: Engine, tmp_path: Path) -> None:
    job, store = sessions(engine, tmp_path)
    starts = list(range(0, 100 * 20, 20))  # so many that most of them are closed and lie on their own
    for begin in range(0, len(starts), 7):
        job.feed([record for start in starts[begin : begin + 7] for key in ("a", "b") for record in at(key, start)])
    for key in (b"a", b"b"):
        assert store.windows(Query.of_key(key)) == [(key.decode(), start, start) for start in starts if start >= 965]
    assert store.windows(Query.of_key(b"a", reverse=True), limit=3) == store.windows(Query.of_key(b"a"))[::-1]


def test_a_range_of_keys_includes_both_bounds_and_goes_key_by_key(engine: Engine, tmp_path: Path) -> None:
    job, store = sessions(engine, tmp_path, partitions=3, grace_ms=1_000)
    job.feed([record for key in ("a", "b", "ba", "c", "") for record in at(key, 0, 100)])
    every = [(key, start, start) for key in ("", "a", "b", "ba", "c") for start in (0, 100)]
    assert store.windows() == every
    assert store.windows(Query(b"b", b"c")) == every[4:]
    assert store.windows(Query(b"a", b"b")) == every[2:6]
    assert store.windows(Query(None, b"b")) == every[:6]
    assert store.windows(Query(b"bb", None)) == every[8:]
    assert store.windows(Query(b"a", b"b", reverse=True)) == every[2:6][::-1]
    assert store.windows(Query(b"c", b"a")) == []  # as Kafka Streams: nothing, no error
    assert store.windows(Query(b"a", b"c", from_time=50)) == [
        ("a", 100, 100),
        ("b", 100, 100),
        ("ba", 100, 100),
        ("c", 100, 100),
    ]
    assert store.windows(Query(b"a", b"c", to_time=50)) == [("a", 0, 0), ("b", 0, 0), ("ba", 0, 0), ("c", 0, 0)]


def test_keys_of_any_bytes_and_length_are_told_apart(engine: Engine, tmp_path: Path) -> None:
    job, store = sessions(engine, tmp_path)
    keys = ["", "\x00", "\x00\x00", "a", "a\x00", "a\x00b", "a" * 8, "a" * 9, "é/ü", "k" * 400]
    job.feed([record for key in keys for record in at(key, 5)])
    assert [key for key, _, _ in store.windows()] == sorted(keys, key=str.encode)
    for key in keys:
        assert store.windows(Query.of_key(key.encode())) == [(key, 5, 5)]
    for other in ("b", "a" * 7, "k" * 399, "k" * 401, "k" * 5_000):
        assert store.windows(Query.of_key(other.encode())) == []
    assert store.windows(Query(b"k" * 5_000, None)) == [("é/ü", 5, 5)]


def test_open_sessions_are_those_that_are_not_final(engine: Engine, tmp_path: Path) -> None:
    job, store = sessions(engine, tmp_path)
    starts = list(range(0, 100 * 12, 12))  # too many for one look; those before the last two are closed
    for begin in range(0, len(starts), 7):
        job.feed([record for start in starts[begin : begin + 7] for key in ("a", "b") for record in at(key, start)])
    current = [start for start in starts if start + GAP_MS + GRACE_MS >= starts[-1]]
    assert len(current) == 2
    for key in (b"a", b"b"):
        assert store.windows(Query.of_key(key, is_open=True)) == [(key.decode(), start, start) for start in current]
    assert store.windows(Query.of_key(b"a", is_open=True, reverse=True), limit=1) == [
        ("a", start, start) for start in current[::-1]
    ]
    assert store.windows(Query(is_open=True)) == [(key, start, start) for key in "ab" for start in current]


def test_a_session_is_final_one_past_its_gap_and_grace(engine: Engine, tmp_path: Path) -> None:
    job, store = sessions(engine, tmp_path)
    job.feed(at("a", 100, 104))
    for stream_time, is_final in ((104 + GAP_MS + GRACE_MS, False), (104 + GAP_MS + GRACE_MS + 1, True)):
        job.feed(at("b", stream_time))
        (found,) = store.of_key("a")
        assert found["closes_at"] == 104 + GAP_MS + GRACE_MS
        assert found["is_final"] is is_final
    assert found["window"] == {"start": 100, "end": 104}
    assert found["value"] == {"n": 2, "v": 2}
    assert found["timestamp"] == 104


def test_a_session_that_stream_time_has_expired_is_hidden_and_not_before(engine: Engine, tmp_path: Path) -> None:
    job, store = sessions(engine, tmp_path)
    kept_ms = GAP_MS + GRACE_MS + RETENTION_MS
    job.feed(at("a", 100))
    job.feed(at("b", 100 + kept_ms))
    assert store.windows(Query.of_key(b"a")) == [("a", 100, 100)]
    job.feed(at("b", 100 + kept_ms + 1))
    assert store.windows(Query.of_key(b"a")) == []
    assert store.windows() == [("b", 100 + kept_ms, 100 + kept_ms + 1)]


def test_each_partition_expires_by_its_own_stream_time(engine: Engine, tmp_path: Path) -> None:
    job, store = sessions(engine, tmp_path, partitions=2)
    job.feed(at("a", 0, partition=0) + at("a", 0, partition=1))
    job.feed(at("b", 1_000_000, partition=1))
    assert store.windows() == [("a", 0, 0), ("b", 1_000_000, 1_000_000)]
    assert not store.all()[0]["is_final"]


def test_a_merged_session_takes_the_place_of_its_parts(engine: Engine, tmp_path: Path) -> None:
    job, store = sessions(engine, tmp_path, grace_ms=100)
    job.feed(at("a", 0, 20))
    assert store.windows() == [("a", 0, 0), ("a", 20, 20)]
    job.feed(at("a", 10))
    assert store.windows() == [("a", 0, 20)]
    assert store.of_key("a")[0]["value"] == {"n": 3, "v": 3}
