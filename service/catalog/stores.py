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
from service.catalog.tables import INPUT_PARTITION, Instance, Job, Json, Partition, Slot, Store, Task, TaskPosition
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
    found = s.execute(select(Store, Job).join(Job, Job.id == Store.job_id).where(Store.name == name)).one_or_none()
    if found is None:
        raise UnknownStore(name)
    return _described(s, *found)


def stores_now(s: Session, *, limit: int = 100, after: str | None = None) -> list[StoreNow]:
    """Stores in the order of their names, beyond `after`."""
    query = select(Store, Job).join(Job, Job.id == Store.job_id).order_by(Store.name).limit(limit)
    rows = s.execute(query if after is None else query.where(Store.name > after)).all()
    return [_described(s, store, job) for store, job in rows]


def store_ids(s: Session) -> Sequence[str]:
    """The ids of all stores."""
    return s.scalars(select(Store.id)).all()


def _described(s: Session, store: Store, job: Job) -> StoreNow:
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


def _partitions(s: Session, store: Store) -> list[StorePartition]:
    query = (
        select(Task.id, Task.partition, Task.name, Task.stream_time, Task.applied, Partition.end_offset)
        .add_columns(Task.slot_id, Instance.id, Instance.name, Instance.host)
        .join(
            Partition,
            (Partition.stream_id == store.changelog_stream_id) & (Partition.partition == Task.partition),
        )
        .outerjoin(Slot, Slot.id == Task.slot_id)
        .outerjoin(Instance, Instance.id == Slot.instance_id)
        .where(Task.job_id == store.job_id, Task.sub_topology == store.sub_topology)
        .order_by(Task.partition)
    )
    found = {}
    for task_id, partition, name, stream_time, applied, end, slot_id, *instance in s.execute(query):
        at = applied.get(store.id, 0)
        found[task_id] = StorePartition(partition, name, stream_time, at, end, slot_id, *instance)
    inputs = (
        select(TaskPosition.task_id, TaskPosition.stream_id, TaskPosition.position, Partition.end_offset)
        .join(Partition, INPUT_PARTITION)
        .join(Task, Task.id == TaskPosition.task_id)
        .where(Task.job_id == store.job_id, Task.sub_topology == store.sub_topology)
    )
    for task_id, stream_id, position, end in s.execute(inputs):
        found[task_id].inputs[stream_id] = Input(position, end)
    return list(found.values())
