"""Stores as the catalog describes them: which there are, who has them, how far they are."""

from __future__ import annotations

import pytest

from service.catalog import stores, streams
from service.catalog.engine import Catalog
from service.streams.errors import UnknownStore
from tests.integration.catalog.world import join, make_job, make_stream, post, slot


def test_a_store_that_nobody_owns_yet_has_read_nothing(catalog: Catalog) -> None:
    clicks = make_stream(catalog, partitions=2)
    make_job(catalog)
    post(catalog, clicks, {0: 5})
    now = catalog.read(stores.store_now, "visits-once")
    assert (now.name, now.type, now.kind, now.job, now.operator) == (
        "visits-once",
        "key_value",
        "deduplicate",
        "visits",
        "once",
    )
    assert [at.partition for at in now.partitions] == [0, 1]
    assert [at.input_lag for at in now.partitions] == [5, 0]
    assert [at.end for at in now.partitions] == [0, 0]
    assert [(at.owner, list(at.copies)) for at in now.partitions] == [(None, []), (None, [])]
    assert [(at.stream_id, at.partition, at.position, at.end) for at in now.partitions[0].inputs] == [
        (clicks.id, 0, 0, 5)
    ]
    assert now.is_keyed


def test_what_is_committed_moves_it_and_its_owner_is_named(catalog: Catalog) -> None:
    clicks = make_stream(catalog, partitions=2)
    job = make_job(catalog)
    owner = slot(catalog, join(catalog, "one"), job)
    post(catalog, clicks, {0: 5, 1: 3})
    owner.run()
    now = catalog.read(stores.store_now, "visits-once")
    assert [(at.end, at.input_lag) for at in now.partitions] == [(5, 0), (3, 0)]
    owners = [at.owner for at in now.partitions if at.owner is not None]
    assert [(at.instance, at.host, at.slot_id) for at in owners] == [("one", "here", owner.id)] * 2


def test_a_stream_written_by_partition_keeps_no_key_in_one_place(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    make_job(catalog)
    catalog.write(streams.mark_custom_partitioning, clicks.id)
    assert not catalog.read(stores.store_now, "visits-once").is_keyed


def test_stores_are_listed_by_name(catalog: Catalog) -> None:
    make_stream(catalog, partitions=1)
    ids = {make_job(catalog, name).id for name in ("c", "a", "b")}
    names = ["a-once", "b-once", "c-once"]
    assert [now.name for now in catalog.read(stores.stores_now)] == names
    assert [now.name for now in catalog.read(stores.stores_now, limit=2)] == names[:2]
    assert [now.name for now in catalog.read(stores.stores_now, after="a-once")] == names[1:]
    assert {now.job_id for now in catalog.read(stores.stores_now)} == ids
    assert sorted(catalog.read(stores.store_ids)) == sorted(now.id for now in catalog.read(stores.stores_now))


def test_a_store_that_is_not_there_is_unknown(catalog: Catalog) -> None:
    with pytest.raises(UnknownStore):
        catalog.read(stores.store_now, "nothing-here")
