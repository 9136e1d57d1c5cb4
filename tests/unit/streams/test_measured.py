"""What operators measure: the figures of KIP-328, and the increments of semantics-kafka-streams.md §7.3."""

import json

import pytest

from service.streams.errors import SuppressionFull
from service.streams.operators.suppress import Suppress, SuppressSpec
from service.streams.operators.upstream import Upstream
from service.streams.topology.dropped import counted
from tests.machine import Machine
from tests.task import Task, batch_of, job, parts

COUNT = {"n": {"fn": "count"}}
TUMBLING = {"type": "tumbling", "size_ms": 10}
SESSION = {"type": "session", "gap_ms": 5}


def aggregate(window=None, **more):
    return {"op": "aggregate", "name": "a", "window": window, "aggregates": COUNT, **more}


def run(operator, *records):
    """What one operator makes of (key, timestamp) or (key, timestamp, value) of each record, in one batch."""
    rows = [{"key": r[0], "timestamp": r[1], "value": r[2] if len(r) > 2 else {"id": "i", "v": 1}} for r in records]
    return Task(job([operator])).run(batch_of(rows))


def lateness(result):
    found = result.measures["a"]["lateness_ms"]
    return found["count"], found["sum"], found["max"]


def suppress(until="time_limit", window=None, limit=10, **buffer):
    spec = {"op": "suppress", "name": "s", "until": until, "buffer": buffer}
    if until == "time_limit":
        spec["time_limit_ms"] = limit
    return Machine(Suppress(SuppressSpec.model_validate(spec), "s", Upstream(is_table=True, window=window)))


def update(key, timestamp, value="x", window=None):
    shown = None if window is None else {"start": window[0], "end": window[1]}
    return {"key": key, "value": value, "timestamp": timestamp, "window": shown}


# ---------------------------------------------------------------- record lateness

OPERATORS = [
    {"op": "deduplicate_by_key", "name": "a", "interval_ms": 5},
    {"op": "deduplicate_by_key_value", "name": "a", "id": "value->>'id'", "interval_ms": 5},
    {"op": "distinct", "name": "a", "window": TUMBLING},
    aggregate(),
    aggregate(TUMBLING),
    aggregate(SESSION, emit="on_window_close"),
    aggregate({"type": "sliding", "time_difference_ms": 5}),
    {"op": "suppress", "name": "a", "until": "time_limit", "time_limit_ms": 3},
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator["op"])
def test_lateness_is_stream_time_less_the_timestamp_of_a_record_that_is_taken(operator):
    """KIP-328, record-lateness: a record that moves stream time is not late, and late ones count though dropped."""
    assert lateness(run(operator, ("k", 5), ("k", 3), ("k", 40), ("j", 38), ("j", 40))) == (5, 0 + 2 + 0 + 2 + 0, 2)


def test_records_without_a_key_are_not_taken_by_an_aggregate():
    assert lateness(run(aggregate(TUMBLING), (None, 90), ("k", 5), ("k", 4))) == (2, 1, 1)


def test_lateness_goes_on_from_the_stream_time_of_the_batch_before():
    task = Task(job([aggregate(TUMBLING)]))
    task.run(batch_of([{"key": "k", "timestamp": 100, "value": None}]))
    assert lateness(task.run(batch_of([{"key": "k", "timestamp": 70, "value": None}]))) == (1, 30, 30)


def test_an_aggregate_whose_batch_is_cut_measures_each_record_once(monkeypatch):
    monkeypatch.setattr("service.streams.operators.grouping.MAX_EVENTS", 2)
    batch = batch_of([{"key": "k", "timestamp": time, "value": None} for time in (5, 3, 9, 1)])
    assert [lateness(part) for part in parts(Task(job([aggregate(TUMBLING)])), batch)] == [(2, 2, 2), (2, 8, 8)]


# ---------------------------------------------------------------- drops, §7.3


def dropped(operator, *records):
    return counted(run(operator, *records).dropped).get("a", {})


def test_a_null_key_is_one():
    for operator in (aggregate(), aggregate(TUMBLING), aggregate(SESSION)):
        assert dropped(operator, (None, 1)) == {"null_key": 1}


def test_a_null_value_that_is_not_allowed_is_one():
    assert dropped(aggregate(), ("k", 1, None)) == {"null_value": 1}
    assert dropped(aggregate({"type": "sliding", "time_difference_ms": 5}), ("k", 1, None)) == {"null_value": 1}
    assert dropped(aggregate(TUMBLING), ("k", 1, None)) == {}


