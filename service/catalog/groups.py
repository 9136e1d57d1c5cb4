"""Who is there and who owns what, as people look at it: instances, groups, rebalances.

It knows rows; it refuses to change any (`service.coordinator` does).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.tables import Instance, Job, Json, Rebalance, Slot, Task
from service.streams.errors import UnknownInstance

LIVE = "live"


def list_instances(s: Session, *, limit: int = 100, after: str | None = None) -> Sequence[Instance]:
    """Instances in the order of their names, beyond `after`; those that are gone too."""
    query = select(Instance).order_by(Instance.name).limit(limit)
    return s.scalars(query if after is None else query.where(Instance.name > after)).all()


def get_instance(s: Session, instance_id: str) -> Instance:
    """An instance by its id. Raises UnknownInstance."""
    instance = s.get(Instance, instance_id)
    if instance is None:
        raise UnknownInstance(instance_id)
    return instance


def slots_of_instances(s: Session, instance_ids: Sequence[str]) -> list[tuple[str, Slot, str]]:
    """(instance id, live slot, name of its job), by job and index."""
    query = (
        select(Slot.instance_id, Slot, Job.name)
        .join(Job, Job.id == Slot.job_id)
        .where(Slot.instance_id.in_(instance_ids), Slot.state == LIVE)
        .order_by(Job.name, Slot.slot_index)
    )
    return [(instance_id, slot, job) for instance_id, slot, job in s.execute(query)]


def members_of(s: Session, job_id: str) -> list[tuple[Slot, str]]:
    """(live slot of the job, name of its instance), in the order in which they joined."""
    query = (
        select(Slot, Instance.name)
        .join(Instance, Instance.id == Slot.instance_id)
        .where(Slot.job_id == job_id, Slot.state == LIVE)
        .order_by(Slot.joined_ms, Slot.slot_index)
    )
    return [(slot, instance) for slot, instance in s.execute(query)]


def owners_of(s: Session, job_id: str) -> list[Json]:
    """Each task of the job: its name, the slot that owns it and the one it is about to move to."""
    query = select(Task.name, Task.slot_id, Task.target_slot_id).where(Task.job_id == job_id)
    rows = s.execute(query.order_by(Task.sub_topology, Task.partition))
    return [{"task": name, "slot": slot, "moving_to": target} for name, slot, target in rows]


def rebalances_of(s: Session, job_id: str, *, limit: int = 100, before: int | None = None) -> Sequence[Rebalance]:
    """The rounds of assignment of a job, latest first; `before` the row of this id."""
    query = select(Rebalance).where(Rebalance.job_id == job_id).order_by(Rebalance.id.desc()).limit(limit)
    return s.scalars(query if before is None else query.where(Rebalance.id < before)).all()
