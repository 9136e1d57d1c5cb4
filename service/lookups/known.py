"""Stores as the catalog described them a moment ago: read again when something happened to one, and once a second.

It knows wake-ups; it refuses to know what is in a store. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cachetools import LRUCache, cached
from starlette.concurrency import run_in_threadpool

from service.catalog.engine import JOBS, Catalog, job_topic, progress_topic, stream_topic
from service.catalog.replicas import ACTIVE
from service.catalog.stores import StoreCopy, StoreNow, store_now
from service.notify import Hub
from service.streams.errors import UnknownStore
from service.streams.partitioner import partition_of_key
from service.streams.stores.reading import Findings, Form, Query
from service.streams.topology.graph import Topology, form_of

ENDED: Final = frozenset({"stopped", "failed"})  # states in which nothing will come by itself
KNOWN_FOR_S: Final = 1.0  # what the catalog says of a store is used so long, unless something woke
READ_AHEAD_S: Final = 0.5  # then it is read again behind the back of who asks, so that nobody waits for it
LEAST_PAUSE_S: Final = 0.02  # between two looks at how far a store is, however much is written
MAX_FORMS: Final = 1000  # kept ready: a topology takes milliseconds to read


class StoreLayout(NamedTuple):
    """A store, and what says where its entries are and what they mean: while it is equal, they are read alike."""

    store_id: str
    form: Form
    is_keyed: bool
    partitions: int


@dataclass(slots=True)
class Known:
    """A store as the catalog described it at some moment; `seen`: the wake-up after which that was.

    `fate`: topics of changes to the store itself; `progress`: those of changes to its positions.
    """

    now: StoreNow
    form: Form
    seen: int
    read_s: float
    fate: tuple[str, ...]
    progress: tuple[str, ...]
    layout: StoreLayout = field(init=False)
    partitions: range = field(init=False)
    _servers: Mapping[tuple[int, str], str] = field(init=False)  # (partition, node id) -> whose copy that is
    _input_lags: list[int] = field(init=False)

    def __post_init__(self) -> None:
        at = self.now.partitions
        self.layout = StoreLayout(self.now.id, self.form, self.now.is_keyed, len(at))
        self.partitions = range(len(at))
        self._servers = {(each.partition, copy.node_id): _server(copy) for each in at for copy in each.copies}
        self._input_lags = [each.input_lag for each in at]

    def partitions_of(self, query: Query) -> Sequence[int]:
        """The partitions that hold entries of a query: one where a key says so."""
        if query.first is None or not query.is_of_key or not self.now.is_keyed:
            return self.partitions
        return (self.partition_of(query.first),)

    def partition_of(self, key: bytes) -> int:
        """The partition that records with this key come in, where their key says so."""
        count = len(self.now.partitions)
        return 0 if count == 1 else partition_of_key(key, count)

    def server_of(self, partition: int, served_by: str) -> str:
        """Who served a partition, by the name of the instance; what is no node that the catalog knows as it is."""
        return self._servers.get((partition, served_by), served_by)

    def lag(self, findings: dict[int, Findings]) -> int:
        """Records that the partitions have not read, and changes that these answers did not hold."""
        return sum([self.lag_of(partition, each.position) for partition, each in findings.items()])

    def lag_of(self, partition: int, position: int) -> int:
        """As `lag`, of one partition at this position of its changelog."""
        return self._input_lags[partition] + max(0, self.now.partitions[partition].end - position)


class KnownStores:
    """Stores by name, as the catalog described them a moment ago."""

    def __init__(self, catalog: Catalog, hub: Hub) -> None:
        self._catalog, self._hub = catalog, hub
        self._known: dict[str, Known] = {}
        self._reading: dict[str, asyncio.Task[Known]] = {}

    async def get(self, name: str) -> Known:
        """A store, as of now or a moment ago. Raises UnknownStore."""
        return self.at_hand(name) or await self._read_shared(name)

    def at_hand(self, name: str) -> Known | None:
        """A store, if what is known of it is fresh."""
        known = self._known.get(name)
        if known is None:
            return None
        age_s = time.monotonic() - known.read_s
        if age_s > KNOWN_FOR_S or self._hub.has_woken(known.fate, known.seen):
            return None
        is_quiet = age_s < LEAST_PAUSE_S or not self._hub.has_woken(known.progress, known.seen)
        if is_quiet and age_s > READ_AHEAD_S:
            self._look_at_catalog(name)
        return known if is_quiet else None

    async def as_of_now(self, name: str) -> Known:
        """A store as the catalog has it now. Raises UnknownStore."""
        seen, read_s = self._hub.seen, time.monotonic()
        try:
            now, form = await run_in_threadpool(self._look_up, name)
        except UnknownStore:
            self._known.pop(name, None)
            raise
        streams = {now.changelog, *now.sources}
        progress = (progress_topic(now.job_id), *map(stream_topic, sorted(streams)))
        known = Known(now, form, seen, read_s, (JOBS, job_topic(now.job_id)), progress)
        self._known[name] = known
        return known

    async def _read_shared(self, name: str) -> Known:
        """One look at the catalog for all who ask at the same time."""
        return await asyncio.shield(self._look_at_catalog(name))

    def _look_at_catalog(self, name: str) -> asyncio.Task[Known]:
        task = self._reading.get(name)
        if task is None:
            task = self._reading[name] = asyncio.create_task(self.as_of_now(name))
            task.add_done_callback(lambda done: self._has_looked(name, done))
        return task

    def _has_looked(self, name: str, done: asyncio.Task[Known]) -> None:
        del self._reading[name]
        if not done.cancelled():
            done.exception()  # who waited has it; where nobody did, the next one asks for himself

    def _look_up(self, name: str) -> tuple[StoreNow, Form]:
        now = self._catalog.read(store_now, name)
        return now, _form(now)


def _server(copy: StoreCopy) -> str:
    if copy.instance is None:
        return copy.node_id  # nobody keeps it up to date
    return copy.instance if copy.role == ACTIVE else f"{copy.instance} ({copy.role})"


@cached(LRUCache(MAX_FORMS), key=lambda now: (now.id, now.spec_version), lock=threading.Lock())
def _form(now: StoreNow) -> Form:
    nodes = Topology.from_json(now.topology).sub_topologies[now.sub_topology].nodes
    return form_of(next(node for node in nodes if node.store is not None and node.store.name == now.name))
