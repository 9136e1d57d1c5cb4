"""Fail-over: how long tasks are without commits when the executor or the driver that ran them is killed.

`python -m benchmarks.failover [--kills N] [--cold-kills M] [--keys K] [--seed S]`: a standalone cluster, a service with
the default lease and two instances on it, each on a node of its own with one executor, and four tasks with K keys each.
N times an instance, in turns, or its executor is killed (SIGKILL), and the other takes its tasks over: first of a job
with a warm standby a task, where either node has a copy of each task at any time; so who was killed comes back on its
own disk. Then M times of a job without, where who was killed is replaced by a new instance on an empty disk: so nothing
lies with the survivor but what it runs.

Two figures of each kill, of the task that is last: from the kill to its first commit elsewhere, as a reader sees it,
and from the eviction to that commit. Meanwhile the service is asked for nothing but what beats need, and twice a second
whether it has noticed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.beats import Beats
from benchmarks.events import arrow_stream
from benchmarks.report import Measurement
from benchmarks.running import ARROW, Running, wait_until
from tests.attached import Attached, Standalone

KILLS: Final = 10
COLD_KILLS: Final = 5
KEYS: Final = 1_000_000  # a task
PARTITIONS: Final = 4
EVERY_S: Final = 0.05  # between beats: so exact is a figure
SOURCE: Final = "keys"
SETTLE_S: Final = 600.0  # until all is even again, standbys of all keys too
START_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
BEATS_BEFORE: Final = 20  # a kill
LOOK_EVERY_S: Final = 0.5  # how a group stands: each look takes a service on two cores some of its time
POST_RECORDS: Final = 200_000
ROUNDS: Final = 20  # of assignment, behind a kill
LOST: Final = ("an executor was lost", "an instance was lost", "a slot was lost")
OPERATOR: Final = {
    "op": "deduplicate_by_key_value",
    "name": "once",
    "id": "value->>'id'",
    "interval_ms": 720 * HOUR_MS,
}


@dataclass(frozen=True, slots=True)
class FailOver:
    """One kill; seconds until the last of the victim's tasks has committed elsewhere."""

    victim: str
    standbys: int
    tasks: int
    after_kill_s: float
    after_eviction_s: float


