"""Families of entries that stores are made of: where they lie, and what they mean to somebody who looks.

It knows the layouts, and how long each kind of entry lives; an operator declares which families its store has, and what
its values show. It refuses to know what is asked for (`reading`), and how entries come about.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams.clock import END_OF_TIME, saturated
from service.streams.layouts import buffers, identities, store_keys
from service.streams.stores.reading import Entry, Moments, Query, Span

Entries = Sequence[tuple[bytes, bytes]]
Texts = Sequence[str | None]
Int64s = npt.NDArray[np.int64]

_PAST_ALL: Final = b"\xff" * 17  # beyond whatever follows a key in its ordered form
_MAX_BOUND: Final = 480  # bytes: store keys are shorter, and LMDB does not look for much longer ones
_SPAN: Final = struct.Struct(">qq")


class PackedSessions(NamedTuple):
    """Sessions of keys: how many each has, and all of them, key by key."""

    counts: list[int]
    starts: list[int]
    ends: list[int]
    stamps: list[int]
    texts: Texts


class Values(Protocol):
    """What the values of a store show."""

    def shown(self, values: Sequence[bytes], ends: list[int]) -> tuple[list[int], Texts]:
        """Timestamps (ms) and JSON texts; `ends` of the windows, where there are any."""

    def sessions(self, packed: Sequence[bytes]) -> PackedSessions:
        """Of packed sessions."""

    def spans(self, packed: Sequence[bytes]) -> tuple[Int64s, Int64s]:
        """Starts and ends of packed sessions, without what they hold."""


# ---------------------------------------------------------------- families whose places are what follows a prefix


class _Family:
    """A prefix, a key in its ordered form, and what else there is of an entry's place."""

    prefix: ClassVar[bytes]
    is_one_a_key: ClassVar[bool] = False  # nothing follows the key

    def span(self, query: Query) -> Span | None:
        start = self.prefix if query.first is None else self.prefix + _bound(query.first)
        if self.is_one_a_key and query.is_of_key:
            return Span(start, start + b"\0")
        end = _next(self.prefix) if query.last is None else self.prefix + _bound(query.last) + _PAST_ALL
        return Span(start, end)

    def beyond(self, within: bytes, *, reverse: bool) -> bytes:
        bound = self.prefix + within
        return bound + b"\0" if reverse else bound

    def reach(self, key: bytes, *, reverse: bool) -> bytes:
        return key[1:]

    def ahead(self, key: bytes, time: int) -> bytes:
        return key + b"\0"


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """How long windows are that have a length; from the end of one to its close; how long its entry is kept."""

    length_ms: int
    delay_ms: int
    kept_ms: int

    def session(self, within: bytes, key: bytes, start: int, end: int, timestamp: int, value: str | None) -> Entry:
        """A session lives by its end."""
        closes_at, lives_until = end + self.delay_ms, end + self.kept_ms
        if closes_at > END_OF_TIME or lives_until > END_OF_TIME:
            closes_at, lives_until = saturated(closes_at), saturated(lives_until)
        return Entry(within, key, (start, end), value, timestamp, closes_at, lives_until)

    def window(self, within: bytes, key: bytes, start: int, timestamp: int, value: str | None) -> Entry:
        """A window lives by its start."""
        end, lives_until = saturated(start, self.length_ms), saturated(start, self.kept_ms)
        return Entry(within, key, (start, end), value, timestamp, saturated(end, self.delay_ms), lives_until)


class Windows(_Family):
    """ "w" key start"""

    prefix = store_keys.WINDOW

    def __init__(self, times: WindowTimes, values: Values) -> None:
        self._times, self._values = times, values

    def span(self, query: Query) -> Span | None:
        if not query.is_of_key:
            return super().span(query)
        ordered = _bound(query.first or b"")
        start = store_keys.window_key(ordered, min(query.from_time, END_OF_TIME))
        end = store_keys.window_key(ordered, query.to_time) + b"\0"
        return Span(start, end) if start < end else None

    def read(self, entries: Entries) -> list[Entry]:
        places = [key[1:] for key, _ in entries]
        split = [store_keys.split_one(place) for place in places]
        stamps, texts = self._values.shown([value for _, value in entries], [])
        made = self._times.window
        return [
            made(place, key, int.from_bytes(start), stamp, text)
            for place, (key, start), stamp, text in zip(places, split, stamps, texts, strict=True)
        ]

    def moments(self, entries: Entries) -> Moments:
        starts = _last_numbers(entries, 1)[:, 0]
        return Moments(_later(starts, self._times.length_ms), starts)

    def ahead(self, key: bytes, time: int) -> bytes:
        first = key[:-8] + max(time - self._times.length_ms, 0).to_bytes(8)
        return max(first, key + b"\0")


