"""Segments: pending, published once with offsets, found by offset, dropped when nothing needs them."""

from __future__ import annotations

import pytest

from service.catalog import segments, streams
from service.catalog.engine import Catalog, partition_topic, stream_topic
from service.catalog.tables import new_id
from service.protocol import ChunkRange
from service.streams.errors import SegmentNotPending, UnknownPartition
from service.streams.records import Published
from tests.integration.catalog.world import (
    age_segments,
    chunk,
    ends,
    join,
    make_job,
    make_stream,
    post,
    register,
    slot,
)

HOUR_MS = 3_600_000


def drop(catalog: Catalog) -> int:
    return catalog.write(segments.drop_stale_pending, 0)


def test_publishing_gives_each_chunk_the_next_offsets_of_its_partition(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    assert post(catalog, clicks, {0: 10, 2: 5}) == [Published(clicks.id, 0, 0, 10), Published(clicks.id, 2, 0, 5)]
    assert post(catalog, clicks, {0: 1}) == [Published(clicks.id, 0, 10, 11)]
    partitions = catalog.read(streams.partitions_of, clicks.id)
    assert [(p.end_offset, p.records, p.bytes) for p in partitions] == [(11, 11, 88), (0, 0, 0), (5, 5, 40), (0, 0, 0)]


def test_two_chunks_of_one_partition_follow_each_other(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    chunks = [chunk(clicks, 1, 3), chunk(clicks, 1, 4)]
    published = catalog.write(segments.publish, register(catalog), bytes=1, chunks=chunks)
    assert [(p.first_offset, p.end_offset) for p in published] == [(0, 3), (3, 7)]


def test_publishing_again_gets_the_first_answer(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    segment = register(catalog)
    chunks = [chunk(clicks, 3, 2), chunk(clicks, 0, 10)]
    first = catalog.write(segments.publish, segment, bytes=1, chunks=chunks)
    post(catalog, clicks, {0: 7})
    assert catalog.write(segments.publish, segment, bytes=1, chunks=chunks) == first
    assert ends(catalog, "clicks") == [17, 0, 0, 2]


def test_registering_again_changes_nothing(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    segment = register(catalog)
    catalog.write(segments.publish, segment, bytes=1, chunks=[chunk(clicks, 0, 1)])
    catalog.write(segments.register_segments, "other", [(segment, "elsewhere"), (new_id(), "new")])
    assert catalog.read(segments.chunks_from, clicks.id, 0, 0, 1).chunks[0].path == f"segments/{segment}.arrow"


@pytest.mark.parametrize("is_registered", [False, True])
def test_only_a_pending_segment_is_published(catalog: Catalog, is_registered: bool) -> None:
    clicks = make_stream(catalog)
    segment = register(catalog) if is_registered else new_id()
    age_segments(catalog, 1)
    drop(catalog)
    with pytest.raises(SegmentNotPending):
        catalog.write(segments.publish, segment, bytes=1, chunks=[chunk(clicks, 0, 1)])
    assert ends(catalog, "clicks") == [0, 0, 0, 0]


def test_an_unknown_partition_publishes_nothing(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    segment = register(catalog)
    with pytest.raises(UnknownPartition):
        catalog.write(segments.publish, segment, bytes=1, chunks=[chunk(clicks, 0, 1), chunk(clicks, 4, 1)])
    assert ends(catalog, "clicks") == [0, 0, 0, 0]
    catalog.write(segments.publish, segment, bytes=1, chunks=[chunk(clicks, 0, 1)])
    assert ends(catalog, "clicks") == [1, 0, 0, 0]


def test_publishing_wakes_who_reads_the_streams(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    woken: list[str] = []
    catalog.on_wake(woken.extend)
    post(catalog, clicks, {0: 1, 1: 1})
    assert sorted(woken) == [stream_topic(clicks.id), *(partition_topic(clicks.id, p) for p in (0, 1))]


# ---------------------------------------------------------------- reading


def test_chunks_from_an_offset_begin_with_the_one_that_holds_it(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    for _ in range(5):
        post(catalog, clicks, {0: 10})
    found = catalog.read(segments.chunks_from, clicks.id, 0, 15, 1_000)
    assert [at.first_offset for at in found.chunks] == [10, 20, 30, 40]
    assert (found.start, found.end) == (0, 50)


@pytest.mark.parametrize(("offset", "max_records", "count"), [(0, 1, 1), (0, 10, 1), (0, 11, 2), (9, 2, 2), (9, 1, 1)])
def test_no_more_chunks_than_the_records_asked_for_need(
    catalog: Catalog, offset: int, max_records: int, count: int
) -> None:
    clicks = make_stream(catalog)
    for _ in range(5):
        post(catalog, clicks, {0: 10})
    assert len(catalog.read(segments.chunks_from, clicks.id, 0, offset, max_records).chunks) == count


def test_at_the_end_there_is_no_chunk(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    post(catalog, clicks, {0: 10})
    assert catalog.read(segments.chunks_from, clicks.id, 0, 10, 5) == ChunkRange(0, 10, [])
    with pytest.raises(UnknownPartition):
        catalog.read(segments.chunks_from, clicks.id, 4, 0, 5)


# ---------------------------------------------------------------- retention


def retain(catalog: Catalog, retention_ms: int, **more: object) -> int:
    catalog.write(streams.update_stream, "clicks", retention_ms=retention_ms, **more)
    return catalog.write(segments.truncate_by_retention)


def test_retention_removes_whole_chunks_from_the_start(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    post(catalog, clicks, {0: 10, 1: 3})
    post(catalog, clicks, {0: 10})
    age_segments(catalog, 2 * HOUR_MS)
    post(catalog, clicks, {0: 5})
    assert retain(catalog, HOUR_MS) == 3
    found = [(p.start_offset, p.end_offset, p.records, p.bytes) for p in catalog.read(streams.partitions_of, clicks.id)]
    assert found[:2] == [(20, 25, 5, 40), (3, 3, 0, 0)]
    assert catalog.read(segments.chunks_from, clicks.id, 0, 0, 100).chunks[0].first_offset == 20


def test_without_retention_everything_stays(catalog: Catalog) -> None:
    post(catalog, make_stream(catalog), {0: 10})
    age_segments(catalog, 1_000 * HOUR_MS)
    assert catalog.write(segments.truncate_by_retention) == 0


def test_retention_counts_from_publishing_not_from_the_records_timestamps(catalog: Catalog) -> None:
    post(catalog, make_stream(catalog), {0: 10}, timestamp=0)
    assert retain(catalog, HOUR_MS) == 0


def test_retention_never_passes_the_position_of_a_job(catalog: Catalog) -> None:
    clicks = make_stream(catalog, partitions=1)
    job = make_job(catalog)
    for _ in range(3):
        post(catalog, clicks, {0: 10})
    worker = slot(catalog, join(catalog), job)
    age_segments(catalog, 2 * HOUR_MS)
    assert retain(catalog, HOUR_MS) == 0
    assert worker.run() == 30
    post(catalog, clicks, {0: 10})
    age_segments(catalog, 2 * HOUR_MS)
    assert catalog.write(segments.truncate_by_retention) == 3
    assert catalog.read(streams.partitions_of, clicks.id)[0].start_offset == 30


def test_a_stream_may_override_the_jobs(catalog: Catalog) -> None:
    post(catalog, make_stream(catalog, partitions=1), {0: 10})
    make_job(catalog)
    age_segments(catalog, 2 * HOUR_MS)
    assert retain(catalog, HOUR_MS, retention_overrides_jobs=True) == 1


# ---------------------------------------------------------------- the collector's steps


def test_a_segment_is_dropped_when_its_last_chunk_is_gone(catalog: Catalog) -> None:
    clicks, views = make_stream(catalog), make_stream(catalog, "views")
    segment = register(catalog)
    catalog.write(segments.publish, segment, bytes=1, chunks=[chunk(clicks, 0, 1), chunk(views, 0, 1)])
    catalog.write(streams.delete_stream, "clicks")
    assert catalog.write(segments.drop_unreferenced) == 0
    catalog.write(streams.delete_stream, "views")
    assert catalog.write(segments.drop_unreferenced) == 1
    assert catalog.read(segments.deletable, HOUR_MS) == []
    age_segments(catalog, HOUR_MS)
    assert catalog.read(segments.deletable, HOUR_MS) == [(segment, f"segments/{segment}.arrow")]
    assert catalog.write(segments.forget, [segment]) == 1
    assert catalog.read(segments.deletable, 0) == []


def test_pending_segments_of_the_past_are_dropped_and_fresh_ones_stay(catalog: Catalog) -> None:
    old = register(catalog)
    age_segments(catalog, HOUR_MS + 1)
    register(catalog)
    assert catalog.write(segments.drop_stale_pending, HOUR_MS) == 1
    assert [i for i, _ in catalog.read(segments.deletable, 0)] == [old]


def test_what_a_live_slot_announced_stays_pending(catalog: Catalog) -> None:
    make_stream(catalog)
    worker = slot(catalog, join(catalog), make_job(catalog))
    register(catalog, worker.id)
    age_segments(catalog, 2 * HOUR_MS)
    assert catalog.write(segments.drop_stale_pending, HOUR_MS) == 0
    worker.leave()
    assert catalog.write(segments.drop_stale_pending, HOUR_MS) == 1


def test_only_dropped_segments_are_forgotten(catalog: Catalog) -> None:
    assert catalog.write(segments.forget, [register(catalog)]) == 0
