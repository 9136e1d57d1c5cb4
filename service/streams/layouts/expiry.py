"""When entries of a store are over: the stream time after which each is absent, in every layout.

It knows which of an entry's times counts; it refuses to know who deletes it, and when.

identities   the timestamp in the entry
ordered      the end of a session, the start of a window; of packed sessions the last end. The rest (index, what an
             operator remembers) is deleted by who wrote it
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.layouts import identities, store_keys
from service.streams.layouts.entries import HEADER
from service.streams.records import StoreSpec

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

NEVER: Final = int(np.iinfo(np.int64).max)  # an entry that stream time does not expire
_TIMED = frozenset({store_keys.WINDOW, store_keys.SESSION})
_LAST_END_AT = HEADER.fields["last_end"][1] if HEADER.fields else 0


def expires_after(store: StoreSpec, changes: pa.RecordBatch) -> Int64s:
    """For each change (CHANGELOG_SCHEMA) that stream time; NEVER for deletes and for what does not expire."""
    if store.interval_ms is None:
        return np.full(changes.num_rows, NEVER, np.int64)
    return expires_when(store, own_times(store, changes))


def expires_when(store: StoreSpec, times: Int64s) -> Int64s:
    """The same of entries' own times."""
    interval_ms = NEVER if store.interval_ms is None else store.interval_ms
    lives = (times != NEVER) & (times <= NEVER - interval_ms)
    return np.where(lives, times + interval_ms, NEVER) if lives.any() else np.full(len(times), NEVER)


def own_times(store: StoreSpec, changes: pa.RecordBatch) -> Int64s:
    """The own time of each change; NEVER for deletes and for what has none."""
    keys, values = changes.column("key"), changes.column("value")
    return _times_of_identities(values) if store.layout == "identities" else _times(keys, values)


def is_timed(key: bytes) -> bool:
    """Whether the time of an entry is in its store key, so that it never changes."""
    return key[:1] in _TIMED


def _times_of_identities(values: pa.Array) -> Int64s:
    found = np.full(len(values), NEVER, np.int64)
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    rows = np.flatnonzero(lengths == len(identities.ABSENT_ENTRY))
    if len(rows):
        found[rows] = identities.timestamps(values if len(rows) == len(values) else values.take(rows))
    return found


def _times(keys: pa.Array, values: pa.Array) -> Int64s:
    """The time that counts of each entry, NEVER where none does."""
    found = np.full(len(keys), NEVER, np.int64)
    data, ends = _parts(keys)
    prefixes = data[ends[:-1]]
    is_there = values.is_valid().to_numpy(zero_copy_only=False)
    for prefix, back in (store_keys.WINDOW, 8), (store_keys.SESSION, 16):
        rows = np.flatnonzero((prefixes == prefix[0]) & is_there)
        found[rows] = _read(data, ends[rows + 1] - back, ">i8")
    packed = np.flatnonzero((prefixes == store_keys.HOT[0]) & is_there)
    if len(packed):
        data, ends = _parts(values)
        found[packed] = _read(data, ends[packed] + _LAST_END_AT, "<i8")
    return found


def _read(data: Bytes, places: Int64s, kind: str) -> Int64s:
    found: Int64s = data[places[:, None] + np.arange(8)].view(kind)[:, 0].astype(np.int64)
    return found


def _parts(column: pa.Array) -> tuple[Bytes, Int64s]:
    """The bytes of a binary column, and where each value ends in them, after the beginning of the first."""
    _, ends, body = column.buffers()
    data = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
    found = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return data, found
