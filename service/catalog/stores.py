"""Stores by name, with the progress of each partition, from one snapshot.

It knows rows; it refuses to know what is in a store, and where its replicas lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.inputs import TaskInput, inputs_of_tasks
from service.catalog.jobs import streams_of
from service.catalog.replicas import IS_ACTIVE
from service.catalog.tables import (
    InstanceRow,
    JobRow,
    Json,
    PartitionRow,
    ReplicaRow,
    SlotRow,
    StoreRow,
    TaskRow,
)
from service.streams.errors import UnknownStore


@dataclass(slots=True)
class StorePartition:
    """One partition of a store: its task, the end of its changelog, and how far its owner's replica said it was.

    `instance_id`: of the owner, None while nobody owns the task.
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
    inputs: list[TaskInput]

    @property
    def input_lag(self) -> int:
        """Records that are there and were not read yet."""
        return sum(at.lag for at in self.inputs)


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
        select(TaskRow.id, TaskRow.partition, TaskRow.name, TaskRow.stream_time, ReplicaRow.applied)
        .select_from(TaskRow)
        .add_columns(PartitionRow.end_offset, ReplicaRow.slot_id, InstanceRow.id, InstanceRow.name, InstanceRow.host)
        .join(
            PartitionRow,
            (PartitionRow.stream_id == store.changelog_stream_id) & (PartitionRow.partition == TaskRow.partition),
        )
        .outerjoin(ReplicaRow, IS_ACTIVE)
        .outerjoin(SlotRow, SlotRow.id == ReplicaRow.slot_id)
        .outerjoin(InstanceRow, InstanceRow.id == SlotRow.instance_id)
        .where(TaskRow.job_id == store.job_id, TaskRow.sub_topology == store.sub_topology)
        .order_by(TaskRow.partition)
    )
    rows = s.execute(query).all()
    inputs = inputs_of_tasks(s, [row.id for row in rows])
    found = []
    for task_id, p, task, time, applied, end, *owner in rows:
        slot_id, instance_id, instance, host = owner
        at = (applied or {}).get(store.id, 0)
        found.append(StorePartition(p, task, time, at, end, slot_id, instance_id, instance, host, inputs[task_id]))
    return found
