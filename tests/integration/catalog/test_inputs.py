"""Inputs of tasks: numbered for ever, positions in one value; several of them, as jobs with more sources will have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy.orm import Session

from service import coordinator
from service.catalog import inputs, job_states, jobs, segments, streams
from service.catalog.engine import Catalog
from service.catalog.inputs import pack, unpack
from service.catalog.tables import JobRow, JobStreamRow, StreamRow, TaskInputRow, TaskRow
from service.protocol import Move
from service.streams.inputs import InputPosition
from tests.integration.catalog.world import (
    SlotDouble,
    age_segments,
    commit_of,
    join,
    make_job,
    make_stream,
    post,
    slot,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.builds(InputPosition, INT64, INT64)))
def test_packed_positions_come_back(positions: list[InputPosition]) -> None:
    assert unpack(pack(positions)) == positions
    assert len(pack(positions)) == 16 * len(positions)


@pytest.fixture
def job(catalog: Catalog) -> JobRow:
    make_stream(catalog, partitions=1)
    return make_job(catalog)


@pytest.fixture
def views(catalog: Catalog, job: JobRow) -> StreamRow:
    """A second input of the job's task."""
    stream = make_stream(catalog, "views", partitions=1)
    catalog.write(lambda s: add_input(s, job.id, stream.id))
    return stream


def add_input(s: Session, job_id: str, stream_id: str) -> None:
    (task,) = s.query(TaskRow).filter_by(job_id=job_id)
    s.add(JobStreamRow(job_id=job_id, stream_id=stream_id, role="source"))
    s.add(TaskInputRow(task_id=task.id, number=1, stream_id=stream_id, partition=0))
    task.positions = pack([*unpack(task.positions), InputPosition(0)])


@pytest.fixture
def worker(catalog: Catalog, job: JobRow, views: StreamRow) -> SlotDouble:
    return slot(catalog, join(catalog), job)


def read(catalog: Catalog, job: JobRow) -> list[tuple[int, int]]:
    (found,) = catalog.read(inputs.inputs_of_job, job.id).values()
    return [(at.position, at.frontier) for at in found]


def clicks(catalog: Catalog) -> StreamRow:
    return catalog.read(streams.get_stream, "clicks")


def test_a_poll_names_every_input_and_hands_out_a_range_of_each_that_has_something(
    catalog: Catalog, worker: SlotDouble, views: StreamRow
) -> None:
    post(catalog, views, {0: 4})
    (task,) = worker.tasks()
    assert [(at.stream_id, at.position, at.end) for at in task.inputs] == [(clicks(catalog).id, 0, 0), (views.id, 0, 4)]
    assert [(at.input, at.start, at.end) for at in task.work] == [(1, 0, 4)]
    post(catalog, clicks(catalog), {0: 2})
    (task,) = worker.tasks()
    assert [(at.input, at.start, at.end) for at in task.work] == [(0, 0, 2), (1, 0, 4)]
    assert worker.poll().topics >= {f"stream:{views.id}/0", f"stream:{clicks(catalog).id}/0"}


def test_each_input_has_a_position_and_a_frontier_that_never_falls(
    catalog: Catalog, job: JobRow, worker: SlotDouble, views: StreamRow
) -> None:
    post(catalog, views, {0: 4})
    post(catalog, clicks(catalog), {0: 2})
    (task,) = worker.tasks()
    moves = [Move(0, 0, 1, 70), Move(1, 0, 3, 90)]
    assert worker.commit(replace(commit_of(task), positions=moves))[0].status == "accepted"
    assert read(catalog, job) == [(1, 70), (3, 90)]
    (task,) = worker.tasks()
    assert [(at.position, at.frontier) for at in task.inputs] == [(1, 70), (3, 90)]
    worker.commit(replace(commit_of(task), positions=[Move(1, 3, 4, 80)]))
    assert read(catalog, job) == [(1, 70), (4, 90)]


