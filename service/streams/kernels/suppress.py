"""The buffer of suppress at work, record by record: put, evict what is due, then evict what is too much (KIP-328).

Loops over arrays, nothing else. Entries are dense ids; a heap keeps those that are buffered in (time, rank) order.
"""

from __future__ import annotations

import numba as nb
import numpy as np

ABSENT = np.int64(np.iinfo(np.int64).min)  # the buffer time that means "not buffered"
STORED = np.int64(-1)  # the source of a value that lies in the store
NEEDS_MORE = np.int64(-1)  # an entry that was not loaded may be the head
FULL = np.int64(-2)
PUSHED = np.int64(-1)  # the overtime of what left because of the bounds

_BYTES = nb.types.Array(nb.uint8, 1, "C", readonly=True)  # Arrow buffers are read-only
_ENDS = nb.types.Array(nb.int32, 1, "C", readonly=True)
_INT64S = nb.types.Array(nb.int64, 1, "C", readonly=True)


@nb.njit(nb.int64(_BYTES, nb.int64, nb.int64), cache=True)
def code_unit(data, at, end):  # type: ignore[no-untyped-def]
    r"""The UTF-16 code unit of the escape \uXXXX at data[at:end]; -1 where there is none."""
    if at + 6 > end or data[at] != 0x5C or data[at + 1] != 0x75:
        return -1
    found = 0
    for j in range(at + 2, at + 6):
        byte = data[j]
        digit = byte - 0x30 if byte <= 0x39 else (byte | 0x20) - 0x61 + 10
        found = found * 16 + digit
    return found


@nb.njit(nb.types.UniTuple(nb.int64, 2)(_BYTES, nb.int64, nb.int64), cache=True)
def escaped(data, at, end):  # type: ignore[no-untyped-def]
    r"""Of the escape at data[at]: how many bytes it takes, and how many its character takes in compact JSON, which
    escapes only quotes, backslashes and control characters, and those as shortly as it can.
    """
    if data[at + 1] != 0x75:
        return 2, 1 if data[at + 1] == 0x2F else 2
    unit = code_unit(data, at, end)
    if 0xD800 <= unit < 0xDC00:
        low = code_unit(data, at + 6, end)
        return (12, 4) if 0xDC00 <= low < 0xE000 else (6, 6)
    if unit < 0x20:
        is_short = unit == 0x08 or unit == 0x09 or unit == 0x0A or unit == 0x0C or unit == 0x0D
        return 6, 2 if is_short else 6
    if unit == 0x22 or unit == 0x5C:
        return 6, 2
    if unit < 0x80:
        return 6, 1
    if unit < 0x800:
        return 6, 2
    return 6, 6 if 0xDC00 <= unit < 0xE000 else 3


@nb.njit(nb.void(_BYTES, _ENDS, nb.int64[::1]), cache=True)
def compact_lengths(data, offsets, out):  # type: ignore[no-untyped-def]
    """out[i] = bytes of the JSON text data[offsets[i]:offsets[i + 1]] as compact JSON: without the white space between
    its tokens, and no character escaped that need not be. Numbers count as they were written.
    """
    for i in range(len(out)):
        length, end = np.int64(offsets[i + 1] - offsets[i]), np.int64(offsets[i + 1])
        in_string = False
        at = np.int64(offsets[i])
        while at < end:
            byte = data[at]
            if byte == 0x22:
                in_string = not in_string
            elif in_string and byte == 0x5C:
                taken, needed = escaped(data, at, end)
                length += needed - taken
                at += taken - 1
            elif not in_string and (byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09):
                length -= 1
            at += 1
        out[i] = length


@nb.njit(nb.bool_(nb.int64, nb.int64, nb.int64[::1]), cache=True)
def precedes(a, b, times):  # type: ignore[no-untyped-def]
    """Whether entry a leaves before entry b."""
    return times[a] < times[b] or (times[a] == times[b] and a < b)


