"""Changes of jobs to other versions: at once where the job is quiet, else as soon as it is.

It knows what a change of version does to owners: they keep their tasks under other epochs, so that nothing of what they
have under way counts, and learn of the version with their next poll. It refuses to know what is quiet and which rows
change (`service.catalog.job_changes`).
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from service.catalog import job_changes
from service.catalog.engine import JOBS, job_topic, now_ms, progress_topic, wake
from service.catalog.job_changes import BECOME_ANOTHER, BufferBound, WantedChange
from service.catalog.job_states import CHANGING, MAY_CHANGE, PAUSED, WAIT_OR_RESUME, WORKING, move
from service.catalog.jobs import stores_of
from service.catalog.replicas import Holding
from service.catalog.tables import JobRow
from service.coordinator.ownership import lock_holdings, rebalance
from service.coordinator.verbs import end_live_slots
from service.faults import fault_point
from service.streams.errors import IllegalTransition, StreamError
from service.streams.topology.graph import Topology

MAY_BECOME_ANOTHER: Final = WORKING | MAY_CHANGE | {PAUSED}
REFUSED: Final = "refused"


def change_version(s: Session, job: JobRow, wanted: WantedChange) -> list[BufferBound]:
    """Make a locked job this version, or, where it has something to read before, let it come to rest for it.

    Returns the bounds that buffers are over: then nothing is changed. Raises IllegalTransition (a flush or replay under
    way; one that does not run has something to read), StreamExists, InternalStream.
    """
    if job.state not in MAY_BECOME_ANOTHER:
        way_out = WAIT_OR_RESUME if job.state == CHANGING else "wait until it is stopped"
        raise IllegalTransition(job.state, BECOME_ANOTHER, way_out)
    job_changes.require_nothing_asked(s, job)
    holdings = lock_holdings(s, job.id)
    read_to = job_changes.marks(s, job, wanted)
    left = job_changes.what_is_left(s, job, reads_on=wanted.reads_on, read_to=read_to)
    if left is not None and job.state not in WORKING:
        verb = "resume" if job.state == PAUSED else "restart"
        raise IllegalTransition(job.state, BECOME_ANOTHER, f"{left}: `:{verb}` it, change it while it runs")
    if left is not None:
        job_changes.require_own_names(s, job, Topology.from_json(wanted.topology))
        job_changes.wait_until_quiet(s, job, wanted, read_to)
        return []
    if full := _too_full(s, job, holdings, wanted):
        return full
    _make(s, job, holdings, wanted)
    return []


def go_on_changing(s: Session, job: JobRow) -> None:
    """Make the change that a locked job came to rest for, where it is quiet; where it can not be made, give it up."""
    wanted = job_changes.pending(job)
    if wanted is None:
        return
    holdings = lock_holdings(s, job.id)
    if job_changes.what_is_left(s, job, reads_on=wanted.reads_on, read_to=job.read_to) is not None:
        return
    if full := _too_full(s, job, holdings, wanted):
        _give_up(s, job, "; ".join(bound.detail for bound in full))
        return
    try:
        with s.begin_nested():
            _make(s, job, holdings, wanted)
    except StreamError as error:
        s.refresh(job)
        _give_up(s, job, str(error))


def _too_full(s: Session, job: JobRow, holdings: list[Holding], wanted: WantedChange) -> list[BufferBound]:
    return job_changes.too_full(stores_of(s, job.id), [each.task for each in holdings], wanted.bounds)


def _make(s: Session, job: JobRow, holdings: list[Holding], wanted: WantedChange) -> None:
    job_changes.make_version(s, job, [each.task for each in holdings], wanted)
    at_ms = now_ms(s)
    for each in lock_holdings(s, job.id):  # others than before, where tasks end and begin
        each.renew(at_ms)
    if job.state == CHANGING:
        move(s, job, "changed", reason=f"version {job.spec_version} begins", who=wanted.who)
    rebalance(s, job, "the job was changed")
    if job.state in MAY_CHANGE:
        end_live_slots(s, job, "the job was changed")
    wake(s, JOBS, job_topic(job.id), progress_topic(job.id))
    fault_point("change.before")


def _give_up(s: Session, job: JobRow, reason: str) -> None:
    """Go on by the present version, and say why."""
    move(s, job, "resume", reason=reason)
    job.change = {"state": REFUSED, "reason": reason}
    rebalance(s, job, "a change was given up")
