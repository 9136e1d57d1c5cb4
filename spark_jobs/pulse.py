"""Signs of life of a slot: for the catalog, for the driver, and for itself.

It knows how long a slot's loop may be silent and what follows. It refuses to know what the loop does.

    up to max_busy_ms       a long batch: a thread renews the lease and touches the file
    from then on            nobody does: the lease runs out and the tasks move on; right behind that the driver, where
                            it sees the file, has Spark kill the worker, as it does with one that is stopped
    END_S                   where no driver sees the file, the process shows its stack and ends itself
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from pyspark import TaskContext

END_S: Final = 60.0
BEHIND_LEASE_S: Final = 1.5  # a process that says nothing is killed so long after its lease ran out
REARM_S: Final = 1.0


def folder_of(replica_dir: Path, instance_id: str) -> Path:
    """Where the slots of an instance leave their signs of life: a file each, its name the attempt of the Spark task,
    its content the process id and, once it has joined, the slot's id.
    """
    return replica_dir / instance_id / "pulses"


def signs_of_life(folder: Path, within_s: float) -> dict[str, int]:
    """Slot → how many ms ago its process gave a sign, of those that gave one within that time."""
    found, now_s = {}, time.time()
    for file in folder.glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError):
            age_s = now_s - file.stat().st_mtime
            if 0 <= age_s <= within_s:  # what lies ahead is another machine's clock, and says nothing
                found.update(dict.fromkeys(file.read_text().split()[1:], round(1000 * age_s)))
    return found


def silent_attempts(folder: Path, silent_s: float) -> list[int]:
    """Attempts that gave no sign for so long; each is named once, for its file is removed."""
    limit_s = time.time() - silent_s
    found = []
    for file in folder.glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError):  # it has just ended well
            if file.stat().st_mtime < limit_s:
                file.unlink()
                found.append(int(file.name))
    return found


class Pulse:
    """The signs of one slot's process, from its first join to its end."""

    def __init__(self, folder: Path) -> None:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else os.getpid()
        self._file = folder / str(attempt)
        self._beat_s = self._armed_s = 0.0
        self._is_asking = False

    def __enter__(self) -> Self:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(str(os.getpid()))
        self.beat()
        return self

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._file.unlink(missing_ok=True)

    @property
    def silent_s(self) -> float:
        """How long ago the loop moved."""
        return time.monotonic() - self._beat_s

    @property
    def is_asking(self) -> bool:
        """Whether the loop waits for an answer: the question keeps the lease, and then the driver's word."""
        return self._is_asking

    def become(self, slot: str) -> None:
        """From now on the signs are this slot's."""
        self._file.write_text(f"{os.getpid()} {slot}")

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """The loop asks and waits for an answer meanwhile."""
        self._is_asking = True
        try:
            yield
        finally:
            self._is_asking = False

    def beat(self) -> None:
        """The loop moved."""
        self._beat_s = time.monotonic()
        self.touch()
        if self._beat_s - self._armed_s > REARM_S:
            self._armed_s = self._beat_s
            with contextlib.suppress(RuntimeError):  # no memory for its thread now: at the next beat perhaps
                faulthandler.dump_traceback_later(END_S, exit=True)  # needs no GIL

    def touch(self) -> None:
        """The process lives, whatever its loop does."""
        self._file.touch()


class LeaseKeeper:
    """A thread that renews the lease while the loop is in a long batch, of up to `max_busy_ms`; a context manager."""

    def __init__(self, renew: Callable[[], object], pulse: Pulse, lease_ms: int, max_busy_ms: int) -> None:
        self._renew, self._pulse, self._every_s, self._limit_s = renew, pulse, lease_ms / 5000, max_busy_ms / 1000
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._ended.wait(self._every_s):
            if self._pulse.is_asking:  # for as long as the client has patience: the API may be away
                self._pulse.touch()
            elif self._pulse.silent_s < self._limit_s:
                self._pulse.touch()
                if self._pulse.silent_s > self._every_s:
                    self._renew()
