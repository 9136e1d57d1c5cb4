"""Every read method of Kafka Streams' stores, said as a query, on entries that were put by hand; on LMDB and on Redis.

Source: KIP-94 and KIP-420 (session store: findSessions, fetch, fetchSession), KIP-67 and KIP-617 (the read side of all
stores, reverse methods). Entries and bounds follow Kafka's AbstractSessionBytesStoreTest (shouldFetchExactKeys,
shouldFindSessionsToMerge, shouldFetchExactSession, shouldRemove) and AbstractWindowBytesStoreTest (putFirstBatch).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.streams.layouts import store_keys
from service.streams.layouts.changelog import changelog_of
from service.streams.operators.function_columns import FunctionColumns
from service.streams.operators.functions import FunctionSpec
from service.streams.stores.reading import END_OF_TIME, Query
from tests.stores import Engine, Kept
from tests.task import job

COUNT = {"n": {"fn": "count"}}
DAY_MS = 24 * 3_600_000
SIZE_MS = 3
SESSIONS = {"type": "session", "gap_ms": 1, "retention_ms": DAY_MS}
WINDOWS = {"type": "hopping", "size_ms": SIZE_MS, "advance_ms": 1, "retention_ms": DAY_MS}

Place = tuple[str, int, int]  # key, start, end


def kept(engine: Engine, window: dict[str, Any] | None) -> Kept:
    operator = {"op": "aggregate", "name": "s", "window": window, "aggregates": COUNT}
    return Kept(engine, job([operator]).sub_topologies[0].nodes[0])


def put(store: Kept, entries: dict[Place, int | None]) -> None:
    """One range of the store's changelog: entry -> its count, None = deleted."""
    has_stamps = store.store.type != "session"
    codec = FunctionColumns("s", {"n": FunctionSpec(fn="count")}, has_stamps=has_stamps).codec
    keys, values = [], []
    for (key, start, end), count in entries.items():
        ordered = store_keys.ordered_one(key.encode())
        named = {
            "session": store_keys.session_key(ordered, end, start),
            "window": store_keys.window_key(ordered, start),
            "key_value": store_keys.TABLE + ordered,
        }
        keys.append(named[store.store.type])
        columns = [np.array([end])] if has_stamps else []
        columns.append(np.array([count or 0]))
        values.append(None if count is None else codec.pack(columns)[0].as_py())
    changes = changelog_of([(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))], None)
    assert changes is not None
    store.replay(changes)


def found(store: Kept, query: Query) -> list[int]:
    """The counts of what is found, in order; two at a time, so that pages are turned."""
    return [one["value"]["n"] for one in store.all(query, limit=2)]


def of(key: str, *times: int, reverse: bool = False) -> Query:
    return Query.of_key(key.encode(), *times, reverse=reverse)


def between(first: str | None, last: str | None, *times: int, reverse: bool = False) -> Query:
    bounds = [None if key is None else key.encode() for key in (first, last)]
    return Query(*bounds, *(times or (0, END_OF_TIME)), reverse)


# ---------------------------------------------------------------- ReadOnlySessionStore

LATE = 0x7A00000000000000
PUT_SESSIONS = {
    ("a", 0, 0): 1,
    ("aa", 0, 10): 2,
    ("a", 10, 20): 3,
    ("aa", 12, 22): 4,
    ("a", LATE - 2, LATE - 1): 5,
    ("b", 0, 100): 6,
    ("b", 101, 200): 7,
    ("b", 201, 300): 8,
    ("b", 301, 400): 9,
    ("b", 401, 500): 10,
}
SESSION_METHODS = [
    ("fetch(a)", of("a"), [1, 3, 5]),
    ("fetch(aa)", of("aa"), [2, 4]),
    ("fetch(nobody)", of("nobody"), []),
    ("backwardFetch(a)", of("a", reverse=True), [5, 3, 1]),
    ("fetch(a, aa)", between("a", "aa"), [1, 3, 5, 2, 4]),
    ("fetch(null, aa)", between(None, "aa"), [1, 3, 5, 2, 4]),
    ("fetch(aa, null)", between("aa", None), [2, 4, 6, 7, 8, 9, 10]),
    ("fetch(null, null)", between(None, None), [1, 3, 5, 2, 4, 6, 7, 8, 9, 10]),
    ("fetch(b, a): from is greater than to", between("b", "a"), []),
    ("backwardFetch(a, aa)", between("a", "aa", reverse=True), [4, 2, 5, 3, 1]),
    ("findSessions(b, 150, 300)", of("b", 150, 300), [7, 8]),
    ("findSessions(b, 100, 101): both bounds count", of("b", 100, 101), [6, 7]),
    ("findSessions(b, 101, 100): one that holds both", of("b", 101, 100), []),
    ("findSessions(b, 150, 150)", of("b", 150, 150), [7]),
    ("findSessions(b, 501, max)", of("b", 501, END_OF_TIME), []),
    ("backwardFindSessions(b, 150, 300)", of("b", 150, 300, reverse=True), [8, 7]),
    ("findSessions(a, aa, 0, max)", between("a", "aa", 0, END_OF_TIME), [1, 3, 5, 2, 4]),
    ("findSessions(a, aa, 10, 0)", between("a", "aa", 10, 0), [2]),
    ("findSessions(null, b, 20, 12)", between(None, "b", 20, 12), [3, 4, 6]),
    ("backwardFindSessions(null, b, 20, 12)", between(None, "b", 20, 12, reverse=True), [6, 4, 3]),
    ("fetchSession(b, 101, 200)", of("b", 200, 101), [7]),
    ("fetchSession(b, 101, 201): there is no such session", of("b", 201, 101), []),
    ("fetchSession(nobody, 0, 5)", of("nobody", 5, 0), []),
]


