"""An instance on a Spark standalone cluster, a master and two workers from the pip package: slots live in executors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import psutil
import pytest

from benchmarks.running import PATIENCE_S, Running, wait_until
from spark_jobs.watch import End
from tests import naive, naive_repartition, web_log
from tests.attached import Attached, Standalone, are_gone
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
from tests.e2e.test_web_log import THREE_STAGES
from tests.strangers import REQUESTS, shown_by_ps, spark_pages, told_to_strangers

pytestmark = pytest.mark.spark

PARTITIONS = 4


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    environment = {"MILLRACE_LEASE_MS": "120000"}  # so that nothing here is found out by a lease that ran out
    with Running(tmp_path_factory.mktemp("service") / "data", instances=0, environment=environment) as running:
        make_stream(running, "clicks", PARTITIONS)
        yield running


@pytest.fixture(scope="module")
def first(cluster: Standalone, service: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    """An instance with a job; the last of its tests stops it."""
    folder = tmp_path_factory.mktemp("first")
    with Attached(service, folder, name="first", master=cluster.master, secret=cluster.secret) as instance:
        instance.wait_until_live()
        service.call("POST", "/v1/jobs", json=deduplicate("once", "clicks", "once-out"))
        in_state(service, "once", "running")
        yield instance


def tasks_by_slot(service: Running, job: str = "once") -> list[int]:
    return [len(member["tasks"]) for member in service.call("GET", f"/v1/groups/{job}")["members"]]


def executors_of(slots: list[psutil.Process]) -> set[int]:
    """The JVMs whose daemons forked these workers."""
    return {parent.ppid() for slot in slots if (parent := slot.parent()) is not None}


def test_a_cluster_answers_no_stranger_and_shows_no_secret(cluster: Standalone, first: Attached) -> None:
    processes = [first.jvm(), *cluster.executors(), *(psutil.Process(one.pid) for one in cluster.daemons)]
    answers = told_to_strangers(processes)
    assert set(answers) == {"refused"}
    assert len(answers) >= 6 * len(REQUESTS)  # master, two workers; RPC and blocks of driver and executor
    for secret in (first.key, cluster.secret):
        assert secret not in shown_by_ps([*processes, *first.descendants()])
        assert secret not in spark_pages(first)


def test_three_sub_topologies_in_two_executors_equal_the_oracle(service: Running, first: Attached) -> None:
    """Nothing is read before all of it is there."""
    wait_until(lambda: tasks_by_slot(service) == [1] * PARTITIONS, PATIENCE_S, "the slots of the other job")
    requests, others = web_log.requests()[:3_000], {slot.pid for slot in first.slots()}
    make_stream(service, "requests", PARTITIONS)
    job = {"name": "stages", "source": "requests", "operators": THREE_STAGES, "sink": "sizes", "parallelism": 4}
    service.call("POST", "/v1/jobs", json=job | {"max_batch_records": 137})
    in_state(service, "stages", "running")
    service.call("POST", "/v1/jobs/stages:pause")
    wait_until(lambda: tasks_by_slot(service, "stages") == [3] * 4, PATIENCE_S, "three tasks in each of four slots")
    assert len(executors_of([slot for slot in first.slots() if slot.pid not in others])) == 2
    post(service, "requests", requests)
    service.call("POST", "/v1/jobs/stages:resume")
    assert caught_up(service, "stages")["state"] == "running"
    found = sorted(chain.from_iterable(contents(service, "sizes", PARTITIONS)))
    source = [[(None, record) for record in part] for part in naive.partitions_of(requests, PARTITIONS)]
    results = [each.record for each in naive_repartition.run(THREE_STAGES, [source], PARTITIONS)]
    assert found == sorted((str(each["key"]), json.dumps(each["value"]), each["timestamp"]) for each in results)
    assert found
    service.call("POST", "/v1/jobs/stages:stop")
    in_state(service, "stages", "stopped")


def test_slots_run_in_executors_survive_the_loss_of_one_and_end_with_their_instance(
    cluster: Standalone, service: Running, first: Attached
) -> None:
    records = some_records(6_000)
    first.wait_until_it_has(cores=32, shortage=None)
    post(service, "clicks", records[:3_000])
    assert caught_up(service, "once")["state"] == "running"
    wait_until(lambda: tasks_by_slot(service) == [1] * PARTITIONS, PATIENCE_S, "a slot for each task")
    used = executors_of(first.slots())
    assert used <= {executor.pid for executor in cluster.executors()}
    psutil.Process(min(used)).kill()
    post(service, "clicks", records[3_000:])
    assert caught_up(service, "once")["state"] == "running"
    rounds = service.call("GET", "/v1/groups/once/rebalances")["items"]
    assert [each["reason"] for each in rounds].count("an executor was lost") == 1
    assert "threw an exception" not in first.log.read_text()  # as Spark says of listeners that do not answer
    started = [*cluster.executors(), *first.slots()]
    assert first.stop() == 0
    wait_until(lambda: are_gone(started), PATIENCE_S, "the end of executors and slots")
    assert contents(service, "once-out", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)


def test_who_waits_for_cores_says_so_and_gets_those_of_a_killed_driver(
    cluster: Standalone, service: Running, tmp_path: Path
) -> None:
    """A second driver, for an application that gets nothing is what this is about."""
    service.call("POST", "/v1/jobs", json=deduplicate("twice", "clicks", "twice-out"))
    where = {"master": cluster.master, "secret": cluster.secret}
    with Attached(service, tmp_path, name="second", **where) as second:
        in_state(service, "twice", "running")
        with Attached(service, tmp_path, name="third", **where) as third:
            third.wait_until_it_has(state="live", cores=0, shortage="no_cores", slots=[])
            started = [*cluster.executors(), *second.slots(), *second.descendants()]
            second.process.kill()
            wait_until(lambda: are_gone(started), PATIENCE_S, "the end of executors and slots")
            third.wait_until_it_has(cores=32, shortage=None)
            wait_until(lambda: third.wait_until_live()["slots"], PATIENCE_S, "its slots")
            assert third.stop() == 0


def test_a_master_that_remembers_stops_no_task_and_one_that_forgets_ends_the_instance(
    cluster: Standalone, service: Running, tmp_path: Path
) -> None:
    """One driver for both, which leaves cores to others, and waits longer than two masters take to start on a busy
    machine. It comes last: workers have to find the master again.
    """
    service.call("POST", "/v1/jobs", json=deduplicate("twice", "clicks", "twice-out"))  # unless the test before has
    where = {"master": cluster.master, "secret": cluster.secret}
    waits = {"spark_patience_ms": 120_000}
    with Attached(service, tmp_path, "--cores", "8", name="second", **where, **waits) as instance:
        instance.wait_until_it_has(state="live", cores=8)
        wait_until(lambda: tasks_by_slot(service, "twice") == [1] * PARTITIONS, PATIENCE_S, "a slot for each task")
        members = service.call("GET", "/v1/groups/twice")["members"]
        rounds = service.call("GET", "/v1/groups/twice/rebalances")["items"]
        log = cluster.recovery.parent / "master.log"
        cluster.restart_master(forgets=False)
        records = some_records(2_000)
        post(service, "clicks", records)
        assert caught_up(service, "twice")["state"] == "running"
        wait_until(lambda: "Recovery complete" in log.read_text(), PATIENCE_S, "the end of the recovery")
        assert instance.process.poll() is None
        assert service.call("GET", "/v1/groups/twice")["members"] == members
        assert service.call("GET", "/v1/groups/twice/rebalances")["items"] == rounds
        cluster.restart_master(forgets=True)
        assert instance.process.wait(PATIENCE_S) == End.APPLICATION_GONE
        instance.end()
        instance.start()
        instance.wait_until_it_has(state="live", cores=8)
        assert caught_up(service, "twice")["state"] == "running"
