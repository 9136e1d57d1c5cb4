"""Stores behind repartition streams: who comes before them, and how far a position has come on its way to them."""

from __future__ import annotations

import pytest

from service.catalog import stores, streams
from service.catalog.engine import Catalog
from service.catalog.stores import StoreNow
from service.catalog.tables import StreamRow
from service.lookups.passage import Passage
from service.positions import Position
from tests.integration.catalog.test_repartition import AGAIN, ONCE, SPREAD, log, read, stream_id, task_of, write
from tests.integration.catalog.world import SlotDouble, commit_of, join, make_job, make_stream, post, slot


@pytest.fixture
def clicks(catalog: Catalog) -> StreamRow:
    return make_stream(catalog, partitions=2)


@pytest.fixture
def worker(catalog: Catalog, clicks: StreamRow) -> SlotDouble:
    """Three stages; what is looked up is at the end."""
    return slot(catalog, join(catalog), make_job(catalog, operators=[SPREAD, {**ONCE, "name": "first"}, AGAIN, ONCE]))


def now(catalog: Catalog, name: str = "visits-once") -> StoreNow:
    return catalog.read(stores.store_now, name)


def test_a_store_knows_what_reaches_it_and_through_whom(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    found, again = now(catalog), stream_id(worker, "visits-again-repartition")
    assert [task.name for task in found.before] == ["0_0", "0_1", "1_0", "1_1"]
    assert found.sources == {clicks.id, log(worker), again}
    assert found.writers == {log(worker): 0, again: 1}
    assert [task.name for task in now(catalog, "visits-first").before] == ["0_0", "0_1"]


def test_lag_counts_all_that_may_come(catalog: Catalog, clicks: StreamRow, worker: SlotDouble) -> None:
    post(catalog, clicks, {0: 5, 1: 2})
    assert [at.input_lag for at in now(catalog).partitions] == [7, 7]
    write(worker, "0_0", {0: 3, 1: 2})
    assert [at.input_lag for at in now(catalog).partitions] == [7, 7]
    write(worker, "0_1", {})
    read(worker, "1_0", "1_1")
    assert [at.input_lag for at in now(catalog).partitions] == [0, 0]


def test_a_position_passes_when_every_stage_has_read_what_the_one_before_held_then(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble
) -> None:
    post(catalog, clicks, {0: 5, 1: 5})
    position, passage = Position(clicks.id, catalog.lineage, {"0": 5}), Passage()

    def obstacle() -> str | None:
        found = now(catalog)
        return passage.obstacle(found, found.partitions[1], position)

    assert obstacle() == "task 0_0 has read up to 0 of 5"
    write(worker, "0_0", {0: 3, 1: 2})
    assert obstacle() == "task 1_0 has read up to 0 of 5"
    post(catalog, clicks, {0: 1})
    write(worker, "0_0", {0: 1})  # later records are not waited for
    again = stream_id(worker, "visits-again-repartition")
    write(worker, "1_0", {0: 1, 1: 1}, stream=again)
    task = task_of(worker, "1_1")
    worker.commit(commit_of(task, moves=[(0, 0, 5)], has_backlog=True))
    assert obstacle() == "task 1_1 has not given all that comes of what it has read"
    worker.commit(commit_of(task_of(worker, "1_1")))
    assert obstacle() == "task 2_1 has read up to 0 of 2"
    read(worker, "2_0")
    assert obstacle() == "task 2_1 has read up to 0 of 2"
    read(worker, "2_1")
    assert obstacle() is None


@pytest.mark.parametrize("is_custom", [False, True])
def test_keys_say_the_partition_behind_a_repartition_by_key_whoever_chose_partitions_before(
    catalog: Catalog, clicks: StreamRow, worker: SlotDouble, is_custom: bool
) -> None:
    if is_custom:
        catalog.write(streams.mark_custom_partitioning, clicks.id)
    once = {"op": "deduplicate", "name": "ids", "id": "value->>'id'", "interval_ms": 1_000}
    make_job(catalog, "global", operators=[once])
    assert now(catalog).is_keyed
    assert not now(catalog, "global-ids").is_keyed
    make_job(catalog, "plain", operators=[ONCE], trust_partitions=True)
    assert now(catalog, "plain-once").is_keyed != is_custom
