"""A Millrace job as Spark jobs: the slots that an instance should run of it, started, started again, let go.

It knows which slots are missing: those that are wanted and in no Spark job that still runs them. The first ones are one
Spark job; where more are wanted later these are another. It refuses to know how a Spark job is made (`session`), and
which of too many slots leave: the API tells them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no stubs
from pyspark import InheritableThread

from service.protocol import WantedJob

LEAVE_GRACE_S: Final = 10.0  # for the slots of a job that is not wanted any more
HEALTHY_S: Final = 10.0
BACK_OFF_S: Final = (0.1, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # after so many failures in a row


class Wave(Protocol):
    """Some slots as one Spark job."""

    @property
    def running(self) -> Collection[int]:
        """Indices of those that have not ended."""

    def run(self) -> None:
        """Start them; returns when all have ended. Raises Py4JError."""


class JobRun:
    """The slots of one job on this instance. `new_wave` makes some of them a Spark job (None: not now), `cancel` ends
    all of them.
    """

    def __init__(
        self,
        wanted: WantedJob,
        new_wave: Callable[[WantedJob, Sequence[int]], Wave | None],
        cancel: Callable[[], None],
    ) -> None:
        self.wanted = wanted
        self._new_wave, self._cancel = new_wave, cancel
        self._guard = threading.Lock()  # of _held
        self._held: dict[threading.Thread, _Held] = {}
        self._let_go = threading.Event()
        self._let_go_s = 0.0
        self._failures = 0
        self._log = structlog.get_logger().bind(job=wanted.name)

    @property
    def is_over(self) -> bool:
        """Whether no Spark job of it is left."""
        with self._guard:
            return not self._held

    @property
    def running(self) -> set[int]:
        """Indices of the slots that have been started and have not ended."""
        with self._guard:
            return self._running()

    def keep(self, wanted: WantedJob) -> None:
        """It is wanted (again), on so many slots; who are too many leave by themselves."""
        self._let_go.clear()
        with self._guard:
            self.wanted = wanted
            if missing := self._missing():
                thread = InheritableThread(target=self._run, name=f"job {wanted.name}", daemon=True)
                self._held[thread] = _Held(missing)
                thread.start()

    def let_go(self) -> None:
        """It is not wanted: its slots are told so by the API; cancel it when they do not leave."""
        if not self._let_go.is_set():
            self._let_go_s = time.monotonic()
            self._let_go.set()
        elif time.monotonic() - self._let_go_s > LEAVE_GRACE_S and not self.is_over:
            self._log.warning("spark_job_cancelled")
            self._cancel()

    def join(self, timeout_s: float) -> None:
        """Wait until it is over, at most so long."""
        until_s = time.monotonic() + timeout_s
        with self._guard:
            threads = list(self._held)
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        """Run the slots that this thread holds as a Spark job, then those that are missing by then."""
        thread = threading.current_thread()
        while (held := self._held[thread]).slots:
            started_s = time.monotonic()
            self._run_once(held)
            self._failures = 0 if time.monotonic() - started_s > HEALTHY_S else self._failures + 1
            self._let_go.wait(BACK_OFF_S[min(self._failures, len(BACK_OFF_S) - 1)])
            with self._guard:
                self._held[thread] = _Held([])
                self._held[thread] = _Held(self._missing())
        with self._guard:
            del self._held[thread]

    def _run_once(self, held: _Held) -> None:
        held.wave = self._new_wave(self.wanted, held.slots)
        if held.wave is None:
            return
        self._log.info("spark_job_started", slots=held.slots)
        try:
            held.wave.run()
        except Py4JError as error:
            self._log.warning("spark_job_failed", error=str(error).splitlines()[:3])
        else:
            self._log.info("spark_job_ended")

    def _running(self) -> set[int]:
        return {index for held in self._held.values() for index in held.running}

    def _missing(self) -> list[int]:
        """Indices that are free, for as many slots as are wanted and not there."""
        if self._let_go.is_set():
            return []
        running = self._running()
        free = (index for index in range(len(running) + self.wanted.slots) if index not in running)
        return [index for index, _ in zip(free, range(self.wanted.slots - len(running)), strict=False)]


class _Held:
    """The slots that a thread runs, or is about to."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.slots = slots
        self.wave: Wave | None = None

    @property
    def running(self) -> Collection[int]:
        return self.slots if self.wave is None else self.wave.running
