"""The entries of deduplicate ⇄ bytes: identities as store keys, what was let through and when as values.

It knows how they are laid out; it refuses to know when a record is a duplicate.

key     0x00 identity            identity of at most 400 bytes (LMDB keys end at 511)
        0x01 BLAKE2b-256         of a longer one: exact, as nobody finds two with the same hash
entry   timestamp and origin (`inputs`) of the record that was let through, int64 little-endian each
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

Int64s = npt.NDArray[np.int64]

MAX_PLAIN_IDENTITY_BYTES: Final = 400
ABSENT: Final = np.iinfo(np.int64).min  # the timestamp that stands for "no entry" in arrays
ABSENT_ENTRY: Final = struct.pack("<qq", ABSENT, ABSENT)
PLAIN: Final = b"\x00"
HASHED: Final = b"\x01"
_NO_BYTES = pa.scalar(b"", pa.binary())


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


def timestamps(values: pa.Array) -> Int64s:
    """Of entries (binary, 16 bytes each, no nulls), straight from the Arrow buffer: 0.2 ms per 60 k, not 4."""
    _, ends, body = values.buffers()
    start = int(np.frombuffer(ends, np.int32)[values.offset])
    return np.frombuffer(body, "<i8", 2 * len(values), start)[::2]


def store_key(identity: bytes) -> bytes:
    """One identity as a store key."""
    if len(identity) <= MAX_PLAIN_IDENTITY_BYTES:
        return PLAIN + identity
    return HASHED + hashlib.blake2b(identity, digest_size=32).digest()
