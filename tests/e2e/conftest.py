"""One service with Spark, on SQLite, for all tests here that end nothing and need no settings of their own.

It has what some of them look for and none minds: replicas elsewhere, a package with an operator, the usual umask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.running import Running
from service.streams.operators import GROUP
from tests.driving import in_state
from tests.installing import install_example

USUAL_UMASK = 0o022  # processes are started as a shell would: what they make is for all to read unless they see to it


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the service's replicas, outside its data."""
    return tmp_path_factory.mktemp("elsewhere") / "replicas"


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, replicas: Path) -> Iterator[Running]:
    """It starts with the first test that asks for it."""
    site = tmp_path_factory.mktemp("site")
    install_example(site, "installed-operators.md", GROUP)
    path = os.pathsep.join([str(site), os.environ["PYTHONPATH"]])
    environment = {"MILLRACE_REPLICA_DIR": str(replicas), "PYTHONPATH": path, "MILLRACE_LEASE_MS": "10000"}
    data = tmp_path_factory.mktemp("shared") / "data"
    with ExitStack() as opened:
        with _umask(USUAL_UMASK):
            data.mkdir()
            running = opened.enter_context(Running(data, environment=environment))
        yield running


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def running(service: Running) -> Iterator[Running]:
    """The service; streams and jobs of a module have names of their own, and the jobs are stopped behind it."""
    yield service
    jobs = [job["name"] for job in service.call("GET", "/v1/jobs?limit=1000")["items"] if job["state"] != "stopped"]
    for name in jobs:
        service.call("POST", f"/v1/jobs/{name}:stop")
    for name in jobs:
        in_state(service, name, "stopped")
