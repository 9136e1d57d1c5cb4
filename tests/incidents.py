"""What goes wrong with instances, made on services of their own: one has no core left, one stands still, one is
killed, one loses an executor.

Those that are made of data alone are in `benchmarks.incidents`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import psutil  # type: ignore[import-untyped]

from benchmarks.running import wait_until
from tests.forkserver import Forked, ForkServer
from tests.serving import Serving, serving
from tests.sparkless import instance

Json = dict[str, Any]

ONCE: Final[Json] = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 3_600_000}
BEHIND: Final = 400  # changes: one a record, and the stream time
ACCEPTABLE: Final = 100
HOUR_MS: Final = 3_600_000


@contextmanager
def no_cores(folder: Path, migrated: bytes) -> Iterator[Serving]:
    """One core, and two jobs: the second waits. Who has that core has nothing to do with it, so nobody runs there."""
    with _service(folder, migrated, lease_ms=HOUR_MS) as service:
        api, driver = service.client("writer"), service.client("instance")
        small = {"name": "small", "incarnation": "1", "host": "small", "cores": 1, "spark": {"master": "local[1]"}}
        joined = driver.post("/v1/instances:join", json=small).raise_for_status().json()["instance_id"]
        for name in ("inc_before", "inc_cores"):
            make_job(api, name)
            driver.post(f"/v1/instances/{joined}:heartbeat", json={"incarnation": "1"}).raise_for_status()
        yield service


@contextmanager
def lagging_copy(folder: Path, migrated: bytes, forks: ForkServer) -> Iterator[Serving]:
    """The slot that keeps a standby stands still, while the task that it is of goes on; its lease is long."""
    with _service(folder, migrated, lease_ms=HOUR_MS) as service, _instances(service, forks, folder) as processes:
        api = service.client("writer")
        make_job(api, "inc_copy", standby_replicas=1, acceptable_recovery_lag=ACCEPTABLE)

        def has_standby() -> bool:
            found = api.get("/v1/jobs/inc_copy").json()
            return (found["state"], found["copies"]) == ("running", {"missing_standbys": 0, "most_behind": None})

        wait_until(has_standby, "the standby")
        [keeper] = [each["instance"] for each in api.get("/v1/groups/inc_copy").json()["members"] if not each["tasks"]]
        for process in psutil.Process(processes[name_of(api, keeper)].pid).children(recursive=True):
            process.send_signal(signal.SIGSTOP)
        records = [{"key": f"u{n}", "value": {}, "timestamp": n} for n in range(BEHIND - 1)]
        api.post("/v1/streams/inc-copy/records", json={"records": records}).raise_for_status()
        api.get("/v1/jobs/inc_copy?wait=caught_up&timeout_ms=60000").raise_for_status()
        yield service


@contextmanager
def lost_instance(folder: Path, migrated: bytes, forks: ForkServer) -> Iterator[Serving]:
    """One of two instances is killed; the other has its task once its lease has run out."""
    with _service(folder, migrated, lease_ms=1_500) as service, _instances(service, forks, folder) as processes:
        api = service.client("writer")
        make_job(api, "inc_lost", partitions=2)
        wait_until(lambda: len(owners(api)) == 2, "a task on each instance")
        processes["two"].kill()
        wait_until(lambda: {name_of(api, each) for each in owners(api)} == {"one"}, "both tasks on the first")
        yield service


@contextmanager
def lost_executor(folder: Path, migrated: bytes) -> Iterator[Serving]:
    """An instance says that one of its two executors has ended; one of the slots there was started again."""
    with _service(folder, migrated, lease_ms=HOUR_MS) as service:
        api, driver = service.client("writer"), service.client("instance")
        small = {"name": "one", "incarnation": "1", "host": "one", "cores": 3, "spark": {"master": "spark://one"}}
        joined = driver.post("/v1/instances:join", json=small).raise_for_status().json()["instance_id"]
        make_job(api, "inc_executor", partitions=3)
        job = api.get("/v1/jobs/inc_executor").json()["id"]

        def start(index: int, executor: str) -> None:
            slot = {"slot": uuid4().hex, "job": job, "index": index, "executor": executor}
            driver.post(f"/v1/instances/{joined}/slots", json=slot).raise_for_status()

        for index, executor in enumerate("778"):
            start(index, executor)
        lost = {"incarnation": "1", "executors": ["7"]}
        driver.post(f"/v1/instances/{joined}:lost-executors", json=lost).raise_for_status()
        start(0, "9")
        yield service


def make_job(api: httpx.Client, name: str, *, partitions: int = 1, **settings: Any) -> None:
    """A job that deduplicates a stream named like it."""
    stream = name.replace("_", "-")
    api.post("/v1/streams", json={"name": stream, "partitions": partitions}).raise_for_status()
    spec = {"name": name, "source": stream, "sink": f"{stream}-out", "operators": [ONCE], **settings}
    api.post("/v1/jobs", json=spec).raise_for_status()


def owners(api: httpx.Client) -> set[str | None]:
    """Ids of the instances that run the tasks of the job whose instance is lost."""
    return {task["instance"] for task in api.get("/v1/jobs/inc_lost/tasks").raise_for_status().json()["items"]}


def name_of(api: httpx.Client, instance_id: str | None) -> str:
    """The name of an instance; "": it is none."""
    found = api.get("/v1/instances").raise_for_status().json()["items"]
    return next((each["name"] for each in found if instance_id in (each["id"], each["name"])), "")


@contextmanager
def _service(folder: Path, migrated: bytes, **settings: Any) -> Iterator[Serving]:
    folder.mkdir()
    (folder / "catalog.db").write_bytes(migrated)
    with serving(folder, f"sqlite:///{folder}/catalog.db", **settings) as service:
        yield service


@contextmanager
def _instances(service: Serving, forks: ForkServer, folder: Path) -> Iterator[dict[str, Forked]]:
    """Two instances, each with a node of its own, by name."""
    with ExitStack() as opened:
        names = ("one", "two")
        yield {name: opened.enter_context(instance(service, forks, folder / f"copies-{name}", name)) for name in names}
