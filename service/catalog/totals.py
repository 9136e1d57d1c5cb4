"""Totals of what the catalog holds, for metrics and readiness.

It knows sums and counts; it refuses to know how they are named and shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.catalog.engine import now_ms
from service.catalog.inputs import Lag, TaskInput, inputs_of_all, inputs_of_job, lag_of, unread_of_repartitions
from service.catalog.job_states import STAFFED
from service.catalog.jobs import READS_USER, of_job
from service.catalog.replicas import ACTIVE, HAS_OWNER, IS_CHANGELOG_OF, IS_STORE_OF
from service.catalog.subscriptions import SubscriptionLag, subscription_lags
from service.catalog.tables import (
    InstanceRow,
    JobRow,
    Json,
    PartitionRow,
    RebalanceRow,
    ReplicaRow,
    SlotRow,
    StoreRow,
    StreamRow,
    TaskRow,
)


class TaskTotals(NamedTuple):
    """A task by job and name: the counters of its commits, its lag, and whether it reads what users posted."""

    job: str
    task: str
    sub_topology: int
    partition: int
    counters: Json
    lag: Lag
    reads_user: bool = True


class CopyLag(NamedTuple):
    """A copy that a slot keeps of a task that runs elsewhere, and how many records it has still to replay."""

    job: str
    task: str
    node: str
    role: str
    lag: int


class OperatorStore(NamedTuple):
    """An operator that keeps state, and its store."""

    job: str
    operator: str
    sub_topology: int
    id: str
    type: str
    kind: str

    @property
    def has_windows(self) -> bool:
        """Whether records may come too late for it."""
        return self.type in ("session", "window")


@dataclass
class CatalogTotals:
    """Totals since each job was made. `jobs` by state, `rebalances`, `versions` by job; of jobs with repartition
    streams `repartition_bytes`: what lies in them, and `repartition_lag`: records that not every target has passed.
    """

    jobs: dict[str, int]
    rebalances: dict[str, int]
    live_instances: int
    live_slots: int
    jobs_without_cores: int
    tasks: Sequence[TaskTotals]
    stores: Sequence[OperatorStore]
    repartition_bytes: Mapping[str, int] = field(default_factory=dict)
    repartition_lag: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    copies: Sequence[CopyLag] = ()
    subscriptions: Sequence[SubscriptionLag] = ()

    @cached_property
    def records_in(self) -> Counter[str]:
        """By job: what its tasks read of what users posted."""
        return self._by_job("records_in")

    @cached_property
    def records_out(self) -> Counter[str]:
        """By job."""
        return self._by_job("records_out")

    @cached_property
    def lag(self) -> Counter[str]:
        """By job: what its tasks have not read of what users posted."""
        found: Counter[str] = Counter()
        for task in self.tasks:
            found[task.job] += task.lag.of_users
        return found

    def _by_job(self, counter: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for task in self.tasks:
            found[task.job] += of_job(task.counters, reads_user=task.reads_user).get(counter, 0)
        return found


def catalog_totals(s: Session) -> CatalogTotals:
    """All of it, from one snapshot."""
    inputs = inputs_of_all(s)
    unread = unread_of_repartitions(chain.from_iterable(inputs.values()))
    repartition_bytes, repartition_lag = Counter[str](), Counter[str]()
    for job, stream_id, size in s.execute(_REPARTITION_BYTES):
        repartition_bytes[job] += int(size)
        repartition_lag[job] += unread.get(stream_id, 0)
    return CatalogTotals(
        jobs=dict(s.execute(select(JobRow.state, func.count()).group_by(JobRow.state)).all()),
        rebalances=dict(s.execute(_REBALANCES).all()),
        live_instances=live_instances(s),
        live_slots=s.scalars(
            select(func.count()).where(SlotRow.state == "live", SlotRow.lease_until_ms > now_ms(s))
        ).one(),
        jobs_without_cores=s.scalars(
            select(func.count()).select_from(JobRow).where(JobRow.state.in_(STAFFED), JobRow.shortage != "")
        ).one(),
        tasks=_task_totals(s, _TASKS, inputs),
        stores=operator_stores(s),
        repartition_bytes=repartition_bytes,
        repartition_lag=repartition_lag,
        versions=dict(s.execute(select(JobRow.name, JobRow.spec_version)).all()),
        copies=_copy_lags(s),
        subscriptions=subscription_lags(s),
    )


def _copy_lags(s: Session) -> list[CopyLag]:
    """By what was last reported of them."""
    lags: Counter[tuple[str, str, str, str]] = Counter()
    for *copy, store_id, applied, end in s.execute(_COPIES):
        job, task, node, role = copy
        lags[job, task, node, role] += max(0, end - applied.get(store_id, 0))
    return [CopyLag(*copy, lag) for copy, lag in lags.items()]


def task_totals(s: Session, job_id: str) -> list[TaskTotals]:
    """The tasks of a job, in order."""
    return _task_totals(s, _TASKS.where(JobRow.id == job_id), inputs_of_job(s, job_id))


def _task_totals(s: Session, tasks: Select[Any], inputs: Mapping[str, Sequence[TaskInput]]) -> list[TaskTotals]:
    return [
        TaskTotals(job, task, sub_topology, partition, counters, lag_of(inputs[task_id]), reads_user)
        for job, task, sub_topology, partition, counters, task_id, reads_user in s.execute(tasks)
    ]


def operator_stores(s: Session, job_id: str | None = None) -> list[OperatorStore]:
    """The operators with state of one job or of all, in order."""
    query = (
        select(JobRow.name, StoreRow.operator, StoreRow.sub_topology, StoreRow.id, StoreRow.type, StoreRow.kind)
        .join(StoreRow, (StoreRow.job_id == JobRow.id) & StoreRow.is_removed.is_(False))
        .order_by(JobRow.name, StoreRow.operator)
    )
    return [OperatorStore(*row) for row in s.execute(query if job_id is None else query.where(JobRow.id == job_id))]


def store_partitions(tasks: Iterable[TaskTotals], stores: Iterable[OperatorStore]) -> list[tuple[str, int]]:
    """The id and partition of every task's stores."""
    partitions: dict[tuple[str, int], list[int]] = {}
    for task in tasks:
        partitions.setdefault((task.job, task.sub_topology), []).append(task.partition)
    return [(store.id, p) for store in stores for p in partitions.get((store.job, store.sub_topology), [])]


