"""Sessions growing and merging, record by record (KIP-94; semantics.md, Session). Loops over arrays, nothing else."""

from __future__ import annotations

import numba as nb
import numpy as np

from service.streams.kernels.fold import FOLD, JOIN, MERGE

_INT32S = nb.types.Array(nb.int32, 1, "C", readonly=True)
_INT64S = nb.types.Array(nb.int64, 1, "C", readonly=True)
TOMBSTONE = np.int32(-1)


@nb.njit(nb.int64(_INT32S, _INT64S, nb.int64, nb.int64, nb.int64), cache=True)
def first_ending(order, ends, begin, end, limit):  # type: ignore[no-untyped-def]
    """The first place in order[begin:end] whose session ends at `limit` or later; `end` where there is none.

    Ends rise along the order, and what is looked for is nearly always at its end.
    """
    if end == begin or ends[order[end - 1]] < limit:
        return end
    if end - begin == 1 or ends[order[end - 2]] < limit:
        return end - 1
    low, high = begin, end - 2
    while low < high:
        middle = (low + high) >> 1
        if ends[order[middle]] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@nb.njit(nb.void(nb.int32[::1], nb.int64, nb.int64, nb.int32), cache=True)
def insert(order, place, end, slot):  # type: ignore[no-untyped-def]
    """Put a slot into order[:end] at a place."""
    for i in range(end, place, -1):
        order[i] = order[i - 1]
    order[place] = slot


@nb.njit(nb.int64(nb.int32[::1], nb.int64, nb.int64, nb.int64), cache=True)
def remove(order, begin, end, after):  # type: ignore[no-untyped-def]
    """Take order[begin:end] out of order[:after]; returns how many these were."""
    if end > begin:
        for i in range(end, after):
            order[begin + i - end] = order[i]
    return end - begin


@nb.njit(
    nb.types.UniTuple(nb.int64, 4)(
        _INT32S,
        _INT64S,
        _INT64S,
        nb.int64,
        nb.int64[::1],
        nb.int64[::1],
        nb.int32[::1],
        nb.int64,
        nb.int32[::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.bool_[::1],
        nb.bool_[::1],
        nb.int8[::1],
        nb.int32[::1],
        nb.int32[::1],
        nb.int32[::1],
        nb.int32[::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.int32[::1],
        nb.int32[::1],
    ),
    cache=True,
)
def sessions(  # type: ignore[no-untyped-def]
    ids,
    timestamps,
    closes,
    gap,
    begins,
    lengths,
    order,
    count,
    keys,
    starts,
    ends,
    alive,
    changed,
    kinds,
    slots,
    others,
    update_rows,
    update_slots,
    update_starts,
    update_ends,
    update_events,
    dropped,
):
    """Let each record of key ids[i] join, merge or begin a session, unless it closed: all that ends before closes[i].

    The sessions of a key are slots in order[begins[key]:][:lengths[key]], by end; there is room there for all that
    may come. keys, starts, ends, alive and changed are per slot; `count` slots are taken at first. What happens is
    written as events (`kernels.fold`) and updates: row, slot, window and event, or TOMBSTONE for a window that is no
    more. Returns how many slots, events, updates and dropped rows there are then.
    """
    events, updates, lost = 0, 0, 0
    trimmed = begins.copy()  # closed sessions at the beginning of an order never matter again
    for row in range(len(ids)):
        key, timestamp, close = ids[row], timestamps[row], closes[row]
        end = begins[key] + lengths[key]
        trimmed[key] = first_ending(order, ends, trimmed[key], end, close)
        place = first_ending(order, ends, trimmed[key], end, timestamp - gap)
        if place == end or starts[order[place]] - gap > timestamp:
            if timestamp < close:
                dropped[lost] = row
                lost += 1
                continue
            slot = np.int32(count)
            count += 1
            insert(order, place, end, slot)
            lengths[key] += 1
            keys[slot], starts[slot], ends[slot], alive[slot] = key, timestamp, timestamp, True
            kinds[events], slots[events], others[events] = FOLD, slot, row
        else:
            slot = order[place]
            last = place + 1
            while last < end and starts[order[last]] - gap <= timestamp:
                last += 1
            is_same = last == place + 1 and starts[slot] == timestamp and ends[slot] == timestamp
            if not is_same:
                for i in range(place, last):
                    old = order[i]
                    update_rows[updates], update_slots[updates], update_events[updates] = row, old, TOMBSTONE
                    update_starts[updates], update_ends[updates] = starts[old], ends[old]
                    updates += 1
            kinds[events] = JOIN
            for i in range(place + 1, last):
                old = order[i]
                kinds[events], slots[events], others[events] = MERGE, slot, old
                events += 1
                kinds[events] = FOLD
                starts[slot], ends[slot] = min(starts[slot], starts[old]), ends[old]
                alive[old] = False
            lengths[key] -= remove(order, place + 1, last, end)
            starts[slot], ends[slot] = min(starts[slot], timestamp), max(ends[slot], timestamp)
            slots[events], others[events] = slot, row
        changed[slot] = True
        update_rows[updates], update_slots[updates], update_events[updates] = row, slot, events
        update_starts[updates], update_ends[updates] = starts[slot], ends[slot]
        updates += 1
        events += 1
    return count, events, updates, lost


NEW, HOT, COLD, GONE = 0, 1, 2, 3


@nb.njit(
    nb.void(
        _INT64S,
        _INT64S,
        _INT32S,
        _INT64S,
        nb.int8[::1],
        nb.int64,
        nb.int64,
        nb.int8[::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[::1],
    ),
    cache=True,
)
def settle(begins, lengths, order, ends, origins, close, most_hot, places, hot_counts, first_open, last_cold):  # type: ignore[no-untyped-def]
    """Where each slot of an order is stored: packed with the newest of its key (HOT), or on its own (COLD).

    Closed ones (that end before `close`) are COLD, and all that are older than one that is COLD. More than twice
    `most_hot` are too many: the oldest go. Per key: how many are HOT, the first end among those that are open (as it
    is where none is), and the last end of those that are both open and COLD (the same).
    """
    for key in range(len(begins)):
        begin, end = begins[key], begins[key] + lengths[key]
        hot = begin
        for i in range(begin, end):
            slot = order[i]
            if ends[slot] < close or origins[slot] == COLD:
                hot = i + 1
        if end - hot > 2 * most_hot:
            hot = end - most_hot
        hot_counts[key] = end - hot
        is_open = False
        for i in range(begin, end):
            slot = order[i]
            places[slot] = HOT if i >= hot else COLD
            if ends[slot] >= close:
                if not is_open:
                    first_open[key] = ends[slot]
                    is_open = True
                if i < hot:
                    last_cold[key] = ends[slot]
