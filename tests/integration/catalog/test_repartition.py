"""Jobs of several sub-topologies in the catalog: what targets get of repartition logs, how far they go, who waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from msgspec.structs import replace
from sqlalchemy import func, select, update

from service import coordinator
from service.catalog import inputs, job_creation, job_states, jobs, repartitions, totals
from service.catalog.engine import Catalog, partition_topic, stream_topic, target_topic
from service.catalog.tables import ChunkRow, JobRow, PartitionRow, StreamRow, TaskInputRow, TaskRow
from service.coordinator import PASS_OVER_MS
from service.protocol import Advanced, AdvanceReason, AssignedTask, Move, TaskCommit
from service.ranges import RANGE, pack, unpack
from service.streams.errors import UnknownPartition
from service.streams.records import ChunkMeta
from tests.integration.catalog.world import (
    SlotDouble,
    commit_of,
    ends,
    join,
    make_job,
    make_stream,
    post,
    register,
    slot,
    statements,
    tick,
)

SPREAD = {"op": "repartition", "name": "spread"}
ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}
AGAIN = {"op": "repartition", "name": "again"}
IDLE_MS = 5_000


def routed(stream_id: str, partition: int, rows: Mapping[int, int], *, bytes_a_row: int = 8) -> ChunkMeta:
    """A chunk with so many records for each target."""
    found = np.zeros(len(rows), RANGE)
    found["target"], found["rows"] = list(rows), list(rows.values())
    found["first_row"] = np.cumsum(found["rows"]) - found["rows"]
    found["byte_length"] = found["rows"] * bytes_a_row
    found["byte_offset"] = found["first_row"] * bytes_a_row
    count = sum(rows.values())
    return ChunkMeta(stream_id, partition, count, 0, count, 0, count * bytes_a_row, 7, ranges=pack(found))


def stream_id(worker: SlotDouble, name: str) -> str:
    return worker.joined.streams[name].id


def log(worker: SlotDouble) -> str:
    return stream_id(worker, "visits-spread-repartition")


def task_of(worker: SlotDouble, name: str) -> AssignedTask:
    return next(task for task in worker.tasks() if task.name == name)


def read_to_end(task: AssignedTask, frontier: int = -1) -> list[Move]:
    unread = [(number, at) for number, at in enumerate(task.inputs) if at.position < at.end]
    return [Move(number, at.position, at.end, frontier) for number, at in unread]


def accept(worker: SlotDouble, *commits: TaskCommit) -> None:
    assert [verdict.reason for verdict in worker.commit(*commits)] == [None] * len(commits)


def write(
    worker: SlotDouble,
    name: str,
    rows: Mapping[int, int],
    *,
    stream: str = "",
    frontier: int = -1,
    bytes_a_row: int = 8,
) -> None:
    """A task reads all that it has, and writes so many records for each target."""
    task = task_of(worker, name)
    chunks = [routed(stream or log(worker), task.partition, rows, bytes_a_row=bytes_a_row)] if rows else []
    segment = register(worker.catalog, worker.id) if rows else None
    commit = commit_of(task, segment=segment, chunks=chunks)
    accept(worker, replace(commit, positions=read_to_end(task, frontier)))


def read(worker: SlotDouble, *names: str, frontier: int = -1) -> None:
    """Tasks read all that they have."""
    tasks = [task for task in worker.tasks() if task.name in names]
    accept(worker, *(replace(commit_of(task), positions=read_to_end(task, frontier)) for task in tasks))


def targets(task: AssignedTask) -> list[tuple[int, int, int, list[int]]]:
    """(input, start, end, own rows a chunk) of what a task is given."""
    return [
        (at.input, at.start, at.end, [int(unpack(chunk.ranges or b"")["rows"].sum()) for chunk in at.chunks])
        for at in task.work
    ]


def be_silent(catalog: Catalog, for_ms: int) -> None:
    earlier = update(PartitionRow).values(published_ms=PartitionRow.published_ms - for_ms)
    catalog.write(lambda s: s.execute(earlier))


@pytest.fixture
def clicks(catalog: Catalog) -> StreamRow:
    return make_stream(catalog, partitions=2)


@pytest.fixture
def job(catalog: Catalog, clicks: StreamRow) -> JobRow:
    """Two source tasks, two targets."""
    return make_job(catalog, operators=[SPREAD, ONCE])


@pytest.fixture
def worker(catalog: Catalog, job: JobRow) -> SlotDouble:
    return slot(catalog, join(catalog), job)


# ---------------------------------------------------------------- made, deleted


def test_a_task_has_one_row_for_all_logs_of_a_repartition_stream(
    catalog: Catalog, job: JobRow, worker: SlotDouble
) -> None:
    query = select(TaskRow.name, TaskInputRow.number, TaskInputRow.partition).join(TaskRow).order_by(TaskRow.name)
    rows = catalog.read(lambda s: s.execute(query.add_columns(TaskInputRow.partitions, TaskInputRow.sub_log)).all())
    assert rows == [("0_0", 0, 0, 1, None), ("0_1", 0, 1, 1, None), ("1_0", 0, 0, 2, 0), ("1_1", 0, 0, 2, 1)]
    assert [len(at) for at in catalog.read(inputs.inputs_of_job, job.id).values()].count(2) == 2
    heads = task_of(worker, "1_1").inputs
    assert [(at.stream_id, at.partition, at.sub_log) for at in heads] == [(log(worker), 0, 1), (log(worker), 1, 1)]
    assert worker.joined.streams["visits-spread-repartition"].partitions == 2


def test_repartition_streams_go_with_their_job(catalog: Catalog, job: JobRow, worker: SlotDouble) -> None:
    catalog.write(coordinator.change_job, "visits", "stop")
    worker.leave()
    catalog.write(job_creation.delete_job, "visits")
    kinds = catalog.read(lambda s: s.scalars(select(StreamRow.kind)).all())
    assert set(kinds) == {"user"}


def test_who_writes_a_repartition_stream_is_known_after_a_reset_too(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    write(worker, "0_0", {1: 1})
    catalog.write(coordinator.change_job, "visits", "stop")
    worker.leave()
    catalog.write(coordinator.reset_job, "visits", "earliest")
    catalog.write(coordinator.change_job, "visits", "restart")
    again = slot(catalog, join(catalog), job)
    write(again, "0_0", {1: 2})
    assert log(again) != log(worker)
    assert targets(task_of(again, "1_1")) == [(0, 0, 2, [2])]


def test_sources_of_different_counts_are_inputs_in_their_order(catalog: Catalog) -> None:
    make_stream(catalog, "clicks", partitions=1)
    make_stream(catalog, "views", partitions=2)
    job = make_job(catalog, source=["clicks", "views"])
    worker = slot(catalog, join(catalog), job)
    assert worker.names() == ["0_0", "1_0", "1_1"]
    names = {at.id: name for name, at in worker.joined.streams.items()}
    heads = task_of(worker, "1_1").inputs
    assert [(names[at.stream_id], at.partition, at.sub_log) for at in heads] == [
        ("visits-clicks-repartition", 0, 1),
        ("views", 1, None),
    ]


def test_a_stateless_job_reads_the_partitions_that_there_are(catalog: Catalog) -> None:
    make_stream(catalog, "clicks", partitions=1)
    make_stream(catalog, "views", partitions=2)
    only = {"op": "filter", "where": "value is not null"}
    worker = slot(catalog, join(catalog), make_job(catalog, source=["clicks", "views"], operators=[only]))
    assert [(task.name, len(task.inputs)) for task in worker.tasks()] == [("0_0", 2), ("0_1", 1)]


# ---------------------------------------------------------------- read


def test_a_target_gets_its_own_part_of_each_log_and_passes_over_the_others(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 5, 1: 5})
    write(worker, "0_0", {0: 3, 1: 2})
    write(worker, "0_0", {1: 4})
    write(worker, "0_1", {0: 1})
    assert targets(task_of(worker, "1_0")) == [(0, 0, 9, [3]), (1, 0, 1, [1])]
    assert targets(task_of(worker, "1_1")) == [(0, 0, 9, [2, 4]), (1, 0, 1, [])]
    [given, *_] = task_of(worker, "1_1").work
    assert unpack(given.chunks[0].ranges or b"")[["target", "first_row", "rows"]].tolist() == [(1, 3, 2)]


def test_a_position_is_an_offset_inside_a_chunk_and_behind_its_own_part_of_it(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 5})
    write(worker, "0_0", {0: 3, 1: 2})
    for start, end, own in ((0, 2, [3]), (2, 3, [3]), (3, 5, [])):
        task = task_of(worker, "1_0")
        assert targets(task) == [(0, start, 5, own)]
        accept(worker, commit_of(task, moves=[(0, start, end)]))
    assert task_of(worker, "1_0").work == []


@pytest.mark.parametrize(("most", "end", "own"), [(2, 2, [3]), (3, 5, [3]), (4, 8, [3, 3]), (100, 10, [3, 3])])
def test_no_more_of_its_own_records_than_a_batch_may_have(
    catalog: Catalog, clicks: StreamRow, most: int, end: int, own: list[int]
) -> None:
    job = make_job(catalog, operators=[SPREAD, ONCE], max_batch_records=most)
    worker = slot(catalog, join(catalog), job)
    post(catalog, clicks, {0: 1})
    write(worker, "0_0", {0: 3, 1: 2})
    write(worker, "0_0", {0: 3, 1: 2})
    assert targets(task_of(worker, "1_0")) == [(0, 0, end if most != 4 else 6, own)]


# its slot, its job's logs, its tasks, their changelogs
OF_SLOT = ["SELECT slots", "SELECT job_streams", "SELECT task_inputs", "SELECT tasks"]


def test_only_who_reads_what_others_write_is_told_how_far_they_are(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    worker.tasks()
    worker.poll()
    post(catalog, clicks, {0: 1})
    with statements(catalog) as of_source:
        assert [task.name for task in worker.tasks() if task.work] == ["0_0"]
    assert of_source == [*OF_SLOT, "SELECT partitions", "SELECT segments"]
    write(worker, "0_0", {0: 1})
    with statements(catalog) as of_target:
        assert worker.poll().is_ready
    assert of_target == [*OF_SLOT, "SELECT tasks", "SELECT chunks"]


def test_a_poll_reads_repartition_logs_with_one_statement_however_many_there_are(catalog: Catalog) -> None:
    counts = {}
    for n in (2, 8):
        make_stream(catalog, f"clicks{n}", partitions=n)
        job = make_job(catalog, f"job{n}", source=f"clicks{n}", operators=[SPREAD, ONCE])
        worker = slot(catalog, join(catalog, f"instance{n}"), job)
        stream = stream_id(worker, f"job{n}-spread-repartition")
        tasks = worker.tasks()
        rows = dict.fromkeys(range(n), 1)
        commits = [routed_commit(worker, task, stream, rows) for task in tasks if task.sub_topology == 0]
        with statements(catalog) as of_write:
            accept(worker, *commits)
        with statements(catalog) as of_poll:
            tasks = [task for task in worker.tasks() if task.sub_topology == 1]
        assert [len(task.work) for task in tasks] == [n] * n
        with statements(catalog) as of_read:
            accept(worker, *(replace(commit_of(task), positions=read_to_end(task)) for task in tasks))
        counts[n] = (of_write, of_poll, of_read)
    assert counts[2] == counts[8]
    of_poll = counts[8][1]
    assert of_poll == [*OF_SLOT, "SELECT tasks", "SELECT chunks"]
    assert counts[8][2].count("SELECT task_inputs") == counts[8][2].count("SELECT partitions") == 1


def routed_commit(worker: SlotDouble, task: AssignedTask, stream: str, rows: Mapping[int, int]) -> TaskCommit:
    segment = register(worker.catalog, worker.id)
    return commit_of(task, segment=segment, chunks=[routed(stream, task.partition, rows)])


def test_a_commit_for_64_targets_makes_one_chunk_row(catalog: Catalog) -> None:
    make_stream(catalog, partitions=64)
    job = make_job(catalog, operators=[SPREAD, ONCE])
    worker = slot(catalog, join(catalog), job)
    tasks = worker.tasks()
    query = select(func.count()).select_from(TaskInputRow)
    assert catalog.read(lambda s: s.scalars(query).one()) == 128
    before = catalog.read(lambda s: s.scalars(select(func.count()).select_from(ChunkRow)).one())
    with statements(catalog) as seen:
        accept(worker, routed_commit(worker, tasks[0], log(worker), dict.fromkeys(range(64), 1)))
    after = catalog.read(lambda s: s.scalars(select(func.count()).select_from(ChunkRow)).one())
    assert after - before == 1
    assert seen.count("INSERT INTO chunks") == seen.count("UPDATE partitions") == 1
    given = [task for task in worker.tasks() if task.sub_topology == 1]
    assert [targets(task) for task in given] == [[(0, 0, 64, [1])]] * 64


# ---------------------------------------------------------------- written


@pytest.mark.parametrize(
    ("name", "partition", "rows"),
    [("0_0", 1, {0: 1}), ("1_0", 0, {0: 1}), ("0_0", 0, None)],
    ids=["another's log", "another sub-topology's", "no ranges"],
)
def test_a_task_writes_its_own_log_with_ranges(
    worker: SlotDouble, name: str, partition: int, rows: dict[int, int] | None
) -> None:
    task = task_of(worker, name)
    chunk = routed(log(worker), partition, rows or {0: 1})
    chunk = chunk if rows else replace(chunk, ranges=None)
    (verdict,) = worker.commit(commit_of(task, segment=register(worker.catalog, worker.id), chunks=[chunk]))
    assert verdict.reason == "foreign_stream"


def test_ranges_are_for_repartition_logs_only(worker: SlotDouble) -> None:
    chunk = routed(stream_id(worker, "visits-out"), 0, {0: 1})
    segment = register(worker.catalog, worker.id)
    (verdict,) = worker.commit(commit_of(task_of(worker, "1_0"), segment=segment, chunks=[chunk]))
    assert verdict.reason == "foreign_stream"


@pytest.mark.parametrize("change", [{"records": 4}, {"byte_length": 23}, {"ranges": b"x"}, {"ranges": b""}])
def test_ranges_that_do_not_fit_their_chunk_are_refused(worker: SlotDouble, change: dict[str, object]) -> None:
    chunk = replace(routed(log(worker), 0, {0: 1, 3: 2}), **change)
    segment = register(worker.catalog, worker.id)
    (verdict,) = worker.commit(commit_of(task_of(worker, "0_0"), segment=segment, chunks=[chunk]))
    assert verdict.reason == "wrong_ranges"


# ---------------------------------------------------------------- how far


def heads(worker: SlotDouble, name: str) -> list[tuple[int, bool]]:
    """(bound, is caught up) of each input."""
    return [(at.bound, at.is_caught_up) for at in task_of(worker, name).inputs]


def test_a_log_brings_nothing_below_what_its_source_task_has_read(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 5, 1: 5})
    assert heads(worker, "1_0") == [(-1, False), (-1, False)]
    write(worker, "0_0", {0: 3, 1: 2}, frontier=700)
    post(catalog, clicks, {0: 1})
    assert heads(worker, "1_0") == [(700, False), (-1, False)]
    write(worker, "0_0", {}, frontier=900)
    assert heads(worker, "1_0") == [(900, True), (-1, False)]


def test_nobody_waits_for_a_source_partition_without_records_only_as_long_as_it_is_given(
    catalog: Catalog, clicks: StreamRow
) -> None:
    job = make_job(catalog, operators=[SPREAD, ONCE], max_task_idle_ms=60_000)
    worker = slot(catalog, join(catalog), job)
    post(catalog, clicks, {0: 1})
    write(worker, "0_0", {0: 1}, frontier=700)
    assert heads(worker, "1_0") == [(700, False), (-1, True)]
    hold(worker, "1_0")
    again_ms = worker.poll().look_again_ms
    assert again_ms is not None
    assert 0 < again_ms <= 60_000
    be_silent(catalog, 60_000)
    assert heads(worker, "1_0") == [(700, True), (-1, True)]


def test_what_a_task_owes_keeps_others_waiting(catalog: Catalog, clicks: StreamRow, worker: SlotDouble) -> None:
    post(catalog, clicks, {0: 5, 1: 5})
    write(worker, "0_1", {0: 1}, frontier=50)
    task = task_of(worker, "0_0")
    accept(worker, replace(commit_of(task, has_backlog=True), positions=read_to_end(task, 700)))
    assert heads(worker, "1_0") == [(700, False), (50, True)]
    accept(worker, commit_of(replace(task, version=1)))
    assert heads(worker, "1_0") == [(700, True), (50, True)]
    catalog.write(job_states.flush_job, "visits")
    assert heads(worker, "1_0") == [(700, False), (50, False)]


def three_stages(catalog: Catalog, **more: object) -> SlotDouble:
    job = make_job(catalog, operators=[SPREAD, {**ONCE, "name": "first"}, AGAIN, ONCE], **more)
    return slot(catalog, join(catalog), job)


def test_the_middle_is_as_far_as_what_reaches_it_even_where_one_log_is_silent(
    catalog: Catalog, clicks: StreamRow
) -> None:
    worker = three_stages(catalog)
    second = stream_id(worker, "visits-again-repartition")
    for time in (700, 800):
        post(catalog, clicks, {0: 2})
        write(worker, "0_0", {0: 1, 1: 1}, frontier=time)
        post(catalog, clicks, {0: 1})  # steady input: never caught up; partition 1 has nothing at all
        assert heads(worker, "2_0") == [(time - 100 if time > 700 else -1, False)] * 2
        for name in ("1_0", "1_1"):
            write(worker, name, {0: 1}, stream=second, frontier=time)
        assert heads(worker, "2_0") == [(time, False)] * 2


def hold(worker: SlotDouble, name: str) -> None:
    """The slot finds nothing to run in what it knows of a task."""
    digest = task_of(worker, name)
    held = replace(next(at for at in worker.held if at.task == digest.task), held_at=digest.heads_digest)
    worker.held = [held if at.task == held.task else at for at in worker.held]


def test_a_task_that_found_nothing_to_run_is_not_due_until_something_changes(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 5, 1: 5})
    write(worker, "0_0", {0: 3}, frontier=700)
    read(worker, "1_1")
    hold(worker, "1_0")
    other = coordinator.poll_slot(catalog, worker.id, worker.held)
    assert [(task.name, bool(task.work)) for task in other.answer.tasks] == [
        ("0_0", False),
        ("0_1", True),
        ("1_0", False),
        ("1_1", False),
    ]
    assert f"progress:{worker.joined.job.id}" in other.topics
    held = worker.held
    write(worker, "0_1", {}, frontier=10)
    again = coordinator.poll_slot(catalog, worker.id, held)
    assert [task.name for task in again.answer.tasks if task.is_due] == ["1_0"]
    assert again.is_ready


def test_a_task_awaits_its_own_records_and_can_wait_with_those_of_others(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    own, others = {target: target_topic(log(worker), target) for target in range(2)}, stream_topic(log(worker))
    found = worker.poll()
    assert found.pressing >= {*own.values(), *(partition_topic(clicks.id, p) for p in range(2))}
    assert found.patient == {others}
    woken = set[str]()
    catalog.on_wake(woken.update)
    post(catalog, clicks, {0: 1})
    write(worker, "0_0", {0: 1})
    assert {own[0], others} <= woken
    assert own[1] not in woken


@pytest.mark.parametrize(("waited_ms", "is_ready"), [(0, False), (60, False), (PASS_OVER_MS, True)])
def test_who_has_only_to_pass_over_is_answered_a_moment_later(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble, waited_ms: int, is_ready: bool
) -> None:
    post(catalog, clicks, {0: 1})
    write(worker, "0_0", {0: 1})
    read(worker, "1_0")
    found = coordinator.poll_slot(catalog, worker.id, worker.held, waited_ms=waited_ms)
    assert [(task.name, task.can_wait) for task in found.answer.tasks if task.is_due] == [("1_1", True)]
    assert found.is_ready == is_ready
    assert found.look_again_ms == (None if is_ready else PASS_OVER_MS - waited_ms)


def test_who_writes_for_others_is_in_a_hurry_to_pass_over(catalog: Catalog, clicks: StreamRow) -> None:
    job = make_job(
        catalog, operators=[SPREAD, {"op": "select_key", "name": "renamed", "key": "value->>'id'"}, AGAIN, ONCE]
    )
    worker = slot(catalog, join(catalog), job)
    first, second = log(worker), stream_id(worker, "visits-again-repartition")
    found = worker.poll()
    assert stream_topic(first) in found.pressing
    assert found.patient == {stream_topic(second)}


def test_tasks_with_one_input_have_no_digest(catalog: Catalog, clicks: StreamRow, worker: SlotDouble) -> None:
    post(catalog, clicks, {0: 1})
    write(worker, "0_0", {0: 1, 1: 1})
    assert [(task.name, bool(task.heads_digest)) for task in worker.tasks()] == [
        ("0_0", False),
        ("0_1", False),
        ("1_0", True),
        ("1_1", True),
    ]
    assert "progress:" + worker.joined.job.id not in worker.poll().topics


# ---------------------------------------------------------------- back-pressure


@pytest.fixture
def bounded(catalog: Catalog, clicks: StreamRow) -> SlotDouble:
    job = make_job(catalog, operators=[SPREAD, ONCE], max_repartition_bytes=1_000)
    return slot(catalog, join(catalog), job)


def due(worker: SlotDouble) -> list[str]:
    return [task.name for task in worker.tasks() if task.work]


def test_a_task_that_writes_ahead_of_its_readers_waits_for_them(
    catalog: Catalog, clicks: StreamRow, bounded: SlotDouble
) -> None:
    for _ in range(2):
        post(catalog, clicks, {0: 1})
        write(bounded, "0_0", {0: 1, 1: 1}, frontier=700, bytes_a_row=400)
    post(catalog, clicks, {0: 1})
    assert due(bounded) == ["1_0", "1_1"]
    assert f"progress:{bounded.joined.job.id}" in bounded.poll().topics
    read(bounded, "1_0")
    assert due(bounded) == ["1_1"]
    read(bounded, "1_1")
    assert due(bounded) == ["0_0"]


def test_the_task_that_all_wait_for_goes_on(catalog: Catalog, clicks: StreamRow, bounded: SlotDouble) -> None:
    post(catalog, clicks, {0: 1, 1: 1})
    write(bounded, "0_0", {0: 3}, frontier=100, bytes_a_row=400)
    write(bounded, "0_1", {0: 3}, frontier=900, bytes_a_row=400)
    post(catalog, clicks, {0: 1, 1: 1})
    assert due(bounded) == ["1_0", "1_1"]
    task = task_of(bounded, "1_1")  # has read all of the first, and holds back what the second has for it
    accept(bounded, replace(commit_of(task), positions=[Move(0, 0, 3)]))
    assert due(bounded) == ["0_0", "1_0", "1_1"]


def test_what_is_passed_does_not_count_though_it_lies_there_still(
    catalog: Catalog, clicks: StreamRow, bounded: SlotDouble
) -> None:
    for _ in range(3):
        post(catalog, clicks, {0: 1})
        write(bounded, "0_0", {0: 1}, bytes_a_row=800)
        read(bounded, "1_0", "1_1")
    post(catalog, clicks, {0: 1})
    assert due(bounded) == ["0_0"]


# ---------------------------------------------------------------- what may go


def test_a_chunk_goes_when_all_targets_have_passed_it(catalog: Catalog, clicks: StreamRow, worker: SlotDouble) -> None:
    for _ in range(3):
        write(worker, "0_0", {0: 1, 1: 1})
    write(worker, "0_1", {1: 1})
    assert catalog.write(repartitions.truncate_passed) == 0
    read(worker, "1_0")
    assert catalog.write(repartitions.truncate_passed) == 0
    task = task_of(worker, "1_1")
    accept(worker, commit_of(task, moves=[(0, 0, 5)]))
    assert catalog.write(repartitions.truncate_passed) == 2
    assert catalog.write(repartitions.truncate_passed) == 0
    row = catalog.read(lambda s: s.get_one(PartitionRow, (log(worker), 0)))
    assert (row.start_offset, row.end_offset, row.records, row.bytes) == (4, 6, 2, 16)
    read(worker, "1_1")
    assert catalog.write(repartitions.truncate_passed) == 2
    assert targets(task_of(worker, "1_1")) == []
    write(worker, "0_0", {1: 1})
    assert targets(task_of(worker, "1_1")) == [(0, 6, 7, [1])]


# ---------------------------------------------------------------- caught up, lag, counters


def test_caught_up_means_all_sub_topologies(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 5})
    assert not catalog.read(jobs.is_caught_up, job.id)
    write(worker, "0_0", {0: 3, 1: 2})
    assert not catalog.read(jobs.is_caught_up, job.id)
    assert [at for at in catalog.read(jobs.positions, job.id) if at.lag] == [("visits-spread-repartition", 0, 0, 5, 5)]
    read(worker, "1_0")
    assert not catalog.read(jobs.is_caught_up, job.id)
    task = task_of(worker, "1_1")
    accept(worker, replace(commit_of(task, has_backlog=True), positions=read_to_end(task)))
    assert not catalog.read(jobs.is_caught_up, job.id)
    accept(worker, commit_of(replace(task, version=1)))
    assert catalog.read(jobs.is_caught_up, job.id)


def test_records_and_lag_of_a_job_are_those_of_its_sources(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 5, 1: 2})
    tasks = {task.name: task for task in worker.tasks()}
    for name, count in (("0_0", 5), ("1_0", 4)):
        accept(worker, commit_of(tasks[name], counters={"records_in": count, "records_out": count}))
    assert catalog.read(jobs.metrics, job.id) == {"records_in": 5, "records_out": 9}
    found = catalog.read(totals.catalog_totals)
    assert (found.records_in["visits"], found.records_out["visits"], found.lag["visits"]) == (5, 9, 7)
    write(worker, "0_0", {0: 3, 1: 2})
    found = catalog.read(totals.catalog_totals)
    assert (found.lag["visits"], [task.lag.records for task in found.tasks]) == (2, [0, 2, 5, 5])


def test_of_a_task_with_both_kinds_of_input_only_what_users_posted_counts_for_its_job(catalog: Catalog) -> None:
    make_stream(catalog, "clicks", partitions=1)
    make_stream(catalog, "views", partitions=2)
    worker = slot(catalog, join(catalog), make_job(catalog, source=["clicks", "views"]))
    tasks = {task.name: task for task in worker.tasks()}
    for name, counters in {"0_0": {"records_in": 4}, "1_0": {"records_in": 9, "repartitioned_in": 3}}.items():
        accept(worker, commit_of(tasks[name], counters=counters))
    assert catalog.read(jobs.metrics, worker.joined.job.id) == {"records_in": 10}
    assert catalog.read(totals.catalog_totals).records_in["visits"] == 10


def test_a_repartition_is_as_far_behind_as_its_least_far_targets(catalog: Catalog, clicks: StreamRow) -> None:
    worker = three_stages(catalog)
    first, second = (stream_id(worker, f"visits-{name}-repartition") for name in ("spread", "again"))
    assert catalog.read(totals.catalog_totals).repartition_lag == {"visits": 0}
    write(worker, "0_0", {0: 3, 1: 2}, stream=first)
    write(worker, "0_1", {1: 4}, stream=first)
    read(worker, "1_0")
    assert catalog.read(totals.catalog_totals).repartition_lag == {"visits": 5 + 4}
    write(worker, "1_1", {0: 6}, stream=second)
    assert catalog.read(totals.catalog_totals).repartition_lag == {"visits": 6}
    read(worker, "2_0", "2_1")
    assert catalog.read(totals.catalog_totals).repartition_lag == {"visits": 0}


def test_a_record_is_skipped_where_the_job_failed_at_it(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 5, 1: 3})
    write(worker, "0_0", {0: 3, 1: 2})
    task = task_of(worker, "1_1")
    fault = {"code": "x", "detail": "y", "stream": "visits-spread-repartition", "partition": 0, "offset": 4}
    catalog.write(coordinator.fail_task, worker.id, task_id=task.task, epoch=task.epoch, error=fault)
    catalog.write(job_states.skip_record, "visits", partition=0, offset=4)
    catalog.write(job_states.skip_record, "visits", partition=1, offset=2, stream="clicks")
    with pytest.raises(UnknownPartition):
        catalog.write(job_states.skip_record, "visits", partition=0, offset=0, stream="visits-nope")
    catalog.write(coordinator.change_job, "visits", "restart")
    skips = {each.name: each.skips for each in worker.tasks()}
    assert (skips["1_1"], skips["0_1"]) == ([(0, 4)], [(0, 2)])


# ---------------------------------------------------------------- closing


def close(worker: SlotDouble, task: AssignedTask, reason: AdvanceReason, rows: Mapping[int, int], stream: str) -> None:
    """A task closes what is open, with so many results for each target, then finds nothing open."""
    chunks = [routed(stream, task.partition, rows)] if rows else []
    segment = register(worker.catalog, worker.id) if rows else None
    accept(worker, commit_of(task, segment=segment, chunks=chunks, advance=Advanced(9_000, reason)))
    accept(worker, commit_of(replace(task, version=task.version + 1), advance=Advanced(None, reason)))


def advancing(tasks: Iterable[AssignedTask]) -> list[str]:
    return [task.name for task in tasks if task.advance is not None]


def test_a_flush_goes_from_stage_to_stage(catalog: Catalog, clicks: StreamRow) -> None:
    worker = three_stages(catalog)
    first, second = (stream_id(worker, f"visits-{name}-repartition") for name in ("spread", "again"))
    catalog.write(job_states.flush_job, "visits")
    closed = []
    for stage, stream in ((0, first), (1, second), (2, "")):
        while tasks := [task for task in worker.tasks() if task.advance is not None]:
            assert {task.sub_topology for task in tasks} == {stage}
            assert {task.advance for task in tasks} == {"flush"}
            for task in tasks:
                closed.append(task.name)
                close(worker, task, "flush", {0: 1, 1: 1} if stream else {}, stream)
        if stream:
            names = [f"{stage + 1}_{p}" for p in range(2)]
            assert [task.name for task in worker.tasks() if task.work] == names  # what closing gave goes first
            read(worker, *names)
    assert closed == ["0_0", "0_1", "1_0", "1_1", "2_0", "2_1"]
    assert not catalog.read(jobs.is_flushing, worker.joined.job.id)
    assert catalog.read(lambda s: s.get_one(JobRow, worker.joined.job.id)).flush is None


def test_a_flush_that_no_slot_sees_is_taken_further_by_the_coordinator(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    catalog.write(job_states.flush_job, "visits")
    for task in worker.tasks():
        if task.advance is not None:
            close(worker, task, "flush", {0: 1}, log(worker))
    tick(catalog)
    tick(catalog)  # the first one of its life only looks who is there
    query = select(TaskRow.name, TaskRow.flush_at).order_by(TaskRow.name)
    found = catalog.read(lambda s: s.execute(query).all())
    assert found == [("0_0", None), ("0_1", None), ("1_0", [1, 1]), ("1_1", [1, 1])]


def test_a_flush_asked_for_again_begins_again(
    catalog: Catalog, clicks: StreamRow, job: JobRow, worker: SlotDouble
) -> None:
    catalog.write(job_states.flush_job, "visits")
    for task in worker.tasks():
        if task.advance is not None:
            close(worker, task, "flush", {}, "")
    assert advancing(worker.tasks()) == ["1_0", "1_1"]
    post(catalog, clicks, {0: 1})
    catalog.write(job_states.flush_job, "visits")
    write(worker, "0_0", {})
    assert advancing(worker.tasks()) == ["0_0", "0_1", "1_0", "1_1"]


def test_a_flush_of_several_inputs_reads_on_until_each_is_past_its_mark_and_ends_under_steady_input(
    catalog: Catalog,
) -> None:
    """What lies behind the mark of one input may come before what another has not read up to its own."""
    sources = [make_stream(catalog, name, partitions=1) for name in ("clicks", "views")]
    worker = slot(catalog, join(catalog), make_job(catalog, source=["clicks", "views"]))
    for source in sources:
        post(catalog, source, {0: 3})
    catalog.write(job_states.flush_job, "visits")
    task = task_of(worker, "0_0")
    accept(worker, replace(commit_of(task), positions=[Move(0, 0, 3, 700), Move(1, 0, 1, 100)]))
    for source in sources:
        post(catalog, source, {0: 5})
    task = task_of(worker, "0_0")
    assert [(at.position, at.end) for at in task.inputs] == [(3, 8), (1, 8)]
    assert (task.advance, given_ranges(task)) == (None, [(0, 3, 8), (1, 1, 8)])
    accept(worker, replace(commit_of(task), positions=[Move(0, 3, 5, 800), Move(1, 1, 4, 800)]))
    for to in (9_000, None):
        post(catalog, sources[0], {0: 5})
        task = task_of(worker, "0_0")
        assert (task.advance, task.work) == ("flush", [])
        accept(worker, commit_of(task, advance=Advanced(to, "flush")))
    assert given_ranges(task_of(worker, "0_0")) == [(0, 5, 18), (1, 4, 8)]
    assert not catalog.read(jobs.is_flushing, worker.joined.job.id)


def given_ranges(task: AssignedTask) -> list[tuple[int, int, int]]:
    """(input, start, end) of what a task is given."""
    return [(at.input, at.start, at.end) for at in task.work]


def test_silence_closes_stage_after_stage(catalog: Catalog, clicks: StreamRow) -> None:
    job = make_job(catalog, operators=[SPREAD, ONCE], idle_close_after_ms=IDLE_MS)
    worker = slot(catalog, join(catalog), job)
    post(catalog, clicks, {0: 1})
    write(worker, "0_0", {0: 1})
    read(worker, "1_0", "1_1")
    assert advancing(worker.tasks()) == []
    be_silent(catalog, IDLE_MS)
    [task] = [task for task in worker.tasks() if task.advance == "idle"]
    (verdict,) = worker.commit(commit_of(task_of(worker, "1_0"), advance=Advanced(9_000, "idle")))
    assert (task.name, verdict.reason) == ("0_0", "not_idle")
    close(worker, task, "idle", {0: 1}, log(worker))  # its results are no sign of life
    assert due(worker) == ["1_0", "1_1"]
    read(worker, "1_0", "1_1")
    assert advancing(worker.tasks()) == ["1_0", "1_1"]
    accept(worker, *(commit_of(at, advance=Advanced(None, "idle")) for at in worker.tasks() if at.advance))
    assert advancing(worker.tasks()) == []


def test_the_largest_sub_topology_says_how_many_partitions_dropped_records_have(
    catalog: Catalog, clicks: StreamRow
) -> None:
    operators = [{**SPREAD, "partitions": 5}, ONCE]
    worker = slot(catalog, join(catalog), make_job(catalog, operators=operators, keep_dropped=True))
    assert worker.joined.streams["visits-dropped"].partitions == 5
    assert ends(catalog, "visits-once-changelog") == [0] * 5
