"""Closing without a record: which tasks may advance their stream time because input is idle or a flush was asked for.

It knows what `idle` is, by the catalog's clock, and up to where a flush must have read (semantics.md, Idle close and
flush). It refuses to know what is open in a task and to which time it goes: its slot finds that, and commits it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, Protocol

from sqlalchemy.orm import Session

from service.catalog.engine import job_topic, progress_topic, wake
from service.catalog.inputs import TaskInput, inputs_of_job
from service.catalog.tables import JobRow, TaskRow
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


def to_advance(s: Session, job_id: str, idle_close_after_ms: int | None, tasks: Iterable[MayClose]) -> ToAdvance:
    """The tasks of a slot that are due to advance."""
    flushing: dict[str, AdvanceReason] = {}
    waiting: dict[str, AdvanceReason] = {}
    for task in tasks:
        if is_flush_due(task.flush_at, task.inputs):
            flushing[task.id] = "flush"
        elif not task.is_closed and not task.has_work:
            waiting[task.id] = "idle"
    if idle_close_after_ms is None or not waiting:
        return ToAdvance(flushing, None)
    left_ms = _until_idle_ms(s, job_id, idle_close_after_ms)
    return ToAdvance(flushing if left_ms > 0 else flushing | waiting, max(left_ms, 0))


def is_flush_due(flush_at: Sequence[int] | None, inputs: Sequence[TaskInput]) -> bool:
    """Whether a flush was asked for and everything that was there then is read."""
    return flush_at is not None and all(at.position >= end for at, end in zip(inputs, flush_at, strict=True))


def is_idle(s: Session, job: JobRow) -> bool:
    """Whether a job's input is idle now; to be asked with its source partitions locked, so that it stays true."""
    return job.idle_close_after_ms is not None and _until_idle_ms(s, job.id, job.idle_close_after_ms) <= 0


def ask_to_flush(s: Session, job_id: str, tasks: Iterable[TaskRow]) -> None:
    """Have locked tasks close all that is open once they have read what is there now; asking again moves the mark."""
    inputs = inputs_of_job(s, job_id)
    for task in tasks:
        task.flush_at = [at.end for at in inputs[task.id]]
    wake(s, job_topic(job_id), progress_topic(job_id))


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
