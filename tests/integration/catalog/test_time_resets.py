"""Stream time set back in the catalog: what rows say, what tasks take over, what has to be done before."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from service import coordinator
from service.catalog import job_copies, job_states, replays, streams
from service.catalog.engine import Catalog
from service.catalog.inputs import pack, unpack
from service.catalog.tables import JobRow, JobTransitionRow, TaskRow
from service.streams.errors import IllegalTransition, ReplayUnderWay, UnknownJob
from service.streams.inputs import InputPosition
from service.streams.operators.aggregate import AggregateSpec
from service.streams.records import Handover
from service.streams.topology.graph import Topology
from service.streams.topology.replays import Wanted
from service.streams.topology.spec import JobSpec
from tests.integration.catalog.test_job_versions import adopt, given, once, put, reasons, versions_of_tasks, windows
from tests.integration.catalog.world import (
    SlotDouble,
    commit_of,
    job_at_work,
    join,
    make_job,
    make_stream,
    post,
    slot,
)

AHEAD = 4_070_908_800_000  # 2099


def stopped(catalog: Catalog, *operators: Any, **more: Any) -> JobRow:
    """A job over two partitions, one of which had a record from far ahead."""
    job, worker = job_at_work(catalog, operators=list(operators or [once()]), **more)
    catalog.write(coordinator.change_job, "visits", "stop")
    worker.leave()
    for task, time in zip(tasks(catalog), (AHEAD, 500), strict=True):
        values = {"stream_time": time, "positions": pack([InputPosition(10, time)])}
        catalog.write(lambda s, t=task, v=values: s.execute(update(TaskRow).where(TaskRow.id == t.id).values(v)))
    return job


def tasks(catalog: Catalog) -> list[TaskRow]:
    query = select(TaskRow).order_by(TaskRow.sub_topology, TaskRow.partition)
    return catalog.read(lambda s: list(s.scalars(query)))


def set_back(catalog: Catalog, to: int = 1_000) -> list[tuple[str, int]]:
    return [tuple(each) for each in catalog.write(coordinator.reset_time, "visits", to, who="me")]


def restarted(catalog: Catalog, job: JobRow) -> SlotDouble:
    catalog.write(coordinator.change_job, "visits", "restart")
    return slot(catalog, join(catalog), job)


def test_tasks_that_are_ahead_are_set_back_with_what_they_know_of_their_inputs(catalog: Catalog) -> None:
    stopped(catalog)
    before = tasks(catalog)
    assert set_back(catalog) == [("0_0", AHEAD)]
    ahead, other = tasks(catalog)
    assert (ahead.stream_time, ahead.set_back_to, ahead.next_version) == (1_000, 1_000, 1)
    assert (other.stream_time, other.set_back_to, other.next_version) == (500, None, None)
    assert [unpack(task.positions) for task in (ahead, other)] == [[InputPosition(10, 1_000)], [InputPosition(10, 500)]]
    assert all(now.epoch > was.epoch for now, was in zip((ahead, other), before, strict=True))
    line = catalog.read(lambda s: s.scalars(select(JobTransitionRow).order_by(JobTransitionRow.id.desc())).first())
    assert line is not None
    assert (line.kind, line.from_state, line.to_state, line.who) == ("reset_time", "stopped", "stopped", "me")
    assert line.details == {"stream_time": 1_000}


def test_asked_again_it_changes_nothing_and_it_never_raises_time(catalog: Catalog) -> None:
    stopped(catalog)
    set_back(catalog)
    before = [(task.version, task.epoch, task.set_back_to) for task in tasks(catalog)]
    assert set_back(catalog) == set_back(catalog, AHEAD) == []
    assert [(task.version, task.epoch, task.set_back_to) for task in tasks(catalog)] == before
    assert set_back(catalog, 400) == [("0_0", 1_000), ("0_1", 500)]
    assert [task.set_back_to for task in tasks(catalog)] == [400, 400]


def test_the_next_commit_of_a_task_takes_it_over_and_nothing_comes_before_it(catalog: Catalog) -> None:
    job = stopped(catalog)
    set_back(catalog)
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5, 1: 5})
    worker = restarted(catalog, job)
    ahead, other = worker.tasks()
    assert given(ahead) == {"visits-once": Handover(kept_ms=1_000, stream_time=1_000)}
    assert (ahead.work, given(other), bool(other.work)) == ([], None, True)
    assert reasons(worker.commit(commit_of(ahead, moves=[(0, 10, 15)]))) == ["not_adopted"]
    assert reasons(adopt(worker)) == [None]
    done = tasks(catalog)[0]
    assert (done.set_back_to, done.next_version, done.stream_time) == (None, None, 1_000)
    assert worker.tasks()[0].work


def test_a_version_that_follows_is_taken_over_with_it_in_one_step(catalog: Catalog) -> None:
    job = stopped(catalog, windows(5), once())
    set_back(catalog)
    put(catalog, windows(9), once())
    put(catalog, windows(9), once(), restart=("once",))
    assert versions_of_tasks(catalog) == [(1, 3), (1, 3)]
    left = AggregateSpec.model_validate(windows(5)).handover()
    ahead, other = restarted(catalog, job).tasks()
    assert given(ahead) == {
        "visits-n": Handover(left.delay_ms, left.kept_ms, stream_time=1_000),
        "visits-once": Handover(begins_at=1_000),
    }
    assert given(other) == {"visits-n": left, "visits-once": Handover(begins_at=500)}


def test_a_version_that_bears_nothing_over_leaves_what_is_pending(catalog: Catalog) -> None:
    job = stopped(catalog)
    set_back(catalog)
    put(catalog, {"op": "filter", "where": "true"}, once())
    assert versions_of_tasks(catalog) == [(1, 2), (2, None)]
    assert given(restarted(catalog, job).tasks()[0]) == {"visits-once": Handover(kept_ms=1_000, stream_time=1_000)}


def test_a_reset_to_a_start_leaves_nothing_of_it(catalog: Catalog) -> None:
    stopped(catalog)
    set_back(catalog)
    catalog.write(coordinator.reset_job, "visits", "earliest")
    assert [(task.set_back_to, task.next_version, task.stream_time) for task in tasks(catalog)] == [
        (None, None, -1)
    ] * 2


def test_it_is_not_copied_before_it_is_taken_over(catalog: Catalog) -> None:
    stopped(catalog)
    set_back(catalog)

    def copy(s: Any) -> object:
        job = job_states.lock_job(s, name="visits")
        spec = JobSpec.parse({**job.spec, "name": "second", "sink": None})
        return job_copies.copy_job(s, job, spec, Topology.from_json(job.topology))

    with pytest.raises(IllegalTransition):
        catalog.write(copy)


# ---------------------------------------------------------------- what has to be done before


def test_a_job_that_works_is_stopped_first(catalog: Catalog) -> None:
    job_at_work(catalog)
    with pytest.raises(IllegalTransition, match="stop"):
        set_back(catalog)
    with pytest.raises(UnknownJob):
        catalog.write(coordinator.reset_time, "nobody", 0)


def test_what_was_asked_for_comes_first(catalog: Catalog) -> None:
    job = stopped(catalog, keep_dropped=True)
    dropped = catalog.read(streams.get_stream, "visits-dropped")
    post(catalog, dropped, {0: 1})
    catalog.write(replays.ask_to_replay, "visits", Wanted())
    with pytest.raises(ReplayUnderWay):
        set_back(catalog)
    catalog.write(lambda s: s.execute(update(TaskRow).values(replay=None, flush_at=[10])))
    with pytest.raises(IllegalTransition, match="flush"):
        set_back(catalog)
    catalog.write(lambda s: s.execute(update(TaskRow).values(flush_at=None, has_backlog=True)))
    with pytest.raises(IllegalTransition, match="restart"):
        set_back(catalog)
    assert job.id
    assert [task.stream_time for task in tasks(catalog)] == [AHEAD, 500]


def test_what_is_on_its_way_to_other_tasks_is_read_first(catalog: Catalog) -> None:
    make_stream(catalog, partitions=2)
    spread = {"op": "select_key", "key": "value->>'user'"}
    make_job(catalog, operators=[spread, once()])
    catalog.write(coordinator.change_job, "visits", "stop")
    between = catalog.read(streams.get_stream, "visits-once-repartition")
    post(catalog, between, {0: 3})
    catalog.write(lambda s: s.execute(update(TaskRow).values(stream_time=AHEAD)))
    with pytest.raises(IllegalTransition, match="what others of them wrote"):
        set_back(catalog)
