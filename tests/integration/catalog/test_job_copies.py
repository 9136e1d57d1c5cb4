"""Copies of jobs in the catalog: what they share with the first, what is their own, and when files of both may go."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service import coordinator
from service.catalog import job_copies, job_creation, job_states, job_versions, jobs, segments, streams
from service.catalog.engine import Catalog
from service.catalog.tables import CatalogTable, ChunkRow, JobRow, PartitionRow, SkipRow, TaskInputRow, TaskRow
from service.streams.errors import IllegalTransition, IncompatibleChange, InternalStream, JobExists, StreamExists
from service.streams.topology import graph
from service.streams.topology.spec import JobSpec
from tests.integration.catalog.world import (
    ends,
    job_at_work,
    join,
    make_job,
    make_stream,
    post,
    slot,
    state_of,
)

SPREAD = {"op": "select_key", "key": "value->>'user'"}
ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}


def copy(catalog: Catalog, name: str = "trial", sink: Any = "trial-out", **more: Any) -> JobRow:
    def write(s: Session) -> JobRow:
        first = job_states.lock_job(s, name="visits")
        former = JobSpec.parse(first.spec)
        spec = JobSpec.parse({**first.spec, "name": name, "sink": sink})
        counts = {source: streams.get_stream(s, source).partitions for source in spec.sources}
        topology = graph.compile_again(spec, counts, former, graph.Topology.from_json(first.topology))
        return job_copies.copy_job(s, first, spec, topology, **more)

    return catalog.write(write)


def rows(catalog: Catalog, *tables: type[CatalogTable]) -> list[Any]:
    """All that is in these tables, or in every one."""
    names = [table.__table__ for table in tables] or CatalogTable.metadata.sorted_tables
    return catalog.read(lambda s: [sorted(map(repr, s.execute(select(table)).all())) for table in names])


def log_of(catalog: Catalog, name: str) -> list[tuple[Any, ...]]:
    """The partitions and chunks of a stream, without its id."""

    def read(s: Session) -> list[tuple[Any, ...]]:
        stream_id = streams.get_stream(s, name).id
        found: list[tuple[Any, ...]] = []
        for table in (PartitionRow, ChunkRow):
            columns = [column for column in table.__table__.columns if column.key != "stream_id"]
            found += map(tuple, s.execute(select(*columns).where(table.stream_id == stream_id).order_by(*columns[:2])))
        return found

    return catalog.read(read)


def tasks(catalog: Catalog, job: JobRow) -> list[TaskRow]:
    of_job = select(TaskRow).where(TaskRow.job_id == job.id).order_by(TaskRow.sub_topology, TaskRow.partition)
    return catalog.read(lambda s: list(s.scalars(of_job)))


def test_a_copy_stands_where_the_first_does_with_the_same_chunks(catalog: Catalog) -> None:
    first, _ = job_at_work(catalog, keep_dropped=True)
    catalog.write(
        lambda s: s.execute(
            update(TaskRow).values(stream_time=7, is_closed=False, has_backlog=True, advanced={"to": 7})
        )
    )
    copied = copy(catalog, who="me")
    assert log_of(catalog, "trial-once-changelog") == log_of(catalog, "visits-once-changelog")
    assert len(log_of(catalog, "trial-once-changelog")) == 4  # two partitions, a chunk in each
    for mine, theirs in zip(tasks(catalog, copied), tasks(catalog, first), strict=True):
        assert mine.positions == theirs.positions
        assert (mine.stream_time, mine.is_closed, mine.has_backlog) == (7, False, True)
        assert (mine.epoch, mine.version, mine.counters, mine.advanced, mine.spec_version) == (0, 0, {}, None, 1)
    assert ends(catalog, "trial-dropped") == [0, 0]
    assert ends(catalog, "trial-out") == [0, 0]
    [mine], [theirs] = (catalog.read(jobs.stores_of, each.id) for each in (copied, first))
    assert (mine.name, mine.operator, mine.type) == ("trial-once", theirs.operator, theirs.type)
    assert mine.spec == {**theirs.spec, "name": "trial-once", "changelog": "trial-once-changelog"}
    [line] = catalog.read(jobs.transitions_of, copied.id)
    assert (line.kind, line.who, line.details) == ("copy", "me", {"job": "visits", "version": 1})
    [version] = catalog.read(job_versions.versions_of, copied.id)
    assert (version.kind, version.version, version.spec) == ("copy", 1, copied.spec)


def test_the_first_is_untouched_and_both_go_on_alone(catalog: Catalog) -> None:
    first, worker = job_at_work(catalog)
    of_first = (TaskRow, ChunkRow, TaskInputRow)
    before = [set(each) for each in rows(catalog, *of_first)]
    copied = copy(catalog)
    assert all(was <= set(now) for was, now in zip(before, rows(catalog, *of_first), strict=True))
    beside = slot(catalog, join(catalog, "two"), copied)
    assert beside.run() == 0
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5})
    assert (beside.run(), worker.run()) == (5, 5)
    assert ends(catalog, "trial-once-changelog") == ends(catalog, "visits-once-changelog") == [15, 10]
    assert (ends(catalog, "trial-out"), ends(catalog, "visits-out")) == ([5, 0], [15, 10])
    assert catalog.read(jobs.metrics, copied.id)["records_in"] == 5
    assert catalog.read(jobs.metrics, first.id)["records_in"] == 25


def test_what_lies_between_sub_topologies_is_copied_and_read_by_the_same_numbers(catalog: Catalog) -> None:
    make_stream(catalog, partitions=2)
    first = make_job(catalog, operators=[SPREAD, ONCE])
    post(catalog, catalog.read(streams.get_stream, "visits-once-repartition"), {0: 3, 1: 4})
    copied = copy(catalog)
    assert log_of(catalog, "trial-once-repartition") == log_of(catalog, "visits-once-repartition")

    def read(job: JobRow) -> list[tuple[Any, ...]]:
        query = select(TaskRow.name, TaskInputRow).join(TaskInputRow, TaskInputRow.task_id == TaskRow.id)
        query = query.where(TaskRow.job_id == job.id).order_by(TaskRow.name, TaskInputRow.number)
        names = {stream.id: stream.name for stream in catalog.read(jobs.streams_of, job.id)}
        return [
            (task, at.number, names[at.stream_id].removeprefix(job.name), at.partition, at.partitions, at.sub_log)
            for task, at in catalog.read(lambda s: s.execute(query).all())
        ]

    assert read(copied) == read(first)
    assert ("1_1", 0, "-once-repartition", 0, 2, 1) in read(copied)
    lags = [(at.stream.removeprefix("trial"), at.partition, at.lag) for at in catalog.read(jobs.positions, copied.id)]
    assert ("-once-repartition", 1, 4) in lags


def test_records_to_pass_over_are_passed_over_by_both(catalog: Catalog) -> None:
    first, _ = job_at_work(catalog)
    clicks = catalog.read(streams.get_stream, "clicks").id
    catalog.write(lambda s: s.add(SkipRow(job_id=first.id, stream_id=clicks, partition=1, offset=12)))
    copied = copy(catalog)
    found = catalog.read(lambda s: s.scalars(select(SkipRow).where(SkipRow.job_id == copied.id)).all())
    assert [(at.stream_id, at.partition, at.offset) for at in found] == [(clicks, 1, 12)]


def test_segments_of_both_go_once_neither_names_them(catalog: Catalog) -> None:
    job_at_work(catalog)
    post(catalog, catalog.read(streams.get_stream, "visits-once-changelog"), {0: 5})  # a segment of changes alone
    copied = copy(catalog)
    catalog.write(coordinator.change_job, "visits", "stop")
    catalog.write(lambda s: job_states.lock_job(s, name="visits").__setattr__("state", "stopped"))
    catalog.write(job_creation.delete_job, "visits")
    assert catalog.write(segments.drop_unreferenced) == 0
    assert ends(catalog, "trial-once-changelog") == [15, 10]
    catalog.write(coordinator.change_job, "trial", "stop")
    assert state_of(catalog, "trial") == "stopped"
    catalog.write(job_creation.delete_job, "trial")
    assert catalog.write(segments.drop_unreferenced) == 1
    assert catalog.read(job_versions.versions_of, copied.id) == []


def test_a_copy_may_begin_paused(catalog: Catalog) -> None:
    job_at_work(catalog)
    copied = copy(catalog, sink=None, is_paused=True)
    assert state_of(catalog, "trial") == "paused"
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5})
    beside = slot(catalog, join(catalog, "two"), copied)
    assert beside.run() == 0
    catalog.write(coordinator.change_job, "trial", "resume")
    assert [len(task.work) for task in beside.tasks()] == [1, 0]


@pytest.mark.parametrize(
    ("how", "refusal", "pointer"),
    [
        ({"name": "visits"}, JobExists, "/name"),
        ({"sink": "visits-out"}, IncompatibleChange, "/sink"),
        ({"sink": [{"stream": "a"}, {"stream": "visits-out"}]}, IncompatibleChange, "/sink/1/stream"),
        ({"sink": "visits-once-changelog"}, InternalStream, "/sink"),
        ({"name": "taken"}, StreamExists, "/name"),
    ],
)
def test_what_can_not_be_copied_so_is_refused_and_nothing_changes(
    catalog: Catalog, how: dict[str, Any], refusal: type[Exception], pointer: str
) -> None:
    job_at_work(catalog)
    make_stream(catalog, "taken-once-changelog", partitions=1)
    before = rows(catalog)
    with pytest.raises(refusal) as refused:
        copy(catalog, **how)
    assert [each.pointer for each in refused.value.errors] == [pointer]  # type: ignore[attr-defined]
    assert rows(catalog) == before


def test_a_job_whose_tasks_have_a_change_to_take_over_is_not_copied(catalog: Catalog) -> None:
    job_at_work(catalog)
    catalog.write(lambda s: s.execute(update(TaskRow).values(next_version=2)))
    before = rows(catalog)
    with pytest.raises(IllegalTransition, match="still to take its last change over"):
        copy(catalog)
    assert rows(catalog) == before
