"""The append buffer: concurrent requests share one segment and one catalog transaction (group commit).

Knows how records become durable: partitioned, one segment for all that is waiting, fsync, published, and only then
answered. Refuses to know formats, HTTP and what a stream asks of its records.

One thread writes. It takes whatever is waiting at once, so a lone request waits for nobody, and while one group is
on its way to the disk the next one gathers. The answer to an Idempotency-Key is stored in the transaction that
publishes the records: whoever asks again gets it, in this process or another, also when this one dies in between.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog
from sqlalchemy.orm import Session
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from service import prometheus
from service.catalog.engine import Catalog
from service.catalog.ingest_keys import find_response, remember
from service.catalog.segments import publish, register_segments
from service.catalog.streams import mark_custom_partitioning
from service.catalog.tables import IngestKeyRow, StreamRow
from service.faults import fault_point
from service.payloads import Payload
from service.positions import Position, opaque
from service.storage.segments import EncodedSegment, Storage, encode_segment, path_of
from service.streams.errors import (
    BufferFull,
    CatalogUnavailable,
    IdempotencyConflict,
    IdempotencyInFlight,
    SegmentNotPending,
    StorageUnavailable,
    UnknownPartition,
    UnknownStream,
)
from service.streams.partitioner import partition_of
from service.streams.records import Published

Answer = dict[str, Any]  # {"accepted", "offsets": [{"partition", "first", "last"}], "position"}

WRITER = "ingest"
IDS_AT_ONCE = 32  # registered ahead, so that a group costs one transaction
IDS_FRESH_S = 30.0
UNKNOWN_OUTCOME_S = 10.0  # how long to ask again whether a publishing transaction counts


@dataclass(frozen=True, slots=True)
class Idempotency:
    """An Idempotency-Key as its owner sent it, and the body it stands for."""

    api_key_id: str
    stream_id: str
    key: str
    body_sha256: str

    @property
    def scope(self) -> tuple[str, str, str]:
        return self.api_key_id, self.stream_id, self.key


@dataclass(eq=False, slots=True)
class _Append:
    """One request: its records by partition, and who waits for its answer."""

    stream: StreamRow
    batches: list[tuple[int, pa.RecordBatch]]
    is_custom: bool
    idempotency: Idempotency | None
    future: Future[Answer] = field(default_factory=Future)

    @property
    def records(self) -> int:
        return sum(batch.num_rows for _, batch in self.batches)

    @property
    def bytes(self) -> int:
        return sum(batch.nbytes for _, batch in self.batches)


class _KeysTaken(Exception):
    """Another process was first with these Idempotency-Keys; the transaction is undone."""

    def __init__(self, taken: dict[_Append, IngestKeyRow]) -> None:
        self.taken = taken


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
        self._waiting: deque[_Append] = deque()
        self._in_flight: set[tuple[str, str, str]] = set()
        self._null_keys: dict[str, int] = {}  # stream id -> whose turn it is
        self._used_bytes = 0
        self._is_open = True
        self._writer = ThreadPoolExecutor(1, "ingest-writer")
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)

    def start(self) -> None:
        """Begin to write; what was handed in before is the first group."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more, write what is waiting, answer it, and end."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
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
        stored = self._catalog.read(_stored, idempotency)
        if stored is None:
            return None
        if stored.body_sha256 != idempotency.body_sha256:
            raise IdempotencyConflict(idempotency.key)
        return stored.response

    def append(self, stream: StreamRow, payload: Payload, idempotency: Idempotency | None = None) -> Future[Answer]:
        """Hand in records; the future is done when they are published, or are known not to be.

        Raises BufferFull (when stopping), IdempotencyInFlight. The future may raise IdempotencyConflict,
        UnknownStream (deleted meanwhile), StorageUnavailable and CatalogUnavailable.
        """
        partitions = self._partitions(stream, payload)
        batches = split(payload.records, partitions, stream.partitions)
        is_custom = payload.partitions is not None and not stream.custom_partitioning
        append = _Append(stream, batches, is_custom, idempotency)
        with self._changed:
            if not self._is_open:
                raise BufferFull(1)
            if idempotency is not None:
                if idempotency.scope in self._in_flight:
                    raise IdempotencyInFlight(idempotency.key)
                self._in_flight.add(idempotency.scope)
            self._waiting.append(append)
            self._changed.notify_all()
        return append.future

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

    def _partitions(self, stream: StreamRow, payload: Payload) -> npt.NDArray[np.int32]:
        """Where each record goes: where it asks to, else by its key; null keys take turns."""
        keys = payload.records.column("key")
        with self._changed:
            turn = self._null_keys.get(stream.id, 0)
            self._null_keys[stream.id] = (turn + keys.null_count) % stream.partitions
        by_key = partition_of(keys, stream.partitions, turn)
        asked = payload.partitions
        return by_key if asked is None else np.where(asked >= 0, asked, by_key).astype(np.int32)

    # ------------------------------------------------------------ the writer thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._is_open)
                if not self._waiting:
                    return
                group = self._next_group()
            self._settle(group)

    def _next_group(self) -> list[_Append]:
        """All that is waiting, up to `group_bytes`, at least one; whoever went away is left out."""
        group: list[_Append] = []
        size = 0
        while self._waiting and (not group or size + self._waiting[0].bytes <= self._group_bytes):
            append = self._waiting.popleft()
            if append.future.set_running_or_notify_cancel():
                group.append(append)
                size += append.bytes
            elif append.idempotency is not None:
                self._in_flight.discard(append.idempotency.scope)
        return group

    def _settle(self, group: list[_Append]) -> None:
        """Answer a group, whatever happens: its failure is that of the requests in it, the next group is written."""
        groups = [group]
        while groups:
            now = groups.pop()
            attempt = self._writer.submit(self._commit, now)
            error = attempt.exception()
            if error is None:
                groups += attempt.result()
            else:
                self._fail(now, error)

    def _fail(self, group: list[_Append], error: BaseException) -> None:
        """Their requests meet the error where each request's failures are recorded."""
        structlog.get_logger().warning("append_failed", requests=len(group), error=repr(error), exc_info=error)
        for append in group:
            if not append.future.done():
                self._finish(append, error)

    def _finish(self, append: _Append, outcome: Answer | BaseException) -> None:
        """Answer a request; its Idempotency-Key is free before it hears of it."""
        if append.idempotency is not None:
            with self._changed:
                self._in_flight.discard(append.idempotency.scope)
        if isinstance(outcome, BaseException):
            append.future.set_exception(outcome)
        else:
            append.future.set_result(outcome)

    def _commit(self, group: list[_Append]) -> list[list[_Append]]:
        """Write and publish a group, and answer it. Who can not be part of it is answered; the rest, returned as
        groups, goes again.
        """
        if not group:
            return []
        try:
            answers = self._write(group)
        except _KeysTaken as error:
            for append, stored in error.taken.items():
                self._finish(append, _answer_again(append, stored))
            return [[append for append in group if append not in error.taken]]
        except UnknownPartition as error:
            return _by_stream(group, error)
        fault_point("ingest.after_publish")
        for append, answer in zip(group, answers, strict=True):
            prometheus.INGESTED_RECORDS.inc(append.records)
            self._finish(append, answer)
        return []

    def _write(self, group: list[_Append]) -> list[Answer]:
        """The answers of a group, once it is published."""
        segment = encode_segment(_chunks(group))
        try:
            return self._publish(segment, group)
        except SegmentNotPending:  # announced too long ago: the collector took the id
            self._ids.forget()
            return self._publish(segment, group)

    def _publish(self, segment: EncodedSegment, group: list[_Append]) -> list[Answer]:
        segment_id, path = self._ids.take()
        try:
            self._storage.write(path, segment)
        except OSError as error:
            raise StorageUnavailable(f"The storage did not take the records: {error}") from error
        fault_point("ingest.before_publish")
        retrying = Retrying(
            retry=retry_if_exception_type(CatalogUnavailable),
            stop=stop_after_delay(UNKNOWN_OUTCOME_S),
            wait=wait_random_exponential(0.05, max=1),
            reraise=True,
        )
        return retrying(self._catalog.write, publish_group, segment_id, segment, group, self._catalog.lineage)


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


