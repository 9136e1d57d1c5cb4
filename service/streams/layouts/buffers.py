"""The buffer of suppress ⇄ store entries: who is buffered, until when, with which value.

It knows bytes, and how their order is the order in which entries leave; it refuses to know when they do.

identity  the key in its ordered form, then, if windowed, two int64 big-endian: (end, start) for sessions,
          (start, end) for other windows
"k" identity             -> an entry: buffer time, bytes that it counts for, timestamp (int64 little-endian), lengths of
                            value and headers (int32, -1 = null), value, headers
"i" buffer time identity -> nothing: the entries in the order in which they leave
0x02 "totals"            -> records, bytes in the buffer (int64 little-endian), where there are any (`reserved`)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.layouts import store_keys
from service.streams.layouts.identities import ABSENT
from service.streams.records import RECORD_SCHEMA

Int64s = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]

NOT_BUFFERED: Final = b""
WINDOW_BYTES: Final = 16
_HEADER = np.dtype([("time", "<i8"), ("size", "<i8"), ("timestamp", "<i8"), ("value", "<i4"), ("headers", "<i4")])
_NO_HEADER: Final = struct.pack("<qq", ABSENT, 0)
_NO_BYTES = pa.scalar(b"", pa.binary())


def identities(keys: pa.Array, starts: pa.Array, ends: pa.Array, *, is_session: bool) -> pa.Array:
    """Identities (binary) of keys (binary, no nulls) and windows (int64; null = not windowed), row by row."""
    ordered = store_keys.ordered(keys)
    if starts.null_count == len(starts):
        return ordered
    both = (ends, starts) if is_session else (starts, ends)
    windows = store_keys.big_endian(*(column.fill_null(0).to_numpy() for column in both))
    if starts.null_count:
        windows = pc.if_else(starts.is_valid(), windows, _NO_BYTES)
    return pc.binary_join_element_wise(ordered, windows, _NO_BYTES)


def entry_keys(of: pa.Array) -> pa.Array:
    """Where the entries of identities lie, in the same order."""
    return store_keys.plain_keys(store_keys.TABLE, of)


def pack_totals(totals: Int64s) -> bytes | None:
    """Records and bytes in the buffer, as a store value; an empty buffer has none."""
    return totals.astype("<i8").tobytes() if totals[0] else None


def unpack_totals(packed: bytes | None) -> Int64s:
    """The inverse of `pack_totals`, writable; nothing packed is an empty buffer."""
    return np.frombuffer(packed or bytes(16), "<i8").astype(np.int64)


def pack_entries(times: Int64s, sizes: Int64s, records: pa.RecordBatch) -> pa.Array:
    """Entries (binary) with the values of `records` (RECORD_SCHEMA), row by row; times in ms, sizes in bytes."""
    values, headers = records.column("value"), records.column("headers")
    packed = np.empty(len(times), _HEADER)
    packed["time"], packed["size"], packed["timestamp"] = times, sizes, records.column("timestamp").to_numpy()
    packed["value"], packed["headers"] = _lengths(values), _lengths(headers)
    parts = [store_keys.fixed(packed, _HEADER.itemsize), _bytes(values), _bytes(headers)]
    return pc.binary_join_element_wise(*parts, _NO_BYTES)


def times_and_sizes(entries: list[bytes]) -> tuple[Int64s, Int64s]:
    """Buffer times and bytes of entries, writable; ABSENT and 0 for NOT_BUFFERED."""
    pairs = np.frombuffer(b"".join([entry[:16] or _NO_HEADER for entry in entries]), "<i8").reshape(-1, 2)
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def split_identities(of: pa.Array, *, is_session: bool) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The inverse of `identities`: keys, starts and ends."""
    keys, windows = store_keys.split_ordered(of)
    return keys, *_windows(windows, is_session=is_session)


def unpack_entries(of: pa.Array, entries: list[bytes], *, is_session: bool) -> pa.RecordBatch:
    """The records (RECORD_SCHEMA) that are buffered under identities."""
    keys, starts, ends = split_identities(of, is_session=is_session)
    return unpack_records(keys, starts, ends, entries)


def unpack_records(keys: pa.Array, starts: pa.Array, ends: pa.Array, entries: list[bytes]) -> pa.RecordBatch:
    """The records (RECORD_SCHEMA) in entries of which the rest is known."""
    packed = np.frombuffer(b"".join([entry[: _HEADER.itemsize] for entry in entries]), _HEADER)
    bodies = pa.array([entry[_HEADER.itemsize :] for entry in entries], pa.binary())
    values, headers = _bodies(bodies, packed["value"], packed["headers"])
    stamps = pa.array(packed["timestamp"].astype(np.int64))
    return pa.RecordBatch.from_arrays([keys, values, stamps, starts, ends, headers], schema=RECORD_SCHEMA)


def buffered(entries: Mapping[bytes, bytes], *, is_session: bool) -> pa.RecordBatch:
    """The records (RECORD_SCHEMA) in a whole store of this layout, in the order of its keys."""
    held = sorted(entry for entry in entries.items() if entry[0][:1] == store_keys.TABLE)
    of = pa.array([key[1:] for key, _ in held], pa.binary())
    return unpack_entries(of, [value for _, value in held], is_session=is_session)


def _windows(packed: pa.Array, *, is_session: bool) -> tuple[pa.Array, pa.Array]:
    is_windowed = pc.equal(pc.binary_length(packed), WINDOW_BYTES)
    filled = pc.if_else(is_windowed, packed, pa.scalar(bytes(WINDOW_BYTES), pa.binary()))
    fixed = filled.cast(pa.binary(WINDOW_BYTES))
    pairs = np.frombuffer(fixed.buffers()[1], ">i8", 2 * len(packed)).reshape(-1, 2).astype(np.int64)
    first, second = (pc.if_else(is_windowed, pa.array(np.ascontiguousarray(pairs[:, i])), None) for i in (0, 1))
    return (second, first) if is_session else (first, second)


def _bodies(bodies: pa.Array, value_lengths: Lengths, header_lengths: Lengths) -> tuple[pa.Array, pa.Array]:
    if (header_lengths < 0).all():
        values = pc.if_else(pa.array(value_lengths >= 0), bodies, None)
        return values.cast(pa.utf8()), pa.nulls(len(bodies), pa.utf8())
    values, headers = [], []
    lengths = zip(value_lengths.tolist(), header_lengths.tolist(), strict=True)
    for body, (value, header) in zip(bodies.to_pylist(), lengths, strict=True):
        end = max(value, 0)
        values.append(body[:end] if value >= 0 else None)
        headers.append(body[end:] if header >= 0 else None)
    return pa.array(values, pa.binary()).cast(pa.utf8()), pa.array(headers, pa.binary()).cast(pa.utf8())


def _lengths(texts: pa.Array) -> Lengths:
    found: Lengths = pc.binary_length(texts).fill_null(-1).to_numpy()
    return found


def _bytes(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.binary()).fill_null(b"")
