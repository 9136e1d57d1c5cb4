"""Looking into stores: who can answer, how fresh the answer is, and how long to wait for a fresher one.

It knows replicas that lie on this machine, or else the view in Redis (`sources`), and what the catalog says of a store
(`known`). It refuses to know HTTP, and what an entry means (`streams.stores`). Belongs to the event loop: a replica is
read in it, in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.catalog.engine import Catalog
from service.lookups.freshness import Freshness, FreshnessWait
from service.lookups.known import Known, KnownStores, StoreLayout
from service.lookups.reader import Look, StoreReader
from service.lookups.sources import Answer, InRedis, OnDisk, StoreSource, ping_views, sweep_views
from service.notify import Hub
from service.streams.stores.reading import Query

__all__ = [
    "Answer",
    "Freshness",
    "InRedis",
    "Known",
    "Look",
    "Lookups",
    "OnDisk",
    "StoreLayout",
    "ping_views",
    "sweep_views",
]


class Lookups:
    """The stores of one service: what is known of them (`stores`), and their entries (`reader`)."""

    def __init__(self, catalog: Catalog, hub: Hub, source: StoreSource) -> None:
        self._hub = hub
        self.stores = KnownStores(catalog, hub)
        self.reader = StoreReader(source, catalog.lineage)

    async def fresh(self, name: str, queries: Sequence[Query], wanted: Freshness) -> Known:
        """The store, as soon as the partitions that queries need are as fresh as is wanted.

        Raises StoreBehind when they are not in time or will not be, PositionNotOfStore, UnknownStore,
        StoreNotReadable.
        """
        return await FreshnessWait(self.stores, self.reader, self._hub, queries, wanted).store(name)
