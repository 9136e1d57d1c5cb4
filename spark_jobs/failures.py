"""What follows a failure: how long to wait, what may pass by itself, and what the job is told.

It knows which errors are the disk's, the network's, the memory's or a replica's and may be gone at the next attempt. It
refuses to know what was attempted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import lmdb
import msgspec

from service.protocol import TaskError
from service.streams.errors import OperatorFailed, ReplicaDamaged, SegmentMissing, SegmentUnreadable

TRANSIENT: Final = (OSError, MemoryError, lmdb.Error, ReplicaDamaged, SegmentMissing)
TASK_PAUSES_S: Final = (0.2, 0.4, 0.8, 1.6)  # after the last of them the task's job fails


@dataclass(slots=True)
class Failures:
    """How often something failed since it last worked, and when it is tried again.

    `pauses_s`: how long to wait after the first failure, the second, …; the last one from then on.
    """

    pauses_s: tuple[float, ...]
    count: int = 0
    not_before_s: float = 0.0

    def note(self) -> float:
        """One more failure; seconds until the next attempt."""
        pause_s = self.pauses_s[min(self.count, len(self.pauses_s) - 1)]
        self.count += 1
        self.pause(pause_s)
        return pause_s

    def pause(self, seconds: float) -> None:
        """Wait without a failure."""
        self.not_before_s = time.monotonic() + seconds

    def clear(self) -> None:
        """It worked."""
        self.count = 0

    @property
    def is_waiting(self) -> bool:
        return time.monotonic() < self.not_before_s

    @property
    def is_lasting(self) -> bool:
        """Whether all pauses have passed in vain."""
        return self.count > len(self.pauses_s)


def task_error(error: Exception, stream: str | None, partition: int | None) -> TaskError:
    """An error as the job shows it: what, and in which partition of which stream, at which record."""
    if isinstance(error, OperatorFailed):
        found = TaskError(error.code, error.detail, error.operator, stream, partition, error.offset)
        return msgspec.structs.replace(found, **error.figures)
    if isinstance(error, SegmentUnreadable):
        return TaskError(error.code, str(error), stream=stream, partition=partition)
    if isinstance(error, MemoryError):  # Arrow's and numpy's are too
        return TaskError("out_of_memory", f"{type(error).__name__}: {error}", stream=stream, partition=partition)
    code = "io_failed" if isinstance(error, TRANSIENT) else "internal_error"
    return TaskError(code, f"{type(error).__name__}: {error}", stream=stream, partition=partition)
