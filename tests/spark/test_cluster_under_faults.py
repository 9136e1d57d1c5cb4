"""A group on a standalone cluster, under load and under faults: one master, two workers, three instances.

Two runs, one after the other, in the same service and under the same load. In the control run faults befall instances
of another service on the same cluster; in the other one they befall two of the group's three: seeded kills of executors
and drivers, slots and drivers stopped (SIGSTOP) past the lease and continued, instances drained and added, the master
restarted. What comes out is what comes out of one undisturbed run.

By hand, with MILLRACE_CLUSTER_TEST_S: how long both runs take together, in seconds (90, 600); each fault happens at
least once in either. `-s` shows how long tasks that did not move kept a record waiting in both runs, and how much tasks
that moved had to replay. The ratio of both runs (p99, at most 1.5) is to be read off a quiet machine; here pauses are
bounded loosely.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.beats import Beats
from benchmarks.running import PATIENCE_S, Running, wait_until
from tests.attached import Attached, Standalone, are_gone
from tests.driving import ONCE_AN_HOUR, caught_up, contents, deduplicate, expected, make_stream, post, some_records

BY_HAND = "minutes on a machine of its own: set MILLRACE_CLUSTER_TEST_S"
pytestmark = [pytest.mark.spark, pytest.mark.skipif("MILLRACE_CLUSTER_TEST_S" not in os.environ, reason=BY_HAND)]

DURATION_S = float(os.environ.get("MILLRACE_CLUSTER_TEST_S", "90"))
PARTITIONS = 6
LOG = 6_000  # records before the first run: some 500 a task are in the changelogs
LEASE_MS = 5_000
JOB = {"standby_replicas": 1, "acceptable_recovery_lag": 200}
START_MS = 1_700_010_000_000  # of the load: behind the log


class AttachedGroup:
    """Instances of one service on the cluster, with one executor and one slot each, and their job."""

    def __init__(self, running: Running, cluster: Standalone, folder: Path, names: Sequence[str]) -> None:
        self.running, self.cluster, self.names = running, cluster, names
        # Nobody starts instances again that end while a master takes its time to start.
        where: dict[str, Any] = {"master": cluster.master, "secret": cluster.secret, "spark_patience_ms": 150_000}
        self.instances: dict[str, Attached] = {}
        self.ended: dict[str, str] = {}  # name → the incarnation before the present one
        for name in names:
            (folder / name).mkdir()
            self.instances[name] = Attached(running, folder / name, "--cores", "1", name=name, **where)

    def start(self) -> None:
        """All of them, and a job; returns when each has its share, and all standbys are there."""
        make_stream(self.running, "in", PARTITIONS)
        for instance in self.instances.values():
            instance.start()
        for instance in self.instances.values():
            instance.wait_until_it_has(state="live", cores=1)
        self.running.call("POST", "/v1/jobs", json=deduplicate("job", "in", "out", **JOB))
        post(self.running, "in", some_records(LOG))
        caught_up(self.running, "job")
        self.settle()

    def settle(self) -> None:
        """Wait until the group is whole."""
        wait_until(self._is_whole, PATIENCE_S, f"all of {self.names} with their tasks and standbys")

    def has_slot(self, name: str) -> bool:
        """Whether an instance is in the group, the process that was started last."""
        shown = self._shown(name)
        is_live = shown["state"] == "live" and shown["incarnation"] != self.ended.get(name)
        return is_live and self._slot_of(name) is not None and bool(self.instances[name].slots())

    def tasks(self) -> dict[int, tuple[str, int]]:
        """Partition → the slot that owns its task, and the epoch."""
        found = self.running.call("GET", "/v1/jobs/job/tasks")["items"]
        return {task["positions"][0]["partition"]: (task["slot"], task["epoch"]) for task in found}

    def end(self) -> None:
        """All of them, and their executors."""
        executors = [each for instance in self.instances.values() for each in instance.executors()]
        for instance in self.instances.values():
            instance.end()
        wait_until(lambda: are_gone(executors), PATIENCE_S, "the end of executors")

    # ------------------------------------------------------------ faults

    def kill_executor(self, name: str) -> None:
        for executor in self.instances[name].executors():
            executor.kill()

    def kill_driver(self, name: str) -> None:
        self._note_end(name)
        self.instances[name].end()
        self.instances[name].start()

    def stop_slot(self, name: str) -> None:
        """Until others have its tasks; then it goes on, unless Spark has killed it for its silence."""
        slot_id = self._slot_of(name)
        [slot] = self.instances[name].slots()[-1:]
        slot.suspend()
        wait_until(lambda: self._slot_of(name) != slot_id, PATIENCE_S, "the eviction of a slot")
        with suppress(psutil.NoSuchProcess):
            slot.resume()

    def stop_driver(self, name: str) -> None:
        """Until it has lost its lease, and its slots theirs."""
        driver, slot_id = psutil.Process(self.instances[name].process.pid), self._slot_of(name)
        driver.suspend()
        wait_until(lambda: self._slot_of(name) != slot_id, PATIENCE_S, "the eviction of an instance")
        driver.resume()

    def drain(self, name: str) -> None:
        self._note_end(name)
        assert self.instances[name].stop() == 0
        self.instances[name].start()

    def restart_master(self, _: str) -> None:
        log = self.cluster.recovery.parent / "master.log"
        before = log.read_text().count("Recovery complete")
        self.cluster.restart_master(forgets=False)
        wait_until(lambda: log.read_text().count("Recovery complete") > before, PATIENCE_S, "the end of the recovery")

    # ------------------------------------------------------------ the group

    def _note_end(self, name: str) -> None:
        self.ended[name] = self._shown(name)["incarnation"]

    def _shown(self, name: str) -> dict[str, Any]:
        found = self.running.call("GET", "/v1/instances")["items"]
        return next(instance for instance in found if instance["name"] == name)

    def _slot_of(self, name: str) -> str | None:
        members = self.running.call("GET", "/v1/groups/job")["members"]
        return next((member["slot"] for member in members if member["instance"] == name), None)

    def _is_whole(self) -> bool:
        group = self.running.call("GET", "/v1/groups/job")
        loads = {member["instance"]: len(member["tasks"]) for member in group["members"]}
        is_even = loads == dict.fromkeys(self.names, PARTITIONS // len(self.names))
        return is_even and not (group["moving"] or group["probing"] or group["missing_standbys"])


FAULTS: list[Callable[[AttachedGroup, str], None]] = [
    AttachedGroup.kill_executor,
    AttachedGroup.kill_driver,
    AttachedGroup.stop_slot,
    AttachedGroup.stop_driver,
    AttachedGroup.drain,
    AttachedGroup.restart_master,
]


def disturb(group: AttachedGroup, names: Sequence[str], seed: int, duration_s: float) -> Counter[str]:
    """All faults in an order of their own, again and again until the time is up; how often each."""
    rng, until_s, happened = random.Random(seed), time.monotonic() + duration_s, Counter[str]()
    while not happened or time.monotonic() < until_s:
        for fault in rng.sample(FAULTS, len(FAULTS)):
            name = rng.choice(names)
            wait_until(lambda name=name: group.has_slot(name), PATIENCE_S, f"{name} to be in its group")
            fault(group, name)
            happened[fault.__name__] += 1
    group.settle()
    return happened


@contextmanager
def serving(folder: Path, cluster: Standalone, names: Sequence[str]) -> Iterator[AttachedGroup]:
    """A service, and its instances at work."""
    folder.mkdir()
    with ExitStack() as opened:
        environment = {"MILLRACE_LEASE_MS": str(LEASE_MS)}
        running = opened.enter_context(Running(folder / "data", instances=0, environment=environment))
        group = AttachedGroup(running, cluster, folder, names)
        opened.callback(group.end)
        group.start()
        yield group


@pytest.mark.timeout(900 + 2 * DURATION_S)
def test_a_group_whose_members_come_and_go_gives_what_an_undisturbed_one_gives(
    cluster: Standalone, tmp_path: Path
) -> None:
    with serving(tmp_path / "group", cluster, ["one", "two", "three"]) as group:
        beats = Beats(group.running, "in", "out", partitions=PARTITIONS, start_ms=START_MS, every_s=0.1, at_once=10)
        with beats:
            with serving(tmp_path / "elsewhere", cluster, ["other", "another"]) as elsewhere:
                control = pauses_s(group, beats, lambda: disturb(elsewhere, ["other", "another"], 1, DURATION_S / 2))
            since_s = time.time()
            paused = pauses_s(group, beats, lambda: disturb(group, ["two", "three"], 1, DURATION_S / 2))
        moves = replayed(cluster, since_s)
        caught_up(group.running, "job")
        right = expected([*some_records(LOG), *beats.records], PARTITIONS, **ONCE_AN_HOUR)
        assert contents(group.running, "out", PARTITIONS) == right
    say(f"a record waited, of tasks that stayed: control {spread(control)}; disturbed {spread(paused)}")
    say(f"p99 {p99(paused) / p99(control):.2f} × that of the control run")
    warm = [each for each in moves if each <= JOB["acceptable_recovery_lag"]]
    cold = [each for each in moves if each > JOB["acceptable_recovery_lag"]]
    say(f"changes to replay: {len(warm)} warm moves {spread(warm)}; {len(cold)} cold moves {spread(cold)}")
    assert warm
    assert p99(paused) < LEASE_MS / 1000


def pauses_s(group: AttachedGroup, beats: Beats, run: Callable[[], Counter[str]]) -> list[float]:
    """How long each record waited meanwhile, of tasks that did not move."""
    before, since_s = group.tasks(), time.time()
    happened = run()
    stayed = [partition for partition, owner in group.tasks().items() if owner == before[partition]]
    say(f"{dict(happened)}; {len(stayed)} of {PARTITIONS} tasks stayed")
    assert stayed
    return [wait for partition in stayed for wait in beats.waits_s(partition, since_s, time.time())]


def replayed(cluster: Standalone, since_s: float) -> list[int]:
    """The changes that slots had to replay of each task that they opened since then, as executors' logs have it."""
    logs = cluster.recovery.parent.glob("work-*/*/*/stderr")
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    opened: list[dict[str, Any]] = [json.loads(line) for line in lines if '"task_opened"' in line]
    return [at["changes_to_replay"] for at in opened if datetime.fromisoformat(at["timestamp"]).timestamp() >= since_s]


def p99(waits_s: Sequence[float]) -> float:
    return statistics.quantiles(waits_s, n=100, method="inclusive")[98]


def spread(found: Sequence[float]) -> str:
    """Median, 99th percentile, most."""
    if len(found) < 2:
        return str(list(found))
    return f"p50 {statistics.median(found):.3f}, p99 {p99(found):.3f}, max {max(found):.3f}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
