"""Copies of tasks: one active one a task, which outlives its slot; how far it is, as its slot says."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from service import coordinator
from service.catalog.engine import Catalog
from service.catalog.replicas import ACTIVE, BACKLOG, RESTORING, RUNNING
from service.catalog.tables import JobRow, ReplicaRow, TaskRow
from tests.integration.catalog.looking import engine_of
from tests.integration.catalog.world import SlotDouble, batch, join, make_job, make_stream, post, slot


@pytest.fixture
def job(catalog: Catalog) -> JobRow:
    make_stream(catalog, partitions=1)
    return make_job(catalog)


@pytest.fixture
def worker(catalog: Catalog, job: JobRow) -> SlotDouble:
    return slot(catalog, join(catalog), job)


def copies(catalog: Catalog) -> list[ReplicaRow]:
    return catalog.read(lambda s: list(s.scalars(select(ReplicaRow))))


def copy(catalog: Catalog) -> ReplicaRow:
    (only,) = copies(catalog)
    return only


def test_a_task_that_nobody_had_has_no_copy(catalog: Catalog, job: JobRow) -> None:
    assert copies(catalog) == []


def test_the_owner_of_a_task_keeps_its_active_copy(catalog: Catalog, worker: SlotDouble) -> None:
    found = copy(catalog)
    assert (found.role, found.slot_id, found.target_slot_id) == (ACTIVE, worker.id, None)
    assert [task.role for task in worker.tasks()] == [ACTIVE]


def test_a_copy_outlives_its_slot_and_draws_the_task_back(catalog: Catalog, job: JobRow) -> None:
    one, two = join(catalog, "one"), join(catalog, "two")
    first = slot(catalog, two, job)
    first.poll()
    first.apply("visits-once", 3)
    first.poll()
    first.leave()
    assert (copy(catalog).node_id, copy(catalog).slot_id) == (two, None)
    assert list(copy(catalog).applied.values()) == [3]
    slot(catalog, one, job, initial_delay_ms=60_000)  # leaves the other instance's share free
    again = slot(catalog, two, job)
    assert (copy(catalog).node_id, copy(catalog).slot_id) == (two, again.id)


def test_a_new_owner_begins_with_nothing_applied(catalog: Catalog, job: JobRow, worker: SlotDouble) -> None:
    worker.poll()
    worker.apply("visits-once", 3)
    worker.poll()
    worker.leave()
    other = join(catalog, "other")
    latter = slot(catalog, other, job)
    found = next(each for each in copies(catalog) if each.role == ACTIVE)
    assert (found.node_id, found.slot_id, found.applied, found.state) == (other, latter.id, {}, RESTORING)


def test_a_copy_is_running_once_it_is_at_the_ends_of_its_changelogs(catalog: Catalog, worker: SlotDouble) -> None:
    post(catalog, worker.joined.streams["visits-once-changelog"].id, {0: 5})
    worker.poll()
    for position, state in ((4, RESTORING), (5, RUNNING)):
        worker.apply("visits-once", position)
        worker.poll()
        assert copy(catalog).state == state
    worker.apply("visits-once", 5, has_backlog=True)
    worker.poll()
    assert copy(catalog).state == BACKLOG


def test_a_task_that_commits_was_restored(catalog: Catalog, worker: SlotDouble) -> None:
    post(catalog, worker.joined.streams["clicks"].id, {0: 5})
    (task,) = worker.tasks()
    assert copy(catalog).state == RESTORING
    worker.commit(batch(catalog, task, worker.joined))
    assert copy(catalog).state == RUNNING


def test_positions_of_a_former_epoch_are_not_those_of_the_copy_now(catalog: Catalog, worker: SlotDouble) -> None:
    (task,) = worker.tasks()
    worker.apply("visits-once", 9)
    fault = {"task_id": task.task, "epoch": task.epoch, "error": {"code": "x", "detail": "y"}}
    catalog.write(coordinator.fail_task, worker.id, **fault)
    catalog.write(coordinator.change_job, "visits", "restart")
    assert copy(catalog).slot_id == worker.id
    worker.poll()
    assert copy(catalog).applied == {}


def test_a_task_can_not_have_two_active_copies(catalog: Catalog, database_url: str, worker: SlotDouble) -> None:
    task_id = catalog.read(lambda s: s.scalars(select(TaskRow.id)).one())
    second = {"task_id": task_id, "node_id": "elsewhere", "role": ACTIVE, "state": RUNNING, "applied": {}}
    with engine_of(database_url) as engine, engine.begin() as connection, pytest.raises(IntegrityError):
        connection.execute(insert(ReplicaRow).values(**second))
