"""Exports: the records of a stream between two places, batch by batch.

It knows where an export ends before it begins, so that its reader can be told where to go on, and how much of it is in
memory at a time: a chunk, and the batch that is made of it. It refuses to know formats and who asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlalchemy.orm import Session

from service.catalog import segments, streams
from service.catalog.engine import Catalog
from service.payloads.answers import as_page, rows_within
from service.protocol import ChunkRange
from service.reads.pages import MAX_OFFSET, Place
from service.storage.segments import Storage, offsets_of, part_of
from service.streams.errors import OffsetTruncated, SegmentMissing, UnknownPartition

BATCH_RECORDS: Final = 16_384
BATCH_BYTES: Final = 4 << 20  # a larger record is a batch of its own


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """The records from `begin` up to `end`, an offset a partition each; `is_whole`: nothing was there beyond it."""

    begin: Mapping[int, int]
    end: Mapping[int, int]
    is_whole: bool


def span_from(catalog: Catalog, stream_id: str, place: Place, limit: int | None) -> StreamSpan:
    """From a place up to where its partitions end now, or `limit` records of them, of which each has its share.

    Raises UnknownPartition, OffsetTruncated (a partition starts behind the place).
    """
    begin, ends = catalog.read(_bounds, stream_id, place)
    end, left = {}, limit
    # those first that have least: what they leave of their shares is for the others
    for number, at in enumerate(sorted(begin, key=lambda each: (ends[each] - begin[each], each))):
        there = ends[at] - begin[at]
        taken = there if left is None else min(there, -(-left // (len(begin) - number)))
        left = None if left is None else left - taken
        end[at] = begin[at] + taken
    return StreamSpan(begin, end, end == ends)


def within_bytes(catalog: Catalog, storage: Storage, stream_id: str, span: StreamSpan, max_bytes: int) -> StreamSpan:
    """As much of a span as `max_bytes` hold, as pages count them, one record at least; each partition has its share.

    The records are read for it, a batch at a time. Raises as `batches` does.
    """
    end, left = dict(span.begin), max_bytes
    fewest_first = sorted(span.begin, key=lambda each: (span.end[each] - span.begin[each], each))
    for number, at in enumerate(fewest_first):
        offsets = (span.begin[at], span.end[at])
        share = max(left, 0) // (len(fewest_first) - number)
        first_bytes = MAX_OFFSET if end == span.begin else left
        end[at], taken = _reached(
            _of_partition(catalog, storage, stream_id, at, offsets), offsets[1], share, first_bytes
        )
        left -= taken
    return StreamSpan(span.begin, end, span.is_whole and end == span.end)


def batches(catalog: Catalog, storage: Storage, stream_id: str, span: StreamSpan) -> Iterator[pa.RecordBatch]:
    """The records of a span as batches of PAGE_SCHEMA, none of them empty, partition after partition, each in order.

    Raises OffsetTruncated (retention was faster), UnknownPartition (the stream is gone), SegmentUnreadable.
    """
    for partition in sorted(span.begin):
        yield from _of_partition(catalog, storage, stream_id, partition, (span.begin[partition], span.end[partition]))


def _bounds(s: Session, stream_id: str, place: Place) -> tuple[dict[int, int], dict[int, int]]:
    """Where to begin, and where the partitions end; a place beyond its partition's end is the end."""
    there = {each.partition: each for each in streams.partitions_of(s, stream_id)}
    if unknown := place.keys() - there.keys():
        raise UnknownPartition(f"{stream_id}/{min(unknown)}")
    begin = {}
    for at, offset in place.items():
        if offset is not None and offset < there[at].start_offset:
            raise OffsetTruncated(there[at].start_offset)
        begin[at] = there[at].start_offset if offset is None else offset
    return begin, {at: max(there[at].end_offset, begin[at]) for at in place}


def _of_partition(
    catalog: Catalog, storage: Storage, stream_id: str, partition: int, offsets: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """The records of a partition at offsets in [start, end), however long its reader takes for them."""
    start, end = offsets
    missing = None
    while start < end:
        found: ChunkRange = catalog.read(segments.chunks_from, stream_id, partition, start, end - start)
        if start < found.start:
            raise OffsetTruncated(found.start)
        for chunk in found.chunks:
            try:
                batch = storage.read_chunk(chunk)
            except SegmentMissing:  # the collector was faster: ask the catalog where the records are now
                if missing == chunk.path:
                    raise
                missing = chunk.path
                break
            part = part_of(chunk, batch, start, end)
            yield from _cut(as_page(part.records, partition, offsets_of(part)))
            start = chunk.end_offset


def _reached(records: Iterator[pa.RecordBatch], end: int, share: int, first_bytes: int) -> tuple[int, int]:
    """The offset behind those records of a partition, up to `end`, that `share` bytes hold, and how many bytes they
    have. The first one is among them if it has no more than `first_bytes`.
    """
    used = 0
    for batch in records:
        rows, size = rows_within(batch, share - used)
        if not rows and not used:
            rows, size = rows_within(batch.slice(0, 1), first_bytes)
        used += size
        if rows < batch.num_rows:
            return int(batch.column("offset")[rows].as_py()), used
    return end, used


def _cut(page: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    while page.num_rows:
        rows, _ = rows_within(page.slice(0, BATCH_RECORDS), BATCH_BYTES)
        batch = page.slice(0, max(rows, 1))
        yield batch
        page = page.slice(batch.num_rows)
