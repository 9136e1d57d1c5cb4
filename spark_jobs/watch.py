"""The watch over an application's executors: what ran in one that was lost is given to others at once.

It knows when to look, and what is to be said of what is not there any more. It refuses to know how the JVM is asked
(`cluster`) and what becomes of slots (`service.coordinator`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no stubs

LOOK_EVERY_S: Final = 0.5  # where no event says so sooner


class ExecutorWatch:
    """Looks after executors until `asked_to_stop`, from a thread of the caller's.

    `look` answers the ids of those that are there, and may raise Py4JError when the JVM ends; `lose` says which were
    lost: False, it could not be said, and is to be said again.
    """

    def __init__(self, look: Callable[[], Collection[str]], lose: Callable[[Collection[str]], bool]) -> None:
        self._look, self._lose = look, lose
        self._seen: set[str] = set()
        self._lost: set[str] = set()

    def run(self, happened: threading.Event, asked_to_stop: threading.Event) -> None:
        """Look whenever something `happened`, and every LOOK_EVERY_S."""
        while not asked_to_stop.is_set():
            happened.wait(LOOK_EVERY_S)
            happened.clear()
            try:
                self.look_once()
            except (Py4JError, OSError):
                return  # the JVM ends, and with it this process

    def look_once(self) -> None:
        """Say which executors are gone since the look before, and those of which it could not be said before."""
        present = set(self._look())
        self._lost |= self._seen - present
        self._seen = present
        if self._lost and self._lose(sorted(self._lost)):
            self._lost.clear()
