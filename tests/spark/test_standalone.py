"""Instances on a Spark standalone cluster, a master and two workers from the pip package: slots live in executors.

One group serves all tests here: three instances with a core each, which are all that the cluster has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.beats import Beats
from benchmarks.running import PATIENCE_S, Running, wait_until
from spark_jobs.watch import End
from tests import naive, naive_repartition, web_log
from tests.attached import Standalone, are_gone
from tests.driving import caught_up, contents, in_state, make_stream, post
from tests.e2e.test_web_log import THREE_STAGES
from tests.forkserver import ForkServer
from tests.spark.faults import (
    FAULTS,
    LEASE_MS,
    PARTITIONS,
    SPEC,
    START_MS,
    AttachedGroup,
    Watch,
    disturb,
    replayed,
)
from tests.strangers import REQUESTS, shown_by_ps, spark_pages, told_to_strangers

pytestmark = pytest.mark.spark

LOAD: dict[str, Any] = {"every_s": 0.5, "at_once": 12}  # what costs are commits: seldom, then, and many records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("group")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("spark"), cores=(2, 1)) as running:
        yield running


@pytest.fixture(scope="module")
def service(folder: Path, forks: ForkServer) -> Iterator[Running]:
    environment = {"MILLRACE_LEASE_MS": str(LEASE_MS)}
    with Running(folder / "data", instances=0, environment=environment, popen=forks.popen) as running:
        yield running


@pytest.fixture(scope="module")
def group(cluster: Standalone, service: Running, folder: Path) -> Iterator[AttachedGroup]:
    made = AttachedGroup(service, cluster, folder, ["one", "two", "three"])
    try:
        made.start()
        yield made
    finally:
        made.end()


def executors_of(slots: list[psutil.Process]) -> set[int]:
    """The JVMs whose daemons forked these workers."""
    return {parent.ppid() for slot in slots if (parent := slot.parent()) is not None}


def test_a_cluster_answers_no_stranger_and_shows_no_secret(cluster: Standalone, group: AttachedGroup) -> None:
    one = group.instances["one"]
    processes = [one.jvm(), *cluster.executors(), *(psutil.Process(each.pid) for each in cluster.daemons)]
    answers = told_to_strangers(processes)
    assert set(answers) == {"refused"}
    assert len(answers) >= 6 * len(REQUESTS)  # master, two workers; RPC and blocks of driver and executor
    for secret in (one.key, cluster.secret):
        assert secret not in shown_by_ps([*processes, *one.descendants()])
        assert secret not in spark_pages(one)


def test_three_sub_topologies_in_three_executors_equal_the_oracle(service: Running, group: AttachedGroup) -> None:
    """Nothing is read before all of it is there."""
    requests = web_log.requests()[:3_000]
    make_stream(service, "requests", 4)
    job = {"name": "stages", "source": "requests", "operators": THREE_STAGES, "sink": "sizes", "parallelism": 4}
    service.call("POST", "/v1/jobs", json=job | {"max_batch_records": 137})
    in_state(service, "stages", "running")
    service.call("POST", "/v1/jobs/stages:pause")

    def stages_by_slot() -> list[set[str]]:
        members = service.call("GET", "/v1/groups/stages")["members"]
        return [{task.partition("_")[0] for task in member["tasks"]} for member in members]

    is_spread = lambda: stages_by_slot() == [{"0", "1", "2"}] * 3  # noqa: E731
    wait_until(is_spread, "tasks of each sub-topology in each of three slots")
    slots = [slot for instance in group.instances.values() for slot in instance.slots()]
    assert len(executors_of(slots)) == 3
    post(service, "requests", requests)
    service.call("POST", "/v1/jobs/stages:resume")
    assert caught_up(service, "stages")["state"] == "running"
    found = sorted(chain.from_iterable(contents(service, "sizes", 4)))
    source = [[(None, record) for record in part] for part in naive.partitions_of(requests, 4)]
    results = [each.record for each in naive_repartition.run(THREE_STAGES, [source], 4)]
    assert found == sorted((str(each["key"]), json.dumps(each["value"]), each["timestamp"]) for each in results)
    assert found
    service.call("POST", "/v1/jobs/stages:stop")
    in_state(service, "stages", "stopped")


def test_whatever_befalls_members_the_others_go_on_and_nothing_shows_it(group: AttachedGroup) -> None:
    """Each fault once, under load: executors, a worker, drivers, slots, the master. Each task commits again soon after
    each of them.
    """
    group.start_job()
    spared = group.slot_of("one")
    with Beats(group.running, "in", "out", partitions=PARTITIONS, start_ms=START_MS, **LOAD) as beats:
        watch = Watch(group, beats)
        assert disturb(group, ["two", "three"], watch, seed=1).keys() == {fault.__name__ for fault in FAULTS}
    group.posted += beats.records
    assert group.results() == group.undisturbed()
    assert group.slot_of("one") == spared
    assert min(watch.stays()) > 0
    assert group.reasons().count("an executor was lost") >= 2  # with its worker, and alone
    assert min(replayed(group.cluster, 0)) <= SPEC["acceptable_recovery_lag"]
    log = group.instances["one"].log.read_text()
    assert "threw an exception" not in log  # as Spark says of listeners that do not answer


def test_who_waits_for_cores_says_so_and_gets_those_of_a_killed_driver(group: AttachedGroup, folder: Path) -> None:
    """A driver more, for an application that gets nothing is what this is about."""
    three = group.instances["three"]
    late = group.attach(folder, "late")
    group.instances["late"] = late
    late.start().wait_until_it_has(state="live", cores=0, shortage="no_cores", slots=[])
    started = [*three.executors(), *three.slots(), *three.descendants()]
    three.end()
    wait_until(lambda: are_gone(started), "the end of executors and slots")
    late.wait_until_it_has(cores=1, shortage=None)
    wait_until(lambda: bool(late.wait_until_live()["slots"]), "its slot")


def test_a_master_that_forgets_ends_instances_which_come_back(
    cluster: Standalone, service: Running, group: AttachedGroup
) -> None:
    """It comes last: workers have to find the master again."""
    alive = [instance for instance in group.instances.values() if instance.process.poll() is None]
    cluster.restart_master(forgets=True)
    assert [instance.process.wait(PATIENCE_S) for instance in alive] == [End.APPLICATION_GONE] * len(alive)
    later = [
        {"key": f"k{n}", "value": {"id": "later"}, "timestamp": START_MS + 36_000_000 + n}
        for n in range(10 * PARTITIONS)
    ]
    post(service, "in", later)
    group.posted += later
    again = alive[0]
    again.end()
    again.start().wait_until_it_has(state="live", cores=1)
    assert group.results() == group.undisturbed()
