"""A group on a standalone cluster, and all that may befall it: instances of one service, with one slot each.

Knows how to bring a fault about, when the group is whole again, and that each task goes on soon. Refuses to know what
is measured meanwhile.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.beats import Beats
from benchmarks.running import Running, wait_until
from tests.attached import Attached, Standalone, are_gone
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

PARTITIONS: Final = 6
LOG: Final = 6_000  # records before anything happens: some 500 a task are in the changelogs
LEASE_MS: Final = 5_000
START_MS: Final = 1_700_010_000_000  # of a load: behind the log
SPEC: Final = {"standby_replicas": 1, "acceptable_recovery_lag": 200}
AGAIN_S: Final = 60.0  # after a fault all tasks commit again within it
LOOK_EVERY_S: Final = 0.25  # at the group: each look takes a service that is busy some of its time


class AttachedGroup:
    """Instances of one service on the cluster, with one executor and one slot each, and their job."""

    def __init__(self, running: Running, cluster: Standalone, folder: Path, names: Sequence[str]) -> None:
        self.running, self.cluster, self.names = running, cluster, names
        self.instances = {name: self.attach(folder, name) for name in names}
        self.ended: dict[str, str] = {}  # name → the incarnation before the present one
        self.posted: list[Record] = []  # to the job's source, in order

    def attach(self, folder: Path, name: str) -> Attached:
        """One more instance, which is not started yet."""
        (folder / name).mkdir()
        where = {"master": self.cluster.master, "secret": self.cluster.secret}
        # Nobody starts instances again that end while a master takes its time to start.
        return Attached(self.running, folder / name, "--cores", "1", name=name, spark_patience_ms=150_000, **where)

    def start(self) -> None:
        """All instances; returns when each has its core."""
        for instance in self.instances.values():
            instance.start()
        for instance in self.instances.values():
            instance.wait_until_it_has(state="live", cores=1)

    def start_job(self) -> None:
        """Returns when each instance has its share of a job that has run, and all standbys are there."""
        make_stream(self.running, "in", PARTITIONS)
        self.running.call("POST", "/v1/jobs", json=deduplicate("job", "in", "out", **SPEC))
        self.posted = some_records(LOG)
        post(self.running, "in", self.posted)
        caught_up(self.running, "job")
        self.settle()

    def results(self) -> list[list[tuple[Any, ...]]]:
        """What came out, a list a partition, once that is all."""
        caught_up(self.running, "job")
        return contents(self.running, "out", PARTITIONS)

    def undisturbed(self) -> list[list[tuple[Any, ...]]]:
        """What an undisturbed run of one operator gives."""
        return expected(self.posted, PARTITIONS, **ONCE_AN_HOUR)

    def settle(self) -> None:
        """Wait until the group is whole, with the processes that were started last: the coordinator may not have missed
        one yet that was just killed.
        """
        for name in self.names:
            self.wait_for_slot(name)
        wait_until(self._is_whole, f"all of {self.names} as they were", every_s=LOOK_EVERY_S)

    def wait_for_slot(self, name: str) -> None:
        """Until an instance is in the group, the process that was started last."""
        is_there = partial(self._has_slot, name)
        wait_until(is_there, f"{name} to be in its group", every_s=LOOK_EVERY_S)

    def slot_of(self, name: str) -> str | None:
        """The slot of an instance."""
        members = self.running.call("GET", "/v1/groups/job")["members"]
        return next((member["slot"] for member in members if member["instance"] == name), None)

    def _has_slot(self, name: str) -> bool:
        shown = self._shown(name)
        is_live = shown["state"] == "live" and shown["incarnation"] != self.ended.get(name)
        return is_live and self.slot_of(name) is not None and bool(self.instances[name].slots())

    def tasks(self) -> dict[int, tuple[str, int]]:
        """Partition → the slot that owns its task, and the epoch."""
        found = self.running.call("GET", "/v1/jobs/job/tasks")["items"]
        return {task["positions"][0]["partition"]: (task["slot"], task["epoch"]) for task in found}

    def reasons(self) -> list[str]:
        """Why tasks were assigned, the latest first."""
        return [each["reason"] for each in self.running.call("GET", "/v1/groups/job/rebalances")["items"]]

    def end(self) -> None:
        """All of them, and their executors."""
        executors = [each for instance in self.instances.values() for each in instance.executors()]
        for instance in self.instances.values():
            instance.end()
        wait_until(lambda: are_gone(executors), "the end of executors")

    # ------------------------------------------------------------ faults

    def kill_executor(self, name: str) -> None:
        """As the kernel does where memory is short."""
        for executor in self.instances[name].executors():
            executor.kill()

    def kill_worker(self, _: str) -> None:
        """The one that the first instance does not run on, with its executors; then another one takes its place."""
        for name in self.names:
            self.wait_for_slot(name)
        spared = {executor.pid for executor in self.instances[self.names[0]].executors()}
        at = range(len(self.cluster.workers))
        [worker] = [n for n in at if spared.isdisjoint(each.pid for each in self.cluster.executors_of(n))]
        assert self.cluster.executors_of(worker)
        self.cluster.kill_worker(worker)
        self.cluster.start_worker(worker)

    def kill_driver(self, name: str) -> None:
        self._note_end(name)
        self.instances[name].end()
        self.instances[name].start()

    def stop_slot(self, name: str) -> None:
        """Until others have its tasks; then it goes on, unless Spark has killed it for its silence."""
        slot_id = self.slot_of(name)
        [slot] = self.instances[name].slots()[-1:]
        slot.suspend()
        self._wait_for_eviction(name, slot_id)
        with suppress(psutil.NoSuchProcess):
            slot.resume()

    def stop_driver(self, name: str) -> None:
        """Until it has lost its lease, and its slots theirs."""
        driver, slot_id = psutil.Process(self.instances[name].process.pid), self.slot_of(name)
        driver.suspend()
        self._wait_for_eviction(name, slot_id)
        driver.resume()

    def drain(self, name: str) -> None:
        """It ends orderly, and starts again."""
        self._note_end(name)
        left = [*self.instances[name].executors(), *self.instances[name].slots()]
        assert self.instances[name].stop() == 0
        wait_until(lambda: are_gone(left), "the end of executors and slots")
        self.instances[name].start()

    def restart_master(self, _: str) -> None:
        """It remembers: nobody notices."""
        self.settle()
        before, recovered = self.tasks(), self.cluster.recoveries()
        self.cluster.restart_master(forgets=False)
        self.cluster.wait_for_recovery(recovered + 1)
        assert self.tasks() == before
        assert all(instance.process.poll() is None for instance in self.instances.values())

    # ------------------------------------------------------------ the group

    def _wait_for_eviction(self, name: str, slot_id: str | None) -> None:
        is_evicted = lambda: self.slot_of(name) != slot_id  # noqa: E731
        wait_until(is_evicted, f"the eviction of {name}", every_s=LOOK_EVERY_S)

    def _note_end(self, name: str) -> None:
        self.ended[name] = self._shown(name)["incarnation"]

    def _shown(self, name: str) -> dict[str, Any]:
        found = self.running.call("GET", "/v1/instances")["items"]
        return next(instance for instance in found if instance["name"] == name)

    def _is_whole(self) -> bool:
        group = self.running.call("GET", "/v1/groups/job")
        loads = {member["instance"]: len(member["tasks"]) for member in group["members"]}
        is_even = loads == dict.fromkeys(self.names, PARTITIONS // len(self.names))
        return is_even and not (group["moving"] or group["probing"] or group["missing_standbys"])


FAULTS: Final[list[Callable[[AttachedGroup, str], None]]] = [
    AttachedGroup.kill_executor,
    AttachedGroup.kill_worker,
    AttachedGroup.kill_driver,
    AttachedGroup.stop_slot,
    AttachedGroup.stop_driver,
    AttachedGroup.drain,
    AttachedGroup.restart_master,
]


class Watch:
    """What a load through a group noticed of faults, in it or elsewhere."""

    def __init__(self, group: AttachedGroup, beats: Beats) -> None:
        self.group, self._beats = group, beats
        self._stayed: list[tuple[dict[int, float], float]] = []  # a fault: partition → since when, and until when

    @contextmanager
    def during(self, fault: str) -> Iterator[None]:
        """A fault and what follows, until each task has committed a beat that was posted since it began."""
        before, since_s = self.group.tasks(), time.time()
        yield
        of = {"posted_after_s": since_s, "read_after_s": since_s}
        are_there = lambda: None not in [self._beats.first_result_s(each, **of) for each in range(PARTITIONS)]  # noqa: E731
        wait_until(are_there, f"a commit of each task after {fault}", timeout_s=AGAIN_S)
        stayed = {each: since_s for each, owner in self.group.tasks().items() if owner == before[each]}
        self._stayed.append((stayed, time.time()))

    def stays(self) -> list[int]:
        """How many tasks did not move during each of the faults."""
        return [len(stayed) for stayed, _ in self._stayed]

    def waits_s(self) -> list[float]:
        """How long records waited meanwhile, of tasks that did not move."""
        stays = [(each, since_s, until_s) for stayed, until_s in self._stayed for each, since_s in stayed.items()]
        return [wait_s for stay in stays for wait_s in self._beats.waits_s(*stay)]


def disturb(
    group: AttachedGroup, names: Sequence[str], watch: Watch, *, seed: int, duration_s: float = 0
) -> Counter[str]:
    """All faults in an order of their own, again and again until the time is up, at least once; the instances in turns.
    Returns how often each happened.
    """
    rng, until_s, happened, victims = random.Random(seed), time.monotonic() + duration_s, Counter[str](), cycle(names)
    while not happened or time.monotonic() < until_s:
        for fault in rng.sample(FAULTS, len(FAULTS)):
            name = next(victims)
            group.wait_for_slot(name)
            with watch.during(fault.__name__):
                fault(group, name)
            happened[fault.__name__] += 1
    group.settle()
    return happened


def replayed(cluster: Standalone, since_s: float) -> list[int]:
    """The changes that slots had to replay of each task that they opened since then, as executors' logs have it."""
    logs = cluster.log.parent.glob("work-*/*/*/stderr")
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    opened: list[dict[str, Any]] = [json.loads(line) for line in lines if '"task_opened"' in line]
    return [at["changes_to_replay"] for at in opened if datetime.fromisoformat(at["timestamp"]).timestamp() >= since_s]
