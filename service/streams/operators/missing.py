"""In which groups a function is missing: one that came with a later version did not see what they held before.

It knows the bits that say so, a bit a function, in columns that no function owns. They are for the life of a group:
what takes over from it, or merges with it, inherits them. It refuses to know which functions these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.kernels import fold
from service.streams.layouts.entries import Column
from service.streams.operators.functions import Events

Flags = npt.NDArray[np.bool_]

BITS: Final = 64  # of a column


def columns_for(count: int) -> tuple[str, ...]:
    """The types of the columns that hold a bit for each of so many functions."""
    return ("<i8",) * -(-count // BITS)


def is_missing(words: Sequence[Column], function: int) -> Flags:
    """Per group whether the function is missing."""
    found: Flags = (words[function // BITS] >> (function % BITS)) & 1 == 1
    return found


def words_of(missing: Sequence[Flags]) -> list[Column]:
    """The columns, given per function whether it is missing, per group."""
    words = [np.zeros(len(missing[0]), np.int64) for _ in columns_for(len(missing))]
    for function, flags in enumerate(missing):
        words[function // BITS] |= flags.astype(np.int64) << (function % BITS)
    return words


def anywhere(words: Sequence[Column], count: int) -> list[int]:
    """Which of so many functions are missing in some group."""
    found = [int(np.bitwise_or.reduce(word)) for word in words]
    return [function for function in range(count) if found[function // BITS] >> (function % BITS) & 1]


class Folded:
    """What events make of the columns."""

    def __init__(self, events: Events, words: Sequence[Column], out: Sequence[Column]) -> None:
        """The columns change, and are copied out where events ask for it."""
        self._events = events
        self._after = [np.empty(len(events.kinds), np.int64) for _ in words]
        is_asked = events.outs >= 0
        for word, after, results in zip(words, self._after, out, strict=True):
            fold.inherited(events.kinds, events.slots, events.others, word, after)
            results[events.outs[is_asked]] = after[is_asked]

    def events_of(self, function: int) -> Events:
        """Those that concern groups where a function is not missing.

        Where a record merges groups and it is missing then, it is as if nothing of that had happened to it.
        """
        events, is_there = self._events, ~is_missing(self._after, function)
        if is_there.all():
            return events
        merges = np.flatnonzero(events.kinds == fold.MERGE)
        takes_in = np.flatnonzero(events.kinds <= fold.JOIN)
        is_there[merges] &= is_there[takes_in[np.searchsorted(takes_in, merges)]]
        return events.only(is_there)


def nulled(texts: pa.Array, missing: Flags) -> pa.Array:
    """Texts (utf8), null where the function is missing."""
    return pc.if_else(pa.array(missing), pa.scalar(None, texts.type), texts)


def emptied(columns: Sequence[Column], missing: Flags) -> list[Column]:
    """The columns of a function as they are stored, with nothing in them where it is missing."""
    found = [column.copy() for column in columns]
    for column in found:
        column[missing] = None if column.dtype == object else 0
    return found
