"""An instance as a real process on local Spark: what people see of it, and what ends with what.

Every process here is killed by its id, as a machine would; the outputs must not show it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.running import Running, wait_until
from spark_jobs.instance import NAME_TAKEN, PARENT_LOST, REFUSED, SPARK_LOST
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

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]

PARTITIONS = 4
LEASE_S = 2.0


NAMES = count()


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service without instances, whose leases are short."""
    environment = {"MILLRACE_LEASE_MS": str(int(LEASE_S * 1000)), "MILLRACE_TICK_MS": "200"}
    with Running(tmp_path_factory.mktemp("service") / "data", instances=0, environment=environment) as running:
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


@pytest.fixture
def instance(service: Running, tmp_path: Path) -> Iterator[Attached]:
    with Attached(service, tmp_path, "--spark-ui", name=f"instance-{next(NAMES)}") as attached:
        attached.wait_until_live()
        yield attached


def start_job(service: Running, name: str = "once", **more: Any) -> dict[str, Any]:
    job: dict[str, Any] = service.call("POST", "/v1/jobs", json=deduplicate(name, "clicks", f"{name}-out", **more))
    return job


def slots_of(service: Running) -> list[dict[str, Any]]:
    return [slot for each in service.call("GET", "/v1/instances")["items"] for slot in each["slots"]]


# ---------------------------------------------------------------- what people see


def test_a_job_is_a_spark_job_under_its_name_whose_tasks_are_its_slots(service: Running, instance: Attached) -> None:
    job = start_job(service)
    in_state(service, "once", "running")
    spark = instance.wait_until_live()["spark"]
    jobs_url = f"{spark['ui']}/api/v1/applications/{spark['app_id']}/jobs?status=running"

    def shown() -> list[dict[str, Any]]:
        return [each for each in httpx.get(jobs_url).json() if each.get("jobGroup") == job["id"]]

    wait_until(lambda: [each["numActiveTasks"] for each in shown()] == [2], 20, "the Spark job in the UI")
    assert shown()[0]["description"] == "once"
    service.call("POST", "/v1/jobs/once:stop")
    in_state(service, "once", "stopped")
    wait_until(lambda: not shown(), 20, "the end of the Spark job")


