"""A job's states: the one table of transitions between them, and the verbs that a state allows.

It refuses to know operators and who should own a task (`service.coordinator`).

Locks are taken in the order of the catalog: jobs, tasks, then partitions by id.
"""

from __future__ import annotations

from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.engine import JOBS, job_topic, now_ms, progress_topic, wake
from service.catalog.idle_and_flush import ask_to_flush, begin_next_stage
from service.catalog.jobs import positions, streams_of
from service.catalog.replicas import owners_of
from service.catalog.tables import (
    JobRow,
    JobTransitionRow,
    Json,
    SkipRow,
    SlotRow,
    TaskRow,
)
from service.streams.errors import IllegalTransition, InvalidSpec, Problem, UnknownJob, UnknownPartition

STARTING, RUNNING, REBALANCING = "starting", "running", "rebalancing"
PAUSED, DRAINING, STOPPED, FAILED = "paused", "draining", "stopped", "failed"
CHANGING = "changing"  # coming to rest for another version: what is on its way is read, nothing else
WORKING = frozenset({STARTING, RUNNING, REBALANCING})  # work is handed out
STAFFED = WORKING | {PAUSED, CHANGING}  # slots are wanted
MAY_RESET = frozenset({STOPPED, FAILED})

TRANSITIONS: dict[str, tuple[frozenset[str], str]] = {
    # what people ask for
    "pause": (WORKING, PAUSED),
    "resume": (frozenset({PAUSED, CHANGING}), STARTING),
    "stop": (STAFFED | {FAILED}, DRAINING),
    "restart": (frozenset({STOPPED, FAILED}), STARTING),
    "reset": (MAY_RESET, STOPPED),
    "change": (WORKING, CHANGING),
    # what happens
    "run": (frozenset({STARTING, REBALANCING}), RUNNING),
    "rebalance": (frozenset({RUNNING}), REBALANCING),
    "drain": (frozenset({DRAINING}), STOPPED),
    "changed": (frozenset({CHANGING}), STARTING),
    "fail": (STAFFED | {DRAINING}, FAILED),
}
Kind = Literal["state", "spec", "reset", "flush", "replay", "skip", "version", "copy", "reset_time"]
MAY_DELETE = frozenset({STOPPED})
MAY_SKIP = frozenset({FAILED})
MAY_CHANGE = frozenset({STOPPED, FAILED})
STOP_FIRST = "`:stop` it first, and wait until it is stopped"
WAIT_OR_RESUME = "wait until its change is made, or `:resume` it to give that up"


def lock_job(s: Session, *, name: str | None = None, job_id: str | None = None) -> JobRow:
    """Lock one job by name or id. Raises UnknownJob."""
    which = JobRow.id == job_id if name is None else JobRow.name == name
    query = select(JobRow).where(which).with_for_update(key_share=True).execution_options(populate_existing=True)
    job = s.scalars(query).one_or_none()
    if job is None:
        raise UnknownJob(name or job_id or "")
    return job


def lock_tasks(s: Session, job_id: str) -> list[TaskRow]:
    """Lock the tasks of a job in the order of their ids."""
    query = select(TaskRow).where(TaskRow.job_id == job_id).order_by(TaskRow.id).with_for_update(key_share=True)
    return list(s.scalars(query.execution_options(populate_existing=True)))


def move(
    s: Session,
    job: JobRow,
    verb: str,
    *,
    reason: str = "",
    who: str = "",
    error: Json | None = None,
    details: Json | None = None,
) -> None:
    """Take a locked job through one transition; `details`: what was asked for. A change that it came to rest for is
    given up by any verb of people, and by a failure. Raises IllegalTransition.
    """
    allowed, state = TRANSITIONS[verb]
    if job.state not in allowed:
        raise IllegalTransition(job.state, verb, WAIT_OR_RESUME if job.state == CHANGING else "")
    kind: Kind = "reset" if verb == "reset" else "state"
    if job.state == CHANGING and verb != "changed":
        job.change = job.read_to = None
        reason = f"{reason or verb}; the change to version {job.spec_version + 1} is given up"
    note_transition(s, job, job.state, state, reason or verb, who, error, kind=kind, details=details)
    job.state, job.reason = state, reason or verb
    job.etag += 1
    if verb in {"fail", "restart", "reset"}:
        job.error = error
    wake(s, JOBS, job_topic(job.id), progress_topic(job.id))