def _by_stream(group: list[_Append], error: UnknownPartition) -> list[list[_Append]]:
    """A stream of the group was deleted: each of its streams as a group by itself, so that only that one fails."""
    ids = {append.stream.id for append in group}
    if len(ids) == 1:
        raise UnknownStream(group[0].stream.name) from error
    return [[append for append in group if append.stream.id == stream_id] for stream_id in ids]


def split(records: pa.RecordBatch, partitions: npt.NDArray[np.int32], count: int) -> list[tuple[int, pa.RecordBatch]]:
    """(partition, its records in their order) for each partition that has some."""
    sizes = np.bincount(partitions, minlength=count)
    used = np.flatnonzero(sizes).tolist()
    if len(used) == 1:
        return [(used[0], records)]
    order = np.argsort(partitions.astype(np.uint16), kind="stable")  # 16 bits: a radix sort, 6× faster
    grouped = records.take(pa.array(order))
    ends = np.cumsum(sizes).tolist()
    return [(p, grouped.slice(ends[p] - int(sizes[p]), int(sizes[p]))) for p in used]


def _chunks(group: Sequence[_Append]) -> list[tuple[str, int, pa.RecordBatch]]:
    """One batch for each (stream, partition), the requests' records one after another."""
    found: dict[tuple[str, int], list[pa.RecordBatch]] = {}
    for append in group:
        for partition, batch in append.batches:
            found.setdefault((append.stream.id, partition), []).append(batch)
    return [
        (*place, batches[0] if len(batches) == 1 else pa.concat_batches(batches))
        for place, batches in sorted(found.items(), key=lambda item: item[0])
    ]


