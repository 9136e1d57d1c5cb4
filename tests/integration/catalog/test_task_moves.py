"""What moved tasks otherwise than by records: noted with the commit that does it, for as long as it is of use."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from service.catalog import job_states, jobs, task_moves
from service.catalog.engine import Catalog
from service.catalog.job_creation import delete_job
from service.catalog.tables import JobRow, PartitionRow, StreamRow, TaskMoveRow, TaskRow
from service.catalog.task_moves import Moves
from service.coordinator import change_job
from service.protocol import Advanced
from tests.integration.catalog.world import SlotDouble, commit_of, join, make_job, make_stream, post, slot


@pytest.fixture
def clicks(catalog: Catalog) -> StreamRow:
    return make_stream(catalog, partitions=1)


@pytest.fixture
def job(catalog: Catalog, clicks: StreamRow) -> JobRow:
    return make_job(catalog)


@pytest.fixture
def worker(catalog: Catalog, job: JobRow) -> SlotDouble:
    return slot(catalog, join(catalog), job)


def moves(catalog: Catalog) -> Moves | None:
    return catalog.read(lambda s: task_moves.moves_of(s, s.scalars(select(TaskRow)).one()))


def flush(catalog: Catalog, worker: SlotDouble, job: JobRow) -> None:
    """All that is open closes by one commit."""
    catalog.write(job_states.flush_job, job.name)
    for to in (9_000, None):
        [task] = worker.tasks()
        [verdict] = worker.commit(commit_of(task, advance=Advanced(to, "flush")))
        assert verdict.status == "accepted"


def test_a_task_begins_and_each_advance_of_time_has_its_place(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    assert moves(catalog) == Moves((0,), 1, [], [], None, None)
    post(catalog, clicks, {0: 3})
    assert worker.run() == 3
    flush(catalog, worker, job)
    assert moves(catalog) == Moves((0,), 1, [], [((3,), "flush")], None, None)
    post(catalog, clicks, {0: 2})
    assert worker.run() == 2
    flush(catalog, worker, job)
    assert moves(catalog) == Moves((0,), 1, [], [((3,), "flush"), ((5,), "flush")], None, None)


def test_advances_that_retention_made_useless_are_not_kept(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    assert worker.run() == 3
    flush(catalog, worker, job)
    catalog.write(lambda s: s.execute(update(PartitionRow).values(start_offset=1)))
    post(catalog, clicks, {0: 1})
    assert worker.run() == 1
    flush(catalog, worker, job)
    assert moves(catalog) == Moves((0,), 1, [], [], None, None)


def test_a_task_that_was_there_before_has_no_history_and_gets_none(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    catalog.write(lambda s: task_moves.forget(s, s.scalars(select(TaskRow.id)).all()))
    post(catalog, clicks, {0: 3})
    assert worker.run() == 3
    flush(catalog, worker, job)
    assert moves(catalog) is None


def test_the_history_goes_with_the_job(catalog: Catalog, clicks: StreamRow, job: JobRow) -> None:
    catalog.write(change_job, job.name, "stop")
    catalog.write(lambda s: job_states.settle(s, jobs.get_job(s, job.name)))
    catalog.write(delete_job, job.name)
    assert catalog.read(lambda s: s.scalars(select(TaskMoveRow.kind)).all()) == []
