"""Which sliding windows a record changes and makes (KIP-450; KStreamSlidingWindowAggregate). Loops over arrays only.

A slot is a possible window: one that is there, or one that some record may make. The slots of a key lie in
[begins[key], begins[key + 1]), by start. Every record defines a window that ends with it and one that starts right
after it; the latter is there only if it holds a record.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from service.streams.kernels.fold import COPY, FOLD

END_OF_TIME = np.int64(np.iinfo(np.int64).max)
NONE: int = np.int64(-1)  # type: ignore[assignment]
_INT32S = nb.types.Array(nb.int32, 1, "C", readonly=True)
_INT64S = nb.types.Array(nb.int64, 1, "C", readonly=True)
_FLAGS_OUT, _BYTES_OUT, _INT32S_OUT, _INT64S_OUT = nb.bool_[::1], nb.int8[::1], nb.int32[::1], nb.int64[::1]
# slots: ends, present, changed, stamps · events: kinds, slots, others · updates: rows, events
# dropped: rows, ends · counts
_WORK = nb.types.Tuple(
    (
        _INT64S,
        _FLAGS_OUT,
        _FLAGS_OUT,
        _INT64S_OUT,
        _BYTES_OUT,
        _INT32S_OUT,
        _INT32S_OUT,
        _INT32S_OUT,
        _INT32S_OUT,
        _INT32S_OUT,
        _INT64S_OUT,
        _INT64S_OUT,
    )
)
_EVENTS, _UPDATES, _DROPPED = 0, 1, 2


@nb.njit(nb.void(_WORK, nb.int64, nb.int64, nb.int64), cache=True)
def event(work, kind, slot, other):  # type: ignore[no-untyped-def]
    """Note an event."""
    _, _, _, _, kinds, slots, others, _, _, _, _, counts = work
    at = counts[_EVENTS]
    kinds[at], slots[at], others[at] = kind, slot, other
    counts[_EVENTS] += 1


@nb.njit(nb.void(_WORK, nb.int64, nb.int64), cache=True)
def say(work, row, of_event):  # type: ignore[no-untyped-def]
    """Note an update: the value after an event goes on."""
    _, _, _, _, _, _, _, rows, events, _, _, counts = work
    at = counts[_UPDATES]
    rows[at], events[at] = row, of_event
    counts[_UPDATES] += 1


@nb.njit(nb.void(_WORK, nb.int64, nb.int64), cache=True)
def drop(work, row, end):  # type: ignore[no-untyped-def]
    """Note that a window which ends there does not take the record."""
    _, _, _, _, _, _, _, _, _, rows, ends, counts = work
    at = counts[_DROPPED]
    rows[at], ends[at] = row, end
    counts[_DROPPED] += 1


@nb.njit(nb.void(_WORK, nb.int64, nb.int64, nb.int64, nb.int64, nb.int64), cache=True)
def take_in(work, row, timestamp, close, slot, source):  # type: ignore[no-untyped-def]
    """Fold the record into a window, begun as a copy of `source` unless that is NONE; not into a closed one."""
    ends, present, changed, stamps, _, _, _, _, _, _, _, counts = work
    if ends[slot] < close:
        drop(work, row, ends[slot])
        return
    if source != NONE:
        event(work, COPY, slot, source)
    stamps[slot] = max(stamps[slot], timestamp) if present[slot] else timestamp
    present[slot], changed[slot] = True, True
    event(work, FOLD, slot, row)
    say(work, row, counts[_EVENTS] - 1)


@nb.njit(nb.int64(_WORK, nb.int64, nb.int64), cache=True)
def copy_to(work, slot, source):  # type: ignore[no-untyped-def]
    """Begin a window as a copy of another, as that is now; the event is said later, in its place."""
    _, present, changed, stamps, _, _, _, _, _, _, _, counts = work
    stamps[slot] = stamps[source]
    present[slot], changed[slot] = True, True
    event(work, COPY, slot, source)
    return counts[_EVENTS] - 1


@nb.njit(nb.int64(_INT64S, nb.int64, nb.int64, nb.int64), cache=True)
def slot_of(starts, begin, end, start):  # type: ignore[no-untyped-def]
    """The slot in [begin, end) with this start, which is there."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if starts[middle] < start:
            low = middle + 1
        else:
            high = middle
    return low


