"""What ends with what: tests kill or stop processes of an instance on local Spark, and who survives serves the next."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.running import Running, wait_until
from spark_jobs.instance import NAME_TAKEN, PARENT_LOST, REFUSED, SPARK_LOST
from tests.attached import Attached, are_gone
from tests.driving import ONCE_AN_HOUR, caught_up, contents, expected, in_state, post, some_records
from tests.spark.conftest import PARTITIONS, slots_of, start_job

pytestmark = pytest.mark.spark

SOON_S = 30.0  # on a machine that may be busy; what tells of an end takes no timeout of ours


@pytest.fixture(scope="module")
def started() -> Iterator[list[Attached]]:
    """The instances that were started here, one after the other."""
    found: list[Attached] = []
    yield found
    for attached in found:
        attached.end()


@pytest.fixture
def instance(service: Running, started: list[Attached], tmp_path: Path) -> Attached:
    """One that the test before has left alive, if there is one."""
    if not living(started):
        attached = Attached(service, tmp_path, "--watch-stdin", name=f"instance-{len(started)}")
        started.append(attached.start())
    [found] = living(started)
    found.wait_until_live()
    return found


def living(instances: list[Attached]) -> list[Attached]:
    return [each for each in instances if each.process.poll() is None]


def test_sigterm_lets_slots_commit_and_leaves_nothing_running_but_replicas_for_the_next_start(
    service: Running, instance: Attached
) -> None:
    start_job(service)
    records = some_records(5_100)
    post(service, "clicks", records[:5_000])
    caught_up(service, "once")
    processes = instance.descendants()
    assert instance.stop() == 0
    assert "slot_left" in instance.log.read_text()
    wait_until(lambda: are_gone(processes), "the end of all processes", timeout_s=SOON_S)
    shown = service.call("GET", "/v1/instances")["items"]
    assert [each["state"] for each in shown if each["name"] == instance.name] == ["gone"]
    first_lives = sorted(instance.replicas.rglob("data.mdb"))
    instance.start()
    instance.wait_until_live()
    post(service, "clicks", records[5_000:])
    caught_up(service, "once")
    assert sorted(instance.replicas.rglob("data.mdb")) == first_lives
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_a_second_process_under_the_same_name_does_not_start_a_quarrel(
    service: Running, instance: Attached, started: list[Attached]
) -> None:
    rival = Attached(service, instance.log.parent, "--watch-stdin", name=instance.name).start()
    started.append(rival)
    wait_until(lambda: NAME_TAKEN in {instance.process.poll(), rival.process.poll()}, "one to give up")
    assert len(living([instance, rival])) == 1
    start_job(service)
    in_state(service, "once", "running")


def test_a_sigterm_to_every_process_at_once_is_an_orderly_end_too(service: Running, instance: Attached) -> None:
    """As service managers send it: Spark ends while the instance still lets its slots go."""
    start_job(service)
    in_state(service, "once", "running")
    processes = instance.descendants()
    for process in (instance.jvm(), psutil.Process(instance.process.pid)):
        process.terminate()
    assert instance.process.wait(SOON_S) == 0
    assert "in _drain" not in instance.log.read_text()
    wait_until(lambda: are_gone(processes), "the end of all processes", timeout_s=SOON_S)


def test_a_killed_driver_takes_the_jvm_and_all_workers_with_it(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    processes = instance.descendants()
    assert len(processes) >= 4
    os.kill(instance.process.pid, signal.SIGKILL)
    wait_until(lambda: are_gone(processes), "the end of all processes", timeout_s=SOON_S)


def test_a_killed_jvm_ends_the_driver_at_once(service: Running, instance: Attached) -> None:
    start_job(service)
    in_state(service, "once", "running")
    processes = instance.descendants()
    instance.jvm().kill()
    assert instance.process.wait(SOON_S) == SPARK_LOST
    wait_until(lambda: are_gone(processes), "the end of all processes", timeout_s=SOON_S)


def test_slots_outlive_the_api(service: Running, instance: Attached) -> None:
    """The API process is killed and comes back under its address: instance and slots go on as they were."""
    start_job(service)
    records = some_records(2_000)
    post(service, "clicks", records[:1_000])
    caught_up(service, "once")
    before = {slot["slot"] for slot in slots_of(service)}
    service.kill()
    service.start(port=int(service.url.rpartition(":")[2]))
    post(service, "clicks", records[1_000:])
    caught_up(service, "once")
    assert {slot["slot"] for slot in slots_of(service)} == before
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_the_end_of_stdin_is_the_end_of_the_parent(service: Running, instance: Attached) -> None:
    processes = instance.descendants()
    assert instance.process.stdin is not None
    instance.process.stdin.close()
    assert instance.process.wait(SOON_S) == PARENT_LOST
    wait_until(lambda: are_gone(processes), "the end of all processes", timeout_s=SOON_S)


def test_without_being_asked_there_is_no_ui_and_a_revoked_key_ends_the_instance(
    service: Running, instance: Attached
) -> None:
    assert instance.wait_until_live()["spark"]["ui"] == ""
    keys = service.call("GET", "/v1/tokens")["items"]
    revoked = next(key["id"] for key in keys if key["name"] == instance.name)
    service.call("DELETE", f"/v1/tokens/{revoked}")
    assert instance.process.wait(SOON_S) == REFUSED
