"""Nodes: a replica folder has one id, under whatever name an instance uses it, and is never live in two places."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from service import coordinator
from service.catalog.engine import Catalog
from service.catalog.replicas import ACTIVE, RESTORING, STANDBY
from service.catalog.tables import JobRow, NodeRow, ReplicaRow
from service.protocol import NodeRef
from service.streams.errors import NodeElsewhere
from tests.integration.catalog.world import SlotDouble, join, make_job, make_stream, slot

DISK = NodeRef("disk", "here", "8:2")


@pytest.fixture
def job(catalog: Catalog) -> JobRow:
    make_stream(catalog, partitions=1)
    return make_job(catalog)


def node(catalog: Catalog, node_id: str) -> NodeRow:
    return catalog.read(lambda s: s.get_one(NodeRow, node_id))


def copies(catalog: Catalog) -> dict[str, ReplicaRow]:
    rows = catalog.read(lambda s: list(s.scalars(select(ReplicaRow))))
    return {row.node_id: row for row in rows}


def restored(worker: SlotDouble, position: int) -> SlotDouble:
    """The slot says how far it is with its tasks."""
    worker.poll()
    worker.apply("visits-once", position)
    worker.poll()
    return worker


def test_a_slot_that_does_not_say_has_its_instance_for_a_node(catalog: Catalog, job: JobRow) -> None:
    one = join(catalog, tags={"zone": "a"})
    slot(catalog, one, job)
    assert list(copies(catalog)) == [one]
    assert node(catalog, one).tags == {"zone": "a", "host": "here"}


def test_a_node_stays_the_same_under_another_name(catalog: Catalog, job: JobRow) -> None:
    restored(slot(catalog, join(catalog, "one"), job, node=DISK), 3).leave()
    again = slot(catalog, join(catalog, "two", tags={"zone": "b"}), job, node=DISK)
    found = copies(catalog)
    assert list(found) == ["disk"]
    assert (found["disk"].slot_id, found["disk"].state) == (again.id, RESTORING)
    assert list(found["disk"].applied.values()) == [3]  # as far as it was known to be
    assert (node(catalog, "disk").host, node(catalog, "disk").place) == ("here", "8:2")
    assert node(catalog, "disk").tags == {"zone": "b", "host": "here"}


@pytest.mark.parametrize("clone", [NodeRef("disk", "there", "8:2"), NodeRef("disk", "here", "8:3")])
def test_a_cloned_node_is_refused_while_the_first_is_in_use(catalog: Catalog, job: JobRow, clone: NodeRef) -> None:
    first = slot(catalog, join(catalog, "one"), job, node=DISK)
    two = join(catalog, "two")
    with pytest.raises(NodeElsewhere):
        slot(catalog, two, job, node=clone)
    assert first.names() == ["0_0"]
    first.leave()
    slot(catalog, two, job, node=clone)
    assert (node(catalog, "disk").host, node(catalog, "disk").place) == (clone.host, clone.place)


def test_a_node_may_move_with_the_slot_that_is_started_again(catalog: Catalog, job: JobRow) -> None:
    one = join(catalog)
    slot(catalog, one, job, node=DISK)
    slot(catalog, one, job, node=NodeRef("disk", "here", "8:9"))
    assert node(catalog, "disk").place == "8:9"


def test_what_a_task_leaves_on_a_node_is_a_standby_that_nobody_keeps(catalog: Catalog, job: JobRow) -> None:
    first = restored(slot(catalog, join(catalog, "one"), job, node=DISK), 3)
    second = slot(catalog, join(catalog, "two"), job, node=NodeRef("other", "here", "8:4"))
    first.leave()
    found = copies(catalog)
    assert (found["other"].role, found["other"].slot_id, found["other"].applied) == (ACTIVE, second.id, {})
    assert (found["disk"].role, found["disk"].slot_id) == (STANDBY, None)
    assert list(found["disk"].applied.values()) == [3]


def test_nobody_is_given_a_standby_to_run(catalog: Catalog, job: JobRow) -> None:
    first = restored(slot(catalog, join(catalog, "one"), job, node=DISK), 3)
    slot(catalog, join(catalog, "two"), job, node=NodeRef("other", "here", "8:4"))
    first.leave()
    coordinator.tick(catalog)
    assert slot(catalog, join(catalog, "three"), job, index=1, node=DISK).names() == []
