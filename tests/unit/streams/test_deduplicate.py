"""One edge per test: KIP-655, and obs that lives in the store."""

import pytest

from service.streams.layouts import reserved
from tests.task import Task, batch_of, job, outputs

STORE = "t-once"


def task(interval_ms, op="deduplicate_by_key"):
    operator = {"op": op, "name": "once", "interval_ms": interval_ms}
    return Task(job([operator if op == "deduplicate_by_key" else {**operator, "id": "value->>'id'"}]))


def record(key, timestamp, value=None):
    return {"key": key, "value": value, "timestamp": timestamp}


def let_through(running, *records):
    return [(each["key"], each["timestamp"]) for each in outputs(running.run(batch_of(records)))]


def test_a_record_exactly_the_interval_later_is_a_duplicate():
    assert let_through(task(10), record("a", 5), record("a", 15), record("a", 16)) == [("a", 5), ("a", 16)]


def test_a_record_exactly_the_interval_earlier_is_a_duplicate():
    assert let_through(task(10), record("a", 15), record("a", 5), record("a", 4)) == [("a", 15), ("a", 4)]


def test_a_duplicate_does_not_prolong_the_interval():
    assert let_through(task(10), record("a", 0), record("a", 8), record("a", 11)) == [("a", 0), ("a", 11)]


def test_interval_zero_drops_only_equal_timestamps():
    assert let_through(task(0), record("a", 5), record("a", 5), record("a", 6)) == [("a", 5), ("a", 6)]


def test_how_long_entries_live_is_said_with_the_first_changes_alone():
    running = task(10)
    for each in record("a", 5), record("b", 6):
        let_through(running, each)
    assert [reserved.time_in(reserved.TTL_KEY, changes[STORE]) for changes in running.changelog] == [10, None]


def test_an_interval_of_64_bits_does_not_overflow():
    assert let_through(task(2**63 - 1), record("a", 2**62), record("a", 0)) == [("a", 2**62)]


def test_a_late_record_goes_on_and_is_not_stored():
    late = [record("b", 20), record("a", 9), record("a", 9)]
    assert let_through(task(10), *late) == [("b", 20), ("a", 9), ("a", 9)]


def test_a_late_record_leaves_a_newer_entry_alone():
    records = [record("a", 20), record("a", 9), record("a", 21)]
    assert let_through(task(10), *records) == [("a", 20), ("a", 9)]


def test_an_entry_that_another_key_made_stale_counts_as_absent():
    assert let_through(task(10), record("a", 10), record("b", 21), record("a", 9)) == [("a", 10), ("b", 21), ("a", 9)]


def test_a_duplicate_moves_stream_time():
    running = task(10)
    assert let_through(running, record("a", 20), record("a", 25), record("b", 14), record("b", 14)) == [
        ("a", 20),
        ("b", 14),
        ("b", 14),
    ]


def test_a_null_key_goes_on_every_time_and_moves_stream_time():
    running = task(10)
    assert let_through(running, record("a", 0), record(None, 11), record(None, 11), record("a", 0)) == [
        ("a", 0),
        (None, 11),
        (None, 11),
        ("a", 0),
    ]


@pytest.mark.parametrize("value", [None, {}, {"id": None}, 7])
def test_a_null_id_goes_on_and_is_not_stored(value):
    running = task(10, "deduplicate_by_key_value")
    twice = [record("a", 1, value), record("a", 1, value)]
    assert len(let_through(running, *twice)) == 2
    assert set(running.states[STORE]) == {reserved.OBS_KEY, reserved.TTL_KEY}


def test_key_value_tells_ids_and_keys_apart():
    running = task(10, "deduplicate_by_key_value")
    records = [record(key, 1, {"id": id_}) for key, id_ in [("a", "bc"), ("ab", "c"), ("a", "bc"), (None, "c")]]
    assert let_through(running, *records) == [("a", 1), ("ab", 1), (None, 1)]


def test_the_global_form_keeps_the_key_that_came_first():
    running = task(10, "deduplicate")
    records = [record("a", 1, {"id": "x"}), record("b", 2, {"id": "x"}), record(None, 3, {"id": "y"})]
    assert let_through(running, *records) == [("a", 1), (None, 3)]


@pytest.mark.parametrize("length", [0, 400, 401, 600, 5000])
def test_keys_of_any_length_are_remembered(length):
    key = "\x00" * length
    running = task(10)
    assert len(let_through(running, record(key, 1))) == 1
    assert let_through(running, record(key, 2)) == []


def test_stream_time_survives_in_the_store():
    running = task(10)
    let_through(running, record(None, 100))
    assert reserved.unpack_time(running.states[STORE][reserved.OBS_KEY]) == 100
    assert let_through(running, record("a", 5), record("a", 5)) == [("a", 5), ("a", 5)]


def test_a_batch_that_moves_nothing_writes_nothing():
    running = task(10)
    let_through(running, record("a", 20))
    assert running.run(batch_of([record("a", 20), record(None, 3)])).changes == {}


def test_duplicates_are_dropped_with_their_reason_as_they_came():
    result = task(10).run(batch_of([record("a", 1), record("a", 2, {"v": 1})], first_offset=40))
    (dropped,) = result.dropped
    assert (dropped.operator, dropped.reason) == ("once", "duplicate")
    assert dropped.rows.select(["key", "value", "timestamp", "ordinal"]).to_pylist() == [
        {"key": b"a", "value": '{"v": 1}', "timestamp": 2, "ordinal": 1}
    ]


def test_the_window_of_a_record_passes_through():
    windowed = {**record("a", 1), "window": {"start": 0, "end": 10}}
    assert outputs(task(10).run(batch_of([windowed])))[0]["window"] == {"start": 0, "end": 10}
