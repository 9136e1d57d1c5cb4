"""One edge per test: KIP-328 as semantics.md has it, with the tables of the KIP and of the Kafka Streams tests."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.simulate import SimulateRequest, simulate
from service.streams.errors import InvalidSpec, SuppressionFull
from service.streams.kernels import suppress as kernel
from service.streams.layouts import buffers, reserved
from service.streams.operators.suppress import Suppress, SuppressSpec
from service.streams.operators.upstream import Upstream
from service.streams.topology.spec import JobSpec
from tests.machine import Machine
from tests.task import DictState

TUMBLING = {"type": "tumbling", "size_ms": 10, "grace_ms": 0}
SESSION = {"type": "session", "gap_ms": 5, "grace_ms": 0}
SLIDING = {"type": "sliding", "time_difference_ms": 5, "grace_ms": 0}


def limited(time_limit_ms=2**62, window=None, **buffer):
    spec = {"op": "suppress", "name": "s", "until": "time_limit", "time_limit_ms": time_limit_ms, "buffer": buffer}
    return Machine(Suppress(SuppressSpec.model_validate(spec), "s", Upstream(is_table=True, window=window)))


def final(window=TUMBLING, **buffer):
    spec = {"op": "suppress", "name": "s", "until": "window_closes", "buffer": buffer}
    return Machine(Suppress(SuppressSpec.model_validate(spec), "s", Upstream(is_table=True, window=window)))


def update(key, value, timestamp, window=None):
    shown = None if window is None else {"start": window[0], "end": window[1]}
    return {"key": key, "value": value, "timestamp": timestamp, "window": shown}


def short(records):
    return [(r["key"], r["value"], r["timestamp"]) for r in records]


def windows(records):
    return [(r["key"], r["window"]["start"], r["value"]) for r in records]


def outputs(machine, *updates):
    """What comes out at each of (key, value, timestamp)."""
    return [short(each) for each in machine.feed_one_by_one([update(*each) for each in updates])]


# ---------------------------------------------------------------- KIP-328, tables of the chapter on examples


def test_kip_328_overwriting_holds_both_back():
    assert outputs(limited(), ("A", "x", 1), ("A", "w", 0)) == [[], []]


def test_kip_328_two_records_without_late_ones():
    machine = limited(max_records=2, when_full="emit_early")
    updates = [("A", "w", 0), ("A", "x", 1), ("B", "y", 2), ("C", "z", 3)]
    assert outputs(machine, *updates) == [[], [], [], [("A", "x", 1)]]


def test_kip_328_two_milliseconds_without_late_ones():
    """The KIP says at C; buffer time is that of the first update, which is due at B."""
    updates = [("A", "w", 0), ("A", "x", 1), ("B", "y", 2), ("C", "z", 3)]
    assert outputs(limited(2), *updates) == [[], [], [("A", "x", 1)], []]


def test_kip_328_two_milliseconds_with_a_late_one():
    """The KIP says A at line 2; its buffer time stays 3, and B's is due when it comes."""
    updates = [("A", "w", 3), ("A", "x", 1), ("B", "y", 1), ("T", "t", 5)]
    assert outputs(limited(2), *updates) == [[], [], [("B", "y", 1)], [("A", "x", 1)]]


def test_kip_328_two_records_with_a_late_one():
    """The KIP says C; A has the same buffer time and comes first by its key."""
    machine = limited(max_records=2, when_full="emit_early")
    updates = [("A", "w", 0), ("A", "x", 1), ("B", "y", 2), ("C", "z", 0)]
    assert outputs(machine, *updates) == [[], [], [], [("A", "x", 1)]]


@pytest.mark.parametrize(("last", "expected"), [(2, ("A", "yy", 1)), (0, ("A", "yy", 1))])
def test_kip_328_bytes(last, expected):
    """Each holds 5 bytes: a letter, and two in quotes. The KIP's second table says B; A comes first by its key."""
    machine = limited(max_bytes=9, when_full="emit_early")
    assert outputs(machine, ("A", "xx", 0), ("A", "yy", 1), ("B", "zz", last)) == [[], [], [expected]]


def test_kip_328_a_big_record_pushes_several_out():
    machine = limited(max_bytes=10, when_full="emit_early")
    updates = [("A", "x", 0), ("B", "y", 1), ("C", "1234567", 2)]
    assert outputs(machine, *updates) == [[], [], [("A", "x", 0), ("B", "y", 1)]]


