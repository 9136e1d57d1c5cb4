"""What is not over yet, in LMDB, which has indexes of what is to come out, and in Redis, which has none: the same."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from service.streams.stores.pending import Ending, Pending, read_pending
from service.streams.stores.reading import read
from tests.stores import Engine, Job, Kept, at

COUNT = {"op": "aggregate", "name": "s", "aggregates": {"n": {"fn": "count"}}}
DAY_MS = 86_400_000


def pending(engine: Engine, kept: Kept, most: int = 20_000) -> Pending:
    with ExitStack() as views:
        snapshot: Any = views.enter_context(kept.replicas[0].reader())
        look = read_pending(kept.form, 0, 3, has_indexes=engine.client is None, most=most)
        found = read(look, {0: snapshot})
    assert found is not None
    return found


@pytest.mark.parametrize("emit", ["on_update", "on_window_close"])
def test_windows_that_closed_are_passed_over_key_by_key(engine: Engine, tmp_path: Path, emit: str) -> None:
    """A thousand windows of each of three keys are kept, of which the last is open: 300 entries are enough to know."""
    window = {"type": "tumbling", "size_ms": 10, "grace_ms": 5, "retention_ms": DAY_MS}
    job = Job(engine, tmp_path, [{**COUNT, "window": window, "emit": emit}])
    job.feed([each for time in range(0, 10_000, 10) for key in "abc" for each in at(key, time)])
    job.feed(at("b", 9_998))
    found = pending(engine, job.stores["x-s"], most=300)
    assert (found.number, found.is_all, found.last_at) == (3, True, 10_005)
    assert found.first == [Ending(10_005, 10_000, 3, True)]
    assert found.open_from == 9_998 - 5 + 1


def test_sessions_and_what_suppress_holds_back(engine: Engine, tmp_path: Path) -> None:
    sessions = {**COUNT, "window": {"type": "session", "gap_ms": 100}}
    job = Job(engine, tmp_path, [sessions, {"op": "suppress", "name": "final", "until": "window_closes"}])
    job.feed([*at("a", 0, 50), *at("b", 60), *at("c", 140)])
    expected = [Ending(151, 50, 1, True), Ending(161, 60, 1, True), Ending(241, 140, 1, True)]
    open_sessions, held = (pending(engine, job.stores[name]) for name in ("x-s", "x-final"))
    assert (open_sessions.number, open_sessions.first, open_sessions.last_at) == (3, expected, 241)
    assert (held.number, held.first, held.last_at, held.bytes) == (3, expected, 241, 3 * (1 + len('{"n":1}') + 16))
    job.feed(at("d", 161))
    assert pending(engine, job.stores["x-s"]).number == 2
    assert pending(engine, job.stores["x-final"]).number == 2


def test_where_too_much_lies_nothing_is_told_that_may_be_otherwise(engine: Engine, tmp_path: Path) -> None:
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}
    job = Job(engine, tmp_path, [once])
    job.feed([each for n in range(50) for each in at(f"k{n}", n)])
    found = pending(engine, job.stores["x-once"], most=20)
    assert (found.number, found.is_all, found.first, found.last_at) == (20, False, None, None)
    assert pending(engine, job.stores["x-once"]).first == [Ending(1_001 + n, n, 1, True) for n in range(3)]
