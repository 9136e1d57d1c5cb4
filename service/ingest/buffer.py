"""The append buffer: concurrent requests share one segment and one catalog transaction.

Knows who waits, how much that is, and what follows when a group fails. Refuses to know what is asked of records and
what is answered to whom (`appends`, `publishing`).

One thread writes. It takes whatever is waiting at once, so a lone request waits for nobody, and while one group is
on its way to the disk the next one gathers.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import structlog
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from service import backoff, prometheus
from service.catalog.engine import Catalog
from service.catalog.segments import register_segments
from service.catalog.tables import StreamRow
from service.faults import fault_point
from service.ingest.appends import (
    Answer,
    Append,
    Idempotency,
    Post,
    Posts,
    Target,
    in_chunks,
    split,
)
from service.ingest.publishing import Settled, answer_of, publish_group, stored_answer
from service.payloads import Payload
from service.payloads.rows import Row, payload_of
from service.storage.segments import EncodedSegment, Storage, encode_segment, path_of
from service.streams.errors import (
    BufferFull,
    CatalogUnavailable,
    IdempotencyInFlight,
    SegmentNotPending,
    StorageUnavailable,
    UnknownPartition,
    UnknownStream,
)
from service.streams.partitioner import partition_of

WRITER = "ingest"
IDS_AT_ONCE = 32  # registered ahead, so that a group costs one transaction
IDS_FRESH_S = 30.0
UNKNOWN_OUTCOME_S = 10.0  # how long to ask again whether a publishing transaction counts

Group = list[Append | Posts]


class Room:
    """The bytes of one request's body in the buffer; taken as they arrive, given back when it is answered."""

    def __init__(self, buffer: AppendBuffer) -> None:
        self._buffer = buffer
        self.bytes = 0

    def at_least(self, size: int) -> None:
        """Take as much as `size` in all. Raises BufferFull; a request that is alone always fits."""
        if size > self.bytes:
            self._buffer._take(self, size - self.bytes)


