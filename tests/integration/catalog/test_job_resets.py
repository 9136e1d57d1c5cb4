"""Resets in the catalog: a job as if it had just been made, under new ids; what it wrote for others stays."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from service import coordinator
from service.catalog import job_states, jobs, replays, segments, streams
from service.catalog.engine import Catalog, job_topic
from service.catalog.inputs import inputs_of_job
from service.catalog.tables import JobRow, ReplicaRow, StoreRow, TaskRow
from service.streams.errors import IllegalTransition, InstanceGone, InvalidSpec, UnknownJob
from service.streams.topology.replays import Wanted
from service.streams.topology.starts import START
from tests.integration.catalog.world import (
    batch,
    commit_of,
    ends,
    job_at_work,
    join,
    make_job,
    make_stream,
    post,
    register,
    slot,
    state_of,
)


def stopped(catalog: Catalog, **more: Any) -> JobRow:
    """The same, once it was flushed, asked to replay, and stopped."""
    job, worker = job_at_work(catalog, **more)
    catalog.write(job_states.flush_job, "visits")
    catalog.write(coordinator.change_job, "visits", "stop")
    worker.leave()
    return job


def reset(catalog: Catalog, start: object = "earliest", **more: Any) -> JobRow:
    return catalog.write(coordinator.reset_job, "visits", START.validate_python(start), **more)


def tasks(catalog: Catalog, job: JobRow) -> list[TaskRow]:
    of_job = select(TaskRow).where(TaskRow.job_id == job.id).order_by(TaskRow.partition)
    return catalog.read(lambda s: list(s.scalars(of_job)))


def ids(catalog: Catalog, job: JobRow) -> set[str]:
    """The ids of all stores and changelogs of a job."""
    return {each for store in catalog.read(jobs.stores_of, job.id) for each in (store.id, store.changelog_stream_id)}


def places(catalog: Catalog, job: JobRow) -> list[int]:
    return [at.position for at in catalog.read(jobs.positions, job.id)]


def test_a_reset_job_is_as_it_was_made_under_new_ids(catalog: Catalog) -> None:
    job = stopped(catalog, keep_dropped=True)
    catalog.write(replays.ask_to_replay, "visits", Wanted())
    before, kept = tasks(catalog, job), ids(catalog, job)
    out, dropped = catalog.read(streams.get_stream, "visits-out"), catalog.read(streams.get_stream, "visits-dropped")
    reset(catalog, who="me")
    after = tasks(catalog, job)
    assert [task.id for task in after] == [task.id for task in before]
    assert all(new.epoch > old.epoch and new.version > old.version for new, old in zip(after, before, strict=True))
    assert not ids(catalog, job) & kept
    assert places(catalog, job) == [0, 0]
    for task in after:
        as_new = (task.counters, task.stream_time, task.is_closed, task.flush_at, task.advanced, task.replay)
        assert as_new == ({}, -1, True, None, None, None)
    assert ends(catalog, "visits-once-changelog") == [0, 0]
    assert ends(catalog, "visits-out") == [10, 10]
    assert catalog.read(streams.get_stream, "visits-out").id == out.id
    assert catalog.read(streams.get_stream, "visits-dropped").id == dropped.id
    assert catalog.read(lambda s: list(s.scalars(select(ReplicaRow)))) == []
    assert state_of(catalog) == "stopped"


def test_a_replay_begins_behind_the_reset(catalog: Catalog) -> None:
    """What was dropped before is read again from the source, and is not to count twice."""
    stopped(catalog, keep_dropped=True)
    dropped = catalog.read(streams.get_stream, "visits-dropped")
    post(catalog, dropped, {0: 7, 1: 2})
    reset(catalog)
    post(catalog, dropped, {0: 3})
    asked = catalog.write(replays.ask_to_replay, "visits", Wanted())
    assert [tuple(at) for at in asked.partitions] == [(0, 7, 10), (1, 2, 2)]


def test_what_a_reset_frees_is_collected(catalog: Catalog) -> None:
    job = stopped(catalog)
    changelog = catalog.read(streams.get_stream, "visits-once-changelog")
    post(catalog, changelog, {0: 5})  # a segment of changes alone
    assert catalog.write(segments.drop_unreferenced) == 0
    reset(catalog)
    assert catalog.write(segments.drop_unreferenced) == 1
    assert ids(catalog, job)


def test_a_reset_job_reads_and_writes_again_once_it_runs(catalog: Catalog) -> None:
    job = stopped(catalog)
    reset(catalog)
    catalog.write(coordinator.change_job, "visits", "restart")
    worker = slot(catalog, join(catalog), job)
    assert {at.id for at in worker.joined.stores.values()} <= ids(catalog, job)
    assert worker.run() == 20
    assert ends(catalog, "visits-out") == [20, 20]
    assert ends(catalog, "visits-once-changelog") == [10, 10]
    assert catalog.read(jobs.metrics, job.id)["records_in"] == 20


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 0]),
        ("latest", [10, 10]),
        ({"timestamp": 3}, [0, 0]),
        ({"offsets": {"1": 4}}, [0, 4]),
        ({"offsets": {"clicks": {"0": 10}}}, [10, 0]),
    ],
)
def test_a_reset_takes_every_start(catalog: Catalog, start: object, expected: list[int]) -> None:
    job = stopped(catalog)
    reset(catalog, start)
    assert places(catalog, job) == expected


def test_a_timestamp_finds_the_records_that_it_is_given(catalog: Catalog) -> None:
    job = stopped(catalog)
    reset(catalog, {"timestamp": 3}, records={("clicks", 1): 3})
    assert places(catalog, job) == [0, 3]


@pytest.mark.parametrize(
    ("start", "pointer"),
    [
        ({"offsets": {"0": 11}}, "/start/offsets/0"),
        ({"offsets": {"clicks": {"1": 11}}}, "/start/offsets/clicks/1"),
        ({"offsets": {"2": 0}}, "/start/offsets/2"),
        ({"offsets": {"views": {"0": 0}}}, "/start/offsets/views"),
    ],
)
def test_a_start_that_is_not_there_changes_nothing(catalog: Catalog, start: object, pointer: str) -> None:
    job = stopped(catalog)
    kept, epochs = ids(catalog, job), [task.epoch for task in tasks(catalog, job)]
    with pytest.raises(InvalidSpec) as refused:
        reset(catalog, start)
    assert [each.pointer for each in refused.value.errors] == [pointer]
    assert (ids(catalog, job), [task.epoch for task in tasks(catalog, job)]) == (kept, epochs)
    assert places(catalog, job) == [10, 10]


@pytest.mark.parametrize("verb", [None, "pause"])
def test_a_job_that_may_run_is_not_reset(catalog: Catalog, verb: str | None) -> None:
    job_at_work(catalog)
    if verb is not None:
        catalog.write(coordinator.change_job, "visits", verb)
    with pytest.raises(IllegalTransition, match=f"{state_of(catalog)} can not be reset: `:stop` it first"):
        reset(catalog)


def test_a_job_that_drains_is_not_reset(catalog: Catalog) -> None:
    job_at_work(catalog)
    catalog.write(coordinator.change_job, "visits", "stop")
    with pytest.raises(IllegalTransition, match="draining"):
        reset(catalog)


def test_a_job_that_is_not_there_is_not_reset(catalog: Catalog) -> None:
    with pytest.raises(UnknownJob):
        reset(catalog)


def test_a_failed_job_is_stopped_by_a_reset_and_its_last_slot_ends(catalog: Catalog) -> None:
    job, worker = job_at_work(catalog)
    catalog.write(lambda s: job_states.fail_job(s, job_states.lock_job(s, name="visits"), {"detail": "why"}))
    reset(catalog)
    found = catalog.read(jobs.get_job, "visits")
    assert (found.state, found.error) == ("stopped", None)
    with pytest.raises(InstanceGone):
        worker.poll()
    assert places(catalog, job) == [0, 0]


def test_what_was_under_way_when_a_job_was_reset_never_counts(catalog: Catalog) -> None:
    job, worker = job_at_work(catalog)
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5})
    task = next(task for task in worker.tasks() if task.work)
    late = batch(catalog, task, worker.joined)
    catalog.write(lambda s: job_states.fail_job(s, job_states.lock_job(s, name="visits"), {"detail": "why"}))
    reset(catalog)
    (verdict,) = worker.commit(late)
    assert (verdict.status, verdict.reason) == ("refused", "stale_epoch")
    (verdict,) = worker.commit(commit_of(task, moves=[(0, 0, 15)], segment=register(catalog, worker.id)))
    assert verdict.reason == "stale_epoch"
    assert places(catalog, job) == [0, 0]
    assert ends(catalog, "visits-once-changelog") == [0, 0]


def test_a_second_reset_does_the_same_again(catalog: Catalog) -> None:
    job = stopped(catalog)
    reset(catalog, {"offsets": {"0": 4}})
    first, at = ids(catalog, job), places(catalog, job)
    reset(catalog, {"offsets": {"0": 4}})
    assert not ids(catalog, job) & first
    assert places(catalog, job) == at == [4, 0]


def at_sources(catalog: Catalog, job: JobRow) -> dict[tuple[str, int], int]:
    """Where a job stands in the streams of users."""
    found = catalog.read(jobs.positions, job.id)
    return {(at.stream, at.partition): at.position for at in found if at.stream in {"clicks", "views"}}


def test_every_source_has_a_start_of_its_own(catalog: Catalog) -> None:
    """One of them reaches the others' tasks through a repartition stream."""
    post(catalog, make_stream(catalog, "clicks", partitions=1), {0: 5})
    post(catalog, make_stream(catalog, "views", partitions=2), {0: 7, 1: 9})
    offsets = {"clicks": {"0": 2}, "views": {"1": 4}}
    job = make_job(catalog, source=["clicks", "views"], start={"offsets": offsets})
    assert at_sources(catalog, job) == {("clicks", 0): 2, ("views", 0): 0, ("views", 1): 4}
    catalog.write(coordinator.change_job, "visits", "stop")
    reset(catalog, {"offsets": {"views": {"0": 6}}})
    assert at_sources(catalog, job) == {("clicks", 0): 0, ("views", 0): 6, ("views", 1): 0}
    reset(catalog, {"timestamp": 3}, records={("clicks", 0): 3, ("views", 1): 3})
    assert at_sources(catalog, job) == {("clicks", 0): 3, ("views", 0): 0, ("views", 1): 3}
    with pytest.raises(InvalidSpec) as refused:
        reset(catalog, {"offsets": {"0": 1}})
    assert [each.pointer for each in refused.value.errors] == ["/start/offsets"]
    with pytest.raises(InvalidSpec) as refused:
        make_job(catalog, "other", source=["clicks", "views"], start={"offsets": {"clicks": {"1": 0}}})
    assert [each.pointer for each in refused.value.errors] == ["/start/offsets/clicks/1"]


