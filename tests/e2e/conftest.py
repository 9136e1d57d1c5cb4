"""One service with Spark, on SQLite, for all tests here that end nothing and need no settings of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.running import Running
from tests.driving import in_state


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """It starts with the first test that asks for it."""
    with Running(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def running(service: Running) -> Iterator[Running]:
    """The service; streams and jobs of a module have names of their own, and the jobs are stopped behind it."""
    yield service
    jobs = [job["name"] for job in service.call("GET", "/v1/jobs?limit=1000")["items"] if job["state"] != "stopped"]
    for name in jobs:
        service.call("POST", f"/v1/jobs/{name}:stop")
    for name in jobs:
        in_state(service, name, "stopped")
