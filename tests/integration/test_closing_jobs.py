"""Idle close and `:flush` of jobs that run: what they let out, what they say of it, and what then comes too late."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from benchmarks.running import wait_until
from tests import naive
from tests.serving import Serving

pytestmark = pytest.mark.services

Json = dict[str, Any]

COUNT = {"n": {"fn": "count"}}
SESSION = {"type": "session", "gap_ms": 1_000, "grace_ms": 500}
VISITS = {"op": "aggregate", "name": "visits", "window": SESSION, "aggregates": COUNT}
FINAL_VISITS = VISITS | {"emit": "on_window_close"}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}}
LATER = {"op": "suppress", "name": "later", "until": "time_limit", "time_limit_ms": 60_000, "buffer": {}}
IDLE_MS = 150
NUMBERS = count()


class World:
    """A service, an instance, and streams and jobs of each test's own."""

    def __init__(self, service: Serving) -> None:
        self.service = service
        self.http = service.client("writer")

    def call(self, method: str, path: str, **how: Any) -> Any:
        return self.http.request(method, path, **how).raise_for_status().json()

    def job(self, *operators: Json, partitions: int = 1, **more: Any) -> str:
        name = f"closing{next(NUMBERS)}"
        source = f"{name}-in"
        self.call("POST", "/v1/streams", json={"name": source, "partitions": partitions})
        job = {
            "name": name,
            "source": source,
            "operators": list(operators),
            "sink": f"{name}-out",
            "keep_dropped": True,
        }
        self.call("POST", "/v1/jobs", json=job | {"commit_interval_ms": 0} | more)
        return name

    def post(self, job: str, *records: tuple[str, int]) -> None:
        body = {"records": [{"key": key, "timestamp": timestamp, "value": {}} for key, timestamp in records]}
        self.call("POST", f"/v1/streams/{job}-in/records", json=body)

    def flush(self, job: str) -> Json:
        flushed: Json = self.call("POST", f"/v1/jobs/{job}:flush")
        return flushed

    def caught_up(self, job: str) -> Json:
        found: Json = {}

        def is_so() -> bool:
            found.update(self.call("GET", f"/v1/jobs/{job}?wait=caught_up&timeout_ms=10000"))
            return bool(found["caught_up"])

        wait_until(is_so, f"{job} caught up")
        return found

    def read(self, stream: str, partition: int = 0) -> list[Json]:
        page = self.call("GET", f"/v1/streams/{stream}/records?partition={partition}&from_offset=0&limit=1000")
        records: list[Json] = page["records"]
        return records

    def finals(self, job: str, partition: int = 0) -> list[tuple[str, int, int, str]]:
        """(key, window end, n, why closed) of the records that came out."""
        return [
            (r["key"], r["window"]["end"], r["value"]["n"], r["headers"]["millrace-closed-by"])
            for r in self.read(f"{job}-out", partition)
        ]

    def task(self, job: str, partition: int = 0) -> Json:
        task: Json = self.call("GET", f"/v1/jobs/{job}/tasks")["items"][partition]
        return task

    def wait_for(self, job: str, finals: int, partition: int = 0) -> list[tuple[str, int, int, str]]:
        wait_until(lambda: len(self.finals(job, partition)) >= finals, f"{finals} results of {job}")
        return self.finals(job, partition)


@pytest.fixture(scope="module")
def world(working: Serving) -> World:
    return World(working)


@pytest.mark.parametrize("operators", [[FINAL_VISITS], [VISITS, FINAL]], ids=["on_window_close", "suppress"])
def test_idle_input_closes_sessions_and_they_say_why(world: World, operators: list[Json]) -> None:
    job = world.job(*operators, idle_close_after_ms=IDLE_MS)
    world.post(job, ("a", 1_000), ("a", 1_400), ("b", 1_200))
    assert world.wait_for(job, 2) == [("b", 1_200, 1, "idle"), ("a", 1_400, 2, "idle")]
    task = world.task(job)
    wait_until(lambda: world.task(job)["is_closed"], "the task found nothing open")
    assert (task["advanced"]["to"], task["advanced"]["reason"]) == (1_400 + 1_000 + 500 + 1, "idle")
    assert task["stream_time"] == 2_901
    assert task["positions"][0]["lag"] == 0