def test_what_lay_between_sub_topologies_is_gone_and_a_flush_with_it(catalog: Catalog) -> None:
    clicks = make_stream(catalog, partitions=2)
    spread = {"op": "select_key", "key": "value->>'user'"}
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}
    job = make_job(catalog, operators=[spread, once])
    post(catalog, clicks, {0: 10})
    slot(catalog, join(catalog), job)
    between = catalog.read(streams.get_stream, "visits-once-repartition")
    post(catalog, between, {0: 3, 1: 4})
    catalog.write(job_states.flush_job, "visits")
    catalog.write(lambda s: job_states.fail_job(s, job_states.lock_job(s, name="visits"), {"detail": "why"}))
    reset(catalog)
    renewed = catalog.read(streams.get_stream, "visits-once-repartition")
    assert (renewed.id != between.id, renewed.kind, renewed.partitions) == (True, "repartition", 2)
    assert ends(catalog, "visits-once-repartition") == [0, 0]
    read = catalog.read(inputs_of_job, job.id).values()
    found = [[(at.stream_id, at.partition, at.sub_log, at.position) for at in each] for each in read]
    sources = [[(clicks.id, p, None, 0)] for p in range(2)]
    targets = [[(renewed.id, p, target, 0) for p in range(2)] for target in range(2)]
    assert sorted(map(str, found)) == sorted(map(str, sources + targets))
    assert catalog.read(jobs.get_job, "visits").flush is None
    assert not catalog.read(jobs.is_flushing, job.id)


