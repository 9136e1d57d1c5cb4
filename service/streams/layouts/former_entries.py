"""Entries that former layouts of a store wrote, read as if the present one had.

It knows layouts by the id that their entries begin with; it refuses to know what became of a column: that is said by
who knows what columns mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.streams.layouts.entries import Column, EntryCodec, SessionColumns


@dataclass(frozen=True, slots=True)
class Former:
    """How a former layout is read, and its columns (of so many rows) as those of the present layout."""

    codec: EntryCodec
    converted: Callable[[Sequence[Column], int], list[Column]]


class InheritingCodec(EntryCodec):
    """Writes entries of one layout, and reads those of former ones, by their ids, too."""

    def __init__(self, types: Sequence[str], layout: int, former: Mapping[int, Former]) -> None:
        super().__init__(types, layout)
        self._former = {bytes([each]): of for each, of in former.items()}
        self._readable = {b"", self.absent[:1], bytes([layout])}

    def unpack(self, entries: list[bytes]) -> tuple[Column, list[Column]]:
        return super().unpack(self.entries_of_now(entries))

    def unpack_sessions(self, packed: list[bytes]) -> SessionColumns:
        return super().unpack_sessions(self.sessions_of_now(packed))

    def entries_of_now(self, entries: list[bytes]) -> list[bytes]:
        """Entries, those of former layouts as they are in the present one. Raises KeyError for a layout of none."""

        def rewritten(former: Former, own: list[bytes]) -> list[bytes]:
            _, columns = former.codec.unpack(own)
            found: list[bytes] = self.pack(former.converted(columns, len(own))).to_pylist()
            return found

        return self._of_now(entries, rewritten)

    def sessions_of_now(self, packed: list[bytes]) -> list[bytes]:
        """The same of packed sessions."""

        def rewritten(former: Former, own: list[bytes]) -> list[bytes]:
            sessions = former.codec.unpack_sessions(own)
            columns = former.converted(sessions.columns, len(sessions.starts))
            found: list[bytes] = self.pack_sessions(replace(sessions, columns=columns)).to_pylist()
            return found

        return self._of_now(packed, rewritten)

    def _of_now(self, values: list[bytes], rewritten: Callable[[Former, list[bytes]], list[bytes]]) -> list[bytes]:
        others = {value[:1] for value in values} - self._readable
        if not others:
            return values
        found = list(values)
        for layout in sorted(others):
            places = [i for i, value in enumerate(values) if value[:1] == layout]
            of_now = rewritten(self._former[layout], [values[i] for i in places])
            for i, value in zip(places, of_now, strict=True):
                found[i] = value
        return found
