"""What the service does unasked: what goes on, and what is said of what does not."""

from __future__ import annotations

import asyncio

from service.loops import Loop, Loops
from service.streams.errors import CatalogUnavailable


class Forever:
    """Work that is one piece, not rounds."""

    name = "forever"

    def __init__(self, goes_on: asyncio.Event) -> None:
        self._goes_on = goes_on

    async def run(self) -> None:
        await self._goes_on.wait()
        raise ZeroDivisionError


def test_a_loop_that_ends_by_a_fault_is_named_and_others_go_on() -> None:
    async def run() -> None:
        breaks, rounds, enough = asyncio.Event(), [], asyncio.Event()

        async def work() -> None:
            rounds.append(len(rounds))
            if len(rounds) == 1:
                raise CatalogUnavailable("it is away")  # which the next round may find otherwise
            if len(rounds) > 3:
                enough.set()

        loops = Loops([Loop("rounds", 0.001, work), Forever(breaks)])
        loops.start()
        await enough.wait()
        assert loops.ended == []
        breaks.set()
        enough.clear()
        rounds[1:] = []
        await enough.wait()
        assert loops.ended == ["forever"]
        await loops.stop()
        assert loops.ended == ["rounds", "forever"]

    asyncio.run(run())
