"""Stores by name, with the progress of each partition, from one snapshot.

It knows rows; it refuses to know what is in a store, and where its replicas lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.inputs import TaskInput, inputs_of_tasks
from service.catalog.jobs import streams_of
from service.catalog.replicas import ACTIVE
from service.catalog.tables import (
    InstanceRow,
    JobRow,
    JobStreamRow,
    Json,
    PartitionRow,
    ReplicaRow,
    SlotRow,
    StoreRow,
    TaskRow,
)
from service.streams.errors import UnknownStore


class StoreCopy(NamedTuple):
    """A copy of a partition of a store: its node and role, and the slot that keeps it (None: nobody does), with that
    slot's instance.
    """

    node_id: str
    role: str
    slot_id: str | None
    instance_id: str | None
    instance: str | None
    host: str | None


@dataclass(slots=True)
class StorePartition:
    """One partition of a store: its task, the end of its changelog, and its copies, the active one first.

    `lag_before`: what tasks before it have not read.
    """

    partition: int
    task: str
    stream_time: int
    end: int
    copies: Sequence[StoreCopy]
    inputs: list[TaskInput]
    lag_before: int = 0

    @property
    def owner(self) -> StoreCopy | None:
        """The copy that the task runs on; None while nobody owns the task."""
        first = next(iter(self.copies), None)
        return first if first is not None and first.role == ACTIVE and first.slot_id is not None else None

    @property
    def input_lag(self) -> int:
        """Records that are there and were not read yet; behind repartition streams all that may be for it."""
        return self.lag_before + sum(at.lag for at in self.inputs)


class TaskBefore(NamedTuple):
    """A task whose results come to a store through repartition streams. `has_backlog`: it owes some of what it read."""

    name: str
    sub_topology: int
    has_backlog: bool
    inputs: list[TaskInput]


@dataclass(slots=True)
class StoreNow:
    """A store, its job, and all its partitions in order.

    `sources`: ids of all streams that reach it; `before`: the tasks whose results do through repartition streams, and
    `writers`: by id of such a stream their sub-topology.
    """

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
    spec_version: int
    is_keyed: bool
    partitions: list[StorePartition]
    sources: set[str]
    before: list[TaskBefore]
    writers: dict[str, int]


_STORES = (  # of operators: what a removed one kept is there for nobody
    select(StoreRow, JobRow).join(JobRow, JobRow.id == StoreRow.job_id).where(StoreRow.is_removed.is_(False))
)


def store_now(s: Session, name: str) -> StoreNow:
    """The store of this name. Raises UnknownStore."""
    found = s.execute(_STORES.where(StoreRow.name == name)).one_or_none()
    if found is None:
        raise UnknownStore(name)
    return _described(s, *found)


def stores_now(s: Session, *, limit: int = 100, after: str | None = None) -> list[StoreNow]:
    """Stores in the order of their names, beyond `after`."""
    query = _STORES.order_by(StoreRow.name).limit(limit)
    rows = s.execute(query if after is None else query.where(StoreRow.name > after)).all()
    return [_described(s, store, job) for store, job in rows]


def store_ids(s: Session) -> Sequence[str]:
    """The ids of all stores that operators have."""
    return s.scalars(select(StoreRow.id).where(StoreRow.is_removed.is_(False))).all()


def live_stores(s: Session, store_ids: Sequence[str]) -> Sequence[str]:
    """Those of the ids that operators have a store of."""
    return s.scalars(select(StoreRow.id).where(StoreRow.id.in_(store_ids), StoreRow.is_removed.is_(False))).all()


def _described(s: Session, store: StoreRow, job: JobRow) -> StoreNow:
    before = _tasks_before(s, store, job)
    partitions = _partitions(s, store, _lag(before))
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
        spec_version=job.spec_version,
        is_keyed=_is_keyed(s, store, job),
        partitions=partitions,
        sources={at.stream_id for inputs in _read(partitions, before) for at in inputs},
        before=before,
        writers=_writers(s, job) if before else {},
    )


def _read(partitions: Sequence[StorePartition], before: Sequence[TaskBefore]) -> list[list[TaskInput]]:
    return [*(each.inputs for each in partitions), *(task.inputs for task in before)]


def _is_keyed(s: Session, store: StoreRow, job: JobRow) -> bool:
    """Whether the key of a record says which partition of the store it comes to."""
    sub_topologies = job.topology["sub_topologies"]
    by = {at["stream"]: at["by"] for each in sub_topologies for at in each.get("repartitions", [])}
    read = sub_topologies[store.sub_topology]["sources"]
    custom = {source.name for source in streams_of(s, job.id, "source") if source.custom_partitioning}
    return custom.isdisjoint(read) and all(by.get(name) is None for name in read)


def _tasks_before(s: Session, store: StoreRow, job: JobRow) -> list[TaskBefore]:
    sub_topologies = job.topology["sub_topologies"]
    found, left = set[int](), [store.sub_topology]
    while left:
        upstream = set(sub_topologies[left.pop()].get("upstreams", [])) - found
        found |= upstream
        left += upstream
    if not found:
        return []
    query = select(TaskRow.id, TaskRow.name, TaskRow.sub_topology, TaskRow.has_backlog)
    query = query.where(TaskRow.job_id == job.id, TaskRow.sub_topology.in_(found))
    rows = s.execute(query.order_by(TaskRow.sub_topology, TaskRow.partition)).all()
    inputs = inputs_of_tasks(s, [row.id for row in rows])
    return [TaskBefore(name, sub_topology, owes, inputs[task_id]) for task_id, name, sub_topology, owes in rows]


def _lag(before: Sequence[TaskBefore]) -> int:
    """Records that these tasks have not read: what several read of one log, once."""
    logs: dict[tuple[str, int], int] = {}
    for task in before:
        for at in task.inputs:
            logs[at.stream_id, at.partition] = max(at.lag, logs.get((at.stream_id, at.partition), 0))
    return sum(logs.values())


def _writers(s: Session, job: JobRow) -> dict[str, int]:
    query = select(JobStreamRow.stream_id, JobStreamRow.sub_topology).where(JobStreamRow.job_id == job.id)
    rows = s.execute(query.where(JobStreamRow.sub_topology.is_not(None)))
    return {stream_id: sub_topology for stream_id, sub_topology in rows if sub_topology is not None}


def _partitions(s: Session, store: StoreRow, lag_before: int) -> list[StorePartition]:
    query = (
        select(TaskRow.id, TaskRow.partition, TaskRow.name, TaskRow.stream_time, PartitionRow.end_offset)
        .join(
            PartitionRow,
            (PartitionRow.stream_id == store.changelog_stream_id) & (PartitionRow.partition == TaskRow.partition),
        )
        .where(TaskRow.job_id == store.job_id, TaskRow.sub_topology == store.sub_topology)
        .order_by(TaskRow.partition)
    )
    rows = s.execute(query).all()
    task_ids = [row.id for row in rows]
    inputs, copies = inputs_of_tasks(s, task_ids), _copies(s, task_ids)
    return [
        StorePartition(p, task, time, end, copies[task_id], inputs[task_id], lag_before)
        for task_id, p, task, time, end in rows
    ]


def _copies(s: Session, task_ids: Sequence[str]) -> dict[str, list[StoreCopy]]:
    """Task id → its copies, the active one first, then by node."""
    query = (
        select(ReplicaRow.task_id, ReplicaRow.node_id, ReplicaRow.role, ReplicaRow.slot_id)
        .add_columns(SlotRow.instance_id, InstanceRow.name, InstanceRow.host)
        .outerjoin(SlotRow, SlotRow.id == ReplicaRow.slot_id)
        .outerjoin(InstanceRow, InstanceRow.id == SlotRow.instance_id)
        .where(ReplicaRow.task_id.in_(task_ids))
        .order_by(ReplicaRow.role, ReplicaRow.node_id)
    )
    found: dict[str, list[StoreCopy]] = {task_id: [] for task_id in task_ids}
    for task_id, *copy in s.execute(query):
        found[task_id].append(StoreCopy(*copy))
    return found
