"""Tails: readers that follow a stream as it grows, by Server-Sent Events.

A feed reads what is new in a stream and makes each record's event once; all tails of the stream get the same bytes.
Those with a condition have a feed for each condition, which asks for a page at a time what meets it. A tail that begins
further back reads on its own until it has reached the feed. What a tail has not sent yet is bounded: one that is too
slow is told where it stands and ended, and no other waits for it.

It knows feeds, tails and events. It refuses to know HTTP, who may read, where a tail begins, and how a condition is
evaluated.

Each event's id is the cursor behind its record, of the whole stream: who comes back with it misses nothing and gets
nothing twice, whatever is filtered.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
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
# What a condition leaves of batches. Raises FilterFailed.
Filter = Callable[[Sequence[pa.RecordBatch]], Awaitable[list[pa.RecordBatch]]]
# The filter of a stream (its id) and a condition, while it is needed. Raises TooManyFilters.
Filters = Callable[[str, str], AbstractContextManager[Filter]]


@dataclass(frozen=True, slots=True)
class TailedStream:
    """A stream, how its keys are shown, and the condition that records have to meet, if any."""

    id: str
    lineage: str
    key_encoding: KeyEncoding
    where: str | None = None

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

    def __init__(self, catalog: Catalog, storage: Storage, hub: Hub, filters: Filters) -> None:
        self._catalog, self._storage, self._hub, self._filters = catalog, storage, hub, filters
        self._feeds: dict[TailedStream, _Feed] = {}

    async def follow(
        self, stream: TailedStream, place: TailPlace, wanted: TailedRecords, is_allowed: IsAllowed, *, until_s: float
    ) -> AsyncIterator[bytes]:
        """Events of a stream from a place on, until that moment (monotonic), the end of the service, of the stream or
        of the right to read it.
        """
        tail = _Tail(stream, dict(place), wanted)
        heard_s = checked_s = time.monotonic()
        with prometheus.TAILS.track_inprogress():
            yield format_sse_event(comment="following", id=stream.cursor(place), retry=RETRY_MS)
            try:
                with self._filter_of(stream) as chosen:
                    async for frames in self._events(tail, chosen, until_s):
                        now_s = time.monotonic()
                        if now_s - checked_s > CHECK_S:
                            checked_s = now_s
                            if not await is_allowed():
                                yield tail.ended("unauthenticated", "the key is not valid any more")
                                return
                        if frames or now_s - heard_s >= HEARTBEAT_S:
                            heard_s = now_s
                            yield frames or format_sse_event(comment="heartbeat", id=stream.cursor(tail.place))
            except StreamError as error:
                yield tail.ended(error.code, str(error))
            finally:
                self._leave(tail)

    def _filter_of(self, stream: TailedStream) -> AbstractContextManager[Filter | None]:
        return nullcontext() if stream.where is None else self._filters(stream.id, stream.where)

    async def _events(self, tail: _Tail, chosen: Filter | None, until_s: float) -> AsyncIterator[bytes]:
        """Frames as they come; empty ones now and again where none do, while the place may move."""
        async for frames in self._catch_up(tail, chosen, until=None):
            yield frames
        feed = self._join(tail, chosen)
        async for frames in self._catch_up(tail, chosen, until=dict(feed.place)):
            yield frames
        async for frames in tail.frames(until_s):
            yield frames

    async def _catch_up(self, tail: _Tail, chosen: Filter | None, *, until: TailPlace | None) -> AsyncIterator[bytes]:
        """What lies between a tail and the end of its stream, or up to the place where its feed was joined."""
        while not self._hub.is_closed:
            if until is not None and all(tail.place[at] >= until[at] for at in until):
                return
            page, events = await self._read(tail.stream, chosen, tail.place)
            if until is not None:
                events = [each for each in events if each.offset < until[each.partition]]
            frames = tail.chosen(events)
            tail.place |= page.following if until is None else _earlier(page.following, until)
            yield frames
            if until is None and page.at_end:
                return

    async def _read(
        self, stream: TailedStream, chosen: Filter | None, place: TailPlace
    ) -> tuple[StreamPage, list[RecordEvent]]:
        """The next page of a stream, and an event for each of its records that is chosen, once the catalog and the
        storage answer.

        Raises what else `read_page` does, KeyNotText, FilterFailed; CatalogUnavailable, StorageUnavailable where the
        service ends.
        """
        while True:
            seen = self._hub.seen
            try:
                if chosen is None:
                    return await run_in_threadpool(self._page_and_events, stream, place)
                page = await run_in_threadpool(self._page, stream, place)
            except (CatalogUnavailable, StorageUnavailable, SQLAlchemyError, OSError) as error:
                structlog.get_logger().warning("tail_read_failed", stream=stream.id, error=str(error))
                await self._hub.wait([stream_topic(stream.id)], seen, RETRY_S)
                if self._hub.is_closed:
                    raise
            else:
                return page, await run_in_threadpool(_events_of, stream, place, await chosen(page.batches))

    def _page(self, stream: TailedStream, place: TailPlace) -> StreamPage:
        return read_page(self._catalog, self._storage, stream.id, place, PAGE_RECORDS)

    def _page_and_events(self, stream: TailedStream, place: TailPlace) -> tuple[StreamPage, list[RecordEvent]]:
        page = self._page(stream, place)
        return page, _events_of(stream, place, page.batches)

    def _join(self, tail: _Tail, chosen: Filter | None) -> _Feed:
        feed = self._feeds.get(tail.stream)
        if feed is None or feed.is_over:
            read = partial(self._read, tail.stream, chosen)
            feed = self._feeds[tail.stream] = _Feed(tail.stream, dict(tail.place), self._hub, read)
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
        read: Callable[[TailPlace], Awaitable[tuple[StreamPage, list[RecordEvent]]]],
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
            self._task.add_done_callback(self._end_of_fault)

    def _end_of_fault(self, done: asyncio.Task[None]) -> None:
        """Where that was a fault of ours its tails end as well: nothing more would come, and who comes back goes on."""
        if not done.cancelled() and (error := done.exception()) is not None:
            structlog.get_logger().error("feed_broke", stream=self._stream.id, error=str(error), exc_info=error)
            self.end(None)

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
                page, events = await self._read(self.place)
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
    _has_rung: bool = False
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
        if not frames:
            self._pass(place)
        elif self._pending_bytes + len(frames) > MAX_PENDING_BYTES and self._pending:
            self._overrun()
        else:
            self._pending.append((frames, place))
            self._pending_bytes += len(frames)
            self._is_woken.set()

    def _pass(self, place: TailPlace) -> None:
        """Nothing up to a place is for it: nobody wakes, and its place moves when what came before is sent."""
        frames = self._pending.pop()[0] if self._pending else b""
        self._pending.append((frames, place))

    def end(self, error: StreamError | None) -> None:
        """Nothing comes any more; what is there is sent."""
        self._is_over, self._error = True, error
        self._is_woken.set()

    async def frames(self, until_s: float) -> AsyncIterator[bytes]:
        """What it is given, as it comes; empty frames where nothing does.

        One timer goes on while records come: one for each wait was a seventh of what 200 tails took of the event loop.
        """
        loop = asyncio.get_running_loop()
        timer = loop.call_soon(self._ring)
        try:
            while True:
                while self._pending:
                    frames, place = self._pending.popleft()
                    self._pending_bytes -= len(frames)
                    self.place |= {at: max(offset, self.place[at]) for at, offset in place.items()}
                    yield frames
                if self._error is not None:
                    raise self._error
                left_s = until_s - time.monotonic()
                if self._is_over or left_s <= 0:
                    return
                if self._has_rung:
                    self._has_rung = False
                    timer = loop.call_later(min(CHECK_S, left_s), self._ring)
                    yield b""
                await self._is_woken.wait()
                self._is_woken.clear()
        finally:
            timer.cancel()

    def _ring(self) -> None:
        """It is time to look up."""
        self._has_rung = True
        self._is_woken.set()

    def ended(self, code: str, detail: str) -> bytes:
        """The last event of one that can not go on; it says where it stands."""
        cursor = self.stream.cursor(self.place)
        data = json.dumps({"code": code, "detail": detail, "next": cursor})
        return format_sse_event(event="error", data_str=data, id=cursor)

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


def _events_of(stream: TailedStream, place: TailPlace, batches: Iterable[pa.RecordBatch]) -> list[RecordEvent]:
    """Events of records (PAGE_SCHEMA) that lie behind a place, a partition a batch. Raises KeyNotText."""
    reached = dict(place)
    events: list[RecordEvent] = []
    for batch in batches:
        [partition] = batch.column("partition").slice(0, 1).to_pylist() or [None]
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
    return events
