"""Chunks as a slot's tasks read them: decoded once, though a task may take only a part of them at a time.

It knows which rows are still to be taken and how many bytes of them are kept. It refuses to know whose they are and in
which order they run.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from service.storage.segments import Storage, part_of
from service.streams.inputs import Part
from service.streams.records import Chunk

MAX_KEPT_BYTES: Final = 32 << 20  # of decoded rows that wait, in a slot

_Name = tuple[str, int, bytes | None]  # segment, number of the chunk in it, its range


class ChunkReader:
    """Reads parts of chunks from storage. What is behind the part that was asked for is kept for the next one, and so
    are ranges of repartition chunks, whose rows may have to wait: those that were read last, up to `MAX_KEPT_BYTES`.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._kept: OrderedDict[_Name, Part] = OrderedDict()
        self._bytes = 0

    def read(self, chunk: Chunk, start: int, end: int) -> Part:
        """The rows of a chunk, or of its only range, at offsets in [start, end). Raises SegmentMissing, SegmentDamaged,
        OSError.
        """
        name = (chunk.segment, chunk.index, chunk.ranges)
        whole = self._kept.pop(name, None)
        if whole is None:
            whole = self._whole(chunk)
        else:
            self._bytes -= whole.records.nbytes
        if chunk.ranges is not None or end < chunk.end_offset:
            self._keep(name, whole)
        return whole.within(start, end)

    def clear(self) -> None:
        """Keep nothing: there is nothing to do."""
        self._kept.clear()
        self._bytes = 0

    def _whole(self, chunk: Chunk) -> Part:
        if chunk.ranges is not None:
            return self._storage.read_range(chunk)
        return part_of(chunk, self._storage.read_chunk(chunk), chunk.first_offset)

    def _keep(self, name: _Name, whole: Part) -> None:
        self._kept[name] = whole
        self._bytes += whole.records.nbytes
        while self._bytes > MAX_KEPT_BYTES:
            self._bytes -= self._kept.popitem(last=False)[1].records.nbytes
