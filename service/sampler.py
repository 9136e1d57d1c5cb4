"""The sampler: notes the figures of all jobs and streams, once a period, whichever API process comes first.

It knows when a period has no sample yet, and that a store whose task has not committed is as big as it was. It refuses
to know what figures there are (`service.catalog.samples`, `service.marks`).

Nobody is elected: who finds that the present period has no sample takes one, and the first one that is committed stays.
A process that knows the last sample asks nobody until the next period begins, so with several of them each asks once a
period, and one of them does the work.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from starlette.concurrency import run_in_threadpool

from service.catalog import samples
from service.catalog.engine import Catalog
from service.catalog.samples import KeptSample, Looked, SizedPartition
from service.marks import marks_after
from service.metric_families import Size
from service.series import MINUTE_MS, UNKNOWN, is_first_of, period_of, sample_of

Sizes = Mapping[tuple[str, int], Size]
ReadSizes = Callable[[Iterable[tuple[str, int]]], Awaitable[Sizes]]

ROUNDS: Final = 10  # a period: how late a sample may be, in tenths of one


class Sampler:
    """Samples of one catalog, as one process takes them, `every_ms`."""

    def __init__(self, catalog: Catalog, read_sizes: ReadSizes, every_ms: int) -> None:
        self._catalog, self._read_sizes, self._every_ms = catalog, read_sizes, every_ms
        self._due_s = 0.0
        self._sizes: dict[tuple[str, int], tuple[int, Size]] = {}  # of store and partition: as of which commit

    async def run_once(self) -> bool:
        """A round: whether it took a sample."""
        if time.monotonic() < self._due_s:
            return False
        at_ms, last = await run_in_threadpool(self._catalog.read, samples.last)
        period_ms = period_of(at_ms, self._every_ms)
        if last is not None and last.period_ms > at_ms + MINUTE_MS:
            await run_in_threadpool(self._catalog.write, samples.forget_future)
            return False
        if last is not None and last.period_ms >= period_ms:
            self._wait(at_ms)
            return False
        return await self._take(last, period_ms)

    async def _take(self, last: KeptSample | None, period_ms: int) -> bool:
        looked = await run_in_threadpool(self._catalog.read, samples.look)
        if last is None or is_first_of(period_ms, last.period_ms, MINUTE_MS):
            await self._measure(looked.stores)
        figures = looked.figures | self._sizes_of(looked)
        figures |= marks_after(looked.at_ms, figures, None if last is None else last.sample)
        sample = sample_of(looked.at_ms, figures)
        is_kept = await run_in_threadpool(self._catalog.write, samples.keep, sample, self._every_ms)
        self._wait(looked.at_ms)
        return is_kept

    def _wait(self, at_ms: int) -> None:
        """Nothing is due before the next period, as the database's clock has it."""
        self._due_s = time.monotonic() + (self._every_ms - at_ms % self._every_ms) / 1000

    async def _measure(self, stores: Sequence[SizedPartition]) -> None:
        """Look at the stores that may have changed, first at those that it is longest ago of, for there may not be time
        for all; those that are gone are forgotten.
        """
        known = {(at.store_id, at.partition): at.version for at in stores}
        self._sizes = {place: found for place, found in self._sizes.items() if place in known}
        turns = {place: turn for turn, place in enumerate(self._sizes)}
        changed = [place for place, version in known.items() if self._sizes.get(place, (None,))[0] != version]
        changed.sort(key=lambda place: turns.get(place, -1))
        for place, size in (await self._read_sizes(changed)).items():
            self._sizes.pop(place, None)  # to the end
            self._sizes[place] = known[place], size

    def _sizes_of(self, looked: Looked) -> dict[str, dict[str, int]]:
        """Sizes of jobs' stores; of one with a partition that can not be read here it is not known."""
        entries: dict[str, int] = {}
        stored: dict[str, int] = {}
        for at in looked.stores:
            _, size = self._sizes.get((at.store_id, at.partition), (0, None))
            for total, value in ((entries, size and size.entries), (stored, size and size.bytes)):
                before = total.get(at.job_id, 0)
                total[at.job_id] = UNKNOWN if value is None or before == UNKNOWN else before + value
        return {"store_entries": entries, "store_bytes": stored}
