"""Stores as people look them up: which there are, and how far each partition is, from one snapshot.

It knows rows; it refuses to know what is in a store, and where its replicas lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.jobs import streams_of
from service.catalog.tables import (
    INPUT_PARTITION,
    InstanceRow,
    JobRow,
    Json,
    PartitionRow,
    SlotRow,
    StoreRow,
    TaskPositionRow,
    TaskRow,
)
from service.streams.errors import UnknownStore


class Input(NamedTuple):
    """How far a task has read one partition of a stream."""

    position: int
    end: int


@dataclass(slots=True)
class StorePartition:
    """One partition of a store: its task, the end of its changelog, and how far its owner's replica said it was.

    `inputs`: stream id → Input. `instance_id`: of the owner, None while nobody owns the task.
    """

    partition: int
    task: str
    stream_time: int
    applied: int
    end: int
    slot_id: str | None
    instance_id: str | None
    instance: str | None
    host: str | None
    inputs: dict[str, Input] = field(default_factory=dict)

    @property
    def input_lag(self) -> int:
        """Records that are there and were not read yet."""
        return sum(at.end - at.position for at in self.inputs.values())


@dataclass(slots=True)
class StoreNow:
    """A store, its job, and all its partitions in order."""

    id: str
    name: str
    type: str
    kind: str
    operator: str
    sub_topology: int
    changelog: str
    job_id: str
    job: str
    job_state: str
    job_error: Json | None
    topology: Json
    is_keyed: bool
    partitions: list[StorePartition]


def store_now(s: Session, name: str) -> StoreNow:
    """The store of this name. Raises UnknownStore."""
    found = s.execute(
        select(StoreRow, JobRow).join(JobRow, JobRow.id == StoreRow.job_id).where(StoreRow.name == name)
    ).one_or_none()
    if found is None:
        raise UnknownStore(name)
    return _described(s, *found)


def stores_now(s: Session, *, limit: int = 100, after: str | None = None) -> list[StoreNow]:
    """Stores in the order of their names, beyond `after`."""
    query = select(StoreRow, JobRow).join(JobRow, JobRow.id == StoreRow.job_id).order_by(StoreRow.name).limit(limit)
    rows = s.execute(query if after is None else query.where(StoreRow.name > after)).all()
    return [_described(s, store, job) for store, job in rows]


def store_ids(s: Session) -> Sequence[str]:
    """The ids of all stores."""
    return s.scalars(select(StoreRow.id)).all()


def _described(s: Session, store: StoreRow, job: JobRow) -> StoreNow:
    sources = streams_of(s, job.id, "source")
    return StoreNow(
        id=store.id,
        name=store.name,
        type=store.type,
        kind=store.kind,
        operator=store.operator,
        sub_topology=store.sub_topology,
        changelog=store.changelog_stream_id,
        job_id=job.id,
        job=job.name,
        job_state=job.state,
        job_error=job.error,
        topology=job.topology,
        is_keyed=not any(source.custom_partitioning for source in sources),
        partitions=_partitions(s, store),
    )


def _partitions(s: Session, store: StoreRow) -> list[StorePartition]:
    query = (
        select(
            TaskRow.id, TaskRow.partition, TaskRow.name, TaskRow.stream_time, TaskRow.applied, PartitionRow.end_offset
        )
        .add_columns(TaskRow.slot_id, InstanceRow.id, InstanceRow.name, InstanceRow.host)
        .join(
            PartitionRow,
            (PartitionRow.stream_id == store.changelog_stream_id) & (PartitionRow.partition == TaskRow.partition),
        )
        .outerjoin(SlotRow, SlotRow.id == TaskRow.slot_id)
        .outerjoin(InstanceRow, InstanceRow.id == SlotRow.instance_id)
        .where(TaskRow.job_id == store.job_id, TaskRow.sub_topology == store.sub_topology)
        .order_by(TaskRow.partition)
    )
    found = {}
    for task_id, partition, name, stream_time, applied, end, slot_id, *instance in s.execute(query):
        at = applied.get(store.id, 0)
        found[task_id] = StorePartition(partition, name, stream_time, at, end, slot_id, *instance)
    inputs = (
        select(TaskPositionRow.task_id, TaskPositionRow.stream_id, TaskPositionRow.position, PartitionRow.end_offset)
        .join(PartitionRow, INPUT_PARTITION)
        .join(TaskRow, TaskRow.id == TaskPositionRow.task_id)
        .where(TaskRow.job_id == store.job_id, TaskRow.sub_topology == store.sub_topology)
    )
    for task_id, stream_id, position, end in s.execute(inputs):
        found[task_id].inputs[stream_id] = Input(position, end)
    return list(found.values())
