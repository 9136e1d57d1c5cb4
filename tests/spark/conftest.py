"""A service without instances of its own, for tests that attach theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.running import Running
from tests.driving import deduplicate, in_state, make_stream
from tests.forkserver import ForkServer

PARTITIONS = 4
LEASE_S = 2.0


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Running]:
    """A service without instances, whose leases are short."""
    environment = {"MILLRACE_LEASE_MS": str(int(LEASE_S * 1000)), "MILLRACE_TICK_MS": "200"}
    data = tmp_path_factory.mktemp("service") / "data"
    with Running(data, instances=0, environment=environment, popen=forks.popen) as running:
        yield running


@pytest.fixture
def service(shared_service: Running) -> Iterator[Running]:
    """The service with an empty stream `clicks`; jobs and streams go when the test ends."""
    make_stream(shared_service, "clicks", PARTITIONS)
    yield shared_service
    for job in shared_service.call("GET", "/v1/jobs")["items"]:
        if job["state"] != "stopped":
            shared_service.call("POST", f"/v1/jobs/{job['name']}:stop")
        in_state(shared_service, job["name"], "stopped")
        shared_service.call("DELETE", f"/v1/jobs/{job['name']}")
    for stream in shared_service.call("GET", "/v1/streams")["items"]:
        shared_service.call("DELETE", f"/v1/streams/{stream['name']}")


def start_job(service: Running, name: str = "once", **more: Any) -> dict[str, Any]:
    job: dict[str, Any] = service.call("POST", "/v1/jobs", json=deduplicate(name, "clicks", f"{name}-out", **more))
    return job


def slots_of(service: Running) -> list[dict[str, Any]]:
    return [slot for each in service.call("GET", "/v1/instances")["items"] for slot in each["slots"]]
