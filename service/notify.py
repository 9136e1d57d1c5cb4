"""Who waits for what: long polls sleep here until a topic they named is woken.

Knows topics (`stream:<id>`, `job:<id>`, `jobs`, ...; `*` is all of them) and one counter. Refuses to know what a
topic means and where a wake-up comes from (a commit in this process, or Postgres' LISTEN for the others').

The counter is why no wake-up is missed: take `seen` first, read the database second, then wait for anything
later than `seen`.
"""

import asyncio
import threading
from collections.abc import Iterable
from typing import Final

EVERYTHING = "*"
MAX_TOPICS: Final = 20_000  # that are remembered: every stream and job ever made has some


class Hub:
    """Wake-ups by topic, from any thread, to waiters on one event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counter = 0
        self._last: dict[str, int] = {}
        self._forgotten = 0
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def seen(self) -> int:
        """The number of the latest wake-up; take it before reading what a topic is about."""
        return self._counter

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiters)

    def has_woken(self, topics: Iterable[str], seen: int) -> bool:
        """Whether one of these topics was woken after `seen`, or may have been: it is not remembered so far back."""
        last = self._last
        return self._counter > seen and any(
            (last.get(topic) or self._forgotten) > seen for topic in (EVERYTHING, *topics)
        )

    def wake(self, topics: Iterable[str]) -> None:
        """Tell everyone who waits for one of these topics; callable from any thread."""
        with self._lock:
            self._counter += 1
            ready: set[asyncio.Future[None]] = set()
            for topic in topics:
                self._last[topic] = self._counter
                for name in list(self._waiters) if topic == EVERYTHING else [topic]:
                    ready |= self._waiters.pop(name, set())
            if len(self._last) > MAX_TOPICS:
                self._forget()
            loop = self._loop
        if ready and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, ready)

    async def wait(self, topics: Iterable[str], seen: int, timeout_s: float) -> bool:
        """Sleep until a topic is woken after `seen`; False when `timeout_s` passed or the hub closed first."""
        names = list(topics)
        future = self._enter(names, seen)
        if future is None:
            return not self._closed
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            self._leave(names, future)
        return not self._closed

    def close(self) -> None:
        """Let every waiter go, and every later one pass: the process is about to stop."""
        self._closed = True
        self.wake([EVERYTHING])

    def _forget(self) -> None:
        """Forget the half that was woken longest ago. First say so: `has_woken` takes no lock, and looks the other way
        round.
        """
        oldest = sorted(self._last, key=self._last.__getitem__)[: len(self._last) // 2]
        self._forgotten = self._last[oldest[-1]]
        for topic in oldest:
            del self._last[topic]

    def _enter(self, topics: list[str], seen: int) -> "asyncio.Future[None] | None":
        with self._lock:
            if self._closed or self.has_woken(topics, seen):
                return None
            self._loop = asyncio.get_running_loop()
            future = self._loop.create_future()
            for topic in topics:
                self._waiters.setdefault(topic, set()).add(future)
            return future

    def _leave(self, topics: list[str], future: "asyncio.Future[None]") -> None:
        with self._lock:
            for topic in topics:
                waiting = self._waiters.get(topic)
                if waiting is not None:
                    waiting.discard(future)
                    if not waiting:
                        del self._waiters[topic]


def _resolve(futures: Iterable["asyncio.Future[None]"]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