_COPIES = (
    select(JobRow.name, TaskRow.name, ReplicaRow.node_id, ReplicaRow.role, StoreRow.id, ReplicaRow.applied)
    .add_columns(PartitionRow.end_offset)
    .join(TaskRow, TaskRow.job_id == JobRow.id)
    .join(ReplicaRow, ReplicaRow.task_id == TaskRow.id)
    .join(StoreRow, IS_STORE_OF)
    .join(PartitionRow, IS_CHANGELOG_OF)
    .where(ReplicaRow.role != ACTIVE, ReplicaRow.slot_id.is_not(None), StoreRow.is_removed.is_(False))
    .order_by(JobRow.name, TaskRow.sub_topology, TaskRow.partition, ReplicaRow.node_id)
)
_TASKS = (
    select(JobRow.name, TaskRow.name, TaskRow.sub_topology, TaskRow.partition, TaskRow.counters)
    .add_columns(TaskRow.id, READS_USER.label("reads_user"))
    .join(TaskRow, TaskRow.job_id == JobRow.id)
    .order_by(JobRow.name, TaskRow.sub_topology, TaskRow.partition)
)
_REPARTITION_BYTES = (
    select(JobRow.name, StreamRow.id, func.sum(PartitionRow.bytes))
    .join(StreamRow, StreamRow.job_id == JobRow.id)
    .join(PartitionRow, PartitionRow.stream_id == StreamRow.id)
    .where(StreamRow.kind == "repartition")
    .group_by(JobRow.name, StreamRow.id)
)
_REBALANCES = (
    select(JobRow.name, func.count()).join(RebalanceRow, RebalanceRow.job_id == JobRow.id).group_by(JobRow.name)
)


def instances_standing(s: Session) -> str:
    """`ok` where a live instance and every job that wants to run have what they need, else what is missing."""
    is_live = (InstanceRow.state == "live", InstanceRow.lease_until_ms > now_ms(s))
    shortages = s.scalars(select(InstanceRow.shortage).where(*is_live).distinct()).all()
    if not shortages:
        return "none is alive"
    waiting = select(func.count()).select_from(TaskRow).join(JobRow, JobRow.id == TaskRow.job_id)
    waiting = waiting.where(JobRow.state.in_(STAFFED), ~HAS_OWNER)
    has_cores = "" in shortages
    count = s.scalars(waiting.where(JobRow.shortage != "") if has_cores else waiting).one()
    if count:
        return f"{count} tasks wait for cores"
    return "ok" if has_cores else "no cores"


def live_instances(s: Session) -> int:
    """The number of instances that hold a lease."""
    query = select(func.count()).where(InstanceRow.state == "live", InstanceRow.lease_until_ms > now_ms(s))
    return s.scalars(query).one()
