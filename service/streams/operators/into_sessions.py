"""Gathering into sessions.

It knows the session store (semantics.md, Session) and which sessions a batch needs of it; `kernels.sessions` knows
how they grow and merge. It refuses to know what is computed of a session.

"h" key            -> the newest sessions of the key, packed, by end: nearly always all that records can still reach,
                      so that a key costs one read and one write a batch
"s" key end start  -> each other session: closed ones, and open ones where a key has very many. All of these end before
                      the packed ones, so "s" and then "h" is the order of find_sessions
"i" time key       -> nothing. Where closing emits: the key has a session that ends then, or later; its header has the
                      lowest such time. It is looked at again when that has passed, so a session that grows costs
                      nothing until then
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from service.streams.kernels import sessions as kernel
from service.streams.layouts import store_keys
from service.streams.layouts.entries import NO_END, NO_TIME, Column, SessionColumns
from service.streams.operators.function_columns import FunctionColumns
from service.streams.operators.grouping import (
    NO_SLOTS,
    Changes,
    Feed,
    Flags,
    Gathered,
    Int8s,
    Int32s,
    Int64s,
    Keys,
    Updates,
    as_list,
    deleted,
    keys_of,
    noted,
    spans,
)
from service.streams.operators.late_sessions import ends_reached
from service.streams.operators.windows import SessionWindow
from service.streams.records import StateReader

MOST_HOT: Final = 32  # sessions that stay packed, where twice as many were too many
_NOT_THERE: Final = b""


class IntoSessions:
    """One group per key and session."""

    def __init__(self, aggregates: FunctionColumns, window: SessionWindow, *, is_final: bool) -> None:
        self._aggregates, self._is_final, self._window = aggregates, is_final, window
        self._gap = window.gap_ms

    def gather(self, feed: Feed, state: StateReader) -> Gathered:
        """Each record joins, merges or begins a session."""
        was_close, close = feed.was_close, feed.close
        keys, ids, _ = keys_of(feed.rows.column("key"), feed.due.keys)
        packed = state.get_many(as_list(store_keys.plain_keys(store_keys.HOT, keys.ordered)), _NOT_THERE)
        hot = self._aggregates.codec.unpack_sessions(packed)
        cold = self._cold(feed, keys, ids, hot, was_close, close, state)
        stored = _Stored.of(hot, cold, np.bincount(ids, minlength=len(keys)))
        run = _Run(feed, ids, self._gap, stored)
        settled = _Settled(run, stored, close)
        columns = [
            np.concatenate([own, new])
            for own, new in zip(stored.columns, run.new_columns(self._aggregates), strict=True)
        ]
        writer = _Writer(
            self._aggregates,
            keys,
            stored,
            run,
            settled,
            was_there=np.fromiter((value != _NOT_THERE for value in packed), np.bool_, len(packed)),
            timers=self._timers(hot, settled, close),
            due=feed.due.index,
        )
        return Gathered(
            keys=keys,
            slot_keys=run.keys,
            starts=run.starts,
            ends=run.ends,
            was_starts=run.was_starts,
            was_ends=run.was_ends,
            state=self._aggregates.state(columns),
            kinds=run.kinds,
            slots=run.slots,
            others=run.others,
            updates=run.updates,
            dropped=run.dropped,
            dropped_ends=feed.timestamps[run.dropped],
            writer=writer,
            closed=self._closed(run, close),
        )

    def ends_reached(
        self, dropped: pa.RecordBatch, ends: Int64s, closes: Int64s, running: Int64s, state: StateReader
    ) -> Int64s:
        """Ends (ms) of the sessions that the rows of `dropped` (TASK_SCHEMA) would join (`late_sessions`)."""

        def packed(key: bytes) -> Iterable[tuple[int, int]]:
            found = self._aggregates.codec.unpack_sessions(state.get_many([store_keys.HOT + key], _NOT_THERE))
            return zip(found.starts.tolist(), found.ends.tolist(), strict=True)

        return ends_reached(dropped, closes, running, self._window, state, packed)

    def place(self, key: bytes, _: int) -> bytes:
        """The packed sessions of the key: those that may be due are nearly always among them."""
        return store_keys.HOT + key

    def _cold(
        self, feed: Feed, keys: Keys, ids: Int32s, hot: SessionColumns, was_close: int, close: int, state: StateReader
    ) -> _Cold:
        """Sessions that are not packed, where a record can reach them or they are to be emitted now."""
        found_keys, places, values = [], [], []
        lows, needed = np.empty(0, np.int64), NO_SLOTS
        if hot.cold_ends.max(initial=NO_END) >= max(was_close, 0):
            lows = self._reach(feed, ids, hot, was_close, close)
            needed = np.flatnonzero(hot.cold_ends >= lows)
        for key in needed.tolist():
            ordered = keys.ordered[key].as_py()
            bounds = store_keys.session_key(ordered, int(lows[key]), 0), store_keys.SESSION + ordered + b"\xff"
            for place, value in state.scan(*bounds):
                found_keys.append(key)
                places.append(place)
                values.append(value)
        times = np.frombuffer(b"".join([place[-16:] for place in places]), ">i8").astype(np.int64).reshape(-1, 2)
        _, columns = self._aggregates.codec.unpack(values)
        return _Cold(np.array(found_keys, np.int64), times[:, 1], times[:, 0], columns)

    def _reach(self, feed: Feed, ids: Int32s, hot: SessionColumns, was_close: int, close: int) -> Int64s:
        """Per key the lowest end that matters."""
        lows = np.full(len(hot.counts), NO_TIME)
        reached, first, _ = spans(ids, feed.timestamps)
        lows[reached] = first - self._gap
        if self._is_final:
            lows[hot.timers < close] = was_close
        reach: Int64s = np.maximum(lows, max(was_close, 0))
        return reach

    def _timers(self, hot: SessionColumns, settled: _Settled, close: int) -> Int64s:
        """When each key is to be looked at next."""
        if not self._is_final:
            return np.full(len(hot.timers), NO_TIME)
        is_running = (hot.timers >= close) & (hot.timers != NO_TIME)
        return np.where(is_running, np.minimum(hot.timers, settled.first_open), settled.first_open)

    def _closed(self, run: _Run, close: int) -> Int64s:
        """In (end, start, key) order."""
        if not self._is_final:
            return NO_SLOTS
        closed = np.flatnonzero(run.alive & (run.ends < close))
        return closed[np.lexsort((run.keys[closed], run.starts[closed], run.ends[closed]))]


@dataclass(frozen=True, slots=True)
class _Cold:
    """Sessions that were stored on their own, by key and end."""

    keys: Int64s
    starts: Int64s
    ends: Int64s
    columns: list[Column]


@dataclass(frozen=True, slots=True)
class _Stored:
    """The sessions that were stored, as slots by key and end, and room for those that may come.

    `begins`, `lengths`: per key its part of `order`.
    """

    hot: SessionColumns
    keys: Int32s
    starts: Int64s
    ends: Int64s
    origins: Int8s
    columns: list[Column]
    begins: Int64s
    lengths: Int64s
    order: Int32s

    @classmethod
    def of(cls, hot: SessionColumns, cold: _Cold, coming: Int64s) -> _Stored:
        """`coming`: records per key."""
        count = len(hot.counts)
        keys = np.concatenate([cold.keys, np.repeat(np.arange(count), hot.counts)])
        by_key = np.argsort(keys, kind="stable")
        lengths = np.bincount(keys, minlength=count)
        room = lengths + coming
        begins = np.cumsum(room) - room
        order = np.empty(int(room.sum()), np.int32)
        within = np.arange(len(keys)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        order[np.repeat(begins, lengths) + within] = np.arange(len(keys))
        origins = np.where(np.arange(len(keys)) < len(cold.keys), kernel.COLD, kernel.HOT).astype(np.int8)
        return cls(
            hot=hot,
            keys=keys[by_key].astype(np.int32),
            starts=np.concatenate([cold.starts, hot.starts])[by_key],
            ends=np.concatenate([cold.ends, hot.ends])[by_key],
            origins=origins[by_key],
            columns=[
                np.concatenate([own, packed])[by_key] for own, packed in zip(cold.columns, hot.columns, strict=True)
            ],
            begins=begins,
            lengths=lengths,
            order=order,
        )

    def __len__(self) -> int:
        return len(self.keys)


class _Run:
    """The kernel's work on a batch, and what it left behind: per slot, events, updates."""

    def __init__(self, feed: Feed, ids: Int32s, gap: int, stored: _Stored) -> None:
        were, most = len(stored), len(stored) + len(ids)
        self.lengths, self.order = stored.lengths.copy(), stored.order
        keys, starts, ends = np.empty(most, np.int32), np.empty(most, np.int64), np.empty(most, np.int64)
        keys[:were], starts[:were], ends[:were] = stored.keys, stored.starts, stored.ends
        alive, changed = np.ones(most, np.bool_), np.zeros(most, np.bool_)
        room = most + len(ids)
        kinds, slots, others = np.empty(room, np.int8), np.empty(room, np.int32), np.empty(room, np.int32)
        room += len(ids)
        rows, update_slots, events = (np.empty(room, np.int32) for _ in range(3))
        update_starts, update_ends = np.empty(room, np.int64), np.empty(room, np.int64)
        dropped = np.empty(len(ids), np.int32)
        count, happened, said, lost = kernel.sessions(
            ids,
            feed.timestamps,
            feed.closes,
            gap,
            stored.begins,
            self.lengths,
            self.order,
            were,
            keys,
            starts,
            ends,
            alive,
            changed,
            kinds,
            slots,
            others,
            rows,
            update_slots,
            update_starts,
            update_ends,
            events,
            dropped,
        )
        self.keys, self.starts, self.ends = keys[:count], starts[:count], ends[:count]
        self.alive, self.changed = alive[:count], changed[:count]
        self.were, self.was_starts, self.was_ends = were, np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        self.was_starts[:were], self.was_ends[:were] = stored.starts, stored.ends
        self.kinds, self.slots, self.others = kinds[:happened], slots[:happened], others[:happened]
        self.updates = Updates(
            rows[:said], update_slots[:said], update_starts[:said], update_ends[:said], events[:said]
        )
        self.dropped = dropped[:lost]

    def new_columns(self, aggregates: FunctionColumns) -> list[Column]:
        """The columns of the slots that were not there before."""
        return aggregates.codec.zeros(len(self.keys) - self.were)


