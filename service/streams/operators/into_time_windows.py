"""Gathering into tumbling and hopping windows, and into one group per key without any.

It knows alignment, grace and what the window store looks like (semantics.md, Tumbling, hopping); it refuses to know
what is computed of a group.

"w" key start -> entry; "k" key -> entry without windows; "i" start key -> nothing, for the windows that are still
to be emitted when they close
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pyarrow as pa

from service.streams.clock import saturated
from service.streams.kernels import fold
from service.streams.kernels import windows as kernel
from service.streams.layouts import store_keys
from service.streams.layouts.entries import Column
from service.streams.operators.fields import MAX_INT64
from service.streams.operators.function_columns import FunctionColumns
from service.streams.operators.grouping import (
    NO_ROWS,
    NO_SLOTS,
    Changes,
    Feed,
    Flags,
    Gathered,
    Int32s,
    Int64s,
    Keys,
    Updates,
    as_list,
    checked,
    deleted,
    keys_of,
    noted,
)
from service.streams.operators.keyed import last_end
from service.streams.operators.windows import TimeWindow, advance_ms
from service.streams.records import StateReader

_DENSE_ENOUGH = 64  # a bit for every (key, window) is set aside where there are at most so many per pair that occurs


class IntoTable:
    """One group per key, for ever."""

    def __init__(self, aggregates: FunctionColumns) -> None:
        self._aggregates = aggregates

    def gather(self, feed: Feed, state: StateReader) -> Gathered:
        """Every record goes into the group of its key."""
        keys, ids, _ = keys_of(feed.rows.column("key"), [])
        places = store_keys.plain_keys(store_keys.TABLE, keys.ordered)
        present, columns = self._aggregates.codec.unpack(state.get_many(as_list(places), self._aggregates.codec.absent))
        rows, starts = np.arange(len(ids), dtype=np.int32), np.zeros(len(keys), np.int64)
        writer = _Groups(self._aggregates, places, np.ones(len(keys), np.bool_), [])
        return Gathered(
            keys=keys,
            slot_keys=np.arange(len(keys), dtype=np.int32),
            starts=starts,
            ends=starts,
            was_starts=np.where(present, starts, -1),
            was_ends=starts,
            state=self._aggregates.state(columns),
            kinds=np.full(len(ids), fold.FOLD, np.int8),
            slots=ids,
            others=rows,
            updates=Updates(rows, ids, starts[ids], starts[ids], rows),
            dropped=np.empty(0, np.int32),
            dropped_ends=NO_SLOTS,
            writer=writer,
        )

    def ends_reached(
        self, dropped: pa.RecordBatch, ends: Int64s, closes: Int64s, running: Int64s, state: StateReader
    ) -> Int64s:
        """`ends` (ms) as they are: the windows of the rows of `dropped` (TASK_SCHEMA) do not grow."""
        return ends

    def place(self, key: bytes, _: int) -> bytes:
        """The one entry of the key."""
        return store_keys.TABLE + key


class IntoTimeWindows:
    """One group per key and window."""

    def __init__(self, aggregates: FunctionColumns, window: TimeWindow, *, is_final: bool) -> None:
        self._aggregates, self._is_final = aggregates, is_final
        self._size, self._advance = window.size_ms, advance_ms(window)

    def gather(self, feed: Feed, state: StateReader) -> Gathered:
        """Each record into all windows that still take it, in ascending order of start."""
        close, pairs = feed.close, self._pairs(feed)
        keys, ids, due_ids = keys_of(feed.rows.column("key"), feed.due.keys)
        slot_keys, starts, slots = _slots(
            np.concatenate([ids[pairs.rows], due_ids]), np.concatenate([pairs.starts, feed.due.times]), self._advance
        )
        slots = slots[: len(pairs.rows)]
        ends = np.minimum(starts, MAX_INT64 - self._size) + self._size
        places = store_keys.window_keys(keys.ordered.take(pa.array(slot_keys)), starts)
        present, columns = self._stored(places, ends, state)
        is_changed = np.zeros(len(starts), np.bool_)
        is_changed[slots] = True
        events = np.arange(len(slots), dtype=np.int32)
        return Gathered(
            keys=keys,
            slot_keys=slot_keys,
            starts=starts,
            ends=ends,
            was_starts=np.where(present, starts, -1),
            was_ends=ends,
            state=self._aggregates.state(columns),
            kinds=np.full(len(slots), fold.FOLD, np.int8),
            slots=slots,
            others=pairs.rows,
            updates=Updates(pairs.rows, slots, pairs.starts, ends[slots], events),
            dropped=pairs.dropped,
            dropped_ends=pairs.dropped_ends,
            writer=_Groups(
                self._aggregates,
                places,
                is_changed,
                self._index(keys, slot_keys, starts, ~present & (ends > close), feed.due.index),
            ),
            closed=self._closed(slot_keys, starts, ends, close),
            missed=pairs.missed,
        )

    def ends_reached(
        self, dropped: pa.RecordBatch, ends: Int64s, closes: Int64s, running: Int64s, state: StateReader
    ) -> Int64s:
        """`ends` (ms) as they are: the windows of the rows of `dropped` (TASK_SCHEMA) do not grow."""
        return ends

    def place(self, key: bytes, time: int) -> bytes:
        """The window that starts then."""
        return store_keys.window_key(key, time)

    def _stored(self, places: pa.Array, ends: Int64s, state: StateReader) -> tuple[Flags, list[Column]]:
        """Which windows are there, and what is in them. Those beyond the latest that ever was are not asked for."""
        codec, last = self._aggregates.codec, last_end(state)
        may_be_there = np.flatnonzero(ends <= last) if last is not None else NO_SLOTS
        asked = places.take(pa.array(may_be_there))
        found, values = codec.unpack(state.get_many(as_list(asked), codec.absent))
        present, columns = np.zeros(len(places), np.bool_), codec.zeros(len(places))
        for all_of_them, those in zip([present, *columns], [found, *values], strict=True):
            all_of_them[may_be_there] = those
        return present, columns

    def _pairs(self, feed: Feed) -> _Pairs:
        stamps = feed.timestamps
        first = np.maximum(stamps - self._size + self._advance, 0) // self._advance
        room = checked(stamps // self._advance - first + 1)
        rows, starts = np.empty(room, np.int32), np.empty(room, np.int64)
        dropped, dropped_ends = np.empty(room, np.int32), np.empty(room, np.int64)
        closes = feed.closes
        if feed.begins_at is not None:  # what begins earlier ends earlier than what begins then
            closes = np.maximum(closes, saturated(feed.begins_at, self._size - 1))
        count, lost = kernel.assign(stamps, closes, self._size, self._advance, rows, starts, dropped, dropped_ends)
        pairs = _Pairs(rows[:count], starts[:count], dropped[:lost], dropped_ends[:lost])
        return pairs if feed.begins_at is None else pairs.told_apart(feed.closes)

    def _index(self, keys: Keys, slot_keys: Int32s, starts: Int64s, is_new: Flags, due: list[bytes]) -> Changes:
        if not self._is_final:
            return []
        new = np.flatnonzero(is_new)
        index = store_keys.index_keys(starts[new], keys.ordered.take(pa.array(slot_keys[new])))
        return [noted(index), deleted(due)]

    def _closed(self, slot_keys: Int32s, starts: Int64s, ends: Int64s, close: int) -> Int64s:
        """In (start, key) order: that of the records that closed them, as windows are of one size."""
        if not self._is_final:
            return NO_SLOTS
        closed = np.flatnonzero(ends <= close)
        return closed[np.lexsort((slot_keys[closed], starts[closed]))]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """(row, start) of the windows that take a record, and (row, end) of those that have closed; the rows of those that
    begin before the store did.
    """

    rows: Int32s
    starts: Int64s
    dropped: Int32s
    dropped_ends: Int64s
    missed: Int32s = field(default_factory=lambda: NO_ROWS)

    def told_apart(self, closes: Int64s) -> Self:
        """Where both are among the dropped ones, given what is closed to each row."""
        is_late = self.dropped_ends <= closes[self.dropped]
        return replace(
            self,
            dropped=self.dropped[is_late],
            dropped_ends=self.dropped_ends[is_late],
            missed=self.dropped[~is_late],
        )


@dataclass(frozen=True, slots=True)
class _Groups:
    """Writes an entry per slot."""

    aggregates: FunctionColumns
    places: pa.Array
    is_changed: Flags
    index: Changes

    def changes(self, columns: list[Column]) -> Changes:
        """The entries that changed, and the index."""
        if self.is_changed.all():
            return [(self.places, self.aggregates.codec.pack(columns)), *self.index]
        changed = np.flatnonzero(self.is_changed)
        entries = self.aggregates.codec.pack([column[changed] for column in columns])
        return [(self.places.take(pa.array(changed)), entries), *self.index]


def _slots(ids: Int32s, starts: Int64s, advance: int) -> tuple[Int32s, Int64s, Int32s]:
    """Distinct pairs of key and start in order: key and start of each; and the slot of each given pair."""
    if not len(ids):
        return ids, starts, ids
    low = int(starts.min())
    steps = (starts - low) // advance
    count, width = int(ids.max()) + 1, int(steps.max()) + 1
    of_all = None
    if count * width > _DENSE_ENOUGH * len(ids):
        of_all, steps = np.unique(steps, return_inverse=True)
        width = len(of_all)
    of_keys, of_steps, slots = _ranked(ids, steps, count, width)
    return of_keys, (of_steps if of_all is None else of_all[of_steps]) * advance + low, slots


def _ranked(ids: Int32s, steps: Int64s, count: int, width: int) -> tuple[Int32s, Int64s, Int32s]:
    """The distinct pairs of an id below `count` and a step below `width`, in order; the place of each given pair."""
    if count * width <= max(_DENSE_ENOUGH * len(ids), 1 << 16):
        ranked: tuple[Int32s, Int64s, Int32s] = kernel.rank(
            ids, steps, width, np.zeros(count * width // 64 + 1, np.uint64)
        )
        return ranked
    found, places = np.unique(ids * np.int64(width) + steps, return_inverse=True)
    of_ids, of_steps = np.divmod(found, width)
    return of_ids.astype(np.int32), of_steps, places.astype(np.int32)