def test_kip_328_a_record_too_big_to_fit_pushes_all_out_and_itself():
    machine = limited(max_bytes=10, when_full="emit_early")
    updates = [("A", "x", 0), ("B", "y", 1), ("C", "12345678", 2)]
    assert outputs(machine, *updates) == [[], [], [("A", "x", 0), ("B", "y", 1), ("C", "12345678", 2)]]


# ---------------------------------------------------------------- time limit


def test_limit_zero_passes_everything_through():
    updates = [("a", 1, 5), ("a", None, 3), ("b", 2, 9)]
    assert outputs(limited(0), *updates) == [[each] for each in updates]


def test_an_update_leaves_when_stream_time_is_exactly_the_limit_later():
    assert outputs(limited(3), ("a", 1, 1), ("b", 2, 3), ("c", 3, 4)) == [[], [], [("a", 1, 1)]]


def test_later_updates_do_not_prolong_the_wait():
    assert outputs(limited(3), ("a", 1, 1), ("a", 2, 3), ("b", 3, 4)) == [[], [], [("a", 2, 3)]]


def test_an_older_update_replaces_value_and_timestamp():
    assert outputs(limited(3), ("a", 1, 5), ("a", 2, 2), ("b", 3, 8)) == [[], [], [("a", 2, 2)]]


def test_a_new_key_that_is_late_enough_leaves_at_once():
    assert outputs(limited(3), ("a", 1, 9), ("b", 2, 6)) == [[], [("b", 2, 6)]]


def test_after_it_has_left_a_key_waits_anew():
    assert outputs(limited(2), ("a", 1, 0), ("a", 2, 2), ("a", 3, 3), ("a", 4, 5)) == [
        [],
        [("a", 2, 2)],
        [],
        [("a", 4, 5)],
    ]


def test_a_jump_of_time_lets_all_go_in_the_order_of_time_then_key_bytes():
    """Vector V9 and the table of §3.5: UTF-8 byte order, shorter first."""
    updates = [(key, 1, 0) for key in ("b", "a", "B", "aa", "é")]
    machine = limited(5)
    assert outputs(machine, *updates) == [[]] * 5
    assert [key for key, _, _ in outputs(machine, ("tick", 1, 5))[0]] == ["B", "a", "aa", "b", "é"]


def test_a_tombstone_waits_and_leaves_like_any_value():
    """Vector V4: Z was buffered first, at 3, so it comes before Q."""
    updates = [("A", "x", 0), ("A", None, 1), ("Z", "t", 3), ("Q", None, 4), ("Z", "t", 9)]
    expected = [[], [], [("A", None, 1)], [], [("Z", "t", 9), ("Q", None, 4)]]
    assert outputs(limited(2), *updates) == expected


def test_windows_of_a_key_are_entries_of_their_own():
    """Vector V8."""
    machine = limited(5, TUMBLING)
    first, second = (0, 10), (10, 20)
    updates = [
        ("a", 1, 1, first),
        ("a", 2, 3, first),
        ("b", 1, 6, first),
        ("a", 3, 5, first),
        ("b", 1, 12, second),
        ("b", 2, 30, second),
    ]
    steps = [windows(each) for each in machine.feed_one_by_one([update(*each) for each in updates])]
    assert steps[:4] == [[], [], [("a", 0, 2)], []]
    assert steps[4] == [("a", 0, 3), ("b", 0, 1)]
    assert steps[5] == [("b", 10, 2)]


def test_two_in_a_row_are_driven_by_their_own_times():
    """Vector V10: the second sees the timestamps that the first lets go."""
    first, second = limited(2), limited(3)
    updates = [("A", 1, 0), ("B", 1, 2), ("C", 1, 4), ("D", 1, 7), ("E", 1, 12)]
    ends = [[key for key, _, _ in short(second.feed(*first.feed(update(*each))))] for each in updates]
    assert ends == [[], [], [], ["A"], ["B", "C"]]


def test_a_limit_of_64_bits_never_ends():
    assert outputs(limited(2**63 - 1), ("a", 1, 0), ("b", 1, 2**62)) == [[], []]


# ---------------------------------------------------------------- window closes