def test_a_late_session_record_is_one():
    assert dropped(aggregate(SESSION), ("k", 100), ("k", 1)) == {"late": 1}


def test_time_windows_are_one_per_closed_window_of_the_record():
    hopping = {"type": "hopping", "size_ms": 20, "advance_ms": 5}
    assert dropped(aggregate(hopping), ("k", 100), ("k", 50)) == {"late": 4}
    assert dropped(aggregate(hopping), ("k", 60), ("k", 47)) == {"late": 3}  # [45, 65) is still open
    assert dropped(aggregate(TUMBLING), ("k", 100), ("k", 50)) == {"late": 1}


def test_sliding_is_one_for_a_whole_record_and_one_per_single_closed_window():
    sliding = {"type": "sliding", "time_difference_ms": 5}
    assert dropped(aggregate(sliding), ("k", 100), ("k", 50)) == {"late": 1}
    # [7, 12] has closed; [10, 15], that the record before made, and [11, 16] have not
    assert dropped(aggregate(sliding), ("k", 10), ("k", 15), ("k", 12)) == {"late": 1}


def test_a_store_never_rejects_what_the_operator_takes_so_nothing_is_dropped_as_expired():
    """expired-window-record-drop: a window is kept at least until it closes, however short its retention."""
    records = [("k", time) for time in (0, 30, 9, 12, 100, 61, 50)]
    for window in (TUMBLING, SESSION, {"type": "sliding", "time_difference_ms": 5}):
        short = {**window, "grace_ms": 40, "retention_ms": 0}
        task = Task(job([aggregate(short)]), forget=True)  # what is over is gone at once
        kept = Task(job([aggregate({**short, "retention_ms": 10**9})]))
        for offset, (key, time) in enumerate(records):
            batch = batch_of([{"key": key, "timestamp": time, "value": None or {}}], offset)
            found, reference = task.run(batch), kept.run(batch)
            assert found.outputs[0][1] == reference.outputs[0][1]
            assert set(counted(found.dropped).get("a", {})) <= {"late"}
            assert counted(found.dropped) == counted(reference.dropped)


def test_suppress_adds_nothing_to_what_is_dropped():
    """KIP-328: neither updates that are replaced, nor those held back, nor tombstones that a final result drops."""
    held = suppress("window_closes", {**TUMBLING, "grace_ms": 0})
    for time in (1, 2, 3):
        held.feed(update("k", time, time, (0, 10)))
    held.feed(update("gone", 4, None, (0, 10)))
    assert held.feed(update("k", 30, 1, (30, 40))) == [update("k", 3, 3, (0, 10))]
    assert held.dropped() == []


# ---------------------------------------------------------------- the buffer of suppress


def measured(machine):
    assert machine.last is not None
    return machine.last.measures


def test_the_buffer_is_looked_at_after_each_put_and_after_what_leaves():
    machine = suppress(limit=10)
    machine.feed(update("a", 0), update("b", 5), update("a", 8), update("c", 15))
    # puts: 1, 2, 2, 3 records; a and b, which came at 0 and 5, leave at 15: 1
    assert measured(machine)["buffer_records"] == {"count": 5, "sum": 1 + 2 + 2 + 3 + 1, "max": 3, "last": 1}
    # a key of one byte and "x" in quotes: 4 each
    assert measured(machine)["buffer_bytes"] == {"count": 5, "sum": 4 * 9, "max": 12, "last": 4}


def test_a_window_and_the_length_of_a_new_value_count_in_bytes():
    machine = suppress("window_closes", {**TUMBLING, "grace_ms": 0})
    machine.feed(update("a", 1, "x", (0, 10)), update("a", 2, "yyy", (0, 10)))
    assert measured(machine)["buffer_bytes"] == {"count": 2, "sum": 20 + 22, "max": 22, "last": 22}


def test_what_is_let_go_is_counted_and_dropped_tombstones_are_not():
    machine = suppress("window_closes", {**TUMBLING, "grace_ms": 0})
    machine.feed(update("a", 1, 1, (0, 10)), update("b", 2, None, (0, 10)), update("c", 17, 1, (10, 20)))
    assert measured(machine)["emitted"] == 1
    limited = suppress(limit=0)
    limited.feed(update("a", 1, None), update("b", 2))
    assert measured(limited)["emitted"] == 2


