"""Records on their way into groups, and what comes of it: what those who gather into windows take and give.

It knows keys, rows and slots; it refuses to know windows and functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.layouts import store_keys
from service.streams.layouts.entries import Column
from service.streams.operators.entry_columns import State
from service.streams.operators.step import TooMany
from service.streams.records import StateReader

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
Changes = list[tuple[pa.Array, pa.Array]]  # store keys and values (binary, null = deleted), in any order

NO_SLOTS = np.empty(0, np.int64)
NO_ROWS = np.empty(0, np.int32)
MAX_EVENTS: Final = 1 << 22  # of one batch, some 100 bytes each; one that would have more is cut


def checked(events: Int64s) -> int:
    """How many events there are, given those of each record. Raises TooMany, unless one record makes them all."""
    total = int(events.sum())
    if total > MAX_EVENTS:
        first = max(int(np.searchsorted(np.cumsum(events), MAX_EVENTS, side="right")), 1)
        if first < len(events):
            raise TooMany(first)
    return total


@dataclass(frozen=True, slots=True)
class Keys:
    """The distinct keys at hand in the order of their bytes: plain, and in the ordered form of store keys."""

    plain: pa.Array
    ordered: pa.Array

    def __len__(self) -> int:
        return len(self.plain)


@dataclass(frozen=True, slots=True)
class Due:
    """Entries of the index of a store, in order: times, keys (ordered form), and the store keys themselves.

    `next_time`: of the first that was left out because there are too many; None where these are all.
    """

    times: Int64s
    keys: list[bytes]
    index: list[bytes]
    next_time: int | None = None

    @classmethod
    def of(cls, state: StateReader, before: int, limit: int | None = None) -> Self:
        """Those before a time, at most so many."""
        if before <= 0:
            return cls(NO_SLOTS, [], [])
        bounds = store_keys.index_bound(0), store_keys.index_bound(before)
        found = [key for key, _ in state.scan(*bounds, None if limit is None else limit + 1)]
        times, keys = store_keys.split_index_keys(found)
        due = cls(times, keys, found)
        return due if limit is None else due.first(limit)

    def first(self, count: int) -> Self:
        """No more than so many of them."""
        if count >= len(self.times):
            return self
        return replace(
            self,
            times=self.times[:count],
            keys=self.keys[:count],
            index=self.index[:count],
            next_time=int(self.times[count]),
        )

    def whole_moments(self, state: StateReader) -> Self:
        """All or none of those with the same time; of the first there are all. There were too many."""
        if self.next_time is None or self.times[-1] < self.next_time:
            return self
        count = int(np.searchsorted(self.times, self.next_time))
        if not count:
            return replace(self.of(state, self.next_time + 1), next_time=self.next_time)
        return self.first(count)


@dataclass(frozen=True, slots=True)
class Feed:
    """Records with a key that can be stored (TASK_SCHEMA), and what is closed to each: all that ends before that time,
    of tumbling and hopping windows also what ends then.

    `was_close`, `close`: what is closed as the batch found it, and as it leaves it. `due`: what may close then.
    `begins_at`: where the store began anew (None: it did not); windows that begin before it take no records.
    """

    rows: pa.RecordBatch
    closes: Int64s
    was_close: int
    close: int
    due: Due
    begins_at: int | None = None

    @property
    def timestamps(self) -> Int64s:
        """Of the records."""
        stamps: Int64s = self.rows.column("timestamp").to_numpy()
        return stamps


@dataclass(frozen=True, slots=True)
class Updates:
    """In order: the row that caused each, its slot, its window, and its event, below 0 for a tombstone."""

    rows: Int32s
    slots: Int32s
    starts: Int64s
    ends: Int64s
    events: Int32s


class Writer(Protocol):
    """Knows which slots changed, and where they lie in the store."""

    def changes(self, columns: list[Column]) -> Changes:
        """What the store has to learn, given the columns of all slots after the batch."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records in their groups.

    Per slot: the key, the window after the batch, the window before it (start below 0: it was not there), the state
    before it. Events and updates in order. `dropped`: rows, once per window that does not take them any more, and
    the ends of these windows. `closed`: the slots of windows that closed, in the order in which they did. `missed`:
    rows, once per window that does not take them as it begins before the store did.
    """

    keys: Keys
    slot_keys: Int32s
    starts: Int64s
    ends: Int64s
    was_starts: Int64s
    was_ends: Int64s
    state: State
    kinds: Int8s
    slots: Int32s
    others: Int32s
    updates: Updates
    dropped: Int32s
    dropped_ends: Int64s
    writer: Writer
    closed: Int64s = field(default_factory=lambda: NO_SLOTS)
    missed: Int32s = field(default_factory=lambda: NO_ROWS)


class Gatherer(Protocol):
    """Gathers records into groups of one kind."""

    def gather(self, feed: Feed, state: StateReader) -> Gathered:
        """May raise TooMany."""

    def ends_reached(
        self, dropped: pa.RecordBatch, ends: Int64s, closes: Int64s, running: Int64s, state: StateReader
    ) -> Int64s:
        """The ends of the windows that late rows would be in where all that ended before closes[i] is closed. `ends`:
        as `Gathered` has them; `running`: stream time as each row sees it.
        """

    def place(self, key: bytes, time: int) -> bytes:
        """Where the entry lies that the index has under a time, of a key in its ordered form."""


def keys_of(column: pa.Array, more: list[bytes]) -> tuple[Keys, Int32s, Int32s]:
    """The distinct keys of a column (binary, no nulls) and of `more` (ordered forms); the ids of both."""
    encoded = column.dictionary_encode()
    ids, distinct = encoded.indices.to_numpy(), encoded.dictionary
    if not more:
        keys, ranks = _sorted(distinct)
        return keys, ranks[ids], np.empty(0, np.int32)
    added, _ = store_keys.split_ordered(pa.array(more, pa.binary()))
    together = pa.concat_arrays([distinct, added]).dictionary_encode()
    keys, ranks = _sorted(together.dictionary)
    places = ranks[together.indices.to_numpy()]
    return keys, places[: len(distinct)][ids], places[len(distinct) :]


def spans(ids: Int32s, times: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """The ids that occur, ascending, with the lowest and the highest time of each."""
    if not len(ids):
        return NO_SLOTS, NO_SLOTS, NO_SLOTS
    order = np.argsort(ids, kind="stable")
    begins = np.flatnonzero(np.diff(ids[order], prepend=-1))
    sorted_times = times[order]
    found = ids[order[begins]].astype(np.int64)
    return found, np.minimum.reduceat(sorted_times, begins), np.maximum.reduceat(sorted_times, begins)


def as_list(column: pa.Array) -> list[bytes]:
    """A binary column as bytes objects; half the cost of to_pylist."""
    found: list[bytes] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def deleted(keys: pa.Array | list[bytes]) -> tuple[pa.Array, pa.Array]:
    """Changes that delete these store keys."""
    return pa.array(keys, pa.binary()), pa.nulls(len(keys), pa.binary())


def noted(keys: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Changes that put these store keys, with nothing in them."""
    return keys, pa.array(np.full(len(keys), b"", object), pa.binary())


def _sorted(distinct: pa.Array) -> tuple[Keys, Int32s]:
    """The keys in order, and the place of each."""
    order = pc.array_sort_indices(distinct)
    plain = distinct.take(order)
    ranks = np.empty(len(distinct), np.int32)
    ranks[order.to_numpy()] = np.arange(len(distinct), dtype=np.int32)
    return Keys(plain, store_keys.ordered(plain)), ranks
