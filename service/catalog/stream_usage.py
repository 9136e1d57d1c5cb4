"""Who writes a stream and who reads it, how far behind, and what its partitions hold.

It knows jobs and subscriptions by what they do to a stream. It refuses to know who posts records over HTTP: nobody
registers for that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from service.catalog import streams, subscriptions
from service.catalog.inputs import lowest_positions_by_job
from service.catalog.subscriptions import SubscriptionState
from service.catalog.tables import ChunkRow, JobRow, JobStreamRow, Json, PartitionRow, SegmentRow, StreamRow

_WRITES: Final = frozenset({"sink", "internal"})
_READS: Final = frozenset({"source", "internal"})


class StreamWriter(NamedTuple):
    """A job that writes a stream."""

    job: str
    state: str


class StreamReader(NamedTuple):
    """Who reads a stream: its name and state, what it has not read yet, the age of the oldest of that where it is known
    (ms), and what is wrong with it.
    """

    kind: Literal["job", "subscription", "webhook"]
    name: str
    state: str
    lag_records: int
    lag_ms: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Of one stream."""

    stream: StreamRow
    writers: list[StreamWriter] = field(default_factory=list)
    readers: list[StreamReader] = field(default_factory=list)


class PartitionContent(NamedTuple):
    """What a partition holds: `files` segments; timestamps of its records (ms; None: it has none); when the oldest file
    was published, and when it last grew.
    """

    row: PartitionRow
    files: int
    first_timestamp: int | None
    last_timestamp: int | None
    oldest_ms: int | None


def usage_of(s: Session, found: Sequence[StreamRow]) -> list[StreamUsage]:
    """Who uses each of these streams; the same number of statements for any number of them."""
    usage = {stream.id: StreamUsage(stream) for stream in found}
    lags = _lags(s, usage)
    for job in _jobs(s, usage):
        of, stream = usage[job.stream_id], usage[job.stream_id].stream
        if job.role in _WRITES:
            of.writers.append(StreamWriter(job.name, job.state))
        if job.role in _READS and (job.role == "source" or stream.kind == "repartition"):
            lag = lags.get((stream.id, job.id), 0)
            of.readers.append(StreamReader("job", job.name, job.state, lag, None, _said(job.error, job.state)))
    for state in subscriptions.states_of_streams(s, usage):
        usage[state.row.stream_id].readers.append(_subscriber(state))
    return list(usage.values())


def contents_of(s: Session, stream: StreamRow) -> list[PartitionContent]:
    """What the partitions of a stream hold, in order."""
    of_partition = (
        select(ChunkRow.partition, func.count(ChunkRow.segment_id.distinct()), func.min(ChunkRow.min_timestamp))
        .add_columns(func.max(ChunkRow.max_timestamp), func.min(SegmentRow.published_ms))
        .join(SegmentRow, SegmentRow.id == ChunkRow.segment_id)
        .where(ChunkRow.stream_id == stream.id)
        .group_by(ChunkRow.partition)
    )
    found = {partition: tuple(rest) for partition, *rest in s.execute(of_partition)}
    contents = []
    for row in streams.partitions_of(s, stream.id):
        files, first, last, oldest_ms = found.get(row.partition, (0, None, None, None))
        if stream.kind == "changelog":  # its entries have no times of their own
            first = last = None
        contents.append(PartitionContent(row, files, first, last, oldest_ms))
    return contents


def _jobs(s: Session, stream_ids: Collection[str]) -> Sequence[Row[*tuple[Any, ...]]]:
    """By name, without their topologies: a row for each stream that a job has to do with."""
    query = (
        select(JobRow.id, JobRow.name, JobRow.state, JobRow.error, JobStreamRow.stream_id, JobStreamRow.role)
        .join(JobStreamRow, JobStreamRow.job_id == JobRow.id)
        .where(JobStreamRow.stream_id.in_(stream_ids))
    )
    return s.execute(query.order_by(JobRow.name)).all()


def _lags(s: Session, stream_ids: Collection[str]) -> Mapping[tuple[str, str], int]:
    """(stream id, job id) → offsets that the job has not read yet."""
    query = select(PartitionRow.stream_id, PartitionRow.partition, PartitionRow.end_offset)
    ends = {
        (stream_id, partition): end
        for stream_id, partition, end in s.execute(query.where(PartitionRow.stream_id.in_(stream_ids)))
    }
    lags: dict[tuple[str, str], int] = defaultdict(int)
    for at, position in lowest_positions_by_job(s, stream_ids).items():
        lags[at.stream_id, at.job_id] += max(0, ends.get((at.stream_id, at.partition), 0) - position)
    return lags


def _said(error: Json | None, state: str) -> str | None:
    return f"{error['code']}: {error['detail']}" if error is not None and state == "failed" else None


def _subscriber(state: SubscriptionState) -> StreamReader:
    row, lag = state.row, state.lag
    failures = [at.failure for at in state.partitions if at.failure is not None]
    said = "expired" if state.is_expired else "reading" if state.consumers else "idle"
    error = None if not failures else f"{failures[0]['detail']} ({failures[0]['attempts']} attempts)"
    kind: Literal["subscription", "webhook"] = "subscription" if row.push_url is None else "webhook"
    return StreamReader(kind, row.name, said, lag.records, lag.ms, error)
