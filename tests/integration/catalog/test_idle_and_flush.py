"""Closing without a record (semantics.md, Idle close and flush): told when it is time, refused when it is not so."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from service.catalog import job_states, jobs
from service.catalog.engine import Catalog
from service.catalog.idle_and_flush import LOOK_AGAIN_MS
from service.catalog.tables import JobRow, JobTransitionRow, PartitionRow, StreamRow, TaskRow
from service.coordinator import change_job
from service.protocol import Advanced, AdvanceReason, AssignedTask, TaskCommit
from service.streams.errors import IllegalTransition, UnknownJob
from tests.integration.catalog.world import (
    SlotDouble,
    chunk,
    commit_of,
    join,
    make_job,
    make_stream,
    post,
    register,
    slot,
)

IDLE_MS = 5_000


@pytest.fixture
def clicks(catalog: Catalog) -> StreamRow:
    return make_stream(catalog, partitions=2)


@pytest.fixture
def job(catalog: Catalog, clicks: StreamRow) -> JobRow:
    return make_job(catalog, idle_close_after_ms=IDLE_MS)


@pytest.fixture
def worker(catalog: Catalog, job: JobRow) -> SlotDouble:
    return slot(catalog, join(catalog), job)


def be_silent(catalog: Catalog, for_ms: int) -> None:
    """All that was published was published `for_ms` earlier than it was."""
    earlier = update(PartitionRow).values(published_ms=PartitionRow.published_ms - for_ms)
    catalog.write(lambda s: s.execute(earlier))


def advances(worker: SlotDouble) -> dict[str, str | None]:
    return {task.name: task.advance for task in worker.tasks()}


def handed_out(worker: SlotDouble, name: str) -> AssignedTask:
    return next(task for task in worker.tasks() if task.name == name)


def advanced(task: AssignedTask, to: int | None, reason: AdvanceReason = "idle", **more: Any) -> TaskCommit:
    return commit_of(task, advance=Advanced(to, reason), **more)


def tasks(catalog: Catalog) -> dict[str, TaskRow]:
    return catalog.read(lambda s: {task.name: task for task in s.scalars(select(TaskRow))})


def test_a_job_that_read_nothing_has_nothing_to_close(worker: SlotDouble) -> None:
    assert advances(worker) == {"0_0": None, "0_1": None}
    assert worker.poll().look_again_ms is None


def test_a_task_is_told_to_close_once_input_is_silent_for_long_enough(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    assert worker.run() == 3
    answer = worker.poll()
    assert answer.look_again_ms is not None
    assert 0 < answer.look_again_ms <= IDLE_MS
    assert not answer.is_ready
    be_silent(catalog, IDLE_MS)
    assert advances(worker) == {"0_0": "idle", "0_1": None}
    assert worker.poll().is_ready


def test_a_flush_waits_behind_what_was_there_when_it_was_asked_for_and_ends_under_steady_input(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    catalog.write(job_states.flush_job, "visits")
    for _ in range(3):
        post(catalog, clicks, {0: 5})
    [work] = handed_out(worker, "0_0").work
    assert (work.start, work.end) == (0, 3)
    assert worker.run() == 3
    for to in (7_000, None):
        post(catalog, clicks, {0: 5})
        task = handed_out(worker, "0_0")
        assert (task.advance, task.work) == ("flush", [])
        assert worker.commit(advanced(task, to, "flush"))[0].status == "accepted"
    [work] = handed_out(worker, "0_0").work
    assert (work.start, work.end) == (3, 28)
    assert tasks(catalog)["0_0"].flush_at is None


def test_input_is_not_idle_while_any_task_of_the_job_still_reads(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    assert worker.run() == 3
    post(catalog, clicks, {1: 1})
    be_silent(catalog, IDLE_MS)
    answer = worker.poll()
    assert [task.advance for task in answer.answer.tasks] == [None, None]
    assert answer.look_again_ms == LOOK_AGAIN_MS
    assert worker.run() == 1
    assert advances(worker) == {"0_0": "idle", "0_1": "idle"}


def test_an_idle_close_publishes_results_and_leaves_positions_where_they_are(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3}, timestamp=100)
    worker.run()
    be_silent(catalog, IDLE_MS)
    sink = next(at.id for name, at in worker.joined.streams.items() if name == "visits-out")
    before = catalog.read(jobs.positions, job.id)
    commit = advanced(
        handed_out(worker, "0_0"),
        7_000,
        segment=register(catalog, worker.id),
        chunks=[chunk(sink, 0, 2)],
        stream_time=7_000,
    )
    (verdict,) = worker.commit(commit)
    assert [at.first_offset for at in verdict.published] == [3]
    assert catalog.read(jobs.positions, job.id) == before
    task = tasks(catalog)["0_0"]
    assert task.stream_time == 7_000
    assert task.advanced is not None
    assert (task.advanced["to"], task.advanced["reason"]) == (7_000, "idle")


def test_a_task_is_told_again_until_it_finds_nothing_open_and_not_after_that(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    worker.run()
    be_silent(catalog, IDLE_MS)
    assert worker.commit(advanced(handed_out(worker, "0_0"), 7_000))[0].status == "accepted"
    assert advances(worker)["0_0"] == "idle"
    assert worker.commit(advanced(handed_out(worker, "0_0"), None))[0].status == "accepted"
    assert advances(worker)["0_0"] is None
    assert worker.poll().look_again_ms is None
    post(catalog, clicks, {0: 1})
    worker.run()
    be_silent(catalog, IDLE_MS)
    assert advances(worker)["0_0"] == "idle"


def test_an_idle_close_is_refused_when_a_record_came_meanwhile(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    worker.run()
    be_silent(catalog, IDLE_MS)
    task = handed_out(worker, "0_0")
    post(catalog, clicks, {1: 1})  # to another partition of the source
    (verdict,) = worker.commit(advanced(task, 7_000))
    assert (verdict.status, verdict.reason) == ("refused", "not_idle")
    assert tasks(catalog)["0_0"].advanced is None


def test_what_was_published_and_read_lately_is_no_silence(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    worker.run()
    be_silent(catalog, IDLE_MS)
    post(catalog, clicks, {1: 1})
    worker.run()
    (verdict,) = worker.commit(advanced(handed_out(worker, "0_0"), 7_000))
    assert (verdict.status, verdict.reason) == ("refused", "not_idle")


def test_a_job_without_idle_close_is_never_idle(catalog: Catalog, clicks: StreamRow) -> None:
    worker = slot(catalog, join(catalog), make_job(catalog, "patient"))
    post(catalog, clicks, {0: 3})
    worker.run()
    be_silent(catalog, 10 * IDLE_MS)
    assert advances(worker) == {"0_0": None, "0_1": None}
    (verdict,) = worker.commit(advanced(handed_out(worker, "0_0"), 7_000))
    assert verdict.reason == "not_idle"


def test_time_moves_by_records_or_by_hand_never_by_both(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    (verdict,) = worker.commit(advanced(handed_out(worker, "0_0"), 7_000, moves=[(0, 0, 3)]))
    assert verdict.reason == "records_and_advance"


def test_a_flush_waits_for_what_was_there_and_goes_before_what_came_later(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 3})
    catalog.write(job_states.flush_job, "visits", who="me")
    task = handed_out(worker, "0_0")
    assert (task.advance, task.work[0].end) == (None, 3)
    assert worker.commit(advanced(task, 7_000, "flush"))[0].reason == "not_to_flush"
    worker.run()
    post(catalog, clicks, {0: 5})
    task = handed_out(worker, "0_0")
    assert (task.advance, task.work) == ("flush", [])
    assert not catalog.read(jobs.is_caught_up, job.id)
    assert worker.commit(advanced(task, 7_000, "flush"))[0].status == "accepted"
    assert worker.commit(advanced(handed_out(worker, "0_0"), None, "flush"))[0].status == "accepted"
    task = handed_out(worker, "0_0")
    assert (task.advance, task.work[0].start, task.work[0].end) == (None, 3, 8)


def test_a_flush_is_done_when_every_task_found_nothing_open(catalog: Catalog, job: JobRow, worker: SlotDouble) -> None:
    catalog.write(job_states.flush_job, "visits")
    assert catalog.read(jobs.is_flushing, job.id)
    assert worker.commit(*(advanced(task, None, "flush") for task in worker.tasks()))[1].status == "accepted"
    assert not catalog.read(jobs.is_flushing, job.id)
    assert catalog.read(jobs.is_caught_up, job.id)
    assert advances(worker) == {"0_0": None, "0_1": None}


def test_a_flush_that_nobody_asked_for_is_refused(worker: SlotDouble) -> None:
    (verdict,) = worker.commit(advanced(handed_out(worker, "0_0"), 7_000, "flush"))
    assert (verdict.status, verdict.reason) == ("refused", "not_to_flush")


def test_a_flush_outlives_its_slot(catalog: Catalog, job: JobRow, worker: SlotDouble) -> None:
    catalog.write(job_states.flush_job, "visits")
    worker.leave()
    assert advances(slot(catalog, join(catalog), job)) == {"0_0": "flush", "0_1": "flush"}


def test_only_a_job_that_works_can_be_flushed_and_the_history_says_who_asked(
    catalog: Catalog, job: JobRow, worker: SlotDouble
) -> None:
    catalog.write(job_states.flush_job, "visits", who="anna")
    newest: JobTransitionRow = catalog.read(jobs.transitions_of, job.id)[0]
    assert (newest.reason, newest.who, newest.to_state) == ("flush", "anna", newest.from_state)
    catalog.write(change_job, "visits", "pause")
    with pytest.raises(IllegalTransition):
        catalog.write(job_states.flush_job, "visits")
    with pytest.raises(UnknownJob):
        catalog.write(job_states.flush_job, "nobody")