def test_a_later_record_for_what_was_closed_is_dropped_and_says_so(world: World) -> None:
    job = world.job(FINAL_VISITS, idle_close_after_ms=IDLE_MS)
    world.post(job, ("a", 1_000))
    assert world.wait_for(job, 1) == [("a", 1_000, 1, "idle")]
    world.post(job, ("a", 900), ("a", 9_000))
    assert world.wait_for(job, 2)[1:] == [("a", 9_000, 1, "idle")]
    (dropped,) = world.read(f"{job}-dropped")
    assert (dropped["timestamp"], dropped["headers"]["millrace-reason"]) == (900, "closed_idle")
    counted = world.call("GET", f"/v1/jobs/{job}/metrics")
    assert counted["dropped"] == {"visits": {"closed_idle": 1}}
    assert counted["counters"]["advances"]["idle"] == 2
    missed = {"records": 1, "max_ms": 1, "average_ms": 1.0, "below": [{"ms": 2, "records": 1}]}
    assert world.call("GET", f"/v1/jobs/{job}/dropped") == {
        "items": [{"operator": "visits", "reason": "closed_idle", "records": 1, "missed": missed}],
        "next": None,
        "stream": f"{job}-dropped",
    }


def test_what_a_record_closes_says_stream_time(world: World) -> None:
    job = world.job(FINAL_VISITS)
    world.post(job, ("a", 1_000), ("b", 10_000))
    assert world.wait_for(job, 1) == [("a", 1_000, 1, "stream_time")]


def test_without_idle_close_nothing_closes_until_flush(world: World) -> None:
    job = world.job(VISITS, FINAL)
    world.post(job, ("a", 1_000), ("b", 1_200))
    world.caught_up(job)
    assert world.finals(job) == []
    assert world.flush(job)["is_flushing"]
    assert not world.caught_up(job)["is_flushing"]
    assert world.finals(job) == [("a", 1_000, 1, "flush"), ("b", 1_200, 1, "flush")]
    assert "flush" in [each["reason"] for each in world.call("GET", f"/v1/jobs/{job}/history")["items"]]


def test_a_flush_takes_in_what_was_posted_before_it(world: World) -> None:
    job = world.job(FINAL_VISITS)
    world.post(job, *((f"k{i}", 1_000 + i) for i in range(50)))
    world.flush(job)
    world.caught_up(job)
    assert [final[:2] for final in world.finals(job)] == [(f"k{i}", 1_000 + i) for i in range(50)]


def test_each_task_goes_only_as_far_as_its_own_state_needs(world: World) -> None:
    keys = ["a", "b", "c", "d", "e"]
    place = {key: naive.murmur2(key.encode()) % 2 for key in keys}
    assert set(place.values()) == {0, 1}
    job = world.job(FINAL_VISITS, partitions=2)
    world.post(job, *((key, 1_000 + 100_000 * place[key]) for key in keys))
    world.flush(job)
    world.caught_up(job)
    assert [world.task(job, p)["advanced"]["to"] for p in (0, 1)] == [2_501, 102_501]


def test_what_one_operator_lets_out_is_closed_in_the_next(world: World) -> None:
    """A second time limit begins when the final of the first arrives: the flush goes on until nothing is open."""
    job = world.job(FINAL_VISITS, LATER)
    world.post(job, ("a", 1_000))
    world.flush(job)
    world.caught_up(job)
    assert world.finals(job) == [("a", 1_000, 1, "flush")]
    assert world.task(job)["is_closed"]
    assert world.task(job)["advanced"]["to"] == 61_000


