"""A job's slots on an instance: which are started, which again, how they end. Spark is a double here."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from py4j.protocol import Py4JError

from benchmarks.running import wait_until
from service.protocol import WantedJob
from spark_jobs import runs
from spark_jobs.runs import JobRun

ENDS_BY_ITSELF_S = 30.0
SOON_S = 10.0  # long before that


class WaveDouble:
    """Slots that run until a test ends them."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.slots, self.left = list(slots), set(slots)
        self.fails = False
        self._over = threading.Event()

    @property
    def running(self) -> set[int]:
        return set(self.left)

    def run(self) -> None:
        self._over.wait(ENDS_BY_ITSELF_S)
        if self.fails:
            raise Py4JError("cancelled")

    def leave(self, *slots: int) -> None:
        """These end by themselves, the wave with the last of all."""
        self.left -= set(slots)
        if not self.left:
            self._over.set()

    def cancel(self) -> None:
        """It ends with all its slots as they are."""
        self.fails = True
        self._over.set()


class Driver:
    """A job on an instance, and the Spark jobs that were made for it."""

    def __init__(self) -> None:
        self.waves: list[WaveDouble] = []
        self.is_member = True
        self.job = JobRun(self._wanted(1), self._new_wave, self.cancel)

    def want(self, slots: int) -> None:
        self.job.keep(self._wanted(slots))

    def started(self, count: int) -> list[list[int]]:
        """The slots of each Spark job, once there are so many."""
        wait_until(lambda: len(self.waves) >= count, "another Spark job", timeout_s=SOON_S)
        return [wave.slots for wave in self.waves]

    def _wanted(self, slots: int) -> WantedJob:
        return WantedJob("id", "visits", slots)

    def _new_wave(self, _: WantedJob, slots: Sequence[int]) -> WaveDouble | None:
        if not self.is_member:
            return None
        self.waves.append(WaveDouble(slots))
        return self.waves[-1]

    def cancel(self) -> None:
        for wave in self.waves:
            wave.cancel()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(runs, "InheritableThread", threading.Thread)
    driver = Driver()
    yield driver
    driver.job.let_go()
    driver.cancel()


def test_all_slots_are_one_spark_job_and_more_are_another(driver: Driver) -> None:
    driver.want(2)
    assert driver.started(1) == [[0, 1]]
    driver.want(2)
    driver.want(4)
    assert driver.started(2) == [[0, 1], [2, 3]]
    assert driver.job.running == {0, 1, 2, 3}


def test_who_left_is_started_again_where_it_is_wanted(driver: Driver) -> None:
    driver.want(3)
    driver.started(1)
    driver.want(2)
    driver.want(3)  # the third has not left yet, and may stay
    assert len(driver.waves) == 1
    driver.want(2)
    driver.waves[0].leave(0)
    driver.want(2)
    assert len(driver.waves) == 1
    driver.want(3)
    assert driver.started(2) == [[0, 1, 2], [0]]


def test_slots_that_end_with_their_spark_job_are_started_again(driver: Driver) -> None:
    driver.want(2)
    driver.started(1)
    driver.waves[0].cancel()
    assert driver.started(2) == [[0, 1], [0, 1]]
    driver.want(1)
    driver.waves[1].cancel()
    assert driver.started(3)[2] == [0]


def test_a_job_that_is_let_go_ends_when_its_slots_have_left(driver: Driver) -> None:
    driver.want(2)
    driver.started(1)
    driver.job.let_go()
    assert not driver.job.is_over
    driver.waves[0].leave(0, 1)
    driver.job.join(10)
    wait_until(lambda: driver.job.is_over, "its end", timeout_s=SOON_S)
    assert len(driver.waves) == 1


def test_slots_that_do_not_leave_are_cancelled(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LEAVE_GRACE_S", 0.0)
    driver.want(2)
    driver.started(1)
    driver.job.let_go()
    driver.job.let_go()
    wait_until(lambda: driver.job.is_over, "its end", timeout_s=SOON_S)


def test_between_two_memberships_nothing_is_started(driver: Driver) -> None:
    driver.is_member = False
    driver.want(1)
    assert driver.waves == []
    driver.is_member = True
    assert driver.started(1) == [[0]]
