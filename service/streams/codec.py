"""Store keys and values ⇄ bytes. One module, versioned by the first byte of a key.

It knows how identities and entries are laid out; it refuses to know when an entry is a duplicate.

key     0x00 identity            identity of at most 400 bytes (LMDB keys end at 511)
        0x01 BLAKE2b-256         of a longer one: exact, as nobody finds two with the same hash
        0x02 "obs"               the operator's stream time, int64 little-endian
entry   deduplicate: timestamp and origin (`inputs`) of the record that was let through, int64 little-endian each
identity of (key, id)            length of the key (uint32 big-endian), key, id
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.records import CHANGELOG_SCHEMA, StoreSpec

Int64s = npt.NDArray[np.int64]

MAX_PLAIN_IDENTITY_BYTES: Final = 400
OBS_KEY: Final = b"\x02obs"
NEVER: Final = np.iinfo(np.int64).max  # an entry that stream time does not expire
ABSENT: Final = np.iinfo(np.int64).min  # the timestamp that stands for "no entry" in arrays
ABSENT_ENTRY: Final = struct.pack("<qq", ABSENT, ABSENT)
PLAIN: Final = b"\x00"
HASHED: Final = b"\x01"
_NO_BYTES = pa.scalar(b"", pa.binary())


def pack_obs(obs: int) -> bytes:
    """Stream time as a store value."""
    return struct.pack("<q", obs)


def unpack_obs(value: bytes) -> int:
    """The inverse of `pack_obs`."""
    return int(struct.unpack("<q", value)[0])


def pair_identities(keys: pa.Array, ids: pa.Array) -> pa.Array:
    """(key, id) as one byte string each, unambiguous; both binary, no nulls."""
    lengths = pc.binary_length(keys).to_numpy().astype(">u4")
    prefix = pa.Array.from_buffers(pa.binary(4), len(keys), [None, pa.py_buffer(lengths.tobytes())])
    return pc.binary_join_element_wise(prefix.cast(pa.binary()), keys, ids, _NO_BYTES)


def pair_prefix(key: bytes) -> bytes:
    """What the identities of all pairs with a key begin with."""
    return len(key).to_bytes(4) + key


def split_pair(identity: bytes) -> tuple[bytes, bytes]:
    """The inverse of `pair_identities` for one."""
    end = 4 + int.from_bytes(identity[:4], "big")
    return identity[4:end], identity[end:]


def store_keys(identities: pa.Array) -> pa.Array:
    """Identities (binary, no nulls) as store keys, in the same order."""
    lengths = pc.binary_length(identities).to_numpy()
    if not len(lengths) or lengths.max() <= MAX_PLAIN_IDENTITY_BYTES:
        return pc.binary_join_element_wise(pa.scalar(PLAIN, pa.binary()), identities, _NO_BYTES)
    return pa.array([store_key(identity) for identity in identities.to_pylist()], pa.binary())


def identity_of(store_key: bytes) -> bytes | None:
    """The identity in a store key; None when only its hash is known."""
    return store_key[1:] if store_key[:1] == PLAIN else None


def is_entry(store_key: bytes) -> bool:
    """Whether the key holds an entry, not the operator's own stream time."""
    return store_key != OBS_KEY


def pack_entries(timestamps: Int64s, origins: Int64s) -> pa.Array:
    """Deduplicate entries as 16-byte values (binary)."""
    pairs = np.empty((len(timestamps), 2), "<i8")
    pairs[:, 0], pairs[:, 1] = timestamps, origins
    ends = np.arange(0, 16 * len(timestamps) + 1, 16, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(timestamps), [None, pa.py_buffer(ends), pa.py_buffer(pairs)])


def unpack_entries(values: list[bytes]) -> tuple[Int64s, Int64s]:
    """The inverse of `pack_entries`: timestamps and origins, writable. ABSENT_ENTRY gives (ABSENT, ABSENT)."""
    pairs = np.frombuffer(b"".join(values), "<i8").reshape(-1, 2)
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def changelog(keys: pa.Array, values: pa.Array, obs: int | None) -> pa.RecordBatch:
    """Changes to a store (CHANGELOG_SCHEMA): keys sorted by the caller, then stream time where it moved."""
    if obs is not None:
        keys = pa.concat_arrays([keys, pa.array([OBS_KEY], pa.binary())])
        values = pa.concat_arrays([values, pa.array([pack_obs(obs)], pa.binary())])
    return pa.RecordBatch.from_arrays([keys, values], schema=CHANGELOG_SCHEMA)


def obs_in(changes: pa.RecordBatch) -> int | None:
    """The stream time that a batch of changes carries, if it moved."""
    row = int(pc.index(changes.column("key"), pa.scalar(OBS_KEY, pa.binary())).as_py())
    return None if row < 0 else unpack_obs(changes.column("value")[row].as_py())


def expires_after(store: StoreSpec, changes: pa.RecordBatch) -> Int64s:
    """For each change the stream time after which its entry is absent; NEVER for deletes and stream time itself."""
    found = np.full(changes.num_rows, NEVER, np.int64)
    if store.interval_ms is None:
        return found
    lengths = pc.fill_null(pc.binary_length(changes.column("value")), 0).to_numpy()
    rows = np.flatnonzero(lengths == 16)
    if len(rows):
        values = changes.column("value") if len(rows) == changes.num_rows else changes.column("value").take(rows)
        stamps = _timestamps(values)
        found[rows] = np.where(stamps > NEVER - store.interval_ms, NEVER, stamps + store.interval_ms)
    return found


def _timestamps(values: pa.Array) -> Int64s:
    """Of entries (binary, 16 bytes each, no nulls), straight from the Arrow buffer: 0.2 ms per 60 k, not 4."""
    _, ends, body = values.buffers()
    start = int(np.frombuffer(ends, np.int32)[values.offset])
    return np.frombuffer(body, "<i8", 2 * len(values), start)[::2]


def store_key(identity: bytes) -> bytes:
    """One identity as a store key."""
    if len(identity) <= MAX_PLAIN_IDENTITY_BYTES:
        return PLAIN + identity
    return HASHED + hashlib.blake2b(identity, digest_size=32).digest()