@pytest.mark.parametrize("closes", ["flush", "idle"])
def test_what_one_task_lets_out_is_closed_by_those_behind_a_repartition(world: World, closes: str) -> None:
    operators = [FINAL_VISITS, {"op": "repartition", "name": "again"}, LATER]
    job = world.job(*operators, partitions=2, idle_close_after_ms=IDLE_MS if closes == "idle" else None)
    world.post(job, ("a", 1_000), ("b", 1_200), ("c", 1_300))
    if closes == "flush":
        assert world.flush(job)["is_flushing"]
        assert not world.caught_up(job)["is_flushing"]
    wait_until(lambda: len(world.finals(job, 0) + world.finals(job, 1)) == 3, "the finals")
    found = sorted(world.finals(job, 0) + world.finals(job, 1))
    assert found == [("a", 1_000, 1, closes), ("b", 1_200, 1, closes), ("c", 1_300, 1, closes)]


def test_a_flush_of_two_sources_ends_under_steady_input(world: World) -> None:
    """One source is ahead of the other, so each waits for what comes behind the other's mark."""
    name = f"closing{next(NUMBERS)}"
    sources = [f"{name}-early", f"{name}-late"]
    for source in sources:
        world.call("POST", "/v1/streams", json={"name": source, "partitions": 1})
    job = {"name": name, "source": sources, "operators": [FINAL_VISITS], "sink": f"{name}-out"}
    world.call("POST", "/v1/jobs", json=job | {"commit_interval_ms": 0})
    times = count(1_000, 1_000)

    def post() -> None:
        now = next(times)
        for source, ahead in zip(sources, (0, 500), strict=True):
            records = [{"key": f"{source}-{now}-{i}", "timestamp": now + ahead + i, "value": {}} for i in range(3)]
            world.call("POST", f"/v1/streams/{source}/records", json={"records": records})

    post()
    before = world.flush(name)
    assert before["is_flushing"]

    def is_over() -> bool:
        post()
        return not world.call("GET", f"/v1/jobs/{name}")["is_flushing"]

    wait_until(is_over, f"the flush of {name}", timeout_s=30)
    keys = {final[0] for final in world.finals(name)}
    assert keys >= {f"{source}-1000-{i}" for source in sources for i in range(3)}


def test_flushing_gives_what_simulate_gives_for_the_same_advance(world: World) -> None:
    job = world.job(VISITS, FINAL)
    records = [(f"k{i % 7}", 1_000 + 137 * i % 5_000) for i in range(60)]
    world.post(job, *records)
    world.flush(job)
    world.caught_up(job)
    body = {
        "job": {"operators": [VISITS, FINAL]},
        "records": [{"key": key, "timestamp": timestamp, "value": {}} for key, timestamp in records],
        "advance_to": world.task(job)["advanced"]["to"],
    }
    simulated = world.call("POST", "/v1/jobs:simulate", json=body)["outputs"]
    shown = [{"key": r["key"], "window": r["window"], "value": r["value"]} for r in world.read(f"{job}-out")]
    assert shown == [{name: output[name] for name in ("key", "window", "value")} for output in simulated]
    assert simulated


def test_deduplicate_takes_no_part(world: World) -> None:
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 10_000}
    job = world.job(once)
    world.post(job, ("a", 1_000))
    world.flush(job)
    world.caught_up(job)
    world.post(job, ("a", 5_000), ("a", 20_000))
    world.caught_up(job)
    assert [record["timestamp"] for record in world.read(f"{job}-out")] == [1_000, 20_000]


def test_only_writers_flush_and_only_what_works(world: World) -> None:
    job = world.job(FINAL_VISITS)
    refused = {role: world.service.client(role).post(f"/v1/jobs/{job}:flush").status_code for role in ("reader", None)}
    assert refused == {"reader": 403, None: 401}
    assert world.http.post("/v1/jobs/nobody:flush").status_code == 404
    world.call("POST", f"/v1/jobs/{job}:pause")
    answer = world.http.post(f"/v1/jobs/{job}:flush")
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    assert "paused" in json.dumps(answer.json())
