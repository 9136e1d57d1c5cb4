"""`wait`: requests that are answered when a job runs, stopped or has caught up, and at the latest when time is up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchmarks.running import wait_until
from service.protocol import JoinRequest, SlotRequest
from spark_jobs.client import Api
from tests.forkserver import ForkServer
from tests.serving import Serving, serving
from tests.sparkless import instance

pytestmark = pytest.mark.services

Json = dict[str, Any]
ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}
LONG = {"timeout_ms": 30_000}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("waiting")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db") as running:
        yield running


@pytest.fixture(scope="module")
def api(service: Serving, tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[httpx.Client]:
    """With an instance that runs what it should."""
    client = service.client("writer")
    client.post("/v1/streams", json={"name": "in", "partitions": 1}).raise_for_status()
    with instance(service, forks, tmp_path_factory.mktemp("instance") / "replicas"):
        yield client


def body_of(name: str) -> Json:
    return {"name": name, "source": "in", "operators": [ONCE], "commit_interval_ms": 0}


def test_each_verb_waits_for_what_comes_of_it(api: httpx.Client) -> None:
    made = api.post("/v1/jobs", json=body_of("verbs"), params={"wait": "running", **LONG})
    assert (made.status_code, made.json()["state"]) == (201, "running"), made.text
    api.post("/v1/streams/in/records", json={"records": [{"key": "a", "timestamp": 1}]}).raise_for_status()
    read = api.get("/v1/jobs/verbs", params={"wait": "caught_up", **LONG}).json()
    assert (read["caught_up"], read["positions"][0]["position"]) == (True, 1)
    flushed = api.post("/v1/jobs/verbs:flush", params={"wait": "caught_up", **LONG}).json()
    assert (flushed["caught_up"], flushed["is_flushing"]) == (True, False)
    stopped = api.post("/v1/jobs/verbs:stop", params={"wait": "stopped", **LONG})
    assert stopped.json()["state"] == "stopped"
    assert stopped.headers["ETag"] == api.get("/v1/jobs/verbs").headers["ETag"]
    again = api.post("/v1/jobs/verbs:restart", params={"wait": "running", **LONG}).json()
    assert again["state"] == "running"
    assert api.post("/v1/jobs/verbs:pause", params={"wait": "caught_up", **LONG}).json()["state"] == "paused"
    assert api.post("/v1/jobs/verbs:resume", params={"wait": "running", **LONG}).json()["state"] == "running"


def test_what_can_not_come_is_not_waited_for(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=body_of("ended"), params={"wait": "running", **LONG})
    api.post("/v1/jobs/ended:stop", params={"wait": "stopped", **LONG})
    for wanted in ("running", "stopped", "caught_up"):
        assert api.get("/v1/jobs/ended", params={"wait": wanted, **LONG}).json()["state"] == "stopped"


def test_a_wait_ends_with_its_time(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=body_of("going"), params={"wait": "running", **LONG})
    assert api.get("/v1/jobs/going", params={"wait": "stopped", "timeout_ms": 20}).json()["state"] == "running"
    refused = api.delete("/v1/jobs/going", params={"wait": "stopped", "timeout_ms": 20})
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("GET", "/v1/jobs/any", "paused"),
        ("POST", "/v1/jobs/any:stop", "gone"),
        ("POST", "/v1/jobs", ""),
        ("DELETE", "/v1/jobs/any", "running"),
    ],
)
def test_other_waits_are_refused(api: httpx.Client, method: str, path: str, wanted: str) -> None:
    json = body_of("never") if path == "/v1/jobs" else None
    answer = api.request(method, path, params={"wait": wanted}, json=json)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "?wait")


def test_the_deletion_of_a_job_that_drains_can_wait(service: Serving) -> None:
    """A slot that has not left holds it up, until it does."""
    writer = service.client("writer")
    writer.post("/v1/streams", json={"name": "draining-in", "partitions": 1}).raise_for_status()
    job = writer.post("/v1/jobs", json={"name": "draining", "source": "draining-in", "operators": [ONCE]}).json()["id"]
    answers: list[httpx.Response] = []
    with Api(service.url, service.secrets["instance"]) as slots:
        member = slots.join_instance(JoinRequest("still", "1", "localhost", 1))
        slots.join_slot(member.instance_id, SlotRequest("lingering", job, 0))
        assert writer.post("/v1/jobs/draining:stop").json()["state"] == "draining"
        assert writer.delete("/v1/jobs/draining").status_code == 409
        asking = threading.Thread(
            target=lambda: answers.append(writer.delete("/v1/jobs/draining", params={"wait": "stopped", **LONG}))
        )
        asking.start()
        slots.leave_slot(f"/v1/instances/{member.instance_id}/slots/lingering")
        asking.join(30)
    assert [answer.status_code for answer in answers] == [204]
    wait_until(lambda: writer.get("/v1/jobs/draining").status_code == 404, "the job is gone", timeout_s=5)
