"""Copies of tasks that run elsewhere: which are kept, how far they get and when, and how a task is taken over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from service.protocol import FollowedTask, HeldCopy, StoreRef
from service.storage import environments
from service.storage.replica import Replica
from service.streams.records import Chunk
from spark_jobs import follow, standbys
from spark_jobs.follow import Changelog, Follower, StorePartition
from spark_jobs.standbys import ALONE_S, SHARE, SLICE_S, Standbys
from tests.unit.spark_jobs.changelogs import Log
from tests.unit.storage.replicas import STORE, changes, key

STORES = {STORE.name: StoreRef("store-1", "changelog")}
Read = Callable[[Chunk], pa.RecordBatch]


class Disk:
    """A node's replicas, one a partition, which all follow one changelog."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.folder, self.log = folder, log
        self.taken: set[int] = set()  # partitions that somebody else has open
        self.read: Read = log.storage.read_chunk

    def make(self, at: StorePartition, end: int) -> Follower[Replica]:
        def open_replica(end: int) -> Replica | None:
            return None if at[1] in self.taken else Replica.open(self.path(at[1]), STORE, "store-1", "lineage", end)

        return Follower(Changelog("changelog", 0, self.read, self.log.find), open_replica, end)

    def path(self, partition: int) -> Path:
        return self.folder / str(partition)

    def position(self, partition: int) -> int:
        replica = Replica.open(self.path(partition), STORE, "store-1", "lineage")
        try:
            return replica.position
        finally:
            replica.close()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "storage")


@pytest.fixture
def disk(tmp_path: Path, log: Log) -> Disk:
    return Disk(tmp_path / "replicas", log)


def followed(partition: int, end: int, role: Literal["standby", "warm-up"] = "standby") -> FollowedTask:
    return FollowedTask(f"task-{partition}", f"0_{partition}", 0, partition, role, {STORE.name: end})


def idle(kept: Standbys, turns: int = 20) -> None:
    """Turns of a slot that has nothing else to do, until nothing is to be done for its copies either."""
    for _ in range(turns):
        kept.follow(is_busy=False, has_tasks=False)
    assert kept.not_before_s is None


# ---------------------------------------------------------------- which are kept


def test_copies_follow_to_the_ends_that_are_given(disk: Disk, log: Log) -> None:
    log.write(*(changes({key(n): n}) for n in range(4)))
    kept = Standbys(disk.make)
    assert (kept.not_before_s, kept.held(STORES)) == (None, [])
    kept.keep([followed(0, 4), followed(1, 2, "warm-up")])
    assert kept.not_before_s is not None
    assert kept.held(STORES) == [HeldCopy("task-0", {}), HeldCopy("task-1", {})]
    idle(kept)
    assert sorted(kept.held(STORES), key=lambda copy: copy.task) == [
        HeldCopy("task-0", {"store-1": 4}),
        HeldCopy("task-1", {"store-1": 2}),
    ]
    kept.keep([followed(0, 4), followed(1, 4)])
    idle(kept)
    assert {copy.applied["store-1"] for copy in kept.held(STORES)} == {4}
    kept.close()


def test_what_was_committed_behind_the_given_end_waits_until_it_is_told_of(disk: Disk, log: Log) -> None:
    """It may be of another version of the job, whose stores are others."""
    log.write(changes({key(1): 1}))
    log.end += 2  # offsets that no chunk holds
    log.write(changes({key(2): 2}))
    kept = Standbys(disk.make)
    kept.keep([followed(0, 3)])
    idle(kept)
    assert kept.held(STORES) == [HeldCopy("task-0", {"store-1": 3})]
    kept.close()


def test_a_copy_that_is_not_wanted_is_let_go_at_once_and_keeps_what_it_has(disk: Disk, log: Log) -> None:
    log.write(changes({key(1): 1}))
    kept = Standbys(disk.make)
    kept.keep([followed(0, 1), followed(1, 1)])
    idle(kept)
    kept.keep([followed(1, 1)])
    assert kept.held(STORES) == [HeldCopy("task-1", {"store-1": 1})]
    assert [disk.path(p) in environments._held for p in (0, 1)] == [False, True]
    assert disk.position(0) == 1
    kept.close()


def test_a_task_is_taken_over_with_its_copy_open(disk: Disk, log: Log) -> None:
    log.write(changes({key(1): 1}))
    kept = Standbys(disk.make)
    kept.keep([followed(0, 1), followed(1, 1)])
    idle(kept)
    given = kept.give("task-0")
    assert (list(given), given[STORE.name].is_open, given[STORE.name].position) == ([STORE.name], True, 1)
    kept.keep([followed(1, 1)])
    assert given[STORE.name].copy.position == 1
    assert kept.give("task-0") == {}
    given[STORE.name].close()
    kept.close()