def main() -> None:
    """Measure, and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=KILLS, help=f"with standbys ({KILLS})")
    arguments.add_argument("--cold-kills", type=int, default=COLD_KILLS, help=f"without ({COLD_KILLS})")
    arguments.add_argument("--keys", type=int, default=KEYS, help=f"of a task ({KEYS:,})")
    arguments.add_argument("--seed", type=int, default=1, help="of who is killed (1)")
    given = arguments.parse_args()
    for row in rows(given.kills, given.cold_kills, given.keys, given.seed):
        bar = f"bar: {row.bar}; " if row.bar else ""
        print(f"{row.measure}: {row.figure:.2f} {row.unit} ({bar}{row.conditions})")


def rows(kills: int = KILLS, cold_kills: int = COLD_KILLS, keys: int = KEYS, seed: int = 1) -> Iterator[Measurement]:
    """Measure, print each kill; the figures."""
    found = []
    for each in failovers(kills, cold_kills, keys, seed):
        found.append(each)
        print(
            f"{each.victim} of {each.tasks} tasks, standbys: {each.standbys}; first commit of the last "
            f"{each.after_kill_s:.2f} s after the kill, {each.after_eviction_s:.2f} s after the eviction",
            file=sys.stderr,
        )
    warm, cold = ([each for each in found if each.standbys == standbys] for standbys in (1, 0))
    conditions = f"kills of an executor or a driver, {keys:,} keys a task, {PARTITIONS} tasks"
    measure = "SIGKILL to the first commit of each task elsewhere, worst"
    for name, of, bar in (("a warm standby", warm, "≤ 4"), ("no standby", cold, "")):
        waits = [each.after_kill_s for each in of]
        figures = f"{len(of)} {conditions}; {_spread(of)}; load of the machine {os.getloadavg()[0]:.1f}"
        yield Measurement(f"{measure}, {name}", max(waits), "s", figures, bar=bar)
    medians = [statistics.median(each.after_eviction_s for each in of) for of in (cold, warm)]
    shown = f"{conditions}; medians of {len(cold)}, {medians[0]:.2f} s, and of {len(warm)}, {medians[1]:.2f} s"
    measure = "eviction to the first commit of each task, without a standby to with one"
    yield Measurement(measure, medians[0] / medians[1], "×", shown, bar="≥ 5")


def _spread(found: Sequence[FailOver]) -> str:
    """Medians by victim."""
    by_victim = {each.victim: [at.after_kill_s for at in found if at.victim == each.victim] for each in found}
    return ", ".join(f"median of {len(at)} × {name} {statistics.median(at):.2f} s" for name, at in by_victim.items())


# ---------------------------------------------------------------- kills


def failovers(kills: int, cold_kills: int, keys: int, seed: int) -> Iterator[FailOver]:
    """So many kills of a job with one standby a task, then so many of one without, each as soon as it is measured."""
    rng = Random(seed)
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millrace-failover-")))
        (scratch / "spark").mkdir()
        cluster = opened.enter_context(Standalone(scratch / "spark"))
        running = opened.enter_context(Running(scratch / "data", instances=0))
        running.call("POST", "/v1/streams", json={"name": SOURCE, "partitions": PARTITIONS})
        _fill(running, keys * PARTITIONS)
        fleet = Fleet(running, cluster, scratch)
        opened.callback(fleet.end)
        yield from _of_a_job(fleet, 1, kills, rng)
        yield from _of_a_job(fleet, 0, cold_kills, rng)


def _fill(running: Running, records: int) -> None:
    for start in range(0, records, POST_RECORDS):
        numbers = pa.array(range(start, min(records, start + POST_RECORDS)), pa.int64())
        texts = numbers.cast(pa.utf8())
        table = pa.table(
            {
                "key": pc.binary_join_element_wise("key-", texts, ""),
                "value": pc.binary_join_element_wise('{"id":"', texts, '"}', ""),
                "timestamp": pc.add(pc.divide(numbers, 10), START_MS),
            }
        )
        path = f"/v1/streams/{SOURCE}/records"
        running.call("POST", path, content=arrow_stream(table), headers={"Content-Type": ARROW})


@dataclass
class Fleet:
    """Two instances; the first is the next to be killed."""

    running: Running
    cluster: Standalone
    folder: Path
    instances: list[Attached] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    hours: Iterator[int] = field(default_factory=lambda: count(24))  # of event time: beats come behind all before

    def fill_up(self) -> None:
        """Start who is missing, each on an empty disk, and wait until they are members."""
        while len(self.instances) < 2:
            name = f"instance-{next(self.numbers)}"
            folder = self.folder / name
            folder.mkdir()
            where = {"master": self.cluster.master, "secret": self.cluster.secret}
            started = Attached(self.running, folder, "--cores", "1", name=name, **where).start()
            self.instances.append(started)
        for instance in self.instances:
            instance.wait_until_it_has(state="live", cores=1)

    def come_back(self) -> None:
        """Who was killed, or whose executor was, is there again on its own disk, and the last to be killed."""
        killed = self.instances.pop(0)
        if killed.process.poll() is not None:
            killed.end()
            killed.start()
        self.instances.append(killed)

    def retire(self) -> None:
        """What is left of the first one ends."""
        self.instances.pop(0).end()

    def end(self) -> None:
        """All of them."""
        for instance in self.instances:
            instance.end()


def _of_a_job(fleet: Fleet, standbys: int, kills: int, rng: Random) -> Iterator[FailOver]:
    running, name = fleet.running, f"standbys-{standbys}"
    fleet.fill_up()
    job = {"name": name, "source": SOURCE, "operators": [OPERATOR], "sink": f"{name}-out", "standby_replicas": standbys}
    running.call("POST", "/v1/jobs", json=job | {"acceptable_recovery_lag": 1_000})
    running.wait_until_caught_up(name)
    for _ in range(kills):
        fleet.fill_up()
        is_settled = lambda: _is_settled(fleet, name, standbys)  # noqa: E731
        wait_until(is_settled, f"{name} to be even, with standbys", timeout_s=SETTLE_S, every_s=LOOK_EVERY_S)
        start_ms = START_MS + next(fleet.hours) * HOUR_MS
        with Beats(running, SOURCE, f"{name}-out", partitions=PARTITIONS, start_ms=start_ms, every_s=EVERY_S) as beats:
            beats.wait_for_results(BEATS_BEFORE)
            yield _failover(fleet, name, beats, rng.choice(["executor", "driver"]), standbys)
        (fleet.come_back if standbys else fleet.retire)()
    running.call("POST", f"/v1/jobs/{name}:stop", params={"wait": "stopped"})
    running.call("DELETE", f"/v1/jobs/{name}")


def _is_settled(fleet: Fleet, job: str, standbys: int) -> bool:
    """Both instances have their half, nothing is on its way, and standbys are where they are wanted."""
    group = fleet.running.call("GET", f"/v1/groups/{job}")
    loads = {member["instance"]: len(member["tasks"]) for member in group["members"]}
    is_even = loads == {instance.name: PARTITIONS // 2 for instance in fleet.instances}
    is_still = not group["moving"] and not group["probing"] and not group["missing_standbys"]
    kept = sum(map(len, group["standby"].values()))
    return is_even and is_still and kept == standbys * PARTITIONS


def _failover(fleet: Fleet, job: str, beats: Beats, victim: str, standbys: int) -> FailOver:
    instance, running = fleet.instances[0], fleet.running
    partitions = _partitions_of(running, job, instance.name)
    driver = psutil.Process(instance.process.pid)
    processes = instance.executors() if victim == "executor" else [driver]
    killed_s = time.time()
    for process in processes:
        process.kill()
    is_evicted = lambda: _evicted_s(running, job, killed_s) is not None  # noqa: E731
    wait_until(is_evicted, "the eviction", every_s=LOOK_EVERY_S)
    evicted_s = _evicted_s(running, job, killed_s) or 0.0

    def first_commits() -> list[float | None]:
        of = {"posted_after_s": killed_s, "read_after_s": evicted_s}
        return [beats.first_result_s(partition, **of) for partition in partitions]

    wait_until(lambda: None not in first_commits(), f"a commit of each of {partitions}")
    last_s = max(at for at in first_commits() if at is not None)
    return FailOver(victim, standbys, len(partitions), last_s - killed_s, last_s - evicted_s)


def _partitions_of(running: Running, job: str, instance: str) -> list[int]:
    members = running.call("GET", f"/v1/groups/{job}")["members"]
    owned = {task for member in members if member["instance"] == instance for task in member["tasks"]}
    tasks = running.call("GET", f"/v1/jobs/{job}/tasks")["items"]
    return [each["positions"][0]["partition"] for each in tasks if each["task"] in owned]


def _evicted_s(running: Running, job: str, since_s: float) -> float | None:
    """When somebody was lost, first, since then; a moment of the catalog, to the millisecond."""
    latest = {"limit": ROUNDS}
    rounds: list[dict[str, Any]] = running.call("GET", f"/v1/groups/{job}/rebalances", params=latest)["items"]
    moments = [datetime.fromisoformat(each["at"]).timestamp() for each in rounds if each["reason"] in LOST]
    return min((at for at in moments if at >= since_s - 0.001), default=None)


if __name__ == "__main__":
    main()
