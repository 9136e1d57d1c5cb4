"""Instances, groups and rebalances, to be shown.

It knows rows; it refuses to change any (`service.coordinator` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import case, exists, func, select
from sqlalchemy.orm import Session, aliased

from service.catalog.job_states import STAFFED
from service.catalog.replicas import ACTIVE
from service.catalog.tables import InstanceRow, JobRow, RebalanceRow, ReplicaRow, ShareRow, SlotRow, TaskRow
from service.streams.errors import UnknownInstance, UnknownRebalance

LIVE, GONE = "live", "gone"


def list_instances(s: Session, *, limit: int = 100, after: str | None = None) -> Sequence[InstanceRow]:
    """Instances in the order of their names, beyond `after`; those that are gone too."""
    query = select(InstanceRow).order_by(InstanceRow.name).limit(limit)
    return s.scalars(query if after is None else query.where(InstanceRow.name > after)).all()


def get_instance(s: Session, instance_id: str) -> InstanceRow:
    """An instance by its id. Raises UnknownInstance."""
    instance = s.get(InstanceRow, instance_id)
    if instance is None:
        raise UnknownInstance(instance_id)
    return instance


def slots_of_instances(s: Session, instance_ids: Sequence[str]) -> list[tuple[str, SlotRow, str]]:
    """(instance id, live slot, name of its job), by job and index."""
    query = (
        select(SlotRow.instance_id, SlotRow, JobRow.name)
        .join(JobRow, JobRow.id == SlotRow.job_id)
        .where(SlotRow.instance_id.in_(instance_ids), SlotRow.state == LIVE)
        .order_by(JobRow.name, SlotRow.slot_index)
    )
    return [(instance_id, slot, job) for instance_id, slot, job in s.execute(query)]


class LostExecutor(NamedTuple):
    """A Spark executor that ended within an instance that goes on: how many slots ended with it that their jobs still
    want there, and how many of those run again.
    """

    executor: str
    lost_ms: int
    slots: int
    back: int


def lost_executors(s: Session, instance_ids: Sequence[str]) -> dict[str, list[LostExecutor]]:
    """Of each instance that is there, since it came, as far back as slots are kept; latest first."""
    again = aliased(SlotRow)
    of_job = (again.instance_id == SlotRow.instance_id, again.job_id == SlotRow.job_id, again.state == LIVE)
    has_come = exists().where(*of_job, again.slot_index == SlotRow.slot_index)
    live = select(func.count()).select_from(again).where(*of_job).correlate(SlotRow).scalar_subquery()
    shared = select(ShareRow.slots).where(
        ShareRow.instance_id == SlotRow.instance_id, ShareRow.job_id == SlotRow.job_id
    )
    query = (
        select(SlotRow.instance_id, SlotRow.executor)
        .add_columns(func.max(SlotRow.gone_ms), func.count(), func.sum(case((has_come, 1), else_=0)))
        .add_columns(func.max(shared.correlate(SlotRow).scalar_subquery()), func.max(live))
        .join(InstanceRow, InstanceRow.id == SlotRow.instance_id)
        .join(JobRow, JobRow.id == SlotRow.job_id)
        .where(SlotRow.instance_id.in_(instance_ids), SlotRow.state == GONE, SlotRow.is_executor_lost)
        .where(InstanceRow.state != GONE, SlotRow.gone_ms >= InstanceRow.joined_ms, JobRow.state.in_(STAFFED))
        .group_by(SlotRow.instance_id, SlotRow.executor, SlotRow.job_id)
    )
    found: dict[str, dict[str, LostExecutor]] = {}
    for instance_id, executor, lost_ms, lost, back, share, there in s.execute(query):
        missing = lost - back if share is None else min(lost - back, max(0, share - there))
        if back + missing:
            of = found.setdefault(instance_id, {})
            before = of.get(executor, LostExecutor(executor, 0, 0, 0))
            slots = before.slots + back + missing
            of[executor] = LostExecutor(executor, max(before.lost_ms, lost_ms), slots, before.back + back)
    return {at: sorted(of.values(), key=lambda lost: (-lost.lost_ms, lost.executor)) for at, of in found.items()}


class SlotTasks(NamedTuple):
    """What a slot owns, in the order of the tasks, and when one of them was committed, or given to it, last."""

    names: list[str]
    worked_ms: int


def tasks_of_slots(s: Session, slot_ids: Sequence[str]) -> dict[str, SlotTasks]:
    """Of each slot that owns a task."""
    query = (
        select(SlotRow.id, TaskRow.name, TaskRow.updated_ms)
        .join(ReplicaRow, ReplicaRow.slot_id == SlotRow.id)
        .join(TaskRow, TaskRow.id == ReplicaRow.task_id)
        .where(SlotRow.id.in_(slot_ids), ReplicaRow.role == ACTIVE)
        .order_by(TaskRow.sub_topology, TaskRow.partition)
    )
    found: dict[str, SlotTasks] = {}
    for slot_id, name, updated_ms in s.execute(query):
        before = found.get(slot_id, SlotTasks([], 0))
        found[slot_id] = SlotTasks([*before.names, name], max(before.worked_ms, updated_ms))
    return found


def members_of(s: Session, job_id: str) -> list[tuple[SlotRow, str]]:
    """(live slot of the job, name of its instance), in the order in which they joined."""
    query = (
        select(SlotRow, InstanceRow.name)
        .join(InstanceRow, InstanceRow.id == SlotRow.instance_id)
        .where(SlotRow.job_id == job_id, SlotRow.state == LIVE)
        .order_by(SlotRow.joined_ms, SlotRow.slot_index)
    )
    return [(slot, instance) for slot, instance in s.execute(query)]


def get_rebalance(s: Session, job: JobRow, generation: int) -> RebalanceRow:
    """The round of assignment that began a generation. Raises UnknownRebalance."""
    of_job = select(RebalanceRow).where(RebalanceRow.job_id == job.id, RebalanceRow.generation == generation)
    row = s.scalars(of_job).one_or_none()
    if row is None:
        raise UnknownRebalance(f"{job.name}/{generation}")
    return row


def rebalances_of(s: Session, job_id: str, *, limit: int = 100, before: int | None = None) -> Sequence[RebalanceRow]:
    """The rounds of assignment of a job, latest first; `before` the row of this id."""
    query = select(RebalanceRow).where(RebalanceRow.job_id == job_id).order_by(RebalanceRow.id.desc()).limit(limit)
    return s.scalars(query if before is None else query.where(RebalanceRow.id < before)).all()
