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
