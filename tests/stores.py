"""Stores for tests, on LMDB and on Redis: operators run, their changelogs are replayed, then somebody looks.

Knows how a job is run by hand, batch by batch, over replicas of its own. `Kept` holds what can be looked at: one
replica a partition, of the kind that the test asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import redis

from service.storage.replica import Replica
from service.storage.view import View
from service.streams.partitioner import murmur2
from service.streams.records import StoreSpec
from service.streams.stores.reading import Found, Page, Place, Query, read, read_page
from service.streams.topology import graph
from service.streams.topology.chain import Chain
from service.streams.topology.graph import Node, Topology, form_of
from service.streams.topology.spec import JobSpec
from tests.task import batch_of

Record = dict[str, Any]
LINEAGE = "lineage"
ALL = 1_000_000


@dataclass
class Engine:
    """Where stores are kept: a folder, or a Redis server."""

    folder: Path | None
    client: redis.Redis | None
    opened: ExitStack = field(default_factory=ExitStack)

    def open(self, store: StoreSpec, store_id: str, partition: int) -> Replica | View:
        """A replica, as it is or begun anew."""
        if self.client is not None:
            return View.open(self.client, store, store_id, partition, LINEAGE)
        assert self.folder is not None
        replica = Replica.open(self.folder / store_id / str(partition), store, store_id, LINEAGE)
        self.opened.callback(replica.close)
        return replica


class Kept:
    """One store of a job: a replica per partition, written by replay alone."""

    def __init__(self, engine: Engine, node: Node, partitions: int = 1) -> None:
        assert node.store is not None
        self.engine, self.node, self.store, self.id = engine, node, node.store, uuid4().hex
        self.form = form_of(node)
        self.partitions = range(partitions)
        self.replicas = [engine.open(node.store, self.id, partition) for partition in self.partitions]

    def replay(self, changes: pa.RecordBatch, partition: int = 0) -> None:
        """What a slot does after a commit."""
        replica = self.replicas[partition]
        at = replica.position
        assert replica.apply(at, at + changes.num_rows, changes)

    def page(self, query: Query | None = None, limit: int = ALL, after: Place | None = None) -> Page:
        """One page."""
        reading = read_page(self.form, query or Query(), self.partitions, limit, after)
        with ExitStack() as views:
            snapshots: dict[int, Any] = {
                partition: views.enter_context(self.replicas[partition].reader()) for partition in self.partitions
            }
            return read(reading, snapshots)

    def pages(self, query: Query | None = None, limit: int = ALL) -> Iterator[Page]:
        """One page after another, each as of its own moment."""
        after: Place | None = None
        while True:
            page = self.page(query, limit, after)
            yield page
            after = page.next
            if after is None:
                return

    def all(self, query: Query | None = None, limit: int = ALL) -> list[Record]:
        """All entries of all pages."""
        return [shown(found) for page in self.pages(query, limit) for found in page.items]

    def of_key(self, key: str, **bounds: Any) -> list[Record]:
        """The entries of a key."""
        return self.all(Query.of_key(key.encode(), **bounds))

    def windows(self, query: Query | None = None, limit: int = ALL) -> list[tuple[str, int, int]]:
        """(key, start, end) of each entry."""
        return [(one["key"], one["window"]["start"], one["window"]["end"]) for one in self.all(query, limit)]


class Job:
    """A job that is run by hand, over partitions of its own; its stores are kept twice: to run, and to look at."""

    def __init__(self, engine: Engine, folder: Path, operators: list[Record], partitions: int = 1) -> None:
        spec = JobSpec.parse({"name": "x", "source": "in", "sink": "out", "operators": operators})
        self.topology: Topology = graph.compile(spec, {"in": partitions})
        self._chain = Chain(self.topology.sub_topologies[0], "fail")
        self._partitions = partitions
        nodes = [node for node in self.topology.sub_topologies[0].nodes if node.store is not None]
        run_on = Engine(folder / "running", None, engine.opened)
        self._running = {node.store.name: Kept(run_on, node, partitions) for node in nodes if node.store}
        self.stores = {node.store.name: Kept(engine, node, partitions) for node in nodes if node.store}
        self._offset = 0

    def feed(self, records: Sequence[Record]) -> None:
        """One batch a partition; a record without a partition goes by its key."""
        shares: dict[int, list[Record]] = {}
        for record in records:
            by_key = (murmur2(record["key"].encode()) & 0x7FFFFFFF) % self._partitions
            shares.setdefault(record.get("partition", by_key), []).append(record)
        for partition, share in sorted(shares.items()):
            with self._states(partition) as states:
                changes = self._chain.run(batch_of(share, self._offset), states).changes
            self._offset += len(share)
            for name, batch in changes.items():
                self._running[name].replay(batch, partition)
                self.stores[name].replay(batch, partition)

    @contextmanager
    def _states(self, partition: int) -> Iterator[dict[str, Any]]:
        with ExitStack() as views:
            yield {name: views.enter_context(kept.replicas[partition].reader()) for name, kept in self._running.items()}


def at(key: str, *timestamps: int, **more: Any) -> list[Record]:
    """Records of a key."""
    return [{"key": key, "value": {"v": 1}, "timestamp": timestamp, **more} for timestamp in timestamps]


def shown(found: Found) -> Record:
    """An entry as the API shows it."""
    entry = found.entry
    return {
        "key": None if entry.key is None else entry.key.decode(),
        "window": None if entry.window is None else {"start": entry.window[0], "end": entry.window[1]},
        "value": None if entry.value is None else json.loads(entry.value),
        "timestamp": entry.timestamp,
        "closes_at": entry.closes_at,
        "is_final": found.is_final,
    }