@nb.njit(
    nb.void(_WORK, nb.int64, nb.int64, nb.int64, nb.int64, _INT64S, nb.int64, nb.int64, nb.int64, nb.int64), cache=True
)
def early(work, row, timestamp, close, difference, starts, begin, end, left, right):  # type: ignore[no-untyped-def]
    """A record before `difference`: windows do not start below 0, so [0, difference] takes the place of its own."""
    _, present, _, stamps, _, _, _, _, _, _, _, _ = work
    has_combined = present[left]
    last = NONE
    for slot in range(right - 1, left, -1):
        if present[slot]:
            last = slot
            break
    is_needed = not present[right] and right != left
    copied = NONE
    for slot in range(left + 1, right):
        if present[slot]:
            if slot == last and is_needed and stamps[slot] > timestamp:
                copied = copy_to(work, right, slot)
            take_in(work, row, timestamp, close, slot, NONE)
    if last == NONE and is_needed and has_combined and stamps[left] > timestamp:
        copied = copy_to(work, right, left)
    if copied != NONE:
        say(work, row, copied)
    if has_combined and stamps[left] < timestamp:
        previous = slot_of(starts, begin, end, stamps[left] + 1)
        if not present[previous]:
            take_in(work, row, timestamp, close, previous, NONE)
    take_in(work, row, timestamp, close, left, NONE)


@nb.njit(
    nb.types.UniTuple(nb.int64, 3)(
        _WORK, nb.int64, nb.int64, nb.int64, nb.int64, _INT64S, nb.int64, nb.int64, nb.int64, nb.bool_
    ),
    cache=True,
)
def look_back(work, row, timestamp, close, difference, starts, begin, left, right, is_repeated):  # type: ignore[no-untyped-def]
    """Fold a record into the windows that hold it, from the newest down.

    Returns the event of its own right window, if that comes to be now; the newest window that ends before the
    record; and the timestamp of the record before it, as the lowest window that was looked at has it. NONE otherwise.
    """
    ends, present, _, stamps, _, _, _, _, _, _, _, _ = work
    copied, previous = NONE, NONE
    may_copy = not present[right] and not is_repeated and right != left
    for slot in range(max(right - 1, left), begin - 1, -1):
        if (timestamp - starts[slot] - 1) // 2 >= difference:  # more than twice as far, without an overflow
            break
        if not present[slot]:
            continue
        if ends[slot] < timestamp:
            return copied, slot, stamps[slot]
        if slot == left:
            previous = stamps[slot]
        elif may_copy and stamps[slot] > timestamp:
            copied = copy_to(work, right, slot)
        may_copy = False
        take_in(work, row, timestamp, close, slot, NONE)
        if slot == left and is_repeated:
            break
    return copied, NONE, previous


@nb.njit(
    nb.void(_WORK, nb.int64, nb.int64, nb.int64, nb.int64, _INT64S, nb.int64, nb.int64, nb.int64, nb.int64), cache=True
)
def regular(work, row, timestamp, close, difference, starts, begin, end, left, right):  # type: ignore[no-untyped-def]
    """A record at `difference` or later: windows from the one right after it down to two differences before it."""
    _, present, _, stamps, _, _, _, _, _, _, _, _ = work
    has_left = present[left]
    is_repeated = has_left and stamps[left] == timestamp
    copied, source, previous = look_back(
        work, row, timestamp, close, difference, starts, begin, left, right, is_repeated
    )
    if is_repeated:
        return
    if previous != NONE and timestamp - previous - 1 <= difference:
        after = slot_of(starts, begin, end, previous + 1)
        if not present[after]:
            take_in(work, row, timestamp, close, after, NONE)
    if not has_left and present[left]:  # it is the window after the record before: said twice, with the same value
        say(work, row, copy_to(work, left, left))
    elif not has_left:
        take_in(work, row, timestamp, close, left, source if previous >= timestamp - difference else NONE)
    if copied != NONE:
        say(work, row, copied)


@nb.njit(
    nb.void(_INT32S, _INT64S, _INT64S, nb.int64, _INT64S, _INT64S, _INT64S, _INT64S, _WORK),
    cache=True,
)
def slide(ids, timestamps, closes, difference, begins, starts, lefts, rights, work):  # type: ignore[no-untyped-def]
    """Every record in turn: key ids[i], the slots lefts[i] and rights[i] of its own two windows (equal at the end of
    time, where nothing starts after it). Windows that end before closes[i] take nothing.
    """
    for row in range(len(ids)):
        timestamp, close = timestamps[row], closes[row]
        begin, end = begins[ids[row]], begins[ids[row] + 1]
        last = min(timestamp, END_OF_TIME - difference) + difference
        if last < close:
            drop(work, row, last)
        elif timestamp < difference:
            early(work, row, timestamp, close, difference, starts, begin, end, lefts[row], rights[row])
        else:
            regular(work, row, timestamp, close, difference, starts, begin, end, lefts[row], rights[row])