def test_history_says_who_reset_to_where(catalog: Catalog) -> None:
    job = stopped(catalog)
    reset(catalog, {"offsets": {"0": 4}}, who="me")
    row = catalog.read(jobs.transitions_of, job.id)[0]
    assert (row.from_state, row.to_state, row.kind, row.who) == ("stopped", "stopped", "reset", "me")
    assert row.reason == 'reset: {"offsets": {"0": 4}}'
    assert row.details == {"start": {"offsets": {"0": 4}}}


def test_a_reset_wakes_who_waits_for_the_job(catalog: Catalog) -> None:
    job = stopped(catalog)
    woken: set[str] = set()
    catalog.on_wake(woken.update)
    reset(catalog)
    assert job_topic(job.id) in woken


def test_inputs_keep_their_numbers(catalog: Catalog) -> None:
    job = stopped(catalog)
    before = catalog.read(inputs_of_job, job.id)
    reset(catalog, "latest")
    assert catalog.read(inputs_of_job, job.id).keys() == before.keys()


def test_stores_keep_their_names_and_what_they_are(catalog: Catalog) -> None:
    job = stopped(catalog)

    def described(s: Session) -> list[tuple[Any, ...]]:
        rows = s.scalars(select(StoreRow).where(StoreRow.job_id == job.id))
        return [(row.name, row.operator, row.type, row.kind, row.sub_topology, row.spec) for row in rows]

    before = catalog.read(described)
    reset(catalog)
    assert catalog.read(described) == before
