"""By how much dropped records missed going on: as counted naively, however they are cut; and what another grace or
interval then makes of them.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams import measures
from service.streams.topology.dropped import BEYOND, BOUNDS, counted, missed
from tests import strategies
from tests.property.test_suppress import parts_of
from tests.task import Task, batch_of, job, parts

RECORDS = st.lists(
    st.builds(
        lambda key, timestamp: {"key": key, "value": {"n": 1}, "timestamp": timestamp},
        st.sampled_from("ab"),
        st.integers(0, 120) | st.integers(0, 5000),
    ),
    max_size=40,
)
WINDOWS = {
    "tumbling": {"type": "tumbling", "size_ms": 10},
    "hopping": {"type": "hopping", "size_ms": 10, "advance_ms": 4},
    "session": {"type": "session", "gap_ms": 5},
}


def counting(window, grace_ms):
    window = {**window, "grace_ms": grace_ms, "retention_ms": 20_000}
    return {"op": "aggregate", "name": "a", "window": window, "aggregates": {"n": {"fn": "count"}}}


def run(operator, records, sizes=()):
    """How many were dropped, and by how much, by reason."""
    task, found, by_ms, at = Task(job([operator])), {}, {}, 0
    for part in parts_of(records, sizes):
        for result in parts(task, batch_of(part, at)):
            found = measures.after(found, counted(result.dropped))
            by_ms = measures.after(by_ms, missed(result.dropped))
        at += len(part)
    return found.get("a", {}), by_ms.get("a", {})


def below(reading, ms):
    return sum(count for bound, count in reading.get("below", {}).items() if bound != BEYOND and int(bound) <= ms)


def naively(values):
    """A reading of these values, each counted below the first bound that lies above it."""
    if not values:
        return {}
    found = {}
    for value in values:
        bound = next((str(bound) for bound in BOUNDS if value < bound), BEYOND)
        found[bound] = found.get(bound, 0) + 1
    return {"count": len(values), "sum": sum(values), "max": max(values), "below": found}


@given(RECORDS, st.integers(0, 30), strategies.batch_sizes)
def test_late_records_miss_their_window_by_what_stream_time_is_beyond_its_end_and_grace(records, grace_ms, sizes):
    now, late = -1, []
    for record in records:
        now = max(now, record["timestamp"])
        end = record["timestamp"] // 10 * 10 + 10
        if end + grace_ms <= now:
            late.append(now - grace_ms - end)
    _, found = run(counting(WINDOWS["tumbling"], grace_ms), records, sizes)
    assert found.get("late", {}) == naively(late)


@given(RECORDS, st.integers(1, 200), strategies.batch_sizes)
def test_duplicates_are_inside_the_interval_by_what_is_left_of_it(records, interval_ms, sizes):
    now, kept, inside = -1, {}, []
    for record in records:
        key, at = record["key"], record["timestamp"]
        now = max(now, at)
        first = kept.get(key)
        if first is not None and first >= now - interval_ms and abs(at - first) <= interval_ms:
            inside.append(interval_ms - abs(at - first))
        elif at >= now - interval_ms:
            kept[key] = at
    operator = {"op": "deduplicate_by_key", "name": "a", "interval_ms": interval_ms}
    _, found = run(operator, records, sizes)
    assert found.get("duplicate", {}) == naively(inside)


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session"])  # sliding: with more grace other windows are there
@given(RECORDS, st.integers(0, 30), st.sampled_from([bound for bound in BOUNDS if bound <= 1000]))
def test_so_many_would_have_been_kept_with_more_grace(kind, records, grace_ms, more_ms):
    dropped, found = run(counting(WINDOWS[kind], grace_ms), records)
    then, _ = run(counting(WINDOWS[kind], grace_ms + more_ms), records)
    kept, said = dropped.get("late", 0) - then.get("late", 0), below(found.get("late", {}), more_ms)
    if kind == "session":
        assert kept >= said  # what had closed by then takes some more
    else:
        assert kept == said


def test_what_lies_at_a_bound_is_below_the_next_and_what_no_bound_is_above_lies_beyond():
    records = [{"key": "k", "value": {}, "timestamp": at} for at in (40 * 366 * 86_400_000, 0)]
    _, found = run(counting(WINDOWS["tumbling"], 0), records)
    assert found["late"]["below"] == {BEYOND: 1}
    records = [{"key": "k", "value": {}, "timestamp": at} for at in (15, 0)]
    _, found = run(counting(WINDOWS["tumbling"], 0), records)
    assert found["late"] == {"count": 1, "sum": 5, "max": 5, "below": {"10": 1}}
