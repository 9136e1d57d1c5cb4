"""What of a store is not over yet: open windows and sessions, updates held back, identities that are remembered.

It knows which stream time ends what, by the form of the store (`reading.Rule`), and how to find what ends first without
looking at all that lies there: by the index of what is to be emitted, where a copy has one, else entry by entry, past
the runs of those that are over. It refuses to know where a store lies.

Nothing is counted that was not seen: where more is there than may be looked at, the number is at least so many, and
what comes first is given only as far as nothing can come before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from service.streams.clock import saturated
from service.streams.layouts import buffers, reserved, store_keys
from service.streams.stores.reading import Ask, Family, Findings, Form, Int64s, Query, Reading, Rule, Span

MOST_SEEN: Final = 20_000  # entries of a partition that are looked at, some 20 ms
LEAST_AT_ONCE: Final = 32  # while every key has entries that are over, which are passed over
MOST_AT_ONCE: Final = 1_000
_INDEX: Final = Span(store_keys.index_bound(0), store_keys.index_bound(1 << 63))
_TOTALS: Final = Span(reserved.TOTALS_KEY, reserved.TOTALS_KEY + b"\0")


class Ending(NamedTuple):
    """`number` entries that are over once stream time is `at`, the lowest that ends them; at least so many, where not
    `is_all`. `time`: from which it is counted: the end of windows and sessions, when an identity was seen. All in ms.
    """

    at: int
    time: int
    number: int
    is_all: bool


class Pending(NamedTuple):
    """What of a partition of a store is not over, as of a changelog position and a stream time.

    `number`: at least so many, where not `is_all`. `first`: what is over first, in order; None: too much lies there to
    know. `last_at`: the stream time at which all of it is over, None where nothing is or nobody knows. `bytes`: what a
    buffer holds. `open_from`: what has this time or a later one is open, all before is closed.
    """

    position: int
    stream_time: int
    number: int
    is_all: bool
    first: list[Ending] | None
    last_at: int | None
    bytes: int | None
    open_from: int


def read_pending(
    form: Form, partition: int, firsts: int, *, has_indexes: bool, most: int = MOST_SEEN
) -> Reading[Pending | None]:
    """What is pending in a partition; None where nothing of such a store is ever over."""
    if form.rule is None:
        return None
    if form.rule.what == "buffered":
        return (yield from _of_buffer(form, form.rule, partition, firsts, most, has_indexes=has_indexes))
    if form.rule.index_lag_ms is not None and has_indexes:
        return (yield from _by_index(form, form.rule, partition, firsts, most))
    return (yield from _one_by_one(form, form.rule, partition, firsts, most))


def open_from(form: Form, at: Findings) -> int:
    """The lowest time (`Moments`) of an entry that is not over."""
    if at.closed_to is not None:
        return at.closed_to + 1 - form.is_end_inclusive
    return at.stream_time - (0 if form.rule is None else form.rule.delay_ms) + 1


# ---------------------------------------------------------------- by the index


def _by_index(form: Form, rule: Rule, partition: int, firsts: int, most: int) -> Reading[Pending]:
    (head,) = yield [Ask(partition, (_INDEX,), most + 1, False)]
    found = _indexed(rule, head, most)
    last = found.times[-1:] if found.is_all else (yield from _last_indexed(rule, partition))
    return _pending(form, rule, head, found, firsts, last)


def _of_buffer(
    form: Form, rule: Rule, partition: int, firsts: int, most: int, *, has_indexes: bool
) -> Reading[Pending]:
    """A buffer counts what it holds."""
    spans = (_INDEX, _TOTALS) if has_indexes else (_TOTALS,)
    (head,) = yield [Ask(partition, spans, most + 1, False)]
    records, size = buffers.unpack_totals(next((value for _, value in head.found[-1]), None)).tolist()
    if has_indexes:
        found = _indexed(rule, head, most)
        last = found.times[-1:] if found.is_all else (yield from _last_indexed(rule, partition))
        pending = _pending(form, rule, head, found, firsts, last)
    else:
        pending = yield from _one_by_one(form, rule, partition, firsts, most)
    return pending._replace(number=records, is_all=True, bytes=size)


def _indexed(rule: Rule, at: Findings, most: int) -> _Seen:
    times, _ = store_keys.split_index_keys([key for key, _ in at.found[0][:most]])
    return _Seen(times + (rule.index_lag_ms or 0), is_all=len(at.found[0]) <= most, is_in_order=True)


def _last_indexed(rule: Rule, partition: int) -> Reading[Int64s]:
    (found,) = yield [Ask(partition, (_INDEX,), 1, True)]
    times, _ = store_keys.split_index_keys([key for key, _ in found.found[0]])
    return times + (rule.index_lag_ms or 0)


# ---------------------------------------------------------------- one by one


def _one_by_one(form: Form, rule: Rule, partition: int, firsts: int, most: int) -> Reading[Pending]:
    (head,) = yield [Ask(partition, (), 1, False)]
    lowest = None if rule.what == "buffered" else open_from(form, head)
    found, left, is_all = list[Int64s](), most, True
    for family in form.families:
        span, at_once = family.span(Query()), LEAST_AT_ONCE
        while span is not None and left > 0:
            limit = min(at_once, left)
            (at,) = yield [Ask(partition, (span,), limit, False)]
            entries = at.found[0]
            left -= len(entries)
            if entries:
                found.append(_open_times(family, entries, lowest, head.floor))
            if len(entries) < limit:
                span = None
                break
            last = entries[-1][0]
            start = last + b"\0" if lowest is None else family.ahead(last, lowest)
            at_once = LEAST_AT_ONCE if start > last + b"\0" else min(2 * at_once, MOST_AT_ONCE)
            span = Span(start, span.end) if start < span.end else None
        is_all = is_all and span is None
    times = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
    return _pending(form, rule, head, _Seen(times, is_all=is_all, is_in_order=False), firsts, times[-1:])


def _open_times(
    family: Family, entries: Sequence[tuple[bytes, bytes]], lowest: int | None, floor: int | None
) -> Int64s:
    times, own = family.moments(entries)
    if lowest is not None:
        is_open = times >= lowest if floor is None else (times >= lowest) & (own >= floor)
        return times[is_open]
    return times


# ---------------------------------------------------------------- what is known


class _Seen(NamedTuple):
    """Times of what is not over, ascending. `is_in_order`: what was not seen, where that is not all, has later ones, or
    the last of these.
    """

    times: Int64s
    is_all: bool
    is_in_order: bool


def _pending(form: Form, rule: Rule, head: Findings, seen: _Seen, firsts: int, last: Int64s) -> Pending:
    is_known = seen.is_all or seen.is_in_order
    return Pending(
        position=head.position,
        stream_time=head.stream_time,
        number=len(seen.times),
        is_all=seen.is_all,
        first=_first(rule, seen, firsts) if is_known else None,
        last_at=saturated(int(last[0]), rule.delay_ms) if is_known and len(last) else None,
        bytes=None,
        open_from=open_from(form, head),
    )


def _first(rule: Rule, seen: _Seen, firsts: int) -> list[Ending]:
    distinct, numbers = np.unique(seen.times, return_counts=True)
    pairs = zip(distinct[:firsts].tolist(), numbers[:firsts].tolist(), strict=True)
    last = int(seen.times[-1]) if len(seen.times) and not seen.is_all else None  # of which there may be more
    return [Ending(saturated(time, rule.delay_ms), time, number, time != last) for time, number in pairs]
