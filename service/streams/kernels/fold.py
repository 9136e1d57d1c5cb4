"""Folding records into windows: one loop per aggregate over events in order (KIP-94: aggregator and merger).

Knows arrays only. An event is (kind, slot, other): FOLD and JOIN take in record `other`, MERGE and COPY the slot
`other`. JOIN and MERGE say that the slot was already there: to an aggregate with a merger of its own they begin from
empty; to those here that makes no difference. outs[i] >= 0 asks for the slot's columns after event i, at that place.
An aggregate of what is nowhere `valid` has `seen` = false.
"""

from __future__ import annotations

import numba as nb
import numpy as np

FOLD, JOIN, MERGE, COPY = 0, 1, 2, 3
NO_OVERFLOW = -1

_KINDS = nb.types.Array(nb.int8, 1, "C", readonly=True)
_INT32S = nb.types.Array(nb.int32, 1, "C", readonly=True)
_INT64S = nb.types.Array(nb.int64, 1, "C", readonly=True)
_FLOATS = nb.types.Array(nb.float64, 1, "C", readonly=True)
_FLAGS = nb.types.Array(nb.bool_, 1, "C", readonly=True)
_EVENTS = (_KINDS, _INT32S, _INT32S, _INT32S)
_INTS_OUT, _FLOATS_OUT, _FLAGS_OUT = nb.int64[::1], nb.float64[::1], nb.bool_[::1]


@nb.njit(nb.void(*_EVENTS, _INTS_OUT, _INTS_OUT), cache=True)
def count(kinds, slots, others, outs, counts, out):  # type: ignore[no-untyped-def]
    """Records, whatever they hold."""
    for i in range(len(kinds)):
        slot = slots[i]
        if kinds[i] <= JOIN:
            counts[slot] += 1
        elif kinds[i] == MERGE:
            counts[slot] += counts[others[i]]
        else:
            counts[slot] = counts[others[i]]
        if outs[i] >= 0:
            out[outs[i]] = counts[slot]


@nb.njit(nb.int64(*_EVENTS, _INT64S, _FLAGS, _INTS_OUT, _FLAGS_OUT, _INTS_OUT, _FLAGS_OUT), cache=True)
def add_integers(kinds, slots, others, outs, values, valid, totals, seen, out, out_seen):  # type: ignore[no-untyped-def]
    """Exact sums. Returns the first event that takes in a record and leaves a sum beyond 64 bits, NO_OVERFLOW: none.

    What merges for a record may pass them on the way: `carry` is the part of the sum beyond, of the slot at hand.
    """
    carry = 0
    for i in range(len(kinds)):
        slot, other = slots[i], others[i]
        if kinds[i] == COPY:
            totals[slot], seen[slot] = totals[other], seen[other]
        else:
            if kinds[i] == MERGE:
                value, has_value = totals[other], seen[other]
            else:
                value, has_value = values[other], valid[other]
            if has_value:
                total = totals[slot] + value
                if ((totals[slot] ^ total) & (value ^ total)) < 0:
                    carry += 1 if value >= 0 else -1
                totals[slot], seen[slot] = total, True
            if kinds[i] <= JOIN and carry != 0:
                return i
        if outs[i] >= 0:
            out[outs[i]], out_seen[outs[i]] = totals[slot], seen[slot]
    return NO_OVERFLOW


@nb.njit(nb.void(*_EVENTS, _FLOATS, _FLAGS, _FLOATS_OUT, _INTS_OUT, _FLOATS_OUT, _INTS_OUT), cache=True)
def add_doubles(kinds, slots, others, outs, values, valid, totals, counts, out, out_counts):  # type: ignore[no-untyped-def]
    """Sums of doubles in the order of events, and how many went in."""
    for i in range(len(kinds)):
        slot, other = slots[i], others[i]
        if kinds[i] == COPY or (kinds[i] == MERGE and counts[slot] == 0):
            totals[slot], counts[slot] = totals[other], counts[other]
        elif kinds[i] == MERGE:
            if counts[other] > 0:
                totals[slot] += totals[other]
                counts[slot] += counts[other]
        elif valid[other]:
            totals[slot] = values[other] if counts[slot] == 0 else totals[slot] + values[other]
            counts[slot] += 1
        if outs[i] >= 0:
            out[outs[i]], out_counts[outs[i]] = totals[slot], counts[slot]


