"""A service whose processes can be killed at named points, and started again on the same folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.running import Running, wait_until


class Breakable:
    """`millrace up` with armed fault points; `restart_when_dead` is what an init system would do."""

    def __init__(self, folder: Path, cores: int = 2) -> None:
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.running = Running(folder / "data", cores=cores, environment={"MILLRACE_FAULTS": str(self.faults)})

    def arm(self, point: str, after_passes: int) -> None:
        """SIGKILL whoever passes `point` next, once `after_passes` have gone through."""
        (self.faults / point).write_text(str(after_passes))

    def has_fired(self, point: str) -> bool:
        return not (self.faults / point).exists()

    def wait_for_fault(self, point: str, timeout_s: float = 60) -> None:
        wait_until(lambda: self.has_fired(point), timeout_s, f"the fault {point}")

    def restart_when_dead(self) -> None:
        """The service was killed: wait for its end, then start it again on the same data."""
        self.running.ended(30)
        self.running.start()

    def processes(self, name: str) -> list[psutil.Process]:
        """The service's living descendants: `instance` (the driver), `java`, or `slot` (forked Python workers)."""
        return [
            found for found in psutil.Process(self.running.process.pid).children(recursive=True) if _is(found, name)
        ]


def _is(process: psutil.Process, name: str) -> bool:
    try:
        command = " ".join(process.cmdline())
        parent = process.parent()
        parents = " ".join(parent.cmdline()) if parent else ""
    except psutil.NoSuchProcess:
        return False
    daemon = "spark_jobs.daemon"
    kinds = {
        "instance": "spark_jobs.instance" in command and "java" not in command,
        "java": process.name() == "java",
        "slot": daemon in command and daemon in parents,
    }
    return kinds[name]


@pytest.fixture
def breakable(tmp_path: Path) -> Iterator[Breakable]:
    service = Breakable(tmp_path)
    service.running.start()
    yield service
    if service.running.process.poll() is None:
        service.running.stop()
