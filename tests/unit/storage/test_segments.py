"""Segments: what was written is what is read, on any filesystem; anything else is an error that names the file."""

import dataclasses
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyarrow import fs

from service.storage import segments
from service.storage.segments import EncodedSegment, Storage, encode_segment, offsets_of, open_storage, part_of, path_of
from service.streams.errors import SegmentDamaged, SegmentMissing
from service.streams.records import CHANGELOG_SCHEMA, OFFSET_FIELD, RECORD_SCHEMA, Chunk, ChunkMeta

SEGMENT = "ab12" + "0" * 28
PATH = path_of(SEGMENT)


def records(count: int, first_timestamp: int = 1_000) -> pa.RecordBatch:
    rows = [{"key": b"k\x00%d" % n, "value": f'{{"n": {n}}}', "timestamp": first_timestamp + n} for n in range(count)]
    return pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)


def changes(count: int) -> pa.RecordBatch:
    rows = [{"key": b"\x00%05d" % n, "value": None if n % 3 == 0 else bytes(16)} for n in range(count)]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGELOG_SCHEMA)


def chunk_of(meta: ChunkMeta, index: int, path: str = PATH) -> Chunk:
    return Chunk(
        path,
        SEGMENT,
        index,
        meta.byte_offset,
        meta.byte_length,
        meta.crc32,
        0,
        meta.records,
        meta.records,
        meta.is_sparse,
    )


def chunks_of(segment: EncodedSegment) -> list[Chunk]:
    return [chunk_of(meta, index) for index, meta in enumerate(segment.chunks)]


