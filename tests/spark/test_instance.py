"""An instance on local Spark, as people see it, and slots that are lost: one instance for all tests here. Several that
share a job are in test_standalone.py.

Slots are killed by their id, as a machine would; the outputs must not show it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.running import PATIENCE_S, Running, wait_until
from tests.attached import LOOPBACK, Attached, are_gone
from tests.driving import (
    ONCE_AN_HOUR,
    caught_up,
    contents,
    deduplicate,
    expected,
    in_state,
    make_stream,
    post,
    some_records,
)
from tests.spark.conftest import PARTITIONS, slots_of, start_job
from tests.strangers import REQUESTS, shown_by_ps, told_to_strangers

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def instance(shared_service: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    with Attached(shared_service, tmp_path_factory.mktemp("instance"), "--spark-ui", name="shared") as attached:
        attached.wait_until_live()
        yield attached


# ---------------------------------------------------------------- what people see


def test_a_job_is_a_spark_job_under_its_name_whose_tasks_are_its_slots(service: Running, instance: Attached) -> None:
    job = start_job(service)
    in_state(service, "once", "running")
    spark = instance.wait_until_live()["spark"]
    jobs_url = f"{spark['ui']}/api/v1/applications/{spark['app_id']}/jobs?status=running"

    def shown() -> list[dict[str, Any]]:
        return [each for each in httpx.get(jobs_url, timeout=60).json() if each.get("jobGroup") == job["id"]]

    wait_until(lambda: [each["numActiveTasks"] for each in shown()] == [2], "the Spark job in the UI")
    assert shown()[0]["description"] == "once"
    service.call("POST", "/v1/jobs/once:stop")
    in_state(service, "once", "stopped")
    wait_until(lambda: not shown(), "the end of the Spark job")


def test_embedded_spark_listens_on_loopback_alone(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    tree = [psutil.Process(instance.process.pid), *instance.descendants()]
    listening = [at.laddr.ip for one in tree for at in one.net_connections("inet") if at.status == psutil.CONN_LISTEN]
    assert {address.removeprefix("::ffff:") for address in listening} == {LOOPBACK}


def test_embedded_spark_answers_no_stranger_and_shows_no_secret(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    assert told_to_strangers([instance.jvm()]) == ["refused"] * 2 * len(
        REQUESTS
    )  # RPC and blocks; the UI is a web server
    assert instance.key not in shown_by_ps(instance.descendants())


def test_slots_come_and_go_with_their_share_while_the_others_run_on(service: Running, instance: Attached) -> None:
    """A second instance, which never runs a slot, has a share for a while."""
    make_stream(service, "narrow", 2)
    service.call("POST", "/v1/jobs", json=deduplicate("shared", "narrow", "shared-out"))
    wait_until(lambda: len(slots_of(service)) == 2, "both slots")
    before = {slot["slot"] for slot in slots_of(service)}
    ghost = {"name": "ghost", "incarnation": "1", "host": "nowhere", "cores": 2}
    headers = {"Authorization": f"Bearer {instance.key}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        joined = client.post("/v1/instances:join", json=ghost).raise_for_status().json()["instance_id"]

        def is_shared() -> bool:
            client.post(f"/v1/instances/{joined}:heartbeat", json={"incarnation": "1"}).raise_for_status()
            return len(slots_of(service)) == 1

        wait_until(is_shared, "a slot to leave")
        [stayed] = slots_of(service)
        assert stayed["slot"] in before
        client.post(f"/v1/instances/{joined}:leave", json={"incarnation": "1"}).raise_for_status()
    wait_until(lambda: len(slots_of(service)) == 2, "another slot beside it")
    assert stayed["slot"] in {slot["slot"] for slot in slots_of(service)}


# ---------------------------------------------------------------- lost and hanging slots


def test_a_killed_slot_is_started_again_and_nothing_shows_it(service: Running, instance: Attached) -> None:
    start_job(service)
    records = some_records(4_000)
    for start in range(0, 4_000, 1_000):
        post(service, "clicks", records[start : start + 1_000])
        caught_up(service, "once")
        instance.slots()[0].kill()
    wait_until(lambda: len(slots_of(service)) == 2, "both slots")
    assert caught_up(service, "once")["state"] == "running"
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_a_slot_that_hangs_loses_its_tasks_and_its_process(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    wait_until(lambda: len(slots_of(service)) == 2, "both slots")
    hanging = instance.slots()[0]
    hanging.suspend()
    records = some_records(1_000)
    post(service, "clicks", records)
    assert caught_up(service, "once", timeout_s=PATIENCE_S)["state"] == "running"
    wait_until(lambda: are_gone([hanging]), "the end of the hanging process")
    wait_until(lambda: len(slots_of(service)) == 2, "another slot in its place")
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_a_stopped_instance_that_wakes_up_finds_its_place_taken_and_joins_again(
    service: Running, instance: Attached
) -> None:
    start_job(service)
    in_state(service, "once", "running")
    everything = [psutil.Process(instance.process.pid), *instance.descendants()]
    time.sleep(0.5)  # let the heartbeat that the join began come to rest
    for each in everything:
        each.suspend()
    wait_until(lambda: not slots_of(service), "the eviction")
    for each in reversed(everything):
        each.resume()
    records = some_records(1_000)
    post(service, "clicks", records)
    assert caught_up(service, "once")["state"] == "running"
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)