def settle(s: Session, job: JobRow) -> None:
    """Let a locked job's state follow from who owns its tasks: running, rebalancing, stopped."""
    if job.state == DRAINING and not _live_slots(s, job.id):
        move(s, job, "drain", reason="the last slot left")
    if job.state not in WORKING:
        return
    owners = owners_of(s, job.id)
    is_owned = all(owner.slot_id is not None for owner in owners)
    is_moving = any(owner.target_slot_id is not None for owner in owners)
    if job.state == STARTING and is_owned:
        move(s, job, "run", reason="every task has an owner")
    elif job.state == REBALANCING and is_owned and not is_moving:
        move(s, job, "run", reason="every task is where it should be")
    elif job.state == RUNNING and not (is_owned and not is_moving):
        move(s, job, "rebalance", reason="tasks move" if is_owned else "tasks lost their owner")


def _live_slots(s: Session, job_id: str) -> bool:
    live = select(SlotRow.id).where(SlotRow.job_id == job_id, SlotRow.state == "live").limit(1)
    return s.scalars(live).one_or_none() is not None


def fail_job(s: Session, job: JobRow, error: Json) -> None:
    """Fail a locked job for `error` (`code`, `detail`, …); one that has failed or stopped keeps its reason."""
    if job.state in TRANSITIONS["fail"][0]:
        move(s, job, "fail", reason=str(error.get("detail", error.get("code", ""))), error=error)


def require_changeable(job: JobRow) -> None:
    """Nobody runs by its specification. Raises IllegalTransition."""
    if job.state not in MAY_CHANGE:
        raise IllegalTransition(job.state, "be changed", STOP_FIRST)


def flush_job(s: Session, name: str, *, who: str = "") -> JobRow:
    """Have a job close all that is open once it has read what is there now. Raises UnknownJob, IllegalTransition."""
    job = lock_job(s, name=name)
    if job.state not in WORKING:
        raise IllegalTransition(job.state, "flush", WAIT_OR_RESUME if job.state == CHANGING else "")
    ask_to_flush(s, job, lock_tasks(s, job.id))
    note_transition(s, job, job.state, job.state, "flush", who, kind="flush")
    return job


def go_on_flushing(s: Session, job: JobRow) -> None:
    """Begin the next stage of a locked job's flush, or end it, where nothing is left to close at the present one."""
    begin_next_stage(s, job, lock_tasks(s, job.id))


def skip_record(
    s: Session, name: str, *, partition: int, offset: int, stream: str | None = None, who: str = ""
) -> None:
    """Let a failed job pass over one record that it has not read yet, or over what waits of the last one that it read,
    if that is what it failed at; asking twice changes nothing. Of a source, or of a repartition stream of its own;
    `stream` None: of the one that it failed at.

    Raises UnknownJob, IllegalTransition (not failed), UnknownPartition, InvalidSpec (read already).
    """
    job = lock_job(s, name=name)
    if job.state not in MAY_SKIP:
        raise IllegalTransition(job.state, "skip a record", "only a failed one can")
    error, sources = job.error or {}, {source.name: source.id for source in streams_of(s, job.id, "source")}
    wanted = stream or error.get("stream")
    if wanted is not None:
        between = [each for each in streams_of(s, job.id, "internal") if each.kind == "repartition"]
        sources |= {each.name: each.id for each in between}
    read = [p for p in positions(s, job.id) if p.stream in sources and wanted in {None, p.stream}]
    at = next((p for p in read if p.partition == partition), None)
    if at is None:
        raise UnknownPartition(f"{wanted or '/'.join(sources)}/{partition}")
    failed_at = error.get("offset") if error.get("partition") == partition else None
    if not (at.position <= offset < at.end or offset == failed_at == at.position - 1):
        detail = f"the job stands at {at.position} and the partition ends at {at.end}"
        raise InvalidSpec([Problem("/offset", f"{offset} can not be skipped: {detail}")])
    key = {"job_id": job.id, "stream_id": sources[at.stream], "partition": partition, "offset": offset}
    if s.get(SkipRow, key) is None:
        s.add(SkipRow(**key))
        details = {"stream": at.stream, "partition": partition, "offset": offset}
        note_transition(s, job, job.state, job.state, "skip", who, kind="skip", details=details)


def note_transition(
    s: Session,
    job: JobRow,
    from_state: str | None,
    to_state: str,
    reason: str,
    who: str,
    error: Json | None = None,
    *,
    kind: Kind = "state",
    details: Json | None = None,
) -> None:
    """Add a line to the history of a locked job; `from_state` equal to `to_state`: the state stays. `details`: what was
    asked for.
    """
    s.add(
        JobTransitionRow(
            job_id=job.id,
            at_ms=now_ms(s),
            from_state=from_state,
            to_state=to_state,
            reason=reason,
            who=who,
            error=error,
            kind=kind,
            details=details,
        )
    )
