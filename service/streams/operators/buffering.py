"""The buffer of suppress during one batch: what is fed, what is loaded of the store for it, what leaves, what changes.

It knows how entries meet the kernel as arrays; it refuses to know how long anything waits, and why it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams import buffers, store_keys
from service.streams.kernels import buffer as kernel
from service.streams.operators.keyed import Keyed
from service.streams.records import StateReader, as_records, as_task_batch

Int64s = npt.NDArray[np.int64]
NO_CAUSE: Final = -1  # the source offset of what no record caused
_NOBODY: Final = -1  # the entry of a row that has none
_ALL: Final = np.iinfo(np.int64).max
_NOTHING = np.zeros(1, np.uint8)


@dataclass(frozen=True, slots=True)
class Feed:
    """Updates as arrays, row by row: `ids` into `identities` (binary, distinct), the buffer time that each would
    begin with, stream time with it, the bytes that it counts for.
    """

    ids: Int64s
    identities: pa.Array
    times: Int64s
    running: Int64s
    sizes: Int64s

    @classmethod
    def of(cls, keyed: Keyed, times: Int64s, *, is_session: bool) -> Self:
        """The rows with these buffer times; one whose key can not be stored moves time and has no entry."""
        starts, ends = keyed.rows.column("window_start"), keyed.rows.column("window_end")
        ids, keys, starts, ends = _distinct(keyed.keys, starts, ends)
        identities = buffers.identities(keys, starts, ends, is_session=is_session)
        return cls(ids, identities, times, keyed.running, _sizes(keyed.rows))

    def and_then(self, time: int) -> Feed:
        """The same, and then stream time moves on to `time`."""
        ids, times, sizes = np.append(self.ids, _NOBODY), np.append(self.times, time), np.append(self.sizes, 0)
        return Feed(ids, self.identities, times, np.append(self.running, time), sizes)


@dataclass(slots=True)
class Flow:
    """The entries that a batch touches, and those that may leave, in the order of identities; ids are places there.

    `was`: buffer times as stored (ABSENT = not buffered). The kernel reads and writes `times`, `held` (bytes),
    `sources` (the row that a value comes from) and `totals` (records, bytes); `left` is what it says.
    """

    ids: Int64s
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

    def run(self, feed: Feed, due: Int64s, bounds: Int64s, *, may_emit_early: bool) -> int:
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
        )
        self.left = self.left[:, : max(code, 0)]
        return int(code)

    def leaving(self, rows: pa.RecordBatch, *, is_session: bool) -> pa.RecordBatch:
        """The updates that left (TASK_SCHEMA), with the offset of the record that made them leave."""
        causes, who, sources = self.left
        is_stored = sources == kernel.STORED
        stored, updates = who[is_stored], as_records(rows)
        if len(stored):
            entries = [self.entries[one] for one in stored.tolist()]
            found = buffers.unpack_entries(self.identities.take(pa.array(stored)), entries, is_session=is_session)
            updates = pa.concat_batches([updates, found])
        places = sources.copy()
        places[is_stored] = rows.num_rows + np.arange(len(stored))
        offsets = np.append(rows.column("offset").to_numpy(), NO_CAUSE)[causes]
        return as_task_batch(updates.take(pa.array(places)), pa.array(offsets))

    def changes(self, keyed: Keyed, now: int) -> pa.RecordBatch | None:
        """What the store has to learn (CHANGELOG_SCHEMA), None when nothing; `now` is stream time after it all."""
        parts = [self._changed_entries(keyed.rows), self._changed_index()]
        if (self.totals != self.stored_totals).any():
            packed = buffers.pack_totals(self.totals)
            parts.append((pa.array([buffers.TOTALS_KEY], pa.binary()), pa.array([packed], pa.binary())))
        return store_keys.changelog(parts, now if now != keyed.before else None)

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


def load(feed: Feed, last_due: int, beyond: int, state: StateReader) -> Flow:
    """The entries of a feed's identities and all with a buffer time up to `last_due`, and then `beyond` more."""
    cut, end = store_keys.index_bound(last_due + 1), store_keys.index_bound(1 << 63)
    heads = state.scan(store_keys.index_bound(0), cut)
    more = state.scan(cut, end, limit=beyond) if beyond else []
    times, loaded = store_keys.split_index_keys([key for key, _ in heads + more])
    ids, identities, places = _united(feed, pa.array(loaded, pa.binary()))
    keys = buffers.entry_keys(identities).to_numpy(zero_copy_only=False).tolist()
    entries = state.get_many(keys, buffers.NOT_BUFFERED)
    was, held = buffers.times_and_sizes(entries)
    is_cut = beyond and len(more) == beyond
    known = np.array([times[-1], places[-1]] if is_cut else [last_due, _ALL], np.int64)
    totals = buffers.unpack_totals(state.get(buffers.TOTALS_KEY))
    return Flow(
        ids=ids,
        identities=identities,
        entries=entries,
        was=was,
        held=held,
        stored_totals=totals,
        known=known,
        times=was.copy(),
        sources=np.full(len(was), kernel.STORED),
        totals=totals.copy(),
        left=np.empty((3, len(was) + len(feed.ids)), np.int64),
    )


def _united(feed: Feed, loaded: pa.Array) -> tuple[Int64s, pa.Array, Int64s]:
    """The identities of feed and store, sorted; the feed's ids as places among them; the places of `loaded`."""
    encoded = pa.concat_arrays([feed.identities, loaded]).dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary)
    place = np.empty(len(order) + 1, np.int64)
    place[order.to_numpy()] = np.arange(len(order))
    place[_NOBODY] = _NOBODY
    in_feed = len(feed.identities)  # distinct, so they are the first of the dictionary, in order
    return place[feed.ids], encoded.dictionary.take(order), place[encoded.indices.to_numpy()[in_feed:]]


def _distinct(keys: pa.Array, starts: pa.Array, ends: pa.Array) -> tuple[Int64s, pa.Array, pa.Array, pa.Array]:
    """Dense ids of (key, window), _NOBODY where the key is null; then key, start and end of each id.

    Columns are encoded alone and joined as numbers, so that only distinct identities ever become bytes.
    """
    key_ids, distinct_keys = _encoded(keys)
    if starts.null_count == len(starts):
        nothing = pa.nulls(len(distinct_keys), pa.int64())
        return key_ids, distinct_keys, nothing, nothing
    start_ids, distinct_starts = _encoded(starts, nulls="encode")
    end_ids, distinct_ends = _encoded(ends, nulls="encode")
    window_ids, windows = _encoded(pa.array(start_ids * len(distinct_ends) + end_ids))
    ids, pairs = _encoded(pa.array(key_ids * len(windows) + window_ids, mask=key_ids < 0))
    of_keys, of_windows = np.divmod(pairs.to_numpy(), max(len(windows), 1))
    of_starts, of_ends = np.divmod(windows.to_numpy()[of_windows], len(distinct_ends))
    return (
        ids,
        distinct_keys.take(pa.array(of_keys)),
        distinct_starts.take(pa.array(of_starts)),
        distinct_ends.take(pa.array(of_ends)),
    )


def _encoded(values: pa.Array, nulls: Literal["mask", "encode"] = "mask") -> tuple[Int64s, pa.Array]:
    encoded = values.dictionary_encode(null_encoding=nulls)
    return encoded.indices.fill_null(_NOBODY).to_numpy().astype(np.int64), encoded.dictionary


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
