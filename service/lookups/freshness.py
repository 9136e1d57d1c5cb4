"""The freshness that an answer must have, and waiting until a store has it.

It knows positions, lag and wake-ups; it refuses to know what an entry is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from service.catalog.stores import StorePartition
from service.lookups.known import ENDED, Known, KnownStores
from service.lookups.passage import Passage
from service.lookups.reader import StoreReader
from service.notify import Hub
from service.positions import Position
from service.streams.errors import PositionNotOfStore, StoreBehind, StoreNotReadable
from service.streams.stores.reading import Query

LOOK_AGAIN_S: Final = 0.25  # for changes that wake nobody
REPLAY_PAUSE_S: Final = 0.002  # a replica follows its commit within milliseconds


@dataclass(frozen=True, slots=True)
class Freshness:
    """The least that an answer must reflect; `timeout_s` is how long to wait for it."""

    position: Position | None = None
    max_lag_records: int | None = None
    timeout_s: float = 0.0

    @property
    def is_asked_for(self) -> bool:
        return self.position is not None or self.max_lag_records is not None


@dataclass(slots=True)
class FreshnessWait:
    """One wait for the partitions that queries need.

    `required`: by partition the changelog offset that its replica must have applied, as far as that is known by now.
    `passages`: by partition how far a position has come, of a store behind repartition streams.
    """

    stores: KnownStores
    reader: StoreReader
    hub: Hub
    queries: Sequence[Query]
    wanted: Freshness
    required: dict[int, int] = field(default_factory=dict)
    passages: dict[int, Passage] = field(default_factory=dict)

    async def store(self, name: str) -> Known:
        """The store, as soon as it is fresh enough.

        Raises StoreBehind when it is not in time or will not be, PositionNotOfStore, UnknownStore, StoreNotReadable.
        """
        until = time.monotonic() + self.wanted.timeout_s
        while True:
            seen = self.hub.seen
            known = await self.stores.as_of_now(name)
            obstacle = await self._obstacle(known)
            if obstacle is None:
                return known
            left_s = until - time.monotonic()
            if left_s <= 0 or self.hub.is_closed or known.now.job_state in ENDED:
                raise StoreBehind(name, obstacle)
            if self.required:
                await self._replay(known, min(left_s, LOOK_AGAIN_S))
            else:
                await self.hub.wait((*known.fate, *known.progress), seen, min(left_s, LOOK_AGAIN_S))

    async def _obstacle(self, known: Known) -> str | None:
        """The reason why the store is not fresh enough. Where replay alone is missing, `required` says how far."""
        needed = {p for query in self.queries for p in known.partitions_of(query)}
        at = [known.now.partitions[p] for p in sorted(needed)]
        if self.wanted.position is not None:
            for each in at:
                if (reason := self._unread(known, each, self.wanted.position)) is not None:
                    self.required.clear()
                    return reason
        try:
            findings = {each.partition: await self.reader.glance(known, each.partition) for each in at}
        except StoreNotReadable as error:
            return error.reason
        for p, position in self.required.items():
            if findings[p].position < position:
                task = known.now.partitions[p].task
                return f"the replica of task {task} is at {findings[p].position}, not yet at {position}"
        lag = known.lag(findings)
        allowed = self.wanted.max_lag_records
        if allowed is None or lag <= allowed:
            return None
        if not any(each.input_lag for each in at):
            self.required.update({each.partition: each.end for each in at})
        return f"it is {lag} records behind, {allowed} are allowed; the job is {known.now.job_state}"

    async def _replay(self, known: Known, timeout_s: float) -> None:
        """Wait until replicas have applied `required`: polled, for nobody announces it."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            await asyncio.sleep(REPLAY_PAUSE_S)
            try:
                findings = {p: await self.reader.glance(known, p) for p in self.required}
            except StoreNotReadable:
                continue  # nobody has begun it yet
            if all(findings[p].position >= position for p, position in self.required.items()):
                return

    def _unread(self, known: Known, at: StorePartition, position: Position) -> str | None:
        """Why a task has not read up to a position; where it has, its replica's offset becomes `required`."""
        if position.stream == known.now.changelog:
            if (offset := position.offsets.get(str(at.partition))) is not None:
                self.required[at.partition] = offset
            return None
        if known.now.before:
            return self._on_its_way(known, at, position)
        inputs = [each for each in at.inputs if each.stream_id == position.stream]
        if not inputs:
            raise PositionNotOfStore(known.now.name)
        for each in inputs:
            offset = position.offsets.get(str(each.partition))
            if offset is not None and each.position < offset:
                return f"the job is {known.now.job_state}; task {at.task} has read up to {each.position} of {offset}"
            if offset is not None:
                self.required.setdefault(at.partition, at.end)
        return None

    def _on_its_way(self, known: Known, at: StorePartition, position: Position) -> str | None:
        """As `_unread`, of a store behind repartition streams."""
        if position.stream not in known.now.sources:
            raise PositionNotOfStore(known.now.name)
        reason = self.passages.setdefault(at.partition, Passage()).obstacle(known.now, at, position)
        if reason is not None:
            return f"the job is {known.now.job_state}; {reason}"
        self.required.setdefault(at.partition, at.end)
        return None
