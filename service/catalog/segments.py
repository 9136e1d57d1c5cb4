"""Segments and their chunks: registered, published with offsets, found by offset, dropped.

It knows the states of a segment (pending → published → dropped, or pending → dropped) and how offsets are given out.
It refuses to know what is in a file and whether it is there: its writer says so, and the collector deletes.

Locks are taken in the order of the catalog: segments by id, then partitions by (stream, partition).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec.structs import asdict
from sqlalchemy import Select, bindparam, delete, exists, insert, select, update
from sqlalchemy.orm import Session

from service.catalog.driver import Driver, Prepared, values
from service.catalog.engine import now_ms, partition_topic, stream_topic, target_topic, wake
from service.catalog.inputs import lowest_position
from service.catalog.streams import lock_partitions_of
from service.catalog.subscriptions import held_position
from service.catalog.tables import ChunkRow, PartitionRow, SegmentRow, SlotRow, StreamRow
from service.protocol import ChunkRange, InputRange
from service.ranges import unpack
from service.streams.errors import SegmentNotPending, UnknownPartition
from service.streams.records import Chunk, ChunkMeta, Published

PENDING, PUBLISHED, DROPPED = "pending", "published", "dropped"
CHUNKS_AT_ONCE = 256
COLLECT_AT_ONCE = 1_000
CHUNK_COLUMNS = (
    SegmentRow.path,
    ChunkRow.segment_id,
    ChunkRow.idx,
    ChunkRow.byte_offset,
    ChunkRow.byte_length,
    ChunkRow.crc32,
    ChunkRow.first_offset,
    ChunkRow.end_offset,
    ChunkRow.records,
    ChunkRow.is_sparse,
    ChunkRow.ranges,
)  # in the order of Chunk's fields


_CHUNKS = Prepared(
    select(*CHUNK_COLUMNS)
    .join(SegmentRow, SegmentRow.id == ChunkRow.segment_id)
    .where(ChunkRow.stream_id == bindparam("stream_id"), ChunkRow.partition == bindparam("partition"))
    .where(ChunkRow.end_offset > bindparam("offset"))
    .order_by(ChunkRow.end_offset)
    .limit(CHUNKS_AT_ONCE)
)
_BOUNDS = Prepared(
    select(PartitionRow.start_offset, PartitionRow.end_offset).where(
        PartitionRow.stream_id == bindparam("stream_id"), PartitionRow.partition == bindparam("partition")
    )
)
_ALL_BOUNDS = Prepared(
    select(PartitionRow.partition, PartitionRow.start_offset, PartitionRow.end_offset).where(
        PartitionRow.stream_id == bindparam("stream_id")
    )
)
_SEGMENTS = "SELECT segments.id, state, writer FROM segments WHERE id IN ({ids}) ORDER BY id {lock}"
_VERSIONS = "SELECT streams.id, etag FROM streams WHERE id IN ({ids})"
_ENDS = (
    "SELECT partitions.stream_id, partition, end_offset, bytes, records FROM partitions"
    " WHERE (stream_id, partition) IN ({pairs}) ORDER BY stream_id, partition {lock}"
)
_PUBLISH = "UPDATE segments SET state = ?, bytes = ?, published_ms = ? WHERE id = ?"
_GROW = (
    "UPDATE partitions SET end_offset = ?, appended_bytes = appended_bytes + ? - bytes, bytes = ?, records = ?,"
    " published_ms = ? WHERE stream_id = ? AND partition = ?"
)


# ---------------------------------------------------------------- writing


def register_segments(s: Session, writer: str, segments: Iterable[tuple[str, str]]) -> None:
    """Announce segments (id, path) before they are written; announcing one again changes nothing."""
    wanted = dict(segments)
    known = set(s.scalars(select(SegmentRow.id).where(SegmentRow.id.in_(wanted))))
    at = now_ms(s)
    rows = [
        {"id": i, "path": path, "state": PENDING, "writer": writer, "created_ms": at}
        for i, path in wanted.items()
        if i not in known
    ]
    if rows:
        s.execute(insert(SegmentRow), rows)


class VersionsPassed(Exception):
    """These streams have other versions than those given, or are gone."""

    def __init__(self, versions: Collection[tuple[str, int]]) -> None:
        self.versions = versions


def publish(
    s: Session,
    segment_id: str,
    *,
    bytes: int,  # noqa: A002
    chunks: Sequence[ChunkMeta],
    versions: Set[tuple[str, int]] = frozenset(),
) -> list[Published]:
    """Publish a pending segment: its chunks get the next offsets of their partitions.

    Publishing one that is published gets the first answer. `versions`: (stream id, etag) that must
    still hold. Raises SegmentNotPending, UnknownPartition, VersionsPassed.
    """
    known = lock_segments(s, [segment_id]).get(segment_id)
    if known is not None and known.state == PUBLISHED:
        return _published_before(s, segment_id)
    if known is None or known.state != PENDING:
        raise SegmentNotPending(segment_id, None if known is None else known.state)
    if versions and (passed := versions - _versions(s, versions)):
        raise VersionsPassed(passed)
    log = Appender(s, {(chunk.stream_id, chunk.partition) for chunk in chunks})
    missing = log.missing(chunks)
    if missing is not None:
        raise UnknownPartition(f"{missing.stream_id}/{missing.partition}")
    published = log.append(segment_id, bytes, chunks)
    log.write()
    return published


def _versions(s: Session, versions: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
    """Of the streams named, those that are there, with the versions that they have."""
    ids = sorted({stream_id for stream_id, _ in versions})
    return {
        (stream_id, version) for stream_id, version in Driver(s).rows(_VERSIONS.format(ids=values(len(ids), 1)), ids)
    }


class Registered(NamedTuple):
    """A locked segment: its state, and who registered its name."""

    state: str
    writer: str


def lock_segments(s: Session, segment_ids: Collection[str]) -> dict[str, Registered]:
    """Lock segments in the order of their ids; by id, those that are registered."""
    text = _SEGMENTS.format(ids=values(len(segment_ids), 1), lock="{lock}")
    rows = Driver(s).rows(text, sorted(segment_ids))
    return {segment_id: Registered(state, writer) for segment_id, state, writer in rows}


class Appender:
    """Partitions that this transaction has locked, and what it appends to them: decided first, written at once."""

    def __init__(self, s: Session, partitions: Collection[tuple[str, int]]) -> None:
        self._s, self._driver = s, Driver(s)
        self._ends = _lock_ends(self._driver, sorted(partitions)) if partitions else {}
        self._grown: set[tuple[str, int]] = set()
        self._chunks: list[dict[str, Any]] = []
        self._segments: list[tuple[str, int]] = []

    def missing(self, chunks: Iterable[ChunkMeta]) -> ChunkMeta | None:
        """The first chunk whose partition does not exist."""
        return next((chunk for chunk in chunks if (chunk.stream_id, chunk.partition) not in self._ends), None)

    def append(self, segment_id: str, size: int, chunks: Sequence[ChunkMeta]) -> list[Published]:
        """Give the chunks of a pending segment their offsets, in the order given."""
        self._segments.append((segment_id, size))
        return [self._append(segment_id, index, chunk) for index, chunk in enumerate(chunks)]

    def write(self) -> None:
        """Put it all into the tables, and wake who reads the streams."""
        if not self._segments:
            return
        at, driver = now_ms(self._s), self._driver
        driver.each(_PUBLISH, [(PUBLISHED, size, at, segment_id) for segment_id, size in self._segments])
        if self._chunks:
            driver.each(_insert(tuple(self._chunks[0])), [tuple(chunk.values()) for chunk in self._chunks])
            grown = [(pair, self._ends[pair]) for pair in sorted(self._grown)]
            driver.each(_GROW, [(end.offset, end.bytes, end.bytes, end.records, at, *pair) for pair, end in grown])
            wake(self._s, *{stream_topic(stream_id) for stream_id, _ in self._grown})
            wake(self._s, *[partition_topic(*pair) for pair in self._grown])
            wake(self._s, *self._targets())

    def _targets(self) -> set[str]:
        """The topics of the targets that chunks of repartition streams have records for."""
        packed = [(chunk["stream_id"], chunk["ranges"]) for chunk in self._chunks if chunk["ranges"] is not None]
        return {target_topic(stream_id, to) for stream_id, of in packed for to in unpack(of)["target"].tolist()}

    def _append(self, segment_id: str, index: int, chunk: ChunkMeta) -> Published:
        pair = (chunk.stream_id, chunk.partition)
        reached = self._ends[pair]
        first = reached.offset
        self._ends[pair] = _End(
            end := first + chunk.records, reached.bytes + chunk.byte_length, reached.records + chunk.records
        )
        self._grown.add(pair)
        self._chunks.append(
            {**asdict(chunk), "segment_id": segment_id, "idx": index, "first_offset": first, "end_offset": end}
        )
        return Published(*pair, first, end)


class _End(NamedTuple):
    """Where a partition ends, and what is in it."""

    offset: int
    bytes: int
    records: int


def _lock_ends(driver: Driver, pairs: Sequence[tuple[str, int]]) -> dict[tuple[str, int], _End]:
    text = _ENDS.format(pairs=values(len(pairs), 2), lock="{lock}")
    found = driver.rows(text, [part for pair in pairs for part in pair])
    return {(stream_id, partition): _End(*end) for stream_id, partition, *end in found}


@cache
def _insert(columns: tuple[str, ...]) -> str:
    return f"INSERT INTO chunks ({', '.join(columns)}) {values(1, len(columns))}"


def _published_before(s: Session, segment_id: str) -> list[Published]:
    """The first answer: what the chunks of a published segment got. Empty once retention has taken them."""
    query = select(ChunkRow.stream_id, ChunkRow.partition, ChunkRow.first_offset, ChunkRow.end_offset)
    rows = s.execute(query.where(ChunkRow.segment_id == segment_id).order_by(ChunkRow.idx))
    return [Published(*row) for row in rows]


# ---------------------------------------------------------------- reading


def chunks_from(s: Session, stream_id: str, partition: int, offset: int, max_records: int) -> ChunkRange:
    """Chunks that hold the records from `offset` on, at least one and as many as `max_records` need.

    The first one may begin before `offset`. No chunk: nothing is there yet, or `offset` lies beyond the end. An
    `offset` below `start` is answered from the start: the caller judges. Raises UnknownPartition.
    """
    bounds = _BOUNDS.rows(s, stream_id=stream_id, partition=partition)
    if not bounds:
        raise UnknownPartition(f"{stream_id}/{partition}")
    ((start, end),) = bounds
    return ChunkRange(start, end, [] if offset >= end else _chunks(s, stream_id, partition, offset, max_records))


def ranges_from(s: Session, stream_id: str, place: Mapping[int, int | None], max_records: int) -> dict[int, ChunkRange]:
    """`chunks_from` of several partitions, from an offset each (None: the start), each with as many as `max_records`
    need. Raises UnknownPartition.
    """
    bounds = {at: (start, end) for at, start, end in _ALL_BOUNDS.rows(s, stream_id=stream_id)}
    unknown = place.keys() - bounds.keys()
    if unknown:
        raise UnknownPartition(f"{stream_id}/{min(unknown)}")
    found: dict[int, ChunkRange] = {}
    for partition, given in place.items():
        start, end = bounds[partition]
        offset = start if given is None else given
        chunks = _chunks(s, stream_id, partition, offset, max_records) if offset < end else []
        found[partition] = ChunkRange(start, end, chunks)
    return found


def next_range(s: Session, number: int, read: tuple[str, int], start: int, end: int, max_records: int) -> InputRange:
    """What a task takes next of its input of this number, which is `read` (stream id, partition), from `start` up to
    `end`, `max_records` offsets at most. Retention may have taken some of it, or all. Raises UnknownPartition.
    """
    chunks = chunks_from(s, *read, start, max_records).chunks
    if chunks:
        end = min(end, chunks[-1].end_offset, max(start, chunks[0].first_offset) + max_records)
    return InputRange(number, start, end, [chunk for chunk in chunks if chunk.first_offset < end])


def _chunks(s: Session, stream_id: str, partition: int, offset: int, max_records: int) -> list[Chunk]:
    found: list[Chunk] = []
    records = 0
    for row in _CHUNKS.rows(s, stream_id=stream_id, partition=partition, offset=offset):
        chunk = Chunk(*row)
        found.append(chunk)
        records += min(chunk.records, chunk.end_offset - offset)
        if records >= max_records:
            break
    return found


# ---------------------------------------------------------------- retention and the collector


def truncate_by_retention(s: Session) -> int:
    """Remove the oldest chunks of streams with a `retention_ms`, counted from when they were published.

    Never beyond the position of an existing job, whatever its state, nor of a subscription that holds retention back,
    unless the stream says `retention_overrides_jobs`. Records keep the time of their publishing, not their timestamp,
    so that a load of old records is not gone at once. Returns how many chunks went.
    """
    query = select(StreamRow).where(StreamRow.retention_ms.is_not(None)).order_by(StreamRow.id)
    return sum(
        _truncate(s, stream, partition)
        for stream in s.scalars(query).all()
        for partition in lock_partitions_of(s, [stream.id])
    )


def _truncate(s: Session, stream: StreamRow, partition: PartitionRow) -> int:
    limit = partition.end_offset
    if not stream.retention_overrides_jobs:
        place = (stream.id, partition.partition)
        held = [at for at in (lowest_position(s, *place), held_position(s, *place)) if at is not None]
        limit = min([limit, *held])
    expired = _expired(s, stream, partition, limit)
    if not expired:
        return 0
    partition.start_offset = expired[-1].end_offset
    partition.records -= sum(chunk.records for chunk in expired)
    partition.bytes -= sum(chunk.byte_length for chunk in expired)
    s.execute(
        delete(ChunkRow).where(
            ChunkRow.stream_id == stream.id,
            ChunkRow.partition == partition.partition,
            ChunkRow.end_offset <= partition.start_offset,
        )
    )
    return len(expired)


def _expired(s: Session, stream: StreamRow, partition: PartitionRow, limit: int) -> list[ChunkRow]:
    """The chunks at the start of the partition that are too old, up to the offset `limit`."""
    before = now_ms(s) - (stream.retention_ms or 0)
    query = (
        select(ChunkRow, SegmentRow.published_ms)
        .join(SegmentRow, SegmentRow.id == ChunkRow.segment_id)
        .where(ChunkRow.stream_id == stream.id, ChunkRow.partition == partition.partition)
        .where(ChunkRow.end_offset <= limit)
        .order_by(ChunkRow.end_offset)
        .limit(COLLECT_AT_ONCE)
    )
    old = takewhile(lambda row: (row.published_ms or 0) < before, s.execute(query))
    return [row.ChunkRow for row in old]


def drop_unreferenced(s: Session) -> int:
    """Drop published segments none of whose chunks is left. Returns how many."""
    is_referenced = exists().where(ChunkRow.segment_id == SegmentRow.id)
    return _drop(s, select(SegmentRow.id).where(SegmentRow.state == PUBLISHED, ~is_referenced))


def drop_stale_pending(s: Session, ttl_ms: int) -> int:
    """Drop segments that were announced more than `ttl_ms` ago and never published; those of live slots stay,
    for a slot announces ahead of its need. Returns how many."""
    old = (SegmentRow.state == PENDING) & (SegmentRow.created_ms < now_ms(s) - ttl_ms)
    is_live = exists().where(SlotRow.id == SegmentRow.writer, SlotRow.state == "live")
    return _drop(s, select(SegmentRow.id).where(old, ~is_live))


def _drop(s: Session, query: Select[str]) -> int:
    ids = s.scalars(query.limit(COLLECT_AT_ONCE).with_for_update(skip_locked=True, of=SegmentRow)).all()
    if ids:
        s.execute(update(SegmentRow).where(SegmentRow.id.in_(ids)).values(state=DROPPED, dropped_ms=now_ms(s)))
    return len(ids)


def deletable(s: Session, delay_ms: int) -> list[tuple[str, str]]:
    """Segments (id, path) that were dropped more than `delay_ms` ago: their files may go."""
    query = select(SegmentRow.id, SegmentRow.path).where(
        SegmentRow.state == DROPPED, SegmentRow.dropped_ms <= now_ms(s) - delay_ms
    )
    return [(i, path) for i, path in s.execute(query.order_by(SegmentRow.dropped_ms).limit(COLLECT_AT_ONCE))]


def forget(s: Session, segment_ids: Collection[str]) -> int:
    """Forget dropped segments whose files are deleted."""
    gone = (
        delete(SegmentRow).where(SegmentRow.id.in_(segment_ids), SegmentRow.state == DROPPED).returning(SegmentRow.id)
    )
    return len(s.scalars(gone).all())
