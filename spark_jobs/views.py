"""The views that a slot keeps beside its replicas: lookups read them in Redis, where no replica can be reached.

It knows when a view is written and what to do without Redis: go on, and catch up when it is back. It refuses to know
how a view is written (`service.storage.view`), and it never holds a task up: what counts is in the changelog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import redis
import structlog

from service.protocol import AssignedTask, ChunkRange, JoinedSlot
from service.storage import view
from service.storage.replica import replay
from service.storage.segments import Storage
from service.storage.view import View, ViewMissing
from service.streams.errors import SegmentUnreadable
from service.streams.records import Chunk, StoreSpec

CHECK_S: Final = 2.0  # how long a view that was lost may go unseen while nothing is written
BACK_OFF_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)

FAILURES: Final = (redis.RedisError, ViewMissing, ValueError, OSError, SegmentUnreadable)

FindChunks = Callable[[str, int, int], ChunkRange]  # changelog, partition, offset


class Task(Protocol):
    """A task of the slot: what it is, and how far its own replicas are."""

    @property
    def now(self) -> AssignedTask: ...

    @property
    def positions(self) -> Mapping[str, int]: ...


@dataclass(slots=True)
class _Kept:
    """A view and where it stood when last looked at."""

    view: View
    position: int


class KeptViews:
    """The views of a slot's tasks; none of them when there is no `url`."""

    def __init__(
        self, url: str | None, joined: JoinedSlot, stores: Iterable[StoreSpec], storage: Storage, find: FindChunks
    ) -> None:
        self._client = None if url is None else view.connect(url)
        self._joined, self._storage, self._find = joined, storage, find
        self._stores = {store.name: store for store in stores}
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._failures = 0
        self._checked_s = self._not_before_s = 0.0
        self.is_behind = False
        self._log = structlog.get_logger().bind(job=joined.job.name)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def follow(self, task: AssignedTask, store: str, chunk: Chunk) -> None:
        """Replay what was just committed, if the view stands right before it; `keep_up` sees to the rest."""
        kept = self._kept.get((store, task.partition))
        if kept is None or kept.position != chunk.first_offset or self._is_waiting:
            return
        self._try(lambda: self._replay(kept, [chunk]))

    def keep_up(self, tasks: Iterable[Task]) -> None:
        """Bring each view of these tasks nearer to where their replicas are, by one slice."""
        if self._client is None or self._is_waiting:
            return
        owned = {(store, task.now.partition): task for task in tasks for store in task.positions}
        for gone in self._kept.keys() - owned.keys():
            del self._kept[gone]
        self._try(lambda: self._keep_up(owned))

    @property
    def _is_waiting(self) -> bool:
        return time.monotonic() < self._not_before_s

    def _keep_up(self, owned: Mapping[tuple[str, int], Task]) -> None:
        self.is_behind = False
        is_check = time.monotonic() - self._checked_s > CHECK_S
        for (store, partition), task in owned.items():
            kept = self._kept.get((store, partition))
            if kept is None or (is_check and not self._is_there(kept)):
                kept = self._kept[store, partition] = self._open(store, task.now)
            if kept.position < task.positions[store]:
                self._catch_up(kept, store, partition)
                self.is_behind |= kept.position < task.positions[store]
        if is_check:
            self._checked_s = time.monotonic()

    def _open(self, store: str, task: AssignedTask) -> _Kept:
        assert self._client is not None  # noqa: S101  who calls this has looked
        ref = self._joined.stores[store]
        opened = View.open(
            self._client, self._stores[store], ref.id, task.partition, self._joined.lineage, task.changelogs[store]
        )
        return _Kept(opened, opened.position)

    def _catch_up(self, kept: _Kept, store: str, partition: int) -> None:
        found = self._find(self._joined.stores[store].changelog, partition, kept.position)
        if found.chunks:
            self._replay(kept, found.chunks)
        else:
            kept.position = found.end  # offsets that no chunk holds carry no changes

    def _replay(self, kept: _Kept, chunks: list[Chunk]) -> None:
        kept.position = replay(kept.view, self._storage, chunks, kept.position)

    @staticmethod
    def _is_there(kept: _Kept) -> bool:
        try:
            kept.position = kept.view.position
        except ViewMissing:
            return False
        return True

    def _try(self, step: Callable[[], None]) -> None:
        """A step that may fail: then everything is looked at anew, after a while."""
        try:
            step()
        except FAILURES as error:
            pause_s = BACK_OFF_S[min(self._failures, len(BACK_OFF_S) - 1)]
            self._failures += 1
            self._not_before_s = time.monotonic() + pause_s
            self._kept.clear()
            self.is_behind = False
            self._log.warning("view_not_written", error=str(error), next_in_s=pause_s)
        else:
            self._failures = 0
