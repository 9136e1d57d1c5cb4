"""An active task as its slot holds it, over real replicas."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from service.protocol import AssignedTask, ChunkRange, HeldTask, StoreRef
from service.storage.replica import Replica
from service.storage.segments import open_storage
from spark_jobs.follow import Changelog, Follower
from spark_jobs.tasks import HAND_OVER_PAUSE_S, StreamTask
from spark_jobs.work import Restore
from tests.unit.storage.replicas import STORE, changes, key

STORES = {STORE.name: StoreRef("store-1", "log-1")}


class Operators:
    """All that a task asks of its chain here."""

    def __init__(self) -> None:
        self.backlog = False

    def has_backlog(self, states: dict[str, Any]) -> bool:
        assert list(states) == [STORE.name]
        return self.backlog


def replica_at(folder: Path, position: int) -> None:
    replica = Replica.open(folder, STORE, "store-1", "lineage")
    replica.apply(0, position, changes({key(1): 1}))
    replica.close()


def task(folder: Path, operators: Operators, end: int, *, is_free: bool = True) -> StreamTask:
    """A task with one replica; its changelog ends there."""

    def open_replica(end: int) -> Replica | None:
        return Replica.open(folder, STORE, "store-1", "lineage", end) if is_free else None

    log = Changelog("log-1", 0, open_storage(str(folder / "none")).read_chunk, lambda *_: ChunkRange(0, end, []))
    assigned = AssignedTask("task-1", "0_0", 0, 0, 7, 3, changelogs={STORE.name: end})
    return StreamTask(assigned, {STORE.name: Follower(log, open_replica, end)}, lambda: operators)  # type: ignore[arg-type,return-value]


def test_a_task_is_to_be_restored_until_its_replicas_are_at_the_end(tmp_path: Path) -> None:
    replica_at(tmp_path / "replica", 3)
    one = task(tmp_path / "replica", Operators(), 5)
    assert one.work == Restore()
    one.open()
    assert (one.work, one.lag, one.is_ready) == (Restore(), 2, False)
    one.restore(time.monotonic() + 60)
    assert (one.work, one.lag, one.is_ready) == (None, 0, True)
    one.close()


def test_a_kept_replica_is_all_that_a_task_needs(tmp_path: Path) -> None:
    replica_at(tmp_path / "replica", 3)
    operators = Operators()
    operators.backlog = True
    one = task(tmp_path / "replica", operators, 3)
    one.open()
    assert (one.is_restored, one.has_backlog, one.is_due) == (True, True, True)
    assert one.held(STORES) == HeldTask("task-1", 7, applied={"store-1": 3}, has_backlog=True)
    one.close()
    assert (one.is_restored, one.has_backlog) == (False, False)
    assert one.held(STORES) == HeldTask("task-1", 7)


def test_while_a_former_owner_has_a_replica_open_its_task_waits_a_moment(tmp_path: Path) -> None:
    one = task(tmp_path / "replica", Operators(), 3, is_free=False)
    before_s = time.monotonic()
    one.open()
    after_s = time.monotonic()
    assert (one.is_restored, one.failures.count) == (False, 0)
    assert before_s <= one.failures.not_before_s - HAND_OVER_PAUSE_S <= after_s
    assert one.held(STORES).applied == {}


def test_what_was_committed_elsewhere_is_heard_of_with_the_next_assignment(tmp_path: Path) -> None:
    replica_at(tmp_path / "replica", 3)
    one = task(tmp_path / "replica", Operators(), 3)
    one.open()
    one.assign(AssignedTask("task-1", "0_0", 0, 0, 7, 4, changelogs={STORE.name: 4}))
    assert (one.work, one.lag) == (Restore(), 1)
    one.close()