def publish_group(
    s: Session, segment_id: str, segment: EncodedSegment, group: Sequence[_Append], lineage: str
) -> list[Answer]:
    """The one transaction of a group. Locks in the catalog's order: streams, segment, partitions, then keys."""
    for stream_id in sorted({append.stream.id for append in group if append.is_custom}):
        mark_custom_partitioning(s, stream_id)
    published = publish(s, segment_id, bytes=segment.bytes, chunks=segment.chunks)
    answers = _answers(group, published, lineage)
    keyed = [
        (append.idempotency, append, answer)
        for append, answer in zip(group, answers, strict=True)
        if append.idempotency is not None
    ]
    taken = {}
    for idempotency, append, answer in sorted(keyed, key=lambda entry: entry[0].scope):
        stored = _keep(s, idempotency, answer)
        if stored is not None:
            taken[append] = stored
    if taken:
        raise _KeysTaken(taken)
    return answers


def _keep(s: Session, idempotency: Idempotency, answer: Answer) -> IngestKeyRow | None:
    """Store an answer; what is stored already where that is another one (the same one: this very publication,
    asked again)."""
    owner, stream_id, key = idempotency.scope
    names = {"api_key_id": owner, "stream_id": stream_id, "idempotency_key": key}
    if remember(s, **names, body_sha256=idempotency.body_sha256, response=answer):
        return None
    stored = _stored(s, idempotency)
    return None if stored is None or stored.response == answer else stored


def _stored(s: Session, idempotency: Idempotency) -> IngestKeyRow | None:
    owner, stream_id, key = idempotency.scope
    return find_response(s, api_key_id=owner, stream_id=stream_id, idempotency_key=key)


def _answer_again(append: _Append, stored: IngestKeyRow) -> Answer | IdempotencyConflict:
    if append.idempotency is None or stored.body_sha256 != append.idempotency.body_sha256:
        return IdempotencyConflict(stored.idempotency_key)
    return stored.response


def _answers(group: Sequence[_Append], published: Sequence[Published], lineage: str) -> list[Answer]:
    """Which offsets each request got: the chunks' offsets, handed out in the order of the group."""
    reached = {(chunk.stream_id, chunk.partition): chunk.first_offset for chunk in published}
    answers = []
    for append in group:
        offsets = []
        for partition, batch in append.batches:
            first = reached[append.stream.id, partition]
            reached[append.stream.id, partition] = end = first + batch.num_rows
            offsets.append({"partition": partition, "first": first, "last": end - 1})
        ends = {str(at["partition"]): at["last"] + 1 for at in offsets}
        position = opaque(Position(append.stream.id, lineage, ends))
        answers.append({"accepted": append.records, "offsets": offsets, "position": position})
    return answers