@pytest.fixture(params=["folder", "uri", "sub_tree", "in_memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """The same storage, reached in every way that pyarrow has without a service."""
    makers: dict[str, Callable[[], Storage]] = {
        "folder": lambda: open_storage(str(tmp_path / "data")),
        "uri": lambda: open_storage(f"file://{tmp_path}/data"),
        "sub_tree": lambda: Storage(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), ""),
        "in_memory": lambda: Storage(fs._MockFileSystem(), "data"),
    }
    return makers[request.param]()


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def test_batches_of_both_schemas_come_back_from_one_segment(storage: Storage) -> None:
    batches = [records(10), changes(7), records(1), records(0)]
    segment = encode_segment([("s", n, batch) for n, batch in enumerate(batches)])
    storage.write(PATH, segment)
    for batch, chunk in zip(batches, chunks_of(segment), strict=True):
        assert storage.read_chunk(chunk).equals(batch)


def test_changelog_is_read_from_the_file_when_it_is_read_again(storage: Storage) -> None:
    segment = encode_segment([("s", 0, changes(100))])
    storage.write(PATH, segment)
    for _ in range(3):
        assert storage.read_chunk(chunks_of(segment)[0]).equals(changes(100))


def test_a_slice_is_written_without_the_rest_of_its_batch() -> None:
    whole, part = encode_segment([("s", 0, records(10_000))]), encode_segment([("s", 0, records(10_000).slice(5, 10))])
    assert part.bytes < whole.bytes / 50
    assert part.chunks[0].records == 10


def test_chunks_say_where_they_lie_and_what_time_they_hold() -> None:
    segment = encode_segment([("a", 3, records(5, 100)), ("b", 0, changes(2)), ("c", 1, records(0))])
    first, second, third = segment.chunks
    assert (first.stream_id, first.partition, first.records) == ("a", 3, 5)
    assert (first.min_timestamp, first.max_timestamp) == (100, 104)
    assert (second.min_timestamp, second.max_timestamp) == (0, 0)
    assert (third.records, third.min_timestamp, third.max_timestamp) == (0, 0, 0)
    assert first.byte_offset == 0
    assert second.byte_offset == first.byte_length
    assert third.byte_offset + third.byte_length == segment.bytes


def test_bodies_are_compressed() -> None:
    repetitive = pa.RecordBatch.from_pylist(
        [{"key": b"same", "value": '{"same": "value"}', "timestamp": 1}] * 10_000, schema=RECORD_SCHEMA
    )
    assert encode_segment([("s", 0, repetitive)]).bytes < repetitive.nbytes / 5


def test_any_arrow_reader_can_read_a_chunk(local: Storage, tmp_path: Path) -> None:
    segment = encode_segment([("s", 0, records(5)), ("s", 1, records(7))])
    local.write(PATH, segment)
    with (tmp_path / PATH).open("rb") as file:
        tables = [pa.ipc.open_stream(file).read_all() for _ in segment.chunks]
    assert [table.num_rows for table in tables] == [5, 7]


def test_a_name_is_used_once(storage: Storage) -> None:
    segment = encode_segment([("s", 0, records(3))])
    storage.write(PATH, segment)
    with pytest.raises(FileExistsError, match=SEGMENT):
        storage.write(PATH, encode_segment([("s", 0, records(4))]))
    assert storage.read_chunk(chunks_of(segment)[0]).num_rows == 3


def test_a_missing_file_is_named(storage: Storage) -> None:
    segment = encode_segment([("s", 0, records(3))])
    with pytest.raises(SegmentMissing, match=PATH) as raised:
        storage.read_chunk(chunks_of(segment)[0])
    assert raised.value.path == PATH


def test_a_deleted_file_is_missing_and_may_be_deleted_again(storage: Storage) -> None:
    segment = encode_segment([("s", 0, records(3))])
    storage.write(PATH, segment)
    storage.delete(PATH)
    storage.delete(PATH)
    with pytest.raises(SegmentMissing):
        storage.read_chunk(chunks_of(segment)[0])


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_torn_file_is_damaged_and_named(local: Storage, tmp_path: Path, kept: int) -> None:
    segment = encode_segment([("s", 0, records(50))])
    local.write(PATH, segment)
    os.truncate(tmp_path / PATH, kept % segment.bytes)
    with pytest.raises(SegmentDamaged, match=PATH):
        local.read_chunk(chunks_of(segment)[0])


def test_chunks_before_the_tear_are_still_read(local: Storage, tmp_path: Path) -> None:
    segment = encode_segment([("s", 0, records(50)), ("s", 1, records(60))])
    local.write(PATH, segment)
    os.truncate(tmp_path / PATH, segment.bytes - 1)
    whole, torn = chunks_of(segment)
    assert local.read_chunk(whole).num_rows == 50
    with pytest.raises(SegmentDamaged):
        local.read_chunk(torn)


def test_every_flipped_byte_is_noticed(local: Storage, tmp_path: Path) -> None:
    segment = encode_segment([("s", 0, records(3))])
    local.write(PATH, segment)
    sound = (tmp_path / PATH).read_bytes()
    for place in range(0, len(sound), 7):
        (tmp_path / PATH).write_bytes(sound[:place] + bytes([sound[place] ^ 0x10]) + sound[place + 1 :])
        with pytest.raises(SegmentDamaged, match="checksum"):
            local.read_chunk(chunks_of(segment)[0])


def test_bytes_that_are_no_arrow_stream_are_damage_even_with_a_right_checksum(local: Storage, tmp_path: Path) -> None:
    body = b"not an arrow stream, whatever its checksum says"
    local.write(PATH, EncodedSegment(pa.py_buffer(body), [], []))
    with pytest.raises(SegmentDamaged, match="not an Arrow stream"):
        local.read_chunk(Chunk(PATH, SEGMENT, 0, 0, len(body), zlib.crc32(body), 0, 1, 1))


def test_another_number_of_records_than_the_catalog_says_is_damage(local: Storage) -> None:
    segment = encode_segment([("s", 0, records(3))])
    local.write(PATH, segment)
    with pytest.raises(SegmentDamaged, match="3 records, not 4"):
        local.read_chunk(replace(chunks_of(segment)[0], records=4))


def test_file_and_folders_are_synced(local: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    local.write(PATH, encode_segment([("s", 0, records(3))]))
    folders = [str(tmp_path), str(tmp_path / "segments")]
    assert synced[:2] == folders
    assert sorted(synced[2:]) == [str((tmp_path / PATH).parent), str(tmp_path / PATH)]  # at once
    synced.clear()
    other = path_of("cd34" + "0" * 28)
    local.write(other, encode_segment([("s", 0, records(3))]))
    assert sorted(synced) == [str((tmp_path / other).parent), str(tmp_path / other)]


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_segment_whose_file_or_name_is_not_durable_is_not_written(
    local: Storage, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    segment, fsync = encode_segment([("s", 0, records(3))]), os.fsync
    local.write(PATH, segment)

    def fail(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode) is is_folder:
            raise OSError("the device is gone")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="the device is gone"):
        local.write(path_of("cd34" + "0" * 28), segment)


def test_the_memory_for_fresh_changes_is_bounded(local: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_FRESH_MAX_BYTES", 3 * changes(100).nbytes)
    segment = encode_segment([("s", n, changes(100)) for n in range(5)])
    local.write(PATH, segment)
    fresh = local._fresh
    assert [fresh.take(chunk) is not None for chunk in chunks_of(segment)] == [False, False, True, True, True]
    assert fresh._bytes == 0


def test_encoded_segments_are_values() -> None:
    segment = encode_segment([("s", 0, records(3))])
    with pytest.raises(dataclasses.FrozenInstanceError):
        segment.body = pa.py_buffer(b"")  # type: ignore[misc]


# ---------------------------------------------------------------- offsets of rows


def published(storage: Storage, batch: pa.RecordBatch, first_offset: int, end_offset: int) -> Chunk:
    segment = encode_segment([("s", 0, batch)])
    storage.write(PATH, segment)
    return replace(chunks_of(segment)[0], first_offset=first_offset, end_offset=end_offset)


def with_offsets(batch: pa.RecordBatch, offsets: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(offsets, pa.int64())], schema=batch.schema.append(OFFSET_FIELD)
    )


def test_a_dense_chunk_stores_no_offsets_and_counts_from_its_first_one(local: Storage) -> None:
    chunk = published(local, records(4), 100, 104)
    stored = local.read_chunk(chunk)
    assert (chunk.is_sparse, stored.schema) == (False, RECORD_SCHEMA)
    assert offsets_of(part_of(chunk, stored, 0)).tolist() == [100, 101, 102, 103]


def test_a_sparse_chunk_carries_its_offsets(local: Storage) -> None:
    chunk = published(local, with_offsets(records(3), [100, 107, 108]), 100, 120)
    assert chunk.is_sparse
    assert offsets_of(part_of(chunk, local.read_chunk(chunk), 0)).tolist() == [100, 107, 108]


@pytest.mark.parametrize("offsets", [[10, 11, 12, 13], [10, 12, 17, 19]], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (0, 10), (10, 11), (11, 18), (12, 13), (13, 17), (19, 20), (20, 30)]
)
def test_a_part_of_a_chunk_is_its_rows_in_a_range_of_offsets(
    local: Storage, offsets: list[int], start: int, end: int | None
) -> None:
    is_sparse = offsets != [10, 11, 12, 13]
    batch = records(4)
    chunk = published(local, with_offsets(batch, offsets) if is_sparse else batch, 10, 20 if is_sparse else 14)
    part = part_of(chunk, local.read_chunk(chunk), start, end)
    wanted = [i for i, offset in enumerate(offsets) if offset >= start and (end is None or offset < end)]
    assert offsets_of(part).tolist() == [offsets[i] for i in wanted]
    assert part.records.equals(batch.take(pa.array(wanted, pa.int64())))


@pytest.mark.parametrize("is_sparse", [True, False])
def test_offsets_where_the_catalog_says_otherwise_are_damage(local: Storage, is_sparse: bool) -> None:
    batch = records(2) if is_sparse else with_offsets(records(2), [3, 5])
    chunk = replace(published(local, batch, 3, 6), is_sparse=is_sparse)
    with pytest.raises(SegmentDamaged, match="offsets"):
        local.read_chunk(chunk)
