"""Key-value stores, read: aggregates without windows, what deduplicate remembers, what suppress holds back.

Source: KIP-67's ReadOnlyKeyValueStore: get, range (both bounds included), all. On LMDB and on Redis.
"""

from __future__ import annotations

from pathlib import Path

from service.streams.stores.reading import Query
from tests.stores import Engine, Job, at

TABLE = {
    "op": "aggregate",
    "name": "t",
    "aggregates": {"n": {"fn": "count"}, "all": {"fn": "collect", "of": "value->>'v'"}},
}
HOUR_MS = 3_600_000


def test_a_table_has_one_entry_a_key(engine: Engine, tmp_path: Path) -> None:
    job = Job(engine, tmp_path, [TABLE], partitions=2)
    store = job.stores["x-t"]
    job.feed(at("b", 5) + at("a", 3) + at("b", 4) + at("c", 9))
    assert store.of_key("b") == [
        {
            "key": "b",
            "window": None,
            "value": {"n": 2, "all": ["1", "1"]},
            "timestamp": 5,
            "closes_at": None,
            "is_final": False,
        }
    ]
    assert [one["key"] for one in store.all()] == ["a", "b", "c"]
    assert [one["key"] for one in store.all(Query(b"b", b"c"))] == ["b", "c"]
    assert [one["key"] for one in store.all(Query(reverse=True), limit=1)] == ["c", "b", "a"]
    assert store.of_key("d") == []


def test_deduplicate_remembers_keys_until_their_interval_is_over(engine: Engine, tmp_path: Path) -> None:
    job = Job(engine, tmp_path, [{"op": "deduplicate_by_key", "name": "d", "interval_ms": 100}])
    store = job.stores["x-d"]
    long = "k" * 500  # kept as a hash
    job.feed(at("a", 1) + at("b", 50) + at(long, 60))
    assert [(one["key"], one["timestamp"]) for one in store.all()] == [("a", 1), ("b", 50), (None, 60)]
    assert [(one["key"], one["timestamp"]) for one in store.of_key(long)] == [(long, 60)]
    assert [one["key"] for one in store.all(Query(b"a", b"a"))] == ["a"]
    assert [one["key"] for one in store.all(Query(b"b", None))] == ["b"]
    job.feed(at("c", 101))
    assert len(store.of_key("a")) == 1
    job.feed(at("c", 102))
    assert store.of_key("a") == []
    assert [one["key"] for one in store.all()] == ["b", "c", None]


def test_deduplicate_by_key_value_shows_the_ids_of_a_key(engine: Engine, tmp_path: Path) -> None:
    operator = {"op": "deduplicate_by_key_value", "name": "d", "id": "value->>'v'", "interval_ms": HOUR_MS}
    job = Job(engine, tmp_path, [operator], partitions=2)
    store = job.stores["x-d"]
    job.feed(
        [
            {"key": key, "value": {"v": v}, "timestamp": 1}
            for key, v in [("a", "x"), ("a", "y"), ("aa", "x"), ("b", "z")]
        ]
    )
    assert [one["value"] for one in store.of_key("a")] == [{"id": "x"}, {"id": "y"}]
    assert sorted((one["key"], one["value"]["id"]) for one in store.all(Query(b"aa", b"b"))) == [
        ("aa", "x"),
        ("b", "z"),
    ]
    assert len(store.all()) == 4
    assert store.of_key("k" * 500) == []


def test_suppress_shows_what_it_holds_back(engine: Engine, tmp_path: Path) -> None:
    window = {"type": "session", "gap_ms": 10, "grace_ms": 5}
    count = {"op": "aggregate", "name": "s", "window": window, "aggregates": {"n": {"fn": "count"}}}
    final = {"op": "suppress", "name": "f", "until": "window_closes", "buffer": {}}
    job = Job(engine, tmp_path, [count, final])
    store = job.stores["x-f"]
    job.feed(at("a", 0, 5) + at("b", 7))
    assert [(one["key"], one["window"], one["value"], one["closes_at"]) for one in store.all()] == [
        ("a", {"start": 0, "end": 0}, None, 15),  # a tombstone: the session grew
        ("a", {"start": 0, "end": 5}, {"n": 2}, 20),
        ("b", {"start": 7, "end": 7}, {"n": 1}, 22),
    ]
    job.feed(at("b", 21))
    assert store.windows() == [("b", 7, 7), ("b", 21, 21)]
    assert store.windows(Query.of_key(b"b")) == [("b", 7, 7), ("b", 21, 21)]


def test_suppress_with_a_time_limit_holds_updates_without_windows(engine: Engine, tmp_path: Path) -> None:
    count = {"op": "aggregate", "name": "t", "aggregates": {"n": {"fn": "count"}}}
    later = {"op": "suppress", "name": "f", "until": "time_limit", "time_limit_ms": 100, "buffer": {}}
    job = Job(engine, tmp_path, [count, later])
    job.feed(at("a", 0, 5))
    (found,) = job.stores["x-f"].all()
    assert (found["key"], found["window"], found["value"], found["closes_at"]) == ("a", None, {"n": 2}, None)
