"""The buffer of suppress during one batch: what is fed, what is loaded of the store for it, what leaves, what changes.

It knows how entries meet the kernel as arrays; it refuses to know how long anything waits, and why it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.inputs import NO_CAUSE
from service.streams.kernels import suppress as kernel
from service.streams.layouts import buffers, reserved, store_keys
from service.streams.layouts.changelog import changelog_of
from service.streams.measures import Reading, spread
from service.streams.operators.keyed import Keyed
from service.streams.records import StateReader, as_records, as_task_rows

Int64s = npt.NDArray[np.int64]
_NOBODY: Final = -1  # the entry of a row that has none
_NO_WINDOW: Final = -1  # sorts before all windows
_ALL: Final = int(np.iinfo(np.int64).max)
_NOT_STOPPED: Final = -1
_ENTRY_BYTES: Final = 64  # of an entry beside key and value
_HEADS_AT_ONCE: Final = 32  # that are measured together: values may have megabytes
_NOTHING = np.zeros(1, np.uint8)


@dataclass(frozen=True, slots=True)
class BufferFeed:
    """Updates row by row: whose they are (`keys`: null where it can not be stored), the buffer time that each would
    begin with, stream time with it, the bytes that it counts for. There may be one row more than there are records:
    stream time moves on without one.
    """

    who: Who
    times: Int64s
    running: Int64s
    sizes: Int64s

    @classmethod
    def of(cls, keyed: Keyed, times: Int64s) -> Self:
        """Records with these buffer times."""
        who = Who(keyed.keys, keyed.rows.column("window_start"), keyed.rows.column("window_end"))
        return cls(who, times, keyed.running, _sizes(keyed.rows))

    def and_then(self, time: int) -> BufferFeed:
        """The same, and then stream time moves on to `time`."""
        nobody = Who(pa.nulls(1, pa.binary()), pa.nulls(1, pa.int64()), pa.nulls(1, pa.int64()))
        times, running = np.append(self.times, time), np.append(self.running, time)
        return BufferFeed(self.who.and_then(nobody), times, running, np.append(self.sizes, 0))


@dataclass(frozen=True, slots=True)
class Who:
    """Key (binary) and window (int64, null = not windowed), row by row."""

    keys: pa.Array
    starts: pa.Array
    ends: pa.Array

    def and_then(self, others: Who) -> Who:
        """These rows, and then those of others."""
        return Who(
            pa.concat_arrays([self.keys, others.keys]),
            pa.concat_arrays([self.starts, others.starts]),
            pa.concat_arrays([self.ends, others.ends]),
        )

    def take(self, places: Int64s) -> Who:
        """Some of the rows."""
        at = pa.array(places)
        return Who(self.keys.take(at), self.starts.take(at), self.ends.take(at))

    def distinct(self, *, is_session: bool) -> tuple[Int64s, Who]:
        """The distinct ones with a key, in the order of their identities (`buffers`), and each row's place among them.

        Columns are ranked alone and joined as numbers: only distinct keys are ever compared as bytes.
        """
        first, second = (self.ends, self.starts) if is_session else (self.starts, self.ends)
        key_ranks, keys = _ranked(self.keys)
        first_ranks, firsts = _ranked(first.fill_null(_NO_WINDOW))
        second_ranks, seconds = _ranked(second.fill_null(_NO_WINDOW))
        window_ranks, windows = _ranked(pa.array(first_ranks * len(seconds) + second_ranks))
        codes = pa.array(key_ranks * len(windows) + window_ranks, mask=key_ranks == _NOBODY)
        places, found = _ranked(codes)
        of_keys, of_windows = np.divmod(found.to_numpy(), len(windows) or 1)
        of_firsts, of_seconds = np.divmod(windows.to_numpy()[of_windows], len(seconds) or 1)
        pair = firsts.to_numpy()[of_firsts], seconds.to_numpy()[of_seconds]
        starts, ends = (pa.array(times, mask=times == _NO_WINDOW) for times in (pair[::-1] if is_session else pair))
        return places, Who(keys.take(pa.array(of_keys)), starts, ends)


@dataclass(slots=True)
class Flow:
    """The entries that a batch touches, and those that may leave, in the order of identities; ids are places there.

    `was`: buffer times as stored (ABSENT = not buffered). The kernel reads and writes `times`, `held` (bytes),
    `sources` (the row that a value comes from) and `totals` (records, bytes); `left`, `levels` and `stop` are what it
    says.
    """

    ids: Int64s
    who: Who
    identities: pa.Array
    entries: list[bytes]
    was: Int64s
    held: Int64s
    stored_totals: Int64s
    known: Int64s
    times: Int64s
    sources: Int64s
    totals: Int64s
    left: npt.NDArray[np.int64]
    levels: Int64s
    stop: Int64s

    @property
    def stopped_at(self) -> int | None:
        """The last row that was fed, where more has to leave than was loaded: nothing may come before that does."""
        return None if self.stop[0] == _NOT_STOPPED else int(self.stop[0])

    def run(self, feed: BufferFeed, due: Int64s, bounds: Int64s, *, may_emit_early: bool) -> int:
        """Feed the rows: how many entries left, or why the kernel stopped."""
        code = kernel.suppress(
            self.ids,
            feed.times,
            due,
            feed.sizes,
            self.times,
            self.held,
            self.sources,
            self.totals,
            bounds,
            may_emit_early,
            self.known,
            self.left,
            self.levels,
            self.stop,
        )
        self.left = self.left[:, : max(code, 0)]
        return int(code)

    def leaving(self, rows: pa.RecordBatch, cause: int = NO_CAUSE) -> pa.RecordBatch:
        """The updates that left (TASK_SCHEMA), with the ordinal of the row that made them leave; `cause` is that of
        the row without a record.
        """
        causes, entries, sources, _ = self.left
        is_stored = sources == kernel.STORED
        stored, updates = entries[is_stored], as_records(rows)
        if len(stored):
            who, held = self.who.take(stored), [self.entries[one] for one in stored.tolist()]
            found = buffers.unpack_records(who.keys, who.starts, who.ends, held)
            updates = pa.concat_batches([updates, found])
        places = sources.copy()
        places[is_stored] = rows.num_rows + np.arange(len(stored))
        ordinals = np.append(rows.column("ordinal").to_numpy(), cause)[causes]
        return as_task_rows(updates.take(pa.array(places)), pa.array(ordinals))

    def measures(self, is_said: pa.BooleanArray | None) -> Reading:
        """How full the buffer was and is; how many updates that left went on (`is_said`: one flag each, None for all);
        by how much stream time had passed the time of those that it made leave: what is pushed out is not over time.
        """
        overtime = self.left[3]
        if is_said is not None and is_said.false_count:
            overtime = overtime[is_said.to_numpy(zero_copy_only=False)]
        found = {**self._measured_levels(), "emitted": len(overtime)}
        if (overtime == kernel.PUSHED).any():
            overtime = overtime[overtime != kernel.PUSHED]
        if len(overtime):
            found["overtime_ms"] = {**spread(overtime), "min": int(overtime.min())}
        return found

    def _measured_levels(self) -> Reading:
        looks, records, most_records, size, most_size = self.levels.tolist()
        if not looks:
            return {}
        records_now, size_now = self.totals.tolist()
        return {
            "buffer_records": {"count": looks, "sum": records, "max": most_records, "last": records_now},
            "buffer_bytes": {"count": looks, "sum": size, "max": most_size, "last": size_now},
        }

    def changes(self, keyed: Keyed, now: int) -> pa.RecordBatch | None:
        """What the store has to learn (CHANGELOG_SCHEMA), None when nothing; `now` is stream time after it all."""
        parts = [self._changed_entries(keyed.rows), self._changed_index()]
        if (self.totals != self.stored_totals).any():
            packed = buffers.pack_totals(self.totals)
            parts.append((pa.array([reserved.TOTALS_KEY], pa.binary()), pa.array([packed], pa.binary())))
        return changelog_of(parts, now if now != keyed.before else None)

    def _changed_entries(self, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        is_buffered = self.times != kernel.ABSENT
        is_new = is_buffered & (self.sources != kernel.STORED)
        changed = np.flatnonzero(is_new | (~is_buffered & (self.was != kernel.ABSENT)))
        written = np.flatnonzero(is_new)
        updates = rows.take(pa.array(self.sources[written]))
        packed = buffers.pack_entries(self.times[written], self.held[written], updates)
        place = np.cumsum(is_new[changed]) - 1
        keys = buffers.entry_keys(self.identities.take(pa.array(changed)))
        return keys, packed.take(pa.array(place, mask=~is_new[changed]))

    def _changed_index(self) -> tuple[pa.Array, pa.Array]:
        is_moved = self.was != self.times
        gone = np.flatnonzero(is_moved & (self.was != kernel.ABSENT))
        come = np.flatnonzero(is_moved & (self.times != kernel.ABSENT))
        times, who = np.append(self.was[gone], self.times[come]), np.append(gone, come)
        keys = store_keys.index_keys(times, self.identities.take(pa.array(who)))
        is_gone = np.arange(len(who)) < len(gone)
        return keys, pc.if_else(pa.array(is_gone), None, pa.scalar(b"", pa.binary()))


def load(
    feed: BufferFeed, last_due: int, state: StateReader, *, beyond: int = 0, at_once: int = _ALL, is_session: bool
) -> Flow:
    """The entries that are fed, those with a buffer time up to `last_due`, or as many as have about `at_once` bytes;
    and, if that is all of them, `beyond` more.
    """
    cut, end = store_keys.index_bound(last_due + 1), store_keys.index_bound(1 << 63)
    totals = buffers.unpack_totals(state.get(reserved.TOTALS_KEY))
    heads, is_short = _heads(state, cut, at_once, totals)
    more = state.scan(cut, end, limit=beyond) if beyond and not is_short else []
    times, loaded = store_keys.split_index_keys([key for key, _ in heads + more])
    others = Who(*buffers.split_identities(pa.array(loaded, pa.binary()), is_session=is_session))
    places, who = feed.who.and_then(others).distinct(is_session=is_session)
    identities = buffers.identities(who.keys, who.starts, who.ends, is_session=is_session)
    entries = state.get_many(_as_list(buffers.entry_keys(identities)), buffers.NOT_BUFFERED)
    was, held = buffers.times_and_sizes(entries)
    is_cut = is_short or (beyond and len(more) == beyond)
    all_due = (last_due + 1, _NOBODY) if last_due < _ALL else (last_due, _ALL)
    return Flow(
        ids=places[: len(feed.times)],
        who=who,
        identities=identities,
        entries=entries,
        was=was,
        held=held,
        stored_totals=totals,
        known=np.array([times[-1], places[-1]] if is_cut else all_due, np.int64),
        times=was.copy(),
        sources=np.full(len(was), kernel.STORED),
        totals=totals.copy(),
        left=np.empty((4, len(was) + len(feed.times)), np.int64),
        levels=np.zeros(5, np.int64),
        stop=np.array([_NOT_STOPPED]),
    )


def _heads(state: StateReader, cut: bytes, at_once: int, totals: Int64s) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Index entries before `cut`, and whether they are not all, because those behind them have `at_once` bytes."""
    if totals[1] + _ENTRY_BYTES * totals[0] <= at_once:
        return state.scan(store_keys.index_bound(0), cut), False
    found: list[tuple[bytes, bytes]] = []
    start, size, count = store_keys.index_bound(0), 0, min(max(at_once // _ENTRY_BYTES, 1), _HEADS_AT_ONCE)
    while size < at_once:
        page = state.scan(start, cut, limit=count)
        found += page
        if len(page) < count:
            return found, False
        keys = _as_list(buffers.entry_keys(pa.array([key[9:] for key, _ in page], pa.binary())))
        size += sum(map(len, state.get_many(keys, buffers.NOT_BUFFERED)))
        start = page[-1][0] + b"\x00"
    return found, True


def _ranked(values: pa.Array) -> tuple[Int64s, pa.Array]:
    """The distinct values, sorted, and the place of each row's among them; _NOBODY for null."""
    encoded = values.dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary)
    ranks = np.empty(len(order) + 1, np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    ranks[_NOBODY] = _NOBODY
    return ranks[encoded.indices.fill_null(_NOBODY).to_numpy()], encoded.dictionary.take(order)


def _as_list(column: pa.Array) -> list[bytes]:
    values: list[bytes] = column.to_numpy(zero_copy_only=False).tolist()  # half the cost of to_pylist
    return values


def _sizes(rows: pa.RecordBatch) -> Int64s:
    """What each record counts for: bytes of its key and its compact value, and of a window."""
    values = rows.column("value")
    if values.null_count:
        values = values.fill_null("")
    sizes = np.empty(len(values), np.int64)
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    kernel.compact_lengths(np.frombuffer(data, np.uint8) if data else _NOTHING, ends, sizes)
    sizes += pc.binary_length(rows.column("key")).to_numpy()
    is_windowed: Int64s = rows.column("window_end").is_valid().to_numpy(zero_copy_only=False)
    return sizes + buffers.WINDOW_BYTES * is_windowed
