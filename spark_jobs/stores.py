"""The stores of a job as a slot may hold them: where each copy lies and how it is opened.

It knows folders, Redis and ids. It refuses to know how a copy follows its changelog (`follow`) and who needs one.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from service.protocol import JoinedSlot
from service.storage import environments, view
from service.storage.replica import Replica, replica_path
from service.storage.view import View
from service.streams.topology.graph import Topology
from spark_jobs.client import SlotPlace
from spark_jobs.follow import Changelog, FindChunks, Follower, ReadChunk, StorePartition

HAND_OVER_S: Final = 3.0  # behind a lease: by then a former owner that hangs was killed, and its locks went with it


class JobStores:
    """Makes followers of one job's stores."""

    def __init__(
        self, place: SlotPlace, joined: JoinedSlot, topology: Topology, *, read: ReadChunk, find: FindChunks
    ) -> None:
        self._place, self._joined, self._read, self._find = place, joined, read, find
        self._specs = {store.name: store for store in topology.stores()}
        self._redis = None if joined.redis_url is None else view.connect(joined.redis_url)

    @property
    def has_views(self) -> bool:
        """Whether there is a Redis to keep views in."""
        return self._redis is not None

    def replica(self, at: StorePartition, end: int) -> Follower[Replica]:
        """The replica of a partition of a store; it is not open yet.

        It is not begun anew where a former owner has it open and gives it up just now, or for as long as it may take
        until that is killed: a new life of a replica costs a full restore.
        """
        waits_until_s = time.monotonic() + self._joined.lease_ms / 1000 + HAND_OVER_S
        return Follower(self._changelog(at), partial(self._open_replica, at, waits_until_s), end)

    def view(self, at: StorePartition, end: int) -> Follower[View]:
        """The view of a partition of a store in Redis; it is not open yet."""
        return Follower(self._changelog(at), partial(self._open_view, at), end)

    def close(self) -> None:
        """Close the connection."""
        if self._redis is not None:
            self._redis.close()

    def _changelog(self, at: StorePartition) -> Changelog:
        return Changelog(self._joined.stores[at[0]].changelog, at[1], self._read, self._find)

    def _open_replica(self, at: StorePartition, waits_until_s: float, end: int) -> Replica | None:
        store, partition = at
        store_id = self._joined.stores[store].id
        path = replica_path(self._place.replica_dir, store_id, partition)
        if time.monotonic() < waits_until_s and environments.is_open_elsewhere(path):
            return None
        return Replica.open(path, self._specs[store], store_id, self._joined.lineage, end)

    def _open_view(self, at: StorePartition, end: int) -> View:
        store, partition = at
        if self._redis is None:
            raise RuntimeError("There is no Redis to keep a view in")
        store_id = self._joined.stores[store].id
        return View.open(self._redis, self._specs[store], store_id, partition, self._joined.lineage, end)
