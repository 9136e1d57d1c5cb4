"""What a store learns before another version of its operator runs over it."""

import pytest

from service.streams.layouts import store_keys
from service.streams.layouts.reserved import (
    BEGINS_KEY,
    CLOSED_KEY,
    FLOOR_KEY,
    FORGOT_KEY,
    OBS_KEY,
    RECORD_TIME_KEY,
    pack_time,
    unpack_time,
)
from service.streams.operators.adoption import adopt
from service.streams.records import Handover
from tests.task import DictState

RESERVED = {OBS_KEY: "obs", CLOSED_KEY: "closed_to", FLOOR_KEY: "floor", BEGINS_KEY: "begins_at"}
RESERVED |= {FORGOT_KEY: "forgot", RECORD_TIME_KEY: "records"}


def store(**times):
    return DictState({key: pack_time(times[name]) for key, name in RESERVED.items() if name in times})


def learned(state, handover):
    changes = adopt(state, handover)
    if changes is None:
        return {}
    keys, values = (changes.column(name).to_pylist() for name in ("key", "value"))
    assert keys == sorted(set(keys))
    return {RESERVED[key]: value and unpack_time(value) for key, value in zip(keys, values, strict=True)}


def test_where_the_old_operator_had_closed_to_is_kept():
    assert learned(store(obs=1_000), Handover(delay_ms=100)) == {"closed_to": 900}


def test_closing_before_the_first_window_is_kept_too():
    assert learned(store(obs=1_000), Handover(delay_ms=5_000)) == {"closed_to": -4_000}


def test_a_second_change_without_a_record_between_leaves_what_is_still_to_be_emitted():
    state = store(obs=1_000, closed_to=700)
    state[store_keys.INDEX + bytes(8) + store_keys.ordered_one(b"a")] = b""
    assert learned(state, Handover(delay_ms=0)) == {}


@pytest.mark.parametrize(("delay_ms", "closed_to"), [(0, {"closed_to": 1_000}), (300, {}), (900, {})])
def test_where_nothing_is_to_be_emitted_a_second_change_finds_what_the_first_closed(delay_ms, closed_to):
    assert learned(store(obs=1_000, closed_to=700), Handover(delay_ms=delay_ms)) == closed_to


def test_entries_that_the_old_interval_had_expired_stay_absent():
    assert learned(store(obs=1_000), Handover(kept_ms=300)) == {"floor": 700}


@pytest.mark.parametrize(("stored", "floor"), [(699, {"floor": 700}), (700, {}), (800, {})])
def test_a_floor_never_falls(stored, floor):
    assert learned(store(obs=1_000, floor=stored), Handover(kept_ms=300)) == floor


def test_both_are_written_in_the_order_of_a_changelog():
    assert learned(store(obs=1_000), Handover(delay_ms=10, kept_ms=20)) == {"closed_to": 990, "floor": 980}


def test_a_store_without_a_record_has_closed_and_expired_nothing():
    assert learned(store(), Handover(delay_ms=10, kept_ms=20)) == {}


def test_nothing_to_hand_over_changes_nothing():
    assert learned(store(obs=1_000), Handover()) == {}


@pytest.mark.parametrize("time", [0, 1_000])
def test_a_store_that_begins_anew_has_the_time_of_its_task_and_missed_what_was_before(time):
    assert learned(store(), Handover(begins_at=time)) == {"obs": time, "begins_at": time}


def test_windows_stay_closed_and_over_where_the_higher_time_had_them():
    handover = Handover(delay_ms=10, kept_ms=20, stream_time=500)
    assert learned(store(obs=1_000), handover) == {"closed_to": 990, "floor": 980, "obs": 500}


def test_where_entries_stand_for_themselves_every_copy_forgets_what_was_over_and_those_to_come_count():
    assert learned(store(obs=1_000), Handover(kept_ms=20, stream_time=500)) == {"forgot": 980, "obs": 500}
    found = learned(store(obs=1_000, floor=990), Handover(kept_ms=20, stream_time=500))
    assert found == {"forgot": 990, "floor": None, "obs": 500}


@pytest.mark.parametrize("time", [1_000, 1_001])
def test_stream_time_never_rises(time):
    assert learned(store(obs=1_000), Handover(stream_time=time)) == {}
    assert learned(store(obs=1_000), Handover(kept_ms=20, stream_time=time)) == {"floor": 980}
    assert learned(store(), Handover(stream_time=time)) == {}


@pytest.mark.parametrize(("by_records", "now"), [(400, {}), (500, {"records": None}), (900, {"records": None})])
def test_what_it_would_be_by_records_is_not_ahead_of_it(by_records, now):
    assert learned(store(obs=1_000, records=by_records), Handover(stream_time=500)) == {"obs": 500, **now}
