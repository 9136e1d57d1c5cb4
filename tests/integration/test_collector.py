"""The collector deletes what nobody needs, in the order that makes it safe, on both databases."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.catalog import segments, streams
from service.catalog.engine import Catalog
from service.catalog.tables import PartitionRow, SegmentRow, StreamRow, new_id
from service.collector import Collector
from service.storage.segments import Storage, encode_segment, open_storage, path_of
from service.streams.errors import SegmentMissing, SegmentNotPending
from service.streams.records import RECORD_SCHEMA, Chunk

HOUR_MS = 3_600_000


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "storage"))


@pytest.fixture
def stream(catalog: Catalog) -> StreamRow:
    return catalog.write(streams.create_stream, "clicks", partitions=2, retention_ms=10 * HOUR_MS)


@pytest.fixture
def collector(catalog: Catalog, storage: Storage) -> Collector:
    return Collector(catalog, storage, delete_delay_ms=HOUR_MS, pending_ttl_ms=HOUR_MS)


def records(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"key": b"k", "value": "1", "timestamp": n} for n in range(count)], schema=RECORD_SCHEMA
    )


def write(catalog: Catalog, storage: Storage, *chunks: tuple[StreamRow, int, int], publish: bool = True) -> str:
    """One segment with (stream, partition, records) each, written and published; its id."""
    segment_id = new_id()
    catalog.write(segments.register_segments, "writer", [(segment_id, path_of(segment_id))])
    encoded = encode_segment([(stream.id, partition, records(count)) for stream, partition, count in chunks])
    storage.write(path_of(segment_id), encoded)
    if publish:
        catalog.write(segments.publish, segment_id, bytes=encoded.bytes, chunks=encoded.chunks)
    return segment_id


def grow_old(catalog: Catalog, ms: int, *segment_ids: str) -> None:
    """Move all times of these segments (of all, without ids) into the past."""

    def age(s: Session) -> None:
        older = update(SegmentRow).values(
            created_ms=SegmentRow.created_ms - ms,
            published_ms=SegmentRow.published_ms - ms,
            dropped_ms=SegmentRow.dropped_ms - ms,
        )
        s.execute(older.where(SegmentRow.id.in_(segment_ids)) if segment_ids else older)

    catalog.write(age)


def state_of(catalog: Catalog, segment_id: str) -> str | None:
    return catalog.read(lambda s: s.scalar(select(SegmentRow.state).where(SegmentRow.id == segment_id)))


def chunks_of(catalog: Catalog, stream: StreamRow, partition: int) -> list[Chunk]:
    return catalog.read(segments.chunks_from, stream.id, partition, 0, 1_000_000).chunks


def files(tmp_path: Path) -> set[str]:
    return {path.stem for path in (tmp_path / "storage").rglob("*.arrows")}


def test_what_is_needed_stays(
    catalog: Catalog, storage: Storage, stream: StreamRow, collector: Collector, tmp_path: Path
) -> None:
    published = write(catalog, storage, (stream, 0, 5), (stream, 1, 5))
    pending = write(catalog, storage, (stream, 0, 5), publish=False)
    assert not collector.run_once()
    assert files(tmp_path) == {published, pending}


def test_retention_drops_first_and_deletes_after_the_delay(
    catalog: Catalog, storage: Storage, stream: StreamRow, collector: Collector, tmp_path: Path
) -> None:
    old = write(catalog, storage, (stream, 0, 5))
    new = write(catalog, storage, (stream, 0, 7))
    grow_old(catalog, 11 * HOUR_MS, old)
    held = chunks_of(catalog, stream, 0)[0]
    assert collector.run_once() == {"chunks_truncated": 1, "unreferenced_dropped": 1}
    assert state_of(catalog, old) == "dropped"
    assert storage.read_chunk(held).num_rows == 5  # a reader that held the name still finds the file
    assert not collector.run_once()
    grow_old(catalog, HOUR_MS, old)
    assert collector.run_once() == {"files_deleted": 1}
    assert (files(tmp_path), state_of(catalog, old)) == ({new}, None)
    with pytest.raises(SegmentMissing, match=old):
        storage.read_chunk(held)
    assert [chunk.first_offset for chunk in chunks_of(catalog, stream, 0)] == [5]


def test_a_segment_stays_while_one_of_its_chunks_is_needed(
    catalog: Catalog, storage: Storage, stream: StreamRow, collector: Collector, tmp_path: Path
) -> None:
    forever = catalog.write(streams.create_stream, "forever", partitions=1)
    shared = write(catalog, storage, (stream, 0, 5), (forever, 0, 5))
    grow_old(catalog, 1_000 * HOUR_MS)
    assert collector.run_once() == {"chunks_truncated": 1}
    assert (files(tmp_path), state_of(catalog, shared)) == ({shared}, "published")


def test_a_stale_pending_segment_goes_and_can_not_be_published_any_more(
    catalog: Catalog, storage: Storage, stream: StreamRow, collector: Collector, tmp_path: Path
) -> None:
    stale = write(catalog, storage, (stream, 0, 5), publish=False)
    grow_old(catalog, HOUR_MS + 1_000)
    assert collector.run_once() == {"stale_pending_dropped": 1}
    with pytest.raises(SegmentNotPending):
        catalog.write(segments.publish, stale, bytes=1, chunks=[])
    grow_old(catalog, HOUR_MS)
    assert collector.run_once() == {"files_deleted": 1}
    assert files(tmp_path) == set()


def test_a_segment_that_was_announced_and_never_written_is_forgotten(catalog: Catalog, collector: Collector) -> None:
    segment_id = new_id()
    catalog.write(segments.register_segments, "writer", [(segment_id, path_of(segment_id))])
    grow_old(catalog, 2 * HOUR_MS)
    collector.run_once()
    grow_old(catalog, 2 * HOUR_MS)
    assert collector.run_once() == {"files_deleted": 1}
    assert state_of(catalog, segment_id) is None


def test_files_of_a_deleted_stream_go(
    catalog: Catalog, storage: Storage, stream: StreamRow, collector: Collector, tmp_path: Path
) -> None:
    write(catalog, storage, (stream, 0, 5))
    catalog.write(streams.delete_stream, "clicks")
    collector.run_once()
    grow_old(catalog, HOUR_MS)
    collector.run_once()
    assert files(tmp_path) == set()


def test_a_crash_after_the_file_is_deleted_is_made_good_in_the_next_round(
    catalog: Catalog, storage: Storage, stream: StreamRow, collector: Collector
) -> None:
    segment_id = write(catalog, storage, (stream, 0, 5), publish=False)
    grow_old(catalog, 2 * HOUR_MS)
    collector.run_once()
    grow_old(catalog, 2 * HOUR_MS)
    storage.delete(path_of(segment_id))
    assert collector.run_once() == {"files_deleted": 1}
    assert state_of(catalog, segment_id) is None


def test_a_file_that_can_not_be_deleted_holds_up_no_other_and_is_tried_again(
    catalog: Catalog, storage: Storage, stream: StreamRow, tmp_path: Path
) -> None:
    stubborn, other = (write(catalog, storage, (stream, 0, 5), publish=False) for _ in range(2))

    class Refusing(Storage):
        def delete(self, path: str) -> None:
            if path == path_of(stubborn):
                raise PermissionError(path)
            super().delete(path)

    grow_old(catalog, 2 * HOUR_MS)
    Collector(catalog, storage).run_once()
    grow_old(catalog, 2 * HOUR_MS)
    assert Collector(catalog, Refusing(storage._fs, storage._base)).run_once() == {"files_deleted": 1}
    assert files(tmp_path) == {stubborn}
    assert state_of(catalog, stubborn) == "dropped"
    assert Collector(catalog, storage).run_once() == {"files_deleted": 1}
    assert files(tmp_path) == set()
    assert state_of(catalog, other) is None


def test_counts_of_a_partition_follow_what_retention_took(
    catalog: Catalog, storage: Storage, stream: StreamRow, collector: Collector
) -> None:
    old = write(catalog, storage, (stream, 1, 5))
    write(catalog, storage, (stream, 1, 7))
    grow_old(catalog, 11 * HOUR_MS, old)
    collector.run_once()
    partition = catalog.read(
        lambda s: s.scalars(
            select(PartitionRow).where(PartitionRow.stream_id == stream.id, PartitionRow.partition == 1)
        ).one()
    )
    assert (partition.start_offset, partition.end_offset, partition.records) == (5, 12, 7)
