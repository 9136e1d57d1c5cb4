"""The windows that records are gathered in: what each of the four is made of, and when one closes.

It knows sizes and times (semantics.md); it refuses to know what is gathered.

tumbling, hopping   [start, start + size), aligned to multiples of the advance
sliding             [start, start + time_difference], both inclusive
session             [first, last] timestamp, both inclusive; a record within the gap of either joins it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationInfo, field_validator

from service.streams.clock import END_OF_TIME, saturated
from service.streams.errors import Problem
from service.streams.operators.fields import MAX_INT64, Duration, Spec, problem
from service.streams.records import Handover, StoreType
from service.streams.stores.families import PackedSessionFamily, Sessions, Values, Windows, WindowTimes
from service.streams.stores.reading import Form, Rule

DEFAULT_RETENTION_MS: Final = 24 * 60 * 60 * 1000
MAX_OVERLAP: Final = 1000  # hopping windows that one record may fall into

_MAY_CHANGE: Final = frozenset({"grace_ms", "retention_ms", "gap_ms"})  # of windows that are stored

Positive = Annotated[int, Field(ge=1, le=MAX_INT64)]


class _Window(Spec):
    """`grace_ms`: how long after its end a window still takes records; `retention_ms`: how long after its close,
    in stream time, the store keeps it for lookups.
    """

    grace_ms: Duration = 0
    retention_ms: Duration = DEFAULT_RETENTION_MS


class TumblingWindow(_Window):
    """`{"type": "tumbling", "size_ms"}`"""

    type: Literal["tumbling"]
    size_ms: Positive


class HoppingWindow(_Window):
    """`{"type": "hopping", "size_ms", "advance_ms"}`"""

    type: Literal["hopping"]
    size_ms: Positive
    advance_ms: Positive

    @field_validator("advance_ms")
    @classmethod
    def _leaves_no_gap_and_few_overlaps(cls, advance_ms: int, info: ValidationInfo) -> int:
        size_ms = info.data.get("size_ms")
        if size_ms is not None and advance_ms > size_ms:
            raise problem(f"must be at most size_ms ({size_ms}), or records would fall between windows")
        if size_ms is not None and size_ms > advance_ms * MAX_OVERLAP:
            raise problem(f"must be at least size_ms / {MAX_OVERLAP}: a record would fall into more windows than that")
        return advance_ms


class SlidingWindow(_Window):
    """`{"type": "sliding", "time_difference_ms"}`: every span in which some record is the first or the last"""

    type: Literal["sliding"]
    time_difference_ms: Positive


class SessionWindow(_Window):
    """`{"type": "session", "gap_ms"}`"""

    type: Literal["session"]
    gap_ms: Positive


TimeWindow = TumblingWindow | HoppingWindow
WindowSpec = Annotated[TimeWindow | SlidingWindow | SessionWindow, Field(discriminator="type")]


def advance_ms(window: TimeWindow) -> int:
    """From one start to the next."""
    return window.size_ms if isinstance(window, TumblingWindow) else window.advance_ms


def starts_at(window: TimeWindow, timestamp: int) -> range:
    """The starts of the windows that a time falls into."""
    step = advance_ms(window)
    first = max(timestamp - window.size_ms + step, 0) // step * step
    return range(first, timestamp + 1, step)


def closing_delay_ms(window: TimeWindow | SlidingWindow | SessionWindow) -> int:
    """From the end of a window until nothing changes it any more, in stream time."""
    return saturated(window.gap_ms if isinstance(window, SessionWindow) else 0, window.grace_ms)


def index_lag_ms(window: TimeWindow | SlidingWindow | SessionWindow) -> int:
    """From the time under which an open window is indexed (its start, of a session its end) to the lowest time that
    is closed up to (`closed_to`) when it is.
    """
    match window:
        case SessionWindow():
            return 1
        case SlidingWindow(time_difference_ms=difference):
            return difference + 1
        case _:
            return window.size_ms


def kept_ms(window: TimeWindow | SlidingWindow | SessionWindow) -> int:
    """How long the store keeps an entry: after the end of a session, after the start of other windows.

    A new sliding window takes over what one that ended up to two differences ago holds, so these stay at least
    that long: retention never changes results.
    """
    delay, retention = closing_delay_ms(window), window.retention_ms
    match window:
        case SessionWindow():
            return saturated(delay, retention)
        case SlidingWindow(time_difference_ms=difference):
            return saturated(difference, delay, max(retention, 2 * difference))
        case _:
            return saturated(window.size_ms, delay, retention)


def handover_of(window: TimeWindow | SlidingWindow | SessionWindow) -> Handover:
    """What a later version must know of a store with such windows."""
    return Handover(closing_delay_ms(window), kept_ms(window))


def unkept(window: BaseModel | None, new: BaseModel | None) -> Iterator[Problem]:
    """Why stored windows can not go on as others; pointers are relative to the operator."""
    before = {} if window is None else window.model_dump(exclude=set(_MAY_CHANGE))
    after = {} if new is None else new.model_dump(exclude=set(_MAY_CHANGE))
    if before.get("type") != after.get("type"):
        yield Problem("/window/type" if after else "/window", "what is stored are other windows, or none")
        return
    for name, was in before.items():
        if after[name] != was:
            yield Problem(f"/window/{name}", f"what is stored are windows of {was}")


def store_type(window: TimeWindow | SlidingWindow | SessionWindow | None) -> StoreType:
    """How a store is looked up that has such windows."""
    match window:
        case None:
            return "key_value"
        case SessionWindow():
            return "session"
        case _:
            return "window"


def form_of_windows(
    window: Mapping[str, Any], kept_ms: int | None, values: Values, *, is_emitted: bool = False
) -> Form:
    """How a store is read that has such windows (their JSON), each kept for so long. `is_emitted`: those that are to
    come out when they close are in an index.
    """
    parsed = _WINDOW.validate_python(window)
    length_ms = getattr(parsed, "size_ms", 0) or getattr(parsed, "time_difference_ms", 0)
    times = WindowTimes(length_ms, closing_delay_ms(parsed), END_OF_TIME if kept_ms is None else kept_ms)
    if isinstance(parsed, SessionWindow):
        families = (Sessions(times, values), PackedSessionFamily(times, values))
        rule = Rule("session", saturated(times.delay_ms, 1), is_emitted)
        return Form(families, is_end_inclusive=True, is_session=True, rule=rule)
    is_end_inclusive = isinstance(parsed, SlidingWindow)
    delay_ms = saturated(times.delay_ms, is_end_inclusive)
    rule = Rule("window", delay_ms, is_emitted, length_ms, length_ms if is_emitted else None)
    return Form((Windows(times, values),), is_end_inclusive=is_end_inclusive, rule=rule)


_WINDOW: TypeAdapter[Any] = TypeAdapter(WindowSpec)
