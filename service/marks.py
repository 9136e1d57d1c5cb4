"""Since when: marks that go from one sample of jobs and streams to the next, and what is usual of a stream.

It knows when a job counts as behind, ahead of the clock or dropping, by two samples. It refuses to know who asks, and
what is worth somebody's attention. Pure.

behind_ms        since when a job needs longer than BEHIND_S, at its pace, for what is there already
ahead_ms         since when its stream time is ahead of the clock by more than AHEAD_MS
dropped_ms       when it was last seen to have dropped records that were not to be dropped
dropping_ms      since when it does so, without a pause of CALM_MS
read_ms          when it was last seen to have read records
pause_ms         the longest time for which nothing came into a stream before it went on; what is a day old counts half
usual_pause_ms   the second longest: one breakdown makes nothing usual
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from service.series import UNKNOWN, Figures, FigureSample

BEHIND_S: Final = 10
AHEAD_MS: Final = 60_000
CALM_MS: Final = 600_000
LEAST_PAUSE_MS: Final = 10_000
DAY_MS: Final = 86_400_000
INTENDED: Final = ("duplicate",)  # drops that are what an operator is there for
DROPPED: Final = "dropped/"  # …operator/reason

JOB_MARKS: Final = ("behind_ms", "ahead_ms", "dropped_ms", "dropping_ms", "read_ms")
STREAM_MARKS: Final = ("pause_ms", "usual_pause_ms")


def marks_after(at_ms: int, figures: Figures, before: FigureSample | None) -> dict[str, dict[str, int]]:
    """The marks of all jobs and streams that are in `figures`, of `at_ms`."""
    found: dict[str, dict[str, int]] = {name: {} for name in (*JOB_MARKS, *STREAM_MARKS)}
    for job in figures.get("records_in", {}):
        for name, value in _of_job(at_ms, job, figures, before).items():
            found[name][job] = value
    for stream in figures.get("published_ms", {}):
        found["pause_ms"][stream], found["usual_pause_ms"][stream] = _pauses(stream, figures, before)
    return found


def is_intended(drop: str) -> bool:
    """Whether records that are counted as `dropped/<operator>/<reason>` were to be dropped."""
    return drop.rpartition("/")[2] in INTENDED


def _of_job(at_ms: int, job: str, figures: Figures, before: FigureSample | None) -> dict[str, int]:
    def was(name: str) -> int:
        return UNKNOWN if before is None or (value := before.get(name, job)) is None else value

    lag, stream_time = figures["lag"].get(job, 0), figures["stream_time"].get(job, UNKNOWN)
    read = _rise("records_in", job, figures, before)
    seconds = 0.0 if before is None else (at_ms - before.at_ms) / 1000
    is_behind = lag > 0 and before is not None and lag * seconds > read * BEHIND_S
    is_dropping = any(
        _rise(name, job, figures, before) > 0
        for name in figures
        if name.startswith(DROPPED) and job in figures[name] and not is_intended(name)
    )
    dropped_ms, dropping_ms = was("dropped_ms"), was("dropping_ms")
    if is_dropping:
        dropping_ms = dropping_ms if dropped_ms != UNKNOWN and at_ms - dropped_ms <= CALM_MS else at_ms
        dropped_ms = at_ms
    return {
        "behind_ms": _since(is_behind, was("behind_ms"), at_ms),
        "ahead_ms": _since(stream_time > at_ms + AHEAD_MS, was("ahead_ms"), at_ms),
        "dropped_ms": dropped_ms,
        "dropping_ms": dropping_ms,
        "read_ms": at_ms if read else was("read_ms"),
    }


def _since(is_so: bool, since_ms: int, at_ms: int) -> int:
    if not is_so:
        return UNKNOWN
    return at_ms if since_ms == UNKNOWN else since_ms


def _rise(name: str, owner: str, figures: Figures, before: FigureSample | None) -> int:
    """0 where nobody looked before, so nothing is known; of what began anew, all of it."""
    if before is None:
        return 0
    value, earlier = figures[name][owner], before.get(name, owner) or 0
    return value - earlier if value >= earlier else value


def _pauses(stream: str, figures: Figures, before: FigureSample | None) -> tuple[int, int]:
    def was(name: str) -> int | None:
        return None if before is None else before.get(name, stream)

    published, earlier = figures["published_ms"][stream], was("published_ms")
    longest = [pause for pause in (was("pause_ms"), was("usual_pause_ms")) if pause is not None]
    if earlier is not None and published - earlier >= LEAST_PAUSE_MS:
        pause = published - earlier
        longest = sorted([pause, *_faded(longest, pause)], reverse=True)
    return tuple((*longest, UNKNOWN, UNKNOWN)[:2])  # type: ignore[return-value]


def _faded(pauses: Iterable[int], by_ms: int) -> list[int]:
    return [round(pause * 0.5 ** (by_ms / DAY_MS)) for pause in pauses]
