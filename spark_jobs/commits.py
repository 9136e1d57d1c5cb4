"""From what work gave to what is committed: segments are written under registered names, then a commit names them.

It knows how a committed changelog chunk is found again. It refuses to know what is in a segment and who asks the API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from service import ranges
from service.protocol import TaskCommit, WrittenSegment
from service.storage.segments import Storage
from service.streams.records import Chunk, Published
from spark_jobs.work import Outcome

NAMES_AT_ONCE: Final = 32  # of segments
LEAST_NAMES: Final = 8


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """An outcome whose segments are written and wait for their commit; it holds no records any more."""

    commit: TaskCommit
    paths: Sequence[str]  # of its segments
    changelogs: Mapping[str, int]

    def changelog_chunks(self, published: Sequence[Published]) -> Iterator[tuple[str, Chunk]]:
        """(store name, chunk) of what was committed to changelogs, as any reader finds it.

        `published`: offsets of all chunks of the commit, in the order of its segments.
        """
        chunks = list(self._chunks(published)) if self.changelogs else []
        for store, number in self.changelogs.items():
            yield store, chunks[number]

    def _chunks(self, published: Sequence[Published]) -> Iterator[Chunk]:
        written = [
            (segment.id, path, index, meta)
            for segment, path in zip(self.commit.segments, self.paths, strict=True)
            for index, meta in enumerate(segment.chunks)
        ]
        for (segment_id, path, index, meta), at in zip(written, published, strict=True):
            yield Chunk(
                path=path,
                segment=segment_id,
                index=index,
                byte_offset=meta.byte_offset,
                byte_length=meta.byte_length,
                crc32=meta.crc32,
                first_offset=at.first_offset,
                end_offset=at.end_offset,
                records=meta.records,
                is_sparse=meta.is_sparse,
                ranges=meta.ranges,
            )


def targets_of(commits: Iterable[TaskCommit]) -> set[tuple[str, int]]:
    """The (stream id, target)s of repartition streams that commits have records for."""
    chunks = [chunk for commit in commits for segment in commit.segments for chunk in segment.chunks]
    routed = [(chunk.stream_id, ranges.unpack(chunk.ranges)) for chunk in chunks if chunk.ranges is not None]
    return {(stream_id, target) for stream_id, found in routed for target in found["target"].tolist()}


class SegmentWriter:
    """Writes segments under names that were registered ahead."""

    def __init__(self, storage: Storage, register: Callable[[int], list[tuple[str, str]]]) -> None:
        self._storage, self._register = storage, register
        self._names: list[tuple[str, str]] = []

    def prepare(self, outcome: Outcome) -> PreparedCommit:
        """Write the segments of an outcome; nobody sees them before the commit. Raises OSError, ApiError."""
        written, paths = [], []
        for segment in outcome.segments:
            if not self._names:
                self._names = self._register(NAMES_AT_ONCE)
            segment_id, path = self._names.pop()
            self._storage.write(path, segment)
            written.append(WrittenSegment(segment_id, segment.bytes, segment.chunks))
            paths.append(path)
        commit = msgspec.structs.replace(outcome.commit, segments=written)
        return PreparedCommit(commit, paths, outcome.changelogs)

    def top_up(self) -> None:
        """Register more names where few are left: between rounds, so that no batch waits for them."""
        if len(self._names) < LEAST_NAMES:
            self._names += self._register(NAMES_AT_ONCE)
