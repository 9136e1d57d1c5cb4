"""A service whose processes can be killed at named points, and started again on the same folder.

With Spark, which starts a killed slot again, or without: then the same slots are processes of `tests/sparkless.py`. All
but Spark is forked, for each start would take seconds of CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.running import PATIENCE_S, Running, wait_until
from tests import sparkless
from tests.attached import are_gone
from tests.driving import in_state
from tests.forkserver import Forked, ForkServer


class Breakable:
    """A service with armed fault points; `restart_when_dead` is what an init system would do.

    Alone, with an embedded instance on Spark, or with one without Spark (`has_instance`).
    """

    def __init__(
        self,
        folder: Path,
        forks: ForkServer,
        *,
        has_instance: bool = False,
        has_spark: bool = False,
        **environment: str,
    ) -> None:
        self.faults, self._forks, self._has_instance = folder / "faults", forks, has_instance
        self.faults.mkdir()
        self._environment = {"MILLRACE_FAULTS": str(self.faults), **environment}
        self.running = Running(
            folder / "data", instances=int(has_spark), environment=self._environment, popen=forks.popen
        )
        self._instance: Forked | None = None

    def start(self, port: int = 0) -> None:
        """Start the service, on a port (0: a free one), and its instance."""
        self.running.start(port=port)
        if self._has_instance:
            self.start_instance()

    def start_instance(self) -> None:
        """Start the instance without Spark, in the place of one that may run still."""
        self._end_instance()
        self._instance = sparkless.attach(self.running, self._forks, self._environment)

    def arm(self, point: str, after_passes: int) -> None:
        """SIGKILL whoever passes `point` next, once `after_passes` have gone through."""
        (self.faults / point).write_text(str(after_passes))

    def has_fired(self, point: str) -> bool:
        return not (self.faults / point).exists()

    def wait_for_fault(self, point: str, timeout_s: float = PATIENCE_S) -> None:
        wait_until(lambda: self.has_fired(point), f"the fault {point}", timeout_s=timeout_s)

    def restart_when_dead(self, *, is_there_again: bool = False) -> None:
        """The service was killed: wait for its end, then start it again on the same data; `is_there_again`: on the same
        port.
        """
        port = int(self.running.url.rpartition(":")[2]) if is_there_again else 0
        self.running.ended(30)
        self.start(port)

    def kill_instance(self) -> None:
        """SIGKILL; returns when all that hung on it has ended, too."""
        driver = psutil.Process(self._instance.pid) if self._instance else self.processes("instance")[0]
        below = driver.children(recursive=True)
        driver.kill()
        wait_until(lambda: are_gone(below), "the end of all its processes", timeout_s=30)

    def processes(self, name: str) -> list[psutil.Process]:
        """The service's living descendants: `instance` (the driver), `java`, or `slot` (forked Python workers)."""
        return [
            found for found in psutil.Process(self.running.process.pid).children(recursive=True) if _is(found, name)
        ]

    def clear(self) -> None:
        """Make it alive and empty again, whatever was killed: no armed fault, no job, no stream."""
        for armed in self.faults.iterdir():
            armed.unlink()
        if self.running.process.poll() is not None:
            self.restart_when_dead()
        for job in self.running.call("GET", "/v1/jobs")["items"]:
            if job["state"] not in {"stopped", "draining"}:
                self.running.call("POST", f"/v1/jobs/{job['name']}:stop")
            in_state(self.running, job["name"], "stopped")
            self.running.call("DELETE", f"/v1/jobs/{job['name']}")
        for stream in self.running.call("GET", "/v1/streams")["items"]:
            self.running.call("DELETE", f"/v1/streams/{stream['name']}")

    def stop(self) -> None:
        """End what runs still."""
        self._end_instance()
        if self.running.process.poll() is None:
            self.running.stop()

    def _end_instance(self) -> None:
        if self._instance is not None:
            self._instance.kill()
            self._instance.wait(30)
            self._instance = None


def _is(process: psutil.Process, name: str) -> bool:
    try:
        program, command = process.name(), " ".join(process.cmdline())
        parent = process.parent()
        parents = " ".join(parent.cmdline()) if parent else ""
    except psutil.NoSuchProcess:
        return False
    daemon = "spark_jobs.daemon"
    kinds = {
        "instance": "spark_jobs.instance" in command and "java" not in command,
        "java": program == "java",
        "slot": daemon in command and daemon in parents,
    }
    return kinds[name]


@contextmanager
def started(service: Breakable) -> Iterator[Breakable]:
    """Until the block ends."""
    service.start()
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Breakable]:
    with started(Breakable(tmp_path_factory.mktemp("breakable"), forks, has_instance=True)) as service:
        yield service


@pytest.fixture
def breakable(shared: Breakable) -> Iterator[Breakable]:
    """Its slots are forked from an instance without Spark; tests find it alive and empty."""
    yield shared
    shared.clear()


@pytest.fixture(scope="session")
def shared_api(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Breakable]:
    with started(Breakable(tmp_path_factory.mktemp("breakable"), forks)) as service:
        yield service


@pytest.fixture
def breakable_api(shared_api: Breakable) -> Iterator[Breakable]:
    """It has no instance; tests find it alive and empty."""
    yield shared_api
    shared_api.clear()


@pytest.fixture
def breakable_spark(tmp_path: Path, forks: ForkServer) -> Iterator[Breakable]:
    """Its instance is embedded."""
    with started(Breakable(tmp_path, forks, has_spark=True)) as service:
        yield service
