"""Sources of stores: replicas of nodes on this machine, or the view in Redis.

It knows how each is asked, and turns their errors into StoreNotReadable. It refuses to know what an entry means
(`streams.stores`) and which of the two serves (`service.app`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple, Protocol

import lmdb
import redis

from service.catalog.engine import Catalog
from service.catalog.stores import store_ids
from service.storage import view
from service.storage.in_place import ReplicaMissing, ReplicasInPlace
from service.storage.view import Names, ViewMissing, Views
from service.streams.errors import ReplicaDamaged, StoreNotReadable
from service.streams.stores.reading import Ask, Findings, look_up


class Answer(NamedTuple):
    """The result of an ask, and who served it: a node's id, or `redis`."""

    findings: Findings
    served_by: str


class ReplicaState(NamedTuple):
    """A replica's changelog position, stream time (ms), number of store keys, and bytes."""

    position: int
    stream_time: int
    entries: int
    bytes: int


class StoreSource(Protocol):
    """A place where stores can be read. `has_indexes`: with the indexes by time that operators read."""

    has_indexes: ClassVar[bool]

    async def state(self, store_id: str, lineage: str, partition: int) -> ReplicaState:
        """The state of a partition's replica. Raises StoreNotReadable."""

    async def close(self) -> None: ...

    async def answer(self, store_id: str, lineage: str, ask: Ask) -> Answer:
        """Answer an ask, all of it at one moment. Raises StoreNotReadable."""

    def answer_now(self, store_id: str, lineage: str, ask: Ask) -> Answer | asyncio.Future[Answer]:
        """As `answer`, at once where it takes microseconds; a future may have the source's own errors."""


class OnDisk:
    """Replicas of nodes on this machine."""

    has_indexes: ClassVar[bool] = True

    def __init__(self, replicas: ReplicasInPlace) -> None:
        self._replicas = replicas

    async def answer(self, store_id: str, lineage: str, ask: Ask) -> Answer:
        """Answer from the replica that is furthest."""
        return self.answer_now(store_id, lineage, ask)

    def answer_now(self, store_id: str, lineage: str, ask: Ask) -> Answer:
        """Answer from the replica that is furthest."""
        try:
            with self._replicas.reader(store_id, ask.partition, lineage) as found:
                return Answer(look_up(found, ask), found.node_id)
        except _NOT_READABLE as error:
            raise _not_readable(error, ask.partition) from error

    async def state(self, store_id: str, lineage: str, partition: int) -> ReplicaState:
        """The state of the replica that is furthest."""
        try:
            with self._replicas.glance(store_id, partition, lineage) as (found, size):
                findings = look_up(found, Ask(partition, (), 1, False))
                return ReplicaState(findings.position, findings.stream_time, *size)
        except _NOT_READABLE as error:
            raise _not_readable(error, partition) from error

    async def close(self) -> None:
        """Close the replicas."""
        self._replicas.close()


_names = lru_cache(maxsize=4096)(Names)


class InRedis:
    """The view."""

    has_indexes: ClassVar[bool] = False

    def __init__(self, views: Views) -> None:
        self._views = views

    async def answer(self, store_id: str, lineage: str, ask: Ask) -> Answer:
        """Answer from the view."""
        try:
            return await self.answer_now(store_id, lineage, ask)
        except (ViewMissing, redis.RedisError) as error:
            raise _view_not_readable(error, ask.partition) from error

    def answer_now(self, store_id: str, lineage: str, ask: Ask) -> asyncio.Future[Answer]:
        """Redis is another process."""
        return self._views.ask(_names(store_id, ask.partition, lineage), ask, _by_redis)

    async def state(self, store_id: str, lineage: str, partition: int) -> ReplicaState:
        """The state of the view."""
        names = _names(store_id, partition, lineage)
        try:
            findings = await self._views.look_up(names, Ask(partition, (), 1, False))
            return ReplicaState(findings.position, findings.stream_time, *await self._views.size(names))
        except (ViewMissing, redis.RedisError) as error:
            raise _view_not_readable(error, partition) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._views.close()


def _by_redis(findings: Findings) -> Answer:
    return Answer(findings, "redis")


def sweep_views(url: str, catalog: Catalog) -> int:
    """Delete the views of stores that were deleted; returns how many. Raises StoreNotReadable."""
    with _in_redis(), view.connect(url) as client:
        return view.sweep(client, catalog.lineage, lambda: catalog.read(store_ids))


def ping_views(url: str) -> None:
    """Raises StoreNotReadable when Redis does not answer."""
    with _in_redis(), view.connect(url) as client:
        client.ping()


class ReplicaAbsent(StoreNotReadable):
    """No replica was begun, or it was lost: only a job that runs makes one."""


_NOT_READABLE: Final = (ReplicaMissing, ReplicaDamaged, lmdb.Error)


def _not_readable(error: Exception, partition: int) -> StoreNotReadable:
    if isinstance(error, ReplicaMissing):
        return ReplicaAbsent(f"no node on this machine has a replica of partition {partition}")
    if isinstance(error, ReplicaDamaged):
        return StoreNotReadable(f"the replica of partition {partition} is damaged and about to be restored")
    return StoreNotReadable(f"the replica of partition {partition} can not be read: {error}")


def _view_not_readable(error: Exception, partition: int) -> StoreNotReadable:
    if isinstance(error, ViewMissing):
        return ReplicaAbsent(f"the view of partition {partition} is not there (yet)")
    return StoreNotReadable(f"Redis does not answer: {error}")


@contextmanager
def _in_redis() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise StoreNotReadable(f"Redis does not answer: {error}") from error
