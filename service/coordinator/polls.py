"""Slots at work: what a slot should do next, what it did, and what it can not do.

It knows when a poll is answered and what has to be written for it. It refuses to know how long a request waits
(`service.api.instances`) and by which rules a commit is accepted (`service.catalog.commits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from sqlalchemy import bindparam, exists, func, select, tuple_
from sqlalchemy.orm import Session, aliased

from service.catalog import commits as committing
from service.catalog import idle_and_flush, job_changes
from service.catalog.commits import lock_tasks_by_id
from service.catalog.driver import Prepared
from service.catalog.engine import (
    Catalog,
    Now,
    job_topic,
    now_ms,
    partition_topic,
    progress_topic,
    stream_topic,
    target_topic,
)
from service.catalog.job_states import CHANGING, STAFFED, WORKING, fail_job, go_on_flushing, lock_job
from service.catalog.progress import JobLogs, JobProgress, Patience
from service.catalog.replicas import (
    ACTIVE,
    NOT_SHOWN,
    Report,
    active_of,
    copies_of_slot,
    is_news,
    note_copy,
    note_report,
)
from service.catalog.tables import InstanceRow, JobRow, Json, ReplicaRow, ShareRow, SkipRow, SlotRow, StreamRow, TaskRow
from service.catalog.tasks import (
    Assigned,
    ChangelogEnd,
    adoptions_of,
    assigned_to,
    changelogs_of,
    describe,
    ids_of_job,
    job_to_run,
)
from service.coordinator.changes import go_on_changing
from service.coordinator.copies import COPY_PACE_MS, CopyReport, look_at_copies
from service.coordinator.leases import (
    IS_SHARE_OF_SLOT,
    LEASE_OF_SLOT,
    LIVE,
    PRESENT,
    is_renewal_due,
    renew_slot,
    require_own,
    require_same_instance,
    require_slot,
)
from service.coordinator.ownership import hand_over, members_of, rebalance
from service.faults import fault_point
from service.protocol import AssignedTask, HeldCopy, HeldTask, PollAnswer, TaskCommit, Verdict
from service.streams.errors import InstanceGone, StaleEpoch

PASS_OVER_MS: Final = 100  # about a commit interval: what is for others is passed over with what came meanwhile


@dataclass(frozen=True, slots=True)
class PollOutcome:
    """When the `answer` `is_ready` it should go out at once, else when one of `topics` wakes or `look_again_ms` have
    passed (None: no need to). Those of `topics` that are `patient` may wait for PASS_OVER_MS.
    """

    answer: PollAnswer
    is_ready: bool
    topics: frozenset[str]
    look_again_ms: int | None = None
    patient: frozenset[str] = frozenset()

    @property
    def pressing(self) -> frozenset[str]:
        """Those of `topics` that wait for nothing."""
        return self.topics - self.patient


_OLDER = aliased(SlotRow)
_OLDER_SLOTS = (  # of the same job on the same instance
    select(func.count())
    .where(_OLDER.job_id == SlotRow.job_id, _OLDER.state == LIVE, _OLDER.instance_id == SlotRow.instance_id)
    .where(tuple_(_OLDER.joined_ms, _OLDER.slot_index) < tuple_(SlotRow.joined_ms, SlotRow.slot_index))
    .correlate(SlotRow)
    .scalar_subquery()
)
_SLOT = Prepared(
    select(SlotRow.job_id, SlotRow.instance_id, JobRow.state, InstanceRow.state, JobRow.max_batch_records)
    .add_columns(JobRow.idle_close_after_ms, JobRow.spec_sha256, exists().where(SkipRow.job_id == JobRow.id))
    .add_columns(SlotRow.lease_until_ms - Now(), SlotRow.lease_ms)
    .add_columns(JobRow.max_repartition_bytes, JobRow.max_task_idle_ms, JobRow.flush, JobRow.read_to)
    .add_columns(JobRow.spec_version, JobRow.is_probing, InstanceRow.leave_by_ms - Now())
    .add_columns(ShareRow.slots <= _OLDER_SLOTS, ShareRow.leave_by_ms - Now())
    .join(JobRow, JobRow.id == SlotRow.job_id)
    .join(InstanceRow, InstanceRow.id == SlotRow.instance_id)
    .outerjoin(ShareRow, IS_SHARE_OF_SLOT)
    .where(SlotRow.id == bindparam("slot_id"), SlotRow.state == LIVE, InstanceRow.state.in_(PRESENT))
)


def poll_slot(
    catalog: Catalog,
    slot_id: str,
    held: Sequence[HeldTask],
    *,
    instance_id: str | None = None,
    known: str = "",
    known_version: int = 0,
    copies: Sequence[HeldCopy] = (),
    waited_ms: int = COPY_PACE_MS,
    renews: bool = True,
) -> PollOutcome:
    """What a slot that holds these tasks and copies should do next; `known`, `known_version`: the digest of the
    specification and the version of the job that it runs by ("", 0: not said); `waited_ms`: since it asked; `renews`:
    whether the question renews its lease, which is not so when it is looked at for a second time.

    One read-only look of three queries, and two more per task with work; where tasks read more than one input, one or
    two about the whole job and one a repartition stream. A write comes only with something to write: a lease that is
    due, a task to hand over, a flush to take further, replicas that went further while there is nothing to run. Raises
    InstanceGone, UnknownSlot (it is another instance's).
    """
    asked = _Asked(held, instance_id, known, known_version, copies, waited_ms)
    look = catalog.read(_look, slot_id, asked)
    if renews and look.is_lease_due and not look.is_write_due:
        catalog.write(_keep_lease, slot_id)
    if look.is_write_due:
        catalog.write(_keep_slot, slot_id, look, renews=renews)
        if look.is_change_due:
            fault_point("change.after")
        look = catalog.read(_look, slot_id, asked)
    return look.outcome


class _Asked(NamedTuple):
    held: Sequence[HeldTask]
    instance_id: str | None
    known: str
    known_version: int
    copies: Sequence[HeldCopy]
    waited_ms: int


class _Look(NamedTuple):
    outcome: PollOutcome
    is_lease_due: bool
    is_write_due: bool  # of more than the lease
    reports: Mapping[str, Report]  # by task, of those that the slot holds under the epoch that the catalog holds
    is_stage_closed: bool = False
    is_change_due: bool = False
    copies: Mapping[str, CopyReport] = MappingProxyType({})  # those that are to be written
    is_probe_due: bool = False


class _SlotNow(NamedTuple):
    job_id: str
    instance_id: str
    is_wanted: bool
    is_working: bool
    is_changing: bool
    is_reading_on: bool  # it works, or reads up to its marks before it becomes another version
    max_batch_records: int
    idle_close_after_ms: int | None
    spec_sha256: str
    spec_version: int
    has_skips: bool
    is_lease_due: bool
    patience: Patience | None  # of a job with tasks that read more than one input
    is_probing: bool
    leaves_in_ms: int | None  # of an instance that leaves, or of what is beyond its share: then it leaves as it is


def _look(s: Session, slot_id: str, asked: _Asked) -> _Look:
    now, held = _slot_now(s, slot_id), asked.held
    require_same_instance(slot_id, now.instance_id, asked.instance_id)
    topics = {job_topic(now.job_id)}
    if not now.is_wanted:
        return _Look(PollOutcome(PollAnswer("leave"), True, frozenset(topics)), now.is_lease_due, False, {})
    logs = None if now.patience is None else JobLogs(s, now.job_id, now.patience)
    tasks, changelogs = assigned_to(s, slot_id, logs), changelogs_of(s, slot_id)
    progress = _progress(s, now, logs, tasks, held)
    copies = look_at_copies(s, now.job_id, changelogs.followed, asked.copies, asked.waited_ms)
    read = _read_topics(tasks)
    topics |= read.topics
    staying = [task for task in tasks if task.target_slot_id is None]
    adoptions = adoptions_of(s, now.job_id, staying)
    ready = [task for task in staying if task.id not in adoptions]
    closing = ready if now.is_working else []
    to_advance = idle_and_flush.to_advance(s, now.job_id, now.idle_close_after_ms, closing, progress)
    reading = ready if now.is_reading_on else []
    pausing = _NO_PAUSE if progress is None else _pausing(s, progress, reading, held)
    described = describe(
        s,
        staying,
        changelogs.of_tasks,
        to_advance.reasons,
        pausing.task_ids,
        adoptions,
        job_id=now.job_id,
        max_records=now.max_batch_records if now.is_reading_on else 0,
        has_skips=now.has_skips,
    )
    is_news = {(task.task, task.epoch) for task in described} != {(task.task, task.epoch) for task in held}
    is_known = asked.known in {"", now.spec_sha256} and asked.known_version in {0, now.spec_version}
    changed = None if is_known else job_to_run(s.get_one(JobRow, now.job_id))
    due_in_ms = _due_in_ms(described, asked.waited_ms)
    is_ready = is_news or changed is not None or copies.is_ready or due_in_ms == 0
    again_ms = _earliest(to_advance.look_again_ms, pausing.look_again_ms)
    if now.is_changing or (progress is not None and (pausing.task_ids or again_ms is not None)):
        topics.add(progress_topic(now.job_id))
    again_ms, topics = (
        _earliest(again_ms, copies.look_again_ms, now.leaves_in_ms, due_in_ms or None),
        topics | copies.topics,
    )
    ids = ({}, {}) if changed is None else ids_of_job(s, now.job_id)
    answer = PollAnswer("run", described, changed, *ids, copies=copies.described)
    outcome = PollOutcome(answer, is_ready, frozenset(topics), again_ms, read.patient)
    reports = {
        task.id: _report(mine, changelogs.of_tasks.get(task.id, []))
        for task in tasks
        for mine in held
        if (mine.task, mine.epoch) == (task.id, task.epoch)
    }
    is_stage_closed = progress is not None and progress.is_stage_closed
    is_change_due = now.is_changing and job_changes.is_due(s, now.job_id)
    is_probe_due = now.is_probing and (
        any(each.has_caught_up for each in copies.reports.values())
        or any(at.state in NOT_SHOWN and at.id in reports and reports[at.id].is_restored for at in tasks)
    )
    is_write_due = is_stage_closed or is_change_due or bool(copies.reports)
    is_write_due = is_write_due or any(_is_to_write(at, reports.get(at.id)) for at in tasks)
    job_due = (is_stage_closed, is_change_due, copies.reports, is_probe_due)
    return _Look(outcome, now.is_lease_due, is_write_due, reports, *job_due)


def _progress(
    s: Session, now: _SlotNow, logs: JobLogs | None, tasks: Sequence[Assigned], held: Sequence[HeldTask]
) -> JobProgress | None:
    """How far the job is, noted of each task; None where nobody has to wait for others: nothing is to be closed, no
    task has written too far ahead, and none of these, if it has more than one input, anything to do.
    """
    if logs is None or now.patience is None:
        return None
    going_on = {mine.task for mine in held if mine.has_backlog}
    if not (
        now.is_changing
        or now.patience.flush is not None
        or now.patience.idle_close_after_ms is not None
        or logs.may_throttle
        or any(len(at.inputs) > 1 and (at.has_work or at.replay or at.id in going_on) for at in tasks)
    ):
        return None
    progress = JobProgress(s, now.job_id, now.patience, logs)
    for task in tasks:
        task.heads_digest = progress.note(task.id, task.inputs)
    return progress


class _ReadTopics(NamedTuple):
    """What wakes when tasks get something to read; `patient`: or something to pass over."""

    topics: set[str]
    patient: frozenset[str]


def _read_topics(tasks: Sequence[Assigned]) -> _ReadTopics:
    """Of a repartition stream a task awaits its own records, and where others read what it writes also its turn to pass
    over those of others: they learn by that how far it is.
    """
    topics, patient = set[str](), set[str]()
    for task in tasks:
        for at in task.inputs:
            if at.sub_log is None:
                topics.add(partition_topic(at.stream_id, at.partition))
            elif task.feeds_others:
                topics.add(stream_topic(at.stream_id))
            else:
                topics.add(target_topic(at.stream_id, at.sub_log))
                patient.add(stream_topic(at.stream_id))
    return _ReadTopics(topics | patient, frozenset(patient - topics))


def _due_in_ms(tasks: Sequence[AssignedTask], waited_ms: int) -> int | None:
    """ms until the tasks of a slot, which asked so long ago, have something to do; None: they have not."""
    due = [task for task in tasks if task.is_due]
    return min((max(0, PASS_OVER_MS - waited_ms) if task.can_wait else 0 for task in due), default=None)


def _earliest(*moments_ms: int | None) -> int | None:
    return min((ms for ms in moments_ms if ms is not None), default=None)


class _Pausing(NamedTuple):
    """Tasks that have something to read and get nothing now, and when to look again (ms; None: when a task commits)."""

    task_ids: Set[str]
    look_again_ms: int | None


_NO_PAUSE: Final = _Pausing(frozenset(), None)


def _pausing(s: Session, progress: JobProgress, tasks: Sequence[Assigned], held: Sequence[HeldTask]) -> _Pausing:
    """Tasks that found nothing to run in what they know already, and those that have written too far ahead."""
    digests = {(mine.task, mine.epoch): mine.held_at for mine in held if mine.held_at}
    waiting = {task.id for task in tasks if digests.get((task.id, task.epoch)) == task.heads_digest}
    again_ms = progress.caught_up_in_ms if waiting else None
    return _Pausing(waiting | progress.throttled(s, [task.id for task in tasks if task.has_work]), again_ms)


def _report(mine: HeldTask, changelogs: Sequence[ChangelogEnd]) -> Report:
    is_restored = all(mine.applied.get(each.store_id, 0) >= each.end for each in changelogs)
    return Report(mine.applied, is_restored, mine.has_backlog)


def _slot_now(s: Session, slot_id: str) -> _SlotNow:
    found = _SLOT.rows(s, slot_id=slot_id)
    if not found:
        raise InstanceGone(f"Slot {slot_id}")
    job_id, instance_id, job_state, instance_state, most, idle_ms, digest, has_skips, left_ms, lease_ms, *more = found[
        0
    ]
    is_due = is_renewal_due(left_ms, lease_ms)
    max_bytes, task_idle_ms, flush, read_to, version, is_probing, instance_leaves_in_ms, *share = more
    leaves_in_ms = _leaves_in_ms(instance_state, instance_leaves_in_ms, *share)
    is_wanted = job_state in STAFFED and (leaves_in_ms is None or (leaves_in_ms > 0 and _may_stay(s, job_id, slot_id)))
    idle_ms = None if job_state == CHANGING else idle_ms  # nothing is closed meanwhile, and nobody waits for that
    patience = None if max_bytes is None else Patience(max_bytes, task_idle_ms or 0, idle_ms, flush, read_to)
    is_working, is_changing = job_state in WORKING, job_state == CHANGING
    is_reading_on = is_working or (is_changing and read_to is not None)
    return _SlotNow(
        job_id,
        instance_id,
        is_wanted,
        is_working,
        is_changing,
        is_reading_on,
        most,
        idle_ms,
        digest,
        version,
        has_skips,
        is_due,
        patience,
        bool(is_probing),
        leaves_in_ms,
    )


def _leaves_in_ms(
    instance_state: str, instance_leaves_in_ms: int | None, is_surplus: bool | None, surplus_leaves_in_ms: int | None
) -> int | None:
    if instance_state != LIVE:
        return instance_leaves_in_ms or 0
    return surplus_leaves_in_ms or 0 if is_surplus else None


def _may_stay(s: Session, job_id: str, slot_id: str) -> bool:
    """Whether a slot that is to leave has a task that others can still take over."""
    runs = select(ReplicaRow.task_id).where(ReplicaRow.slot_id == slot_id, ReplicaRow.role == ACTIVE).limit(1)
    return s.execute(runs).first() is not None and bool(members_of(s, job_id))


def _is_to_write(task: Assigned, report: Report | None) -> bool:
    """A hand-over, a lost range, or a copy that moved on with no commit coming to say so."""
    if task.target_slot_id is not None or task.is_truncated:
        return True
    return not task.has_work and report is not None and is_news(task.state, task.applied, report)


def _keep_slot(s: Session, slot_id: str, look: _Look, *, renews: bool) -> None:
    """Write what a poll brought: hand-overs, lost ranges, a flush or change that goes on, positions of copies, the
    lease. Where a copy has caught up that something waits for, the group is looked at anew.
    """
    tasks, reports, job = assigned_to(s, slot_id), look.reports, None
    truncated = next((task for task in tasks if task.is_truncated), None)
    is_moving = any(task.target_slot_id is not None for task in tasks)
    if truncated or is_moving or look.is_stage_closed or look.is_change_due or look.is_probe_due:
        job = lock_job(s, job_id=s.scalars(select(SlotRow.job_id).where(SlotRow.id == slot_id)).one())
        if truncated:
            fail_job(s, job, _source_truncated(s, truncated))
        if truncated or is_moving:
            hand_over(s, job, slot_id)
        go_on_flushing(s, job)
        go_on_changing(s, job)
    epochs = {task.id: task.epoch for task in tasks}
    locked = lock_tasks_by_id(s, {*reports, *look.copies})
    for task_id, copy in copies_of_slot(s, slot_id, list(locked)).items():
        if copy.role != ACTIVE and task_id in look.copies:
            note_copy(copy, look.copies[task_id].applied, look.copies[task_id].state, now_ms(s))
        elif task_id in reports and locked[task_id].epoch == epochs.get(task_id):
            note_report(s, locked[task_id], copy, reports[task_id])
    s.flush()
    if job is not None and look.is_probe_due:
        rebalance(s, job, "a copy has caught up")
    if renews:
        _keep_lease(s, slot_id)
    else:
        require_slot(s, slot_id)


def _keep_lease(s: Session, slot_id: str) -> None:
    if not renew_slot(s, slot_id):
        raise InstanceGone(f"Slot {slot_id}")


def _source_truncated(s: Session, task: Assigned) -> Json:
    lost = next(at for at in task.inputs if at.position < at.start)
    stream = s.get_one(StreamRow, lost.stream_id).name
    detail = f"task {task.name} stands at {lost.position}, the partition of {stream!r} starts at {lost.start}"
    where = {"task": task.name, "stream": stream, "partition": lost.partition}
    return {"code": "source_truncated", **where, "detail": detail}


def commit_tasks(
    s: Session, slot_id: str, commits: Sequence[TaskCommit], *, instance_id: str | None = None
) -> list[Verdict]:
    """Judge each commit alone and write what is accepted (`catalog.commits`); the slot's lease is kept with it, also
    without any commit.

    Raises UnknownSlot (it is another instance's).
    """
    lease = next(iter(LEASE_OF_SLOT.rows(s, slot_id=slot_id)), None)
    if lease is not None:
        require_same_instance(slot_id, lease[0], instance_id)
    verdicts = committing.commit_tasks(s, slot_id, commits) if commits else []
    if lease is not None and is_renewal_due(*lease[1:]):
        renew_slot(s, slot_id)
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
    task, active = lock_tasks_by_id(s, [task_id])[task_id], active_of(s, [task_id]).get(task_id)
    if active is None or active.slot_id != slot_id or task.epoch != epoch:
        raise StaleEpoch(task.name)
    fail_job(s, job, {**error, "task": task.name})
