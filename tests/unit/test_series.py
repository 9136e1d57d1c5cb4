"""Samples and series: what is packed comes back, rates are exact, what began anew is a gap."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.series import (
    UNKNOWN,
    FigureSample,
    Grid,
    History,
    pack,
    pack_base,
    sample_of,
    summed_rise,
    unpack,
    unpack_base,
)

STEP = 10_000
BEGIN = 1_700_000_000_000 - 1_700_000_000_000 % 60_000
TOTALS = st.integers(0, 2**63 - 1)
OWNERS = st.dictionaries(st.sampled_from("abcdef"), st.integers(-1, 2**63 - 1), max_size=6)


def history(*totals: int | None, name: str = "in", every_ms: int = STEP) -> History:
    """A sample of job `a` each `every_ms`, some ms late; None: nobody looked."""
    looked = [(BEGIN + i * every_ms, total) for i, total in enumerate(totals) if total is not None]
    return History([at for at, _ in looked], [sample_of(at + 40, {name: {"a": total}}) for at, total in looked])


def grid(points: int, step_ms: int = STEP) -> Grid:
    return Grid.over(BEGIN, BEGIN + points * step_ms, step_ms)


@given(st.dictionaries(st.sampled_from(["in", "lag", "x/y/z"]), OWNERS, max_size=3), st.data())
def test_a_sample_comes_back_as_it_was_alone_and_told_against_another(
    figures: dict[str, dict[str, int]], data: st.DataObject
) -> None:
    base = sample_of(1, figures)
    values = st.integers(-1, 2**63 - 1)
    later = sample_of(2, {name: {owner: data.draw(values) for owner in of} for name, of in figures.items()})
    alone = unpack_base(1, pack_base(base))
    told = unpack(2, pack(later, alone), alone)
    for given_, found in ((base, alone), (later, told)):
        assert found.at_ms == given_.at_ms
        assert found.values.tolist() == given_.values.tolist()
        assert found.layout.owners == given_.layout.owners


def test_a_rate_is_over_the_time_between_two_looks() -> None:
    seen = history(100, 150, 150, 400)
    assert seen.rates("in", "a", grid(3)) == [5.0, 0.0, 25.0]
    late = History(
        seen.periods_ms, [seen.samples[0], seen.samples[1]._replace(at_ms=BEGIN + 20_040), *seen.samples[2:]]
    )
    assert late.rates("in", "a", grid(1)) == [2.5]


def test_what_began_anew_is_a_gap_and_counts_from_nothing() -> None:
    seen = history(100, 150, 30, 80)
    assert seen.rates("in", "a", grid(3)) == [5.0, None, 5.0]
    assert seen.rise("in", "a") == 50 + 30 + 50


def test_where_nobody_looked_is_a_gap() -> None:
    seen = history(100, None, None, 400, 410)
    assert seen.rates("in", "a", grid(4)) == [None, None, None, 1.0]
    assert seen.rise("in", "a") == 310
    assert seen.levels("in", "a", grid(4)) == [None, None, 400, 410]


def test_a_counter_that_is_not_there_yet_is_0_and_a_level_is_not_known() -> None:
    seen = history(1, 2, 3, name="other")
    assert seen.rates("in", "a", grid(2)) == [0.0, 0.0]
    assert seen.levels("in", "a", grid(2)) == [None, None]
    assert history(UNKNOWN, UNKNOWN, name="lag").levels("lag", "a", grid(1)) == [None]
    assert seen.names("oth", "a") == ["other"]
    assert seen.names("oth", "b") == []


def test_a_longer_step_takes_the_last_look_of_each() -> None:
    seen = history(*range(0, 130, 10))
    assert seen.rates("in", "a", grid(2, 60_000)) == [1.0, 1.0]
    assert seen.levels("in", "a", grid(2, 60_000)) == [60, 120]


def test_of_all_together_who_began_anew_or_is_gone_counts_for_nothing() -> None:
    before = sample_of(0, {"in": {"a": 10, "b": 50, "gone": 5}, "size": {"a": 1, "b": UNKNOWN}})
    after = sample_of(1_000, {"in": {"a": 12, "b": 3, "new": 7}, "size": {"a": 4, "b": UNKNOWN}})
    assert summed_rise(before, after, "in") == 2 + 0 + 7
    assert summed_rise(before, FigureSample(1_000, before.layout, before.values + 1), "in") == 3
    seen = History([BEGIN, BEGIN + STEP], [before, after])
    assert seen.summed_rates("in", grid(1)) == [9.0]
    assert seen.summed_levels("size", grid(1)) == [4]
    assert seen.summed_levels("nothing", grid(1)) == [None]


@given(st.lists(st.none() | st.integers(0, 1_000), min_size=2, max_size=40), st.integers(1, 7))
def test_no_rate_is_negative_and_coarser_ones_say_the_same_of_a_counter_that_only_rises(
    rises: list[int | None], steps: int
) -> None:
    totals: list[int | None] = []
    for rise in rises:
        known = next((total for total in reversed(totals) if total is not None), 0)
        totals.append(None if rise is None else known + rise)
    seen = history(*totals)
    fine = seen.rates("in", "a", grid(len(totals) - 1))
    assert all(rate is None or rate >= 0 for rate in fine)
    step = steps * STEP
    edges = Grid.over(BEGIN - BEGIN % step, BEGIN + len(totals) * STEP, step)
    coarse = seen.rates("in", "a", edges)
    known = dict(zip(seen.periods_ms, seen.samples, strict=True))
    for rate, (begin, end) in zip(coarse, pairwise([edges.from_ms, *edges.moments]), strict=True):
        looks = [[at for at in known if edge - step < at <= edge] for edge in (begin, end)]
        if rate is None:
            assert not all(looks)
        else:
            first, last = known[max(looks[0])], known[max(looks[1])]
            assert rate == pytest.approx(
                (last.get("in", "a") - first.get("in", "a")) * 1000 / (last.at_ms - first.at_ms)
            )


@given(st.lists(TOTALS, min_size=1, max_size=10))
def test_a_rise_is_what_each_life_of_a_counter_counted(totals: list[int]) -> None:
    seen = history(*totals)
    assert seen.rise("in", "a") == sum(b - a if b >= a else b for a, b in pairwise(totals))


def test_from_a_moment_on_the_last_look_before_it_stays() -> None:
    seen = history(1, 2, 3, 4)
    assert seen.since(BEGIN + 15_000).periods_ms == [BEGIN + STEP, BEGIN + 2 * STEP, BEGIN + 3 * STEP]
    assert seen.since(BEGIN - 1).periods_ms == seen.periods_ms
    assert History([], []).since(BEGIN).samples == []
