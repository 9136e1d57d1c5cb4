"""SIGKILL of real processes: nothing acknowledged is lost, nothing comes out twice, and the order is the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.running import PATIENCE_S, wait_until
from tests.chaos.conftest import Breakable
from tests.driving import (
    ONCE_AN_HOUR,
    Record,
    caught_up,
    contents,
    deduplicate,
    expected,
    make_stream,
    post,
    some_records,
)

pytestmark = pytest.mark.services

PARTITIONS = 4
IN_A_SLOT = ("segment.before_write", "segment.after_write", "replay.middle")
IN_THE_API = ("commit.before", "commit.after")
CLIENTS = 4  # that post at once
WHILE_INGESTING = ("segment.before_write", "segment.after_write", "ingest.before_publish", "ingest.after_publish")


def in_batches(records: list[Record], size: int) -> Iterator[list[Record]]:
    return (records[start : start + size] for start in range(0, len(records), size))


@pytest.mark.parametrize("point", IN_A_SLOT + IN_THE_API)
@pytest.mark.parametrize("passes", [0, 5])
def test_a_kill_at_any_point_of_a_task_changes_nothing_of_its_output(
    breakable: Breakable, point: str, passes: int
) -> None:
    records = some_records(12_000)
    make_stream(breakable.running, "clicks", PARTITIONS)
    post(breakable.running, "clicks", records)
    breakable.arm(point, passes)
    job = deduplicate("once", "clicks", "clicks-once", max_batch_records=400)
    breakable.running.call("POST", "/v1/jobs", json=job)
    breakable.wait_for_fault(point)
    if point in IN_THE_API:
        breakable.restart_when_dead()
    assert caught_up(breakable.running, "once")["state"] == "running"
    assert contents(breakable.running, "clicks-once", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


@pytest.mark.parametrize("point", WHILE_INGESTING)
def test_a_kill_while_ingesting_loses_nothing_acknowledged_and_repeats_nothing(
    breakable_api: Breakable, point: str
) -> None:
    bodies = list(in_batches(some_records(6_000), 100))
    make_stream(breakable_api.running, "clicks", PARTITIONS)
    breakable_api.arm(point, 7)
    restart = threading.Barrier(CLIENTS + 1)  # all meet before it and behind it
    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = clients.map(
            lambda numbered: _post_until_answered(breakable_api, restart, *numbered), enumerate(bodies)
        )
        breakable_api.wait_for_fault(point)
        restart.wait(PATIENCE_S)
        breakable_api.restart_when_dead()
        restart.wait(PATIENCE_S)
        acknowledged = list(answers)
    assert [answer["accepted"] for answer in acknowledged] == [len(body) for body in bodies]
    found = [record for partition in contents(breakable_api.running, "clicks", PARTITIONS) for record in partition]
    sent = sorted((record["key"], record["timestamp"]) for body in bodies for record in body)
    assert sorted((key, timestamp) for key, _, timestamp in found) == sent


@pytest.mark.parametrize("point", WHILE_INGESTING)
def test_a_kill_while_single_records_are_posted_keeps_all_that_was_acknowledged(
    breakable_api: Breakable, point: str
) -> None:
    """Nobody retries: what was not acknowledged is there once or not at all."""
    make_stream(breakable_api.running, "clicks", PARTITIONS)
    breakable_api.arm(point, 40)
    with ThreadPoolExecutor(16) as clients:
        acknowledged = [
            key for keys in clients.map(lambda n: _post_until_killed(breakable_api, n), range(16)) for key in keys
        ]
    assert breakable_api.has_fired(point)
    breakable_api.restart_when_dead()
    found = [key for partition in contents(breakable_api.running, "clicks", PARTITIONS) for key, *_ in partition]
    assert len(acknowledged) >= 40
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found)


def _post_until_killed(breakable: Breakable, client: int) -> list[str]:
    """Single records, one after another; the keys of those that were acknowledged."""
    acknowledged: list[str] = []
    for number in count():
        key = f"{client}-{number}"
        try:
            post(breakable.running, "clicks", [{"key": key, "value": number, "timestamp": number}])
        except httpx.TransportError:
            return acknowledged
        acknowledged.append(key)
    raise AssertionError


def _post_until_answered(
    breakable: Breakable, restart: threading.Barrier, number: int, body: list[Record]
) -> dict[str, Any]:
    """A client that retries with its Idempotency-Key, as the contract asks of it, once the service is back."""
    for _ in count():
        try:
            return post(breakable.running, "clicks", body, key=f"body-{number}")
        except httpx.TransportError:
            restart.wait(PATIENCE_S)
            restart.wait(PATIENCE_S)
        except httpx.HTTPStatusError as refused:
            if refused.response.status_code != 409:  # in flight: its first attempt is still being answered
                raise
    raise AssertionError


@pytest.mark.spark
def test_ten_random_kills_of_driver_jvm_and_slots_in_one_run_change_nothing(breakable_spark: Breakable) -> None:
    """Few of driver and JVM: the service waits longer before each start of an instance that ends again and again."""
    running, records = breakable_spark.running, some_records(12_000, seed=2)
    make_stream(running, "clicks", PARTITIONS)
    job = deduplicate("once", "clicks", "clicks-once", max_batch_records=100)
    running.call("POST", "/v1/jobs", json=job)
    rng = random.Random(3)
    victims = rng.sample(["instance", "java", "slot"], 10, counts=[1, 1, 8])
    for part, victim in zip(in_batches(records, 1_200), victims, strict=True):
        post(running, "clicks", part)
        _kill_one(breakable_spark, victim, rng)
    assert caught_up(running, "once")["state"] == "running"
    assert contents(running, "clicks-once", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def _kill_one(breakable: Breakable, name: str, rng: random.Random) -> None:
    """Kill one living process of that kind, a random number of committed records after the last kill."""
    goal = _consumed(breakable) + rng.randrange(1, 600)
    wait_until(lambda: _consumed(breakable) >= goal, f"{goal} records consumed")
    living: list[psutil.Process] = []

    def is_there() -> bool:
        living[:] = breakable.processes(name)
        return bool(living)

    wait_until(is_there, f"a living {name}")
    rng.choice(living).kill()


def _consumed(breakable: Breakable) -> int:
    job = breakable.running.call("GET", "/v1/jobs/once")
    return sum(position["position"] for position in job["positions"])
