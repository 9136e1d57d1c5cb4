"""Verbs of people that change who runs a job: pause, resume, stop, restart, reset, a stream time set back,
another specification.

It knows which of them end slots or take tasks; it refuses to know which state allows which (`catalog.job_states`).
"""

from __future__ import annotations

import json

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog import job_resets, time_resets
from service.catalog.engine import now_ms
from service.catalog.job_creation import set_spec
from service.catalog.job_states import CHANGING, MAY_CHANGE, MAY_RESET, STOP_FIRST, WAIT_OR_RESUME, lock_job, move
from service.catalog.start_positions import FirstRecords
from service.catalog.tables import JobRow, Json, SlotRow
from service.catalog.time_resets import TimeReset
from service.coordinator.leases import LIVE
from service.coordinator.ownership import end_slots, lock_holdings, rebalance
from service.streams.errors import IllegalTransition
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec
from service.streams.topology.starts import START, Start


def change_job(s: Session, name: str, verb: str, *, who: str = "", reason: str = "") -> JobRow:
    """What people ask of a job: `pause`, `resume`, `stop`, `restart`. Raises UnknownJob, IllegalTransition."""
    job = lock_job(s, name=name)
    move(s, job, verb, who=who, reason=reason)
    if verb == "restart":  # a slot that has not left yet begins anew as well: it may have given a task up
        at = now_ms(s)
        for each in lock_holdings(s, job.id):
            each.give(s, None, at)
    rebalance(s, job, verb)
    return job


def reset_job(s: Session, name: str, start: Start, records: FirstRecords | None = None, *, who: str = "") -> JobRow:
    """Set a stopped or failed job back to a start; then it is stopped.

    Asked again it does so again: the same but for ids, epochs and versions. A slot that has not left a failed job yet
    is ended. Raises UnknownJob, IllegalTransition, InvalidSpec (what the start says of the job's sources).
    """
    job = lock_job(s, name=name)
    if job.state not in MAY_RESET:
        raise IllegalTransition(job.state, "be reset", STOP_FIRST)
    written = START.dump_python(start, mode="json")
    move(s, job, "reset", reason=f"reset: {json.dumps(written)}", who=who, details={"start": written})
    holdings, at = lock_holdings(s, job.id), now_ms(s)
    for each in holdings:
        each.give(s, None, at)
    job_resets.begin_anew(s, job, [each.task for each in holdings], start, records)
    end_live_slots(s, job, "the job was reset")
    return job


def reset_time(s: Session, name: str, stream_time: int, *, who: str = "") -> list[TimeReset]:
    """Set the tasks of a stopped or failed job that are ahead of a stream time (ms) back to it; returns what becomes of
    each. Its state stays.

    Asked again it changes nothing. Raises UnknownJob, IllegalTransition (its state; something is left to be done
    before), ReplayUnderWay.
    """
    job = lock_job(s, name=name)
    time_resets.require_quiet(s, job)
    holdings, at = lock_holdings(s, job.id), now_ms(s)
    found = time_resets.ahead_of(stream_time, [each.task for each in holdings])
    if found:
        for each in holdings:
            each.give(s, None, at)
        time_resets.set_back(s, job, [each.task for each in holdings], stream_time, who=who)
        end_live_slots(s, job, "its stream time was set back")
    return found


def change_spec(
    s: Session,
    job: JobRow,
    spec: JobSpec,
    topology: Topology,
    *,
    reason: str = "",
    who: str = "",
    details: Json | None = None,
) -> None:
    """Give a locked job another specification; slots at work get it with their next poll, and copies of its stores are
    kept as it says. Raises StreamExists,
    IllegalTransition (it becomes another version).

    A slot that has not left a stopped or failed job yet is ended, so that it joins anew where the job goes on: there,
    streams and slots may change as well.
    """
    if job.state == CHANGING:
        raise IllegalTransition(job.state, "be changed once more", WAIT_OR_RESUME)
    set_spec(s, job, spec, topology, reason=reason, who=who, details=details)
    s.flush()
    if job.state not in MAY_CHANGE:
        rebalance(s, job, "the job was changed")
        return
    end_live_slots(s, job, "the job was changed")


def end_live_slots(s: Session, job: JobRow, reason: str) -> None:
    """End the slots of a locked job that have not left yet."""
    live = select(SlotRow.id).where(SlotRow.job_id == job.id, SlotRow.state == LIVE)
    end_slots(s, s.scalars(live).all(), reason)
