"""Replays of dropped records in the catalog: handed out, and moved with the commit of what came of them."""

from __future__ import annotations

from typing import Any

import pytest

from service.catalog import jobs, replays, streams
from service.catalog.engine import Catalog
from service.catalog.tables import JobRow, TaskRow
from service.protocol import Advanced, AssignedTask, KeptRange, Move, Verdict
from service.streams.errors import ReplayUnderWay
from service.streams.topology.replays import Wanted
from tests.integration.catalog.world import SlotDouble, commit_of, join, make_job, make_stream, post, slot

LATE = Wanted(reason=["late"], to_timestamp=9)


@pytest.fixture
def job(catalog: Catalog) -> JobRow:
    make_stream(catalog, partitions=2)
    return make_job(catalog, keep_dropped=True, max_batch_records=5)


@pytest.fixture
def worker(catalog: Catalog, job: JobRow) -> SlotDouble:
    """A slot that owns the job's two tasks; seven records were dropped in partition 0, and a replay is asked for."""
    found = slot(catalog, join(catalog), job)
    post(catalog, catalog.read(streams.get_stream, "visits-dropped"), {0: 7})
    catalog.write(replays.ask_to_replay, "visits", LATE)
    return found


def handed_out(worker: SlotDouble) -> AssignedTask:
    return next(task for task in worker.tasks() if task.partition == 0)


def given(worker: SlotDouble) -> tuple[int, int, int] | None:
    at = handed_out(worker).replay
    return None if at is None else (at.range.input, at.range.start, at.range.end)


def move(worker: SlotDouble, start: int, end: int, **more: Any) -> Verdict:
    (verdict,) = worker.commit(commit_of(handed_out(worker), replayed=Move(1, start, end), **more))
    return verdict


def test_a_replay_goes_to_the_end_that_was_there_when_it_was_asked_for(
    catalog: Catalog, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, catalog.read(streams.get_stream, "visits-dropped"), {0: 3, 1: 2})
    assert {task.partition: isinstance(task.replay, KeptRange) for task in worker.tasks()} == {0: True, 1: False}
    assert worker.poll().is_ready
    assert (given(worker), handed_out(worker).replay.wanted) == ((1, 0, 5), LATE)  # type: ignore[union-attr]
    assert move(worker, 0, 5).status == "accepted"
    assert given(worker) == (1, 5, 7)
    assert not catalog.read(jobs.is_caught_up, job.id)
    assert move(worker, 5, 7).status == "accepted"
    assert given(worker) is None
    assert catalog.read(jobs.is_caught_up, job.id)


@pytest.mark.parametrize(("start", "end"), [(1, 5), (0, 8), (0, 0)], ids=["gap", "beyond the end", "nowhere"])
def test_a_replay_moves_from_where_it_stands_to_its_end_at_most(worker: SlotDouble, start: int, end: int) -> None:
    assert move(worker, start, end).reason == "wrong_position"
    assert given(worker) == (1, 0, 5)


def test_a_repeated_commit_moves_a_replay_once(worker: SlotDouble) -> None:
    commit = commit_of(handed_out(worker), replayed=Move(1, 0, 3))
    first = worker.commit(commit)
    assert worker.commit(commit) == first
    assert given(worker) == (1, 3, 7)


def test_a_replay_that_nobody_asked_for_is_refused(worker: SlotDouble) -> None:
    other = next(task for task in worker.tasks() if task.partition == 1)
    (verdict,) = worker.commit(commit_of(other, replayed=Move(1, 0, 1)))
    assert verdict.reason == "wrong_position"


def test_a_batch_replays_or_reads_or_advances(catalog: Catalog, worker: SlotDouble) -> None:
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 3})
    assert move(worker, 0, 5, moves=[(0, 0, 3)]).reason == "records_and_replay"
    assert move(worker, 0, 5, advance=Advanced(5, "flush")).reason == "records_and_advance"


def test_what_is_replayed_may_be_open(catalog: Catalog, job: JobRow, worker: SlotDouble) -> None:
    def is_closed() -> bool:
        return catalog.read(lambda s: s.get_one(TaskRow, handed_out(worker).task).is_closed)

    assert is_closed()
    move(worker, 0, 5)
    assert not is_closed()


def test_there_is_one_replay_at_a_time(catalog: Catalog, worker: SlotDouble) -> None:
    with pytest.raises(ReplayUnderWay):
        catalog.write(replays.ask_to_replay, "visits", Wanted())
    assert handed_out(worker).replay.wanted == LATE  # type: ignore[union-attr]
