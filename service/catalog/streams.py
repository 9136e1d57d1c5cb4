"""Streams and their partitions: made, described, changed, deleted.

It knows names, settings and who uses a stream; it refuses to know what is in a stream (`segments`) and what a valid
name is (the API).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from service.catalog.engine import PUSHES, partition_topic, stream_topic, subscription_topic, wake
from service.catalog.tables import (
    ChunkRow,
    IngestKeyRow,
    JobRow,
    JobStreamRow,
    Json,
    PartitionRow,
    StreamRow,
    SubscriptionPositionRow,
    SubscriptionRow,
)
from service.streams.errors import InternalStream, StaleTag, StreamExists, StreamInUse, UnknownStream

HOUR_MS = 3_600_000
_BOUNDS = select(
    PartitionRow.stream_id,
    PartitionRow.partition,
    PartitionRow.start_offset,
    PartitionRow.end_offset,
    PartitionRow.records,
    PartitionRow.bytes,
).order_by(PartitionRow.stream_id, PartitionRow.partition)


class PartitionBounds(NamedTuple):
    """A partition, and how much is in it."""

    partition: int
    start_offset: int
    end_offset: int
    records: int
    bytes: int


def create_stream(
    s: Session,
    name: str,
    *,
    partitions: int,
    retention_ms: int | None = None,
    fields: Json | None = None,
    max_future_ms: int = HOUR_MS,
    kind: str = "user",
    job_id: str | None = None,
) -> StreamRow:
    """Make a stream with empty partitions. Raises StreamExists."""
    if find_stream(s, name) is not None:
        raise StreamExists(name)
    stream = StreamRow(
        name=name,
        partitions=partitions,
        retention_ms=retention_ms,
        fields=fields,
        max_future_ms=max_future_ms,
        kind=kind,
        job_id=job_id,
    )
    s.add(stream)
    s.flush()
    s.execute(insert(PartitionRow), [{"stream_id": stream.id, "partition": p} for p in range(partitions)])
    return stream


def widen_stream(s: Session, stream: StreamRow, partitions: int) -> None:
    """Give a stream of a job's own so many partitions, behind those that it has."""
    added = range(stream.partitions, partitions)
    s.execute(insert(PartitionRow), [{"stream_id": stream.id, "partition": p} for p in added])
    stream.partitions = partitions
    stream.etag += 1


def find_stream(s: Session, name: str) -> StreamRow | None:
    """The stream of this name, if there is one."""
    return s.scalars(select(StreamRow).where(StreamRow.name == name)).one_or_none()


def get_stream(s: Session, name: str) -> StreamRow:
    """The stream of this name. Raises UnknownStream."""
    stream = find_stream(s, name)
    if stream is None:
        raise UnknownStream(name)
    return stream


def list_streams(s: Session, *, limit: int = 100, after: str | None = None) -> list[StreamRow]:
    """Streams in the order of their names, beyond `after`."""
    query = select(StreamRow).order_by(StreamRow.name).limit(limit)
    return list(s.scalars(query if after is None else query.where(StreamRow.name > after)))


def partitions_of(s: Session, stream_id: str) -> list[PartitionRow]:
    """The partitions of a stream, in order."""
    query = select(PartitionRow).where(PartitionRow.stream_id == stream_id).order_by(PartitionRow.partition)
    return list(s.scalars(query))


def partitions_of_each(s: Session, stream_ids: Sequence[str]) -> dict[str, list[PartitionBounds]]:
    """Stream id → its partitions, in order, of each of these streams: one query, for there may be thousands."""
    found: dict[str, list[PartitionBounds]] = {stream_id: [] for stream_id in stream_ids}
    for stream_id, *bounds in s.execute(_BOUNDS.where(PartitionRow.stream_id.in_(stream_ids))):
        found[stream_id].append(PartitionBounds(*bounds))
    return found


def update_stream(s: Session, name: str, expected_etag: int | None = None, **changes: Any) -> StreamRow:
    """Change `retention_ms`, `fields`, `max_future_ms` or `retention_overrides_jobs`.

    Raises UnknownStream, StaleTag, InternalStream.
    """
    stream = _own_stream(s, name)
    if expected_etag is not None and stream.etag != expected_etag:
        raise StaleTag(name)
    for column, value in changes.items():
        setattr(stream, column, value)
    stream.etag += 1
    return stream


def mark_custom_partitioning(s: Session, stream_id: str) -> None:
    """Remember that a writer chose partitions itself: equal keys may lie in several."""
    query = update(StreamRow).where(StreamRow.id == stream_id, StreamRow.custom_partitioning.is_(False))
    s.execute(query.values(custom_partitioning=True, etag=StreamRow.etag + 1))


def delete_stream(s: Session, name: str) -> None:
    """Delete a stream that no job reads or writes, with its subscriptions. Raises UnknownStream, InternalStream,
    StreamInUse.
    """
    stream = _own_stream(s, name, to_delete=True)
    lock_partitions_of(s, [stream.id])
    users = s.scalars(
        select(JobRow.name)
        .join(JobStreamRow, JobStreamRow.job_id == JobRow.id)
        .where(JobStreamRow.stream_id == stream.id)
    )
    names = sorted(set(users))
    if names:
        raise StreamInUse(name, names)
    remove_subscriptions(s, s.scalars(select(SubscriptionRow.id).where(SubscriptionRow.stream_id == stream.id)).all())
    remove_streams(s, [stream.id])


def remove_streams(s: Session, stream_ids: Sequence[str]) -> None:
    """Remove streams and what they hold; the collector drops the segments that nothing refers to any more. Who waits
    for records of them hears of it.
    """
    gone = lock_partitions_of(s, stream_ids)
    wake(s, *map(stream_topic, stream_ids), *(partition_topic(at.stream_id, at.partition) for at in gone))
    s.execute(delete(ChunkRow).where(ChunkRow.stream_id.in_(stream_ids)))
    s.execute(delete(IngestKeyRow).where(IngestKeyRow.stream_id.in_(stream_ids)))
    s.execute(delete(PartitionRow).where(PartitionRow.stream_id.in_(stream_ids)))
    s.execute(delete(StreamRow).where(StreamRow.id.in_(stream_ids)))


def remove_subscriptions(s: Session, subscription_ids: Sequence[str]) -> None:
    """Remove subscriptions with their positions; who waits in a pull hears of it."""
    wake(s, *map(subscription_topic, subscription_ids), *([PUSHES] if subscription_ids else []))
    s.execute(delete(SubscriptionPositionRow).where(SubscriptionPositionRow.subscription_id.in_(subscription_ids)))
    s.execute(delete(SubscriptionRow).where(SubscriptionRow.id.in_(subscription_ids)))


def lock_partitions_of(s: Session, stream_ids: Iterable[str]) -> list[PartitionRow]:
    """Lock every partition of these streams, in the order of their ids, and read them."""
    query = (
        select(PartitionRow)
        .where(PartitionRow.stream_id.in_(sorted(stream_ids)))
        .order_by(PartitionRow.stream_id, PartitionRow.partition)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    return list(s.scalars(query))


def _own_stream(s: Session, name: str, *, to_delete: bool = False) -> StreamRow:
    """A stream that people may change, locked; `to_delete`: also against a job that is about to refer to it."""
    query = select(StreamRow).where(StreamRow.name == name).with_for_update(key_share=not to_delete)
    stream = s.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if stream is None:
        raise UnknownStream(name)
    if stream.kind != "user":
        raise InternalStream(name)
    return stream