def test_a_wrong_position_in_one_input_moves_none(
    catalog: Catalog, job: JobRow, worker: SlotDouble, views: StreamRow
) -> None:
    post(catalog, views, {0: 4})
    post(catalog, clicks(catalog), {0: 2})
    (task,) = worker.tasks()
    (verdict,) = worker.commit(replace(commit_of(task), positions=[Move(0, 0, 1), Move(1, 1, 2)]))
    assert verdict.reason == "wrong_position"
    assert read(catalog, job) == [(0, -1), (0, -1)]


def test_lag_positions_and_caught_up_are_of_all_inputs(
    catalog: Catalog, job: JobRow, worker: SlotDouble, views: StreamRow
) -> None:
    post(catalog, views, {0: 4})
    [unread] = catalog.read(inputs.inputs_of_job, job.id).values()
    assert inputs.lag_of(unread) == (4, 0)
    assert not catalog.read(jobs.is_caught_up, job.id)
    (task,) = worker.tasks()
    worker.commit(replace(commit_of(task), positions=[Move(1, 0, 4)]))
    assert catalog.read(jobs.is_caught_up, job.id)


def test_a_flush_waits_for_every_input(catalog: Catalog, job: JobRow, worker: SlotDouble, views: StreamRow) -> None:
    post(catalog, views, {0: 4})
    post(catalog, clicks(catalog), {0: 2})
    catalog.write(job_states.flush_job, "visits")
    (task,) = worker.tasks()
    worker.commit(replace(commit_of(task), positions=[Move(0, 0, 2)]))
    (task,) = worker.tasks()
    assert task.advance is None
    worker.commit(replace(commit_of(task), positions=[Move(1, 0, 4)]))
    assert worker.tasks()[0].advance == "flush"


def test_retention_stops_at_the_position_in_its_own_input(
    catalog: Catalog, job: JobRow, worker: SlotDouble, views: StreamRow
) -> None:
    for _ in range(3):
        post(catalog, views, {0: 4})
    catalog.write(streams.update_stream, "views", retention_ms=1_000)
    age_segments(catalog, 10_000)
    (task,) = worker.tasks()
    worker.commit(replace(commit_of(task), positions=[Move(1, 0, 8)]))
    assert catalog.write(segments.truncate_by_retention) == 2
    assert catalog.read(segments.chunks_from, views.id, 0, 0, 100).start == 8
    assert catalog.read(inputs.lowest_position, views.id, 0) == 8
    assert catalog.read(inputs.lowest_position, views.id, 1) is None


def test_a_truncated_input_is_named(catalog: Catalog, job: JobRow, worker: SlotDouble, views: StreamRow) -> None:
    post(catalog, views, {0: 4})
    catalog.write(streams.update_stream, "views", retention_ms=1_000, retention_overrides_jobs=True)
    age_segments(catalog, 10_000)
    catalog.write(segments.truncate_by_retention)
    assert worker.poll().answer.directive == "leave"
    error = catalog.read(jobs.get_job, "visits").error
    assert error is not None
    assert (error["code"], error["stream"], error["partition"]) == ("source_truncated", "views", 0)


def test_the_same_offset_of_another_stream_is_not_skipped(
    catalog: Catalog, job: JobRow, worker: SlotDouble, views: StreamRow
) -> None:
    post(catalog, views, {0: 4})
    (task,) = worker.tasks()
    fault = {"task_id": task.task, "epoch": task.epoch, "error": {"code": "x", "detail": "y"}}
    catalog.write(coordinator.fail_task, worker.id, **fault)
    post(catalog, clicks(catalog), {0: 4})
    catalog.write(job_states.skip_record, "visits", stream="clicks", partition=0, offset=3)
    worker.leave()
    catalog.write(coordinator.change_job, "visits", "restart")
    again = slot(catalog, join(catalog), job)
    assert again.tasks()[0].skips == [(0, 3)]