class Sessions(_Family):
    """ "s" key end start"""

    prefix = store_keys.SESSION

    def __init__(self, times: WindowTimes, values: Values) -> None:
        self._times, self._values = times, values

    def span(self, query: Query) -> Span | None:
        if not query.is_of_key:
            return super().span(query)
        of_key = self.prefix + _bound(query.first or b"")
        return Span(of_key + _SPAN.pack(query.from_time, 0), of_key + _PAST_ALL)

    def read(self, entries: Entries) -> list[Entry]:
        places = [key[1:] for key, _ in entries]
        split = [store_keys.split_one(place) for place in places]
        spans = [_SPAN.unpack(times) for _, times in split]
        stamps, texts = self._values.shown([value for _, value in entries], [end for end, _ in spans])
        made = self._times.session
        return [
            made(place, key, start, end, stamp, text)
            for place, (key, _), (end, start), stamp, text in zip(places, split, spans, stamps, texts, strict=True)
        ]

    def moments(self, entries: Entries) -> Moments:
        ends = _last_numbers(entries, 2)[:, 0]
        return Moments(ends, ends)

    def ahead(self, key: bytes, time: int) -> bytes:
        return max(key[:-16] + max(time, 0).to_bytes(8), key + b"\0")


class PackedSessionFamily(_Family):
    """ "h" key: the newest sessions of the key, in one value; their places are those that each would have alone."""

    prefix = store_keys.HOT
    is_one_a_key = True

    def __init__(self, times: WindowTimes, values: Values) -> None:
        self._times, self._values = times, values

    def beyond(self, within: bytes, *, reverse: bool) -> bytes:
        bound = self.prefix + within[: -_SPAN.size]
        return bound + b"\0" if reverse else bound

    def reach(self, key: bytes, *, reverse: bool) -> bytes:
        return key[1:] + (b"\0" if reverse else b"\xff") * _SPAN.size

    def read(self, entries: Entries) -> list[Entry]:
        packed = self._values.sessions([value for _, value in entries])
        owners = [(name[1:], count) for (name, _), count in zip(entries, packed.counts, strict=True) if count]
        each = (owner for ordered, count in owners for owner in [(ordered, store_keys.split_one(ordered)[0])] * count)
        made, pack = self._times.session, _SPAN.pack
        return [
            made(ordered + pack(end, start), key, start, end, stamp, text)
            for (ordered, key), start, end, stamp, text in zip(each, *packed[1:], strict=True)
        ]

    def moments(self, entries: Entries) -> Moments:
        ends = self._values.spans([value for _, value in entries])[1]
        return Moments(ends, ends)


class Table(_Family):
    """ "k" key: the aggregate of a key"""

    prefix = store_keys.TABLE
    is_one_a_key = True

    def __init__(self, values: Values) -> None:
        self._values = values

    def read(self, entries: Entries) -> list[Entry]:
        places = [key[1:] for key, _ in entries]
        stamps, texts = self._values.shown([value for _, value in entries], [])
        return [
            Entry(place, store_keys.split_one(place)[0], None, text, stamp, None, END_OF_TIME)
            for place, stamp, text in zip(places, stamps, texts, strict=True)
        ]

    def moments(self, entries: Entries) -> Moments:
        never = np.full(len(entries), END_OF_TIME)
        return Moments(never, never)


