"""What consumers of subscriptions are given: a pull waits for records, reads them, and says where its batches end.

It knows how long a pull waits and for what. It refuses to know who gets what (`service.pulls`), where positions are
kept (`service.catalog.subscriptions`) and how records are shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from service import prometheus
from service.catalog import subscriptions
from service.catalog.engine import Catalog, partition_topic, subscription_topic
from service.catalog.subscriptions import Pulled, PullWish
from service.notify import Hub
from service.pulls import PulledRange
from service.reads.pages import read_ranges
from service.storage.segments import Storage


class Delivery(NamedTuple):
    """What a pull gives: `batches` of PAGE_SCHEMA, ordered within each partition; `positions`: by partition, what to
    acknowledge once they are done; `gaps`: offsets among them that retention took; `held`: the consumer's partitions.
    """

    batches: Sequence[pa.RecordBatch]
    positions: Mapping[int, int]
    gaps: Sequence[PulledRange]
    held: Sequence[int]
    lease_until_ms: int


class Deliveries:
    """Pulls of all subscriptions, of one process."""

    def __init__(self, catalog: Catalog, storage: Storage, hub: Hub) -> None:
        self._catalog, self._storage, self._hub = catalog, storage, hub

    async def pull(
        self, stream: str, name: str, wish: PullWish, until_s: float, gone: asyncio.Future[None] | None = None
    ) -> Delivery:
        """What is there for a consumer, or comes until that moment (monotonic). Its lease goes on meanwhile.

        `gone`: done where nobody waits for the answer any more; then the consumer leaves, and nothing is taken.

        Raises what `subscriptions.pull` does, UnknownPartition, SegmentUnreadable; ClientDisconnect: it is gone.
        """
        pulled: Pulled | None = None
        while not _is_gone(gone):
            seen = self._hub.seen
            pulled = await run_in_threadpool(self._catalog.write, subscriptions.pull, stream, name, wish)
            prometheus.SUBSCRIPTION_EXPIRED_LEASES.inc(pulled.expired)
            left_s = until_s - time.monotonic()
            if pulled.ranges or left_s <= 0 or self._hub.is_closed:
                delivery = await run_in_threadpool(self._deliver, pulled)
                if _is_gone(gone):
                    break
                prometheus.SUBSCRIPTION_PULLS.labels(_outcome(pulled)).inc()
                return delivery
            await self._sleep(_topics(pulled), seen, min(left_s, _pause_s(pulled, wish)), gone)
        if pulled is not None:
            await run_in_threadpool(self._catalog.write, subscriptions.withdraw, pulled)
        prometheus.SUBSCRIPTION_PULLS.labels("abandoned").inc()
        raise ClientDisconnect

    async def _sleep(
        self, topics: Sequence[str], seen: int, timeout_s: float, gone: asyncio.Future[None] | None
    ) -> None:
        """Until a topic is woken, the caller is gone, or so much time has passed."""
        woken = asyncio.ensure_future(self._hub.wait(topics, seen, timeout_s))
        try:
            await asyncio.wait({woken, gone or woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    def _deliver(self, pulled: Pulled) -> Delivery:
        if not pulled.ranges:
            return Delivery((), {}, (), pulled.held, pulled.lease_until_ms)
        ranges = {at.partition: (at.begin, at.end) for at in pulled.ranges}
        page = read_ranges(self._catalog, self._storage, pulled.stream_id, ranges)
        shorter = {at: reached for at, reached in page.following.items() if reached < ranges[at][1]}
        if shorter:
            self._catalog.write(subscriptions.shorten, pulled, shorter)
        positions = {at: page.following[at] for at, (begin, _) in ranges.items() if page.following[at] > begin}
        gaps = [
            PulledRange(at, ranges[at][0], min(page.starts[at], reached))
            for at, reached in positions.items()
            if page.starts[at] > ranges[at][0]
        ]
        return Delivery(page.batches, positions, gaps, pulled.held, pulled.lease_until_ms)


def _is_gone(gone: asyncio.Future[None] | None) -> bool:
    return gone is not None and gone.done()


def _topics(pulled: Pulled) -> list[str]:
    """What may give a consumer something: records where it holds partitions, a partition that becomes free."""
    held = [partition_topic(pulled.stream_id, partition) for partition in pulled.held]
    return [*held, subscription_topic(pulled.subscription_id)]


def _pause_s(pulled: Pulled, wish: PullWish) -> float:
    """When to look again though nothing is heard: before the consumer's lease ends, or as another's does."""
    pauses = [wish.lease_ms / 2] if pulled.look_again_ms is None else [wish.lease_ms / 2, pulled.look_again_ms + 1]
    return min(pauses) / 1000


def _outcome(pulled: Pulled) -> str:
    if not pulled.ranges:
        return "empty"
    return "repeated" if pulled.is_repeated else "given"