def test_overtime_is_how_far_stream_time_is_past_the_time_limit():
    machine = suppress(limit=10)
    machine.feed(update("a", 0), update("b", 4), update("c", 17))
    assert measured(machine)["overtime_ms"] == {"count": 2, "sum": 7 + 3, "min": 3, "max": 7}


def test_overtime_is_how_far_stream_time_is_past_the_close_of_a_window():
    machine = suppress("window_closes", {**TUMBLING, "grace_ms": 5})
    machine.feed(update("a", 1, 1, (0, 10)), update("b", 15, 1, (10, 20)))
    assert measured(machine)["overtime_ms"] == {"count": 1, "sum": 0, "min": 0, "max": 0}
    machine.feed(update("c", 31, 1, (30, 40)))
    assert measured(machine)["overtime_ms"] == {"count": 1, "sum": 6, "min": 6, "max": 6}


@pytest.mark.parametrize("window", [SESSION, {"type": "sliding", "time_difference_ms": 5}])
def test_the_first_moment_after_an_inclusive_end_is_no_overtime(window):
    machine = suppress("window_closes", {**window, "grace_ms": 0})
    wait = window.get("gap_ms", 0)
    machine.feed(update("a", 7, 1, (2, 7)), update("b", 8 + wait, 1, (8 + wait, 8 + wait)))
    assert measured(machine)["overtime_ms"] == {"count": 1, "sum": 0, "min": 0, "max": 0}


def test_what_a_full_buffer_pushes_out_is_let_go_but_not_over_time():
    machine = suppress(limit=10, max_records=1, when_full="emit_early")
    machine.feed(update("a", 0), update("b", 5))
    assert measured(machine)["emitted"] == 1
    assert "overtime_ms" not in measured(machine)


def test_time_moved_by_hand_is_stream_time_too():
    machine = suppress(limit=10)
    machine.feed(update("a", 0), update("b", 4))
    machine.advance(14)
    assert measured(machine) == {
        "buffer_records": {"count": 1, "sum": 0, "max": 0, "last": 0},
        "buffer_bytes": {"count": 1, "sum": 0, "max": 0, "last": 0},
        "emitted": 2,
        "overtime_ms": {"count": 2, "sum": 4, "min": 0, "max": 4},
    }


def test_a_limit_at_the_end_of_time_overflows_nothing():
    machine = suppress(limit=2**63 - 1, max_records=1, when_full="emit_early")
    machine.feed(update("a", 2**63 - 1), update("b", 0))
    assert measured(machine)["lateness_ms"] == {"count": 2, "sum": 2**63 - 1, "max": 2**63 - 1}
    assert measured(machine)["emitted"] == 1
    assert measured(machine)["overtime_ms"] == {"count": 1, "sum": 0, "min": 0, "max": 0}  # due as the end comes


def test_a_buffer_that_shuts_down_measures_nothing_as_its_batch_is_not_committed():
    machine = suppress(limit=10, max_records=1, when_full="shut_down")
    with pytest.raises(SuppressionFull):
        machine.feed(update("a", 0), update("b", 0))
    assert machine.last is None


# ---------------------------------------------------------------- the chain


def test_a_chain_tells_operators_apart_and_stays_small():
    chain = [
        {**aggregate(SESSION), "name": "visits"},
        {"op": "suppress", "name": "final", "until": "window_closes"},
        {"op": "filter", "where": "(value->>'n')::bigint >= 2"},
    ]
    task = Task(job(chain))
    result = task.run(batch_of([{"key": "k", "timestamp": t, "value": None} for t in (1, 2, 40, 80)]))
    assert set(result.measures) == {"visits", "final"}
    # what reaches it: [1, 1], its tombstone, [1, 2], [40, 40], [80, 80], each at the end of its session
    assert result.measures["final"]["lateness_ms"] == {"count": 5, "sum": 0, "max": 0}
    assert result.measures["final"]["emitted"] == 2
    assert len(json.dumps(result.measures)) < 500


def test_what_a_step_and_then_time_let_go_is_measured_as_one():
    task = Task(
        job(
            [
                aggregate(SESSION, emit="on_window_close"),
                {"op": "suppress", "name": "s", "until": "time_limit", "time_limit_ms": 0},
            ]
        )
    )
    task.run(batch_of([{"key": "k", "timestamp": 1, "value": None}]))
    result = task.advance(50)
    assert result.measures["s"]["emitted"] == 1
    assert result.measures["s"]["lateness_ms"] == {"count": 1, "sum": 0, "max": 0}
