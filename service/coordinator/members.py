"""Members: instances and their slots join, keep their leases and leave.

It knows who is there; it refuses to know who owns which task (`ownership`) and how a member is started.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from service.catalog.engine import JOBS, Catalog, Now, job_topic, lineage_of, now_ms, wake
from service.catalog.job_states import STAFFED, lock_job
from service.catalog.nodes import join_node
from service.catalog.tables import InstanceRow, JobRow, Json, SlotRow
from service.catalog.tasks import ids_of_job, job_to_run
from service.coordinator.leases import (
    GONE,
    LEAVING,
    LIVE,
    PRESENT,
    SESSION_TIMEOUT_MS,
    UNSEEN,
    is_renewal_due,
    renew_slots,
    require_own,
)
from service.coordinator.ownership import end_slots, gather, members_of, rebalance, slots_wanted, take_tasks
from service.coordinator.sharing import share_cores, sharing_of
from service.protocol import JoinedSlot, NodeRef, WantedJobs
from service.streams.errors import IllegalTransition, InstanceGone, UnknownInstance

NO_DELAY_MS: Final = 0

_INSTANCE = (
    select(InstanceRow.name, InstanceRow.incarnation, InstanceRow.state, InstanceRow.lease_ms)
    .add_columns(InstanceRow.lease_until_ms - Now(), InstanceRow.cores, InstanceRow.shortage)
    .where(InstanceRow.id == bindparam("instance_id"))
)


# ---------------------------------------------------------------- instances


def join_instance(
    s: Session,
    *,
    name: str,
    incarnation: str,
    host: str,
    cores: int,
    tags: Json | None = None,
    spark: Json | None = None,
    lease_ms: int = SESSION_TIMEOUT_MS,
) -> InstanceRow:
    """Let an instance in. The same name keeps its id; another incarnation takes the place of the former one."""
    at = now_ms(s)
    instance = s.scalars(select(InstanceRow).where(InstanceRow.name == name)).one_or_none()
    if instance is None:
        instance = InstanceRow(name=name)
    elif instance.incarnation != incarnation:
        end_slots(s, slots_of(s, instance.id), "the instance was started again")
    if instance.state != LIVE or instance.incarnation != incarnation:
        instance.joined_ms = at
    instance.incarnation, instance.host, instance.cores, instance.state = incarnation, host, cores, LIVE
    instance.tags, instance.spark, instance.shortage = tags or {}, spark or {}, ""
    instance.lease_ms, instance.lease_until_ms, instance.leave_by_ms = lease_ms, at + lease_ms, None
    s.add(instance)
    s.flush()
    return instance


def heartbeat(
    catalog: Catalog,
    instance_id: str,
    *,
    incarnation: str,
    cores: int | None = None,
    shortage: str = "",
    scale_down_timeout_ms: int = 0,
    initial_delay_ms: int = NO_DELAY_MS,
    living: Mapping[str, int] = MappingProxyType({}),
    renews: bool = True,
) -> WantedJobs:
    """Keep an instance's lease, and those of its slots `living`, of which each gave a sign of life so many ms ago;
    answers the jobs it should run slots for, and the version of that answer. `cores`, `shortage`: what it has now
    (None: as it joined), and what its Spark lacks. Where jobs, instances or cores are others than those that cores were
    shared for, they are shared anew first (`share_cores`). `renews`: not so when a heartbeat that waits is looked at
    again, for its instance may have died since it asked.

    Writes nothing while most of the lease is left and nothing else is new. Raises UnknownInstance, InstanceGone.
    """
    found = catalog.read(_read_heartbeat, instance_id, incarnation=incarnation)
    if found.shortage != shortage or cores not in (None, found.cores):
        catalog.write(_note_resources, instance_id, incarnation, cores, shortage)
        found = catalog.read(_read_heartbeat, instance_id, incarnation=incarnation)
    if renews and (found.is_renewal_due or living):
        catalog.write(_renew_instance, instance_id, incarnation=incarnation, living=living)
    if not found.are_cores_shared:
        how = {"scale_down_timeout_ms": scale_down_timeout_ms, "initial_delay_ms": initial_delay_ms}
        catalog.write(share_cores, **how)
        found = catalog.read(_read_heartbeat, instance_id, incarnation=incarnation)
    return found.answer


def leave_instance(
    s: Session, instance_id: str, *, incarnation: str, drain: bool = False, scale_down_timeout_ms: int = 0
) -> None:
    """Let an instance go with its slots; leaving twice changes nothing.

    With `drain` it only begins to leave: its tasks move to others, where a copy has to catch up first, after that has
    done so. Each slot leaves once it has none left, or after `scale_down_timeout_ms`.
    """
    instance = s.get(InstanceRow, instance_id)
    if instance is None:
        raise UnknownInstance(instance_id)
    if instance.incarnation != incarnation or instance.state not in PRESENT:
        return
    if drain:
        if instance.state == LIVE:
            _begin_to_leave(s, instance, scale_down_timeout_ms)
    else:
        end_slots(s, slots_of(s, instance_id), "the instance left")
        instance.state = GONE
        instance.leave_by_ms = instance.leave_by_ms or now_ms(s)  # it left, it was not lost
        wake(s, JOBS)


def lose_executors(s: Session, instance_id: str, *, incarnation: str, executors: Sequence[str]) -> int:
    """End the slots of executors that have ended, all in one transaction: none of their tasks is given to another of
    them. Returns how many there were. Raises UnknownInstance, InstanceGone.
    """
    instance = s.get(InstanceRow, instance_id)
    if instance is None:
        raise UnknownInstance(instance_id)
    if instance.incarnation != incarnation or instance.state not in PRESENT:
        raise InstanceGone(instance.name)
    lost = select(SlotRow.id).where(SlotRow.instance_id == instance_id, SlotRow.state == LIVE)
    slots = s.scalars(lost.where(SlotRow.executor.in_([name for name in executors if name]))).all()
    if not slots:
        return 0
    ended = end_slots(s, slots, "an executor was lost")
    with_it = update(SlotRow).where(SlotRow.id.in_(slots), SlotRow.state == GONE)
    s.execute(with_it.values(is_executor_lost=True), execution_options=UNSEEN)
    return ended


def _begin_to_leave(s: Session, instance: InstanceRow, timeout_ms: int) -> None:
    of_it = select(SlotRow.job_id).where(SlotRow.instance_id == instance.id, SlotRow.state == LIVE).distinct()
    jobs = [lock_job(s, job_id=job_id) for job_id in s.scalars(of_it.order_by(SlotRow.job_id)).all()]
    instance.state, instance.leave_by_ms = LEAVING, now_ms(s) + timeout_ms
    s.flush()
    wake(s, JOBS)
    for job in jobs:
        rebalance(s, job, "an instance leaves")
        wake(s, job_topic(job.id))


def _note_resources(s: Session, instance_id: str, incarnation: str, cores: int | None, shortage: str) -> None:
    instance = s.get_one(InstanceRow, instance_id)
    if instance.incarnation == incarnation:
        instance.shortage = shortage
        instance.cores = instance.cores if cores is None else cores


class _Beat(NamedTuple):
    answer: WantedJobs
    is_renewal_due: bool
    are_cores_shared: bool
    cores: int
    shortage: str


def _read_heartbeat(s: Session, instance_id: str, *, incarnation: str) -> _Beat:
    row = s.execute(_INSTANCE, {"instance_id": instance_id}).one_or_none()
    if row is None:
        raise UnknownInstance(instance_id)
    name, current, state, lease_ms, left_ms, *resources = row
    if state not in PRESENT or current != incarnation:
        raise InstanceGone(name)
    sharing = sharing_of(s)
    jobs = sharing.wanted_on(instance_id)
    version = hashlib.sha256(msgspec.json.encode(jobs)).hexdigest()[:16]
    answer = WantedJobs(jobs, version, lease_ms)
    return _Beat(answer, is_renewal_due(left_ms, lease_ms), sharing.is_settled, *resources)


def _renew_instance(s: Session, instance_id: str, *, incarnation: str, living: Mapping[str, int]) -> None:
    if living:  # first: an eviction locks slots before their instance
        renew_slots(s, living, max(living.values()), instance_id=instance_id)
    renewed = (
        update(InstanceRow)
        .where(InstanceRow.id == instance_id, InstanceRow.incarnation == incarnation, InstanceRow.state.in_(PRESENT))
        .values(lease_until_ms=now_ms(s) + InstanceRow.lease_ms)
        .returning(InstanceRow.id)
    )
    if s.scalars(renewed, execution_options=UNSEEN).one_or_none() is None:
        raise InstanceGone(instance_id)


# ---------------------------------------------------------------- slots


def join_slot(
    s: Session,
    instance_id: str,
    *,
    job_id: str,
    slot_id: str,
    index: int,
    node: NodeRef | None = None,
    executor: str = "",
    lease_ms: int = SESSION_TIMEOUT_MS,
    initial_delay_ms: int = NO_DELAY_MS,
) -> JoinedSlot:
    """Let a slot in, in the place of any with the same instance, job and index; answers what it needs to run.

    For `initial_delay_ms` after the first slot that joins, those that are to follow are waited for (Kafka's
    group.initial.rebalance.delay.ms): it is one round, and nobody begins with what it has to give away. Joining again
    under the same id gets the same answer. Raises UnknownJob, UnknownInstance, InstanceGone, IllegalTransition (the
    job wants no slots), NodeElsewhere.
    """
    job = lock_job(s, job_id=job_id)
    slot = s.get(SlotRow, slot_id)
    if slot is not None and slot.state != LIVE:
        raise InstanceGone(f"Slot {slot_id}")
    if slot is None:
        former = _admit(s, job, instance_id, slot_id, index, node, lease_ms)
        s.get_one(SlotRow, slot_id).executor = executor
        if initial_delay_ms and not former and _are_more_awaited(s, job):
            gather(s, job, initial_delay_ms)
        rebalance(s, job, "a slot was started again" if former else "a slot joined")
    return _describe_slot(s, job, slot_id, lease_ms)


def leave_slot(s: Session, slot_id: str, *, instance_id: str | None = None) -> None:
    """Let a slot go; its tasks are free at once. Leaving twice changes nothing. Raises UnknownSlot."""
    require_own(s, slot_id, instance_id)
    end_slots(s, [slot_id], "a slot left")


def _admit(
    s: Session, job: JobRow, instance_id: str, slot_id: str, index: int, node: NodeRef | None, lease_ms: int
) -> Sequence[str]:
    """Returns the slots whose place it takes."""
    instance = s.get(InstanceRow, instance_id)
    if instance is None:
        raise UnknownInstance(instance_id)
    if instance.state != LIVE:
        raise InstanceGone(instance.name)
    if job.state not in STAFFED:
        raise IllegalTransition(job.state, "take a slot in")
    same_place = (SlotRow.instance_id == instance_id, SlotRow.job_id == job.id, SlotRow.slot_index == index)
    former = s.scalars(select(SlotRow.id).where(*same_place, SlotRow.state == LIVE)).all()
    take_tasks(s, [job], former)
    at = now_ms(s)
    node_id = join_node(s, node, instance, at)
    slot = SlotRow(id=slot_id, instance_id=instance_id, node_id=node_id, job_id=job.id, slot_index=index, state=LIVE)
    slot.lease_ms, slot.lease_until_ms, slot.joined_ms = lease_ms, at + lease_ms, at
    s.add(slot)
    s.flush()
    return former


def _are_more_awaited(s: Session, job: JobRow) -> bool:
    """Whether a live instance should run slots of a job that have not joined."""
    there = Counter(slot.instance_id for slot in members_of(s, job.id))
    return any(there[at] < slots for at, slots in slots_wanted(s, job).items())


def _describe_slot(s: Session, job: JobRow, slot_id: str, lease_ms: int) -> JoinedSlot:
    return JoinedSlot(slot_id, lease_ms, lineage_of(s), job_to_run(job), *ids_of_job(s, job.id))


def slots_of(s: Session, instance_id: str) -> Sequence[str]:
    return s.scalars(select(SlotRow.id).where(SlotRow.instance_id == instance_id, SlotRow.state == LIVE)).all()
