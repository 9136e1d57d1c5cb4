"""KIP-429's scenarios, live: a service over HTTP, and instances whose slots are processes (tests/members.py).

While a group changes, a record for each task is posted again and again (`LiveGroup.beat`). A task that stays keeps its
slot and its epoch, and commits each of them in every round; one that moves changes hands once, after the round that
decided it, to a node that has caught up; and what comes out is what comes out of one undisturbed run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import Any

import pytest
from sqlalchemy import select

from benchmarks.running import PATIENCE_S, wait_until
from service.catalog.engine import Catalog
from service.catalog.tables import StoreRow
from service.storage.replica import replica_path
from tests import naive
from tests.chaos.conftest import Breakable, started
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
from tests.forkserver import ForkServer
from tests.members import Members

pytestmark = pytest.mark.services

PARTITIONS = 6
LOG = 6_000  # records, of which some 3,000 are in the changelogs: 500 a task
ACCEPTABLE = 60  # records that a copy may be behind: more than beats come to while one moves
SCALE_DOWN_MS = 10_000
ENVIRONMENT = {
    "MILLRACE_LEASE_MS": "30000",  # nobody is lost here
    "MILLRACE_INITIAL_REBALANCE_DELAY_MS": "10000",  # it is over when the last one has joined
    "MILLRACE_SCALE_DOWN_TIMEOUT_MS": str(SCALE_DOWN_MS),
}
JOBS = count()
Task = dict[str, Any]


class LiveGroup:
    """A job over PARTITIONS tasks, run by members with a slot each; what it has done since `begin`."""

    def __init__(self, members: Members) -> None:
        self.members, self.running = members, members.running
        self.number = next(JOBS)
        self.job, self.source, self.sink = (f"{name}-{self.number}" for name in ("job", "in", "out"))
        self.keys = [self._key_of(partition) for partition in range(PARTITIONS)]
        self.records: list[Record] = []
        self.before: dict[str, Task] = {}
        self.opened: Counter[str] = Counter()  # by member: how often, until then
        self.beats = 0

    def begin(self, *names: str, loads: list[int]) -> None:
        """These members are there when the job comes; then it gets its log. Their joins are one round."""
        make_stream(self.running, self.source, PARTITIONS)
        for name in names:
            self.members.start(name)
        wait_until(lambda: self._live() == set(names), f"{names} to be live")
        spec = {"parallelism": 1, "acceptable_recovery_lag": ACCEPTABLE}
        self.running.call("POST", "/v1/jobs", json=deduplicate(self.job, self.source, self.sink, **spec))
        wait_until(lambda: self.loads() == loads, f"{loads} tasks")
        self._post(some_records(LOG))
        caught_up(self.running, self.job)
        assert [each["reason"] for each in self.rounds()] == ["a slot joined"]
        self.before = self.tasks()
        self.opened = Counter({name: len(self.members.opened(name)) for name in names})

    def settle(self, loads: list[int]) -> None:
        """Beats, until members have so many tasks each, and nothing is on its way."""
        self.beat_until(lambda: self.loads() == loads and not self._is_moving())

    def beat_until(self, is_so: Callable[[], bool], *, pause_s: float = 0, but: Collection[str] = ()) -> None:
        """Beats, at least one, with a pause behind each, until it is so. Raises TimeoutError."""
        until = time.monotonic() + PATIENCE_S
        self.beat(but=but)
        time.sleep(pause_s)
        while not is_so():
            if time.monotonic() > until:
                raise TimeoutError(f"{self.loads()}; {self.rounds()}")
            self.beat(but=but)
            time.sleep(pause_s)

    def beat(self, *, but: Collection[str] = ()) -> None:
        """A record for each task: those that do not change hands meanwhile commit it; not waited for are these."""
        before, number = self.tasks(), LOG + self.beats
        at = 1_700_000_000_000 + number * 100
        self._post([{"key": key, "value": {"id": f"beat {number}"}, "timestamp": at} for key in self.keys])

        def have_committed() -> bool:
            now = self.tasks()
            stayed = [name for name in now if name not in but and now[name]["epoch"] == before[name]["epoch"]]
            return all(now[name]["position"] > before[name]["end"] for name in stayed)

        wait_until(have_committed, f"commits: {before}")
        self.beats += 1

    def check(self) -> dict[str, Task]:
        """What came out is right, no task that stayed has another epoch, and nobody gave a task up in the round that
        decided to move it. Returns the tasks that moved, as they were before.
        """
        caught_up(self.running, self.job)
        right = expected(self.records, PARTITIONS, **ONCE_AN_HOUR)
        assert contents(self.running, self.sink, PARTITIONS) == right
        now = self.tasks()
        moved = {name: task for name, task in self.before.items() if task["slot"] != now[name]["slot"]}
        assert all(now[name]["epoch"] == task["epoch"] for name, task in self.before.items() if name not in moved)
        for each in self.rounds():
            if any(move["from"] for move in each["moved"].values()):
                assert each["took_ms"], f"{each} took none"
        return moved

    def check_warm(self, *, moved: int) -> None:
        """So many tasks moved, each once, and none restored its log."""
        now = self.tasks()
        for name, task in self.check().items():
            assert now[name]["epoch"] == task["epoch"] + 1
            moved -= 1
        assert moved == 0
        assert max(self.replayed()) <= ACCEPTABLE

    def replayed(self) -> list[int]:
        """The changes that tasks had to replay when their new owners opened them."""
        opened = [each for name in self.members.names for each in self.members.opened(name)[self.opened[name] :]]
        return [each["changes_to_replay"] for each in opened]

    def reasons(self) -> Counter[str]:
        """Of the rounds since `begin`."""
        return Counter(each["reason"] for each in self.rounds()[:-1])

    def rounds(self) -> list[dict[str, Any]]:
        """Latest first."""
        found: list[dict[str, Any]] = self.running.call("GET", f"/v1/groups/{self.job}/rebalances")["items"]
        return found

    def tasks(self) -> dict[str, Task]:
        """By name: slot, epoch, partition, position, end."""
        found = self.running.call("GET", f"/v1/jobs/{self.job}/tasks")["items"]
        return {each["task"]: {**each["positions"][0], "slot": each["slot"], "epoch": each["epoch"]} for each in found}

    def owned_by(self, name: str) -> set[str]:
        """The tasks of a member."""
        members = self.running.call("GET", f"/v1/groups/{self.job}")["members"]
        return {task for member in members if member["instance"] == name for task in member["tasks"]}

    def warmed_up_by(self, name: str) -> set[str]:
        """The tasks that a member is to catch up with."""
        group = self.running.call("GET", f"/v1/groups/{self.job}")
        nodes = {member["node"] for member in group["members"] if member["instance"] == name}
        return {task for task, there in group["warm_up"].items() if nodes & set(there)}

    def loads(self) -> list[int]:
        """How many tasks each member has, the least first."""
        members = self.running.call("GET", f"/v1/groups/{self.job}")["members"]
        return sorted(len(member["tasks"]) for member in members)

    def store_id(self) -> str:
        """Of the one store."""
        query = select(StoreRow.id).where(StoreRow.name == f"{self.job}-once")
        with closing(Catalog(f"sqlite:///{self.running.data_dir}/catalog.db")) as catalog:
            return str(catalog.read(lambda s: s.scalars(query).one()))

    def _is_moving(self) -> bool:
        group = self.running.call("GET", f"/v1/groups/{self.job}")
        return bool(group["moving"]) or group["probing"] or None in group["assignment"].values()

    def _live(self) -> set[str]:
        found = self.running.call("GET", "/v1/instances")["items"]
        return {each["name"] for each in found if each["state"] == "live"}

    def _post(self, records: list[Record]) -> None:
        post(self.running, self.source, records)
        self.records += records

    @staticmethod
    def _key_of(partition: int) -> str:
        return next(key for i in count() if naive.partition_of(key := f"beat-{i}", PARTITIONS) == partition)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Breakable]:
    with started(Breakable(tmp_path_factory.mktemp("groups"), forks, **ENVIRONMENT)) as service:
        yield service


@pytest.fixture
def group(service: Breakable, forks: ForkServer) -> Iterator[LiveGroup]:
    members = Members(service.running, forks)
    with ExitStack() as ends:
        ends.callback(lambda: [members.kill(name) for name in list(members.processes)])
        yield LiveGroup(members)
        service.clear()
        for name in list(members.processes):
            members.drain(name)
            members.wait_for_end(name)


def test_scale_up_from_ground(group: LiveGroup) -> None:
    group.begin("s1", loads=[6])
    group.members.start("s2")
    group.members.start("s3")
    group.settle([2, 2, 2])
    group.check_warm(moved=4)
    assert group.reasons()["a slot joined"] <= 2


def test_s4_joins(group: LiveGroup) -> None:
    group.begin("s1", "s2", "s3", loads=[2, 2, 2])
    group.members.start("s4")
    group.settle([1, 1, 2, 2])
    group.check_warm(moved=1)
    assert group.reasons()["a slot joined"] == 1
    assert group.reasons().total() <= 4


def test_s5_joins_before_s4_is_ready(group: LiveGroup) -> None:
    """The disk of S4 fails until S5 runs a task: what S4 has begun, it goes on with."""
    group.begin("s1", "s2", "s3", loads=[2, 2, 2])
    blocked = group.members.replicas_of("s4") / group.store_id()
    blocked.parent.mkdir(mode=0o700, exist_ok=True)
    blocked.touch()  # where a folder should be
    group.members.start("s4")
    group.beat_until(lambda: bool(group.warmed_up_by("s4")))
    begun = group.warmed_up_by("s4")
    group.members.start("s5")
    group.beat_until(lambda: bool(group.owned_by("s5")))
    assert group.owned_by("s4") == set()
    assert group.warmed_up_by("s4") == begun
    blocked.unlink()
    group.settle([1, 1, 1, 1, 2])
    assert group.owned_by("s4") == begun
    group.check_warm(moved=2)
    assert group.reasons()["a slot joined"] == 2


def test_scale_down(group: LiveGroup) -> None:
    group.begin("s1", "s2", "s3", loads=[2, 2, 2])
    group.members.drain("s3")
    group.settle([3, 3])
    group.members.wait_for_end("s3")
    group.check_warm(moved=2)
    assert group.reasons()["an instance leaves"] == 1


def test_scale_down_timeout(group: LiveGroup) -> None:
    """The disks of the others fail for as long as the one that leaves is waited for: it leaves as it is."""
    group.begin("s1", "s2", "s3", loads=[2, 2, 2])
    leaving, store_id = group.owned_by("s3"), group.store_id()
    partitions = [group.before[task]["partition"] for task in leaving]
    nodes = [group.members.replicas_of(name) for name in ("s1", "s2")]
    blocked = [replica_path(node, store_id, partition) for node in nodes for partition in partitions]
    for path in blocked:
        path.touch()  # where a folder should be
    asked_s = time.monotonic()
    group.members.drain("s3")
    # What it leaves can not go on until the disks are well again. 10 s without a pause are 6 s of CPU.
    group.beat_until(lambda: group.owned_by("s3") == set(), pause_s=0.5, but=leaving)
    left = group.tasks()
    for path in blocked:
        path.unlink()
    assert time.monotonic() - asked_s >= SCALE_DOWN_MS / 1000
    assert all(left[task]["position"] > group.before[task]["end"] for task in leaving)  # it went on until it left
    group.settle([3, 3])
    group.members.wait_for_end("s3")
    assert group.check().keys() == leaving
    assert max(group.replayed()) > ACCEPTABLE


def test_leader_crash(service: Breakable, group: LiveGroup) -> None:
    """The process that assigns is killed in the round that S4's join begins."""
    group.begin("s1", "s2", "s3", loads=[2, 2, 2])
    service.arm("rebalance.decided", 0)
    group.members.start("s4")
    service.wait_for_fault("rebalance.decided")
    service.restart_when_dead(is_there_again=True)
    group.settle([1, 1, 2, 2])
    group.check_warm(moved=1)
