"""Answers as they change: each topic is asked for as often as it has to be, once, however many look on.

A topic is what can be asked for again and again, with the role of those who ask. While somebody looks on, it is asked
for when something was committed, at most once a second, and now and again where nothing was; who looks on gets its
answer at once, and again when it differs. What a viewer was not sent yet is the newest answer of each topic and nothing
before it, so one that is slow skips, and no other waits for it.

It knows topics, viewers, and what asking costs. It refuses to know HTTP, who may look on, and what an answer says.

All topics together take a `SHARE` of a processor at most: where they are many, or dear, each is asked for more seldom;
a job that changes its state is shown as soon as ever, within a second.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from service import prometheus
from service.catalog.engine import EVERYTHING, JOBS, job_topic, subscription_topic
from service.notify import Hub
from service.problems import ProblemError

LEAST_S: Final = 1.0  # between two looks at a topic
SOON_S: Final = 0.5  # between them where a state, an owner or a key changed: people wait for that
MOST_S: Final = 10.0  # between those at a topic of which there is news, however many there are
LOOK_AGAIN_S: Final = 3.0  # where there is no news: leases and clocks wake nobody
SHARE: Final = 0.04  # of a processor, for all topics
TICK_S: Final = 0.1
AT_ONCE: Final = 4  # topics that are asked for at the same time
HEARTBEAT_S: Final = 15.0
CHECK_S: Final = 2.0  # how long a key that was revoked, or a session that has ended, may go on
RETRY_MS: Final = 1_000  # how long a browser waits before it comes back
MAX_TOPICS: Final = 1_000  # of all viewers of a process

HEARTBEAT: Final = b"event: heartbeat\ndata: {}\n\n"
_URGENT: Final = (JOBS, EVERYTHING, "keys", job_topic(""), subscription_topic(""))  # what people change, or wait for
_BY_THE_CLOCK: Final = re.compile(rb'"\w+_rate":[^,}]*')  # averages since a job was made: they alone are no news


class Answered(NamedTuple):
    """What a topic is now: a status and JSON, which may be a problem."""

    status: int
    body: bytes
    is_problem: bool


class Topic(NamedTuple):
    """What is asked for, and as whom."""

    name: str
    role: str


Ask = Callable[[], Awaitable[Answered]]
IsAllowed = Callable[[], Awaitable[bool]]


class LiveAnswers:
    """All topics that somebody looks on at in this process. Belongs to the event loop, but for `hear`."""

    def __init__(self, hub: Hub, max_streams: int) -> None:
        self._hub, self._max_streams = hub, max_streams
        self._topics: dict[Topic, _Shown] = {}
        self._streams: Counter[str] = Counter()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._ticking: asyncio.Task[None] | None = None
        self._news = self._urgent = 0

    def hear(self, topics: Iterable[str]) -> None:
        """Something was committed; callable from any thread, thousands of times a second."""
        if self._topics:
            self._news += 1
            if any(topic.startswith(_URGENT) for topic in topics):
                self._urgent += 1

    def require_room(self, caller: str, topics: Collection[Topic]) -> None:
        """Raises ProblemError 429 where a caller looks on as often as it may, or all do at as much."""
        detail = ""
        if self._streams[caller] >= self._max_streams:
            detail = f"the key has {self._max_streams} streams of events, as many as it may; close one"
        elif len(self._topics.keys() | set(topics)) > MAX_TOPICS:
            detail = f"{MAX_TOPICS} topics are followed, as many as may be; follow fewer, or later"
        if detail:
            raise ProblemError(429, "too_many_event_streams", detail, headers={"Retry-After": "10"})

    async def follow(
        self, asked: Mapping[Topic, Ask], caller: str, is_allowed: IsAllowed, *, until_s: float
    ) -> AsyncIterator[bytes]:
        """Events of these topics, until the end of the service or of the right to look on; or until that moment
        (monotonic), but each topic's answer comes once.
        """
        viewer = _Viewer(unknown=len(asked))
        self._streams[caller] += 1
        try:
            with prometheus.EVENT_STREAMS.track_inprogress():
                yield f"retry: {RETRY_MS}\n\n".encode()
                for topic, ask in asked.items():
                    self._topics.setdefault(topic, _Shown(topic.name, ask)).join(viewer)
                self._start()
                async for frames in self._watched(viewer, is_allowed, until_s):
                    yield frames
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]
            for topic in asked:
                self._leave(topic, viewer)

    async def _watched(self, viewer: _Viewer, is_allowed: IsAllowed, until_s: float) -> AsyncIterator[bytes]:
        heard_s = checked_s = time.monotonic()
        while not self._hub.is_closed:
            left_s = until_s - time.monotonic()
            if left_s <= 0 and not viewer.unknown and not viewer.pending:
                return
            frame = await viewer.next(min(CHECK_S, max(left_s, TICK_S)))
            now_s = time.monotonic()
            if now_s - checked_s >= CHECK_S:
                checked_s = now_s
                if not await is_allowed():
                    yield _ended("unauthenticated", "the key or the session is not valid any more")
                    return
            if not frame and now_s - heard_s >= HEARTBEAT_S:
                frame = HEARTBEAT
            if frame:
                heard_s = now_s
                prometheus.EVENT_BYTES.inc(len(frame))
                yield frame

    def _leave(self, topic: Topic, viewer: _Viewer) -> None:
        shown = self._topics.get(topic)
        if shown is not None:
            shown.viewers.discard(viewer)
            if not shown.viewers:
                del self._topics[topic]

    def _start(self) -> None:
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick(), name="live-answers")

    async def _tick(self) -> None:
        """Look at each topic when it is due, while there are any."""
        try:
            while self._topics and not self._hub.is_closed:
                prometheus.EVENT_TOPICS.set(len(self._topics))
                every_s = interval_s(each.cost_s for each in self._topics.values())
                now_s = time.monotonic()
                for each in list(self._topics.values()):
                    if not each.is_busy and each.is_due(now_s, every_s, self._news, self._urgent):
                        each.look(self._room, self._news, self._urgent)
                await asyncio.sleep(TICK_S)
        finally:
            prometheus.EVENT_TOPICS.set(0)
            for each in self._topics.values():
                each.end()


def interval_s(costs_s: Iterable[float]) -> float:
    """How long after a look at a topic the next one is, where there is news: so that all take their share."""
    return min(MOST_S, max(LEAST_S, sum(costs_s) / SHARE))


@dataclass(eq=False, slots=True)
class _Viewer:
    """Who looks on, of how many topics it has no answer yet, and what it has not been sent: a topic's newest event."""

    unknown: int
    known: set[str] = field(default_factory=set)
    pending: dict[str, bytes] = field(default_factory=dict)
    is_woken: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, topic: str, frame: bytes) -> None:
        """What there is to be sent of a topic; what was there of it before is not sent any more."""
        self.pending[topic] = frame
        if topic not in self.known:
            self.known.add(topic)
            self.unknown -= 1
        self.is_woken.set()

    async def next(self, timeout_s: float) -> bytes:
        """What is to be sent next; nothing where nothing comes in that time."""
        if not self.pending:
            self.is_woken.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self.is_woken.wait()
            except TimeoutError:
                pass
        return self.pending.pop(next(iter(self.pending))) if self.pending else b""


