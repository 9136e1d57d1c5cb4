"""Pages of a stream: the records from a place on, or back from it, and the place behind them.

It knows partitions, chunks and how much a page holds. It refuses to know who asks, how long they wait for more, and how
records are shown (`service.payloads.answers`).

A place is an offset a partition; None: wherever the partition starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from service.catalog import segments
from service.catalog.engine import Catalog
from service.payloads.answers import as_page, rows_within
from service.protocol import ChunkRange
from service.storage.segments import Storage, offsets_of, part_of
from service.streams.errors import OffsetTruncated, SegmentMissing

MAX_PAGE_BYTES: Final = 32 << 20
MAX_OFFSET: Final = 2**63 - 1

Place = Mapping[int, int | None]


@dataclass(frozen=True, slots=True)
class StreamPage:
    """`batches` of PAGE_SCHEMA, ordered within each partition; `following`: the place behind them; `at_end`: nothing
    was there beyond it.
    """

    batches: list[pa.RecordBatch]
    following: dict[int, int]
    at_end: bool


def read_page(catalog: Catalog, storage: Storage, stream_id: str, place: Place, limit: int) -> StreamPage:
    """At most `limit` records, of which each partition that has some gets its share, and about MAX_PAGE_BYTES.

    Raises UnknownPartition, OffsetTruncated (a partition starts behind the place), SegmentUnreadable.
    """
    try:
        return _read(catalog, storage, stream_id, place, limit)
    except SegmentMissing:  # the collector was faster: ask the catalog where the records are now
        return _read(catalog, storage, stream_id, place, limit)


@dataclass(frozen=True, slots=True)
class RangesPage:
    """`batches` of PAGE_SCHEMA, ordered within each partition; by partition, where its records begin in the stream
    (`starts`), and the offset behind those that are here (`following`).
    """

    batches: list[pa.RecordBatch]
    starts: dict[int, int]
    following: dict[int, int]


def read_ranges(
    catalog: Catalog, storage: Storage, stream_id: str, ranges: Mapping[int, tuple[int, int]]
) -> RangesPage:
    """The records of ranges of offsets [begin, end), one a partition, as far as MAX_PAGE_BYTES go.

    What retention took is not there. Raises UnknownPartition, SegmentUnreadable.
    """
    try:
        return _read_ranges(catalog, storage, stream_id, ranges)
    except SegmentMissing:
        return _read_ranges(catalog, storage, stream_id, ranges)


def read_page_back(catalog: Catalog, storage: Storage, stream_id: str, place: Place, limit: int) -> StreamPage:
    """Like `read_page`, from a place backwards (None: from the end): within each partition the last record comes first,
    and `following` is the place in front of them. `at_end`: nothing that is still there lies before.

    Raises UnknownPartition, SegmentUnreadable.
    """
    bounds = catalog.read(segments.ranges_from, stream_id, dict.fromkeys(place, MAX_OFFSET), 0)
    ends = {at: bounds[at].end if place[at] is None else min(place[at] or 0, bounds[at].end) for at in place}
    left = {at: max(0, ends[at] - bounds[at].start) for at in place}
    while True:
        shares = _shares(left, limit)
        ranges = {at: (ends[at] - shares[at], ends[at]) for at in sorted(shares) if shares[at]}
        page = read_ranges(catalog, storage, stream_id, ranges) if ranges else RangesPage([], {}, {})
        short = [at for at in ranges if page.following[at] < ends[at]]
        if not short or limit == 1:
            break
        limit = max(1, limit // 8)  # the last ones are what is wanted, and they did not fit
    following = ends | {at: begin for at, (begin, _) in ranges.items() if at not in short}
    batches = [_reversed(batch) for batch in reversed(page.batches)]
    return StreamPage(batches, following, all(following[at] <= bounds[at].start for at in place))


def _shares(left: Mapping[int, int], limit: int) -> dict[int, int]:
    """How many offsets of each partition make `limit` together; what those with few leave is for the others."""
    shares: dict[int, int] = {}
    for at in sorted(left, key=lambda each: left[each]):
        most = max(limit // (len(left) - len(shares)), 0 if any(shares.values()) else 1)
        shares[at] = min(left[at], most)
        limit -= shares[at]
    return shares


def _reversed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array(np.arange(batch.num_rows - 1, -1, -1)))


def _read_ranges(
    catalog: Catalog, storage: Storage, stream_id: str, ranges: Mapping[int, tuple[int, int]]
) -> RangesPage:
    most = max(end - begin for begin, end in ranges.values())
    found = catalog.read(segments.ranges_from, stream_id, {at: begin for at, (begin, _) in ranges.items()}, most)
    page, bytes_left = RangesPage([], {}, {}), MAX_PAGE_BYTES
    for partition, (begin, end) in ranges.items():
        start = found[partition].start
        first = min(max(begin, start), end)
        rows = _take(storage, found[partition], partition, first, end - first, bytes_left)
        bytes_left -= rows.bytes
        page.batches.extend(rows.batches)
        page.starts[partition], page.following[partition] = start, min(rows.following, end)
    return page


def _read(catalog: Catalog, storage: Storage, stream_id: str, place: Place, limit: int) -> StreamPage:
    found = catalog.read(segments.ranges_from, stream_id, place, limit)
    taken: dict[int, _Taken] = {}
    bytes_left, rows_left, has_rows = MAX_PAGE_BYTES, limit, False
    # those first that have least: what they leave of their shares is for the others
    for partition in sorted(found, key=lambda each: found[each].end - (place[each] or found[each].start)):
        offset = place[partition]
        if offset is not None and offset < found[partition].start:
            raise OffsetTruncated(found[partition].start)
        share = max(rows_left // (len(found) - len(taken)), 0 if has_rows else 1)
        rows = taken[partition] = _take(storage, found[partition], partition, offset or 0, share, bytes_left)
        bytes_left, rows_left = bytes_left - rows.bytes, rows_left - rows.records
        has_rows = has_rows or bool(rows.batches)
    return StreamPage(
        [batch for partition in sorted(taken) for batch in taken[partition].batches],
        {partition: taken[partition].following for partition in sorted(taken)},
        all(taken[partition].following >= found[partition].end for partition in taken),
    )


class _Taken(NamedTuple):
    """What a page takes of one partition, and the offset behind it."""

    batches: list[pa.RecordBatch]
    following: int
    bytes: int = 0

    @property
    def records(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def _take(storage: Storage, found: ChunkRange, partition: int, offset: int, most: int, max_bytes: int) -> _Taken:
    if not found.chunks:
        return _Taken([], max(offset, found.end))
    batches: list[pa.RecordBatch] = []
    bytes_left, following = max_bytes, max(offset, found.start)
    for chunk in found.chunks:
        if most <= 0 or bytes_left <= 0:
            break
        part = part_of(chunk, storage.read_chunk(chunk), offset)
        page = as_page(part.records.slice(0, most), partition, offsets_of(part)[:most])
        rows, size = rows_within(page, bytes_left)
        taken = page.slice(0, max(rows, 0 if batches else 1))
        if taken.num_rows:
            batches.append(taken)
        most, bytes_left = most - taken.num_rows, bytes_left - size
        if taken.num_rows < part.records.num_rows:
            following = taken.column("offset")[-1].as_py() + 1 if taken.num_rows else following
            break
        following = chunk.end_offset
    return _Taken(batches, following, max_bytes - bytes_left)
