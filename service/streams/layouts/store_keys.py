"""Store keys of ordered stores: byte strings whose order is the order in which an operator scans.

It knows layouts and their order; it refuses to know values and when an entry is read.

    "k" key                          the aggregate of a key (no window)
    "h" key                          the newest sessions of a key, packed
    "s" key end (8) start (8)        a session, in the order of find_sessions
    "w" key start (8)                a window
    "i" time (8) key                 an index by time; what the time is, and what the key, says who keeps it
    0x02 name                        what an operator remembers about itself (`reserved`)

A key in its ordered form is a row of groups of nine bytes: eight of the key, then 9 if more follow, else how many
of the eight are the key's (the rest is 0x00). So it sorts as the key does, no form is the beginning of another, any
byte may occur, and the 400 bytes that a key may have take 450: with a session's 17 they stay under the 511 bytes at
which LMDB keys end. (Escaping 0x00 would double a key of zeros.) Times are int64, never negative, big-endian.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MAX_KEY_BYTES: Final = 400
TABLE: Final = b"k"
HOT: Final = b"h"
SESSION: Final = b"s"
WINDOW: Final = b"w"
INDEX: Final = b"i"
_GROUP, _MORE = 8, 9
_NO_BYTES = pa.scalar(b"", pa.binary())


def is_storable(keys: pa.Array) -> pa.BooleanArray:
    """Which keys (binary) an ordered store takes; null where there is none."""
    return pc.less_equal(pc.binary_length(keys), MAX_KEY_BYTES)


def ordered(keys: pa.Array) -> pa.Array:
    """Keys (binary, no nulls) in their ordered form (binary), row by row."""
    data, starts, lengths = _parts(keys)
    groups = np.maximum((lengths + _GROUP - 1) // _GROUP, 1)
    ends = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(groups * (_GROUP + 1), out=ends[1:])
    out = np.zeros(int(ends[-1]), np.uint8)
    out[_GROUP :: _GROUP + 1] = _MORE
    out[ends[1:] - 1] = lengths - (groups - 1) * _GROUP
    if len(data):
        place = np.arange(len(data)) - np.repeat(starts, lengths)
        out[np.repeat(ends[:-1], lengths) + place + place // _GROUP] = data
    return _binary(ends, out)


def split_ordered(of: pa.Array) -> tuple[pa.Array, pa.Array]:
    """What begins with a key in its ordered form, as keys and the bytes that follow it (both binary)."""
    data, starts, lengths = _parts(of)
    lasts = np.full(len(of), _GROUP)  # where the byte behind the last group of each lies
    longer = np.arange(len(of))
    while len(longer := longer[data[starts[longer] + lasts[longer]] == _MORE]):
        lasts[longer] += _GROUP + 1
    used = lasts + 1
    keys = lasts // (_GROUP + 1) * _GROUP + data[starts + lasts]
    return _cut(data, starts, keys, skip=_GROUP), _cut(data, starts + used, lengths - used)


def ordered_one(key: bytes) -> bytes:
    """The ordered form of one key."""
    groups = [key[at : at + _GROUP] for at in range(0, len(key), _GROUP)] or [b""]
    full = b"".join(group + bytes([_MORE]) for group in groups[:-1])
    return full + groups[-1].ljust(_GROUP, b"\x00") + bytes([len(groups[-1])])


def split_one(of: bytes) -> tuple[bytes, bytes]:
    """The inverse of `ordered_one`, with the bytes that follow it."""
    parts, at = [], 0
    while of[at + _GROUP] == _MORE:
        parts.append(of[at : at + _GROUP])
        at += _GROUP + 1
    parts.append(of[at : at + of[at + _GROUP]])
    return b"".join(parts), of[at + _GROUP + 1 :]


def session_key(ordered_key: bytes, end: int, start: int) -> bytes:
    """Where a session lies, given the ordered form of its key."""
    return SESSION + ordered_key + struct.pack(">qq", end, start)


def window_key(ordered_key: bytes, start: int) -> bytes:
    """Where a window lies, given the ordered form of its key."""
    return WINDOW + ordered_key + struct.pack(">q", start)


def index_bound(time: int) -> bytes:
    """The lowest index key with this time or a later one; `time` may be 2**63, past the last."""
    return INDEX + struct.pack(">Q", max(time, 0))


def session_keys(ordered_keys: pa.Array, ends: Int64s, starts: Int64s) -> pa.Array:
    """Where sessions lie (binary), row by row."""
    return _joined(SESSION, ordered_keys, big_endian(ends, starts))


def window_keys(ordered_keys: pa.Array, starts: Int64s) -> pa.Array:
    """Where windows lie (binary), row by row."""
    return _joined(WINDOW, ordered_keys, big_endian(starts))


def index_keys(times: Int64s, ordered_keys: pa.Array) -> pa.Array:
    """Index keys (binary), row by row."""
    return _joined(INDEX, big_endian(times), ordered_keys)


def plain_keys(prefix: bytes, ordered_keys: pa.Array) -> pa.Array:
    """Store keys (binary) without a time: "k" and "h"."""
    return _joined(prefix, ordered_keys)


def split_index_keys(found: list[bytes]) -> tuple[Int64s, list[bytes]]:
    """Times and ordered keys of index keys."""
    times = np.frombuffer(b"".join([key[1:9] for key in found]), ">i8").astype(np.int64)
    return times, [key[9:] for key in found]


def big_endian(*columns: Int64s) -> pa.Array:
    """Numbers (int64, never negative) as 8 bytes a column that sort as they do (binary)."""
    table = np.empty((len(columns[0]), len(columns)), ">i8")
    for i, column in enumerate(columns):
        table[:, i] = column
    return fixed(table, 8 * len(columns))


def fixed(values: npt.NDArray[np.generic], width: int) -> pa.Array:
    """The bytes of an array, `width` a value (binary)."""
    count = values.nbytes // width
    ends = np.arange(0, values.nbytes + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(values.tobytes())])


def _joined(prefix: bytes, *parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), *parts, _NO_BYTES)


def _parts(keys: pa.Array) -> tuple[Bytes, Int64s, Int64s]:
    """The bytes of all keys in a row, where each starts in them, and its length."""
    _, ends_buffer, body = keys.buffers()
    ends = np.frombuffer(ends_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
    return data[ends[0] : ends[-1]], ends[:-1] - ends[0], np.diff(ends)


def _cut(data: Bytes, starts: Int64s, lengths: Int64s, skip: int | None = None) -> pa.Array:
    """Pieces of `data` (binary), over one byte after every `skip`."""
    ends = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    place = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    over = place // skip if skip else 0
    return _binary(ends, data[np.repeat(starts, lengths) + place + over])


def _binary(ends: Int64s, data: Bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