def test_a_window_leaves_when_stream_time_reaches_its_end():
    """Vector V7, its second half: grace 0, a record at the end of the window."""
    machine = final()
    assert machine.feed(update("a", 1, 9, (0, 10))) == []
    assert windows(machine.feed(update("b", 1, 10, (10, 20)))) == [("a", 0, 1)]


def test_grace_is_waited_for():
    """Vector V7: window [99, 100), grace 1."""
    machine = final({"type": "tumbling", "size_ms": 1, "grace_ms": 1})
    steps = [update("hey", 1, 99, (99, 100)), update("x", 1, 100, (100, 101)), update("y", 1, 101, (101, 102))]
    assert [short(each) for each in machine.feed_one_by_one(steps)] == [[], [], [("hey", 1, 99)]]


def test_zero_grace_still_buffers_until_the_window_ends():
    machine = final()
    machine.feed(update("a", 1, 1, (0, 10)))
    assert machine.feed(update("a", 2, 9, (0, 10))) == []


def test_final_results_of_a_tumbling_window():
    """Vector V2, grace 1: k1 at 0, 1, 2, 1, 0, 5 as the aggregate forwards them."""
    machine = final({"type": "tumbling", "size_ms": 2, "grace_ms": 1})
    raw = [(1, 0, 0), (2, 1, 0), (1, 2, 2), (3, 1, 0), (4, 1, 0), (1, 5, 4)]
    steps = machine.feed_one_by_one([update("k1", n, at, (start, start + 2)) for n, at, start in raw])
    assert [windows(each) for each in steps] == [[]] * 5 + [[("k1", 0, 4), ("k1", 2, 1)]]


def test_final_results_of_sliding_windows_come_in_the_order_of_their_ends():
    """Vector V3: difference 5, grace 15."""
    machine = final({"type": "sliding", "time_difference_ms": 5, "grace_ms": 15})
    raw = [(5, 1, 10), (6, 1, 11), (11, 1, 11), (5, 5, 10), (6, 5, 11), (8, 5, 13), (11, 2, 13), (12, 1, 13)]
    raw += [(19, 1, 24), (85, 1, 90)]
    out = machine.feed(*(update("k1", n, at, (start, start + 5)) for start, n, at in raw))
    assert windows(out) == [("k1", start, n) for start, n in [(5, 5), (6, 5), (8, 5), (11, 2), (12, 1), (19, 1)]]


def test_final_results_of_sessions():
    """Vector V3b: gap 5, no grace; tombstones of merged sessions do not come out."""
    machine = final(SESSION)
    raw = [
        ("k1", 1, 0, (0, 0)),
        ("k1", None, 0, (0, 0)),
        ("k1", 2, 5, (0, 5)),
        ("k1", None, 5, (0, 5)),
        ("k1", 3, 5, (0, 5)),
        ("k2", 1, 11, (11, 11)),
        ("k1", 1, 30, (30, 30)),
    ]
    steps = [short(each) for each in machine.feed_one_by_one([update(*each) for each in raw])]
    assert steps == [[]] * 5 + [[("k1", 3, 5)], [("k2", 1, 11)]]


@pytest.mark.parametrize(("window", "end"), [(SESSION, 5), (SLIDING, 10)])
def test_an_inclusive_end_is_waited_past(window, end):
    """At exactly the end, and gap and grace, the aggregate still takes records: not final yet (better than §3.6)."""
    machine = final(window)
    delay = window.get("gap_ms", 0)
    machine.feed(update("a", 1, 5, (5, end)))
    assert machine.feed(update("b", 1, end + delay, (end + delay, end + delay + 5))) == []
    closing = machine.feed(update("b", 1, end + delay + 1, (end + delay + 1, end + delay + 6)))
    assert windows(closing) == [("a", 5, 1)]


def test_a_tombstone_of_a_window_is_forgotten_when_it_closes():
    machine = final()
    machine.feed(update("a", 1, 1, (0, 10)), update("a", None, 2, (0, 10)))
    assert machine.feed(update("b", 1, 10, (10, 20))) == []
    assert len(buffers.buffered(machine.state, is_session=False)) == 1


def test_an_update_revives_a_window_before_it_closes():
    machine = final()
    machine.feed(update("a", None, 2, (0, 10)), update("a", 7, 3, (0, 10)))
    assert windows(machine.feed(update("b", 1, 10, (10, 20)))) == [("a", 0, 7)]