class AppendBuffer:
    """Where requests hand in their records. `group_bytes` bounds a segment, `buffer_bytes` all that is unanswered."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        *,
        group_bytes: int = 32 << 20,
        buffer_bytes: int = 256 << 20,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._group_bytes = group_bytes
        self._buffer_bytes = buffer_bytes
        self._ids = _SegmentIds(catalog)
        self._changed = threading.Condition()
        self._waiting: deque[Append | Post] = deque()
        self._again: list[Group] = []  # parts of a group that could not go as a whole
        self._in_flight: set[tuple[str, str, str]] = set()
        self._turns: dict[str, int] = {}  # stream id -> turns that null keys have taken
        self._used_bytes = 0
        self._is_open = True
        self._is_started = False
        self._is_busy = False
        self._taken: list[Append | Post | Posts] = []  # what is being written
        self._writer = ThreadPoolExecutor(1, "ingest-writer")

    def start(self) -> None:
        """Begin to write; what was handed in before is the first group."""
        self._is_started = True
        self._go_on()

    def stop(self) -> None:
        """Take no more, write what is waiting, answer it, and end."""
        with self._changed:
            self._is_open = False
            if self._is_started:
                self._changed.wait_for(lambda: not (self._is_busy or self._again or self._waiting))
        self._writer.shutdown()

    # ------------------------------------------------------------ for requests, in their own threads

    @contextmanager
    def room(self) -> Iterator[Room]:
        """Room for one request's body; BufferFull when too much is unanswered."""
        room = Room(self)
        try:
            yield room
        finally:
            with self._changed:
                self._use(-room.bytes)

    def answered(self, idempotency: Idempotency) -> Answer | None:
        """What this key was answered before. Raises IdempotencyInFlight, IdempotencyConflict (another body)."""
        with self._changed:
            if idempotency.scope in self._in_flight:
                raise IdempotencyInFlight(idempotency.key)
        stored = self._catalog.read(stored_answer, idempotency)
        if stored is None:
            return None
        answer = answer_of(stored, idempotency)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def append(self, stream: StreamRow, payload: Payload, idempotency: Idempotency | None = None) -> Future[Answer]:
        """Hand in records; the future is done when they are published, or are known not to be.

        Raises BufferFull (when stopping), IdempotencyInFlight. The future may raise IdempotencyConflict,
        UnknownStream (deleted meanwhile), StorageUnavailable and CatalogUnavailable.
        """
        partitions = self._partitions(stream.id, stream.partitions, payload)
        batches = split(payload.records, partitions, stream.partitions)
        is_custom = payload.partitions is not None and not stream.custom_partitioning
        warnings = [{"pointer": each.pointer, "detail": each.detail} for each in payload.warnings]
        append = Append(stream.id, stream.name, batches, is_custom, idempotency, warnings)
        with self._changed:
            if not self._is_open:
                raise BufferFull(1)
            if idempotency is not None:
                if idempotency.scope in self._in_flight:
                    raise IdempotencyInFlight(idempotency.key)
                self._in_flight.add(idempotency.scope)
            self._waiting.append(append)
        self._go_on()
        return append.future

    def post(self, target: Target, rows: list[Row], size: int) -> asyncio.Future[bytes]:
        """Hand in the rows of a small request of `size` bytes, on the event loop; the future has the answer as JSON.

        Raises BufferFull. The future may raise SettingsChanged, StorageUnavailable and CatalogUnavailable. Whoever
        posts while the loop goes round once is in one group.
        """
        loop = asyncio.get_running_loop()
        post = Post(target, rows, size, loop.create_future())
        with self._changed:
            if not self._is_open or (self._used_bytes > 0 and self._used_bytes + size > self._buffer_bytes):
                raise BufferFull(1)
            self._used_bytes += size  # the gauge is set once a group
            self._waiting.append(post)
            is_idle = not self._is_busy
        if is_idle:
            loop.call_soon(self._go_on)
        return post.future

    def _take(self, room: Room, more: int) -> None:
        with self._changed:
            others = self._used_bytes - room.bytes
            if others > 0 and self._used_bytes + more > self._buffer_bytes:
                raise BufferFull(1)
            self._use(more)
            room.bytes += more

    def _use(self, more: int) -> None:
        self._used_bytes += more
        prometheus.INGEST_BUFFERED_BYTES.set(self._used_bytes)

    def _partitions(self, stream_id: str, count: int, payload: Payload) -> npt.NDArray[np.int32]:
        """Where each record goes: where it asks to, else by its key; null keys take turns."""
        keys = payload.records.column("key")
        with self._changed:
            turn = self._turns.get(stream_id, 0)
            self._turns[stream_id] = turn + keys.null_count
        by_key = partition_of(keys, count, turn)
        asked = payload.partitions
        return by_key if asked is None else np.where(asked >= 0, asked, by_key).astype(np.int32)

    def _give_back_turns(self, unpublished: Append | Posts) -> None:
        """Its null keys have used none: whoever posts again by the route does not leave partitions out."""
        with self._changed:
            self._turns[unpublished.stream_id] -= sum(
                batch.column("key").null_count for _, batch in unpublished.batches
            )

    # ------------------------------------------------------------ the writer: one thread, one group after another

    def _go_on(self) -> None:
        """Let the next group be written, unless there is none, or one is."""
        with self._changed:
            if self._is_busy or not self._is_started:
                return
            if not self._again and not self._waiting:
                self._changed.notify_all()
                return
            self._is_busy = True
        self._writer.submit(self._write_next).add_done_callback(self._settle)

    def _write_next(self) -> None:
        if self._again:
            group = self._again.pop()
            self._taken = [*group]
        else:
            with self._changed:
                taken = self._take_waiting()
                self._use(0)
            self._taken = [*taken]
            group = self._joined(taken)
        if group:
            self._again += self._commit(group)

    def _settle(self, attempt: Future[None]) -> None:
        """Whatever became of a group: its failure is that of the requests in it, and the next one is written."""
        error = attempt.exception()
        if error is not None:
            requests = sum(one.requests for one in self._taken)
            structlog.get_logger().warning("append_failed", requests=requests, error=repr(error), exc_info=error)
            self._finish((one, error) for one in self._taken)
        self._taken = []
        with self._changed:
            self._is_busy = False
        self._go_on()

    def _take_waiting(self) -> list[Append | Post]:
        """All that is waiting, up to `group_bytes`, at least one; whoever went away is left out."""
        taken: list[Append | Post] = []
        size = 0
        while self._waiting and (not taken or size + self._waiting[0].size <= self._group_bytes):
            one = self._waiting.popleft()
            if self._is_wanted(one):
                taken.append(one)
                size += one.size
        return taken

    def _is_wanted(self, one: Append | Post) -> bool:
        if isinstance(one, Post):
            if one.future.cancelled():
                self._use(-one.size)
            return not one.future.cancelled()
        if one.future.set_running_or_notify_cancel():
            return True
        if one.idempotency is not None:
            self._in_flight.discard(one.idempotency.scope)
        return False

    def _joined(self, taken: Iterable[Append | Post]) -> Group:
        """A group: appends as they are, small posts to one stream as one append."""
        group: Group = []
        posts: dict[tuple[str, int], list[Post]] = {}
        for one in taken:
            if isinstance(one, Append):
                group.append(one)
            else:
                posts.setdefault((one.target.id, one.target.version), []).append(one)
        return group + [self._as_one(alike) for alike in posts.values()]

    def _as_one(self, posts: list[Post]) -> Posts:
        target = posts[0].target
        payload = payload_of([row for post in posts for row in post.rows])
        partitions = self._partitions(target.id, target.partitions, payload)
        batches = split(payload.records, partitions, target.partitions)
        return Posts(target.id, target.name, target.version, batches, posts, partitions)

    def _commit(self, group: Group) -> list[Group]:
        """Write and publish a group, and answer it. Who can not be part of it is answered; the rest, returned as
        groups, goes again.
        """
        try:
            answers = self._write(group)
        except Settled as error:
            for append in error.outcomes:
                self._give_back_turns(append)
            self._finish(
                [
                    (append, [outcome] if isinstance(outcome, dict) else outcome)
                    for append, outcome in error.outcomes.items()
                ]
            )
            rest = [append for append in group if append not in error.outcomes]
            return [rest] if rest else []
        except UnknownPartition as error:
            return _by_stream(group, error)
        fault_point("ingest.after_publish")
        prometheus.INGESTED_RECORDS.inc(sum(append.records for append in group))
        self._finish(zip(group, answers, strict=True))
        return []

    def _finish(self, outcomes: Iterable[tuple[Append | Post | Posts, list[Answer] | BaseException]]) -> None:
        """Answer requests; an Idempotency-Key is free before its request hears of it."""
        of_posts: list[tuple[asyncio.Future[bytes], bytes | BaseException]] = []
        size = 0
        for one, outcome in outcomes:
            if isinstance(one, Append):
                self._answer(one, outcome)
            else:
                of_posts += one.outcomes(outcome)
                size += one.size
        if of_posts:
            with self._changed:
                self._use(-size)
            of_posts[0][0].get_loop().call_soon_threadsafe(_resolve, of_posts)

    def _answer(self, append: Append, outcome: list[Answer] | BaseException) -> None:
        if append.future.done():
            return
        if append.idempotency is not None:
            with self._changed:
                self._in_flight.discard(append.idempotency.scope)
        if isinstance(outcome, BaseException):
            append.future.set_exception(outcome)
        else:
            append.future.set_result(outcome[0])

    def _write(self, group: Group) -> list[list[Answer]]:
        """The answers of a group, once it is published."""
        segment = encode_segment(in_chunks(group))
        try:
            return self._publish(segment, group)
        except SegmentNotPending:  # announced too long ago: the collector took the id
            self._ids.forget()
            return self._publish(segment, group)

    def _publish(self, segment: EncodedSegment, group: Group) -> list[list[Answer]]:
        segment_id, path = self._ids.take()
        try:
            self._storage.write(path, segment)
        except OSError as error:
            raise StorageUnavailable(f"The storage did not take the records: {error}") from error
        fault_point("ingest.before_publish")
        write, lineage = self._catalog.write, self._catalog.lineage
        try:
            return write(publish_group, segment_id, segment, group, lineage)
        except CatalogUnavailable:  # perhaps it counts: the same transaction again has the same answers
            again = Retrying(
                retry=retry_if_exception_type(CatalogUnavailable),
                stop=stop_after_delay(UNKNOWN_OUTCOME_S),
                wait=backoff.exponential(0.05, 1),
                reraise=True,
            )
            return again(write, publish_group, segment_id, segment, group, lineage)


