"""Membership and rebalances: who is alive, who owns which task, and how a task changes hands.

It knows leases (by the database's clock), epochs and hand-overs, in catalog transactions, so that any API process can
serve any member. It refuses to know what a task does and how a member is started; `assignment.sticky` says who should
own what.

How a task changes hands: a slot that left, was replaced or lost its lease loses its tasks at once. A live owner keeps
its task in the round that decides to move it (`target_slot_id`) and gives it up inside its own next poll, between two
batches, so tasks that do not move never miss a tick (KIP-429). Every change of owner raises the task's epoch; a commit
under an older one is refused.

Locks: jobs by id, tasks by id, then partitions, then slots and instances.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from service.catalog import idle_and_flush
from service.catalog import tasks as work
from service.catalog.engine import Catalog, Now, job_topic, lineage_of, now_ms, stream_topic, wake
from service.catalog.job_creation import set_spec
from service.catalog.job_states import DRAINING, STAFFED, WORKING, fail_job, lock_job, lock_tasks, move, settle
from service.catalog.jobs import streams_of
from service.catalog.tables import InstanceRow, JobRow, Json, MetaRow, RebalanceRow, SkipRow, SlotRow, StoreRow, TaskRow
from service.catalog.tasks import Assigned, lock_tasks_by_id
from service.protocol import (
    HeldTask,
    JobToRun,
    JoinedSlot,
    PollAnswer,
    StoreRef,
    StreamRef,
    TaskCommit,
    Verdict,
    WantedJob,
    WantedJobs,
)
from service.streams.assignment import sticky
from service.streams.errors import IllegalTransition, InstanceGone, StaleEpoch, UnknownInstance, UnknownSlot
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec

SESSION_TIMEOUT_MS = 10_000
NO_DELAY_MS = 0
LIVE, LEAVING, GONE = "live", "leaving", "gone"
PRESENT = (LIVE, LEAVING)  # instances whose slots may commit; only a live one gets new slots and tasks
SEEN = "coordinator_seen_ms"
UNSEEN = {"synchronize_session": False}  # the session holds no object that the statement changes
GONE_SLOTS_KEPT_MS = 24 * 3_600_000
RENEW_AFTER = 3  # a lease is renewed once a third of it has elapsed


@dataclass(frozen=True, slots=True)
class PollOutcome:
    """When the `answer` `is_ready` it should go out at once, else when one of `topics` wakes or `look_again_ms` have
    passed (None: no need to).
    """

    answer: PollAnswer
    is_ready: bool
    topics: frozenset[str]
    look_again_ms: int | None = None


# ---------------------------------------------------------------- what every poll and heartbeat asks, built once

_SLOT = (
    select(SlotRow.job_id, SlotRow.instance_id, JobRow.state, InstanceRow.state, JobRow.max_batch_records)
    .add_columns(JobRow.idle_close_after_ms, exists().where(SkipRow.job_id == JobRow.id))
    .add_columns(SlotRow.lease_until_ms - Now(), SlotRow.lease_ms)
    .join(JobRow, JobRow.id == SlotRow.job_id)
    .join(InstanceRow, InstanceRow.id == SlotRow.instance_id)
    .where(SlotRow.id == bindparam("slot_id"), SlotRow.state == LIVE, InstanceRow.state.in_(PRESENT))
)
_LEASE = select(SlotRow.instance_id, SlotRow.lease_until_ms - Now(), SlotRow.lease_ms).where(
    SlotRow.id == bindparam("slot_id")
)
_INSTANCE = (
    select(InstanceRow.name, InstanceRow.incarnation, InstanceRow.state, InstanceRow.cores, InstanceRow.lease_ms)
    .add_columns(InstanceRow.lease_until_ms - Now())
    .where(InstanceRow.id == bindparam("instance_id"))
)
_WANTED_JOBS = (
    select(JobRow.id, JobRow.name, JobRow.parallelism, func.count())
    .join(TaskRow, TaskRow.job_id == JobRow.id)
    .where(JobRow.state.in_(STAFFED))
    .group_by(JobRow.id, JobRow.name, JobRow.parallelism)
    .order_by(JobRow.name)
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
        _end_slots(s, _slots_of(s, instance.id), "the instance was started again")
    if instance.state != LIVE or instance.incarnation != incarnation:
        instance.joined_ms = at
    instance.incarnation, instance.host, instance.cores, instance.state = incarnation, host, cores, LIVE
    instance.tags, instance.spark = tags or {}, spark or {}
    instance.lease_ms, instance.lease_until_ms = lease_ms, at + lease_ms
    s.add(instance)
    s.flush()
    return instance


def heartbeat(catalog: Catalog, instance_id: str, *, incarnation: str) -> WantedJobs:
    """Keep an instance's lease; answers the jobs it should run slots for, and the version of that answer.

    Writes nothing while most of the lease is left. Raises UnknownInstance, InstanceGone.
    """
    answer, is_due = catalog.read(_read_heartbeat, instance_id, incarnation=incarnation)
    if is_due:
        catalog.write(_renew_instance, instance_id, incarnation=incarnation)
    return answer


def leave_instance(s: Session, instance_id: str, *, incarnation: str, drain: bool = False) -> None:
    """Let an instance go with its slots; leaving twice changes nothing.

    With `drain` it only begins to leave: each slot is told so by its next poll, commits what it has and leaves.
    """
    instance = s.get(InstanceRow, instance_id)
    if instance is None:
        raise UnknownInstance(instance_id)
    if instance.incarnation != incarnation or instance.state not in PRESENT:
        return
    if drain:
        instance.state = LEAVING
        jobs = select(SlotRow.job_id).where(SlotRow.instance_id == instance_id, SlotRow.state == LIVE).distinct()
        wake(s, *(job_topic(job_id) for job_id in s.scalars(jobs)))
    else:
        _end_slots(s, _slots_of(s, instance_id), "the instance left")
        instance.state = GONE


def _read_heartbeat(s: Session, instance_id: str, *, incarnation: str) -> tuple[WantedJobs, bool]:
    row = s.execute(_INSTANCE, {"instance_id": instance_id}).one_or_none()
    if row is None:
        raise UnknownInstance(instance_id)
    name, current, state, cores, lease_ms, left_ms = row
    if state not in PRESENT or current != incarnation:
        raise InstanceGone(name)
    jobs = _wanted_jobs(s, cores) if state == LIVE else []
    version = hashlib.sha256(msgspec.json.encode(jobs)).hexdigest()[:16]
    return WantedJobs(jobs, version, lease_ms), _is_due(left_ms, lease_ms)


def _wanted_jobs(s: Session, cores: int) -> list[WantedJob]:
    """The jobs that want slots, and how many on an instance with this many cores."""
    rows = s.execute(_WANTED_JOBS)
    return [WantedJob(i, name, _slots_on(cores, wanted, n)) for i, name, wanted, n in rows]


def _slots_on(cores: int, parallelism: int | None, tasks: int) -> int:
    """How many slots of a job an instance runs."""
    return min(parallelism or cores, tasks)


def _renew_instance(s: Session, instance_id: str, *, incarnation: str) -> None:
    renewed = (
        update(InstanceRow)
        .where(InstanceRow.id == instance_id, InstanceRow.incarnation == incarnation, InstanceRow.state.in_(PRESENT))
        .values(lease_until_ms=now_ms(s) + InstanceRow.lease_ms)
        .returning(InstanceRow.id)
    )
    if s.scalars(renewed).one_or_none() is None:
        raise InstanceGone(instance_id)


def _is_due(left_ms: int, lease_ms: int) -> bool:
    return left_ms < lease_ms - lease_ms // RENEW_AFTER


# ---------------------------------------------------------------- slots


def join_slot(
    s: Session,
    instance_id: str,
    *,
    job_id: str,
    slot_id: str,
    index: int,
    lease_ms: int = SESSION_TIMEOUT_MS,
    initial_delay_ms: int = NO_DELAY_MS,
) -> JoinedSlot:
    """Let a slot in, in the place of any with the same instance, job and index; answers what it needs to run.

    For `initial_delay_ms` after the first slot of a job, those that are to follow keep their shares free (Kafka's
    group.initial.rebalance.delay.ms), so that the first does not begin with what it has to give away. Joining again
    under the same id gets the same answer. Raises UnknownJob, UnknownInstance, InstanceGone, IllegalTransition (the
    job wants no slots).
    """
    job = lock_job(s, job_id=job_id)
    slot = s.get(SlotRow, slot_id)
    if slot is not None and slot.state != LIVE:
        raise InstanceGone(f"Slot {slot_id}")
    if slot is None:
        former = _admit(s, job, instance_id, slot_id, index, lease_ms)
        reason = "a slot was started again" if former else "a slot joined"
        rebalance(s, job, reason, _awaited(s, job, initial_delay_ms))
    return _describe_slot(s, job, slot_id, lease_ms)


def require_slot(s: Session, slot_id: str, *, instance_id: str | None = None) -> SlotRow:
    """A slot that is alive. Raises InstanceGone, UnknownSlot (it is another instance's)."""
    slot = s.get(SlotRow, slot_id)
    if slot is not None:
        _require_same(slot_id, slot.instance_id, instance_id)
    if slot is None or slot.state != LIVE:
        raise InstanceGone(f"Slot {slot_id}")
    return slot


def require_own(s: Session, slot_id: str, instance_id: str | None) -> None:
    """A slot that there is, or was, is the instance's. Raises UnknownSlot."""
    owner = s.scalars(select(SlotRow.instance_id).where(SlotRow.id == slot_id)).one_or_none()
    if owner is not None:
        _require_same(slot_id, owner, instance_id)


def _require_same(slot_id: str, owner: str, instance_id: str | None) -> None:
    """`instance_id` None: whoever asks need not say."""
    if instance_id not in {None, owner}:
        raise UnknownSlot(slot_id)


def leave_slot(s: Session, slot_id: str, *, instance_id: str | None = None) -> None:
    """Let a slot go; its tasks are free at once. Leaving twice changes nothing. Raises UnknownSlot."""
    require_own(s, slot_id, instance_id)
    _end_slots(s, [slot_id], "a slot left")


def _admit(s: Session, job: JobRow, instance_id: str, slot_id: str, index: int, lease_ms: int) -> Sequence[str]:
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
    _take_tasks(s, [job], former)
    at = now_ms(s)
    slot = SlotRow(id=slot_id, instance_id=instance_id, job_id=job.id, slot_index=index, state=LIVE)
    slot.lease_ms, slot.lease_until_ms, slot.joined_ms = lease_ms, at + lease_ms, at
    s.add(slot)
    s.flush()
    return former


def _awaited(s: Session, job: JobRow, initial_delay_ms: int) -> list[sticky.Member]:
    """The slots that should join within moments, as those of all live instances start together."""
    members = _members(s, job)
    if now_ms(s) - members[0].joined_ms >= initial_delay_ms:
        return []
    there = {(slot.instance_id, slot.slot_index) for slot in members}
    tasks = s.scalars(select(func.count()).where(TaskRow.job_id == job.id)).one()
    live = s.execute(
        select(InstanceRow.id, InstanceRow.cores).where(InstanceRow.state == LIVE).order_by(InstanceRow.id)
    )
    places = [(at, index) for at, cores in live for index in range(_slots_on(cores, job.parallelism, tasks))]
    return [sticky.Member(f"{at}/{index}", at) for at, index in places if (at, index) not in there]


def _lock_slots(s: Session, which: ColumnElement[bool]) -> Sequence[SlotRow]:
    """Lock live slots in the order of their ids."""
    query = select(SlotRow).where(which, SlotRow.state == LIVE).order_by(SlotRow.id).with_for_update(key_share=True)
    return s.scalars(query.execution_options(populate_existing=True)).all()


def _describe_slot(s: Session, job: JobRow, slot_id: str, lease_ms: int) -> JoinedSlot:
    stores = s.scalars(select(StoreRow).where(StoreRow.job_id == job.id).order_by(StoreRow.name))
    return JoinedSlot(
        slot=slot_id,
        lease_ms=lease_ms,
        lineage=lineage_of(s),
        job=JobToRun(job.id, job.name, job.spec, job.topology),
        streams={at.name: StreamRef(at.id, at.partitions) for at in streams_of(s, job.id)},
        stores={store.name: StoreRef(store.id, store.changelog_stream_id) for store in stores},
    )


def _slots_of(s: Session, instance_id: str) -> Sequence[str]:
    return s.scalars(select(SlotRow.id).where(SlotRow.instance_id == instance_id, SlotRow.state == LIVE)).all()


def _end_slots(s: Session, slot_ids: Collection[str], reason: str, *, only_expired: bool = False) -> int:
    """End slots, free their tasks and give them to others. Returns how many ended."""
    query = (
        select(SlotRow.job_id)
        .where(SlotRow.id.in_(slot_ids), SlotRow.state == LIVE)
        .distinct()
        .order_by(SlotRow.job_id)
    )
    jobs = [lock_job(s, job_id=job_id) for job_id in s.scalars(query).all()]
    ended = _take_tasks(s, jobs, slot_ids, only_expired=only_expired)
    for job in jobs:
        rebalance(s, job, reason)
    return ended


def _take_tasks(s: Session, jobs: Iterable[JobRow], slot_ids: Collection[str], *, only_expired: bool = False) -> int:
    """Mark live slots of locked jobs gone, and take their tasks from them."""
    if not slot_ids:
        return 0
    tasks = [task for job in jobs for task in lock_tasks(s, job.id)]
    at = now_ms(s)
    live = _lock_slots(s, SlotRow.id.in_(slot_ids))
    ended = {slot.id for slot in live if not only_expired or slot.lease_until_ms < at}
    for slot in live:
        if slot.id in ended:
            slot.state, slot.gone_ms = GONE, at
    for task in tasks:
        if task.target_slot_id in ended:
            task.target_slot_id = None
        if task.slot_id in ended:
            _give(task, None, at)
    return len(ended)


# ---------------------------------------------------------------- polls


def poll_slot(
    catalog: Catalog, slot_id: str, held: Sequence[HeldTask], *, instance_id: str | None = None
) -> PollOutcome:
    """What a slot that holds these tasks should do next.

    One read-only look of three queries, and one more per task with work. A write comes only with something to
    write: a lease that is due, a task to hand over, replicas that went further while there is nothing to run.
    Raises InstanceGone, UnknownSlot (it is another instance's).
    """
    answer, is_due = catalog.read(_look, slot_id, held, instance_id)
    if is_due:
        catalog.write(_keep_slot, slot_id, held)
        answer, _ = catalog.read(_look, slot_id, held, instance_id)
    return answer


class _SlotNow(NamedTuple):
    job_id: str
    instance_id: str
    is_wanted: bool
    is_working: bool
    max_batch_records: int
    idle_close_after_ms: int | None
    has_skips: bool
    is_lease_due: bool


def _look(s: Session, slot_id: str, held: Sequence[HeldTask], instance_id: str | None) -> tuple[PollOutcome, bool]:
    now = _slot_now(s, slot_id)
    _require_same(slot_id, now.instance_id, instance_id)
    topics = {job_topic(now.job_id)}
    if not now.is_wanted:
        return PollOutcome(PollAnswer("leave"), True, frozenset(topics)), now.is_lease_due
    tasks = work.assigned_to(s, slot_id)
    topics |= {stream_topic(at.stream_id) for task in tasks for at in task.inputs}
    staying = [task for task in tasks if task.target_slot_id is None]
    to_advance = idle_and_flush.to_advance(s, now.job_id, now.idle_close_after_ms, staying if now.is_working else [])
    described = work.describe(
        s,
        slot_id,
        staying,
        to_advance.reasons,
        job_id=now.job_id,
        max_records=now.max_batch_records if now.is_working else 0,
        has_skips=now.has_skips,
    )
    is_news = {(task.task, task.epoch) for task in described} != {(task.task, task.epoch) for task in held}
    is_ready = is_news or any(task.is_due for task in described)
    is_due = now.is_lease_due or any(_is_to_write(task, held) for task in tasks)
    return PollOutcome(PollAnswer("run", described), is_ready, frozenset(topics), to_advance.look_again_ms), is_due


def _slot_now(s: Session, slot_id: str) -> _SlotNow:
    row = s.execute(_SLOT, {"slot_id": slot_id}).one_or_none()
    if row is None:
        raise InstanceGone(f"Slot {slot_id}")
    job_id, instance_id, job_state, instance_state, max_batch_records, idle_ms, has_skips, left_ms, lease_ms = row
    is_wanted, is_due = job_state in STAFFED and instance_state == LIVE, _is_due(left_ms, lease_ms)
    is_working = job_state in WORKING
    return _SlotNow(job_id, instance_id, is_wanted, is_working, max_batch_records, idle_ms, has_skips, is_due)


def _is_to_write(task: Assigned, held: Sequence[HeldTask]) -> bool:
    """A hand-over, a lost range, or a replica that moved on with no commit coming to say so."""
    if task.target_slot_id is not None or task.is_truncated:
        return True
    if task.input_with_work is not None:
        return False
    return any(mine.task == task.id and _applied(mine).items() - task.applied.items() for mine in held)


def _applied(task: HeldTask) -> dict[str, int]:
    """How far its replicas are. With a backlog nobody shall call it caught up: one short of where it is."""
    return {store: max(at - task.has_backlog, 0) for store, at in task.applied.items()}


def _keep_slot(s: Session, slot_id: str, held: Sequence[HeldTask]) -> None:
    """Write what a poll brought: hand-overs, lost ranges, positions of replicas, the lease."""
    tasks = work.assigned_to(s, slot_id)
    moving = [task.id for task in tasks if task.target_slot_id is not None]
    truncated = next((task for task in tasks if task.is_truncated), None)
    if moving or truncated:
        job = lock_job(s, job_id=s.scalars(select(SlotRow.job_id).where(SlotRow.id == slot_id)).one())
        if truncated:
            fail_job(s, job, _source_truncated(truncated))
        _hand_over(s, job, slot_id)
    applied = {task.task: _applied(task) for task in held}
    mine = {i: task for i, task in lock_tasks_by_id(s, applied).items() if task.slot_id == slot_id}
    work.note_applied(s, mine.values(), applied)
    s.flush()
    if not _renew_slot(s, slot_id):
        raise InstanceGone(f"Slot {slot_id}")


def _source_truncated(task: Assigned) -> Json:
    lost = next(at for at in task.inputs if at.position < at.start)
    detail = f"task {task.name} stands at {lost.position}, the partition starts at {lost.start}"
    return {"code": "source_truncated", "task": task.name, "partition": lost.partition, "detail": detail}


def _hand_over(s: Session, job: JobRow, slot_id: str) -> None:
    """Give the tasks that were to leave this slot to their new owners; each round knows how long that took."""
    tasks = lock_tasks(s, job.id)
    live = {slot.id: slot for slot in _members(s, job)}
    at = now_ms(s)
    for task in tasks:
        if task.slot_id == slot_id and task.target_slot_id is not None:
            _give(task, live.get(task.target_slot_id), at)
    s.flush()
    if all(task.target_slot_id is None for task in tasks):
        open_rounds = update(RebalanceRow).where(RebalanceRow.job_id == job.id, RebalanceRow.took_ms.is_(None))
        s.execute(open_rounds.values(took_ms=at - RebalanceRow.at_ms), execution_options=UNSEEN)
    wake(s, job_topic(job.id))
    settle(s, job)


def _renew_slot(s: Session, slot_id: str) -> bool:
    renewed = update(SlotRow).where(SlotRow.id == slot_id, SlotRow.state == LIVE)
    kept = renewed.values(lease_until_ms=now_ms(s) + SlotRow.lease_ms).returning(SlotRow.id)
    return s.scalars(kept, execution_options=UNSEEN).one_or_none() is not None


# ---------------------------------------------------------------- commits and failures


def commit_tasks(
    s: Session, slot_id: str, commits: Sequence[TaskCommit], *, instance_id: str | None = None
) -> list[Verdict]:
    """Judge each commit alone and write what is accepted (`catalog.tasks`); the slot's lease is kept with it.

    Raises UnknownSlot (it is another instance's).
    """
    lease = s.execute(_LEASE, {"slot_id": slot_id}).one_or_none()
    if lease is not None:
        _require_same(slot_id, lease[0], instance_id)
    verdicts = work.commit_tasks(s, slot_id, commits)
    if lease is not None and _is_due(*lease[1:]):
        _renew_slot(s, slot_id)
    return verdicts


def fail_task(
    s: Session, slot_id: str, *, task_id: str, epoch: int, error: Json, instance_id: str | None = None
) -> None:
    """A task can not go on: its job fails with this error.

    Raises StaleEpoch when the slot does not hold the task, UnknownSlot when it is another instance's.
    """
    require_own(s, slot_id, instance_id)
    job_id = s.scalars(select(TaskRow.job_id).where(TaskRow.id == task_id)).one_or_none()
    if job_id is None:
        raise StaleEpoch(task_id)
    job = lock_job(s, job_id=job_id)
    task = lock_tasks_by_id(s, [task_id])[task_id]
    if task.slot_id != slot_id or task.epoch != epoch:
        raise StaleEpoch(task.name)
    fail_job(s, job, {**error, "task": task.name})


# ---------------------------------------------------------------- rebalances


def change_job(s: Session, name: str, verb: str, *, who: str = "", reason: str = "") -> JobRow:
    """What people ask of a job: `pause`, `resume`, `stop`, `restart`. Raises UnknownJob, IllegalTransition."""
    job = lock_job(s, name=name)
    move(s, job, verb, who=who, reason=reason)
    if verb == "restart":  # a slot that has not left yet begins anew as well: it may have given a task up
        at = now_ms(s)
        for task in lock_tasks(s, job.id):
            _give(task, None, at)
    rebalance(s, job, verb)
    return job


def change_spec(s: Session, job: JobRow, spec: JobSpec, topology: Topology, *, reason: str = "", who: str = "") -> None:
    """Give a locked job that is stopped or failed another specification. Raises IllegalTransition.

    A slot that has not left yet knows the former one: it is ended, so that it joins anew where the job goes on.
    """
    set_spec(s, job, spec, topology, reason=reason, who=who)
    s.flush()
    live = select(SlotRow.id).where(SlotRow.job_id == job.id, SlotRow.state == LIVE)
    _end_slots(s, s.scalars(live).all(), "the job was changed")


def rebalance(s: Session, job: JobRow, reason: str, awaited: Sequence[sticky.Member] = ()) -> None:
    """Decide anew who should own the tasks of a locked job; what has no owner is given out at once.

    The shares of slots that are `awaited` stay free.
    """
    if job.state in STAFFED:
        _assign(s, job, reason, awaited)
    s.flush()
    settle(s, job)


def _assign(s: Session, job: JobRow, reason: str, awaited: Sequence[sticky.Member]) -> None:
    tasks, members, at = lock_tasks(s, job.id), _members(s, job), now_ms(s)
    slots = {slot.id: slot for slot in members}
    wanted = sticky.assign(
        [*(sticky.Member(slot.id, slot.instance_id) for slot in members), *awaited],
        [
            sticky.TaskToAssign(task.id, task.sub_topology, task.slot_id, task.last_instance_id)
            for task in sorted(tasks, key=lambda task: (task.sub_topology, task.partition))
        ],
    )
    moved = {}
    for task in tasks:
        to = slots.get(wanted.get(task.id, ""))
        target = None if to is None or task.slot_id in {None, to.id} else to.id
        if to is not None and (task.slot_id is None or target != task.target_slot_id):
            moved[task.name] = {"from": task.slot_id, "to": to.id}
        if task.slot_id is None and to is not None:
            _give(task, to, at)
        task.target_slot_id = target
    if moved:
        _record(s, job, reason, moved, at, is_done=all(task.target_slot_id is None for task in tasks))


def _record(s: Session, job: JobRow, reason: str, moved: Json, at: int, *, is_done: bool) -> None:
    job.generation += 1
    took_ms = 0 if is_done else None
    s.add(RebalanceRow(job_id=job.id, generation=job.generation, at_ms=at, reason=reason, moved=moved, took_ms=took_ms))
    wake(s, job_topic(job.id))


def _give(task: TaskRow, slot: SlotRow | None, at: int) -> None:
    """Change the owner of a locked task: the one place where an epoch rises. A new owner has its replicas to show."""
    task.slot_id = None if slot is None else slot.id
    if slot is not None:
        task.last_instance_id, task.applied = slot.instance_id, {}
    task.target_slot_id = None
    task.epoch += 1
    task.updated_ms = at


def _members(s: Session, job: JobRow) -> Sequence[SlotRow]:
    """The live slots of a job on live instances, in the order in which they joined."""
    query = select(SlotRow).join(InstanceRow, InstanceRow.id == SlotRow.instance_id)
    alive = query.where(SlotRow.job_id == job.id, SlotRow.state == LIVE, InstanceRow.state == LIVE)
    return s.scalars(alive.order_by(SlotRow.joined_ms, SlotRow.slot_index, SlotRow.id)).all()


# ---------------------------------------------------------------- the coordinator's own round


def tick(catalog: Catalog, *, lease_ms: int = SESSION_TIMEOUT_MS, initial_delay_ms: int = NO_DELAY_MS) -> int:
    """One round: evict members whose lease ran out, and give out tasks without an owner, those too whose slot did not
    follow the first within `initial_delay_ms`. Returns who was evicted.

    After an outage of its own (no tick for a whole session timeout) it evicts nobody: members could not renew, so
    every lease starts again. A round with nothing to do is read-only.
    """
    how = {"lease_ms": lease_ms, "initial_delay_ms": initial_delay_ms}
    return catalog.write(_tick, **how) if catalog.read(_is_tick_due, **how) else 0


def _is_tick_due(s: Session, *, lease_ms: int, initial_delay_ms: int) -> bool:
    at = now_ms(s)
    seen = s.scalars(select(MetaRow.value).where(MetaRow.name == SEEN)).one_or_none()
    if seen is None or at - int(seen) > lease_ms // RENEW_AFTER:
        return True
    expired = select(SlotRow.id).where(SlotRow.state == LIVE, SlotRow.lease_until_ms < at)
    gone = select(InstanceRow.id).where(InstanceRow.state.in_(PRESENT), InstanceRow.lease_until_ms < at)
    return any(s.execute(query.limit(1)).first() for query in (expired, gone, _stuck_jobs(at - initial_delay_ms)))


def _tick(s: Session, *, lease_ms: int, initial_delay_ms: int) -> int:
    at = now_ms(s)
    seen = s.scalars(select(MetaRow).where(MetaRow.name == SEEN).with_for_update()).one_or_none()
    if seen is None or at - int(seen.value) > lease_ms:
        _extend_leases(s, at)
        s.merge(MetaRow(name=SEEN, value=str(at)))
        return 0
    seen.value = str(at)
    evicted = _evict_instances(s, at) + _evict_slots(s, at)
    s.execute(delete(SlotRow).where(SlotRow.state == GONE, SlotRow.gone_ms < at - GONE_SLOTS_KEPT_MS))
    for job_id in s.scalars(_stuck_jobs(at - initial_delay_ms)).all():
        rebalance(s, lock_job(s, job_id=job_id), "tasks had no owner")
    return evicted


def _extend_leases(s: Session, at: int) -> None:
    for slot in _lock_slots(s, SlotRow.lease_until_ms < at + SlotRow.lease_ms):
        slot.lease_until_ms = at + slot.lease_ms
    late = update(InstanceRow).where(
        InstanceRow.state.in_(PRESENT), InstanceRow.lease_until_ms < at + InstanceRow.lease_ms
    )
    s.execute(late.values(lease_until_ms=at + InstanceRow.lease_ms), execution_options=UNSEEN)


def _evict_instances(s: Session, at: int) -> int:
    """Instances whose lease ran out go, and their slots with them: their driver watches over nobody any more."""
    is_expired = InstanceRow.state.in_(PRESENT) & (InstanceRow.lease_until_ms < at)
    ids = s.scalars(select(InstanceRow.id).where(is_expired).order_by(InstanceRow.id)).all()
    for instance_id in ids:
        _end_slots(s, _slots_of(s, instance_id), "an instance was lost")
        gone = update(InstanceRow).where(InstanceRow.id == instance_id, is_expired).values(state=GONE)
        s.execute(gone, execution_options=UNSEEN)
    return len(ids)


def _evict_slots(s: Session, at: int) -> int:
    expired = s.scalars(select(SlotRow.id).where(SlotRow.state == LIVE, SlotRow.lease_until_ms < at)).all()
    return _end_slots(s, expired, "a slot was lost", only_expired=True) if expired else 0


def _stuck_jobs(before_ms: int) -> Select[str]:
    """Jobs with a task that nobody owns although a slot has been alive since, and that drain with no slot left."""
    has_slot = exists().where(SlotRow.job_id == JobRow.id, SlotRow.state == LIVE, InstanceRow.state == LIVE)
    has_slot = has_slot.where(InstanceRow.id == SlotRow.instance_id, SlotRow.joined_ms <= before_ms)
    has_free_task = exists().where(TaskRow.job_id == JobRow.id, TaskRow.slot_id.is_(None))
    is_stuck = JobRow.state.in_(STAFFED) & has_free_task & has_slot
    is_drained = (JobRow.state == DRAINING) & ~exists().where(SlotRow.job_id == JobRow.id, SlotRow.state == LIVE)
    return select(JobRow.id).where(or_(is_stuck, is_drained)).order_by(JobRow.id)
