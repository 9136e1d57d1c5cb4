"""Evictions: the coordinator's own round, which ends members that say nothing and gives out what nobody owns.

It knows leases that ran out, jobs that are stuck, flushes and changes that nobody takes further; it refuses to know who
should own a task (`ownership`).

Members that are lost together end together: all slots whose lease, or whose instance's lease, ran out end in one
transaction before any of their tasks is given out. The leases of a killed instance run out one after the other, so a
slot that says nothing is not judged while its instance has missed a beat: either that is heard again, or it takes all
its slots with it.

Time in which no API process looked counts against nobody: members could not renew their leases then.
"""

from __future__ import annotations

import math
import time
from enum import Enum, auto
from typing import Final

from sqlalchemy import BigInteger, ColumnElement, Select, bindparam, case, delete, exists, or_, select, update
from sqlalchemy.orm import Session

from service.catalog import job_changes
from service.catalog.driver import Prepared
from service.catalog.engine import JOBS, Catalog, Now, now_ms, wake
from service.catalog.job_states import CHANGING, DRAINING, STAFFED, go_on_flushing, lock_job
from service.catalog.nodes import forget_unseen
from service.catalog.replicas import HAS_OWNER
from service.catalog.tables import InstanceRow, JobRow, MetaRow, SlotRow, TaskRow
from service.coordinator.changes import go_on_changing
from service.coordinator.leases import GONE, LIVE, PRESENT, RENEW_AFTER, SESSION_TIMEOUT_MS, UNSEEN
from service.coordinator.members import NO_DELAY_MS
from service.coordinator.ownership import lock_slots, rebalance, take_tasks

SEEN: Final = "coordinator_seen_ms"
GONE_SLOTS_KEPT_MS: Final = 24 * 3_600_000
UNSEEN_NODES_KEPT_MS: Final = 7 * 24 * 3_600_000
SWEEP_EVERY_MS: Final = 60_000
MISSED_PART: Final = 4  # of a lease: looks that are late by more than a fourth of it put it off


_IS_MARKED = exists().where(TaskRow.job_id == JobRow.id, TaskRow.flush_at.is_not(None))
_CLOSED_STAGES = select(JobRow.id).where(JobRow.flush.is_not(None), ~_IS_MARKED).order_by(JobRow.id)
_CHANGING = select(JobRow.id).where(JobRow.state == CHANGING).order_by(JobRow.id)


def _stuck_jobs(before_ms: int | ColumnElement[int]) -> Select[str]:
    """Jobs with a task that nobody owns although a slot has been alive since, and that drain with no slot left."""
    has_slot = exists().where(SlotRow.job_id == JobRow.id, SlotRow.state == LIVE, InstanceRow.state == LIVE)
    has_slot = has_slot.where(InstanceRow.id == SlotRow.instance_id, SlotRow.joined_ms <= before_ms)
    has_free_task = exists().where(TaskRow.job_id == JobRow.id, ~HAS_OWNER)
    is_stuck = JobRow.state.in_(STAFFED) & has_free_task & has_slot
    is_drained = (JobRow.state == DRAINING) & ~exists().where(SlotRow.job_id == JobRow.id, SlotRow.state == LIVE)
    return select(JobRow.id).where(or_(is_stuck, is_drained)).order_by(JobRow.id)


def _waiting_jobs(at_ms: int | ColumnElement[int]) -> Select[str]:
    """Jobs that waited until now: for slots to join, for copies to catch up."""
    return select(JobRow.id).where(JobRow.rebalance_at_ms <= at_ms, JobRow.state.in_(STAFFED)).order_by(JobRow.id)


