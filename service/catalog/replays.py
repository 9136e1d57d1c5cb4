"""Replays of dropped records: what was asked for, how far each task is, what comes next.

It knows that a replay is an input of a task that ends where the stream of dropped records ended when it was asked for:
what is dropped again lies behind that. It refuses to know what operators do with the records.

    tasks.replay   {"stream_id", "position", "end", "wanted"}, null while there is none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog import segments
from service.catalog.converters import converter
from service.catalog.engine import job_topic, progress_topic, wake
from service.catalog.job_states import CHANGING, WAIT_OR_RESUME, lock_job, lock_tasks, note_transition
from service.catalog.jobs import is_replaying, metrics
from service.catalog.tables import JobRow, Json, PartitionRow, StreamRow, TaskRow
from service.protocol import KeptRange, Move
from service.streams.errors import IllegalTransition, InvalidSpec, NothingKept, Problem, ReplayUnderWay
from service.streams.topology.graph import Topology
from service.streams.topology.replays import REASONS, Wanted

_wanted = converter(Wanted)


class PartitionToReplay(NamedTuple):
    """The offsets [start, end) of a partition of dropped records that a replay looks through."""

    partition: int
    start: int
    end: int


class ReplayAsked(NamedTuple):
    """A replay of the records in this stream."""

    stream: str
    partitions: Sequence[PartitionToReplay]


def ask_to_replay(s: Session, name: str, wanted: Wanted, *, who: str = "") -> ReplayAsked:
    """Have a job's tasks take in again what they dropped and kept until now; they begin once the job runs.

    Raises UnknownJob, NothingKept, ReplayUnderWay, IllegalTransition (it becomes another version), InvalidSpec (an
    operator or a reason that the job does not know).
    """
    job = lock_job(s, name=name)
    kept = s.scalars(select(StreamRow).where(StreamRow.job_id == job.id, StreamRow.kind == "dropped")).one_or_none()
    if kept is None:
        raise NothingKept(name)
    if job.state == CHANGING:
        raise IllegalTransition(job.state, "replay", WAIT_OR_RESUME)
    if unknown := _unknown(s, job, wanted):
        raise InvalidSpec(unknown)
    tasks = lock_tasks(s, job.id)
    if is_replaying(s, job.id):
        raise ReplayUnderWay(name)
    partitions = s.scalars(select(PartitionRow).where(PartitionRow.stream_id == kept.id))
    first = job.replays_from or {}
    found = {
        at.partition: PartitionToReplay(
            at.partition, max(at.start_offset, first.get(str(at.partition), 0)), at.end_offset
        )
        for at in partitions
    }
    for task in tasks:
        at = found.get(task.partition)  # none: it was made for fewer tasks, when records were kept
        if at is not None and at.start < at.end:
            said = {"position": at.start, "end": at.end, "wanted": msgspec.to_builtins(wanted)}
            task.replay = {"stream_id": kept.id, **said}
    note_transition(s, job, job.state, job.state, "replay", who, kind="replay", details=msgspec.to_builtins(wanted))
    wake(s, job_topic(job.id), progress_topic(job.id))
    return ReplayAsked(kept.name, [found[partition] for partition in sorted(found)])


def next_range(
    s: Session, replay: Mapping[str, Any] | None, partition: int, number: int, max_records: int
) -> KeptRange | None:
    """What a task replays next, at most `max_records` offsets of them, as its input of this number."""
    if replay is None or max_records <= 0:
        return None
    stream_id, position, end = replay["stream_id"], replay["position"], replay["end"]
    given = segments.next_range(s, number, (stream_id, partition), position, end, max_records)
    return KeptRange(stream_id, given, _wanted(replay["wanted"]))


def objection(task: TaskRow, move: Move | None) -> str | None:
    """Why a locked task's replay can not move so; None when it can."""
    if move is None:
        return None
    at = task.replay
    if at is None or at["position"] != move.start or not move.start < move.end <= at["end"]:
        return "wrong_position"
    return None


def note(task: TaskRow, move: Move) -> None:
    """Keep what a locked task's accepted commit replayed; what came of it may be open."""
    if task.replay is not None:
        task.replay = None if move.end >= task.replay["end"] else task.replay | {"position": move.end}
    task.is_closed = False


def _unknown(s: Session, job: JobRow, wanted: Wanted) -> list[Problem]:
    """What a replay names and the job does not know: operators, reasons."""
    operators = Topology.from_json(job.topology).dropping()
    counted: Json = metrics(s, job.id).get("dropped", {})
    reasons = REASONS.union(*counted.values())
    found = [
        Problem(f"/reason/{i}", f"{reason!r} is no reason to drop a record: {', '.join(sorted(reasons))}")
        for i, reason in enumerate(wanted.reason or [])
        if reason not in reasons
    ]
    if wanted.operator is not None and wanted.operator not in operators:
        problem = Problem("/operator", f"{wanted.operator!r} is none of {', '.join(map(repr, operators))}")
        found.append(problem)
    return found
