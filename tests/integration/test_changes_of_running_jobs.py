"""PATCH of a job that runs: its slots go on by the new settings, with the tasks and the state that they have."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from benchmarks.running import wait_until
from tests.serving import Serving

pytestmark = pytest.mark.services

Json = dict[str, Any]
HOLD = {"op": "suppress", "name": "hold", "until": "time_limit", "time_limit_ms": 10**9, "buffer": {"max_records": 10}}
COUNT = {
    "op": "aggregate",
    "name": "n",
    "window": {"type": "session", "gap_ms": 10},
    "aggregates": {"n": {"fn": "count"}},
}
AN_HOUR_MS = 3_600_000
NUMBERS = count()


class World:
    """A service with an instance, and one job a test."""

    def __init__(self, service: Serving) -> None:
        self.http = service.client("writer")

    def call(self, method: str, path: str, **how: Any) -> Any:
        return self.http.request(method, path, **how).raise_for_status().json()

    def job(self, *operators: Json, **more: Any) -> str:
        """A job that runs and has read one record."""
        name = f"changing{next(NUMBERS)}"
        self.call("POST", "/v1/streams", json={"name": f"{name}-in", "partitions": 1})
        body = {"name": name, "source": f"{name}-in", "operators": list(operators), "sink": f"{name}-out", **more}
        self.call("POST", "/v1/jobs", json=body)
        self.post(name, "first")
        wait_until(lambda: self.position(name) == 1, f"{name} runs")
        return name

    def post(self, job: str, *keys: str, at: int = 1_000) -> None:
        records = [{"key": key, "timestamp": at, "value": {}} for key in keys]
        self.call("POST", f"/v1/streams/{job}-in/records", json={"records": records})

    def position(self, job: str) -> int:
        return int(self.call("GET", f"/v1/jobs/{job}")["positions"][0]["position"])

    def change(self, job: str, **what: Any) -> None:
        """Change it while it runs; who runs its task must stay."""
        epoch = self.task(job)["epoch"]
        tag = self.http.get(f"/v1/jobs/{job}").headers["ETag"]
        assert self.call("PATCH", f"/v1/jobs/{job}", json=what, headers={"If-Match": tag})["state"] == "running"
        assert self.task(job)["epoch"] == epoch

    def caught_up(self, job: str) -> Json:
        """The job, once it has read and applied all."""
        found: Json = self.call("GET", f"/v1/jobs/{job}?wait=caught_up&timeout_ms=30000")
        assert found["caught_up"]
        return found

    def verdict(self, job: str, body: Json, operator: str) -> Json:
        """What a change would mean for an operator."""
        tag = self.http.get(f"/v1/jobs/{job}").headers["ETag"]
        answer = self.call("PUT", f"/v1/jobs/{job}?dry_run=true", json=body, headers={"If-Match": tag})
        found: Json = next(each for each in answer["operators"] if each["operator"] == operator)
        return found

    def task(self, job: str) -> Json:
        found: Json = self.call("GET", f"/v1/jobs/{job}/tasks")["items"][0]
        return found

    def keys_out(self, job: str) -> list[str]:
        found = self.call("GET", f"/v1/streams/{job}-out/records?partition=0&from_offset=0&limit=1000")
        return [record["key"] for record in found["records"]]


@pytest.fixture(scope="module")
def world(working: Serving) -> World:
    return World(working)


def test_a_smaller_buffer_lets_out_what_is_too_much(world: World) -> None:
    job = world.job(HOLD, commit_interval_ms=0)
    world.post(job, "b", "c", "d")
    wait_until(lambda: world.position(job) == 4, "the records are held back")
    world.change(job, buffers={"hold": {"max_records": 2}})
    world.post(job, "e")
    wait_until(lambda: len(world.keys_out(job)) == 3, "the buffer holds two")
    assert world.keys_out(job) == ["b", "c", "d"]
    assert world.task(job)["epoch"] == 1


def test_a_shorter_commit_interval_counts_for_the_round_that_waits(world: World) -> None:
    job = world.job(commit_interval_ms=AN_HOUR_MS)
    world.post(job, "b")
    world.change(job, commit_interval_ms=0)
    wait_until(lambda: world.position(job) == 2, "the record is read")


def test_a_smaller_full_batch_does_not_wait(world: World) -> None:
    job = world.job(commit_interval_ms=AN_HOUR_MS)
    world.post(job, "b", "c", "d", "e", "f")
    world.change(job, max_batch_records=2)
    wait_until(lambda: world.position(job) >= 5, "full batches are read")


def test_idle_close_begins_with_a_change(world: World) -> None:
    job = world.job({**COUNT, "emit": "on_window_close"}, commit_interval_ms=0)
    assert world.keys_out(job) == []
    world.change(job, idle_close_after_ms=50)
    wait_until(lambda: world.keys_out(job) == ["first"], "the session is closed")


def test_a_dry_run_counts_the_windows_that_an_added_suppress_has_not_seen(world: World) -> None:
    windows = {**COUNT, "window": {"type": "tumbling", "size_ms": 100, "grace_ms": 0}}
    job = world.job(windows, commit_interval_ms=0)
    world.post(job, "b", "c")
    found = world.caught_up(job)
    final = {"op": "suppress", "name": "final", "until": "window_closes"}
    verdict = world.verdict(job, {**found["spec"], "operators": [windows, final]}, "final")
    assert (verdict["verdict"], verdict["open_windows"]) == ("empty", 3)
    assert f"of 3 window(s) open in '{job}-n' nothing comes out unless they change again" in verdict["detail"]
    anew = {**found["spec"], "operators": [windows, final], "restart": ["n"]}
    assert world.verdict(job, anew, "final").get("open_windows") is None


def test_a_rollback_goes_on_with_what_a_removed_operator_had(world: World) -> None:
    """What came meanwhile is not in it; what closes comes out once."""
    windows = {**COUNT, "window": {"type": "tumbling", "size_ms": 100, "grace_ms": 0}, "emit": "on_window_close"}
    job = world.job(windows, commit_interval_ms=0)
    world.post(job, "a", "a")
    spec = world.caught_up(job)["spec"]
    world.post(job, "b", at=1_100)
    world.caught_up(job)
    nothing = {**spec, "operators": [{"op": "filter", "where": "false"}]}
    for path, body in ((f"/v1/jobs/{job}", nothing), (f"/v1/jobs/{job}:rollback", {"version": 1})):
        tag = world.http.get(f"/v1/jobs/{job}").headers["ETag"]
        world.call("PUT" if body is nothing else "POST", path, json=body, headers={"If-Match": tag})
        world.post(job, "a", "b", at=1_150)
        world.caught_up(job)
    world.post(job, "c", at=1_300)
    world.caught_up(job)
    page = world.call("GET", f"/v1/streams/{job}-out/records?partition=0&from_offset=0&limit=1000")
    finals = [(each["key"], each["window"]["start"], each["value"]["n"]) for each in page["records"]]
    assert finals == [("a", 1_000, 2), ("first", 1_000, 1), ("a", 1_100, 1), ("b", 1_100, 2)]
