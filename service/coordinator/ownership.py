"""Ownership: who should own the tasks of a job, where copies are kept, and how a task changes hands.

It knows rounds of assignment, epochs and hand-overs; `assignment.assignor` says which node should run what, `sticky`
which of its slots, and `replicas` what a change of owner is. It refuses to know how members come and go, and what a
task does.

How a task changes hands: a slot that left, was replaced or lost its lease loses its tasks at once. A live owner keeps
its task in the round that decides to move it (`target_slot_id`) and gives it up inside its own next poll, between two
batches, so tasks that do not move never miss a tick (KIP-429). Every change of owner raises the task's epoch; a commit
under an older one is refused.

How joins are gathered: while slots are awaited (`JobRow.rebalance_at_ms` ahead, nothing on its way), their shares stay
free, what has no owner is given to those who are there and will have it in the end, and nothing else changes. The last
of them, or the moment, ends that; it is one round.

Locks: jobs by id, tasks by id, then partitions, then slots and instances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from service.assignment_cases import answer_of, case_of
from service.catalog.engine import job_topic, now_ms, wake
from service.catalog.job_states import STAFFED, lock_job, lock_tasks, settle
from service.catalog.nodes import note_seen
from service.catalog.replicas import ACTIVE, STANDBY, WARM_UP, Holding, holdings_of
from service.catalog.tables import InstanceRow, JobRow, Json, RebalanceRow, ShareRow, SlotRow, TaskRow
from service.coordinator.leases import GONE, LIVE, UNSEEN
from service.coordinator.situation import AssignmentSpec, AwaitedSlot, Situation, situation_of
from service.faults import fault_point
from service.streams.assignment import sticky
from service.streams.assignment.assignor import assign
from service.streams.assignment.group import Assignment
from service.streams.assignment.sharing import slots_on

PROBE_MS: Final = 10_000  # how long a group waits for copies on their way before it looks again


def lock_holdings(s: Session, job_id: str) -> list[Holding]:
    """Lock the tasks of a job in the order of their ids, and read where their copies are."""
    return holdings_of(s, lock_tasks(s, job_id))


def rebalance(s: Session, job: JobRow, reason: str) -> None:
    """Decide anew who should own the tasks of a locked job and where copies are kept; what has no owner is given out at
    once.
    """
    if job.state in STAFFED:
        _assign(s, job, reason)
        fault_point("rebalance.decided")
    else:
        job.is_probing, job.rebalance_at_ms = False, None
    s.flush()
    settle(s, job)


def slots_wanted(s: Session, job: JobRow) -> dict[str, int]:
    """How many slots of a job each live instance should run: its share, or, where cores have not been shared for the
    job yet, all that it could.
    """
    tasks = s.scalars(select(func.count()).where(TaskRow.job_id == job.id)).one()
    is_its = (ShareRow.instance_id == InstanceRow.id) & (ShareRow.job_id == job.id)
    query = select(InstanceRow.id, InstanceRow.cores, ShareRow.slots).outerjoin(ShareRow, is_its)
    found = s.execute(query.where(InstanceRow.state == LIVE).order_by(InstanceRow.id)).all()
    if all(share is None for _, _, share in found):
        return {at: slots_on(cores, job.parallelism, tasks) for at, cores, _ in found}
    return {at: share or 0 for at, _, share in found}


def gather(s: Session, job: JobRow, delay_ms: int) -> None:
    """Wait for slots that are to join a locked job, from the first of them on for so long (KIP-134)."""
    if job.rebalance_at_ms is None or job.is_probing:
        job.is_probing, job.rebalance_at_ms = False, now_ms(s) + delay_ms


def _assign(s: Session, job: JobRow, reason: str) -> None:
    s.flush()
    holdings, at = lock_holdings(s, job.id), now_ms(s)
    was_gathering = job.rebalance_at_ms is not None and not job.is_probing
    awaited = _awaited(s, job) if was_gathering and (job.rebalance_at_ms or 0) > at else []
    situation = situation_of(s, job, holdings, awaited)
    made = assign(situation.group, situation.strategy)
    wanted = _slots_for(situation, made, holdings)
    moved = _give(s, holdings, wanted, situation, at, is_gathering=bool(awaited))
    are_copies_changed = not awaited and _keep_copies(s, holdings, situation, made)
    if not awaited:
        job.is_probing = made.probing
        job.rebalance_at_ms = at + PROBE_MS if made.probing else None
    is_done = all(each.target_slot_id is None for each in holdings)
    gathered = _gathered(s, job) if was_gathering else None
    if gathered is not None:
        gathered.moved, gathered.took_ms = {**gathered.moved, **moved}, None if not is_done else at - gathered.at_ms
    elif moved or are_copies_changed:
        gathered = _record(s, job, reason, moved, at, is_done=is_done)
    if gathered is not None and not awaited:
        gathered.input = case_of(situation.group, situation.strategy)
        gathered.output = answer_of(situation.group, made)
    if moved or are_copies_changed:
        wake(s, job_topic(job.id))


def _awaited(s: Session, job: JobRow) -> list[AwaitedSlot]:
    """The slots that should join within moments, as those of all live instances start together; each on the node that
    its instance used last.
    """
    there = Counter(slot.instance_id for slot in members_of(s, job.id))
    wanted = slots_wanted(s, job)
    used = select(SlotRow.instance_id, SlotRow.node_id).where(SlotRow.instance_id.in_(wanted))
    nodes = {at: node for at, node in s.execute(used.order_by(SlotRow.joined_ms))}  # noqa: C416  the last one counts
    return [
        AwaitedSlot(f"{at}/{number}", nodes.get(at, at))
        for at, slots in wanted.items()
        for number in range(there[at], slots)
    ]


def _slots_for(situation: Situation, made: Assignment, holdings: Sequence[Holding]) -> dict[str, str]:
    """Task → the slot that should run it: on its node, where it runs if it is there, else where its copy is kept. What
    is on a node that leaves stays as it is.
    """
    held = {each.task.name: each for each in holdings}
    open_nodes = {node.id for node in situation.group.open_nodes}
    found: dict[str, str] = {}
    for node, slots in situation.slots.items():
        here = [task for task in situation.group.tasks if made.active.get(task.id) == node]
        keepers = {task.id: held[task.id].keeper_on(node) for task in here}
        if node in open_nodes:
            found |= sticky.deal(dict.fromkeys(slots, 1), here, keepers)
        else:
            found |= {task: slot for task, slot in keepers.items() if slot is not None}
    return found


def _give(
    s: Session,
    holdings: Sequence[Holding],
    wanted: Mapping[str, str],
    situation: Situation,
    at: int,
    *,
    is_gathering: bool,
) -> Json:
    """Give out what has no owner, and say which tasks are to move. Returns which of both is news."""
    moved = {}
    for each in holdings:
        to = situation.live.get(wanted.get(each.task.name, ""))
        if each.slot_id is not None and is_gathering:
            continue
        target = None if to is None or each.slot_id in {None, to.id} else to.id
        if to is not None and (each.slot_id is None or target not in {None, each.target_slot_id}):
            moved[each.task.name] = {"from": each.slot_id, "to": to.id}
        if each.slot_id is None and to is not None:
            each.give(s, to, at)
        each.aim(target)
    return moved


def _keep_copies(s: Session, holdings: Sequence[Holding], situation: Situation, made: Assignment) -> bool:
    """Have slots of their nodes keep the copies that were decided on, and no others; is that news?"""
    if not situation.group.open_nodes:
        return False
    wanted: dict[str, dict[str, str]] = {node: {} for node in situation.slots}
    for role, copies in ((STANDBY, made.standby), (WARM_UP, made.warm_up)):
        for task, nodes in copies.items():
            for node in nodes:
                wanted[node][task] = role
    held, tasks = {each.task.name: each for each in holdings}, situation.tasks
    is_news = False
    for node in situation.followers:
        roles = {task: role for task, role in wanted[node].items() if not held[task].is_active_on(node)}
        slots = [slot for slot in situation.slots[node] if slot in situation.live]
        keepers = {task: held[task].keeper_on(node) for task in roles}
        dealt = sticky.deal(dict.fromkeys(slots, 1), [tasks[task] for task in roles], keepers) if slots else {}
        for task, slot in dealt.items():
            is_news |= held[task].keep(s, node, roles[task], slot)
    for each in holdings:
        going_to = situation.live.get(each.target_slot_id or "")
        for node, copy in each.copies.items():
            is_wanted = each.task.name in wanted.get(node, {}) or (going_to is not None and going_to.node_id == node)
            if copy.role != ACTIVE and copy.slot_id is not None and not is_wanted:
                copy.role, copy.slot_id = STANDBY, None
                is_news = True
    return is_news


def _record(s: Session, job: JobRow, reason: str, moved: Json, at: int, *, is_done: bool) -> RebalanceRow:
    job.generation += 1
    took_ms = 0 if is_done else None
    row = RebalanceRow(job_id=job.id, generation=job.generation, at_ms=at, reason=reason, moved=moved, took_ms=took_ms)
    s.add(row)
    return row


def _gathered(s: Session, job: JobRow) -> RebalanceRow | None:
    """The round that joins are gathered into, where anything was given out in it: what it decides is not known yet."""
    query = select(RebalanceRow).where(RebalanceRow.job_id == job.id, RebalanceRow.generation == job.generation)
    row = s.scalars(query).one_or_none()
    return row if row is not None and row.output is None else None


def hand_over(s: Session, job: JobRow, slot_id: str) -> None:
    """Give the tasks of a locked job that were to leave this slot to their new owners; each round knows how long that
    took. After the last one copies are decided on anew.
    """
    holdings = lock_holdings(s, job.id)
    live = {slot.id: slot for slot in members_of(s, job.id)}
    at = now_ms(s)
    for each in holdings:
        if each.slot_id == slot_id and each.target_slot_id is not None:
            each.give(s, live.get(each.target_slot_id), at)
    s.flush()
    wake(s, job_topic(job.id))
    if all(each.target_slot_id is None for each in holdings):
        open_rounds = update(RebalanceRow).where(RebalanceRow.job_id == job.id, RebalanceRow.took_ms.is_(None))
        s.execute(open_rounds.values(took_ms=at - RebalanceRow.at_ms), execution_options=UNSEEN)
        if job.is_probing or AssignmentSpec.of(job).standby_replicas:
            rebalance(s, job, "tasks have moved")  # what they left behind may be a standby, others may be warmed up
            return
    settle(s, job)


def end_slots(s: Session, slot_ids: Collection[str], reason: str) -> int:
    """End slots, free their tasks and give them to others. Returns how many ended."""
    query = (
        select(SlotRow.job_id)
        .where(SlotRow.id.in_(slot_ids), SlotRow.state == LIVE)
        .distinct()
        .order_by(SlotRow.job_id)
    )
    jobs = [lock_job(s, job_id=job_id) for job_id in s.scalars(query).all()]
    ended = take_tasks(s, jobs, slot_ids)
    for job in jobs:
        rebalance(s, job, reason)
    return ended


def take_tasks(
    s: Session, jobs: Iterable[JobRow], slot_ids: Collection[str], *, unless_renewed: Collection[str] = ()
) -> int:
    """Mark live slots of locked jobs gone, and take their tasks from them; of `unless_renewed` those whose lease is
    over still. Returns how many ended.
    """
    if not slot_ids:
        return 0
    holdings = [each for job in jobs for each in lock_holdings(s, job.id)]
    at = now_ms(s)
    live = lock_slots(s, SlotRow.id.in_(slot_ids))
    ended = {slot.id for slot in live if slot.id not in unless_renewed or slot.lease_until_ms < at}
    for slot in live:
        if slot.id in ended:
            slot.state, slot.gone_ms = GONE, at
    note_seen(s, {slot.node_id for slot in live if slot.id in ended}, at)
    for each in holdings:
        if each.target_slot_id in ended:
            each.aim(None)
        if each.slot_id in ended:
            each.give(s, None, at)
        for copy in each.copies.values():
            if copy.slot_id in ended:
                copy.slot_id = None
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