def _missed_a_beat(at_ms: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Of a slot: its instance, which renews its lease before a half of it is over, has not done so."""
    silent = 2 * (InstanceRow.lease_until_ms - at_ms) < InstanceRow.lease_ms
    is_open = exists().where(InstanceRow.id == SlotRow.instance_id, InstanceRow.state.in_(PRESENT), silent)
    return is_open.where(InstanceRow.lease_until_ms >= at_ms)


def _is_lost(at_ms: int | ColumnElement[int]) -> ColumnElement[bool]:
    return (SlotRow.state == LIVE) & (SlotRow.lease_until_ms < at_ms) & ~_missed_a_beat(at_ms)


_DUE = Prepared(
    select(
        Now(),
        select(MetaRow.value).where(MetaRow.name == SEEN).scalar_subquery(),
        or_(
            exists().where(_is_lost(Now())),
            exists().where(InstanceRow.state.in_(PRESENT), InstanceRow.lease_until_ms < Now()),
            _stuck_jobs(Now() - bindparam("initial_delay_ms", type_=BigInteger)).exists(),
            _waiting_jobs(Now()).exists(),
            _CLOSED_STAGES.exists(),
        ),
        _CHANGING.exists(),
    )
)  # one statement: it is asked four times a second


class Ticks:
    """The rounds of one API process, which are to be `every_ms` apart: it knows how late each of them is."""

    def __init__(self, catalog: Catalog, *, every_ms: int, lease_ms: int, initial_delay_ms: int) -> None:
        self._catalog, self._every_ms = catalog, every_ms
        self._how = {"lease_ms": lease_ms, "initial_delay_ms": initial_delay_ms}
        self._looked_s = -math.inf

    def run_once(self) -> int:
        """A round, as `tick`. One that fails counts as none."""
        now_s = time.monotonic()
        late_ms = 1000 * (now_s - self._looked_s) - self._every_ms
        evicted = tick(self._catalog, **self._how, late_ms=late_ms)
        self._looked_s = now_s
        return evicted


def tick(
    catalog: Catalog,
    *,
    lease_ms: int = SESSION_TIMEOUT_MS,
    initial_delay_ms: int = NO_DELAY_MS,
    late_ms: float = 0,
) -> int:
    """One round: evict members whose lease ran out, give out tasks without an owner, those too whose slot did not
    follow the first within `initial_delay_ms`, take flushes to their next stage and changes to their end. Returns who
    was evicted.

    The round comes so much later than it should have, as this process knows: where no other one has looked meanwhile
    either, members could not renew, so their leases end as much later. After a whole session timeout without a round
    every lease starts again. A round with nothing to do is read-only.
    """
    due = catalog.read(_due, lease_ms, initial_delay_ms, late_ms)
    if due is None:
        return 0
    how = {"lease_ms": lease_ms, "initial_delay_ms": initial_delay_ms}
    return catalog.write(_tick, **how, late_ms=late_ms, is_whole=due is _Due.WHOLE)


class _Due(Enum):
    MARK = auto()  # that the coordinator is there
    WHOLE = auto()


def _due(s: Session, lease_ms: int, initial_delay_ms: int, late_ms: float) -> _Due | None:
    """What a round has to do; what is kept for a time is looked at once a minute."""
    [(at, seen, is_due, is_changing)] = _DUE.rows(s, initial_delay_ms=initial_delay_ms)
    if is_due or seen is None or min(late_ms, at - int(seen)) > lease_ms // MISSED_PART:
        return _Due.WHOLE
    if is_changing and any(job_changes.is_due(s, job_id) for job_id in s.scalars(_CHANGING)):
        return _Due.WHOLE
    if at - int(seen) <= lease_ms // RENEW_AFTER:
        return None
    return _Due.MARK if at // SWEEP_EVERY_MS == int(seen) // SWEEP_EVERY_MS else _Due.WHOLE


def _tick(s: Session, *, lease_ms: int, initial_delay_ms: int, late_ms: float, is_whole: bool) -> int:
    at = now_ms(s)
    seen = s.scalars(select(MetaRow).where(MetaRow.name == SEEN).with_for_update()).one_or_none()
    if seen is None or at - int(seen.value) > lease_ms:
        _put_off(s, at)
        s.merge(MetaRow(name=SEEN, value=str(at)))
        return 0
    missed_ms = round(min(late_ms, at - int(seen.value)))
    seen.value = str(at)
    if missed_ms > lease_ms // MISSED_PART:
        _put_off(s, at, missed_ms)
    if not is_whole:
        return 0
    evicted = _evict(s, at)
    s.execute(delete(SlotRow).where(SlotRow.state == GONE, SlotRow.gone_ms < at - GONE_SLOTS_KEPT_MS))
    forget_unseen(s, at - UNSEEN_NODES_KEPT_MS)
    for job_id in s.scalars(_stuck_jobs(at - initial_delay_ms)).all():
        rebalance(s, lock_job(s, job_id=job_id), "tasks had no owner")
    for job_id in s.scalars(_waiting_jobs(at)).all():
        rebalance(s, lock_job(s, job_id=job_id), "what was waited for is there, or late")
    for job_id in s.scalars(_CLOSED_STAGES).all():
        go_on_flushing(s, lock_job(s, job_id=job_id))
    for job_id in s.scalars(_CHANGING).all():
        go_on_changing(s, lock_job(s, job_id=job_id))
    return evicted


def _put_off(s: Session, at: int, by_ms: int | None = None) -> None:
    """Have leases end so much later, a whole one from now at the latest; None: that much later in any case."""
    for slot in lock_slots(s, SlotRow.lease_until_ms < at + SlotRow.lease_ms):
        whole = at + slot.lease_ms
        slot.lease_until_ms = whole if by_ms is None else min(slot.lease_until_ms + by_ms, whole)
    end = at + InstanceRow.lease_ms
    late = update(InstanceRow).where(InstanceRow.state.in_(PRESENT), InstanceRow.lease_until_ms < end)
    if by_ms is not None:
        later = InstanceRow.lease_until_ms + by_ms
        end = case((later < end, later), else_=end)
    s.execute(late.values(lease_until_ms=end), execution_options=UNSEEN)


def _evict(s: Session, at: int) -> int:
    """Instances whose lease ran out go with all their slots, for their driver watches over nobody any more, and with
    them slots that are lost by themselves.
    """
    is_expired = InstanceRow.state.in_(PRESENT) & (InstanceRow.lease_until_ms < at)
    instances = s.scalars(select(InstanceRow.id).where(is_expired).order_by(InstanceRow.id)).all()
    alone = ~SlotRow.instance_id.in_(instances)
    struck = s.execute(select(SlotRow.id, SlotRow.job_id).where(SlotRow.state == LIVE, ~alone)).all()
    lost = s.execute(select(SlotRow.id, SlotRow.job_id).where(_is_lost(at), alone)).all()
    jobs = [lock_job(s, job_id=job_id) for job_id in sorted({job_id for _, job_id in (*struck, *lost)})]
    alone_ids = {slot_id for slot_id, _ in lost}
    take_tasks(s, jobs, alone_ids.union(slot_id for slot_id, _ in struck), unless_renewed=alone_ids)
    if instances:
        gone = update(InstanceRow).where(InstanceRow.id.in_(instances), is_expired).values(state=GONE)
        s.execute(gone, execution_options=UNSEEN)
        wake(s, JOBS)
    of_instances = {job_id for _, job_id in struck}
    for job in jobs:
        rebalance(s, job, "an instance was lost" if job.id in of_instances else "a slot was lost")
    return len(instances) + len(lost)
