"""Lists of store keys to look at once stream time has passed them, as every kind of replica keeps them.

It knows how a range of changelog becomes lists and which entries of a due list are really over; it refuses to know
where lists are kept. A list is named so that the names sort by when they are due, and no range is applied twice, so a
name is given once. What expires costs what it takes to look at it: nobody ever searches a store for old entries.

A list remembers the interval under which it was noted. Where a store's has become longer since, lists come too early:
what is not over then is noted once more. Where it has become shorter, windows may be over that are still to be emitted
when they close: what is not before the first of those stays, until it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from service.streams.layouts.expiry import NEVER, expires_after, expires_when, is_timed, own_times
from service.streams.records import CHANGELOG_SCHEMA, StoreSpec

SLICE_KEYS = 1024
_AGAIN: Final = 1 << 31  # from here on lists of one range are such as are noted once more
_INTERVAL: Final = struct.Struct("<q")

Read = Callable[[list[bytes]], Sequence[bytes | None]]


def in_force(store: StoreSpec, ttl_ms: int | None) -> StoreSpec:
    """A store that forgets by what its changelog said last (TTL_KEY; None: nothing, where it was written before that
    was said), whatever the version that runs now would keep.
    """
    if ttl_ms is None or store.interval_ms in (None, ttl_ms):
        return store
    return replace(store, interval_ms=ttl_ms)


class ExpiryOutcome(NamedTuple):
    """What a list that was due comes to: keys that are `over`; a list (name, packed keys) of those that are to be
    looked at `again`, where there are any.
    """

    over: list[bytes]
    again: list[tuple[bytes, bytes]]


def lists_of(store: StoreSpec, to_offset: int, changes: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    """(name, packed keys) of the changelog range that ends at `to_offset`.

    Slices go along the key order: their deletes touch neighbouring pages, and one entry far in the future keeps back
    no more than its slice.
    """
    after = expires_after(store, changes)
    is_mortal = after != NEVER
    after, keys = after[is_mortal], changes.column("key").filter(pa.array(is_mortal))
    for start in range(0, len(keys), SLICE_KEYS):
        stop = start + SLICE_KEYS
        packed = _pack(keys[start:stop], store.interval_ms or 0)
        yield _name(int(after[start:stop].max()), to_offset, start), packed


def due_before(obs: int) -> bytes:
    """The names of all lists that are due at stream time `obs` sort before this."""
    return struct.pack(">Q", obs + (1 << 63))


def length_of(packed: bytes) -> int:
    """How many keys are in a list."""
    return int(struct.unpack_from("<I", packed)[0])


def settled(
    store: StoreSpec,
    obs: int,
    listed: tuple[bytes, bytes],
    read: Read,
    place: tuple[int, int],
    first_open: int | None = None,
) -> ExpiryOutcome:
    """What a due list (name, packed keys) comes to at stream time `obs`.

    `read` gives entries as they are (None: not there). `place`: the offset at which the range that is applied ends, and
    how many lists were settled in it before. `first_open`: the own time of the first entry that is still to be emitted.
    """
    name, packed = listed
    keys, noted_ms = _unpack(packed)
    if first_open is None and noted_ms == store.interval_ms:
        return ExpiryOutcome(expired(store, obs, as_list(keys), read), [])
    times = _times_now(store, keys, read)
    after = expires_when(store, times)
    is_kept = (after >= obs) | (times >= (NEVER if first_open is None else first_open))
    # Who was written again since has a later list of its own, but where the time is in the key it is the same time.
    is_last = np.ones(len(keys), np.bool_)
    if noted_ms is not None:
        is_last = times <= _due_after(name) - noted_ms
    again = np.flatnonzero(is_kept & is_last & (after != NEVER))
    lists = []
    if len(again):
        due = _name(max(int(after[again].max()), obs), place[0], _AGAIN + place[1])
        lists.append((due, _pack(keys.take(pa.array(again)), store.interval_ms or 0)))
    return ExpiryOutcome(as_list(keys.filter(pa.array(~is_kept))), lists)


def _times_now(store: StoreSpec, keys: pa.Array, read: Read) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The own times of entries as they are; NEVER where there is none any more."""
    names = as_list(keys)
    unsure = [key for key in names if not is_timed(key)]
    held = iter(read(unsure) if unsure else ())
    values = [b"" if is_timed(key) else next(held) for key in names]
    return own_times(store, pa.RecordBatch.from_arrays([keys, pa.array(values, pa.binary())], schema=CHANGELOG_SCHEMA))


def expired(store: StoreSpec, obs: int, keys: list[bytes], read: Read) -> list[bytes]:
    """Of the keys in lists that are due, those of entries that stream time has expired.

    Where an entry's time is not in its key the entry itself is asked, by `read` (None: it is not there any more): one
    that was overwritten since has a later list of its own.
    """
    unsure = [key for key in keys if not is_timed(key)]
    if not unsure:
        return keys
    columns = [pa.array(unsure, pa.binary()), pa.array(read(unsure), pa.binary())]
    entries = pa.RecordBatch.from_arrays(columns, schema=CHANGELOG_SCHEMA)
    over = [unsure[row] for row in np.flatnonzero(expires_after(store, entries) < obs).tolist()]
    return over + [key for key in keys if is_timed(key)]


def forgotten(store: StoreSpec, before: int, entries: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys of those of some entries whose own time is below this."""
    columns = [pa.array(column, pa.binary()) for column in zip(*entries, strict=True)]
    times = own_times(store, pa.RecordBatch.from_arrays(columns, schema=CHANGELOG_SCHEMA))
    return [entries[row][0] for row in np.flatnonzero(times < before).tolist()]


def as_list(column: pa.Array) -> list[bytes]:
    """A binary column as bytes objects; half the cost of to_pylist."""
    values: list[bytes] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _name(after: int, to_offset: int, start: int) -> bytes:
    """Ordered by time, negative times too."""
    return struct.pack(">QQI", after + (1 << 63), to_offset, start)


def _due_after(name: bytes) -> int:
    """The highest time after which an entry of a list is over, as it was noted."""
    return int(struct.unpack_from(">Q", name)[0]) - (1 << 63)


def _unpack(packed: bytes) -> tuple[pa.Array, int | None]:
    """The keys of a list (binary), and the interval (ms) under which it was noted; None: nobody remembers."""
    count = struct.unpack_from("<I", packed)[0]
    buffer = pa.py_buffer(packed)
    body = 4 + 4 * (count + 1)
    end = body + int(struct.unpack_from("<I", packed, body - 4)[0])
    keys = pa.Array.from_buffers(pa.binary(), count, [None, buffer[4:body], buffer[body:end]])
    return keys, int(_INTERVAL.unpack_from(packed, end)[0]) if len(packed) > end else None


def _pack(keys: pa.Array, interval_ms: int) -> bytes:
    """n, n + 1 ends (uint32 little-endian), then the keys' bytes, then the interval (ms, int64 little-endian)."""
    _, ends_buffer, data = keys.buffers()
    ends = np.frombuffer(ends_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    body = b"" if data is None else data[ends[0] : ends[-1]].to_pybytes()
    head = struct.pack("<I", len(keys)), (ends - ends[0]).astype("<i4").tobytes()
    return b"".join([*head, body, _INTERVAL.pack(interval_ms)])