class _Settled:
    """Where the sessions go: per slot its place, per key what its header has to say."""

    def __init__(self, run: _Run, stored: _Stored, close: int) -> None:
        count = len(stored.begins)
        self.origins = np.full(len(run.keys), kernel.NEW, np.int8)
        self.origins[: run.were] = stored.origins
        self.places = np.full(len(run.keys), kernel.GONE, np.int8)
        self.hot_counts, self.first_open = np.zeros(count, np.int64), np.full(count, NO_TIME)
        self.cold_ends = np.where(stored.hot.cold_ends >= close, stored.hot.cold_ends, NO_END)
        last_cold = np.full(count, NO_END)
        kernel.settle(
            stored.begins,
            run.lengths,
            run.order,
            run.ends,
            self.origins,
            close,
            MOST_HOT,
            self.places,
            self.hot_counts,
            self.first_open,
            last_cold,
        )
        self.cold_ends = np.maximum(self.cold_ends, last_cold)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the sessions of a batch where they belong."""

    aggregates: FunctionColumns
    keys: Keys
    stored: _Stored
    run: _Run
    settled: _Settled
    was_there: Flags
    timers: Int64s
    due: list[bytes]

    def changes(self, columns: list[Column]) -> Changes:
        """Sessions on their own, packed ones, and the index."""
        return [*self._alone(columns), *self._packed(columns), *self._index()]

    def _alone(self, columns: list[Column]) -> Changes:
        run, origins, places = self.run, self.settled.origins, self.settled.places
        was_cold, is_cold = origins == kernel.COLD, places == kernel.COLD
        has_moved = (run.starts != run.was_starts) | (run.ends != run.was_ends)
        put = np.flatnonzero(is_cold & (~was_cold | run.changed))
        gone = np.flatnonzero(was_cold & (~is_cold | has_moved))
        entries = self.aggregates.codec.pack([column[put] for column in columns])
        return [
            (self._session_keys(put, run.ends, run.starts), entries),
            deleted(self._session_keys(gone, run.was_ends, run.was_starts)),
        ]

    def _session_keys(self, slots: Int64s, ends: Int64s, starts: Int64s) -> pa.Array:
        ordered = self.keys.ordered.take(pa.array(self.run.keys[slots]))
        return store_keys.session_keys(ordered, ends[slots], starts[slots])

    def _packed(self, columns: list[Column]) -> Changes:
        """The keys that have other packed sessions than before, or another header."""
        run, settled, hot = self.run, self.settled, self.stored.hot
        is_touched = np.zeros(len(self.keys), np.bool_)
        is_touched[run.keys[run.changed | (settled.origins == kernel.HOT) & (settled.places != kernel.HOT)]] = True
        is_touched |= self.timers != hot.timers
        is_empty = (settled.hot_counts == 0) & (settled.cold_ends == NO_END) & (self.timers == NO_TIME)
        written = np.flatnonzero(is_touched & ~is_empty)
        ordered = store_keys.plain_keys(store_keys.HOT, self.keys.ordered)
        gone = np.flatnonzero(is_touched & is_empty & self.was_there)
        slots = self._hot_slots(written)
        packed = self.aggregates.codec.pack_sessions(
            SessionColumns(
                counts=settled.hot_counts[written],
                timers=self.timers[written],
                cold_ends=settled.cold_ends[written],
                starts=run.starts[slots],
                ends=run.ends[slots],
                columns=[column[slots] for column in columns],
            )
        )
        return [(ordered.take(pa.array(written)), packed), deleted(ordered.take(pa.array(gone)))]

    def _hot_slots(self, keys: Int64s) -> Int64s:
        """The packed slots of some keys, by key and end: the last of each order."""
        counts = self.settled.hot_counts[keys]
        ends = (self.stored.begins + self.run.lengths)[keys]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        places: Int64s = self.run.order[np.repeat(ends - counts, counts) + within].astype(np.int64)
        return places

    def _index(self) -> Changes:
        new = np.flatnonzero((self.timers != self.stored.hot.timers) & (self.timers != NO_TIME))
        index = store_keys.index_keys(self.timers[new], self.keys.ordered.take(pa.array(new)))
        return [noted(index), deleted(self.due)]
