"""Looking into stores: who can answer, how fresh the answer is, and how long to wait for a fresher one.

It knows replicas that lie on this machine, or else the view in Redis, and what the catalog says of a store, read again
as soon as something happened to it, and once a second. It refuses to know HTTP, and what an entry means
(`streams.stores`). Belongs to the event loop: a replica is read in it, in microseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

import lmdb
import redis
from starlette.concurrency import run_in_threadpool

from service.catalog.engine import JOBS, Catalog, job_topic, progress_topic, stream_topic
from service.catalog.stores import StoreNow, StorePartition, store_ids, store_now
from service.figures import Size
from service.notify import Hub
from service.positions import Position
from service.storage import view
from service.storage.in_place import ReplicaMissing, ReplicasInPlace
from service.storage.view import Names, ViewMissing, Views
from service.streams.clock import NOT_STARTED
from service.streams.errors import PositionNotOfStore, StoreBehind, StoreNotReadable, UnknownStore
from service.streams.partitioner import murmur2
from service.streams.stores.forms import form_of
from service.streams.stores.reading import Ask, Form, Page, Place, Query, Reading, Told, read_page, tell
from service.streams.topology.graph import Topology

T = TypeVar("T")

KNOWN_FOR_S: Final = 1.0  # what the catalog says of a store is used so long, unless something woke
READ_AHEAD_S: Final = 0.5  # then it is read again behind the back of who asks, so that nobody waits for it
LEAST_PAUSE_S: Final = 0.02  # between two looks at how far a store is, however much is written
LOOK_AGAIN_S: Final = 0.25  # for what wakes nobody
REPLAY_PAUSE_S: Final = 0.002  # a replica follows its commit within milliseconds
SIZES_S: Final = 2.0  # for all stores together, where their sizes are only wanted beside other figures
MAX_FORMS: Final = 1000  # that are kept ready
ENDED: Final = frozenset({"stopped", "failed"})  # states in which nothing will come by itself


class Answer(NamedTuple):
    """What was asked and who told it: an instance's id, or `redis`."""

    told: Told
    served_by: str


class Figures(NamedTuple):
    """How far a replica is, and how much it holds."""

    position: int
    stream_time: int
    entries: int
    bytes: int


class Source(Protocol):
    """Where stores can be read."""

    async def figures(self, store_id: str, lineage: str, partition: int) -> Figures:
        """How much there is. Raises StoreNotReadable."""

    async def close(self) -> None: ...

    async def tell(self, store_id: str, lineage: str, ask: Ask) -> Answer:
        """Answer an ask, all of it at one moment. Raises StoreNotReadable."""


@dataclass(slots=True)
class Known:
    """A store as the catalog described it at some moment; `seen`: the wake-up after which that was.

    `fate`: topics that change what the store is; `progress`: those that change how far it is.
    """

    now: StoreNow
    form: Form
    seen: int
    read_s: float
    fate: tuple[str, ...]
    progress: tuple[str, ...]
    partitions: range = field(init=False)

    def __post_init__(self) -> None:
        self.partitions = range(len(self.now.partitions))

    def partitions_of(self, query: Query) -> Sequence[int]:
        """Where the entries of a query are: one partition where a key says so."""
        if query.first is None or not query.is_of_key or not self.now.is_keyed:
            return self.partitions
        return (self.partition_of(query.first),)

    def partition_of(self, key: bytes) -> int:
        """The partition that records with this key come in, where their key says so."""
        count = len(self.now.partitions)
        return 0 if count == 1 else (murmur2(key) & 0x7FFFFFFF) % count

    def lag(self, told: dict[int, Told]) -> int:
        """Records that the partitions have not read, and changes that these answers did not hold."""
        at = self.now.partitions
        return sum(at[p].input_lag + max(0, at[p].end - each.position) for p, each in told.items())


@dataclass(frozen=True, slots=True)
class Freshness:
    """What an answer must reflect at least; `timeout_s` is how long to wait for it."""

    position: Position | None = None
    max_lag_records: int | None = None
    timeout_s: float = 0.0

    @property
    def is_asked_for(self) -> bool:
        return self.position is not None or self.max_lag_records is not None


class Look(NamedTuple):
    """A page, the store as it was known then, and who served it."""

    page: Page
    known: Known
    served_by: str


