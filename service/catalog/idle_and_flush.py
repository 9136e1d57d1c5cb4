"""Closing without a record: which tasks may advance their stream time because input is idle or a flush was asked for.

It knows what `idle` is, by the catalog's clock, and up to where a flush must have read (semantics.md, Idle close and
flush). It refuses to know what is open in a task and to which time it goes: its slot finds that, and commits it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import Row, bindparam, case, func, select
from sqlalchemy.orm import Session

from service.catalog.engine import Now, job_topic, progress_topic, wake
from service.catalog.tables import INPUT_PARTITION, JobRow, Json, PartitionRow, TaskPositionRow, TaskRow
from service.protocol import Advanced, AdvanceReason

LOOK_AGAIN_MS: Final = 500  # while input is silent for long enough and another task of the job still reads


class Reads(Protocol):
    """An input of a task and where the task stands in it."""

    @property
    def stream_id(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def position(self) -> int: ...


class MayClose(Protocol):
    """A task as a poll sees it."""

    @property
    def id(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def flush_at(self) -> Json | None: ...
    @property
    def inputs(self) -> Collection[Reads]: ...
    @property
    def input_with_work(self) -> int | None: ...


class ToAdvance(NamedTuple):
    """Tasks to advance now, by id, and when to look again (ms; None: when something happens)."""

    reasons: Mapping[str, AdvanceReason]
    look_again_ms: int | None


_POSITIONS = (
    select(TaskPositionRow.task_id, TaskPositionRow.stream_id, TaskPositionRow.partition, TaskPositionRow.position)
    .add_columns(PartitionRow.end_offset, PartitionRow.published_ms)
    .join(TaskRow, TaskRow.id == TaskPositionRow.task_id)
    .join(PartitionRow, INPUT_PARTITION)
    .where(TaskRow.job_id == bindparam("job_id"))
)
_INPUTS = _POSITIONS.subquery()
_SILENCE = select(
    func.sum(case((_INPUTS.c.position < _INPUTS.c.end_offset, 1), else_=0)),
    Now() - func.max(func.coalesce(_INPUTS.c.published_ms, 0)),
)


def to_advance(s: Session, job_id: str, idle_close_after_ms: int | None, tasks: Iterable[MayClose]) -> ToAdvance:
    """The tasks of a slot that are due to advance."""
    flushing: dict[str, AdvanceReason] = {}
    waiting: dict[str, AdvanceReason] = {}
    for task in tasks:
        if is_flush_due(task.flush_at, task.inputs):
            flushing[task.id] = "flush"
        elif not task.is_closed and task.input_with_work is None:
            waiting[task.id] = "idle"
    if idle_close_after_ms is None or not waiting:
        return ToAdvance(flushing, None)
    left_ms = _until_idle_ms(s, job_id, idle_close_after_ms)
    return ToAdvance(flushing if left_ms > 0 else flushing | waiting, max(left_ms, 0))


def is_flush_due(flush_at: Json | None, inputs: Iterable[Reads]) -> bool:
    """Whether a flush was asked for and everything that was there then is read."""
    if flush_at is None:
        return False
    return all(at.position >= flush_at.get(_name(at), 0) for at in inputs)


def is_idle(s: Session, job: JobRow) -> bool:
    """Whether a job's input is idle now; to be asked with its source partitions locked, so that it stays true."""
    return job.idle_close_after_ms is not None and _until_idle_ms(s, job.id, job.idle_close_after_ms) <= 0


def source_partitions(s: Session, job_ids: Collection[str]) -> set[tuple[str, int]]:
    """Every partition that tasks of these jobs read."""
    query = select(TaskPositionRow.stream_id, TaskPositionRow.partition).join(
        TaskRow, TaskRow.id == TaskPositionRow.task_id
    )
    return {(row.stream_id, row.partition) for row in s.execute(query.where(TaskRow.job_id.in_(job_ids)))}


def ask_to_flush(s: Session, job_id: str, tasks: Iterable[TaskRow]) -> None:
    """Have locked tasks close all that is open once they have read what is there now; asking again moves the mark."""
    ends: dict[str, Json] = {}
    for at in s.execute(_POSITIONS, {"job_id": job_id}):
        ends.setdefault(at.task_id, {})[_name(at)] = at.end_offset
    for task in tasks:
        task.flush_at = ends[task.id]
    wake(s, job_topic(job_id), progress_topic(job_id))


def note(task: TaskRow, advance: Advanced, at_ms: int) -> None:
    """Keep what a locked task's accepted commit says of it. With nothing open any more, the task is done with it."""
    if advance.to is not None:
        task.advanced = {"to": advance.to, "reason": advance.reason, "at_ms": at_ms}
        return
    task.is_closed = True
    if advance.reason == "flush":
        task.flush_at = None


def _name(at: Reads | Row[Any]) -> str:
    """An input, as `flush_at` names it."""
    return f"{at.stream_id}/{at.partition}"


def _until_idle_ms(s: Session, job_id: str, idle_close_after_ms: int) -> int:
    """How long until the input of a job is idle, if nothing comes: not while there is something to read."""
    behind, silent_ms = s.execute(_SILENCE, {"job_id": job_id}).one()
    left_ms = idle_close_after_ms - int(silent_ms)
    return max(left_ms, LOOK_AGAIN_MS) if behind else left_ms
