"""What lookups show of a store whose operator a version has changed: what is absent, what is final, when it closes."""

import pytest

from service.streams.operators.adoption import Handover, adopt
from service.streams.stores.reading import Query, read, read_page
from service.streams.topology.graph import form_of
from tests.task import Task, View, batch_of, job, run_all

KINDS = {
    "tumbling": {"type": "tumbling", "size_ms": 10},
    "sliding": {"type": "sliding", "time_difference_ms": 9},
    "session": {"type": "session", "gap_ms": 1},
}


def windows(kind, grace_ms, retention_ms=1_000):
    window = {**KINDS[kind], "grace_ms": grace_ms, "retention_ms": retention_ms}
    return [{"op": "aggregate", "name": "agg", "window": window, "aggregates": {"n": {"fn": "count"}}}]


def once(interval_ms):
    return [{"op": "deduplicate_by_key", "name": "agg", "interval_ms": interval_ms}]


def changed(former, operators, handover):
    """The next version of a task, over its state."""
    task = Task(job(operators))
    task.states = former.states
    changes = adopt(task.states["t-agg"], handover)
    if changes is not None:
        task.replay({"t-agg": changes})
    return task


def at(*times, key="a"):
    return [batch_of([{"key": key, "value": {}, "timestamp": time}]) for time in times]


def found(task, **query):
    (node,) = task.topology.sub_topologies[0].nodes
    page = read(read_page(form_of(node), Query(**query), [0], 100), {0: View(task.states["t-agg"])})
    return [(each.entry.window or each.entry.timestamp, each.entry.closes_at, each.is_final) for each in page.items]


def test_what_the_old_interval_had_expired_is_not_found_by_the_longer_one():
    old = Task(job(once(100)))
    run_all(old, at(0))
    run_all(old, at(101, key=None))
    assert found(old) == []
    new = changed(old, once(1_000), Handover(kept_ms=100))
    assert found(new) == []
    run_all(new, at(101))
    assert found(new) == [(101, None, False)]


def test_windows_and_sessions_that_the_old_retention_had_expired_are_not_found():
    for kind in KINDS:
        old = Task(job(windows(kind, 0, 0)))
        run_all(old, at(0, 90))
        new = changed(old, windows(kind, 0, 1_000), Handover(delay_ms=KINDS[kind].get("gap_ms", 0), kept_ms=30))
        assert [window[1] >= 60 for window, _, _ in found(new)] == [True] * len(found(new)) != []


@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
def test_what_was_final_stays_final_with_a_close_that_is_past(kind):
    old = Task(job(windows(kind, 0)))
    run_all(old, at(19, 31))
    new = changed(old, windows(kind, 100), Handover(delay_ms=0))
    first, last = found(new)[0], found(new)[-1]
    assert first[2]
    assert first[1] <= 31
    assert not last[2]
    assert last[1] > 31
    assert [each[2] for each in found(new, is_open=True)] == [False] * len(found(new, is_open=True))


def test_what_a_shorter_grace_closes_is_final_when_the_next_record_has_come():
    old = Task(job(windows("tumbling", 100)))
    run_all(old, at(5, 40))
    assert found(old) == [((0, 10), 110, False), ((40, 50), 150, False)]
    new = changed(old, windows("tumbling", 0), Handover(delay_ms=100))
    assert found(new) == [((0, 10), 41, False), ((40, 50), 50, False)]
    run_all(new, at(41))
    assert found(new) == [((0, 10), 10, True), ((40, 50), 50, False)]
