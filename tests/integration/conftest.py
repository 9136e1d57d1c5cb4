"""One service with an instance that runs what it should, without Spark, for all tests here that end nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forkserver import ForkServer
from tests.serving import Serving, serving
from tests.sparkless import instance


@pytest.fixture(scope="session")
def working_service(
    tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes, forks: ForkServer
) -> Iterator[Serving]:
    """It starts with the first test that asks for it."""
    folder = tmp_path_factory.mktemp("working")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db") as running, instance(running, forks, folder / "replicas"):
        yield running


@pytest.fixture(scope="module")
def working(working_service: Serving) -> Iterator[Serving]:
    """The service; streams and jobs of a module have names of their own, and the jobs are stopped behind it."""
    yield working_service
    http = working_service.client("writer")
    for job in http.get("/v1/jobs?limit=1000").raise_for_status().json()["items"]:
        if job["state"] not in ("stopped", "draining"):
            http.post(f"/v1/jobs/{job['name']}:stop").raise_for_status()
