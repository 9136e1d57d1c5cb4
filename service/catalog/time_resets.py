"""Stream time set back: the way out where one record from far ahead moved it, and all that came later was late.

It knows which rows say how far a job's tasks have come in time, and when a lower time means the same for all of them.
What the stores have to remember of the higher one, each task writes with its next commit (`service.catalog.adoptions`).
It refuses to know who may set what back, and who owns a task.

A record on its way to another task carries how far its writer had come (`aligned_at`), so there must be none.

Locks: the job and its tasks are locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from service.catalog.engine import JOBS, job_topic, now_ms, progress_topic, wake
from service.catalog.inputs import pack, unpack
from service.catalog.job_changes import require_nothing_asked, what_is_left
from service.catalog.job_states import MAY_RESET, STOP_FIRST, note_transition
from service.catalog.tables import JobRow, TaskRow
from service.streams.errors import IllegalTransition
from service.streams.inputs import InputPosition

_VERB = "have its stream time set back"


class TimeReset(NamedTuple):
    """A task and the stream time (ms) that it had."""

    task: str
    was: int


def require_quiet(s: Session, job: JobRow) -> None:
    """Raises IllegalTransition, ReplayUnderWay where nothing of a job may be set back now."""
    if job.state not in MAY_RESET:
        raise IllegalTransition(job.state, _VERB, STOP_FIRST)
    require_nothing_asked(s, job, _VERB)
    if (left := what_is_left(s, job, reads_on=True, read_to=None)) is not None:
        raise IllegalTransition(job.state, _VERB, f"{left}: `:restart` it, and `:stop` it once it has `caught_up`")


def ahead_of(stream_time: int, tasks: Iterable[TaskRow]) -> list[TimeReset]:
    """The tasks that are ahead of a stream time (ms), by name."""
    return sorted(TimeReset(task.name, task.stream_time) for task in tasks if task.stream_time > stream_time)


def set_back(s: Session, job: JobRow, tasks: Sequence[TaskRow], stream_time: int, *, who: str) -> None:
    """Set the locked tasks of a quiet, locked job back to a stream time (ms), those that are ahead of it.

    Also what they know of their inputs: else those would hold back others up to the higher time.
    """
    at_ms = now_ms(s)
    for task in tasks:
        task.positions = pack(InputPosition(at, min(time, stream_time)) for at, time in unpack(task.positions))
        if task.stream_time > stream_time:
            task.stream_time = stream_time
            task.set_back_to = stream_time if task.set_back_to is None else min(task.set_back_to, stream_time)
            task.next_version = job.spec_version
        task.version += 1
        task.updated_ms = at_ms
    job.etag += 1
    reason, details = f"reset-time: {stream_time}", {"stream_time": stream_time}
    note_transition(s, job, job.state, job.state, reason, who, kind="reset_time", details=details)
    s.flush()
    wake(s, JOBS, job_topic(job.id), progress_topic(job.id))
