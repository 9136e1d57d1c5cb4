"""Lists of store keys to look at once stream time has passed them, as every kind of replica keeps them.

It knows how a range of changelog becomes lists and which entries of a due list are really over; it refuses to know
where lists are kept. A list is named so that the names sort by when they are due, and no range is applied twice, so a
name is given once. What expires costs what it takes to look at it: nobody ever searches a store for old entries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from service.streams.layouts.expiry import NEVER, expires_after, is_timed
from service.streams.records import CHANGELOG_SCHEMA, StoreSpec

SLICE_KEYS = 1024


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
        yield _name(int(after[start:stop].max()), to_offset, start), _pack(keys[start:stop])


def due_before(obs: int) -> bytes:
    """The names of all lists that are due at stream time `obs` sort before this."""
    return struct.pack(">Q", obs + (1 << 63))


def keys_in(packed: bytes) -> list[bytes]:
    """The keys of a list."""
    count = struct.unpack_from("<I", packed)[0]
    buffer = pa.py_buffer(packed)
    body = 4 + 4 * (count + 1)
    keys = pa.Array.from_buffers(pa.binary(), count, [None, buffer[4:body], buffer[body:]])
    return as_list(keys)


def expired(
    store: StoreSpec, obs: int, keys: list[bytes], read: Callable[[list[bytes]], Sequence[bytes | None]]
) -> list[bytes]:
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


def as_list(column: pa.Array) -> list[bytes]:
    """A binary column as bytes objects; half the cost of to_pylist."""
    values: list[bytes] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _name(after: int, to_offset: int, start: int) -> bytes:
    """Ordered by time, negative times too."""
    return struct.pack(">QQI", after + (1 << 63), to_offset, start)


def _pack(keys: pa.Array) -> bytes:
    """n, n + 1 ends (uint32 little-endian), then the keys' bytes."""
    _, ends_buffer, data = keys.buffers()
    ends = np.frombuffer(ends_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    body = b"" if data is None else data[ends[0] : ends[-1]].to_pybytes()
    return b"".join([struct.pack("<I", len(keys)), (ends - ends[0]).astype("<i4").tobytes(), body])
