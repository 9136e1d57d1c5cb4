"""Opaque texts that clients hand back: positions (how far a write reached) and cursors (where to read on).

Knows how they are written: base64url of JSON, carrying ids and the catalog's lineage, never names, so that one
of a stream that was deleted and made again, or of a catalog before its restore, is recognised. Refuses to know
what they are used for.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to read on in a partition."""

    stream: str
    lineage: str
    partition: int
    offset: int

    @property
    def place(self) -> dict[int, int]:
        """The offset, by its partition."""
        return {self.partition: self.offset}


class StreamCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to read on in each partition of a stream."""

    stream: str
    lineage: str
    offsets: list[int]

    @property
    def place(self) -> dict[int, int]:
        """An offset by partition."""
        return dict(enumerate(self.offsets))


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a write reached: the offset behind its last record, by partition."""

    stream: str
    lineage: str
    offsets: Mapping[str, int]

    @property
    def place(self) -> dict[int, int]:
        """An offset by partition, of those that it names by a number."""
        return {int(partition): offset for partition, offset in self.offsets.items() if partition.isdecimal()}


class StoreCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to read on in a store: behind a place, or (None) at the beginning of a key.

    `query`: the digest of what is being read; `number` counts the keys of a batch.
    """

    store: str
    lineage: str
    query: int
    within: bytes | None
    partition: int
    number: int = 0


class RowCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to read on in a list that is shown from its latest row down: before a row. `of`: which list of what."""

    of: str
    before: int


_cursor = msgspec.json.Decoder(Cursor)
_stream_cursor = msgspec.json.Decoder(StreamCursor)
_store_cursor = msgspec.json.Decoder(StoreCursor)
_row_cursor = msgspec.json.Decoder(RowCursor)
_position = msgspec.json.Decoder(Position)
_encode = msgspec.json.Encoder().encode


def opaque(thing: Cursor | StreamCursor | Position | StoreCursor | RowCursor) -> str:
    """As a client carries it."""
    return base64.urlsafe_b64encode(_encode(thing)).rstrip(b"=").decode()


def cursor_of(text: str) -> Cursor | StreamCursor | None:
    """The cursor of a partition or of a whole stream that a client brought back; None when it is none."""
    return _read(text, _cursor) or _read(text, _stream_cursor)


def store_cursor_of(text: str) -> StoreCursor | None:
    """The cursor of a store that a client brought back; None when it is none."""
    return _read(text, _store_cursor)


def row_cursor_of(text: str) -> RowCursor | None:
    """The cursor of rows that a client brought back; None when it is none."""
    return _read(text, _row_cursor)


def position_of(text: str) -> Position | None:
    """The position that a client brought back; None when it is none."""
    return _read(text, _position)


def _read(text: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    try:
        return decoder.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
