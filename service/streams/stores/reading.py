"""The read side of stores: what is in one, by key, by range of keys, or all of it, page by page.

It knows how the entries of each kind of store are found and what they mean to somebody who looks (KIP-94's
find_sessions and fetch, KIP-67's range and all). It refuses to know where a store lies: a reading says which ranges
of store keys it wants to see and gets what is in them, so the same reading runs over LMDB, over Redis, at once or
awaited.

    ReadOnlySessionStore    find_sessions(key, earliest end, latest start), fetch(key), fetch(from, to): Query.between
    ReadOnlyWindowStore     fetch(key, from, to), fetch(k1, k2, from, to), fetchAll: times are window starts, inclusive
    ReadOnlyKeyValueStore   get(key), range(from, to), all
    backward…, reverse…     Query.reverse

Entries of several partitions come in one order: by key, then as in the store, then by partition. A place is where an
entry lies in that order; what is written meanwhile moves no place, so a page that begins behind one skips nothing
and repeats nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from service.streams.clock import END_OF_TIME
from service.streams.layouts import reserved
from service.streams.records import StateReader

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]

_WITHIN: Final = attrgetter("within")
MAX_SCANNED: Final = 5_000  # entries that one page looks at; what it has then it gives, with where to go on


class Span(NamedTuple):
    """Store keys in [start, end)."""

    start: bytes
    end: bytes


class Ask(NamedTuple):
    """What a reading wants to see of one partition, at one moment: the first `limit` entries of each span."""

    partition: int
    spans: tuple[Span, ...]
    limit: int
    reverse: bool


class Findings(NamedTuple):
    """What was there: the entries of each span, as of a changelog position and the operator's stream time then.

    `floor`: entries whose own time is below it are absent. `closed_to`: where windows are closed up to, when that is
    not stream time less the operator's delay. None: there is no such time (`layouts.reserved`).
    """

    position: int
    stream_time: int
    found: Sequence[Sequence[tuple[bytes, bytes]]]
    floor: int | None = None
    closed_to: int | None = None


Reading = Generator[list[Ask], Sequence[Findings], T]


class Place(NamedTuple):
    """Where an entry lies among those of all partitions."""

    within: bytes
    partition: int


class Entry(NamedTuple):
    """One entry. `value`: JSON text; `window`: (start, end); `lives_until`: the last stream time that sees it;
    `closes_at`: the stream time that makes it final, or where ends are inclusive the last that does not, None where
    none does. `within`: its place in its partition.
    """

    within: bytes
    key: bytes | None
    window: tuple[int, int] | None
    value: str | None
    timestamp: int
    closes_at: int | None
    lives_until: int


class Found(NamedTuple):
    """An entry as a page shows it."""

    entry: Entry
    partition: int
    is_final: bool


class Page(NamedTuple):
    """Entries in order, where the next page begins (None: there is none), and as of what: partition → Findings."""

    items: list[Found]
    next: Place | None
    findings: dict[int, Findings]


class Query(NamedTuple):
    """Which entries: keys from `first` to `last`, both included (None: no bound), and times, both included.

    Times of a session: its end from `from_time`, its start up to `to_time`; of a window: its start.
    """

    first: bytes | None = None
    last: bytes | None = None
    from_time: int = 0
    to_time: int = END_OF_TIME
    reverse: bool = False
    is_open: bool = False  # only what may still change

    @classmethod
    def of_key(
        cls,
        key: bytes,
        from_time: int = 0,
        to_time: int = END_OF_TIME,
        *,
        reverse: bool = False,
        is_open: bool = False,
    ) -> Query:
        """All entries of one key."""
        return cls(key, key, from_time, to_time, reverse, is_open)

    @property
    def is_of_key(self) -> bool:
        return self.first is not None and self.first == self.last

    @property
    def has_times(self) -> bool:
        """Whether its times leave anything out."""
        return self.from_time > 0 or self.to_time < END_OF_TIME


class Moments(NamedTuple):
    """Of entries, all in ms: the times from which it is counted until each is over (of a window its end), and what each
    lives by, where it does not live for ever.
    """

    times: Int64s
    own: Int64s


class Rule(NamedTuple):
    """When what is in a store is over: at the stream time `delay_ms` after an entry's time (`Moments`), and what it is.

    `is_emitted`: it comes out then. `length_ms`: how long its windows are, where all are as long. `index_lag_ms`: the
    store has an index of all entries that are not over, by that much less than their time; None: it has none.
    """

    what: Literal["window", "session", "buffered", "identity"]
    delay_ms: int
    is_emitted: bool = False
    length_ms: int | None = None
    index_lag_ms: int | None = None


class Family(Protocol):
    """Entries of a store that lie together and in the order of their places: one prefix of its keys."""

    def span(self, query: Query) -> Span | None:
        """Where the wanted ones lie, at most; None when there can be none."""

    def beyond(self, within: bytes, *, reverse: bool) -> bytes:
        """The bound of a span that leaves out what lies up to a place (and may leave some of it in)."""

    def reach(self, key: bytes, *, reverse: bool) -> bytes:
        """The place up to which everything is seen with a store key, and all before it."""

    def read(self, entries: Sequence[tuple[bytes, bytes]]) -> list[Entry]:
        """What store entries hold; both in the order of their places."""

    def moments(self, entries: Sequence[tuple[bytes, bytes]]) -> Moments:
        """When store entries are over, and nothing else of what they hold; of a store with a rule."""

    def ahead(self, key: bytes, time: int) -> bytes:
        """A store key behind this one, before which nothing lies that has this time (`Moments`) or a later one."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a store looks like: its families, how its windows close and are bounded by a query's times, and when what is
    in it is over (None: nothing ever is).
    """

    families: tuple[Family, ...]
    is_end_inclusive: bool = False  # a session or sliding window may still change at the very time it closes at
    is_session: bool = False
    rule: Rule | None = None

    def is_wanted(self, entry: Entry, query: Query, at: Findings) -> bool:
        """Whether the entry is there as of that moment, and what the query asks for."""
        if entry.lives_until < at.stream_time or (at.floor is not None and self._own_time(entry) < at.floor):
            return False
        return not (query.is_open and self.is_final(entry, at)) and self._is_within(entry, query)

    def _own_time(self, entry: Entry) -> int:
        """What it lives by, where it does not live for ever."""
        return entry.timestamp if entry.window is None else entry.window[self.is_session]

    def _is_within(self, entry: Entry, query: Query) -> bool:
        if entry.key is None:
            return query.is_of_key or (query.first is None and query.last is None)
        is_below = query.first is not None and entry.key < query.first
        if is_below or (query.last is not None and entry.key > query.last):
            return False
        if entry.window is None or not query.has_times:
            return True
        start, end = entry.window
        return (end if self.is_session else start) >= query.from_time and start <= query.to_time

    def is_final(self, entry: Entry, at: Findings) -> bool:
        """Whether nothing changes the entry any more."""
        if entry.closes_at is None:
            return False
        if at.closed_to is not None and entry.window is not None:
            return entry.window[1] + self.is_end_inclusive <= at.closed_to
        return at.stream_time > entry.closes_at if self.is_end_inclusive else at.stream_time >= entry.closes_at

    def found(self, entry: Entry, partition: int, at: Findings) -> Found:
        """The entry as of that moment. Where the version before closed further than stream time less the delay, or not
        as far, `closes_at` is past or to come accordingly.
        """
        is_final = self.is_final(entry, at)
        if at.closed_to is not None and entry.closes_at is not None:
            first = at.stream_time + 1 - self.is_end_inclusive  # to come
            closes_at = min(entry.closes_at, first - 1) if is_final else max(entry.closes_at, first)
            entry = entry._replace(closes_at=closes_at)
        return Found(entry, partition, is_final)

    def same_until(self, entry: Entry, at: Findings) -> int:
        """The last stream time (ms), from that moment on, at which an entry that is there still is, and is as final."""
        if at.closed_to is not None:
            return at.stream_time
        if entry.closes_at is None or self.is_final(entry, at):
            return entry.lives_until
        return min(entry.lives_until, entry.closes_at - (not self.is_end_inclusive))


def read_page(
    form: Form, query: Query, partitions: Sequence[int], limit: int, after: Place | None = None
) -> Reading[Page]:
    """The first `limit` entries of a query beyond `after` that stream time has not expired."""
    if len(partitions) == 1 and after is None and query.is_of_key:
        few = Few(form, query, partitions[0], limit)
        (findings,) = yield [few.ask]
        page = few.page(findings)
        if page is not None:
            return page
    return (yield from _read_merged(form, query, partitions, limit, after))


class Few:
    """All entries of a query by key in one partition, seen at once: what to `ask`, and the `page` of what was found."""

    __slots__ = ("_families", "_form", "_limit", "_query", "ask")

    def __init__(self, form: Form, query: Query, partition: int, limit: int) -> None:
        self._form, self._query, self._limit = form, query, limit
        spans = [(family, span) for family in form.families if (span := family.span(query)) is not None]
        self._families = [family for family, _ in spans]
        self.ask = Ask(partition, tuple([span for _, span in spans]), limit + 1, query.reverse)

    def page(self, findings: Findings) -> Page | None:
        """The page; None where there are too many for one."""
        form, query, limit, partition = self._form, self._query, self._limit, self.ask.partition
        found: list[Entry] = []
        for family, entries in zip(self._families, findings.found, strict=True):
            if len(entries) > limit:
                return None
            if entries:
                found += family.read(entries[::-1] if query.reverse else entries)
        if len(found) > limit:
            return None
        found.sort(key=_WITHIN, reverse=query.reverse)
        items = [
            form.found(_named(entry, query), partition, findings)
            for entry in found
            if form.is_wanted(entry, query, findings)
        ]
        return Page(items, None, {partition: findings})

    def same_until(self, page: Page) -> int:
        """The last stream time (ms), from the page's on, at which the same store entries, floor and `closed_to` give
        the same page.
        """
        at = page.findings[self.ask.partition]
        return min([self._form.same_until(found.entry, at) for found in page.items], default=END_OF_TIME)


def _read_merged(form: Form, query: Query, partitions: Sequence[int], limit: int, after: Place | None) -> Reading[Page]:
    """Entries of all partitions, in one order."""
    runs = [
        _Run(partition, family, span)
        for partition in partitions
        for family in form.families
        if (span := _resumed(family, family.span(query), partition, query, after)) is not None
    ]
    merge = _Merge(form, query, limit, after, runs)
    chunk = limit + 1 if len(partitions) == 1 else max(16, 2 * limit // len(partitions))
    asks = merge.asks(chunk, partitions)
    while asks:
        merge.take(asks, (yield asks))
        asks = [] if merge.collect() else merge.asks(chunk)
    return merge.page()


def read(reading: Reading[T], snapshots: Mapping[int, Snapshot]) -> T:
    """Run a reading over snapshots of partitions that are at hand."""
    try:
        asks = next(reading)
        while True:
            asks = reading.send([look_up(snapshots[ask.partition], ask) for ask in asks])
    except StopIteration as end:
        result: T = end.value
        return result


class Snapshot(StateReader, Protocol):
    """One consistent view of a partition of a store."""

    @property
    def position(self) -> int: ...


def look_up(snapshot: Snapshot, ask: Ask) -> Findings:
    """Answer an ask from a snapshot."""
    found = [snapshot.scan(start, end, ask.limit, reverse=ask.reverse) for start, end in ask.spans]
    return Findings(
        snapshot.position,
        reserved.stream_time(snapshot),
        found,
        reserved.time_at(reserved.FLOOR_KEY, snapshot),
        reserved.time_at(reserved.CLOSED_KEY, snapshot),
    )


# ---------------------------------------------------------------- many runs, one order


@dataclass(slots=True)
class _Run:
    """One family of one partition on the way: the span that is left, and what was found and not given yet."""

    partition: int
    family: Family
    span: Span
    found: deque[Entry] = field(default_factory=deque)
    is_done: bool = False
    seen_up_to: Place | None = None

    @property
    def is_hungry(self) -> bool:
        return not self.found and not self.is_done

    @property
    def next_place(self) -> Place:
        return Place(self.found[0].within, self.partition)

    def feed(self, entries: Sequence[tuple[bytes, bytes]], limit: int, *, reverse: bool) -> Sequence[Entry]:
        """What came of the span, in order; it goes on behind that."""
        self.is_done = len(entries) < limit
        if not entries:
            return ()
        last = entries[-1][0]
        self.span = Span(self.span.start, last) if reverse else Span(last + b"\0", self.span.end)
        self.seen_up_to = Place(self.family.reach(last, reverse=reverse), self.partition)
        if not reverse:
            return self.family.read(entries)
        return self.family.read(entries[::-1])[::-1]


class _Merge:
    """Runs on their way into one page."""

    def __init__(self, form: Form, query: Query, limit: int, after: Place | None, runs: list[_Run]) -> None:
        self._form, self._query, self._limit, self._after, self._runs = form, query, limit, after, runs
        self._scanned = 0
        self._items: list[Found] = []
        self._next: Place | None = None
        self._findings: dict[int, Findings] = {}

    def page(self) -> Page:
        """What was given; one more than wanted says that there are more."""
        items, following = self._items, self._next
        if len(items) > self._limit:
            items = items[: self._limit]
            following = Place(items[-1].entry.within, items[-1].partition)
        return Page(items, following, self._findings)

    def asks(self, chunk: int, partitions: Sequence[int] = ()) -> list[Ask]:
        """What has to be seen before more can be given, nothing when all is; `partitions` are asked in any case."""
        wanted: dict[int, list[Span]] = {partition: [] for partition in partitions}
        for run in self._runs:
            if run.is_hungry:
                wanted.setdefault(run.partition, []).append(run.span)
        return [Ask(partition, tuple(spans), chunk, self._query.reverse) for partition, spans in wanted.items()]

    def take(self, asks: list[Ask], answers: Sequence[Findings]) -> None:
        """Keep what was found and is wanted."""
        findings = dict(zip((ask.partition for ask in asks), answers, strict=True))
        lists = {partition: iter(answer.found) for partition, answer in findings.items()}
        self._findings.update(findings)
        for run in [run for run in self._runs if run.is_hungry]:
            entries = next(lists[run.partition])
            self._scanned += len(entries)
            at = findings[run.partition]
            for entry in run.feed(entries, asks[0].limit, reverse=self._query.reverse):
                if self._is_wanted(entry, run.partition, at):
                    run.found.append(entry)

    def collect(self) -> bool:
        """Give what is next in order, as far as that is known. True when the page is complete."""
        while len(self._items) <= self._limit:
            if any(run.is_hungry for run in self._runs):
                return self._scanned >= MAX_SCANNED and self._stop_short()
            run = self._first()
            if run is None:
                return True
            self._give(run)
        return True

    def _is_wanted(self, entry: Entry, partition: int, at: Findings) -> bool:
        is_new = self._after is None or self._comes_before(self._after, Place(entry.within, partition))
        return is_new and self._form.is_wanted(entry, self._query, at)

    def _comes_before(self, one: Place, other: Place) -> bool:
        return one > other if self._query.reverse else one < other

    def _stop_short(self) -> bool:
        """End the page where too much was looked at: at the first place behind which something was not seen."""
        unseen = [run.seen_up_to for run in self._runs if run.is_hungry]
        reached = [place for place in unseen if place is not None]
        if len(reached) < len(unseen):
            return False
        bound = max(reached) if self._query.reverse else min(reached)
        while len(self._items) <= self._limit and (run := self._first()) is not None:
            if self._comes_before(bound, run.next_place):
                break
            self._give(run)
        self._next = bound
        return True

    def _first(self) -> _Run | None:
        """The run whose next entry comes first."""
        ready = [run for run in self._runs if run.found]
        if len(ready) < 2:
            return ready[0] if ready else None
        choose = max if self._query.reverse else min
        return choose(ready, key=attrgetter("next_place"))

    def _give(self, run: _Run) -> None:
        entry = _named(run.found.popleft(), self._query)
        self._items.append(self._form.found(entry, run.partition, self._findings[run.partition]))


def _named(entry: Entry, query: Query) -> Entry:
    """A hash says nothing, but it was asked for by its key."""
    return entry._replace(key=query.first) if entry.key is None and query.is_of_key else entry


def _resumed(family: Family, span: Span | None, partition: int, query: Query, after: Place | None) -> Span | None:
    """What is left of a span beyond a place; entries exactly there are told apart later, one by one."""
    if span is None or after is None:
        return span
    bound = family.beyond(after.within, reverse=query.reverse)
    span = Span(span.start, min(span.end, bound)) if query.reverse else Span(max(span.start, bound), span.end)
    return span if span.start < span.end else None
