"""The one way in which a copy of a store follows the store's changelog.

A copy is whatever replays committed changes from the position where it stands: the replica of an active task, while it
runs and after a restore, that of a standby or a warm-up, and the view in Redis. It knows how a copy is brought forward
in bounded slices, what to do where another writer was faster, and how copies beside the tasks fail without holding a
task up. It refuses to know what a change means (`service.storage`), who owns a task, and who decides that a copy is
needed.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import lmdb
import pyarrow as pa
import redis
import structlog

from service.protocol import ChunkRange
from service.storage.segments import part_of
from service.storage.view import ViewMissing
from service.streams.errors import ReplicaDamaged, SegmentUnreadable
from service.streams.records import CHANGELOG_SCHEMA, Chunk, empty
from spark_jobs.failures import Failures

SLICE_RECORDS: Final = 200_000  # changes asked for at once
CLOSED: Final = -1  # the position of a copy that is not open
CHECK_S: Final = 2.0  # how long a copy that somebody else lost may go unnoticed while nothing is written
COPY_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
COPY_FAILURES: Final = (redis.RedisError, ViewMissing, lmdb.Error, ReplicaDamaged, OSError, SegmentUnreadable)
OPEN_PAUSE_S: Final = 0.05  # while somebody else has a copy open

FindChunks = Callable[[str, int, int, int], ChunkRange]  # stream, partition, offset, most records
ReadChunk = Callable[[Chunk], pa.RecordBatch]
StorePartition = tuple[str, int]  # store name, partition


class Copy(Protocol):
    """A copy of one partition of a store, written only by replay."""

    @property
    def position(self) -> int:
        """The changelog offset up to which it is replayed."""

    def apply(self, from_offset: int, to_offset: int, changes: pa.RecordBatch) -> bool:
        """Replay [from_offset, to_offset) as a compare-and-set on the position; False: it stands elsewhere."""

    def close(self) -> None:
        """Give it back; what it holds is kept."""


CopyT = TypeVar("CopyT", bound=Copy)


@dataclass(frozen=True, slots=True)
class Changelog:
    """One partition of a store's changelog: which, and how its chunks are found and read."""

    stream_id: str
    partition: int
    read: ReadChunk
    find: FindChunks

    def chunks_from(self, offset: int) -> list[Chunk]:
        """The next chunks that hold changes at or behind `offset`; none: there are no more."""
        return self.find(self.stream_id, self.partition, offset, SLICE_RECORDS).chunks


class Follower(Generic[CopyT]):
    """One copy and how far it is. Every error goes to the caller; `close` and `open` again make a fresh start.

    `end` is the end of the changelog as far as it is known: as a poll answered, or as the last commit left it.
    `open_copy` is given that end (a copy ahead of it is worth nothing) and answers None while the copy is not to be
    had.
    """

    def __init__(self, changelog: Changelog, open_copy: Callable[[int], CopyT | None], end: int) -> None:
        self._changelog, self._open_copy = changelog, open_copy
        self._copy: CopyT | None = None
        self._found: deque[Chunk] = deque()  # from the position on, as they were asked for last
        self.end, self.position = end, CLOSED

    @property
    def copy(self) -> CopyT:
        """The open copy."""
        if self._copy is None:
            raise RuntimeError(f"The copy of {self._changelog.stream_id} is not open")
        return self._copy

    @property
    def is_open(self) -> bool:
        return self._copy is not None

    @property
    def is_behind(self) -> bool:
        return self.position < self.end

    def open(self) -> bool:
        """Open it where it is closed; False while it is not to be had."""
        if self._copy is None:
            self._copy = self._open_copy(self.end)
            if self._copy is not None:
                self.position = self._copy.position
        return self._copy is not None

    def close(self) -> None:
        """Close it, as often as one likes."""
        held, self._copy, self.position = self._copy, None, CLOSED
        self._found.clear()
        if held is not None:
            held.close()

    def check(self) -> None:
        """Look where an open copy stands: it may have been written, or lost, by others."""
        if self._copy is not None:
            self.position = self._copy.position

    def follow(self, until_s: float) -> None:
        """Bring an open copy towards `end`, chunk by chunk, until that moment (monotonic); at least by one chunk."""
        while self.is_behind:
            since = self.position
            chunks = self._next_chunks()
            if not chunks:
                self._apply(since, self.end, empty(CHANGELOG_SCHEMA))  # no chunk holds these offsets: no changes
            for chunk in chunks:
                self._replay(chunk)
                if time.monotonic() >= until_s:
                    return
                if self.position < chunk.end_offset:
                    break  # another writer began it anew: what lies between is to be found first

    def _next_chunks(self) -> list[Chunk]:
        """Those from the position on, asked for once though each slice replays a few of them.

        What begins at the end may be of another version of the job: the store is told of that first.
        """
        while self._found and self._found[0].end_offset <= self.position:
            self._found.popleft()
        if not self._found or self._found[0].first_offset > self.position:
            self._found = deque(self._changelog.chunks_from(self.position))
        return list(itertools.takewhile(lambda chunk: chunk.first_offset < self.end, self._found))

    def take(self, chunk: Chunk) -> None:
        """Replay what was just committed, if the copy stands right before it; else `follow` gets there."""
        self.end = chunk.end_offset
        if self.position == chunk.first_offset:
            self._replay(chunk)

    def _replay(self, chunk: Chunk) -> None:
        """Apply what the copy lacks of a chunk, where nothing is missing before it."""
        since, end = self.position, chunk.end_offset
        while since <= self.position < end:
            part = part_of(chunk, self._changelog.read(chunk), self.position)
            self._apply(self.position, end, part.records)

    def _apply(self, position: int, end: int, changes: pa.RecordBatch) -> None:
        is_applied = self.copy.apply(position, end, changes)
        self.position = end if is_applied else self.copy.position  # where it was refused another writer moved it


