"""Since when a job is behind, ahead, dropping; how long a stream usually pauses."""

from __future__ import annotations

from typing import Any

from service.marks import AHEAD_MS, CALM_MS, marks_after
from service.series import FigureSample, sample_of

NOW = 1_700_000_000_000


def look(before: FigureSample | None, at_ms: int, **figures: int) -> FigureSample:
    """The next sample of job `a`, with its marks."""
    whole: dict[str, Any] = {"records_in": 0, "lag": 0, "stream_time": -1} | figures
    named = {name.replace("__", "/"): {"a": value} for name, value in whole.items()}
    return sample_of(at_ms, named | marks_after(at_ms, named, before))


def stream(before: FigureSample | None, at_ms: int, published_ms: int) -> FigureSample:
    figures = {"published_ms": {"s": published_ms}}
    return sample_of(at_ms, figures | marks_after(at_ms, figures, before))


def test_behind_is_who_needs_long_for_what_is_there_from_then_on_until_it_is_not() -> None:
    first = look(None, NOW, lag=5_000)
    assert first.get("behind_ms", "a") is None  # one look says nothing of its pace
    quick = look(first, NOW + 10_000, lag=900, records_in=1_000)
    assert quick.get("behind_ms", "a") is None
    slow = look(quick, NOW + 20_000, lag=1_200, records_in=1_050)
    assert slow.get("behind_ms", "a") == NOW + 20_000
    still = look(slow, NOW + 30_000, lag=1_000, records_in=1_100)
    assert still.get("behind_ms", "a") == NOW + 20_000
    assert look(still, NOW + 40_000, lag=0, records_in=2_100).get("behind_ms", "a") is None


def test_ahead_is_a_stream_time_beyond_the_clock() -> None:
    near = look(None, NOW, stream_time=NOW + AHEAD_MS)
    assert near.get("ahead_ms", "a") is None
    far = look(near, NOW + 10_000, stream_time=NOW + 10_001 + AHEAD_MS)
    assert far.get("ahead_ms", "a") == NOW + 10_000


def test_dropping_begins_anew_after_a_calm_and_counts_no_duplicates() -> None:
    first = look(None, NOW, dropped__once__duplicate=5)
    same = look(first, NOW + 10_000, dropped__once__duplicate=9)
    assert same.get("dropping_ms", "a") is None
    late = look(same, NOW + 20_000, dropped__once__duplicate=9, dropped__w__late=1)
    assert (late.get("dropping_ms", "a"), late.get("dropped_ms", "a")) == (NOW + 20_000, NOW + 20_000)
    again = look(late, NOW + 20_000 + CALM_MS, dropped__w__late=2)
    assert (again.get("dropping_ms", "a"), again.get("dropped_ms", "a")) == (NOW + 20_000, NOW + 20_000 + CALM_MS)
    calm = look(again, NOW + 30_000 + CALM_MS, dropped__w__late=2)
    much_later = look(calm, NOW + 40_000 + 2 * CALM_MS, dropped__w__late=3)
    assert much_later.get("dropping_ms", "a") == NOW + 40_000 + 2 * CALM_MS


def test_what_was_read_last_is_known_also_after_a_reset() -> None:
    first = look(None, NOW, records_in=10)
    assert first.get("read_ms", "a") is None
    reset = look(first, NOW + 10_000, records_in=4)
    assert reset.get("read_ms", "a") == NOW + 10_000
    assert look(reset, NOW + 20_000, records_in=4).get("read_ms", "a") == NOW + 10_000


def test_one_long_pause_of_a_stream_makes_nothing_usual_and_fades() -> None:
    hour = 3_600_000
    at = stream(None, NOW, NOW)
    for published in (NOW + 20_000, NOW + 40_000, NOW + 40_000 + 4 * hour, NOW + 60_000 + 4 * hour):
        at = stream(at, published + 5_000, published)
    assert at.get("usual_pause_ms", "s") == 20_000
    assert at.get("pause_ms", "s") in range(4 * hour - 10_000, 4 * hour)
    day = stream(at, at.at_ms + 24 * hour, at.at_ms + 24 * hour - 5_000)
    assert day.get("pause_ms", "s") == 24 * hour
    assert day.get("usual_pause_ms", "s") in range(2 * hour - 10_000, 2 * hour)
    assert stream(day, day.at_ms + 10_000, day.get("published_ms", "s") or 0).get("pause_ms", "s") == 24 * hour