def test_keys_come_before_windows_where_the_times_are_equal():
    """Sessions that end together: by key, then by start."""
    machine = final(SESSION)
    ends_at_5 = [("b", 1, 5, (1, 5)), ("a", 1, 5, (3, 5)), ("a", 2, 5, (0, 5)), ("aa", 1, 5, (0, 5))]
    machine.feed(*(update(*each) for each in ends_at_5))
    out = machine.feed(update("t", 1, 99, (99, 99)))
    assert windows(out) == [("a", 0, 2), ("a", 3, 1), ("aa", 0, 1), ("b", 1, 1)]


def test_hopping_windows_close_in_the_order_of_end_and_key():
    """Vector V5, at z@15."""
    machine = final({"type": "hopping", "size_ms": 10, "advance_ms": 5, "grace_ms": 0})
    raw = [("b", 7), ("a", 8), ("aa", 9)]
    machine.feed(*(update(key, 1, at, (start, start + 10)) for key, at in raw for start in (0, 5)))
    machine.feed(update("a", 2, 8, (0, 10)))
    out = machine.feed(update("z", 1, 15, (10, 20)), update("z", 1, 15, (15, 25)))
    assert [(key, start) for key, start, _ in windows(out)] == [
        ("a", 0),
        ("aa", 0),
        ("b", 0),
        ("a", 5),
        ("aa", 5),
        ("b", 5),
    ]


def test_within_a_time_limit_sessions_go_by_end_and_then_start():
    machine = limited(3, SESSION)
    machine.feed(update("a", 1, 0, (0, 9)), update("a", 2, 0, (4, 6)), update("a", 3, 0, (2, 6)))
    assert windows(machine.feed(update("b", 1, 3, (3, 3)))) == [("a", 2, 3), ("a", 4, 2), ("a", 0, 1)]


# ---------------------------------------------------------------- bounds


def test_as_many_records_as_the_bound_are_held():
    machine = limited(max_records=2, when_full="emit_early")
    assert outputs(machine, ("a", 1, 0), ("b", 1, 1), ("b", 2, 2)) == [[], [], []]


def test_as_many_bytes_as_the_bound_are_held():
    machine = limited(max_bytes=10, when_full="emit_early")
    assert outputs(machine, ("a", {"n": 1}, 0), ("b", 1, 1)) == [[], []]
    assert outputs(machine, ("b", 12, 2)) == [[("a", {"n": 1}, 0)]]


def test_an_update_counts_for_its_new_value_only():
    machine = limited(max_bytes=10, when_full="emit_early")
    assert outputs(machine, ("a", "1234567", 0), ("a", 1, 0), ("b", "12345", 0)) == [[], [], []]


@pytest.mark.parametrize(
    ("key", "value", "window", "size"),
    [
        ("a", 1, None, 2),
        ("é", 1, None, 3),
        ("a", None, None, 1),
        ("a", {"n": 1, "s": "x y"}, None, 18),
        ("a", {"q": ' \\" '}, None, 15),
        ("", 1, (0, 10), 17),
    ],
)
def test_bytes_are_those_of_key_compact_value_and_window(key, value, window, size):
    machine = limited()
    machine.feed(update(key, value, 0, window))
    assert buffers.unpack_totals(machine.state[reserved.TOTALS_KEY]).tolist() == [1, size]


def compact_bytes(text):
    """How many bytes a value counts for that is written like this."""
    values = pa.array([text], pa.utf8())
    _, ends, data = values.buffers()
    out = np.empty(1, np.int64)
    kernel.compact_lengths(np.frombuffer(data, np.uint8), np.frombuffer(ends, np.int32)[:2], out)
    return int(out[0])


@pytest.mark.parametrize(
    ("written", "compact"),
    [
        (r'{"t": "\u00e9"}', '{"t":"é"}'),
        (r'"\u0061\/\u002F"', '"a//"'),
        (r'"\ud83d\uDE00"', '"😀"'),
        (r'"\u0008\u0009\u000a\u000C\u000d\n"', r'"\b\t\n\f\r\n"'),
        (r'"\u0022\u005c\"\\"', r'"\"\\\"\\"'),
        (r'"\u0001\u007f\u20ac"', '"\\u0001\x7f€"'),
        (r'["\\u00e9", " \" "]', r'["\\u00e9"," \" "]'),
    ],
)
def test_a_value_counts_as_compact_json_however_it_was_escaped(written, compact):
    assert compact_bytes(written) == len(compact.encode())


texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_every_way_to_write_a_value_counts_the_same(value, indent, is_ascii):
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert compact_bytes(json.dumps(value, ensure_ascii=is_ascii, indent=indent)) == len(compact.encode())


def test_records_and_bytes_are_both_bounds():
    machine = limited(max_records=3, max_bytes=6, when_full="emit_early")
    assert outputs(machine, ("a", 1, 0), ("b", 1, 0), ("c", 1, 0), ("d", 1, 0))[3] == [("a", 1, 0)]
    assert outputs(machine, ("d", 123, 0)) == [[("b", 1, 0)]]


def test_what_is_due_leaves_before_a_bound_is_looked_at():
    machine = limited(5, max_records=1, when_full="emit_early")
    assert outputs(machine, ("b", 1, 0), ("a", 1, 5)) == [[], [("b", 1, 0)]]


def test_no_room_at_all_passes_everything_through():
    machine = limited(max_records=0, when_full="emit_early")
    assert outputs(machine, ("a", 1, 0), ("b", 1, 0)) == [[("a", 1, 0)], [("b", 1, 0)]]


def test_more_leaves_than_was_loaded_at_first():
    """A big value pushes out a thousand entries that this batch does not touch."""
    machine = limited(max_bytes=5000, when_full="emit_early")
    machine.feed(*(update(f"{i:04}", 1, i) for i in range(1000)))
    out = machine.feed(update("big", "x" * 4995, 2000))
    assert [key for key, _, _ in short(out)] == [f"{i:04}" for i in range(1000)]


def test_a_bound_without_a_word_emits_early():
    assert outputs(limited(max_records=1), ("a", 1, 0), ("b", 1, 0)) == [[], [("a", 1, 0)]]


# ---------------------------------------------------------------- shut down, spill


def test_shutting_down_says_how_full_it_is_and_where():
    """Vector V11: a@1, a@2, a@10 lets the window go; b@11 is too much."""
    machine = final(TUMBLING, max_records=1, when_full="shut_down")
    machine.feed(update("a", 1, 1, (0, 10)), update("a", 2, 2, (0, 10)))
    assert windows(machine.feed(update("a", 1, 10, (10, 20)))) == [("a", 0, 2)]
    with pytest.raises(SuppressionFull) as full:
        machine.feed(update("b", 1, 11, (10, 20)))
    assert (full.value.records, full.value.max_records) == (2, 1)
    assert (full.value.bytes, full.value.max_bytes) == (36, None)
    assert (full.value.operator, full.value.ordinal, full.value.code) == ("s", 0, "buffer_full")


def test_shutting_down_on_bytes():
    machine = limited(max_bytes=3, when_full="shut_down")
    machine.feed(update("a", 1, 0))
    with pytest.raises(SuppressionFull, match="holds 2 records \\(at most any number\\) and 4 bytes \\(at most 3\\)"):
        machine.feed(update("b", 1, 0))


def test_a_larger_buffer_goes_on_where_the_full_one_failed():
    small = limited(2, max_records=1, when_full="shut_down")
    small.feed(update("a", 1, 0))
    with pytest.raises(SuppressionFull):
        small.feed(update("b", 1, 1), update("c", 1, 9))
    large = limited(2, max_records=2, when_full="shut_down")
    large.state = small.state
    assert short(large.feed(update("b", 1, 1), update("c", 1, 9))) == [("a", 1, 0), ("b", 1, 1)]


def test_spilling_to_disk_holds_ten_times_the_bound_and_gives_what_an_unbounded_one_gives():
    spilling = limited(100, max_records=5, max_bytes=50, when_full="spill_to_disk")
    unbounded = limited(100)
    updates = [update(f"{i % 50}", i, i) for i in range(200)]
    assert spilling.feed(*updates) == unbounded.feed(*updates)
    assert spilling.state == unbounded.state


class CountingState(DictState):
    """Counts the entries that are read."""

    reads = 0

    def get_many(self, keys, default):
        self.reads += len(keys)
        return super().get_many(keys, default)

    def scan(self, *bounds, **options):
        found = super().scan(*bounds, **options)
        self.reads += len(found)
        return found


