"""Records of a stream that somebody looks for: those with a key, those that meet a condition, the newest first.

It knows how far one answer looks, and where the next one goes on. It refuses to know how a condition is evaluated, and
who asks.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from starlette.concurrency import run_in_threadpool

from service.reads.pages import MAX_PAGE_BYTES, Place, StreamPage

LOOK_RECORDS: Final = 10_000  # that are read at once where most are left out
LOOK_S: Final = 2.0  # after so long what was found is answered, and the place says where to look on

Read = Callable[[Place, int], StreamPage]
# What a condition leaves of batches. Raises FilterFailed.
Condition = Callable[[Sequence[pa.RecordBatch]], Awaitable[list[pa.RecordBatch]]]


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which records: None: any. `is_reverse`: pages are read backwards."""

    key: bytes | None = None
    condition: Condition | None = None
    is_reverse: bool = False

    @property
    def is_everything(self) -> bool:
        return self.key is None and self.condition is None


async def search(read: Read, place: Place, wanted: Criteria, limit: int) -> StreamPage:
    """At most `limit` records that are wanted, from a place on; none may be among what there was time to look at.

    Raises what `read` does, FilterFailed.
    """
    found: list[pa.RecordBatch] = []
    until_s, left, bytes_left = time.monotonic() + LOOK_S, limit, MAX_PAGE_BYTES
    while True:
        at_once = left if wanted.is_everything else max(left, LOOK_RECORDS)
        page = await run_in_threadpool(read, place, at_once)
        taken, place = _cut(await _chosen(page.batches, wanted), page, left, is_reverse=wanted.is_reverse)
        found += taken
        left -= sum(batch.num_rows for batch in taken)
        bytes_left -= sum(batch.nbytes for batch in taken)
        is_all = page.at_end and place == page.following
        if is_all or left <= 0 or bytes_left <= 0 or time.monotonic() > until_s:
            return StreamPage(found, dict(place), is_all)


async def _chosen(batches: Sequence[pa.RecordBatch], wanted: Criteria) -> Sequence[pa.RecordBatch]:
    if wanted.key is not None:
        batches = [batch.filter(pc.equal(batch.column("key"), pa.scalar(wanted.key, pa.binary()))) for batch in batches]
        batches = [batch for batch in batches if batch.num_rows]
    return batches if wanted.condition is None else await wanted.condition(batches)


def _cut(
    batches: Iterable[pa.RecordBatch], page: StreamPage, most: int, *, is_reverse: bool
) -> tuple[list[pa.RecordBatch], dict[int, int]]:
    """The first `most` records of batches, and the place behind them."""
    taken: list[pa.RecordBatch] = []
    cut: dict[int, int] = {}
    for batch in batches:
        rows = min(batch.num_rows, most)
        most -= rows
        if rows:
            taken.append(batch.slice(0, rows))
        if rows < batch.num_rows:
            left_out = batch.slice(rows, 1)
            [offset] = left_out.column("offset").to_pylist()
            cut.setdefault(left_out.column("partition")[0].as_py(), offset + 1 if is_reverse else offset)
    return taken, page.following | cut
