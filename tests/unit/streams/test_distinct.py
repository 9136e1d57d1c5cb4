"""One edge per test: KIP-655's first proposal, `distinct`, as semantics.md has it."""

import pytest

from service.streams.errors import InvalidSpec
from service.streams.layouts.reserved import BEGINS_KEY, OBS_KEY, pack_time
from service.streams.operators.distinct import Distinct, DistinctSpec
from service.streams.topology.spec import JobSpec
from tests.machine import Machine


def distinct(**window):
    return Machine(Distinct(DistinctSpec.model_validate({"op": "distinct", "name": "d", "window": window}), "d"))


def tumbling(size_ms=10, grace_ms=0):
    return distinct(type="tumbling", size_ms=size_ms, grace_ms=grace_ms)


def session(gap_ms=10, grace_ms=0):
    return distinct(type="session", gap_ms=gap_ms, grace_ms=grace_ms)


def record(key, timestamp, value=None):
    return {"key": key, "value": value, "timestamp": timestamp}


def fed(machine, *records):
    """(key, timestamp, (start, end)) of what comes out of records that come in as one batch."""
    out = machine.feed(*(record(*each) for each in records))
    return [(r["key"], r["timestamp"], (r["window"]["start"], r["window"]["end"])) for r in out]


def begun_at(machine, time):
    """One whose store begins anew at this time."""
    machine.state[OBS_KEY] = machine.state[BEGINS_KEY] = pack_time(time)
    return machine


# ---------------------------------------------------------------- KIP-655, the example of the first proposal

SECONDS = [("k", s) for s in (4, 5, 6, 23, 22, 24, 34, 33, 32, 7, 22, 35)]


@pytest.mark.parametrize("batch_records", [1, 2, 5, 12])
@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"type": "tumbling", "size_ms": 10}, [(4, (0, 10)), (23, (20, 30)), (34, (30, 40))]),
        ({"type": "session", "gap_ms": 10}, [(4, (4, 4)), (23, (23, 23))]),
        ({"type": "session", "gap_ms": 9}, [(4, (4, 4)), (23, (23, 23)), (34, (34, 34))]),
    ],
)
def test_kip_655_distinct(window, expected, batch_records):
    machine = distinct(**window)
    parts = [SECONDS[at : at + batch_records] for at in range(0, len(SECONDS), batch_records)]
    assert [each[1:] for part in parts for each in fed(machine, *part)] == expected


# ---------------------------------------------------------------- tumbling


def test_the_first_to_arrive_goes_on_not_the_earliest():
    assert fed(tumbling(), ("a", 9), ("a", 1)) == [("a", 9, (0, 10))]


def test_a_window_ends_before_its_end():
    assert fed(tumbling(), ("a", 9), ("a", 10)) == [("a", 9, (0, 10)), ("a", 10, (10, 20))]


def test_keys_have_windows_of_their_own():
    assert fed(tumbling(), ("a", 1), ("b", 1), ("a", 2)) == [("a", 1, (0, 10)), ("b", 1, (0, 10))]


def test_the_record_itself_goes_on_unchanged_but_for_its_window():
    machine = tumbling()
    machine.feed(record("a", 3, {"id": 1}), record("a", 4, {"id": 2}))
    assert machine.column("value") == ['{"id": 1}']
    assert machine.causes() == [0]


def test_a_window_takes_its_first_record_until_grace_has_passed():
    assert fed(tumbling(grace_ms=5), ("b", 14), ("a", 3)) == [("b", 14, (10, 20)), ("a", 3, (0, 10))]


def test_a_window_is_closed_when_stream_time_is_exactly_grace_past_its_end():
    machine = tumbling(grace_ms=5)
    assert fed(machine, ("b", 15), ("a", 3)) == [("b", 15, (10, 20))]
    assert machine.dropped() == [("late", 1)]


def test_a_late_record_of_a_window_that_was_seen_is_late_not_a_duplicate():
    machine = tumbling()
    fed(machine, ("a", 1), ("b", 10), ("a", 2), ("b", 11))
    assert machine.dropped() == [("duplicate", 3), ("late", 2)]