def follow_all(followers: Iterable[Follower[CopyT]], until_s: float) -> None:
    """Bring open copies that are behind forward until that moment (monotonic), at least one of them by one chunk."""
    for follower in followers:
        if follower.is_behind:
            follower.follow(until_s)
            if time.monotonic() >= until_s:
                return


class Copies(Generic[CopyT]):
    """Copies that lie in one place and fail together, beside the tasks and without an effect on them.

    A failure closes all of them: they are looked at anew after a while.
    """

    def __init__(self, make: Callable[[StorePartition, int], Follower[CopyT]]) -> None:
        self._make = make
        self._followers: dict[StorePartition, Follower[CopyT]] = {}
        self._checked_s = 0.0
        self.failures = Failures(COPY_PAUSES_S)
        self._log = structlog.get_logger()

    @property
    def is_behind(self) -> bool:
        """Whether `follow` would find something to do at once."""
        return self.is_incomplete and not self.failures.is_waiting

    @property
    def is_incomplete(self) -> bool:
        """Whether one of them is not at the end of its changelog."""
        return any(each.is_behind for each in self._followers.values())

    @property
    def positions(self) -> dict[StorePartition, int]:
        """The changelog positions of those that are open."""
        return {at: each.position for at, each in self._followers.items() if each.is_open}

    def keep(self, ends: Mapping[StorePartition, int]) -> None:
        """Have exactly these, whose changelogs end there."""
        for gone in self._followers.keys() - ends.keys():
            self._followers.pop(gone).close()
        for at, end in ends.items():
            if at in self._followers:
                self._followers[at].end = end
            else:
                self._followers[at] = self._make(at, end)

    def take(self, at: StorePartition, chunk: Chunk) -> None:
        """Replay what was just committed to a store, where its copy stands right before it."""
        if at in self._followers and not self.failures.is_waiting:
            with self._guarded():
                self._followers[at].take(chunk)

    def follow(self, until_s: float) -> None:
        """Bring those that are behind forward until that moment (monotonic), at least one of them by one chunk."""
        if self.failures.is_waiting or not self._followers:
            return
        with self._guarded():
            is_check = time.monotonic() - self._checked_s > CHECK_S
            if is_check:
                for each in self._followers.values():
                    each.check()
                self._checked_s = time.monotonic()
            opened = [each for each in self._followers.values() if each.open()]
            follow_all(opened, until_s)
            if len(opened) < len(self._followers):
                self.failures.pause(OPEN_PAUSE_S)

    def give(self) -> dict[StorePartition, Follower[CopyT]]:
        """Let go of all of them as they are."""
        given, self._followers = self._followers, {}
        return given

    def close(self) -> None:
        """Close all."""
        for each in self._followers.values():
            each.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except COPY_FAILURES as error:
            self.close()
            next_in_s = self.failures.note()
            self._log.warning("copy_not_written", error=str(error), next_in_s=next_in_s)
        else:
            self.failures.clear()
