"""Bounds of one simulation on outputs, stores and time: counted before it runs, and while it does.

A few records can become millions of updates (hopping windows, `collect`), so records are fed a few at a time and their
outputs are counted before more are: how a range is cut changes nothing. `last_per_batch` alone sees batches, and keeps
those that the request has; there the updates are counted beforehand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.simulate.request import SimulatedRecord, SimulateRequest, batches, sees_batches
from service.storage.replica import Replica
from service.streams.errors import SimulationTooLarge
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec

MAX_ITEMS: Final = 100_000  # in an answer: outputs, dropped records and entries of stores, together
MAX_BYTES: Final = 64 << 20  # of their keys and values
MAX_SECONDS: Final = 30.0
MAX_REPLICAS: Final = 512  # each is an open file, and takes 64 GiB of addresses
_MAX_STORED: Final = 4 * MAX_ITEMS  # store keys while it runs: those of indexes, and of entries that are over, too
_MAX_DISK: Final = 8 * MAX_BYTES  # that replicas take meanwhile
_FED_RECORDS: Final = 1000  # at once
_FED_BYTES: Final = 32 << 20  # that they may become at once; an operator takes ten times that to make them
ROW_BYTES: Final = 64  # of what is not key or value


@dataclass(frozen=True, slots=True)
class Reach:
    """The number of updates that one record may become: `hops` by hopping windows for certain, `most` where sliding
    windows are as crowded as timestamps allow. `has_values`: its value may be in each of them.
    """

    hops: int
    most: int
    has_values: bool

    @classmethod
    def of(cls, spec: JobSpec, records: Sequence[SimulatedRecord]) -> Reach:
        times = np.array([record.timestamp for record in records], np.int64)
        fans = [operator.fan_out(times) for operator in spec.operators]
        return cls(
            math.prod(fan.for_certain for fan in fans),
            math.prod(fan.most for fan in fans),
            any(fan.has_values for fan in fans),
        )


def check_reach(
    body: SimulateRequest, spec: JobSpec, topology: Topology, reach: Reach, texts: Sequence[str | None]
) -> None:
    """Refuse a request that is too large before anything runs. Raises SimulationTooLarge."""
    given = len({record.partition for record in body.records})
    replicas = sum(
        (each.partitions if each.upstreams else given) * len(each.stores()) for each in topology.sub_topologies
    )
    if replicas > MAX_REPLICAS:
        raise SimulationTooLarge(
            f"the tasks of the job keep {replicas} stores, at most {MAX_REPLICAS} are kept at once"
        )
    largest = max((len(text) for text in texts if text is not None), default=0)
    if reach.hops > MAX_ITEMS or (reach.has_values and reach.hops > 1 and reach.hops * largest > _FED_BYTES):
        detail = f"one record of {largest} bytes falls into {reach.hops} windows"
        raise SimulationTooLarge(f"{detail}; an answer has at most {MAX_ITEMS} items of {MAX_BYTES} bytes")
    batch = max((len(each) for each in batches(body)), default=0)
    if sees_batches(spec) and batch * reach.most > MAX_ITEMS:
        detail = f"a batch of {batch} records may be {batch * reach.most} updates, at most {MAX_ITEMS} are taken"
        raise SimulationTooLarge(f"{detail}: give a smaller batch_records")


@dataclass(slots=True)
class Bounds:
    """The size of the answer so far, the end of its time, and the number of records that may go in at once.

    `widest`, `heaviest`: the outputs of the record that had most of them, and their bytes. `held`: by task
    (sub-topology, partition) the keys in its stores and their bytes on disk; `held_keys`, `held_bytes`: of all tasks.
    """

    reach: Reach
    records: int
    until: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)
    items: int = 0
    bytes: int = 0
    widest: int = 1
    heaviest: int = 1
    held: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    held_keys: int = 0
    held_bytes: int = 0

    def take(self, items: int, size: int) -> None:
        """Count what goes into the answer. Raises SimulationTooLarge."""
        self.items += items
        self.bytes += size
        if self.items > MAX_ITEMS or self.bytes > MAX_BYTES:
            found = f"more than {MAX_ITEMS} items" if self.items > MAX_ITEMS else f"more than {MAX_BYTES} bytes"
            raise self.too_large(f"give {found} of outputs, dropped records and entries of stores")
        if time.monotonic() > self.until:
            raise self.too_large(f"take longer than {MAX_SECONDS:g} s")

    def see(self, ordinals: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> None:
        """Count outputs, before anything is made of them. Raises SimulationTooLarge."""
        self.take(len(sizes), int(sizes.sum()))
        if len(sizes):
            _, which = np.unique(ordinals, return_inverse=True)
            self.widest = max(self.widest, int(np.bincount(which).max()))
            self.heaviest = max(self.heaviest, int(np.bincount(which, sizes).max()))

    def hold(self, task: tuple[int, int], replicas: Iterable[Replica]) -> None:
        """Look at how much is in the stores of a task that ran. Raises SimulationTooLarge."""
        keys_before, bytes_before = self.held.get(task, (0, 0))
        keys = size = 0
        for replica in replicas:
            keys, size = keys + replica.entries, size + replica.disk_bytes
        self.held[task] = keys, size
        self.held_keys += keys - keys_before
        self.held_bytes += size - bytes_before
        if self.held_keys > _MAX_STORED or self.held_bytes > _MAX_DISK:
            most = f"{_MAX_STORED} keys" if self.held_keys > _MAX_STORED else f"{_MAX_DISK} bytes on disk"
            raise self.too_large(f"fill stores with more than {most}")

    def fitting(self, sizes: Sequence[int]) -> int:
        """How many of some records (bytes of each) go in at once, from the first on: at least one.

        The first of them may be in the result of each of the others, as with `collect`.
        """
        size = 0
        for before, own in enumerate(sizes[:_FED_RECORDS]):
            size += own
            count = before + 1
            is_wide = count * max(self.reach.most, self.widest) > MAX_ITEMS
            weight = size * self.reach.most if self.reach.has_values else size
            if is_wide or count * max(weight, self.heaviest) > _FED_BYTES:
                return max(1, before)
        return min(len(sizes), _FED_RECORDS)

    def too_large(self, what: str) -> SimulationTooLarge:
        return SimulationTooLarge(f"{self.records} records {what}: send fewer, or a job that gives less")


def row_bytes(rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """The bytes of each row."""
    sizes = np.full(rows.num_rows, ROW_BYTES, np.int64)
    for name in ("key", "value"):
        sizes += np.asarray(pc.fill_null(pc.binary_length(rows.column(name)), 0))
    return sizes
