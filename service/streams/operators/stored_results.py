"""What the values of an aggregate's store show: timestamps and JSON texts.

It knows two ways to the same texts: by columns for many values, value by value for the few that a lookup by key finds
(a tenth of the time for one). It refuses to know where values lie.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from service.streams.layouts.entries import HEADER
from service.streams.layouts.former_entries import InheritingCodec
from service.streams.operators.former_layouts import Layout
from service.streams.operators.function_columns import FunctionColumns
from service.streams.operators.functions import FunctionSpec
from service.streams.operators.missing import BITS
from service.streams.stores.families import Int64s, PackedSessions, Texts

FEW: Final = 16
_FORMATS: Final = {"<i8": "q", "<f8": "d", "?": "?"}
_LAYOUT: Final = "<B"


class StoredResults:
    """The results of aggregates. Sessions hold no timestamps: theirs is their end."""

    def __init__(
        self,
        operator: str,
        specs: Mapping[str, FunctionSpec],
        *,
        has_stamps: bool,
        layouts: Sequence[Layout] | None = None,
    ) -> None:
        self._columns = FunctionColumns(operator, specs, has_stamps=has_stamps, layouts=layouts)
        self._has_stamps = has_stamps
        self._few = None if "O" in self._columns.codec.types else _Few(self._columns, specs, has_stamps)

    def shown(self, values: Sequence[bytes], ends: list[int]) -> tuple[list[int], Texts]:
        if self._few is not None and len(values) <= FEW:
            return self._few.shown(values, ends)
        return self._by_columns(self._columns.codec.unpack(list(values))[1], ends)

    def sessions(self, packed: Sequence[bytes]) -> PackedSessions:
        if self._few is not None and len(packed) <= FEW:
            return self._few.sessions(packed)
        found = self._columns.codec.unpack_sessions(list(packed))
        ends = found.ends.tolist()
        return PackedSessions(
            found.counts.tolist(), found.starts.tolist(), ends, *self._by_columns(found.columns, ends)
        )

    def spans(self, packed: Sequence[bytes]) -> tuple[Int64s, Int64s]:
        found = self._columns.codec.unpack_sessions(list(packed))
        return found.starts, found.ends

    def _by_columns(self, columns: list[Any], ends: list[int]) -> tuple[list[int], Texts]:
        results = self._columns.results(self._columns.state(columns))
        stamps = results[0][0].tolist() if self._has_stamps else ends
        return stamps, self._columns.values(results).to_pylist()


class _Few:
    """The same for values whose columns are all numbers, one at a time."""

    def __init__(self, aggregates: FunctionColumns, specs: Mapping[str, FunctionSpec], has_stamps: bool) -> None:
        columns = "".join(_FORMATS[kind] for kind in aggregates.codec.types)
        self._entry = struct.Struct(_LAYOUT + columns)
        self._session = struct.Struct("<qq" + columns)
        self._has_stamps = has_stamps
        self._of_now = aggregates.codec if isinstance(aggregates.codec, InheritingCodec) else None
        self._writers = []
        at = int(has_stamps)
        for i, (name, function) in enumerate(zip(specs, aggregates.functions, strict=True)):
            prefix = ("," if i else "{") + json.dumps(name, ensure_ascii=False) + ":"
            self._writers.append((prefix, function.text, at, at + len(function.types)))
            at += len(function.types)
        self._words = at  # behind the functions is what says which are missing, where anything may be
        self._may_miss = len(aggregates.codec.types) > at

    def shown(self, values: Sequence[bytes], ends: list[int]) -> tuple[list[int], Texts]:
        if self._of_now is not None:
            values = self._of_now.entries_of_now(list(values))
        rows = [self._entry.unpack(value)[1:] for value in values]
        return [row[0] for row in rows] if self._has_stamps else ends, [self._text(row) for row in rows]

    def sessions(self, packed: Sequence[bytes]) -> PackedSessions:
        found: list[tuple[Any, ...]] = []
        counts = []
        if self._of_now is not None:
            packed = self._of_now.sessions_of_now(list(packed))
        for value in packed:
            rows = list(self._session.iter_unpack(value[HEADER.itemsize :]))
            counts.append(len(rows))
            found += rows
        ends = [row[1] for row in found]
        return PackedSessions(counts, [row[0] for row in found], ends, ends, [self._text(row[2:]) for row in found])

    def _text(self, row: Sequence[Any]) -> str:
        if self._may_miss and any(row[self._words :]):
            return self._text_without(row, row[self._words :])
        return "".join([prefix + write(row[at:end]) for prefix, write, at, end in self._writers]) + "}"

    def _text_without(self, row: Sequence[Any], words: Sequence[int]) -> str:
        """Where functions are missing."""
        fields = [
            prefix + ("null" if words[i // BITS] >> (i % BITS) & 1 else write(row[at:end]))
            for i, (prefix, write, at, end) in enumerate(self._writers)
        ]
        return "".join(fields) + "}"