# ---------------------------------------------------------------- how much time they get


class Clock:
    """Time that passes where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        for module in (standbys, follow):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now_s

    def taking(self, seconds: float, read: Read) -> Read:
        """A chunk that takes so long."""

        def slowly(chunk: Chunk) -> pa.RecordBatch:
            self.now_s += seconds
            return read(chunk)

        return slowly


@pytest.mark.parametrize("chunk_s", [0.001, 0.02, 0.4])
def test_of_a_busy_slot_they_get_a_tenth_of_its_time_and_never_nothing(
    disk: Disk, log: Log, monkeypatch: pytest.MonkeyPatch, chunk_s: float
) -> None:
    """However long a chunk takes."""
    clock = Clock(monkeypatch)
    log.write(*(changes({key(n): n}) for n in range(400)))
    disk.read = clock.taking(chunk_s, disk.read)
    kept = Standbys(disk.make)
    kept.keep([followed(0, log.end)])
    began_s, spent_s = clock.now_s, 0.0
    while clock.now_s < began_s + 40 and kept.not_before_s is not None:
        clock.now_s += 0.1  # the slot's own tasks
        since_s = clock.now_s
        kept.follow(is_busy=True, has_tasks=True)
        spent_s += clock.now_s - since_s
    took_s = clock.now_s - began_s
    assert SHARE / 2 < spent_s / took_s <= SHARE + (SLICE_S + chunk_s) / took_s
    kept.close()


@pytest.mark.parametrize(("has_tasks", "slice_s"), [(True, SLICE_S), (False, ALONE_S)])
def test_a_slot_with_nothing_to_do_gives_them_slices_one_after_the_other(
    disk: Disk, log: Log, monkeypatch: pytest.MonkeyPatch, has_tasks: bool, slice_s: float
) -> None:
    clock = Clock(monkeypatch)
    log.write(*(changes({key(n): n}) for n in range(200)))
    disk.read = clock.taking(0.01, disk.read)
    kept = Standbys(disk.make)
    kept.keep([followed(0, log.end)])
    for _ in range(3):
        since_s = clock.now_s
        kept.follow(is_busy=False, has_tasks=has_tasks)
        assert slice_s - 0.001 < clock.now_s - since_s < slice_s + 0.011
    kept.close()


def test_copies_take_turns(disk: Disk, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    log.write(*(changes({key(n): n}) for n in range(6)))
    disk.read = clock.taking(1.0, disk.read)
    kept = Standbys(disk.make)
    kept.keep([followed(p, log.end) for p in range(3)])
    for _ in range(6):
        kept.follow(is_busy=False, has_tasks=True)
    assert [copy.applied["store-1"] for copy in kept.held(STORES)] == [2, 2, 2]
    kept.close()


# ---------------------------------------------------------------- failures


def test_a_copy_that_fails_waits_by_itself_and_is_tried_again(
    disk: Disk, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "COPY_PAUSES_S", (60.0,))
    log.write(changes({key(1): 1}))
    kept = Standbys(disk.make)
    kept.keep([followed(0, 1)])

    def unreadable(chunk: Chunk) -> Any:
        raise OSError("no such device")

    kept._tasks["task-0"]._followers[STORE.name, 0]._changelog = Changelog("changelog", 0, unreadable, log.find)
    kept.keep([followed(0, 1), followed(1, 1)])
    kept.follow(is_busy=False, has_tasks=False)
    kept.follow(is_busy=False, has_tasks=False)
    assert {copy.task: copy.applied for copy in kept.held(STORES)} == {"task-0": {}, "task-1": {"store-1": 1}}
    assert kept.not_before_s is not None
    assert kept.not_before_s > time.monotonic() + 30
    kept.close()


def test_a_copy_that_somebody_else_has_open_is_asked_for_again(
    disk: Disk, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "OPEN_PAUSE_S", 0.0)
    log.write(changes({key(1): 1}))
    disk.taken = {0}
    kept = Standbys(disk.make)
    kept.keep([followed(0, 1)])
    for _ in range(3):
        kept.follow(is_busy=False, has_tasks=False)
    assert (kept.held(STORES), log.found) == ([HeldCopy("task-0", {})], [])
    disk.taken = set()
    idle(kept)
    assert kept.held(STORES) == [HeldCopy("task-0", {"store-1": 1})]
    kept.close()
