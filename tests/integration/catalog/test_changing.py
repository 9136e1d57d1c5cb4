"""A job's specification changed: slots at work get it with a poll, those of a stopped or failed job join anew."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from service import coordinator
from service.catalog import job_states, jobs, streams
from service.catalog.engine import Catalog
from service.catalog.tables import JobRow
from service.streams.errors import InstanceGone
from service.streams.topology import graph
from service.streams.topology.change import JobChange
from service.streams.topology.spec import JobSpec
from tests.integration.catalog.world import SlotDouble, join, make_job, make_stream, owners, post, slot

SMALLER = JobChange(max_batch_records=3)


@pytest.fixture
def job(catalog: Catalog) -> JobRow:
    make_stream(catalog)
    return make_job(catalog)


def change(catalog: Catalog, wanted: JobChange) -> None:
    def write(s: Session) -> None:
        found = job_states.lock_job(s, name="visits")
        spec = wanted.applied_to(JobSpec.parse(found.spec))
        coordinator.change_spec(s, found, spec, graph.compile(spec, {"clicks": 4}), who="somebody")

    catalog.write(write)


def fail(catalog: Catalog, worker: SlotDouble) -> None:
    task = worker.tasks()[0]
    fault = {"task_id": task.task, "epoch": task.epoch, "error": {"code": "buffer_full", "detail": "full"}}
    catalog.write(coordinator.fail_task, worker.id, **fault)


def test_a_slot_of_a_failed_job_that_has_not_left_yet_is_gone_with_the_change(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    worker = slot(catalog, instance, job)
    fail(catalog, worker)
    change(catalog, SMALLER)
    assert set(owners(catalog, job).values()) == {None}
    catalog.write(coordinator.change_job, "visits", "restart")
    with pytest.raises(InstanceGone):
        worker.poll()
    assert slot(catalog, instance, job).joined.job.spec["max_batch_records"] == 3


def test_work_is_handed_out_by_the_changed_spec_and_nothing_is_read_twice(catalog: Catalog, job: JobRow) -> None:
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 10})
    instance = join(catalog)
    worker = slot(catalog, instance, job)
    worker.run()
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 10})
    fail(catalog, worker)
    change(catalog, SMALLER)
    catalog.write(coordinator.change_job, "visits", "restart")
    assert slot(catalog, instance, job).run() == 3
    assert [at.position for at in catalog.read(jobs.positions, job.id)] == [13, 0, 0, 0]


def test_a_change_keeps_state_error_ids_and_stores(catalog: Catalog, job: JobRow) -> None:
    fail(catalog, slot(catalog, join(catalog), job))
    before = catalog.read(jobs.get_job, "visits")
    stores = [store.id for store in catalog.read(jobs.stores_of, job.id)]
    change(catalog, SMALLER)
    after = catalog.read(jobs.get_job, "visits")
    assert (after.id, after.state, after.error) == (before.id, "failed", before.error)
    assert [store.id for store in catalog.read(jobs.stores_of, job.id)] == stores
    assert after.etag == before.etag + 1


def test_a_slot_at_work_gets_the_changed_job_with_its_next_poll_and_keeps_its_tasks(
    catalog: Catalog, job: JobRow
) -> None:
    worker = slot(catalog, join(catalog), job)
    held = owners(catalog, job)
    known = worker.joined.job.spec_sha256
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 10})
    assert coordinator.poll_slot(catalog, worker.id, [], known=known).answer.job is None
    change(catalog, SMALLER)
    found = coordinator.poll_slot(catalog, worker.id, [], known=known)
    assert found.is_ready
    assert found.answer.job is not None
    assert found.answer.job.spec["max_batch_records"] == 3
    assert sum(each.end - each.start for task in found.answer.tasks for each in task.work) == 3
    assert owners(catalog, job) == held
    assert coordinator.poll_slot(catalog, worker.id, [], known=found.answer.job.spec_sha256).answer.job is None


def test_a_slot_that_does_not_say_what_it_knows_is_not_answered_again_and_again(catalog: Catalog, job: JobRow) -> None:
    worker = slot(catalog, join(catalog), job)
    change(catalog, SMALLER)
    assert worker.poll().answer.job is None
