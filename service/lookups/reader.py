"""Reading stores: a page of a query, the state of a replica, sizes.

It knows that a store which never changed is empty, even where nobody has begun a replica. It refuses to know how fresh
an answer must be (`freshness`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from cachetools import LRUCache

from service.catalog.stores import StoreNow
from service.lookups.known import ENDED, Known, StoreLayout
from service.lookups.sources import Answer, ReplicaAbsent, ReplicaState, StoreSource
from service.metric_families import Size
from service.streams.clock import NOT_STARTED
from service.streams.errors import StoreNotReadable
from service.streams.stores.pending import Pending, read_pending
from service.streams.stores.reading import Ask, Findings, Page, Place, Query, Reading, read_page

T = TypeVar("T")

SIZES_S: Final = 2.0  # for all stores together, where their sizes are only wanted beside other figures
COUNT_S: Final = 2.0  # for the open entries of one store
COUNTED_AT_ONCE: Final = 1_000  # then whoever else waits goes first
FIRST_TO_CLOSE: Final = 5  # ends of windows, and the like, that are told of a partition
LOOKS_A_TWENTIETH: Final = 20
MOST_REMEMBERED: Final = 10_000  # partitions of stores of which what is pending is kept for a moment


class Look(NamedTuple):
    """A page, the store as it was known then, and who served it: an instance and the role of its copy, or `redis`."""

    page: Page
    known: Known
    served_by: str


class _Remembered(NamedTuple):
    """What was found to be pending, of which layout, when, and how long that took."""

    layout: StoreLayout
    found: Pending | None
    at_s: float
    took_s: float

    def serves(self, layout: StoreLayout, now_s: float) -> bool:
        return self.layout == layout and now_s - self.at_s < LOOKS_A_TWENTIETH * self.took_s


class OpenEntries(NamedTuple):
    """The `number` of entries of a store that may still change; not `is_all`: at least so many."""

    number: int
    is_all: bool


class StoreReader:
    """Reads the stores of one catalog from one source."""

    def __init__(self, source: StoreSource, lineage: str) -> None:
        self._source, self._lineage = source, lineage
        self._pending: LRUCache[tuple[str, int], _Remembered] = LRUCache(MOST_REMEMBERED)

    async def close(self) -> None:
        """Close the source."""
        await self._source.close()

    async def page(self, known: Known, query: Query, limit: int, after: Place | None = None) -> Look:
        """One page of a query. Raises StoreNotReadable."""
        reading = read_page(known.form, query, known.partitions_of(query), limit, after)
        page, served_by = await self._drive(known, reading)
        return Look(page, known, served_by)

    def answer(self, known: Known, ask: Ask) -> Answer | asyncio.Future[Answer]:
        """What is found in one partition: soon, where the source is another process. Raises StoreNotReadable, which is
        left to be explained to whoever asks for a `page`.
        """
        return self._source.answer_now(known.now.id, self._lineage, ask)

    async def glance(self, known: Known, partition: int) -> Findings:
        """The position and stream time of a partition, without entries. Raises StoreNotReadable."""
        return (await self._answer(known, Ask(partition, (), 1, False))).findings

    async def state(self, now: StoreNow, partition: int) -> ReplicaState | None:
        """The state of a partition's replica; None where it can not be read."""
        try:
            return await self._source.state(now.id, self._lineage, partition)
        except StoreNotReadable:
            return None if now.partitions[partition].end > 0 else ReplicaState(0, NOT_STARTED, 0, 0)

    async def sizes(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Size]:
        """Sizes of partitions of stores (id, partition); those that can not be read within SIZES_S are left out."""
        found: dict[tuple[str, int], Size] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(SIZES_S):
                for store_id, partition in wanted:
                    await asyncio.sleep(0)  # a replica is read at once: lookups go first
                    with suppress(StoreNotReadable):
                        state = await self._source.state(store_id, self._lineage, partition)
                        found[store_id, partition] = Size(state.entries, state.bytes)
        return found

    async def count_open(self, known: Known) -> OpenEntries:
        """The entries that may still change, as many as are found within COUNT_S. Raises StoreNotReadable."""
        found, after, until = 0, None, time.monotonic() + COUNT_S
        while True:
            look = await self.page(known, Query(is_open=True), COUNTED_AT_ONCE, after)
            found, after = found + len(look.page.items), look.page.next
            if after is None or time.monotonic() >= until:
                return OpenEntries(found, after is None)
            await asyncio.sleep(0)

    async def pending(self, known: Known, partition: int) -> Pending | None:
        """What of a partition is not over yet; None where nothing of such a store is ever over. Who asks often gets
        what was found a moment ago: looking takes a twentieth of the time at most. Raises StoreNotReadable.
        """
        key, started_s = (known.now.id, partition), time.monotonic()
        before = self._pending.get(key)
        if before is not None and before.serves(known.layout, started_s):
            return before.found
        reading = read_pending(known.form, partition, FIRST_TO_CLOSE, has_indexes=self._source.has_indexes)
        waited_s = 0.0
        try:
            asks = next(reading)
            while True:
                asks = reading.send([(await self._answer(known, ask)).findings for ask in asks])
                paused_s = time.monotonic()
                await asyncio.sleep(0)  # lookups go first
                waited_s += time.monotonic() - paused_s
        except StopIteration as end:
            found: Pending | None = end.value
        ended_s = time.monotonic()
        self._pending[key] = _Remembered(known.layout, found, ended_s, ended_s - started_s - waited_s)
        return found

    async def _drive(self, known: Known, reading: Reading[T]) -> tuple[T, str]:
        served_by = ""
        try:
            asks = next(reading)
            while True:
                if len(asks) == 1:
                    answers = [await self._answer(known, asks[0])]
                else:
                    answers = await asyncio.gather(*(self._answer(known, ask) for ask in asks))
                served_by = known.server_of(asks[0].partition, answers[0].served_by)
                asks = reading.send([answer.findings for answer in answers])
        except StopIteration as end:
            return end.value, served_by

    async def _answer(self, known: Known, ask: Ask) -> Answer:
        try:
            return await self._source.answer(known.now.id, self._lineage, ask)
        except StoreNotReadable as error:
            if known.now.partitions[ask.partition].end == 0:
                return Answer(Findings(0, NOT_STARTED, [[] for _ in ask.spans]), "catalog")
            if isinstance(error, ReplicaAbsent) and known.now.job_state in ENDED:
                raise StoreNotReadable(
                    f"{error.reason}; the job is {known.now.job_state}: it is filled again, from the changelog, "
                    "when the job runs (`:restart` it)"
                ) from error
            raise
