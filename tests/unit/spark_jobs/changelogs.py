"""A changelog partition for tests of copies: what a catalog would say of it, and its segments."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from service.protocol import ChunkRange
from service.storage.segments import encode_segment, open_storage, path_of
from service.streams.records import OFFSET_FIELD, Chunk
from spark_jobs import follow
from spark_jobs.follow import Changelog


class Log:
    """A changelog partition: what a catalog would say of it, and its segments."""

    def __init__(self, folder: Path) -> None:
        self.storage = open_storage(str(folder))
        self.chunks: list[Chunk] = []
        self.end = 0
        self.found: list[int] = []  # the offsets from which chunks were asked for

    def write(self, *batches: pa.RecordBatch, gap: int = 0) -> list[Chunk]:
        """Each batch in a segment of its own, with `gap` offsets before it that no chunk holds."""
        for batch in batches:
            self.end += gap
            self._publish(batch, self.end + batch.num_rows)
        return self.chunks[-len(batches) :]

    def write_sparse(self, batch: pa.RecordBatch, offsets: list[int], end: int) -> None:
        """A chunk that was compacted: its rows at these offsets, up to `end`."""
        columns = [*batch.columns, pa.array(offsets, pa.int64())]
        stored = pa.RecordBatch.from_arrays(columns, schema=batch.schema.append(OFFSET_FIELD))
        self._publish(stored, end)

    def find(self, stream_id: str, partition: int, offset: int, most: int) -> ChunkRange:
        """The chunks that hold offsets from there on; two at a time."""
        assert (stream_id, partition, most) == ("changelog", 0, follow.SLICE_RECORDS)
        self.found.append(offset)
        return ChunkRange(0, self.end, [chunk for chunk in self.chunks if chunk.end_offset > offset][:2])

    def lose(self, chunk: Chunk) -> None:
        self.storage.delete(chunk.path)
        self.storage = open_storage(self.storage._base)  # what was just written is not kept either

    def changelog(self) -> Changelog:
        return Changelog("changelog", 0, self.storage.read_chunk, self.find)

    def _publish(self, batch: pa.RecordBatch, end: int) -> None:
        segment_id = uuid4().hex
        segment = encode_segment([("changelog", 0, batch)])
        self.storage.write(path_of(segment_id), segment)
        (meta,) = segment.chunks
        bytes_at = (meta.byte_offset, meta.byte_length, meta.crc32)
        chunk = Chunk(path_of(segment_id), segment_id, 0, *bytes_at, self.end, end, meta.records, meta.is_sparse)
        self.chunks.append(chunk)
        self.end = end