class Lookups:
    """The stores of one service, to be looked into."""

    def __init__(self, catalog: Catalog, hub: Hub, source: Source) -> None:
        self._catalog, self._hub, self._source = catalog, hub, source
        self._known: dict[str, Known] = {}
        self._forms: dict[str, Form] = {}
        self._reading: dict[str, asyncio.Task[Known]] = {}

    async def close(self) -> None:
        """Close what was opened to be read."""
        await self._source.close()

    # ------------------------------------------------------------ what is known of a store

    async def known(self, name: str) -> Known:
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

    async def as_of_now(self, name: str) -> Known:
        """A store as the catalog has it now. Raises UnknownStore."""
        seen, read_s = self._hub.seen, time.monotonic()
        try:
            now, form = await run_in_threadpool(self._look_up, name)
        except UnknownStore:
            self._known.pop(name, None)
            raise
        streams = {now.changelog, *(stream_id for at in now.partitions for stream_id in at.inputs)}
        progress = (progress_topic(now.job_id), *map(stream_topic, sorted(streams)))
        known = Known(now, form, seen, read_s, (JOBS, job_topic(now.job_id)), progress)
        self._known[name] = known
        return known

    def _look_up(self, name: str) -> tuple[StoreNow, Form]:
        now = self._catalog.read(store_now, name)
        form = self._forms.get(now.id)
        if form is None:
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            form = self._forms[now.id] = _form(now)
        return now, form

    # ------------------------------------------------------------ looking

    async def look(self, known: Known, query: Query, limit: int, after: Place | None = None) -> Look:
        """One page of a query. Raises StoreNotReadable."""
        reading = read_page(known.form, query, known.partitions_of(query), limit, after)
        page, served_by = await self._drive(known, reading)
        return Look(page, known, served_by)

    async def figures(self, now: StoreNow, partition: int) -> Figures | None:
        """How far and how large a partition is; None where that can not be told."""
        try:
            return await self._source.figures(now.id, self._catalog.lineage, partition)
        except StoreNotReadable:
            return None if now.partitions[partition].end > 0 else Figures(0, NOT_STARTED, 0, 0)

    async def sizes(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Size]:
        """How large partitions of stores (id, partition) are; those that can not be told in time are left out."""
        found: dict[tuple[str, int], Size] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(SIZES_S):
                for store_id, partition in wanted:
                    await asyncio.sleep(0)  # a replica is read at once: who looks something up goes first
                    with suppress(StoreNotReadable):
                        told = await self._source.figures(store_id, self._catalog.lineage, partition)
                        found[store_id, partition] = Size(told.entries, told.bytes)
        return found

    async def _drive(self, known: Known, reading: Reading[T]) -> tuple[T, str]:
        served_by = ""
        try:
            asks = next(reading)
            while True:
                if len(asks) == 1:
                    answers = [await self._tell(known, asks[0])]
                else:
                    answers = await asyncio.gather(*(self._tell(known, ask) for ask in asks))
                served_by = answers[0].served_by
                asks = reading.send([answer.told for answer in answers])
        except StopIteration as end:
            return end.value, served_by

    # ------------------------------------------------------------ waiting

    async def reflecting(self, name: str, queries: Sequence[Query], wanted: Freshness) -> Known:
        """The store, as soon as the partitions that queries need are as fresh as is wanted.

        Raises StoreBehind when they are not in time or will not be, PositionNotOfStore, UnknownStore,
        StoreNotReadable.
        """
        until = time.monotonic() + wanted.timeout_s
        required: dict[int, int] = {}
        while True:
            seen = self._hub.seen
            known = await self.as_of_now(name)
            obstacle = await self._obstacle(known, queries, wanted, required)
            if obstacle is None:
                return known
            left_s = until - time.monotonic()
            if left_s <= 0 or self._hub.is_closed or known.now.job_state in ENDED:
                raise StoreBehind(name, obstacle)
            if required:
                await self._replayed(known, required, min(left_s, LOOK_AGAIN_S))
            else:
                await self._hub.wait((*known.fate, *known.progress), seen, min(left_s, LOOK_AGAIN_S))

    async def _obstacle(
        self, known: Known, queries: Sequence[Query], wanted: Freshness, required: dict[int, int]
    ) -> str | None:
        """What stands between the store and the freshness that is wanted.

        Where that is the replay of what is committed, `required` says how far it has to come.
        """
        needed = {p for query in queries for p in known.partitions_of(query)}
        at = [known.now.partitions[p] for p in sorted(needed)]
        if wanted.position is not None:
            for each in at:
                if (reason := self._unread(known, each, wanted.position, required)) is not None:
                    required.clear()
                    return reason
        try:
            told = {each.partition: await self._told(known, each.partition) for each in at}
        except StoreNotReadable as error:
            return error.reason
        for p, position in required.items():
            if told[p].position < position:
                task = known.now.partitions[p].task
                return f"the replica of task {task} is at {told[p].position}, not yet at {position}"
        lag = known.lag(told)
        if wanted.max_lag_records is None or lag <= wanted.max_lag_records:
            return None
        if not any(each.input_lag for each in at):
            required.update({each.partition: each.end for each in at})
        return f"it is {lag} records behind, {wanted.max_lag_records} are allowed; the job is {known.now.job_state}"

    async def _replayed(self, known: Known, required: dict[int, int], timeout_s: float) -> None:
        """Wait until replicas are so far: nobody tells when they are."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            await asyncio.sleep(REPLAY_PAUSE_S)
            try:
                told = {p: await self._told(known, p) for p in required}
            except StoreNotReadable:
                continue  # nobody has begun it yet
            if all(told[p].position >= position for p, position in required.items()):
                return

    @staticmethod
    def _unread(known: Known, at: StorePartition, position: Position, required: dict[int, int]) -> str | None:
        """Why a task has not read up to a position; where it has, what its replica must hold becomes `required`."""
        offset = position.offsets.get(str(at.partition))
        if offset is None:
            return None
        if position.stream == known.now.changelog:
            required[at.partition] = offset
            return None
        if position.stream not in at.inputs:
            raise PositionNotOfStore(known.now.name)
        read = at.inputs[position.stream].position
        if read < offset:
            return f"the job is {known.now.job_state}; task {at.task} has read up to {read} of {offset}"
        required.setdefault(at.partition, at.end)
        return None

    async def _told(self, known: Known, partition: int) -> Told:
        """How far the replica of a partition is."""
        return (await self._tell(known, Ask(partition, (), 1, False))).told

    async def _tell(self, known: Known, ask: Ask) -> Answer:
        """An answer; nothing can be in a store that never changed, even where nobody has begun a replica."""
        try:
            return await self._source.tell(known.now.id, self._catalog.lineage, ask)
        except StoreNotReadable as error:
            if known.now.partitions[ask.partition].end == 0:
                return Answer(Told(0, NOT_STARTED, [[] for _ in ask.spans]), "catalog")
            if isinstance(error, _NotThere) and known.now.job_state in ENDED:
                raise StoreNotReadable(_until_it_runs(error.reason, known.now.job_state)) from error
            raise


def _form(now: StoreNow) -> Form:
    nodes = Topology.from_json(now.topology).sub_topologies[now.sub_topology].nodes
    return form_of(next(node for node in nodes if node.store is not None and node.store.name == now.name))


def _until_it_runs(reason: str, job_state: str) -> str:
    """Why asking again is of no use by itself."""
    return (
        f"{reason}; the job is {job_state}: it is filled again, from the changelog, when the job runs (`:restart` it)"
    )


# ---------------------------------------------------------------- where stores can be read


class OnDisk:
    """Replicas of instances on this machine."""

    def __init__(self, replicas: ReplicasInPlace) -> None:
        self._replicas = replicas

    async def tell(self, store_id: str, lineage: str, ask: Ask) -> Answer:
        """Answer from the replica that is furthest."""
        return self.tell_now(store_id, lineage, ask)

    def tell_now(self, store_id: str, lineage: str, ask: Ask) -> Answer:
        """The same, at once."""
        with _on_disk(ask.partition), self._replicas.reader(store_id, ask.partition, lineage) as (found, instance_id):
            return Answer(tell(found, ask), instance_id)

    async def figures(self, store_id: str, lineage: str, partition: int) -> Figures:
        """How much the replica that is furthest holds."""
        with _on_disk(partition), self._replicas.glance(store_id, partition, lineage) as (found, size):
            told = tell(found, Ask(partition, (), 1, False))
            return Figures(told.position, told.stream_time, *size)

    async def close(self) -> None:
        """Close the replicas."""
        self._replicas.close()


class InRedis:
    """The view."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._names: dict[tuple[str, int], Names] = {}

    async def tell(self, store_id: str, lineage: str, ask: Ask) -> Answer:
        """Answer from the view."""
        with _readable(ask.partition):
            return Answer(await self._views.tell(self._names_of(store_id, lineage, ask.partition), ask), "redis")

    async def figures(self, store_id: str, lineage: str, partition: int) -> Figures:
        """How much the view holds."""
        names = self._names_of(store_id, lineage, partition)
        with _readable(partition):
            told = await self._views.tell(names, Ask(partition, (), 1, False))
            return Figures(told.position, told.stream_time, *await self._views.size(names))

    async def close(self) -> None:
        """Close the connections."""
        await self._views.close()

    def _names_of(self, store_id: str, lineage: str, partition: int) -> Names:
        names = self._names.get((store_id, partition))
        if names is None:
            names = self._names[store_id, partition] = Names(store_id, partition, lineage)
        return names


def sweep_views(url: str, catalog: Catalog) -> int:
    """Delete the views of stores that were deleted; returns how many. Raises StoreNotReadable."""
    with _in_redis(), view.connect(url) as client:
        return view.sweep(client, catalog.lineage, lambda: catalog.read(store_ids))


def ping_views(url: str) -> None:
    """Raises StoreNotReadable when Redis does not answer."""
    with _in_redis(), view.connect(url) as client:
        client.ping()


class _NotThere(StoreNotReadable):
    """Nobody has begun what is asked for, or it was lost: only a job that runs makes it."""


@contextmanager
def _on_disk(partition: int) -> Iterator[None]:
    try:
        yield
    except ReplicaMissing:
        raise _NotThere(f"no instance on this machine has a replica of partition {partition}") from None
    except lmdb.Error as error:
        raise StoreNotReadable(f"the replica of partition {partition} can not be read: {error}") from error


@contextmanager
def _readable(partition: int) -> Iterator[None]:
    with _in_redis():
        try:
            yield
        except ViewMissing:
            raise _NotThere(f"the view of partition {partition} is not there (yet)") from None


@contextmanager
def _in_redis() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise StoreNotReadable(f"Redis does not answer: {error}") from error
