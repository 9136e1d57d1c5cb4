"""Instances without Spark that come and go: each a process, on a node of its own unless it is given another's.

Knows how they are started, drained and killed, and what their slots log of the tasks that they opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.running import PATIENCE_S, Running
from tests import sparkless
from tests.forkserver import Forked, ForkServer


class Members:
    """Of one service; their replica folders are below the one that the service looks into."""

    def __init__(self, running: Running, forks: ForkServer) -> None:
        self.running, self._forks = running, forks
        self.folder = running.data_dir / "replicas"
        self.folder.mkdir(exist_ok=True)
        self.processes: dict[str, Forked] = {}
        self.names: set[str] = set()  # of all that there were

    def start(self, name: str, node: str = "") -> None:
        """Does not wait for its join."""
        self.names.add(name)
        key = self.running.call("POST", "/v1/tokens", json={"role": "instance", "name": name})["key"]
        self.processes[name] = sparkless.start(self._forks, self.running.url, key, self.replicas_of(node or name), name)

    def replicas_of(self, node: str) -> Path:
        """The replica folder of a node."""
        return self.folder / node

    def kill(self, name: str) -> None:
        """SIGKILL; its slots end with it."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(30)

    def drain(self, name: str) -> None:
        """SIGTERM; does not wait for its end."""
        self.processes[name].terminate()

    def wait_for_end(self, name: str) -> None:
        """Of one that was drained."""
        self.processes.pop(name).wait(PATIENCE_S)

    def opened(self, name: str) -> list[dict[str, Any]]:
        """The tasks that an instance's slots have opened, in order: how much each had to replay."""
        log = self.folder / f"{name}.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if '"task_opened"' in line]