def _resolve(outcomes: Iterable[tuple[asyncio.Future[bytes], bytes | BaseException]]) -> None:
    for future, outcome in outcomes:
        if future.done():  # whoever asked went away
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class _SegmentIds:
    """Segment ids announced to the catalog ahead of their use, by one thread."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._ready: deque[tuple[str, str]] = deque()
        self._registered_at = 0.0

    def take(self) -> tuple[str, str]:
        """The next (id, path). Ids that lay about for long are left to the collector."""
        if not self._ready or time.monotonic() - self._registered_at > IDS_FRESH_S:
            ids = [uuid.uuid4().hex for _ in range(IDS_AT_ONCE)]
            fresh = [(segment_id, path_of(segment_id)) for segment_id in ids]
            self._catalog.write(register_segments, WRITER, fresh)
            self._ready, self._registered_at = deque(fresh), time.monotonic()
        return self._ready.popleft()

    def forget(self) -> None:
        """Announce new ones next time."""
        self._ready.clear()


def _by_stream(group: Group, error: UnknownPartition) -> list[Group]:
    """A stream of the group was deleted: each of its streams as a group by itself, so that only that one fails."""
    ids = {append.stream_id for append in group}
    if len(ids) == 1:
        raise UnknownStream(group[0].stream_name) from error
    return [[append for append in group if append.stream_id == stream_id] for stream_id in ids]
