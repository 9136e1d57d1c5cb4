"""A service with three instances and a job whose tasks they share, for the pages that say who runs what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.running import wait_until
from tests import sparkless
from tests.browsing import NOON_MS
from tests.forkserver import Forked, ForkServer
from tests.serving import Serving, serving

TASKS = 4


@dataclass
class Shared:
    """The service, its instances' processes by name, and the job."""

    service: Serving
    job: str
    processes: dict[str, Forked]

    def ask(self, path: str) -> Any:
        return self.service.client().get(path).raise_for_status().json()

    def group(self) -> Any:
        return self.ask(f"/v1/groups/{self.job}")

    def rounds(self) -> list[dict[str, Any]]:
        """Of assignment, the first one first."""
        found: list[dict[str, Any]] = self.ask(f"/v1/groups/{self.job}/rebalances?limit=1000")["items"]
        return found[::-1]

    def instances(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.ask("/v1/instances")["items"]}

    def node_of(self, instance: str) -> str:
        [node] = [each["node"] for each in self.group()["nodes"] if instance in each["instances"]]
        return str(node)

    def wait_until_settled(self, slots: int) -> None:
        """Every task has an owner and a standby that is caught up, nothing moves."""

        def is_settled() -> bool:
            now = self.group()
            is_whole = len(now["members"]) == slots and None not in now["assignment"].values()
            return is_whole and not (now["moving"] or now["probing"] or now["missing_standbys"])

        wait_until(is_settled, "a group at rest")


@contextmanager
def shared(folder: Path, catalog: bytes, forks: ForkServer, job: str, instances: list[str]) -> Iterator[Shared]:
    """A service of its own, for its instances are killed and drained; leases are short, so that this is soon known."""
    (folder / "catalog.db").write_bytes(catalog)
    (folder / "nodes").mkdir()
    with serving(folder, f"sqlite:///{folder}/catalog.db", lease_ms=3_000) as service:
        http, processes = service.client(), {}
        for name in instances:
            secret = http.post("/v1/tokens", json={"role": "instance", "name": name}).json()["key"]
            processes[name] = sparkless.start(forks, service.url, secret, folder / "nodes" / name, name)
        try:
            found = Shared(service, job, processes)
            wait_until(lambda: len(found.instances()) == len(instances), "the instances")
            http.post("/v1/streams", json={"name": f"{job}-in", "partitions": TASKS}).raise_for_status()
            once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000}
            spec = {"name": job, "source": f"{job}-in", "sink": f"{job}-out", "operators": [once]}
            spec |= {"standby_replicas": 1, "parallelism": TASKS}
            http.post("/v1/jobs", json=spec).raise_for_status()
            records = [{"key": f"k{n}", "value": n, "timestamp": NOON_MS + n} for n in range(40)]
            http.post(f"/v1/streams/{job}-in/records", json={"records": records}).raise_for_status()
            http.get(f"/v1/jobs/{job}?wait=caught_up&timeout_ms=60000").raise_for_status()
            yield found
        finally:
            for process in processes.values():
                process.kill()
                process.wait(30)
