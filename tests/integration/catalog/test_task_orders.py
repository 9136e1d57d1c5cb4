"""In which order a task took the records of several inputs: noted by the commits themselves, where it began anew."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.catalog import task_moves, task_orders
from service.catalog.engine import Catalog
from service.catalog.inputs import inputs_of_tasks
from service.catalog.job_creation import delete_job
from service.catalog.tables import JobRow, PartitionRow, TaskOrderRow, TaskRow
from service.protocol import Move, TakenOrder
from tests.integration.catalog.test_job_versions import put
from tests.integration.catalog.world import SlotDouble, commit_of, join, make_job, make_stream, post, slot

RECORDS = 2_000  # of each input


@pytest.fixture
def job(catalog: Catalog) -> JobRow:
    for name in ("clicks", "views"):
        post(catalog, make_stream(catalog, name, partitions=1), {0: RECORDS})
    return make_job(catalog, source=["clicks", "views"])


@pytest.fixture
def worker(catalog: Catalog, job: JobRow) -> SlotDouble:
    return slot(catalog, join(catalog), job)


def take(worker: SlotDouble, ends: tuple[int, ...], first: tuple[int, int], last: tuple[int, int]) -> None:
    """A commit that reads the inputs up to these offsets; where its records begin and end in their order."""
    [task] = worker.tasks()
    starts = [head.position for head in task.inputs]
    moves = [Move(n, start, end) for n, (start, end) in enumerate(zip(starts, ends, strict=True)) if end > start]
    [verdict] = worker.commit(replace(commit_of(task), positions=moves, order=TakenOrder(*first, *last)))
    assert verdict.status == "accepted", verdict


def orders(catalog: Catalog) -> list[tuple[int, ...]]:
    found = catalog.read(lambda s: task_moves.moves_of(s, s.scalars(select(TaskRow)).one()))
    assert found is not None
    assert found.begin == (0, 0)
    return list(found.orders)


def parts(catalog: Catalog) -> int:
    return catalog.read(lambda s: s.scalars(select(func.count()).select_from(TaskOrderRow)).one())


def test_commits_that_follow_each_other_are_one_and_a_late_waker_is_noted(catalog: Catalog, worker: SlotDouble) -> None:
    take(worker, (3, 2), (100, 0), (130, 1))
    take(worker, (4, 2), (140, 0), (140, 0))
    take(worker, (4, 3), (140, 1), (140, 1))  # of one time: by the number of the input
    assert orders(catalog) == []
    take(worker, (5, 3), (140, 0), (150, 0))
    take(worker, (5, 9), (90, 1), (149, 1))
    take(worker, (6, 9), (160, 0), (160, 0))
    assert orders(catalog) == [(4, 3), (5, 3)]


def test_long_histories_are_kept_in_parts_and_go_with_their_task(
    catalog: Catalog, job: JobRow, worker: SlotDouble
) -> None:
    drawn, ends, expected = random.Random(5), [0, 0], []
    for time in range(300, 0, -1):  # each before the one before it
        expected.append(tuple(ends))
        ends = [end + drawn.randint(0, 3) for end in ends]
        ends[0] += 1
        take(worker, (ends[0], ends[1]), (time, 0), (time, 0))
    assert orders(catalog) == expected[1:]
    assert parts(catalog) >= 2
    worker.leave()
    catalog.write(lambda s: s.execute(update(JobRow).values(state="stopped")))
    catalog.write(delete_job, job.name)
    assert parts(catalog) == 0


def test_an_order_that_nobody_can_ask_for_is_not_kept(
    catalog: Catalog, worker: SlotDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_orders, "PART_BYTES", 1)
    take(worker, (3, 2), (100, 0), (130, 1))
    take(worker, (4, 2), (90, 0), (90, 0))
    assert (orders(catalog), parts(catalog)) == ([(3, 2)], 1)
    catalog.write(lambda s: s.execute(update(PartitionRow).values(start_offset=1)))
    take(worker, (5, 2), (80, 0), (80, 0))
    assert (orders(catalog), parts(catalog)) == ([], 0)
    take(worker, (6, 2), (70, 0), (70, 0))
    assert orders(catalog) == []


def test_an_order_ends_where_a_source_is_added(catalog: Catalog, job: JobRow, worker: SlotDouble) -> None:
    take(worker, (3, 2), (100, 0), (130, 1))
    take(worker, (4, 2), (90, 0), (90, 0))
    assert orders(catalog) == [(3, 2)]
    post(catalog, make_stream(catalog, "buys", partitions=1), {0: RECORDS})
    put(catalog, *job.spec["operators"], source=["clicks", "views", "buys"])
    take(worker, (5, 2, 1), (80, 0), (80, 2))  # which begins anew, in front of three inputs
    assert orders(catalog) == []


def test_an_order_of_more_records_than_are_run_again_ends(catalog: Catalog, worker: SlotDouble) -> None:
    take(worker, (3, 2), (100, 0), (130, 1))
    take(worker, (4, 2), (90, 0), (90, 0))
    task = catalog.read(lambda s: s.scalars(select(TaskRow)).one())
    assert task.taken_order is not None
    shortened = task.taken_order.replace(str(task_orders.MAX_RECORDS).encode(), b"5", 1)
    catalog.write(lambda s: s.execute(update(TaskRow).values(taken_order=shortened)))
    take(worker, (5, 2), (80, 0), (80, 0))
    assert orders(catalog) == []


def test_places_behind_a_repartition_are_counts_of_records(catalog: Catalog) -> None:
    """Offsets there say nothing: records of other targets lie in between."""
    post(catalog, make_stream(catalog, "visits", partitions=1), {0: RECORDS})
    spread = {"op": "repartition", "name": "spread", "partitions": 1}
    make_job(catalog, source="visits", operators=[spread])
    task = catalog.read(lambda s: s.scalars(select(TaskRow).where(TaskRow.name == "1_0")).one())
    assert task.taken_order is not None

    def noted(s: Session, *takes: TakenOrder) -> None:
        own = s.get_one(TaskRow, task.id)
        inputs = inputs_of_tasks(s, [task.id])[task.id]
        for each in takes:
            task_orders.note(s, own, inputs, each)

    catalog.write(noted, TakenOrder(5, 0, 9, 0, [3]), TakenOrder(9, 0, 9, 0, [4]))

    def taken(s: Session) -> task_orders.Taken | None:
        return task_orders.taken_of(s.get_one(TaskRow, task.id), inputs_of_tasks(s, [task.id])[task.id])

    assert catalog.read(taken) == task_orders.Taken((7,), 9, 0)
    catalog.write(noted, TakenOrder(10, 0, 10, 0))  # of a slot that counts nothing
    assert catalog.read(taken) is None
