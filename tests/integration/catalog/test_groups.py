"""KIP-429's scenarios, with copies that have to catch up first: who runs what, what moves and what does not miss a
tick.

A task that stays keeps its owner and its epoch through every turn; one that moves changes hands once, to a node whose
copy has caught up, where any has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from sqlalchemy import update

from service import coordinator
from service.assignment_cases import answer
from service.catalog import groups
from service.catalog.engine import Catalog
from service.catalog.replicas import RUNNING, STANDBY
from service.catalog.tables import JobRow, ReplicaRow
from tests.grouping import LEASE_MS, PlayedGroup

LOG = 1_000  # records: two and a half turns to copy


@pytest.fixture
def catalog(tmp_path: Path, migrated_sqlite: bytes) -> Iterator[Catalog]:
    """On SQLite alone: what is played here asks the same of both databases as other tests of the coordinator do."""
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    yield catalog
    catalog.close()


@contextmanager
def staying(group: PlayedGroup) -> Iterator[None]:
    """Tasks whose owner is the same in the end never lost it meanwhile."""
    before, epochs = group.owners(), group.epochs()
    yield
    after, now = group.owners(), group.epochs()
    stayed = {task for task, owner in before.items() if owner == after[task]}
    assert {task: now[task] for task in stayed} == {task: epochs[task] for task in stayed}


def loads(group: PlayedGroup) -> list[int]:
    return sorted(Counter(group.owners().values()).values())


def of_three(catalog: Catalog, **spec: int) -> PlayedGroup:
    """Three nodes that have two of six tasks each, with something in their stores."""
    group = PlayedGroup(catalog, 6, **spec)
    for name in ("s1", "s2", "s3"):
        group.node(name)
    group.settle()
    group.fill(LOG)
    group.settle()
    group.cost.clear()
    assert loads(group) == [2, 2, 2]
    return group


def test_scale_up_from_ground(catalog: Catalog) -> None:
    group = PlayedGroup(catalog, 6)
    group.node("s1")
    group.settle()
    group.fill(LOG)
    with staying(group):
        group.node("s2")
        group.node("s3")
        assert set(group.owners().values()) == {"s1"}  # nobody gives a task up in the round that decides to move it
        group.settle()
    assert loads(group) == [2, 2, 2]
    assert group.cost["restored"] == 0
    assert group.cost["copied"] == 4 * LOG


def test_s4_joins(catalog: Catalog) -> None:
    group = of_three(catalog)
    with staying(group):
        fourth = group.node("s4")
        group.turn()
        assert len(fourth.following) == 1  # what it will run is warmed up, the owner goes on
        assert loads(group) == [2, 2, 2]
        group.settle()
    assert loads(group) == [1, 1, 2, 2]
    assert (group.cost["restored"], group.cost["copied"]) == (0, LOG)


def test_s5_joins_before_s4_is_ready(catalog: Catalog) -> None:
    group = of_three(catalog)
    with staying(group):
        fourth = group.node("s4")
        group.turn()
        group.turn()
        begun = set(fourth.following)
        fifth = group.node("s5")
        group.turn()
        assert fourth.following == begun  # what is begun is finished
        group.settle()
    assert loads(group) == [1, 1, 1, 1, 2]
    assert fourth.running == begun
    assert len(fifth.running) == 1
    assert (group.cost["restored"], group.cost["copied"]) == (0, 2 * LOG)


def test_scale_down(catalog: Catalog) -> None:
    group = of_three(catalog)
    with staying(group):
        leaving = group.nodes["s3"]
        leaving.drain()
        group.turn()
        assert len(leaving.running) == 2  # until their copies have caught up elsewhere
        group.settle()
    assert leaving.slots == []
    assert loads(group) == [3, 3]
    assert group.cost["restored"] == 0


def test_scale_down_with_standbys_moves_at_once_and_restores_nothing(catalog: Catalog) -> None:
    group = of_three(catalog, standby_replicas=1)
    group.nodes["s3"].drain()
    group.turn()
    group.turn()
    assert loads(group) == [3, 3]
    group.settle()
    assert group.cost["restored"] == 0


def test_scale_down_timeout(catalog: Catalog) -> None:
    group = of_three(catalog)
    leaving = group.nodes["s3"]
    leaving.drain(timeout_ms=0)
    with staying(group):
        group.turn()
        assert leaving.slots == []
        group.settle()
    assert loads(group) == [3, 3]
    assert group.cost["restored"] > 0


def test_who_leaves_last_is_not_waited_for(catalog: Catalog) -> None:
    group = of_three(catalog)
    for node in group.nodes.values():
        node.drain()
    group.turn()
    assert all(node.slots == [] for node in group.nodes.values())


def test_leader_crash(catalog: Catalog) -> None:
    """The process that assigns ends while copies are on their way: another one goes on from what the catalog says."""
    group = of_three(catalog)
    with staying(group):
        group.node("s4")
        group.turn()
        other = Catalog(catalog.url)
        group.catalog = other
        group.settle()
    assert loads(group) == [1, 1, 2, 2]
    assert group.cost["restored"] == 0
    other.close()


def test_a_crash_with_a_standby_restores_nothing(catalog: Catalog) -> None:
    group = of_three(catalog, standby_replicas=1)
    assert sorted(map(len, group.kept().values())) == [2, 2, 2]
    with staying(group):
        group.nodes["s3"].crash()
        assert loads(group) == [3, 3]
        group.settle()
    assert group.cost["restored"] == 0
    assert sum(map(len, group.kept().values())) == 6


def test_a_node_that_comes_back_has_its_copies_still(catalog: Catalog) -> None:
    group = of_three(catalog, standby_replicas=1)
    group.nodes["s3"].crash()
    group.settle()
    group.cost.clear()
    group.node("s3")
    group.settle()
    assert loads(group) == [2, 2, 2]
    assert (group.cost["restored"], group.cost["copied"]) == (0, 0)


def test_a_rolling_restart_restores_nothing(catalog: Catalog) -> None:
    group = of_three(catalog, standby_replicas=1)
    for name in ("s1", "s2", "s3"):
        group.nodes[name].drain()
        group.settle()
        group.node(name)
        group.settle()
    assert loads(group) == [2, 2, 2]
    assert group.cost["restored"] == 0


def test_catching_up_is_announced_at_once(catalog: Catalog) -> None:
    """Copied in three turns, said in the next, moved in the one after that: no tick is needed."""
    group = of_three(catalog)
    fourth = group.node("s4")
    for _ in range(6):
        group.turn()
    assert len(fourth.running) == 1
    assert "a copy has caught up" in group.rounds()


def test_probing_ends_with_what_it_waited_for(catalog: Catalog) -> None:
    group = of_three(catalog)
    group.node("s4")
    assert group.shown().is_probing
    group.settle()
    assert (group.shown().is_probing, group.shown().rebalance_at_ms) == (False, None)


def test_a_probe_is_due_where_nothing_is_announced(catalog: Catalog) -> None:
    """A copy that caught up without anybody hearing of it."""
    group = of_three(catalog)
    group.node("s4")
    group.turn()
    catch_up = update(ReplicaRow).where(ReplicaRow.role == "warm-up").values(state=RUNNING)
    catalog.write(lambda s: s.execute(catch_up))
    coordinator.tick(catalog, lease_ms=LEASE_MS)
    assert not group.moving()
    catalog.write(lambda s: s.execute(update(JobRow).values(rebalance_at_ms=1)))
    coordinator.tick(catalog, lease_ms=LEASE_MS)
    assert group.moving()


def test_joins_are_one_round(catalog: Catalog) -> None:
    group = PlayedGroup(catalog, 8, initial_delay_ms=60_000)
    node = group.node("s1", cores=8)
    assert group.rounds() == ["a slot joined"]
    group.settle()
    assert all(len(slot.tasks) == 1 for slot in node.slots)


def test_the_slots_of_a_second_instance_are_one_round_too(catalog: Catalog) -> None:
    group = PlayedGroup(catalog, 8, initial_delay_ms=60_000)
    group.node("s1", cores=4)
    group.settle()
    before = len(group.rounds())
    group.node("s2", cores=4)
    assert len(group.rounds()) == before + 1
    group.settle()
    assert loads(group) == [4, 4]


def test_what_a_task_leaves_behind_is_no_standby_where_none_is_wanted(catalog: Catalog) -> None:
    group = of_three(catalog)
    group.node("s4")
    group.settle()
    assert all(kept == set() for kept in group.kept().values())
    rows = catalog.read(lambda s: s.query(ReplicaRow).where(ReplicaRow.role == STANDBY).all())
    assert {row.slot_id for row in rows} == {None}


def test_standbys_are_kept_apart_by_zone(catalog: Catalog) -> None:
    group = PlayedGroup(catalog, 4, standby_replicas=1)
    for name, zone in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        group.node(name, zone=zone)
    group.settle()
    zones = {task: {(owner or "")[0]} for task, owner in group.owners().items()}
    for node, kept in group.kept().items():
        for task in kept:
            zones[task].add(node[0])
    assert all(each == {"a", "b"} for each in zones.values())


def test_sticky_hands_over_at_once(catalog: Catalog) -> None:
    group = of_three(catalog, strategy="sticky")  # type: ignore[arg-type]
    group.node("s4")
    group.turn()
    group.turn()
    assert loads(group) == [1, 1, 2, 2]


def test_standbys_that_are_asked_for_while_it_runs_are_built_at_once(catalog: Catalog) -> None:
    group = of_three(catalog)
    with staying(group):
        group.change(standby_replicas=1)
        group.turn()
        assert sum(map(len, group.kept().values())) == 6
        group.settle()
        group.change(standby_replicas=0)
        group.turn()
        assert sum(map(len, group.kept().values())) == 0


def test_every_round_can_be_decided_again(catalog: Catalog) -> None:
    group = of_three(catalog, standby_replicas=1)
    group.node("s4")
    group.settle()
    group.nodes["s1"].crash()
    group.settle()
    rows = catalog.read(groups.rebalances_of, group.job.id)
    assert len(rows) > 4
    for row in rows:
        assert answer(orjson.dumps(row.input)) == row.output
