"""The watch over an application: what ran in a lost executor is given to others at once, and an instance whose
application can not go on ends.

It knows when to look, what is to be said of what is not there any more, and how long to be patient. It refuses to know
how the JVM is asked (`cluster`) and what becomes of slots (`service.coordinator`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

LOOK_EVERY_S: Final = 0.5  # where no event says so sooner
ASK_EVERY_S: Final = 2.0  # the masters: each answer lists all that they have
SETTLED_S: Final = 2.0  # without a new executor: all that are coming have come
UNKNOWN_TWICE: Final = 2  # answers in a row by which an application is not there


class End(IntEnum):
    """Why an application can not go on; the exit code of its instance."""

    EXECUTORS_LOST = 8
    APPLICATION_GONE = 9
    MASTER_LOST = 10


class ExecutorWatch:
    """Which executors were lost; `lose` says so: False, it could not be said, and is to be said again."""

    def __init__(self, lose: Callable[[Collection[str]], bool]) -> None:
        self._lose = lose
        self._seen: set[str] = set()
        self._lost: set[str] = set()

    def note(self, present: Collection[str]) -> None:
        """Say which executors are gone since the look before, and those of which it could not be said before."""
        self._lost |= self._seen.difference(present)
        self._seen = set(present)
        if self._lost and self._lose(sorted(self._lost)):
            self._lost.clear()


@dataclass(slots=True)
class ApplicationWatch:
    """Whether an application can go on, from looks at it and answers of its masters; all moments in seconds.

    `patience_s`: how long masters may be away, and how long an application that had executors may be without.
    `has_masters`: whether there is somebody to ask, as on standalone clusters.
    """

    patience_s: float
    began_s: float
    has_masters: bool
    _answered_s: float = field(init=False)
    _staffed_s: float = field(init=False, default=math.inf)  # when it last had an executor
    _unknown: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._answered_s = self.began_s

    def note_executors(self, now_s: float, count: int) -> None:
        """So many executors are there."""
        if count:
            self._staffed_s = now_s

    def note_masters(self, now_s: float, is_known: bool | None) -> None:
        """Masters have the application, have it not, or (None) none of them decides."""
        if is_known is not None:
            self._answered_s = now_s
            self._unknown = 0 if is_known else self._unknown + 1

    def end(self, now_s: float) -> End | None:
        """Why it can not go on; None: it can. Before its first executor has come it waits for cores, however long."""
        if self._unknown >= UNKNOWN_TWICE:
            return End.APPLICATION_GONE
        if self.has_masters and now_s - self._answered_s > self.patience_s:
            return End.MASTER_LOST
        return End.EXECUTORS_LOST if now_s - self._staffed_s > self.patience_s else None


@dataclass(slots=True)
class CoreCount:
    """The cores that an instance says it has: of its executors, once no more of them come, and `most` at most."""

    most: int | None
    patience_s: float
    settled: int = 0
    _seen: int = field(init=False, default=0)
    _since_s: float = field(init=False, default=0.0)

    def note(self, now_s: float, cores: int) -> int:
        """So many are there now; how many that makes. Fewer are believed later: lost executors come back."""
        cores = cores if self.most is None else min(cores, self.most)
        if cores != self._seen:
            self._seen, self._since_s = cores, now_s
        wait_s = SETTLED_S if cores > self.settled and cores != self.most else 0.0
        if now_s - self._since_s >= (self.patience_s if cores < self.settled else wait_s):
            self.settled = cores
        return self.settled