def test_embedded_spark_listens_on_loopback_alone(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    tree = [psutil.Process(instance.process.pid), *instance.descendants()]
    listening = [at.laddr.ip for one in tree for at in one.net_connections("inet") if at.status == psutil.CONN_LISTEN]
    assert {address.removeprefix("::ffff:") for address in listening} == {LOOPBACK}


def test_without_being_asked_there_is_no_ui(service: Running, tmp_path: Path) -> None:
    with Attached(service, tmp_path, name=f"instance-{next(NAMES)}") as attached:
        assert attached.wait_until_live()["spark"]["ui"] == ""


def test_two_instances_share_a_job(service: Running, instance: Attached, tmp_path: Path) -> None:
    start_job(service)
    in_state(service, "once", "running")
    with Attached(service, tmp_path, name="second") as second:
        second.wait_until_live()

        def owners() -> set[str]:
            members = service.call("GET", "/v1/groups/once")["members"]
            return {member["instance"] for member in members if member["tasks"]}

        wait_until(lambda: owners() == {instance.name, "second"}, 30, "tasks on both instances")
        records = some_records(2_000)
        post(service, "clicks", records)
        caught_up(service, "once")
        assert second.stop() == 0
        wait_until(lambda: owners() == {instance.name}, 30, "the tasks to come back")
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


# ---------------------------------------------------------------- what ends with what


def test_sigterm_lets_slots_commit_and_leaves_nothing_running(service: Running, instance: Attached) -> None:
    start_job(service)
    records = some_records(5_000)
    post(service, "clicks", records)
    caught_up(service, "once")
    started = instance.descendants()
    assert instance.stop() == 0
    assert "slot_left" in instance.log.read_text()
    wait_until(lambda: are_gone(started), 10, "the end of all processes")
    shown = service.call("GET", "/v1/instances")["items"]
    assert [each["state"] for each in shown if each["name"] == instance.name] == ["gone"]
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_a_sigterm_to_every_process_at_once_is_an_orderly_end_too(service: Running, instance: Attached) -> None:
    """As service managers send it: Spark ends while the instance still lets its slots go."""
    start_job(service)
    in_state(service, "once", "running")
    started = instance.descendants()
    for process in (instance.jvm(), psutil.Process(instance.process.pid)):
        process.terminate()
    assert instance.process.wait(30) == 0
    assert "in _drain" not in instance.log.read_text()
    wait_until(lambda: are_gone(started), 10, "the end of all processes")


def test_a_killed_driver_takes_the_jvm_and_all_workers_with_it(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    started = instance.descendants()
    assert len(started) >= 4
    os.kill(instance.process.pid, signal.SIGKILL)
    wait_until(lambda: are_gone(started), 5, "the end of all processes")


def test_a_killed_jvm_ends_the_driver_at_once(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    started = instance.descendants()
    instance.jvm().kill()
    assert instance.process.wait(5) == SPARK_LOST
    wait_until(lambda: are_gone(started), 5, "the end of all processes")


def test_the_end_of_stdin_is_the_end_of_the_parent(service: Running, tmp_path: Path) -> None:
    with Attached(service, tmp_path, "--watch-stdin", name=f"instance-{next(NAMES)}") as attached:
        attached.wait_until_live()
        started = attached.descendants()
        assert attached.process.stdin is not None
        attached.process.stdin.close()
        assert attached.process.wait(5) == PARENT_LOST
        wait_until(lambda: are_gone(started), 5, "the end of all processes")


def test_a_revoked_key_ends_the_instance(service: Running, instance: Attached) -> None:
    keys = service.call("GET", "/v1/tokens")["items"]
    revoked = next(key["id"] for key in keys if key["name"] == instance.name)
    service.call("DELETE", f"/v1/tokens/{revoked}")
    assert instance.process.wait(30) == REFUSED


def test_a_second_process_under_the_same_name_does_not_start_a_quarrel(
    service: Running, instance: Attached, tmp_path: Path
) -> None:
    with Attached(service, tmp_path, name=instance.name) as rival:
        wait_until(lambda: NAME_TAKEN in {instance.process.poll(), rival.process.poll()}, 60, "one to give up")
        survivors = [each for each in (instance, rival) if each.process.poll() is None]
        assert len(survivors) == 1
        start_job(service)
        in_state(service, "once", "running")


# ---------------------------------------------------------------- lost and hanging slots


def test_a_killed_slot_is_started_again_and_nothing_shows_it(service: Running, instance: Attached) -> None:
    start_job(service)
    records = some_records(4_000)
    for start in range(0, 4_000, 1_000):
        post(service, "clicks", records[start : start + 1_000])
        caught_up(service, "once")
        instance.slots()[0].kill()
    wait_until(lambda: len(slots_of(service)) == 2, 30, "both slots")
    assert caught_up(service, "once")["state"] == "running"
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_a_slot_that_hangs_loses_its_tasks_and_its_process(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    wait_until(lambda: len(slots_of(service)) == 2, 20, "both slots")
    hanging = instance.slots()[0]
    hanging.suspend()
    records = some_records(1_000)
    post(service, "clicks", records)
    assert caught_up(service, "once", timeout_s=10 * LEASE_S)["state"] == "running"
    wait_until(lambda: are_gone([hanging]), 20 * LEASE_S, "the end of the hanging process")
    wait_until(lambda: len(slots_of(service)) == 2, 30, "another slot in its place")
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
    wait_until(lambda: not slots_of(service), 10 * LEASE_S, "the eviction")
    for each in reversed(everything):
        each.resume()
    records = some_records(1_000)
    post(service, "clicks", records)
    assert caught_up(service, "once")["state"] == "running"
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_slots_outlive_the_api(tmp_path: Path) -> None:
    """The API process is killed and comes back under its address: instance and slots go on as they were."""
    data = tmp_path / "data"
    with Running(data, instances=0) as first:
        make_stream(first, "clicks", PARTITIONS)
        port = first.url.rpartition(":")[2]
        with Attached(first, tmp_path) as attached:
            attached.wait_until_live()
            start_job(first)
            records = some_records(2_000)
            post(first, "clicks", records[:1_000])
            caught_up(first, "once")
            before = {slot["slot"] for slot in slots_of(first)}
            first.kill()
            with Running(data, instances=0, arguments=("--port", port)) as second:
                post(second, "clicks", records[1_000:])
                caught_up(second, "once")
                assert {slot["slot"] for slot in slots_of(second)} == before
                assert contents(second, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_a_replaced_instance_finds_its_replicas(service: Running, tmp_path: Path) -> None:
    with Attached(service, tmp_path, name=f"instance-{next(NAMES)}") as attached:
        attached.wait_until_live()
        start_job(service)
        post(service, "clicks", some_records(2_000))
        caught_up(service, "once")
        assert attached.stop() == 0
        first_lives = sorted((tmp_path / "replicas").rglob("data.mdb"))
        attached.start()
        attached.wait_until_live()
        post(service, "clicks", some_records(100))
        caught_up(service, "once")
        assert sorted((tmp_path / "replicas").rglob("data.mdb")) == first_lives
