"""Instances, groups and rebalances, to be shown.

It knows rows; it refuses to change any (`service.coordinator` does).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.tables import InstanceRow, JobRow, RebalanceRow, SlotRow
from service.streams.errors import UnknownInstance, UnknownRebalance

LIVE = "live"


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
