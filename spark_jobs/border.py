"""The border of one task: whatever goes wrong with it stays with it. Its job fails, the slot's other tasks go on.

It knows what becomes of an error: another attempt, or a report. It refuses to know what the task was about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lmdb

from service.protocol import StreamRef, TaskError
from service.streams.errors import OperatorFailed, ReplicaDamaged
from spark_jobs.client import ApiError, Refused
from spark_jobs.failures import TRANSIENT, task_error
from spark_jobs.tasks import StreamTask


class TaskBorder:
    """Keeps each failure with its task. `report` tells the API that a task can not go on."""

    def __init__(
        self, report: Callable[[StreamTask, TaskError], None], streams: Mapping[str, StreamRef], log: Any
    ) -> None:
        self._report, self._log = report, log
        self._names = {stream.id: name for name, stream in streams.items()}

    @contextmanager
    def around(self, task: StreamTask) -> Iterator[None]:
        """Lets out only what concerns the API: ApiError."""
        try:
            yield
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001  the border of one task
            self._on_failure(task, error)

    def _on_failure(self, task: StreamTask, error: Exception) -> None:
        task.failures.note()
        if isinstance(error, MemoryError):
            task.read_less()
        may_pass = isinstance(error, TRANSIENT) and not task.failures.is_lasting
        say = self._log.warning if may_pass else self._log.error
        say("task_failed", task=task.assigned.name, error=str(error), failures=task.failures.count, exc_info=error)
        with contextlib.suppress(OSError, lmdb.Error, ReplicaDamaged):
            task.close()  # opened anew and caught up before it runs again
        if may_pass:
            return
        with contextlib.suppress(Refused):  # the task is somebody else's by now
            self._report(task, task_error(error, *self._place(task, error)))
        task.has_failed = True

    def _place(self, task: StreamTask, error: Exception) -> tuple[str | None, int | None]:
        """The stream and partition of the record, or else those that the task was to read."""
        if isinstance(error, OperatorFailed) and error.stream_id is not None:
            return self._names.get(error.stream_id), error.partition
        if not task.assigned.work:
            return None, None
        at = task.assigned.inputs[task.assigned.work[0].input]
        return self._names.get(at.stream_id), at.partition