@pytest.mark.parametrize("buffer", [{"max_bytes": 100_000, "when_full": "emit_early"}, {}])
def test_a_batch_reads_what_it_touches_however_much_is_held(buffer):
    machine = limited(5000, **buffer)
    machine.feed(*(update(f"{i}", i, i) for i in range(4000)))
    machine.state = CountingState(machine.state)
    assert machine.feed(update("1", 1, 4001), update("new", 1, 4001)) == []
    assert machine.state.reads <= 2 + 2 * 256
    assert len(machine.feed(update("new", 2, 5009))) == 10


# ---------------------------------------------------------------- null keys, long keys, headers, offsets


def test_a_null_key_is_dropped_and_does_not_move_time():
    machine = limited(3)
    assert outputs(machine, ("a", 1, 0), (None, 1, 9)) == [[], []]
    assert machine.dropped() == [("null_key", 1)]


def test_a_key_over_400_bytes_is_dropped_and_moves_time():
    machine = limited(3)
    assert outputs(machine, ("a", 1, 0), ("x" * 401, 1, 9)) == [[], [("a", 1, 0)]]
    assert machine.dropped() == [("key_too_long", 1)]


@pytest.mark.parametrize("key", ["", "\x00", "\x00" * 400, "a\x00", "x" * 400, "\U0001f600" * 100])
def test_any_key_of_up_to_400_bytes_comes_back(key):
    machine = limited(1, TUMBLING)
    machine.feed(update(key, 1, 0, (0, 10)))
    assert windows(machine.feed(update("zz", 1, 1, (0, 10)))) == [(key, 0, 1)]


def test_offsets_are_those_of_the_records_that_let_updates_go():
    machine = limited(2)
    machine.feed(update("a", 1, 0), update("b", 1, 1))
    machine.feed(update("c", 1, 2), update("d", 1, 3))
    assert machine.causes() == [2, 3]


def test_a_final_result_says_why_it_came():
    machine = final()
    machine.feed(update("a", 1, 1, (0, 10)))
    machine.feed(update("b", 1, 10, (10, 20)))
    assert machine.column("headers") == ['{"millrace-closed-by":"stream_time"}']
    machine.advance(20, "idle")
    assert machine.column("headers") == ['{"millrace-closed-by":"idle"}']


# ---------------------------------------------------------------- moving time by hand


def test_the_horizon_is_the_lowest_time_that_empties_the_buffer():
    machine = limited(5)
    machine.feed(update("a", 1, 3), update("b", 1, 4))
    assert machine.horizon() == 9
    assert short(machine.advance(8)) == [("a", 1, 3)]
    assert short(machine.advance(9)) == [("b", 1, 4)]
    assert machine.horizon() is None


@pytest.mark.parametrize(("window", "end", "horizon"), [(TUMBLING, 10, 10), (SLIDING, 10, 11), (SESSION, 10, 16)])
def test_the_horizon_closes_the_last_window_and_not_a_moment_earlier(window, end, horizon):
    machine = final(window)
    machine.feed(update("a", 1, 5, (5, end)))
    assert machine.horizon() == horizon
    assert machine.advance(horizon - 1) == []
    assert windows(machine.advance(horizon)) == [("a", 5, 1)]


def test_an_empty_buffer_has_no_horizon():
    assert limited(5).horizon() is None


def test_a_buffer_that_never_ends_has_no_horizon():
    machine = limited(2**63 - 1)
    machine.feed(update("a", 1, 1))
    assert machine.horizon() is None


def test_moved_time_stays_moved():
    machine = limited(5)
    machine.advance(100)
    assert outputs(machine, ("a", 1, 7)) == [[("a", 1, 7)]]


def test_time_never_moves_back():
    machine = limited(5)
    machine.feed(update("a", 1, 50))
    assert machine.advance(10) == []
    assert machine.last.changes is None


def test_what_no_record_lets_go_has_no_offset():
    machine = limited(5)
    machine.feed(update("a", 1, 50))
    machine.advance(90)
    assert machine.causes() == [-1]


# ---------------------------------------------------------------- simulate


def simulated(records, advance_to=None, **fields):
    operator = {"op": "suppress", "name": "s", "until": "time_limit", **fields}
    fed = [{"key": key, "value": value, "timestamp": at} for key, value, at in records]
    return simulate(SimulateRequest(job={"operators": [operator]}, records=fed, advance_to=advance_to))


