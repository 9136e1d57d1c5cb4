"""suppress and distinct are deterministic functions of (state, ordered records): equal to the oracle, however run."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.streams.errors import SuppressionFull
from service.streams.layouts import buffers, reserved
from service.streams.operators.distinct import Distinct, DistinctSpec
from service.streams.operators.suppress import Suppress, SuppressSpec
from service.streams.operators.upstream import Upstream
from tests import naive_suppress as naive
from tests import strategies
from tests.machine import Machine


@st.composite
def suppressed(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any] | None, list[dict[str, Any]]]:
    """An operator, the window of the aggregate before it, and updates for it."""
    window = draw(st.none() | strategies.windows)
    is_final = window is not None and draw(st.booleans())
    return draw(strategies.suppressions(is_final=is_final)), window, draw(strategies.updates(window))


def suppress(operator, window):
    spec = SuppressSpec.model_validate(operator)
    return Machine(Suppress(spec, "s", Upstream(is_table=True, window=window)))


def expected(machine, records):
    """What comes out of the oracle, and whether it was full in the end."""
    out = []
    try:
        for record in records:
            out += machine.feed(record)
    except naive.Full:
        return out, True
    return out, False


def parts_of(records, sizes):
    at = 0
    for size in [*sizes, max(len(records), 1)]:
        if at < len(records):
            yield records[at : at + size]
        at += size


@given(suppressed(), strategies.batch_sizes)
def test_suppress_equals_the_oracle_however_it_is_cut(case, sizes):
    operator, window, updates = case
    oracle = naive.Suppress(operator, window)
    reference, is_full = expected(oracle, updates)
    machine, out = suppress(operator, window), []
    for part in parts_of(updates, sizes):
        try:
            out += machine.feed(*part)
        except SuppressionFull:
            assert is_full
            assert out == reference[: len(out)]
            return
    assert not is_full
    assert out == reference
    held = [len(oracle.buffer), oracle.bytes()]
    assert buffers.unpack_totals(machine.state.get(reserved.TOTALS_KEY)).tolist() == held


@given(suppressed(), strategies.batch_sizes)
def test_any_cut_leaves_the_same_buffer(case, sizes):
    operator, window, updates = case
    operator = {**operator, "buffer": {k: v for k, v in operator["buffer"].items() if v != "shut_down"}}
    if operator["until"] == "window_closes":
        operator["buffer"] = {}
    whole, parts = suppress(operator, window), suppress(operator, window)
    whole.feed(*updates)
    for part in parts_of(updates, sizes):
        parts.feed(*part)
    assert parts.state == whole.state


@given(suppressed(), st.integers(0, 60), strategies.batch_sizes)
def test_moving_time_by_hand_equals_the_oracle(case, to, sizes):
    operator, window, updates = case
    operator = {**operator, "buffer": {}}
    oracle, machine = naive.Suppress(operator, window), suppress(operator, window)
    half = len(updates) // 2
    reference = [out for record in updates[:half] for out in oracle.feed(record)]
    out = [each for part in parts_of(updates[:half], sizes) for each in machine.feed(*part)]
    reference += oracle.advance(to)
    out += machine.advance(to)
    reference += [each for record in updates[half:] for each in oracle.feed(record)]
    out += [each for part in parts_of(updates[half:], sizes) for each in machine.feed(*part)]
    assert out == reference


@given(suppressed())
def test_the_horizon_is_the_lowest_time_that_empties_the_buffer(case):
    operator, window, updates = case
    machine = suppress({**operator, "buffer": {}}, window)
    machine.feed(*updates)
    horizon = machine.horizon()
    held = buffers.buffered(machine.state, is_session=False).num_rows
    if operator.get("time_limit_ms") != 2**63 - 1:  # then it may lie past all time
        assert (horizon is None) == (held == 0)
    if horizon is not None:
        machine.advance(horizon - 1)
        assert buffers.buffered(machine.state, is_session=False).num_rows > 0
        machine.advance(horizon)
        assert buffers.buffered(machine.state, is_session=False).num_rows == 0


@given(strategies.distincts(), strategies.records, strategies.batch_sizes)
def test_distinct_equals_the_oracle_however_it_is_cut(operator, records, sizes):
    spec = DistinctSpec.model_validate(operator)
    whole, parts = Machine(Distinct(spec, "d")), Machine(Distinct(spec, "d"))
    reference = naive.distinct(operator, records)
    assert whole.feed(*records) == reference
    assert [out for part in parts_of(records, sizes) for out in parts.feed(*part)] == reference
    assert parts.state == whole.state


@given(strategies.distincts(), strategies.records, st.integers(0, 60))
def test_distinct_obeys_time_that_is_moved_by_hand(operator, records, to):
    oracle = naive.Distinct(operator)
    machine = Machine(Distinct(DistinctSpec.model_validate(operator), "d"))
    half = len(records) // 2
    reference = [out for record in records[:half] for out in oracle.feed(record)]
    oracle.advance(to)
    reference += [out for record in records[half:] for out in oracle.feed(record)]
    out = machine.feed(*records[:half]) + machine.advance(to)
    assert out + machine.feed(*records[half:]) == reference


@given(strategies.distincts(), strategies.records)
def test_every_record_goes_on_or_is_dropped_with_a_reason(operator, records):
    machine = Machine(Distinct(DistinctSpec.model_validate(operator), "d"))
    machine.feed(*records)
    offsets = machine.causes() + [offset for _, offset in machine.dropped()]
    assert Counter(offsets) == Counter(range(len(records)))
