"""Ownership: who should own the tasks of a job, and how a task changes hands.

It knows rounds of assignment, epochs and hand-overs; `assignment.sticky` says who should own what, and `replicas` what
a change of owner is. It refuses to know how members come and go, and what a task does.

How a task changes hands: a slot that left, was replaced or lost its lease loses its tasks at once. A live owner keeps
its task in the round that decides to move it (`target_slot_id`) and gives it up inside its own next poll, between two
batches, so tasks that do not move never miss a tick (KIP-429). Every change of owner raises the task's epoch; a commit
under an older one is refused.

Locks: jobs by id, tasks by id, then partitions, then slots and instances.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from service.catalog.engine import job_topic, now_ms, wake
from service.catalog.job_states import STAFFED, lock_job, lock_tasks, settle
from service.catalog.replicas import Holding, holdings_of
from service.catalog.tables import InstanceRow, JobRow, Json, RebalanceRow, SlotRow
from service.coordinator.leases import GONE, LIVE, UNSEEN
from service.streams.assignment import sticky


def lock_holdings(s: Session, job_id: str) -> list[Holding]:
    """Lock the tasks of a job in the order of their ids, and read who owns them."""
    return holdings_of(s, lock_tasks(s, job_id))


def rebalance(s: Session, job: JobRow, reason: str, awaited: Sequence[sticky.Member] = ()) -> None:
    """Decide anew who should own the tasks of a locked job; what has no owner is given out at once.

    The shares of slots that are `awaited` stay free.
    """
    if job.state in STAFFED:
        _assign(s, job, reason, awaited)
    s.flush()
    settle(s, job)


def _assign(s: Session, job: JobRow, reason: str, awaited: Sequence[sticky.Member]) -> None:
    holdings, members, at = lock_holdings(s, job.id), members_of(s, job.id), now_ms(s)
    slots = {slot.id: slot for slot in members}
    wanted = sticky.assign(
        [*(sticky.Member(slot.id, slot.node_id) for slot in members), *awaited],
        [
            sticky.TaskToAssign(each.task.id, each.task.sub_topology, each.slot_id, each.node_id)
            for each in sorted(holdings, key=lambda each: (each.task.sub_topology, each.task.partition))
        ],
    )
    moved = {}
    for each in holdings:
        to = slots.get(wanted.get(each.task.id, ""))
        target = None if to is None or each.slot_id in {None, to.id} else to.id
        if to is not None and (each.slot_id is None or target != each.target_slot_id):
            moved[each.task.name] = {"from": each.slot_id, "to": to.id}
        if each.slot_id is None and to is not None:
            each.give(s, to, at)
        each.aim(target)
    if moved:
        _record(s, job, reason, moved, at, is_done=all(each.target_slot_id is None for each in holdings))


def _record(s: Session, job: JobRow, reason: str, moved: Json, at: int, *, is_done: bool) -> None:
    job.generation += 1
    took_ms = 0 if is_done else None
    s.add(RebalanceRow(job_id=job.id, generation=job.generation, at_ms=at, reason=reason, moved=moved, took_ms=took_ms))
    wake(s, job_topic(job.id))


def hand_over(s: Session, job: JobRow, slot_id: str) -> None:
    """Give the tasks of a locked job that were to leave this slot to their new owners; each round knows how long that
    took.
    """
    holdings = lock_holdings(s, job.id)
    live = {slot.id: slot for slot in members_of(s, job.id)}
    at = now_ms(s)
    for each in holdings:
        if each.slot_id == slot_id and each.target_slot_id is not None:
            each.give(s, live.get(each.target_slot_id), at)
    s.flush()
    if all(each.target_slot_id is None for each in holdings):
        open_rounds = update(RebalanceRow).where(RebalanceRow.job_id == job.id, RebalanceRow.took_ms.is_(None))
        s.execute(open_rounds.values(took_ms=at - RebalanceRow.at_ms), execution_options=UNSEEN)
    wake(s, job_topic(job.id))
    settle(s, job)


def end_slots(s: Session, slot_ids: Collection[str], reason: str, *, only_expired: bool = False) -> int:
    """End slots, free their tasks and give them to others. Returns how many ended."""
    query = (
        select(SlotRow.job_id)
        .where(SlotRow.id.in_(slot_ids), SlotRow.state == LIVE)
        .distinct()
        .order_by(SlotRow.job_id)
    )
    jobs = [lock_job(s, job_id=job_id) for job_id in s.scalars(query).all()]
    ended = take_tasks(s, jobs, slot_ids, only_expired=only_expired)
    for job in jobs:
        rebalance(s, job, reason)
    return ended


def take_tasks(s: Session, jobs: Iterable[JobRow], slot_ids: Collection[str], *, only_expired: bool = False) -> int:
    """Mark live slots of locked jobs gone, and take their tasks from them. Returns how many there were."""
    if not slot_ids:
        return 0
    holdings = [each for job in jobs for each in lock_holdings(s, job.id)]
    at = now_ms(s)
    live = lock_slots(s, SlotRow.id.in_(slot_ids))
    ended = {slot.id for slot in live if not only_expired or slot.lease_until_ms < at}
    for slot in live:
        if slot.id in ended:
            slot.state, slot.gone_ms = GONE, at
    for each in holdings:
        if each.target_slot_id in ended:
            each.aim(None)
        if each.slot_id in ended:
            each.give(s, None, at)
    return len(ended)


def lock_slots(s: Session, which: ColumnElement[bool]) -> Sequence[SlotRow]:
    """Lock live slots in the order of their ids."""
    query = select(SlotRow).where(which, SlotRow.state == LIVE).order_by(SlotRow.id).with_for_update(key_share=True)
    return s.scalars(query.execution_options(populate_existing=True)).all()


def members_of(s: Session, job_id: str) -> Sequence[SlotRow]:
    """The live slots of a job on live instances, in the order in which they joined."""
    query = select(SlotRow).join(InstanceRow, InstanceRow.id == SlotRow.instance_id)
    alive = query.where(SlotRow.job_id == job_id, SlotRow.state == LIVE, InstanceRow.state == LIVE)
    return s.scalars(alive.order_by(SlotRow.joined_ms, SlotRow.slot_index, SlotRow.id)).all()
