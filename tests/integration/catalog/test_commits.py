"""Commits of tasks: accepted or refused alone, once, by epoch, version and position."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from service.catalog import jobs, streams, totals
from service.catalog.engine import Catalog
from service.catalog.tables import new_id
from service.protocol import WrittenSegment
from tests.integration.catalog.world import (
    SlotDouble,
    batch,
    chunk,
    commit_of,
    ends,
    expire_slot,
    join,
    lease_of,
    make_job,
    make_stream,
    post,
    register,
    slot,
    statements,
    tick,
)


@pytest.fixture
def worker(catalog: Catalog) -> SlotDouble:
    """A slot that owns the four tasks of a job, ten records in each of its inputs."""
    clicks = make_stream(catalog)
    job = make_job(catalog)
    post(catalog, clicks, dict.fromkeys(range(4), 10))
    return slot(catalog, join(catalog), job)


def positions(catalog: Catalog) -> list[int]:
    job = catalog.read(jobs.get_job, "visits")
    return [at.position for at in catalog.read(jobs.positions, job.id)]


def test_an_accepted_commit_publishes_and_moves_the_position_at_once(catalog: Catalog, worker: SlotDouble) -> None:
    task = worker.tasks()[1]
    commit = batch(catalog, task, worker.joined)
    assert ends(catalog, "visits-out") == [0, 0, 0, 0]
    (verdict,) = worker.commit(commit)
    assert (verdict.status, verdict.reason, verdict.version) == ("accepted", None, 1)
    assert [(at.first_offset, at.end_offset) for at in verdict.published] == [(0, 10), (0, 10)]
    assert positions(catalog) == [0, 10, 0, 0]
    assert ends(catalog, "visits-out") == [0, 10, 0, 0]
    assert ends(catalog, "visits-once-changelog") == [0, 10, 0, 0]


def test_repeating_a_commit_gets_the_first_answer(catalog: Catalog, worker: SlotDouble) -> None:
    commit = batch(catalog, worker.tasks()[0], worker.joined)
    first = worker.commit(commit)
    assert worker.commit(commit) == first
    assert ends(catalog, "visits-out") == [10, 0, 0, 0]


def test_a_repeated_commit_is_answered_even_when_the_slot_is_gone(catalog: Catalog, worker: SlotDouble) -> None:
    commit = batch(catalog, worker.tasks()[0], worker.joined)
    first = worker.commit(commit)
    worker.leave()
    assert worker.commit(commit) == first


def test_a_commit_twice_in_one_request_counts_once(catalog: Catalog, worker: SlotDouble) -> None:
    commit = batch(catalog, worker.tasks()[0], worker.joined)
    first, second = worker.commit(commit, commit)
    assert first == second
    assert ends(catalog, "visits-out") == [10, 0, 0, 0]


def test_each_commit_of_a_request_is_judged_alone(catalog: Catalog, worker: SlotDouble) -> None:
    tasks = worker.tasks()
    commits = [batch(catalog, task, worker.joined) for task in tasks]
    commits[1] = replace(commits[1], version=1)
    commits[3] = replace(commits[3], epoch=0)
    verdicts = worker.commit(*commits)
    assert [verdict.reason for verdict in verdicts] == [None, "stale_version", None, "stale_epoch"]
    assert positions(catalog) == [10, 0, 10, 0]
    assert ends(catalog, "visits-out") == [10, 0, 10, 0]


@pytest.mark.parametrize(
    ("start", "end"), [(1, 10), (0, 11), (5, 4), (-1, 3)], ids=["gap", "beyond the end", "backwards", "below"]
)
def test_a_position_moves_from_where_it_stands_to_what_is_there(
    catalog: Catalog, worker: SlotDouble, start: int, end: int
) -> None:
    task = worker.tasks()[0]
    (verdict,) = worker.commit(commit_of(task, moves=[(0, start, end)]))
    assert (verdict.status, verdict.reason) == ("refused", "wrong_position")
    assert positions(catalog) == [0, 0, 0, 0]


def test_an_input_of_another_task_is_a_wrong_position(catalog: Catalog, worker: SlotDouble) -> None:
    task = worker.tasks()[0]
    (verdict,) = worker.commit(commit_of(task, moves=[(1, 0, 10)]))
    assert verdict.reason == "wrong_position"


def test_a_commit_needs_a_pending_segment(catalog: Catalog, worker: SlotDouble) -> None:
    task = worker.tasks()[0]
    changelog = worker.joined.stores["visits-once"].changelog
    used = register(catalog, worker.id)
    chunks = [chunk(changelog, 0, 1)]
    assert worker.commit(commit_of(task, segment=used, chunks=chunks))[0].status == "accepted"
    for segment in (used, new_id()):
        (verdict,) = worker.commit(commit_of(replace(task, version=1), segment=segment, chunks=chunks))
        assert verdict.reason == "segment_not_pending"
    assert ends(catalog, "visits-once-changelog") == [1, 0, 0, 0]


def test_two_commits_can_not_publish_one_segment(catalog: Catalog, worker: SlotDouble) -> None:
    one, two, *_ = worker.tasks()
    segment = register(catalog, worker.id)
    commits = [
        commit_of(task, segment=segment, chunks=[chunk(worker.joined.stores["visits-once"].changelog, i, 1)])
        for i, task in enumerate((one, two))
    ]
    assert [verdict.reason for verdict in worker.commit(*commits)] == [None, "segment_not_pending"]


@pytest.mark.parametrize(("partition", "records", "reason"), [(9, 1, "unknown_partition"), (0, 0, "empty_chunk")])
def test_a_chunk_must_fit_a_partition(
    catalog: Catalog, worker: SlotDouble, partition: int, records: int, reason: str
) -> None:
    task = worker.tasks()[0]
    chunks = [chunk(worker.joined.streams["visits-out"].id, partition, records)]
    (verdict,) = worker.commit(commit_of(task, segment=register(catalog, worker.id), chunks=chunks))
    assert verdict.reason == reason


def test_a_sink_is_written_on_any_partition_and_what_the_job_keeps_on_the_tasks_own(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    worker = slot(catalog, join(catalog), make_job(catalog, keep_dropped=True))
    post(catalog, clicks, {1: 10})
    task = worker.tasks()[1]
    own = [worker.joined.streams[name].id for name in ("visits-once-changelog", "visits-dropped")]
    for kept in own:
        foreign = commit_of(task, segment=register(catalog, worker.id), chunks=[chunk(kept, 0, 1)])
        assert worker.commit(foreign)[0].reason == "foreign_stream"
    chunks = [chunk(worker.joined.streams["visits-out"].id, 3, 1), *(chunk(kept, 1, 1) for kept in own)]
    (verdict,) = worker.commit(commit_of(task, segment=register(catalog, worker.id), chunks=chunks))
    assert verdict.status == "accepted"
    assert ends(catalog, "visits-out") == [0, 0, 0, 1]
    assert ends(catalog, "visits-dropped") == [0, 1, 0, 0]


@pytest.mark.parametrize("name", ["clicks", "payments", "other-out", "other-once-changelog"])
def test_a_commit_writes_no_stream_but_its_jobs_outputs(catalog: Catalog, worker: SlotDouble, name: str) -> None:
    make_stream(catalog, "payments")
    make_job(catalog, "other")
    before = ends(catalog, name)
    foreign = catalog.read(streams.get_stream, name).id
    good, *_ = [batch(catalog, task, worker.joined) for task in worker.tasks()]
    [segment] = good.segments
    bad = replace(good, segments=[replace(segment, chunks=[*segment.chunks, chunk(foreign, 0, 1)])])
    assert worker.commit(bad)[0].reason == "foreign_stream"
    assert (ends(catalog, name), ends(catalog, "visits-out")) == (before, [0, 0, 0, 0])
    assert worker.commit(good)[0].status == "accepted"


def test_a_segment_is_committed_by_who_registered_it(catalog: Catalog, worker: SlotDouble) -> None:
    task, changelog = worker.tasks()[0], worker.joined.stores["visits-once"].changelog
    commit = commit_of(task, segment=register(catalog, "another"), chunks=[chunk(changelog, 0, 1)])
    assert worker.commit(commit)[0].reason == "foreign_segment"
    assert ends(catalog, "visits-once-changelog") == [0, 0, 0, 0]


def test_an_unknown_task_is_refused(worker: SlotDouble) -> None:
    task = replace(worker.tasks()[0], task=new_id())
    assert worker.commit(commit_of(task))[0].reason == "unknown_task"


def test_a_zombie_is_refused(catalog: Catalog, worker: SlotDouble) -> None:
    commits = [batch(catalog, task, worker.joined) for task in worker.tasks()]
    tick(catalog)
    expire_slot(catalog, worker.id)
    assert tick(catalog) == 1
    assert {verdict.reason for verdict in worker.commit(*commits)} == {"stale_epoch"}
    assert ends(catalog, "visits-out") == [0, 0, 0, 0]


def test_a_slot_that_owned_a_task_before_is_refused_when_it_owns_it_again(catalog: Catalog, worker: SlotDouble) -> None:
    commits = {task.task: batch(catalog, task, worker.joined) for task in worker.tasks()}
    job = catalog.read(jobs.get_job, "visits")
    other = slot(catalog, join(catalog, "two"), job)
    worker.poll()
    moved = next(task.task for task in other.tasks())
    other.leave()
    assert len(worker.names()) == 4
    assert [verdict.reason for verdict in worker.commit(commits[moved])] == ["stale_epoch"]


def test_counters_add_up_and_stream_time_never_falls(catalog: Catalog, worker: SlotDouble) -> None:
    task = worker.tasks()[0]
    dropped = {"once": {"duplicate": 2}}
    worker.commit(commit_of(task, counters={"records_in": 5, "dropped": dropped}, stream_time=70))
    worker.commit(commit_of(replace(task, version=1), counters={"records_in": 1, "dropped": dropped}, stream_time=60))
    job = catalog.read(jobs.get_job, "visits")
    assert catalog.read(jobs.metrics, job.id) == {"records_in": 6, "dropped": {"once": {"duplicate": 4}}}
    assert catalog.read(jobs.marks_of, [job.id])[job.id].stream_time == 70


def test_figures_merge_by_their_kind_and_those_of_tasks_are_put_together(catalog: Catalog, worker: SlotDouble) -> None:
    first, second = worker.tasks()[:2]

    def held(last: int, low: int) -> dict[str, Any]:
        level = {"count": 1, "sum": last, "max": last, "last": last}
        return {"operators": {"s": {"emitted": 1, "buffer_records": level, "overtime_ms": {"count": 1, "min": low}}}}

    worker.commit(commit_of(first, counters=held(9, 5)), commit_of(second, counters=held(4, 7)))
    worker.commit(commit_of(replace(first, version=1), counters=held(2, 6)))
    tasks = {task.task: task.counters for task in catalog.read(totals.catalog_totals).tasks}
    assert tasks[first.name]["operators"]["s"] == {
        "emitted": 2,
        "buffer_records": {"count": 2, "sum": 11, "max": 9, "last": 2},
        "overtime_ms": {"count": 2, "min": 5},
    }
    job = catalog.read(jobs.get_job, "visits")
    assert catalog.read(jobs.metrics, job.id)["operators"]["s"] == {
        "emitted": 3,
        "buffer_records": {"count": 3, "sum": 15, "max": 9, "last": 2 + 4},
        "overtime_ms": {"count": 3, "min": 5},
    }


def test_lag_is_told_by_task_and_by_job(catalog: Catalog, worker: SlotDouble) -> None:
    worker.commit(batch(catalog, worker.tasks()[1], worker.joined))
    found = catalog.read(totals.catalog_totals)
    assert {task.task: task.lag.records for task in found.tasks} == {"0_0": 10, "0_1": 0, "0_2": 10, "0_3": 10}
    assert found.lag == {"visits": 30}


def test_commits_keep_the_lease_but_write_it_rarely(catalog: Catalog, worker: SlotDouble) -> None:
    before = lease_of(catalog, worker.id)
    task = worker.tasks()[0]
    worker.commit(commit_of(task))
    assert lease_of(catalog, worker.id) == before
    expire_slot(catalog, worker.id)
    worker.commit(commit_of(replace(task, version=1)))
    assert lease_of(catalog, worker.id) >= before


def test_a_job_is_caught_up_when_positions_and_replicas_are_at_their_ends(catalog: Catalog, worker: SlotDouble) -> None:
    job = catalog.read(jobs.get_job, "visits")
    assert not catalog.read(jobs.is_caught_up, job.id)
    assert worker.run() == 40
    assert not catalog.read(jobs.is_caught_up, job.id)
    worker.apply("visits-once", 10)
    worker.poll()
    assert catalog.read(jobs.is_caught_up, job.id)


def test_a_job_with_a_backlog_is_not_caught_up(catalog: Catalog, worker: SlotDouble) -> None:
    job = catalog.read(jobs.get_job, "visits")
    worker.run()
    worker.apply("visits-once", 10, has_backlog=True)
    worker.poll()
    assert not catalog.read(jobs.is_caught_up, job.id)
    worker.apply("visits-once", 10)
    worker.poll()
    assert catalog.read(jobs.is_caught_up, job.id)


def test_a_commit_of_several_tasks_takes_as_many_statements_as_of_one(catalog: Catalog, worker: SlotDouble) -> None:
    for task in worker.tasks():  # from then on it is known that their copies are restored
        worker.commit(commit_of(task))
    one, *others = [batch(catalog, task, worker.joined) for task in worker.tasks()]
    with statements(catalog) as of_one:
        worker.commit(one)
    with statements(catalog) as of_three:
        worker.commit(*others)
    assert of_three == of_one
    assert of_one == [
        "SELECT slots",
        "SELECT tasks",
        "SELECT replicas",
        "SELECT task_inputs",
        "SELECT segments",
        "SELECT job_streams",
        "SELECT partitions",
        "UPDATE tasks",
        "UPDATE segments",
        "INSERT INTO chunks",
        "UPDATE partitions",
    ]


def test_a_commit_without_segments_and_one_of_nothing_take_fewer(catalog: Catalog, worker: SlotDouble) -> None:
    task, *_ = worker.tasks()
    worker.commit(commit_of(task))
    with statements(catalog) as of_position:
        worker.commit(commit_of(replace(task, version=1), moves=[(0, 0, 10)]))
    with statements(catalog) as of_lease:
        worker.commit()
    assert of_position == ["SELECT slots", "SELECT tasks", "SELECT replicas", "SELECT task_inputs", "UPDATE tasks"]
    assert of_lease[0] == "SELECT slots"
    assert set(of_lease) <= set(of_position)


def test_a_poll_takes_three_statements_and_one_or_two_a_task_with_work(catalog: Catalog, worker: SlotDouble) -> None:
    worker.run()
    worker.poll()
    with statements(catalog) as idle:
        worker.poll()
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 1, 2: 1})
    with statements(catalog) as busy:
        worker.poll()
    assert idle == ["SELECT slots", "SELECT task_inputs", "SELECT tasks"]
    assert busy == [*idle, *["SELECT partitions", "SELECT segments"] * 2]


def test_several_segments_of_a_commit_are_published_in_their_order(catalog: Catalog, worker: SlotDouble) -> None:
    changelog, task = worker.joined.stores["visits-once"].changelog, worker.tasks()[0]
    written = [WrittenSegment(register(catalog, worker.id), 10, [chunk(changelog, 0, n)]) for n in (2, 3)]
    (verdict,) = worker.commit(replace(commit_of(task), segments=written))
    assert [(at.first_offset, at.end_offset) for at in verdict.published] == [(0, 2), (2, 5)]


def test_the_same_segment_or_input_twice_in_a_commit_is_refused(catalog: Catalog, worker: SlotDouble) -> None:
    changelog, task = worker.joined.stores["visits-once"].changelog, worker.tasks()[0]
    written = WrittenSegment(register(catalog, worker.id), 10, [chunk(changelog, 0, 2)])
    commits = [replace(commit_of(task), segments=[written, written]), commit_of(task, moves=[(0, 0, 5), (0, 0, 10)])]
    assert [verdict.reason for verdict in worker.commit(*commits)] == ["segment_twice", "wrong_position"]
    assert positions(catalog) == [0, 0, 0, 0]


def test_a_new_owner_has_its_replicas_to_show_before_the_job_is_caught_up(catalog: Catalog, worker: SlotDouble) -> None:
    job = catalog.read(jobs.get_job, "visits")
    worker.run()
    worker.leave()
    again = slot(catalog, join(catalog), job)
    again.poll()
    assert not catalog.read(jobs.is_caught_up, job.id)
    again.apply("visits-once", 10)
    again.poll()
    assert catalog.read(jobs.is_caught_up, job.id)
