"""Gathering into sliding windows.

It knows which windows a record needs to see (KIP-450; semantics.md, Sliding); `kernels.sliding` knows what it does to
them. It refuses to know what is computed of a group. The store looks like that of other windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from service.streams.kernels import sliding as kernel
from service.streams.layouts import store_keys
from service.streams.layouts.changelog import change
from service.streams.layouts.entries import Column
from service.streams.layouts.reserved import FLOOR_KEY, pack_time, time_at
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
    spans,
)
from service.streams.operators.windows import SlidingWindow
from service.streams.records import StateReader


class IntoSlidingWindows:
    """One group per key and window."""

    def __init__(self, aggregates: FunctionColumns, window: SlidingWindow, *, is_final: bool) -> None:
        self._aggregates, self._is_final = aggregates, is_final
        self._difference = window.time_difference_ms

    def gather(self, feed: Feed, state: StateReader) -> Gathered:
        """Each record into the windows around it, making those that it needs."""
        keys, ids, due_ids = keys_of(feed.rows.column("key"), feed.due.keys)
        stored = self._stored(feed, keys, ids, due_ids, feed.due.times, state)
        slots = self._slots(feed, ids, stored)
        present, columns = stored.spread(slots)
        was_starts = np.where(present, slots.starts, -1)
        run = _Run(feed, ids, slots, self._difference, present, columns[0])
        writer = _Windows(
            self._aggregates,
            keys,
            slots,
            run.changed,
            was_starts,
            feed.due.index if self._is_final else None,
            feed.close,
            _hidden_before(feed.begins_at, state),
        )
        updates = Updates(
            run.update_rows,
            run.slots[run.update_events],
            slots.starts[run.slots[run.update_events]],
            slots.ends[run.slots[run.update_events]],
            run.update_events,
        )
        updates, missed = _begun(updates, feed)
        return Gathered(
            keys=keys,
            slot_keys=slots.keys,
            starts=slots.starts,
            ends=slots.ends,
            was_starts=was_starts,
            was_ends=slots.ends,
            state=self._aggregates.state(columns),
            kinds=run.kinds,
            slots=run.slots,
            others=run.others,
            updates=updates,
            dropped=run.dropped,
            dropped_ends=run.dropped_ends,
            writer=writer,
            closed=self._closed(slots, run.present, feed),
            missed=missed,
        )

    def ends_reached(
        self, dropped: pa.RecordBatch, ends: Int64s, closes: Int64s, running: Int64s, state: StateReader
    ) -> Int64s:
        """`ends` (ms) as they are: the windows of the rows of `dropped` (TASK_SCHEMA) do not grow."""
        return ends

    def place(self, key: bytes, time: int) -> bytes:
        """The window that starts then."""
        return store_keys.window_key(key, time)

    def _stored(
        self, feed: Feed, keys: Keys, ids: Int32s, due_ids: Int32s, due_starts: Int64s, state: StateReader
    ) -> _Stored:
        """The windows that the records of a key can reach, and those that are due."""
        found_ids, found_starts, values = [], [], []
        reached, first, last = spans(ids, feed.timestamps)
        lows, highs = np.maximum(first - min(2 * self._difference, MAX_INT64), 0), np.minimum(last, MAX_INT64 - 2) + 2
        ordered = as_list(keys.ordered.take(pa.array(reached)))
        for key, form, low, high in zip(reached.tolist(), ordered, lows.tolist(), highs.tolist(), strict=True):
            for place, value in state.scan(store_keys.window_key(form, low), store_keys.window_key(form, high)):
                found_ids.append(key)
                found_starts.append(int.from_bytes(place[-8:], "big"))
                values.append(value)
        seen = set(zip(found_ids, found_starts, strict=True))
        for key, start in zip(due_ids.tolist(), due_starts.tolist(), strict=True):
            if (key, start) not in seen:
                found_ids.append(key)
                found_starts.append(start)
                place = store_keys.window_key(keys.ordered[key].as_py(), start)
                values += state.get_many([place], self._aggregates.codec.absent)
        _, columns = self._aggregates.codec.unpack(values)
        return _Stored(np.array(found_ids, np.int64), np.array(found_starts, np.int64), columns, self._aggregates)

    def _slots(self, feed: Feed, ids: Int32s, stored: _Stored) -> _Slots:
        """All windows that are there or may come to be: before and after every record."""
        stamps, owners = feed.timestamps, ids.astype(np.int64)
        lefts, rights = np.maximum(stamps - self._difference, 0), np.minimum(stamps, MAX_INT64 - 1) + 1
        lasts = np.minimum(stored.stamps, MAX_INT64 - 1) + 1
        all_keys = np.concatenate([owners, owners, stored.ids, stored.ids])
        all_starts = np.concatenate([lefts, rights, stored.starts, lasts])
        distinct, steps = np.unique(all_starts, return_inverse=True)
        width = max(len(distinct), 1)
        pairs, places = np.unique(all_keys * width + steps, return_inverse=True)
        of_keys, of_steps = np.divmod(pairs, width)
        starts = distinct[of_steps]
        count, kept = len(stamps), len(stored.ids)
        return _Slots(
            keys=of_keys.astype(np.int32),
            starts=starts,
            ends=np.minimum(starts, MAX_INT64 - self._difference) + self._difference,
            lefts=places[:count],
            rights=np.where(stamps < MAX_INT64, places[count : 2 * count], places[:count]),
            stored=places[2 * count : 2 * count + kept],
        )

    def _closed(self, slots: _Slots, present: Flags, feed: Feed) -> Int64s:
        if not self._is_final:
            return NO_SLOTS
        is_closed = present & (slots.ends >= feed.was_close) & (slots.ends < feed.close)
        if feed.begins_at is not None:
            is_closed &= slots.starts >= feed.begins_at
        closed = np.flatnonzero(is_closed)
        return closed[np.lexsort((slots.keys[closed], slots.starts[closed]))]


@dataclass(frozen=True, slots=True)
class _Stored:
    """Windows as the store has them."""

    ids: Int64s
    starts: Int64s
    columns: list[Column]
    aggregates: FunctionColumns

    @property
    def stamps(self) -> Int64s:
        stamps: Int64s = self.columns[0]
        return stamps

    def spread(self, slots: _Slots) -> tuple[Flags, list[Column]]:
        """Which slots are there, and their columns."""
        present = np.zeros(len(slots.starts), np.bool_)
        present[slots.stored] = True
        spread = self.aggregates.codec.zeros(len(slots.starts))
        for column, own in zip(spread, self.columns, strict=True):
            column[slots.stored] = own
        return present, spread


@dataclass(frozen=True, slots=True)
class _Slots:
    """Possible windows by key and start; the slots of the two windows of each record, and of each stored window."""

    keys: Int32s
    starts: Int64s
    ends: Int64s
    lefts: Int64s
    rights: Int64s
    stored: Int64s


class _Run:
    """The kernel's work on a batch, and what it left behind."""

    def __init__(self, feed: Feed, ids: Int32s, slots: _Slots, difference: int, present: Flags, stamps: Int64s) -> None:
        begins = np.searchsorted(slots.keys, np.arange(int(slots.keys.max(initial=-1)) + 2))
        room = checked(slots.rights - slots.lefts + 4)
        self.present, self.changed, counts = present.copy(), np.zeros(len(present), np.bool_), np.zeros(3, np.int64)
        kinds, event_slots, others = (
            np.empty(2 * room, np.int8),
            np.empty(2 * room, np.int32),
            np.empty(2 * room, np.int32),
        )
        update_rows, update_events, dropped = (np.empty(room, np.int32) for _ in range(3))
        dropped_ends = np.empty(room, np.int64)
        kernel.slide(
            ids,
            feed.timestamps,
            feed.closes,
            difference,
            begins,
            slots.starts,
            slots.lefts,
            slots.rights,
            (
                slots.ends,
                self.present,
                self.changed,
                stamps.copy(),
                kinds,
                event_slots,
                others,
                update_rows,
                update_events,
                dropped,
                dropped_ends,
                counts,
            ),
        )
        events, updates, lost = counts.tolist()
        self.kinds, self.slots, self.others = kinds[:events], event_slots[:events], others[:events]
        self.update_rows, self.update_events = update_rows[:updates], update_events[:updates]
        self.dropped, self.dropped_ends = dropped[:lost], dropped_ends[:lost]


