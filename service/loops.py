"""What the service does unasked, round after round: look for lost members, collect dead segments, note figures.

Knows intervals and that a round may fail. Refuses to know what is done in one. A round that meets a database or
storage that does not answer is counted and logged, and the next one tries again; anything else is a fault of
ours: the loop ends, and `/readyz` says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service import prometheus
from service.streams.errors import StreamError

EXPECTED = (SQLAlchemyError, OSError, StreamError)


class Endless(Protocol):
    """What is to go on as long as the service does."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None: ...


@dataclass(frozen=True)
class Loop:
    """A named piece of work and the seconds between two rounds of it; what takes long in it waits beside the loop."""

    name: str
    interval_s: float
    work: Callable[[], object]

    async def run(self) -> None:
        """Round after round, until cancelled."""
        while True:
            await self._round()
            await asyncio.sleep(self.interval_s)

    async def _round(self) -> None:
        try:
            done = await run_in_threadpool(self.work)
            if isinstance(done, Awaitable):
                await done
        except EXPECTED as error:
            prometheus.LOOP_FAILURES.labels(self.name).inc()
            structlog.get_logger().warning("round_failed", loop=self.name, error=str(error))


class Loops:
    """The loops of one process, from `start` to `stop`."""

    def __init__(self, loops: Sequence[Endless]) -> None:
        self._loops = loops
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin each loop on the running event loop."""
        self._tasks = {loop.name: asyncio.create_task(loop.run(), name=loop.name) for loop in self._loops}
        for task in self._tasks.values():
            task.add_done_callback(_report_end)

    async def stop(self) -> None:
        """End each loop; a round under way is waited for by its thread, not by us."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def ended(self) -> list[str]:
        """Loops that are not running, by name."""
        return [name for name, task in self._tasks.items() if task.done()]


def _report_end(task: "asyncio.Task[None]") -> None:
    """Say so where a loop ended by a fault."""
    if not task.cancelled() and (error := task.exception()) is not None:
        structlog.get_logger().critical("loop_ended", loop=task.get_name(), error=repr(error), exc_info=error)
