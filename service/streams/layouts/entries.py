"""The values of aggregate stores ⇄ arrays: rows of fixed width that numpy reads by the thousand, texts behind them.

It knows bytes; it refuses to know what the columns of a row mean.

entry      layout, row, tail
sessions   layout, header, count × (start, end, row), count × tail               the newest sessions of a key
layout     one byte, which columns a row has: 1 in a store that never had others, 0 where there is no entry
row        the numeric columns, little-endian, packed, in order
tail       for each text column its length (uint32, 0xFFFFFFFF = none) and its bytes
header     count (uint32), and three times (int64): when to look at the key, the last end among its sessions that
           lie elsewhere and may be open, the last end of all
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams.layouts import store_keys

Column = npt.NDArray[Any]  # int64, float64 or bool; object (bytes or None) where it is text
Int64s = npt.NDArray[np.int64]

FIRST_LAYOUT: Final = 1
NO_TIME: Final = np.iinfo(np.int64).max  # when there is nothing to look at a key for
NO_END: Final = -1  # the last end where there is no session
HEADER = np.dtype([("layout", "u1"), ("count", "<u4"), ("timer", "<i8"), ("cold_end", "<i8"), ("last_end", "<i8")])
_NONE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SessionColumns:
    """The packed sessions of keys, key by key: `counts` and the times of the header per key, the rest per session."""

    counts: Int64s
    timers: Int64s
    cold_ends: Int64s
    starts: Int64s
    ends: Int64s
    columns: list[Column]


class EntryCodec:
    """Entries of one layout, whose columns have these types: "<i8", "<f8", "?" or "O" (text), numeric ones first."""

    def __init__(self, types: Sequence[str], layout: int = FIRST_LAYOUT) -> None:
        numeric = [kind for kind in types if kind != "O"]
        if list(types) != numeric + ["O"] * (len(types) - len(numeric)):
            raise ValueError(f"Numeric columns come first: {types}")
        self.types, self.layout, self._texts = list(types), layout, len(types) - len(numeric)
        fields = [(f"c{i}", kind) for i, kind in enumerate(numeric)]
        self._names = [name for name, _ in fields]
        self._entry = np.dtype([("layout", "u1"), *fields])
        self._row = np.dtype([("start", "<i8"), ("end", "<i8"), *fields])
        self.absent = bytes(self._entry.itemsize) + self._tail([None] * self._texts)

    def zeros(self, count: int) -> list[Column]:
        """Columns of nothing: 0, false, None."""
        return [np.full(count, None) if kind == "O" else np.zeros(count, kind) for kind in self.types]

    def pack(self, columns: Sequence[Column]) -> pa.Array:
        """Entries (binary)."""
        packed = np.empty(len(columns[0]), self._entry)
        packed["layout"] = self.layout
        self._put(packed, columns)
        rows = store_keys.fixed(packed, self._entry.itemsize)
        if not self._texts:
            return rows
        tails = self._tails(columns)
        return pa.array([row + tail for row, tail in zip(rows.to_pylist(), tails, strict=True)], pa.binary())

    def unpack(self, entries: list[bytes]) -> tuple[npt.NDArray[np.bool_], list[Column]]:
        """Which entries are there (not `absent`), and the columns, writable."""
        width = self._entry.itemsize
        heads = [entry[:width] for entry in entries] if self._texts else entries
        packed = np.frombuffer(b"".join(heads), self._entry)
        texts = self._read_tails((entry[width:], 1) for entry in entries)
        return packed["layout"] == self.layout, self._columns(packed, texts)

    def pack_sessions(self, sessions: SessionColumns) -> pa.Array:
        """The packed sessions of keys (binary), key by key; within a key in the given order."""
        counts = sessions.counts
        ends = np.concatenate([[0], np.cumsum(counts)])
        header = np.zeros(len(counts), HEADER)
        header["layout"], header["count"] = self.layout, counts
        header["timer"], header["cold_end"], header["last_end"] = sessions.timers, sessions.cold_ends, NO_END
        has_any = counts > 0
        header["last_end"][has_any] = sessions.ends[ends[1:][has_any] - 1]
        header["last_end"] = np.maximum(header["last_end"], sessions.cold_ends)
        rows = np.empty(len(sessions.starts), self._row)
        rows["start"], rows["end"] = sessions.starts, sessions.ends
        self._put(rows, sessions.columns)
        width, body = self._row.itemsize, rows.view(np.uint8)
        places = HEADER.itemsize * np.arange(len(counts) + 1) + width * ends
        out = np.empty(int(places[-1]), np.uint8)
        is_header = _spans(places[:-1], HEADER.itemsize, len(out))
        out[is_header], out[~is_header] = header.view(np.uint8), body
        packed = _binary(places, out)
        if not self._texts:
            return packed
        tails = [b"".join(part) for part in _grouped(self._tails(sessions.columns), counts)]
        return pa.array([head + tail for head, tail in zip(packed.to_pylist(), tails, strict=True)], pa.binary())

    def unpack_sessions(self, packed: list[bytes]) -> SessionColumns:
        """The inverse of `pack_sessions`, writable; an empty value is a key without any."""
        nothing = np.zeros(1, HEADER)
        nothing["timer"], nothing["cold_end"] = NO_TIME, NO_END
        default = nothing.tobytes()
        packed = [value or default for value in packed]
        if self._texts:
            return self._unpack_with_texts(packed)
        lengths = np.fromiter(map(len, packed), np.int64, len(packed))
        data = np.frombuffer(b"".join(packed), np.uint8)
        is_header = _spans(np.cumsum(lengths) - lengths, HEADER.itemsize, len(data))
        return self._sessions(data[is_header].view(HEADER), data[~is_header].view(self._row), [])

    def _unpack_with_texts(self, packed: list[bytes]) -> SessionColumns:
        headers = np.frombuffer(b"".join([value[: HEADER.itemsize] for value in packed]), HEADER)
        counts = headers["count"].tolist()
        ends = [HEADER.itemsize + count * self._row.itemsize for count in counts]
        rows = b"".join([value[HEADER.itemsize : end] for value, end in zip(packed, ends, strict=True)])
        tails = ((value[end:], count) for value, end, count in zip(packed, ends, counts, strict=True))
        return self._sessions(headers, np.frombuffer(rows, self._row), self._read_tails(tails))

    def _sessions(self, headers: Column, rows: Column, texts: list[Column]) -> SessionColumns:
        return SessionColumns(
            counts=headers["count"].astype(np.int64),
            timers=headers["timer"].astype(np.int64),
            cold_ends=headers["cold_end"].astype(np.int64),
            starts=rows["start"].astype(np.int64),
            ends=rows["end"].astype(np.int64),
            columns=self._columns(rows, texts),
        )

    def _put(self, packed: Column, columns: Sequence[Column]) -> None:
        for name, column in zip(self._names, columns, strict=False):
            packed[name] = column

    def _columns(self, packed: Column, texts: list[Column]) -> list[Column]:
        return [packed[name].copy() for name in self._names] + texts

    def _tails(self, columns: Sequence[Column]) -> list[bytes]:
        return [self._tail(texts) for texts in zip(*columns[len(self._names) :], strict=True)]

    @staticmethod
    def _tail(texts: Iterable[bytes | None]) -> bytes:
        return b"".join([struct.pack("<I", _NONE) if t is None else struct.pack("<I", len(t)) + t for t in texts])

    def _read_tails(self, tails: Iterable[tuple[bytes, int]]) -> list[Column]:
        """Text columns from tails that hold that many rows each."""
        if not self._texts:
            return []
        flat = [text for tail, count in tails for text in _texts_in(tail, count * self._texts)]
        columns = [np.full(len(flat) // self._texts, None) for _ in range(self._texts)]
        for i, column in enumerate(columns):
            column[:] = flat[i :: self._texts]
        return columns


def _texts_in(tail: bytes, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    for _ in range(count):
        length = struct.unpack_from("<I", tail, at)[0]
        at += 4
        found.append(None if length == _NONE else tail[at : at + length])
        at += 0 if length == _NONE else length
    return found


def _grouped(items: list[bytes], counts: Int64s) -> list[list[bytes]]:
    ends = np.cumsum(counts).tolist()
    return [items[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]


def _spans(starts: Int64s, width: int, length: int) -> npt.NDArray[np.bool_]:
    """Which of `length` places lie in [start, start + width) for one of the starts."""
    marked = np.zeros(length, np.bool_)
    marked[(starts[:, None] + np.arange(width)).ravel()] = True
    return marked


def _binary(ends: Int64s, data: npt.NDArray[np.uint8]) -> pa.Array:
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