@nb.njit(nb.void(nb.int64[::1], nb.int64, nb.int64, nb.int64[::1]), cache=True)
def push(heap, size, one, times):  # type: ignore[no-untyped-def]
    """Add entry `one` to the heap of `size` entries."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if not precedes(one, heap[parent], times):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = one


@nb.njit(nb.void(nb.int64[::1], nb.int64, nb.int64[::1]), cache=True)
def pop(heap, size, times):  # type: ignore[no-untyped-def]
    """Remove the head of the heap of `size` entries."""
    last = heap[size - 1]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and precedes(heap[child + 1], heap[child], times):
            child += 1
        if not precedes(heap[child], last, times):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last


@nb.njit(nb.int64(nb.int64[::1], nb.int64[::1]), cache=True)
def fill(heap, times):  # type: ignore[no-untyped-def]
    """Make the heap of all entries that are buffered; how many."""
    size = 0
    for one in range(len(times)):
        if times[one] != ABSENT:
            push(heap, size, one, times)
            size += 1
    return size


@nb.njit(nb.bool_(nb.int64[::1], nb.int64, nb.int64[::1], _INT64S), cache=True)
def is_before(heap, size, times, known):  # type: ignore[no-untyped-def]
    """Whether the head of the heap leaves before all that comes after (time, id) = known."""
    if size == 0:
        return False
    head = heap[0]
    return times[head] < known[0] or (times[head] == known[0] and head <= known[1])


@nb.njit(nb.void(nb.bool_, nb.int64[::1], nb.int64[::1]), cache=True)
def look(has_changed, totals, levels):  # type: ignore[no-untyped-def]
    """Note how full the buffer is: levels = looks; records and bytes, each their sum over all looks and the most."""
    if not has_changed:
        return
    levels[0] += 1
    levels[1] += totals[0]
    levels[2] = max(levels[2], totals[0])
    levels[3] += totals[1]
    levels[4] = max(levels[4], totals[1])


@nb.njit(
    nb.int64(
        _INT64S,
        _INT64S,
        _INT64S,
        _INT64S,
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[::1],
        nb.int64[::1],
        _INT64S,
        nb.bool_,
        _INT64S,
        nb.int64[:, ::1],
        nb.int64[::1],
        nb.int64[::1],
    ),
    cache=True,
)
def suppress(  # type: ignore[no-untyped-def]
    ids, first_times, due, sizes, times, held, sources, totals, bounds, is_early, known, out, levels, stop
):
    """Feed the rows. Row i updates entry ids[i] (none if negative), with buffer time first_times[i] if it is new, to
    hold sizes[i] bytes. Then entries leave, lowest (time, id) first, while their time is at most due[i]; and while the
    buffer is over its bounds (records, bytes), or that is where it stops when it may not emit early.

    Per entry, read and written: times (ABSENT = not buffered), held (bytes), sources (the row that its value comes
    from, or STORED). totals (records, bytes) counts entries that were not loaded, too: these come after (time, id) =
    known. Where one of them may be due, this ends with stop[0] = the row: it is fed, and more has to leave at it.
    out[:, k] = (row at which it left, entry, source, by how much due[row] was past its time or PUSHED) of the k-th
    that leaves. `levels` looks after each put, and after each row at which entries left, as Kafka Streams does.
    Returns how many left; NEEDS_MORE; or FULL - row, totals telling how full.
    """
    heap = np.empty(len(times), np.int64)
    size = fill(heap, times)
    left = 0
    for row in range(len(ids)):
        one = ids[row]
        if one >= 0:
            if times[one] == ABSENT:
                times[one] = first_times[row]
                held[one] = 0
                totals[0] += 1
                push(heap, size, one, times)
                size += 1
            totals[1] += sizes[row] - held[one]
            held[one] = sizes[row]
            sources[one] = row
            look(True, totals, levels)
        before = left
        while True:
            is_over = totals[0] > bounds[0] or totals[1] > bounds[1]
            is_due = size > 0 and times[heap[0]] <= due[row]
            is_hidden = totals[0] > size and not is_before(heap, size, times, known)
            if is_hidden and known[0] <= due[row]:
                stop[0] = row
                look(left > before, totals, levels)
                return left
            if not is_due and not (is_over and is_early):
                break
            if not is_due and is_hidden:
                return NEEDS_MORE
            head = heap[0]
            pop(heap, size, times)
            size -= 1
            out[0, left] = row
            out[1, left] = head
            out[2, left] = sources[head]
            out[3, left] = due[row] - times[head] if is_due else PUSHED
            left += 1
            totals[0] -= 1
            totals[1] -= held[head]
            times[head] = ABSENT
        look(left > before, totals, levels)
        if is_over:
            return FULL - row
    return left