@dataclass(frozen=True, slots=True)
class _Windows:
    """Writes an entry per window that changed; `due`: index keys that are done with, None where there is no index;
    `floor`: the store's, where it changes.
    """

    aggregates: FunctionColumns
    keys: Keys
    slots: _Slots
    is_changed: Flags
    was_starts: Int64s
    due: list[bytes] | None
    close: int
    floor: Changes

    def changes(self, columns: list[Column]) -> Changes:
        """The entries that changed, and the index."""
        changed = np.flatnonzero(self.is_changed)
        ordered = self.keys.ordered.take(pa.array(self.slots.keys[changed]))
        places = store_keys.window_keys(ordered, self.slots.starts[changed])
        entries = [(places, self.aggregates.codec.pack([column[changed] for column in columns])), *self.floor]
        if self.due is None:
            return entries
        is_new = self.is_changed & (self.was_starts < 0) & (self.slots.ends >= self.close)
        new = np.flatnonzero(is_new)
        index = store_keys.index_keys(self.slots.starts[new], self.keys.ordered.take(pa.array(self.slots.keys[new])))
        return [*entries, noted(index), deleted(self.due)]


def _begun(updates: Updates, feed: Feed) -> tuple[Updates, Int32s]:
    """The updates of windows that began in the store's time, and the rows for which others have no room.

    Windows that began before are gathered as all are, as later ones take over what is in them; but nobody sees them.
    """
    if feed.begins_at is None:
        return updates, NO_ROWS
    is_begun = updates.starts >= feed.begins_at
    is_missed = ~is_begun & (updates.starts <= feed.timestamps[updates.rows])
    kept = Updates(
        updates.rows[is_begun],
        updates.slots[is_begun],
        updates.starts[is_begun],
        updates.ends[is_begun],
        updates.events[is_begun],
    )
    return kept, updates.rows[is_missed]


def _hidden_before(begins_at: int | None, state: StateReader) -> Changes:
    """The floor that hides from lookups what began before."""
    if begins_at is None:
        return []
    floor = time_at(FLOOR_KEY, state)
    return [change(FLOOR_KEY, pack_time(begins_at))] if floor is None or floor < begins_at else []