class _Shown:
    """A topic that somebody looks on at: its last answer, when it was asked for, and what that cost."""

    def __init__(self, name: str, ask: Ask) -> None:
        self._name, self._ask = name, ask
        self.viewers: set[_Viewer] = set()
        self._frame = self._compared = b""
        self._looked_s = -1e9
        self._news = self._urgent = -1
        self._costs = [0.0, 0.0]
        self._looking: asyncio.Task[None] | None = None

    @property
    def cost_s(self) -> float:
        """What a look takes: the lesser of two, for the machine may stall in one."""
        return min(self._costs)

    @property
    def is_busy(self) -> bool:
        return self._looking is not None

    def join(self, viewer: _Viewer) -> None:
        """It gets the last answer at once, where there is one."""
        self.viewers.add(viewer)
        if self._frame:
            viewer.take(self._name, self._frame)

    def end(self) -> None:
        """Nothing comes any more."""
        for viewer in self.viewers:
            viewer.is_woken.set()

    def is_due(self, now_s: float, every_s: float, news: int, urgent: int) -> bool:
        """Whether it is to be asked for again: something of weight has changed, anything has, or it is long ago."""
        since_s = now_s - self._looked_s
        if self._urgent != urgent:
            return since_s >= SOON_S
        return since_s >= (every_s if self._news != news else max(every_s, LOOK_AGAIN_S))

    def look(self, room: asyncio.Semaphore, news: int, urgent: int) -> None:
        """Ask for it; what is committed from now on is news."""
        self._looked_s, self._news, self._urgent = time.monotonic(), news, urgent
        self._looking = asyncio.create_task(self._look(room))
        self._looking.add_done_callback(self._end_look)

    async def _look(self, room: asyncio.Semaphore) -> None:
        async with room:
            began_s, cpu_s = time.monotonic(), time.process_time()
            answered = await self._ask()
            cost_s = min(time.monotonic() - began_s, time.process_time() - cpu_s)
        self._costs = [self._costs[1], cost_s]
        prometheus.EVENT_LOOKS.inc()
        self._show(answered)

    def _end_look(self, done: asyncio.Task[None]) -> None:
        """It is over, and asked for again when it is due; a fault of ours is logged, as those of requests are."""
        self._looking = None
        if not done.cancelled() and (error := done.exception()) is not None:
            structlog.get_logger().error("event_topic_broke", topic=self._name, error=str(error), exc_info=error)

    def _show(self, answered: Answered) -> None:
        """Send an answer that differs from the last one to all who look on."""
        lasting = _BY_THE_CLOCK.sub(b"", answered.body) if b'_rate":' in answered.body else answered.body
        compared = b"%d %b" % (answered.status, lasting)
        if compared == self._compared:
            return
        self._compared = compared
        self._frame = b'data: {"topic":%b,"status":%d,"%b":%b}\n\n' % (
            json.dumps(self._name).encode(),
            answered.status,
            b"problem" if answered.is_problem else b"body",
            answered.body,
        )
        for viewer in self.viewers:
            viewer.take(self._name, self._frame)


def _ended(code: str, detail: str) -> bytes:
    return b"event: error\ndata: %b\n\n" % json.dumps({"code": code, "detail": detail}).encode()
