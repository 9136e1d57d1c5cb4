"""Closing without a record: which tasks may advance their stream time because input is idle or a flush was asked for.

It knows what `idle` is, by the catalog's clock, and up to where a flush must have read (semantics.md, Idle close and
flush). It refuses to know what is open in a task and to which time it goes: its slot finds that, and commits it.

What closes in one sub-topology gives the next one records, so a flush goes from stage to stage (`progress`): the tasks
of a stage are marked with the ends of their inputs once those before it are done. Silence is that of user input; what
has upstream tasks closes when these are closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, Protocol

from sqlalchemy.orm import Session

from service.catalog.engine import job_topic, progress_topic, wake
from service.catalog.inputs import TaskInput, inputs_of_job
from service.catalog.progress import JobProgress, Patience
from service.catalog.tables import JobRow, TaskRow
from service.faults import fault_point
from service.protocol import Advanced, AdvanceReason

LOOK_AGAIN_MS: Final = 500  # while input is silent for long enough and another task of the job still reads


class MayClose(Protocol):
    """A task as a poll sees it."""

    @property
    def id(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def flush_at(self) -> Sequence[int] | None: ...
    @property
    def inputs(self) -> Sequence[TaskInput]: ...
    @property
    def has_work(self) -> bool: ...


class ToAdvance(NamedTuple):
    """Tasks to advance now, by id, and when to look again (ms; None: when something happens)."""

    reasons: Mapping[str, AdvanceReason]
    look_again_ms: int | None


def to_advance(
    s: Session,
    job_id: str,
    idle_close_after_ms: int | None,
    tasks: Iterable[MayClose],
    progress: JobProgress | None = None,
) -> ToAdvance:
    """The tasks of a slot that are due to advance. `progress`: of a job with tasks that read more than one input."""
    flushing: dict[str, AdvanceReason] = {}
    waiting: dict[str, AdvanceReason] = {}
    for task in tasks:
        if is_flush_due(task.flush_at, task.inputs):
            flushing[task.id] = "flush"
        elif not task.is_closed and not task.has_work:
            waiting[task.id] = "idle"
    if idle_close_after_ms is None or not waiting:
        return ToAdvance(flushing, None)
    if progress is not None:
        idle = {task_id: reason for task_id, reason in waiting.items() if progress.is_idle(task_id)}
        return ToAdvance(flushing | idle, max(progress.idle_in_ms or 0, LOOK_AGAIN_MS))
    left_ms = _until_idle_ms(s, job_id, idle_close_after_ms)
    return ToAdvance(flushing if left_ms > 0 else flushing | waiting, max(left_ms, 0))


def is_flush_due(flush_at: Sequence[int] | None, inputs: Sequence[TaskInput]) -> bool:
    """Whether a flush was asked for and everything that was there then is read."""
    return flush_at is not None and all(at.position >= end for at, end in zip(inputs, flush_at, strict=True))


def is_idle(s: Session, job: JobRow, task_id: str) -> bool:
    """Whether a job's input is idle now, so that a task of it may close; to be asked with all partitions locked that it
    reads, so that it stays true.
    """
    patience = Patience.of(job)
    if patience is not None:
        return JobProgress(s, job.id, patience).is_idle(task_id)
    return job.idle_close_after_ms is not None and _until_idle_ms(s, job.id, job.idle_close_after_ms) <= 0


def ask_to_flush(s: Session, job: JobRow, tasks: Iterable[TaskRow]) -> None:
    """Have the locked tasks of a locked job close all that is open once they have read what is there now, one stage
    after the other; asking again moves the mark.
    """
    patience = Patience.of(job)
    if patience is None:
        _mark(s, job, tasks)
        return
    progress = JobProgress(s, job.id, patience)
    job.flush = {"stage": 0}
    _mark(s, job, [task for task in tasks if progress.stage_of(task.sub_topology) == 0])


def begin_next_stage(s: Session, job: JobRow, tasks: Iterable[TaskRow]) -> None:
    """Take the flush of a locked job with its locked tasks to the next stage, or to its end, where nothing is left to
    close at this one.
    """
    patience = Patience.of(job)
    progress = None if patience is None else JobProgress(s, job.id, patience)
    if job.flush is None or progress is None or not progress.is_stage_closed:
        return
    fault_point("flush.before_stage")
    stage = job.flush["stage"] + 1
    job.flush = {"stage": stage} if stage <= progress.last_stage else None
    _mark(s, job, [task for task in tasks if progress.stage_of(task.sub_topology) == stage])
    s.flush()
    fault_point("flush.in_stage")


def _mark(s: Session, job: JobRow, tasks: Iterable[TaskRow]) -> None:
    inputs = inputs_of_job(s, job.id)
    for task in tasks:
        task.flush_at = [at.end for at in inputs[task.id]]
    wake(s, job_topic(job.id), progress_topic(job.id))


def note(task: TaskRow, advance: Advanced, at_ms: int) -> None:
    """Keep what a locked task's accepted commit says of it. With nothing open any more, the task is done with it."""
    if advance.to is not None:
        task.advanced = {"to": advance.to, "reason": advance.reason, "at_ms": at_ms}
        return
    task.is_closed = True
    if advance.reason == "flush":
        task.flush_at = None


def _until_idle_ms(s: Session, job_id: str, idle_close_after_ms: int) -> int:
    """ms until the input of a job is idle, if nothing comes: never while records are unread."""
    inputs = list(chain.from_iterable(inputs_of_job(s, job_id).values()))
    left_ms = idle_close_after_ms - min(at.silent_ms for at in inputs)
    return max(left_ms, LOOK_AGAIN_MS) if any(at.lag for at in inputs) else left_ms