class Buffer(_Family):
    """ "k" key, and the window if there is one: what a suppress holds back"""

    prefix = store_keys.TABLE

    def __init__(self, delay_ms: int | None, *, is_session: bool) -> None:
        self._delay_ms, self._is_session = delay_ms, is_session

    def read(self, entries: Entries) -> list[Entry]:
        places = [key[1:] for key, _ in entries]
        of, held = pa.array(places, pa.binary()), [value for _, value in entries]
        records = buffers.unpack_entries(of, held, is_session=self._is_session)
        rows = zip(places, *(records.column(i).to_pylist() for i in range(5)), strict=True)
        return [
            Entry(place, key, window, value, timestamp, self._closes_at(window), END_OF_TIME)
            for place, key, value, timestamp, start, end in rows
            for window in [None if start is None else (start, end)]
        ]

    def moments(self, entries: Entries) -> Moments:
        times, _ = buffers.times_and_sizes([value for _, value in entries])
        return Moments(times, times)

    def _closes_at(self, window: tuple[int, int] | None) -> int | None:
        return None if window is None or self._delay_ms is None else saturated(window[1], self._delay_ms)


@lru_cache(maxsize=64)  # a lookup needs it once a family, and once more
def _bound(key: bytes) -> bytes:
    """A key in its ordered form, cut where no store key can reach."""
    return store_keys.ordered_one(key)[:_MAX_BOUND]


def _next(prefix: bytes) -> bytes:
    return bytes([prefix[0] + 1])


def _last_numbers(entries: Entries, count: int) -> Int64s:
    """The last so many numbers in the keys of entries, a row each."""
    packed = b"".join([key[-8 * count :] for key, _ in entries])
    return np.frombuffer(packed, ">i8").astype(np.int64).reshape(-1, count)


def _later(times: Int64s, by_ms: int) -> Int64s:
    return np.minimum(times, END_OF_TIME - by_ms) + by_ms


# ---------------------------------------------------------------- identities of deduplicate


class Identities(_Family):
    """0x00 identity (a key, or an id): what was let through, and when"""

    prefix = identities.PLAIN

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms

    def span(self, query: Query) -> Span | None:
        if query.is_of_key and len(query.first or b"") > identities.MAX_PLAIN_IDENTITY_BYTES:
            return None
        start = self.prefix + (query.first or b"")[:_MAX_BOUND]
        end = _next(self.prefix) if query.last is None else self.prefix + query.last[:_MAX_BOUND] + b"\0"
        return Span(start, end)

    def read(self, entries: Entries) -> list[Entry]:
        stamps = identities.unpack_entries([value for _, value in entries])[0].tolist()
        return [self._entry(key[1:], stamp) for (key, _), stamp in zip(entries, stamps, strict=True)]

    def moments(self, entries: Entries) -> Moments:
        stamps = identities.unpack_entries([value for _, value in entries])[0]
        return Moments(stamps, stamps)

    def _entry(self, within: bytes, stamp: int) -> Entry:
        return Entry(within, within, None, None, stamp, None, saturated(stamp, self._kept_ms))


class Pairs(Identities):
    """0x00 (key, id): shown under the key, the id as its value. They lie by the length of the key first."""

    def span(self, query: Query) -> Span | None:
        if not query.is_of_key:
            return Span(self.prefix, _next(self.prefix))
        key = query.first or b""
        start = self.prefix + identities.pair_prefix(key)
        return (
            Span(start, (start + b"\xff" * _MAX_BOUND)[:_MAX_BOUND])
            if len(key) < identities.MAX_PLAIN_IDENTITY_BYTES
            else None
        )

    def _entry(self, within: bytes, stamp: int) -> Entry:
        key, of = identities.split_pair(within)
        value = json.dumps({"id": of.decode("utf-8", "replace")}, ensure_ascii=False, separators=(",", ":"))
        return Entry(within, key, None, value, stamp, None, saturated(stamp, self._kept_ms))


class Hashed(Identities):
    """0x01 hash: an identity too long to be a store key. It can be asked for where it is a key; it tells nothing."""

    prefix = identities.HASHED

    def __init__(self, kept_ms: int, *, is_key: bool) -> None:
        super().__init__(kept_ms)
        self._is_key = is_key

    def span(self, query: Query) -> Span | None:
        if query.first is None and query.last is None:
            return Span(self.prefix, _next(self.prefix))
        if not (query.is_of_key and self._is_key):
            return None
        start = identities.store_key(query.first or b"")
        return Span(start, start + b"\0") if start[:1] == self.prefix else None

    def _entry(self, within: bytes, stamp: int) -> Entry:
        return super()._entry(within, stamp)._replace(key=None)