@nb.njit(
    nb.void(*_EVENTS, _INT64S, _FLAGS, _INTS_OUT, _INTS_OUT, _INTS_OUT, _INTS_OUT, _INTS_OUT, _INTS_OUT), cache=True
)
def add_wide(kinds, slots, others, outs, values, valid, low, high, counts, out_low, out_high, out_counts):  # type: ignore[no-untyped-def]
    """Sums of integers in 128 bits (low word unsigned, high word signed), and how many went in: for means."""
    for i in range(len(kinds)):
        slot, other = slots[i], others[i]
        if kinds[i] == COPY:
            low[slot], high[slot], counts[slot] = low[other], high[other], counts[other]
        else:
            if kinds[i] == MERGE:
                add_low, add_high, add_count = low[other], high[other], counts[other]
            elif valid[other]:
                add_low, add_high, add_count = values[other], values[other] >> 63, 1
            else:
                add_low, add_high, add_count = 0, 0, 0
            total = np.uint64(low[slot]) + np.uint64(add_low)
            high[slot] += add_high + (1 if total < np.uint64(add_low) else 0)
            low[slot] = np.int64(total)
            counts[slot] += add_count
        if outs[i] >= 0:
            out_low[outs[i]], out_high[outs[i]], out_counts[outs[i]] = low[slot], high[slot], counts[slot]


@nb.njit(
    [
        nb.void(*_EVENTS, nb.bool_, _INT64S, _FLAGS, _INTS_OUT, _FLAGS_OUT, _INTS_OUT, _FLAGS_OUT),
        nb.void(*_EVENTS, nb.bool_, _FLOATS, _FLAGS, _FLOATS_OUT, _FLAGS_OUT, _FLOATS_OUT, _FLAGS_OUT),
    ],
    cache=True,
)
def extreme(kinds, slots, others, outs, is_max, values, valid, found, seen, out, out_seen):  # type: ignore[no-untyped-def]
    """The least or the greatest. NaN is greater than every number, as in SQL."""
    for i in range(len(kinds)):
        slot, other = slots[i], others[i]
        if kinds[i] == COPY:
            found[slot], seen[slot] = found[other], seen[other]
        else:
            if kinds[i] == MERGE:
                value, has_value = found[other], seen[other]
            else:
                value, has_value = values[other], valid[other]
            if has_value:
                best = found[slot]
                is_greater = value > best or (value != value and best == best)
                is_less = value < best or (best != best and value == value)
                if not seen[slot] or (is_greater if is_max else is_less):
                    found[slot], seen[slot] = value, True
        if outs[i] >= 0:
            out[outs[i]], out_seen[outs[i]] = found[slot], seen[slot]


@nb.njit(
    [
        nb.void(*_EVENTS, nb.bool_, _INT64S, _FLAGS, _INTS_OUT, _FLAGS_OUT, _INTS_OUT, _FLAGS_OUT),
        nb.void(*_EVENTS, nb.bool_, _FLOATS, _FLAGS, _FLOATS_OUT, _FLAGS_OUT, _FLOATS_OUT, _FLAGS_OUT),
    ],
    cache=True,
)
def pick(kinds, slots, others, outs, is_last, values, valid, found, seen, out, out_seen):  # type: ignore[no-untyped-def]
    """The first or the last, in the order of events."""
    for i in range(len(kinds)):
        slot, other = slots[i], others[i]
        if kinds[i] == COPY:
            found[slot], seen[slot] = found[other], seen[other]
        else:
            if kinds[i] == MERGE:
                value, has_value = found[other], seen[other]
            else:
                value, has_value = values[other], valid[other]
            if has_value and (is_last or not seen[slot]):
                found[slot], seen[slot] = value, True
        if outs[i] >= 0:
            out[outs[i]], out_seen[outs[i]] = found[slot], seen[slot]


@nb.njit(nb.void(_KINDS, _INT32S, _INT32S, _INTS_OUT, _INTS_OUT), cache=True)
def inherited(kinds, slots, others, bits, after):  # type: ignore[no-untyped-def]
    """Bits that no record changes: a slot has those of what it takes over from, or merges with. `after` each event."""
    for i in range(len(kinds)):
        slot = slots[i]
        if kinds[i] == COPY:
            bits[slot] = bits[others[i]]
        elif kinds[i] == MERGE:
            bits[slot] |= bits[others[i]]
        after[i] = bits[slot]


@nb.njit(nb.void(*_EVENTS, _INT64S, _INTS_OUT, _INTS_OUT), cache=True)
def latest(kinds, slots, others, outs, timestamps, stamps, out):  # type: ignore[no-untyped-def]
    """The highest timestamp. Timestamps are never negative, so one may begin at 0."""
    for i in range(len(kinds)):
        slot, other = slots[i], others[i]
        if kinds[i] == COPY:
            stamps[slot] = stamps[other]
        else:
            stamps[slot] = max(stamps[slot], stamps[other] if kinds[i] == MERGE else timestamps[other])
        if outs[i] >= 0:
            out[outs[i]] = stamps[slot]
