"""How readings merge: by the names of their leaves, the same however a task's input was cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.measures import MOST, after, beside, lateness, spread

figures = st.integers(0, 50) | st.sampled_from([MOST // 2, MOST - 1, MOST])
leaves = st.dictionaries(st.sampled_from(["count", "sum", "min", "max", "last", "late"]), figures)
readings = st.dictionaries(st.sampled_from(["records_in", "batches"]), figures) | st.fixed_dictionaries(
    {"operators": st.dictionaries(st.sampled_from(["min", "last", "a"]), st.dictionaries(st.just("spread"), leaves))}
)


def test_counts_and_sums_add_up_and_extremes_stay_extremes() -> None:
    one, other = {"count": 2, "sum": 9, "min": 1, "max": 8}, {"count": 1, "sum": 4, "min": 4, "max": 4}
    assert after(one, other) == beside(one, other) == {"count": 3, "sum": 13, "min": 1, "max": 8}


def test_the_last_figure_of_a_task_counts_and_those_of_several_tasks_add_up() -> None:
    assert after({"a": {"last": 5}}, {"a": {"last": 2}}) == {"a": {"last": 2}}
    assert beside({"a": {"last": 5}}, {"a": {"last": 2}}) == {"a": {"last": 7}}


def test_what_only_one_of_two_readings_has_is_kept() -> None:
    assert after({"a": {"min": 3}}, {"b": 1}) == {"a": {"min": 3}, "b": 1}
    assert after({}, {"a": {"min": 3, "last": 0}}) == {"a": {"min": 3, "last": 0}}


def test_operators_may_have_the_name_of_a_figure() -> None:
    assert after({"min": {"late": 1}}, {"min": {"late": 2}}) == {"min": {"late": 3}}


def test_a_reading_is_not_changed_by_merging_it() -> None:
    one = {"a": {"sum": 1}}
    after(one, {"a": {"sum": 1}})
    beside(one, {"a": {"sum": 1}})
    assert one == {"a": {"sum": 1}}


def test_sums_stop_at_the_end_of_int64() -> None:
    assert after({"sum": MOST}, {"sum": 1}) == {"sum": MOST}
    assert spread(np.array([MOST, MOST, 1])) == {"count": 3, "sum": MOST, "max": MOST}


@given(readings, readings, readings)
def test_merging_does_not_depend_on_where_batches_end(a: dict, b: dict, c: dict) -> None:
    assert after(after(a, b), c) == after(a, after(b, c))
    assert beside(beside(a, b), c) == beside(a, beside(b, c))


@given(readings, readings)
def test_tasks_have_no_order(a: dict, b: dict) -> None:
    assert beside(a, b) == beside(b, a)


def test_nothing_was_measured_of_no_records() -> None:
    nothing = np.empty(0, np.int64)
    assert lateness(nothing, nothing) == {}


@pytest.mark.parametrize("cut", range(5))
def test_a_spread_is_the_same_in_two_parts(cut: int) -> None:
    values = np.array([4, 0, 7, 7])
    assert after(spread(values[:cut]), spread(values[cut:])) == {"count": 4, "sum": 18, "max": 7}