@pytest.mark.parametrize(("query", "counts"), [pytest.param(*row, id=name) for name, *row in SESSION_METHODS])
def test_a_session_store_answers_as_kafkas(engine: Engine, query: Query, counts: list[int]) -> None:
    store = kept(engine, SESSIONS)
    put(store, PUT_SESSIONS)
    assert found(store, query) == counts


def test_a_session_that_was_removed_is_not_found(engine: Engine) -> None:
    """remove(session) and put(session, null) are the same."""
    store = kept(engine, SESSIONS)
    put(store, {("a", 0, 1_000): 1, ("a", 1_500, 2_500): 2})
    put(store, {("a", 0, 1_000): None})
    assert found(store, of("a", 0, 1_000)) == []
    assert found(store, of("a", 1_500, 2_500)) == [2]


# ---------------------------------------------------------------- ReadOnlyWindowStore

PUT_WINDOWS = {(key, start, start + SIZE_MS): n for n, (key, start) in enumerate([("zero", 0), ("one", 1), ("two", 2)])}
PUT_WINDOWS |= {("three", 2, 5): 3, ("four", 4, 7): 4, ("five", 5, 8): 5, ("two", 3, 6): 21, ("two", 4, 7): 22}
WINDOW_METHODS = [
    ("fetch(two, 3)", of("two", 3, 3), [21]),
    ("fetch(two, 5): there is none", of("two", 5, 5), []),
    ("fetch(two, 0, 1)", of("two", 0, 1), []),
    ("fetch(two, 2, 3): both bounds count", of("two", 2, 3), [2, 21]),
    ("fetch(two, 0, max)", of("two", 0, END_OF_TIME), [2, 21, 22]),
    ("fetch(two, 4, 2)", of("two", 4, 2), []),
    ("backwardFetch(two, 3, 4)", of("two", 3, 4, reverse=True), [22, 21]),
    ("fetch(one, two, 2, 3)", between("one", "two", 2, 3), [3, 2, 21]),
    ("backwardFetch(one, two, 2, 3)", between("one", "two", 2, 3, reverse=True), [21, 2, 3]),
    ("fetch(null, one, 0, 4)", between(None, "one", 0, 4), [4, 1]),
    ("fetch(two, null, 0, 2)", between("two", None, 0, 2), [2, 0]),
    ("all()", between(None, None), [5, 4, 1, 3, 2, 21, 22, 0]),
    ("backwardAll()", between(None, None, reverse=True), [0, 22, 21, 2, 3, 1, 4, 5]),
    ("fetchAll(1, 4)", between(None, None, 1, 4), [4, 1, 3, 2, 21, 22]),
    ("fetchAll(6, max)", between(None, None, 6, END_OF_TIME), []),
    ("backwardFetchAll(4, 5)", between(None, None, 4, 5, reverse=True), [22, 4, 5]),
]


@pytest.mark.parametrize(("query", "counts"), [pytest.param(*row, id=name) for name, *row in WINDOW_METHODS])
def test_a_window_store_answers_as_kafkas(engine: Engine, query: Query, counts: list[int]) -> None:
    store = kept(engine, WINDOWS)
    put(store, PUT_WINDOWS)
    assert found(store, query) == counts


def test_the_windows_of_a_window_store_end_a_window_size_after_their_start(engine: Engine) -> None:
    store = kept(engine, WINDOWS)
    put(store, PUT_WINDOWS)
    assert store.windows(of("two")) == [("two", 2, 5), ("two", 3, 6), ("two", 4, 7)]


# ---------------------------------------------------------------- ReadOnlyKeyValueStore

PUT_KEYS = {("a", 0, 0): 1, ("aa", 0, 0): 2, ("b", 0, 0): 3, ("ba", 0, 0): 4, ("c", 0, 0): 5}
KEY_METHODS = [
    ("get(b)", of("b"), [3]),
    ("get(nobody)", of("nobody"), []),
    ("range(aa, ba): both bounds count", between("aa", "ba"), [2, 3, 4]),
    ("range(null, aa)", between(None, "aa"), [1, 2]),
    ("range(bb, null)", between("bb", None), [5]),
    ("range(c, a)", between("c", "a"), []),
    ("reverseRange(aa, ba)", between("aa", "ba", reverse=True), [4, 3, 2]),
    ("all()", between(None, None), [1, 2, 3, 4, 5]),
    ("reverseAll()", between(None, None, reverse=True), [5, 4, 3, 2, 1]),
]


@pytest.mark.parametrize(("query", "counts"), [pytest.param(*row, id=name) for name, *row in KEY_METHODS])
def test_a_key_value_store_answers_as_kafkas(engine: Engine, query: Query, counts: list[int]) -> None:
    store = kept(engine, None)
    put(store, PUT_KEYS)
    assert found(store, query) == counts
