"""Streams: made, changed, deleted; internal ones only by their job."""

from __future__ import annotations

import pytest

from service.catalog import streams
from service.catalog.engine import Catalog
from service.streams.errors import InternalStream, StaleTag, StreamExists, StreamInUse, UnknownStream
from tests.integration.catalog.world import ends, make_job, make_stream, post


def test_a_stream_starts_empty(catalog: Catalog) -> None:
    stream = catalog.write(
        streams.create_stream, "clicks", partitions=3, retention_ms=5, fields={"id": "string?", "at": "long"}
    )
    found = catalog.read(streams.get_stream, "clicks")
    assert (found.id, found.retention_ms, found.fields) == (stream.id, 5, {"id": "string?", "at": "long"})
    assert found.created_at.tzinfo is not None
    assert ends(catalog, "clicks") == [0, 0, 0]


def test_a_name_is_taken_once(catalog: Catalog) -> None:
    make_stream(catalog)
    with pytest.raises(StreamExists):
        make_stream(catalog)


def test_streams_are_listed_by_name_page_by_page(catalog: Catalog) -> None:
    for name in ("b", "d", "a", "c"):
        make_stream(catalog, name)
    first = [at.name for at in catalog.read(streams.list_streams, limit=3)]
    assert first == ["a", "b", "c"]
    assert [at.name for at in catalog.read(streams.list_streams, limit=3, after="c")] == ["d"]


def test_a_change_needs_the_tag_that_is_current(catalog: Catalog) -> None:
    make_stream(catalog)
    assert catalog.write(streams.update_stream, "clicks", 1, retention_ms=7).etag == 2
    with pytest.raises(StaleTag):
        catalog.write(streams.update_stream, "clicks", 1, retention_ms=8)
    assert catalog.read(streams.get_stream, "clicks").retention_ms == 7


def test_custom_partitioning_is_remembered(catalog: Catalog) -> None:
    stream = make_stream(catalog)
    for _ in range(2):
        catalog.write(streams.mark_custom_partitioning, stream.id)
    found = catalog.read(streams.get_stream, "clicks")
    assert (found.custom_partitioning, found.etag) == (True, 2)


def test_internal_streams_are_not_for_people_to_change(catalog: Catalog) -> None:
    make_stream(catalog)
    make_job(catalog)
    with pytest.raises(InternalStream):
        catalog.write(streams.delete_stream, "visits-once-changelog")
    with pytest.raises(InternalStream):
        catalog.write(streams.update_stream, "visits-once-changelog", None, retention_ms=1)


@pytest.mark.parametrize("name", ["clicks", "visits-out"])
def test_what_a_job_reads_or_writes_is_in_use(catalog: Catalog, name: str) -> None:
    make_stream(catalog)
    make_job(catalog)
    with pytest.raises(StreamInUse) as refused:
        catalog.write(streams.delete_stream, name)
    assert refused.value.users == ["visits"]


def test_a_stream_made_again_is_another_one(catalog: Catalog) -> None:
    first = make_stream(catalog)
    post(catalog, first, {0: 10})
    catalog.write(streams.delete_stream, "clicks")
    with pytest.raises(UnknownStream):
        catalog.read(streams.get_stream, "clicks")
    assert make_stream(catalog).id != first.id
    assert ends(catalog, "clicks") == [0, 0, 0, 0]