def test_the_last_window_of_time_does_not_overflow():
    last = 2**63 - 1
    assert fed(tumbling(), ("a", last)) == [("a", last, (last // 10 * 10, last))]


# ---------------------------------------------------------------- sessions


def test_a_record_exactly_the_gap_away_joins():
    assert fed(session(), ("a", 20), ("a", 30), ("a", 10)) == [("a", 20, (20, 20))]


def test_a_record_past_the_gap_begins_a_session():
    assert fed(session(grace_ms=50), ("a", 20), ("a", 31), ("a", 9)) == [
        ("a", 20, (20, 20)),
        ("a", 31, (31, 31)),
        ("a", 9, (9, 9)),
    ]


def test_duplicates_prolong_a_session_silently():
    assert fed(session(), ("a", 0), ("a", 8), ("a", 16), ("a", 24)) == [("a", 0, (0, 0))]


def test_a_session_is_grown_in_the_next_batch_too():
    machine = session()
    assert fed(machine, ("a", 0), ("a", 8)) == [("a", 0, (0, 0))]
    assert fed(machine, ("a", 18)) == []
    assert fed(machine, ("a", 29)) == [("a", 29, (29, 29))]


def test_a_record_that_joins_two_sessions_is_a_duplicate():
    machine = session(grace_ms=50)
    assert len(fed(machine, ("a", 0), ("a", 15))) == 2
    assert fed(machine, ("a", 8)) == []
    assert fed(machine, ("a", 25)) == []


def test_a_session_is_open_while_stream_time_is_gap_and_grace_past_its_end():
    machine = session(gap_ms=10, grace_ms=5)
    assert len(fed(machine, ("a", 10), ("b", 25))) == 2
    assert fed(machine, ("a", 10)) == []
    assert machine.dropped() == [("duplicate", 2)]


def test_a_session_is_closed_one_moment_later():
    machine = session(gap_ms=10, grace_ms=5)
    assert len(fed(machine, ("a", 10), ("b", 26))) == 2
    assert fed(machine, ("a", 10)) == []
    assert machine.dropped() == [("late", 2)]


def test_a_closed_session_does_not_take_a_record_that_is_not_late():
    """semantics.md, Session, step 2: a closed session never changes again."""
    assert fed(session(gap_ms=10), ("a", 9), ("b", 20), ("a", 12)) == [
        ("a", 9, (9, 9)),
        ("b", 20, (20, 20)),
        ("a", 12, (12, 12)),
    ]


def test_many_sessions_of_a_key_in_one_batch():
    machine = session(gap_ms=1, grace_ms=10_000)
    odd = [("a", at) for at in range(999, 0, -4)]
    assert len(fed(machine, *odd)) == 250
    assert fed(machine, *[("a", at + 1) for _, at in odd]) == []
    assert fed(machine, *[("a", at + 2) for _, at in odd]) == []
    assert len(fed(machine, ("a", 0), ("a", 1), ("a", 4), ("a", 2))) == 1


# ---------------------------------------------------------------- null keys, long keys


@pytest.mark.parametrize("machine", [tumbling, session])
def test_a_null_key_is_dropped_and_does_not_move_time(machine):
    machine = machine()
    assert len(fed(machine, (None, 1000), ("a", 1))) == 1
    assert machine.dropped() == [("null_key", 0)]


@pytest.mark.parametrize("machine", [tumbling, session])
def test_a_key_over_400_bytes_is_dropped_and_moves_time(machine):
    machine = machine()
    assert fed(machine, ("x" * 401, 1000), ("a", 1)) == []
    assert machine.dropped() == [("key_too_long", 0), ("late", 1)]


@pytest.mark.parametrize("machine", [tumbling, session])
@pytest.mark.parametrize("key", ["", "\x00", "\x00" * 400, "a\x00", "x" * 400])
def test_any_key_of_up_to_400_bytes_has_windows(machine, key):
    machine = machine()
    assert len(fed(machine, (key, 1))) == 1
    assert fed(machine, (key, 1)) == []
    assert fed(machine, (key + "x", 1))[0:0] == []


def test_a_key_does_not_meet_the_sessions_of_one_that_begins_with_it():
    machine = session()
    fed(machine, ("a", 1))
    assert len(fed(machine, ("a\x00", 1), ("", 1), ("aa", 1), ("a" * 8, 1), ("a" * 9, 1))) == 5


# ---------------------------------------------------------------- moving time by hand


@pytest.mark.parametrize(("machine", "horizon"), [(tumbling(grace_ms=3), 23), (session(grace_ms=3), 28)])
def test_the_horizon_is_the_lowest_time_that_closes_all(machine, horizon):
    fed(machine, ("a", 2), ("a", 14))
    assert machine.horizon() == horizon
    assert machine.advance(horizon - 1) == []
    assert machine.horizon() == horizon
    machine.advance(horizon)
    assert machine.horizon() is None


def test_what_idle_close_has_closed_says_so():
    machine = tumbling()
    fed(machine, ("a", 12))
    machine.advance(20, "idle")
    assert fed(machine, ("b", 13), ("b", 3)) == []
    assert machine.dropped() == [("late", 1 + 1), ("closed_idle", 1)]


def test_a_record_that_would_have_joined_a_session_that_a_flush_closed_says_so():
    machine = session(gap_ms=10)
    fed(machine, ("u", 80), ("u", 90), ("u", 100), ("v", 60))
    machine.advance(machine.horizon(), "flush")
    assert fed(machine, ("u", 75), ("u", 69), ("v", 61), ("w", 95)) == []
    assert sorted(machine.dropped()) == [("closed_idle", 4), ("closed_idle", 7), ("late", 5), ("late", 6)]


def test_once_records_have_passed_it_idle_close_is_forgotten():
    machine = tumbling()
    fed(machine, ("a", 12))
    machine.advance(20, "idle")
    assert len(fed(machine, ("b", 35))) == 1
    assert fed(machine, ("b", 13)) == []
    assert machine.dropped() == [("late", 2)]


def test_a_session_that_idle_close_has_closed_is_not_joined():
    machine = session()
    fed(machine, ("a", 12))
    assert machine.horizon() == 23
    machine.advance(23, "idle")
    assert fed(machine, ("a", 13)) == [("a", 13, (13, 13))]
    assert fed(machine, ("a", 12)) == []


def test_nothing_open_has_no_horizon():
    assert tumbling().horizon() is None


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("window", "pointer"),
    [
        (None, "window"),
        ({"type": "hopping", "size_ms": 10, "advance_ms": 5}, "window/type"),
        ({"type": "sliding", "time_difference_ms": 10}, "window/type"),
        ({"size_ms": 10}, "window/type"),
        ({"type": "tumbling", "size_ms": 0}, "window/size_ms"),
        ({"type": "session"}, "window/gap_ms"),
        ({"type": "session", "gap_ms": 1, "grace_ms": -1}, "window/grace_ms"),
        ({"type": "tumbling", "size_ms": 1, "gap_ms": 1}, "window/gap_ms"),
    ],
)
def test_other_windows_are_refused(window, pointer):
    with pytest.raises(InvalidSpec) as invalid:
        JobSpec.parse({"name": "t", "source": "in", "operators": [{"op": "distinct", "name": "d", "window": window}]})
    assert [problem.pointer.split("/operators/0/")[1] for problem in invalid.value.errors] == [pointer]


# ---------------------------------------------------------------- a store that begins anew


def test_windows_that_begin_before_the_store_take_no_records():
    machine = begun_at(tumbling(grace_ms=10), 25)
    assert fed(machine, ("a", 26), ("a", 30), ("b", 21), ("b", 31)) == [("a", 30, (30, 40)), ("b", 31, (30, 40))]
    assert machine.dropped() == [("before_version", 0), ("before_version", 2)]


def test_one_that_begins_with_the_store_does():
    machine = begun_at(tumbling(), 30)
    assert fed(machine, ("a", 30), ("a", 31)) == [("a", 30, (30, 40))]
    assert machine.dropped() == [("duplicate", 1)]


def test_a_session_that_would_begin_before_the_store_does_not_begin():
    machine = begun_at(session(grace_ms=10), 25)
    assert fed(machine, ("a", 24), ("a", 25), ("a", 24), ("b", 4)) == [("a", 25, (25, 25))]
    assert machine.dropped() == [("before_version", 0), ("before_version", 2), ("late", 3)]


def test_what_is_closed_before_the_store_begins_is_late():
    machine = begun_at(tumbling(), 35)
    assert fed(machine, ("a", 29), ("a", 39)) == []
    assert sorted(machine.dropped()) == [("before_version", 1), ("late", 0)]
