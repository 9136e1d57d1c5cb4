"""Which record is the first of its key in a window: one pass, loops over arrays, nothing else (KIP-655, `distinct`)."""

from __future__ import annotations

import numba as nb
import numpy as np

DUPLICATE, FIRST, LATE = np.uint8(0), np.uint8(1), np.uint8(2)
END_OF_TIME = np.int64(np.iinfo(np.int64).max)
CHANGED = np.int64(-1)  # the origin of a session that is not as it was stored

_INT64S = nb.types.Array(nb.int64, 1, "C", readonly=True)
_BOOLS = nb.types.Array(nb.bool_, 1, "C", readonly=True)


@nb.njit(nb.void(_INT64S, _BOOLS, nb.bool_[::1], nb.uint8[::1]), cache=True)
def first_of_windows(ids, is_late, seen, verdicts):  # type: ignore[no-untyped-def]
    """ids[i]: the (key, window) of row i; seen: which have had a record, read and written."""
    for i in range(len(ids)):
        if is_late[i]:
            verdicts[i] = LATE
        elif seen[ids[i]]:
            verdicts[i] = DUPLICATE
        else:
            verdicts[i] = FIRST
            seen[ids[i]] = True


@nb.njit(nb.int64(nb.int64[::1], nb.int64, nb.int64), cache=True)
def below(values, count, bound):  # type: ignore[no-untyped-def]
    """How many of the first `count` sorted values are less than `bound`; looks at the last ones first."""
    step, high = 1, count
    while high - step >= 0 and values[high - step] >= bound:
        high -= step
        step *= 2
    low = max(high - step, -1) + 1
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < bound:
            low = middle + 1
        else:
            high = middle
    return low


@nb.njit(nb.int64(nb.int64[:, ::1], nb.int64, nb.int64, nb.int64), cache=True)
def replace(sessions, count, first, joined):  # type: ignore[no-untyped-def]
    """Make room for one session in place of `joined` ones from `first` on. Returns how many there are then."""
    if joined == 0:
        for s in range(count, first, -1):
            sessions[:, s] = sessions[:, s - 1]
    elif joined > 1:
        for s in range(first + joined, count):
            sessions[:, s - joined + 1] = sessions[:, s]
    return count + 1 - joined


@nb.njit(
    nb.int64(
        _INT64S,
        _INT64S,
        _INT64S,
        nb.int64,
        nb.int64[:, ::1],
        nb.int64,
        nb.uint8[::1],
    ),
    cache=True,
)
def join(rows, timestamps, closes, gap, sessions, count, verdicts):  # type: ignore[no-untyped-def]
    """Let the rows of one key join its `count` sessions, or begin some. sessions: start, end, start - gap and origin
    of each, in order of time, with room for one more per row. Returns how many there are then.
    """
    starts, ends, reach, origins = sessions[0], sessions[1], sessions[2], sessions[3]
    for row in rows:
        at = timestamps[row]
        first = below(ends, count, max(at - gap, closes[row]))
        last = below(reach, count, at + 1) if at < END_OF_TIME else count
        joined = max(last - first, 0)
        start, end = at, at
        if joined > 0:
            verdicts[row] = DUPLICATE
            start, end = min(at, starts[first]), max(at, ends[last - 1])
        elif at < closes[row]:
            verdicts[row] = LATE
            continue
        else:
            verdicts[row] = FIRST
            first = last
        if joined != 1 or start != starts[first] or end != ends[first]:
            count = replace(sessions, count, first, joined)
            starts[first], ends[first], reach[first], origins[first] = start, end, start - gap, CHANGED
    return count


@nb.njit(
    nb.int64(
        _INT64S,
        _INT64S,
        _INT64S,
        _INT64S,
        nb.int64,
        _INT64S,
        _INT64S,
        _INT64S,
        nb.bool_[::1],
        nb.uint8[::1],
        nb.int64[:, ::1],
    ),
    cache=True,
)
def first_of_sessions(  # type: ignore[no-untyped-def]
    order, row_ends, timestamps, closes, gap, stored_to, stored_starts, stored_ends, is_kept, verdicts, out
):
    """Key k has the rows order[row_ends[k]:row_ends[k + 1]], in order of arrival, and the stored sessions from
    stored_to[k] to stored_to[k + 1], in order of time. closes[i]: what ended before it is closed to row i.

    A row joins all sessions of its key within the gap that are open to it, or begins one, or is late. is_kept: which
    stored sessions stay as they are; out[:, j] = (key, start, end) of the j-th one that is new or has grown.
    Returns how many those are. Times are never negative, so no subtraction overflows.
    """
    room = np.int64(0)
    for k in range(len(row_ends) - 1):
        room = max(room, row_ends[k + 1] - row_ends[k] + stored_to[k + 1] - stored_to[k])
    sessions = np.empty((4, room), np.int64)
    made = 0
    for k in range(len(row_ends) - 1):
        count = stored_to[k + 1] - stored_to[k]
        for s in range(count):
            start = stored_starts[stored_to[k] + s]
            sessions[0, s], sessions[1, s], sessions[2, s] = start, stored_ends[stored_to[k] + s], start - gap
            sessions[3, s] = stored_to[k] + s
        rows = order[row_ends[k] : row_ends[k + 1]]
        for s in range(join(rows, timestamps, closes, gap, sessions, count, verdicts)):
            if sessions[3, s] == CHANGED:
                out[0, made], out[1, made], out[2, made] = k, sessions[0, s], sessions[1, s]
                made += 1
            else:
                is_kept[sessions[3, s]] = True
    return made
