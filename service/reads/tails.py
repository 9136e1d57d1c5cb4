"""Tails: readers that follow a stream as it grows, by Server-Sent Events.

A feed reads what is new in a stream and makes each record's event once; all tails of the stream get the same bytes. A
tail that begins further back reads on its own until it has reached the feed. What a tail has not sent yet is bounded:
one that is too slow is told where it stands and ended, and no other waits for it.

It knows feeds, tails and events. It refuses to know HTTP, who may read, and where a tail begins.

Each event's id is the cursor behind its record, of the whole stream: who comes back with it misses nothing and gets
nothing twice, whatever is filtered.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog
from fastapi.sse import format_sse_event
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service import prometheus
from service.catalog.engine import Catalog, stream_topic
from service.notify import Hub
from service.payloads.answers import KeyEncoding, record_texts
from service.positions import StreamCursor, opaque
from service.reads.pages import StreamPage, read_page
from service.storage.segments import Storage
from service.streams.errors import CatalogUnavailable, StorageUnavailable, StreamError

PAGE_RECORDS: Final = 2_000
MAX_PENDING_BYTES: Final = 8 << 20  # of events that a tail has not sent yet
HEARTBEAT_S: Final = 15.0
CHECK_S: Final = 5.0  # how long a key that was revoked may go on
LOOK_AGAIN_S: Final = 30.0  # a feed looks at its stream so often, woken or not
RETRY_S: Final = 1.0  # after the catalog or the storage did not answer
RETRY_MS: Final = 1_000  # how long a client waits before it comes back

IsAllowed = Callable[[], Awaitable[bool]]
TailPlace = dict[int, int]  # an offset a partition, of all of them


@dataclass(frozen=True, slots=True)
class TailedStream:
    """A stream, and how its keys are shown."""

    id: str
    lineage: str
    key_encoding: KeyEncoding

    def cursor(self, place: Mapping[int, int]) -> str:
        return opaque(StreamCursor(self.id, self.lineage, [place[at] for at in sorted(place)]))


class RecordEvent(NamedTuple):
    """A record as it is sent."""

    partition: int
    offset: int
    key: bytes | None
    frame: bytes


@dataclass(frozen=True, slots=True)
class TailedRecords:
    """Which records a tail is for; None: any."""

    partition: int | None = None
    key: bytes | None = None

    def holds(self, event: RecordEvent) -> bool:
        """Whether a record is among them."""
        is_there = self.partition in (None, event.partition)
        return is_there and (self.key is None or self.key == event.key)

    @property
    def is_everything(self) -> bool:
        return self.partition is None and self.key is None


class Tails:
    """All tails of a process. Belongs to the event loop."""

    def __init__(self, catalog: Catalog, storage: Storage, hub: Hub) -> None:
        self._catalog, self._storage, self._hub = catalog, storage, hub
        self._feeds: dict[TailedStream, _Feed] = {}

    async def follow(
        self, stream: TailedStream, place: TailPlace, wanted: TailedRecords, is_allowed: IsAllowed, *, until_s: float
    ) -> AsyncIterator[bytes]:
        """Events of a stream from a place on, until that moment (monotonic), the end of the service, of the stream or
        of the right to read it.
        """
        tail = _Tail(stream, dict(place), wanted)
        checked_s = time.monotonic()
        with prometheus.TAILS.track_inprogress():
            yield format_sse_event(comment="following", id=stream.cursor(place), retry=RETRY_MS)
            try:
                async for frames in self._events(tail, until_s):
                    if time.monotonic() - checked_s > CHECK_S:
                        checked_s = time.monotonic()
                        if not await is_allowed():
                            yield _ended("unauthenticated", "the key is not valid any more")
                            return
                    if frames:
                        yield frames
            except StreamError as error:
                yield _ended(error.code, str(error))
            finally:
                self._leave(tail)

    async def _events(self, tail: _Tail, until_s: float) -> AsyncIterator[bytes]:
        async for frames in self._catch_up(tail, until=None):
            yield frames
        feed = self._join(tail)
        async for frames in self._catch_up(tail, until=dict(feed.place)):
            yield frames
        async for frames in tail.frames(until_s):
            yield frames

    async def _catch_up(self, tail: _Tail, *, until: TailPlace | None) -> AsyncIterator[bytes]:
        """What lies between a tail and the end of its stream, or up to the place where its feed was joined."""
        while not self._hub.is_closed:
            if until is not None and all(tail.place[at] >= until[at] for at in until):
                return
            page, events = await self.read(tail.stream, tail.place)
            if until is not None:
                events = [each for each in events if each.offset < until[each.partition]]
            frames = tail.chosen(events)
            tail.place |= page.following if until is None else _earlier(page.following, until)
            yield frames
            if until is None and page.at_end:
                return

    async def read(self, stream: TailedStream, place: TailPlace) -> tuple[StreamPage, list[RecordEvent]]:
        """The next page of a stream, and an event for each of its records, once the catalog and the storage answer.

        Raises what else `read_page` does, KeyNotText; CatalogUnavailable, StorageUnavailable where the service ends.
        """
        while True:
            seen = self._hub.seen
            try:
                return await run_in_threadpool(self._page, stream, place)
            except (CatalogUnavailable, StorageUnavailable, SQLAlchemyError, OSError) as error:
                structlog.get_logger().warning("tail_read_failed", stream=stream.id, error=str(error))
                await self._hub.wait([stream_topic(stream.id)], seen, RETRY_S)
                if self._hub.is_closed:
                    raise

    def _page(self, stream: TailedStream, place: TailPlace) -> tuple[StreamPage, list[RecordEvent]]:
        page = read_page(self._catalog, self._storage, stream.id, place, PAGE_RECORDS)
        reached = dict(place)
        events: list[RecordEvent] = []
        for batch in page.batches:
            [partition] = batch.column("partition").slice(0, 1).to_pylist()
            columns = zip(
                batch.column("offset").to_pylist(),
                batch.column("key").to_pylist(),
                record_texts(batch, stream.key_encoding),
                strict=True,
            )
            for offset, key, text in columns:
                reached[partition] = offset + 1
                frame = f"data: {text}\nid: {stream.cursor(reached)}\n\n".encode()  # JSON has no line ends of its own
                events.append(RecordEvent(partition, offset, key, frame))
        return page, events

    def _join(self, tail: _Tail) -> _Feed:
        feed = self._feeds.get(tail.stream)
        if feed is None or feed.is_over:
            feed = self._feeds[tail.stream] = _Feed(tail.stream, dict(tail.place), self._hub, self.read)
        feed.tails.add(tail)
        tail.join(feed.place)
        feed.start()
        return feed

    def _leave(self, tail: _Tail) -> None:
        feed = self._feeds.get(tail.stream)
        if feed is not None:
            feed.tails.discard(tail)
            if not feed.tails:
                feed.end(None)
                del self._feeds[tail.stream]


class _Feed:
    """What is new in a stream, for all tails of it."""

    def __init__(
        self,
        stream: TailedStream,
        place: TailPlace,
        hub: Hub,
        read: Callable[[TailedStream, TailPlace], Awaitable[tuple[StreamPage, list[RecordEvent]]]],
    ) -> None:
        self._stream, self._hub, self._read = stream, hub, read
        self.place = place  # everything before it was given to the tails
        self.tails: set[_Tail] = set()
        self.is_over = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, once."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"feed {self._stream.id}")

    def end(self, error: StreamError | None) -> None:
        """End with all its tails; they are told the error, if any."""
        self.is_over = True
        for tail in self.tails:
            tail.end(error)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self) -> None:
        while not self._hub.is_closed:
            seen = self._hub.seen
            try:
                page, events = await self._read(self._stream, self.place)
            except StreamError as error:
                self.end(error)
                return
            self.place = self.place | page.following
            whole = b"".join(event.frame for event in events)
            for tail in list(self.tails):
                tail.take(events, whole, self.place)
            if page.at_end:
                await self._hub.wait([stream_topic(self._stream.id)], seen, LOOK_AGAIN_S)
        self.end(None)


@dataclass(eq=False, slots=True)
class _Tail:
    """One reader: what it is for, the place up to which it was given everything, and what it has not sent yet."""

    stream: TailedStream
    place: TailPlace
    wanted: TailedRecords
    _pending: deque[tuple[bytes, TailPlace]] = field(default_factory=deque)
    _pending_bytes: int = 0
    _ahead: TailPlace = field(default_factory=dict)  # partitions in which it has read further than its feed
    _is_woken: asyncio.Event = field(default_factory=asyncio.Event)
    _is_over: bool = False
    _error: StreamError | None = None

    def join(self, place: TailPlace) -> None:
        """From now on a feed that stands there gives it what is new."""
        self._ahead = {at: offset for at, offset in self.place.items() if offset > place[at]}

    def chosen(self, events: Iterable[RecordEvent]) -> bytes:
        """The events that it is for."""
        return b"".join(event.frame for event in events if self.wanted.holds(event))

    def take(self, events: Sequence[RecordEvent], whole: bytes, place: TailPlace) -> None:
        """What is new, up to a place. Where it is too slow for that it is told so, and ended."""
        if self._is_over:
            return
        if self._ahead:
            events = [each for each in events if each.offset >= self._ahead.get(each.partition, 0)]
            self._ahead = {at: offset for at, offset in self._ahead.items() if offset > place[at]}
            frames = self.chosen(events)
        else:
            frames = whole if self.wanted.is_everything else self.chosen(events)
        if self._pending_bytes + len(frames) > MAX_PENDING_BYTES and self._pending:
            self._overrun()
            return
        self._pending.append((frames, place))
        self._pending_bytes += len(frames)
        self._is_woken.set()

    def end(self, error: StreamError | None) -> None:
        """Nothing comes any more; what is there is sent."""
        self._is_over, self._error = True, error
        self._is_woken.set()

    async def frames(self, until_s: float) -> AsyncIterator[bytes]:
        """What it is given, as it comes; heartbeats, which carry the place, where nothing does."""
        heard_s = time.monotonic()
        while True:
            while self._pending:
                heard_s = time.monotonic()
                frames, place = self._pending.popleft()
                self._pending_bytes -= len(frames)
                self.place |= {at: max(offset, self.place[at]) for at, offset in place.items()}
                yield frames
            if self._error is not None:
                raise self._error
            left_s = until_s - time.monotonic()
            if self._is_over or left_s <= 0:
                return
            self._is_woken.clear()
            try:
                async with asyncio.timeout(min(CHECK_S, left_s)):
                    await self._is_woken.wait()
            except TimeoutError:
                is_silent = time.monotonic() - heard_s >= HEARTBEAT_S
                heard_s = time.monotonic() if is_silent else heard_s
                yield format_sse_event(comment="heartbeat", id=self.stream.cursor(self.place)) if is_silent else b""

    def _overrun(self) -> None:
        """It goes on from where it was given everything, if it comes back."""
        prometheus.TAIL_OVERRUNS.inc()
        place = self.place
        self._pending.clear()
        cursor = self.stream.cursor(place)
        frame = format_sse_event(event="overrun", data_str=f'{{"next":"{cursor}"}}', id=cursor)
        self._pending.append((frame, place))
        self._pending_bytes = len(frame)
        self.end(None)


def _earlier(one: TailPlace, other: TailPlace) -> TailPlace:
    return {at: min(offset, other[at]) for at, offset in one.items()}


def _ended(code: str, detail: str) -> bytes:
    """The last event of a tail that can not go on."""
    return format_sse_event(event="error", data_str=json.dumps({"code": code, "detail": detail}))