def test_simulate_shows_what_is_held():
    answer = simulated([("b", 1, 5), ("a", {"n": 1}, 6)], time_limit_ms=10)
    assert answer["outputs"] == []
    assert [(item["key"], item["value"], item["timestamp"]) for item in answer["stores"]["x-s"]] == [
        ("a", {"n": 1}, 6),
        ("b", 1, 5),
    ]


def test_simulate_can_move_time():
    answer = simulated([("b", 1, 5), ("a", 1, 6)], advance_to=15, time_limit_ms=10)
    assert [output["key"] for output in answer["outputs"]] == ["b"]
    assert [item["key"] for item in answer["stores"]["x-s"]] == ["a"]
    assert answer["stream_time"] == {"0_0": 15}


def test_simulate_says_that_a_buffer_is_full():
    with pytest.raises(SuppressionFull, match="source offset 1"):
        simulated([("b", 1, 5), ("a", 1, 6)], time_limit_ms=10, buffer={"max_records": 1, "when_full": "shut_down"})


# ---------------------------------------------------------------- refusals

WINDOWED = {"op": "aggregate", "name": "agg", "window": TUMBLING, "aggregates": {"n": {"fn": "count"}}}
PLAIN = {**WINDOWED, "window": None}


def refusals(*operators, name="s"):
    job = {"name": "t", "source": "in", "operators": [{"name": name, **operators[-1]}]}
    job["operators"] = [*operators[:-1], *job["operators"]]
    with pytest.raises(InvalidSpec) as invalid:
        JobSpec.parse(job)
    return [problem.pointer for problem in invalid.value.errors]


CLOSES = {"op": "suppress", "until": "window_closes"}


@pytest.mark.parametrize("buffer", [{"max_records": 5}, {"max_bytes": 5, "when_full": "emit_early"}])
def test_window_closes_takes_only_strict_buffers(buffer):
    assert refusals(WINDOWED, {**CLOSES, "buffer": buffer}) == ["/operators/1/buffer"]


@pytest.mark.parametrize(
    "before",
    [
        [],
        [PLAIN],
        [WINDOWED, {"op": "select_key", "key": "key"}],
        [{"op": "distinct", "name": "d", "window": TUMBLING}],
        [WINDOWED, {"op": "distinct", "name": "d", "window": TUMBLING}],
    ],
)
def test_window_closes_needs_a_windowed_aggregate_before_it(before):
    assert refusals(*before, CLOSES) == [f"/operators/{len(before)}/until"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"until": "time_limit"}, "time_limit_ms"),
        ({"until": "time_limit", "time_limit_ms": -1}, "time_limit_ms"),
        ({"until": "time_limit", "time_limit_ms": 1.5}, "time_limit_ms"),
        ({"until": "never", "time_limit_ms": 1}, "until"),
        ({"until": "time_limit", "time_limit_ms": 1, "buffer": {"max_records": -1}}, "buffer/max_records"),
        ({"until": "time_limit", "time_limit_ms": 1, "buffer": {"when_full": "panic"}}, "buffer/when_full"),
        ({"until": "time_limit", "time_limit_ms": 1, "buffer": {"size": 1}}, "buffer/size"),
        ({"until": "time_limit", "time_limit_ms": 1, "name": "No"}, "name"),
    ],
)
def test_a_specification_that_makes_no_sense_is_refused_where_it_does_not(fields, pointer):
    assert refusals({"op": "suppress", **fields}) == [f"/operators/0/{pointer}"]


def test_window_closes_has_no_time_limit():
    assert refusals(WINDOWED, {**CLOSES, "time_limit_ms": 1}) == ["/operators/1/time_limit_ms"]


@pytest.mark.parametrize(("limit_ms", "refused"), [(0, []), (1, ["/operators/2/until"])])
def test_window_closes_does_not_follow_a_time_limit_that_holds_updates_back(limit_ms, refused):
    """One that comes when its window has closed would be a second final; a limit of 0 holds nothing back."""
    limit = {"op": "suppress", "name": "l", "until": "time_limit", "time_limit_ms": limit_ms}
    job = {"name": "t", "source": "in", "sink": "out", "operators": [WINDOWED, limit, CLOSES | {"name": "c"}]}
    if refused:
        assert refusals(WINDOWED, limit, CLOSES | {"name": "c"}) == refused
    else:
        assert JobSpec.parse(job)
