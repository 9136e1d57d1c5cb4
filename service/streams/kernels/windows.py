"""Which time windows records fall into, and what of a batch's updates is its net change. Loops over arrays only."""

from __future__ import annotations

import numba as nb
import numpy as np

END_OF_TIME = np.int64(np.iinfo(np.int64).max)
_INT64S = nb.types.Array(nb.int64, 1, "C", readonly=True)
_INT32S = nb.types.Array(nb.int32, 1, "C", readonly=True)


@nb.njit(
    nb.types.UniTuple(nb.int64, 2)(
        _INT64S, _INT64S, nb.int64, nb.int64, nb.int32[::1], nb.int64[::1], nb.int32[::1], nb.int64[::1]
    ),
    cache=True,
)
def assign(timestamps, closes, size, advance, rows, starts, dropped, dropped_ends):  # type: ignore[no-untyped-def]
    """The windows [start, start + size) of each record, ascending; start is a multiple of `advance`, never below 0.

    A window that ends at closes[row] or before takes nothing: its row goes to `dropped`, its end beside it. Returns
    how many pairs (rows, starts) and how many dropped there are.
    """
    count, lost = 0, 0
    for row in range(len(timestamps)):
        timestamp = timestamps[row]
        start = max(np.int64(0), timestamp - size + advance) // advance * advance
        while True:
            end = start + size if start <= END_OF_TIME - size else END_OF_TIME
            if end > closes[row]:
                rows[count], starts[count] = row, start
                count += 1
            else:
                dropped[lost], dropped_ends[lost] = row, end
                lost += 1
            if start > timestamp - advance:
                break
            start += advance
    return count, lost


@nb.njit(nb.int32(nb.uint64), cache=True)
def ones(word):  # type: ignore[no-untyped-def]
    """How many bits of a word are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int32((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@nb.njit(
    nb.types.Tuple((nb.int32[::1], nb.int64[::1], nb.int32[::1]))(_INT32S, _INT64S, nb.int64, nb.uint64[::1]),
    cache=True,
)
def rank(ids, steps, width, bits):  # type: ignore[no-untyped-def]
    """The distinct pairs of an id and a step below `width`, in order, as two arrays, and the place of each given pair.

    `bits`: zeros, one bit for every pair that could be (id * width + step): small enough to stay in the cache, where a
    table of places would not.
    """
    one = np.uint64(1)
    for i in range(len(ids)):
        pair = ids[i] * width + steps[i]
        bits[pair >> 6] |= one << np.uint64(pair & 63)
    before = np.empty(len(bits), np.int32)
    count = np.int32(0)
    for word in range(len(bits)):
        before[word] = count
        count += ones(bits[word])
    of_ids, of_steps, places = np.empty(count, np.int32), np.empty(count, np.int64), np.empty(len(ids), np.int32)
    for i in range(len(ids)):
        pair = ids[i] * width + steps[i]
        word = pair >> 6
        place = before[word] + ones(bits[word] & ((one << np.uint64(pair & 63)) - one))
        places[i], of_ids[place], of_steps[place] = place, ids[i], steps[i]
    return of_ids, of_steps, places


@nb.njit(
    nb.void(_INT32S, _INT64S, _INT64S, _INT32S, _INT64S, _INT64S, nb.bool_[::1]),
    cache=True,
)
def net(slots, starts, ends, events, was_starts, was_ends, keep):  # type: ignore[no-untyped-def]
    """Of updates in order, what is left for one who looks only at the end: keep[i].

    Update i says that the group in slots[i], of the window [starts[i], ends[i]], has a new value (events[i] >= 0) or
    is gone (a tombstone). was_starts, was_ends: the window that each slot had before; starts below 0 say it had
    none. The window of a slot only grows, so its last value is the only one that can stay, and the only tombstone
    that tells anything is that of the window that was there before.
    """
    seen = np.zeros(len(was_starts), np.bool_)
    reported = np.zeros(len(was_starts), np.bool_)
    for i in range(len(slots) - 1, -1, -1):
        slot = slots[i]
        is_old = was_starts[slot] >= 0 and starts[i] == was_starts[slot] and ends[i] == was_ends[slot]
        if events[i] >= 0:
            keep[i] = not seen[slot]
            reported[slot] = reported[slot] or (keep[i] and is_old)
        else:
            keep[i] = is_old and not reported[slot]
            reported[slot] = reported[slot] or keep[i]
        seen[slot] = True
