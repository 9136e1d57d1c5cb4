"""What requests hand in: records by partition, and who waits for which answer.

Knows that a large request is an append of its own, and that small posts to one stream go as one. Refuses to know how a
group of them is written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from service.catalog.tables import Json, StreamRow
from service.payloads.rows import Row

Answer = dict[str, Any]  # {"accepted", "offsets": [{"partition", "first", "last"}], "position", "warnings"?}
Share = list[tuple[int, int]]  # of one answer: (partition, its records there), in the order of partitions
PostOutcome: TypeAlias = "tuple[asyncio.Future[bytes], bytes | BaseException]"


class SettingsChanged(Exception):
    """The stream is not what the records were judged by any more; none of them is there."""


class Target(NamedTuple):
    """A stream as records are judged by it; `version` tells whether it still is so."""

    id: str
    name: str
    version: int
    partitions: int
    max_future_ms: int
    fields: Json | None
    is_custom: bool

    @classmethod
    def of(cls, stream: StreamRow) -> Target:
        return cls(
            id=stream.id,
            name=stream.name,
            version=stream.etag,
            partitions=stream.partitions,
            max_future_ms=stream.max_future_ms,
            fields=stream.fields,
            is_custom=stream.custom_partitioning,
        )


@dataclass(frozen=True, slots=True)
class Idempotency:
    """An Idempotency-Key as its owner sent it, and the body it stands for."""

    api_key_id: str
    stream_id: str
    key: str
    body_sha256: str

    @property
    def scope(self) -> tuple[str, str, str]:
        return self.api_key_id, self.stream_id, self.key


@dataclass(eq=False, slots=True)
class Append:
    """One request: its records by partition, and who waits for its answer."""

    stream_id: str
    stream_name: str
    batches: list[tuple[int, pa.RecordBatch]]
    is_custom: bool
    idempotency: Idempotency | None
    warnings: list[dict[str, str]] = field(default_factory=list)  # part of its answer
    future: Future[Answer] = field(default_factory=Future)
    version = None  # it was judged by what it read itself: what it began with holds
    requests = 1

    @property
    def records(self) -> int:
        return sum(batch.num_rows for _, batch in self.batches)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(batch.nbytes for _, batch in self.batches)

    def shares(self) -> Iterator[Share]:
        yield [(partition, batch.num_rows) for partition, batch in self.batches]


@dataclass(eq=False, slots=True)
class Post:
    """A small request: `size` bytes of rows for a stream, and who waits on the event loop for its answer."""

    target: Target
    rows: list[Row]
    size: int
    future: asyncio.Future[bytes]
    requests = 1

    def outcomes(self, outcome: list[Answer] | BaseException) -> Iterator[PostOutcome]:
        """As of Posts."""
        if isinstance(outcome, BaseException):
            yield self.future, outcome
        else:
            yield self.future, orjson.dumps(outcome[0])


@dataclass(eq=False, slots=True)
class Posts:
    """Small posts to one stream as one append: `batches` of all of them, `partitions` of row after row."""

    stream_id: str
    stream_name: str
    version: int
    batches: list[tuple[int, pa.RecordBatch]]
    posts: Sequence[Post]
    partitions: npt.NDArray[np.int32]
    is_custom = False  # the first to choose a partition goes as an Append
    warnings = ()  # what needs one does, too
    idempotency = None

    @property
    def records(self) -> int:
        return len(self.partitions)

    @property
    def requests(self) -> int:
        return len(self.posts)

    @property
    def size(self) -> int:
        """Bytes of their bodies."""
        return sum(post.size for post in self.posts)

    def outcomes(self, outcome: list[Answer] | BaseException) -> Iterator[PostOutcome]:
        """Each future with its answer as JSON, or with the error of all."""
        if isinstance(outcome, BaseException):
            return ((post.future, outcome) for post in self.posts)
        return ((post.future, orjson.dumps(answer)) for post, answer in zip(self.posts, outcome, strict=True))

    def shares(self) -> Iterator[Share]:
        place = iter(self.partitions.tolist())
        for post in self.posts:
            if len(post.rows) == 1:
                yield [(next(place), 1)]
            else:
                yield sorted(Counter(islice(place, len(post.rows))).items())


def split(records: pa.RecordBatch, partitions: npt.NDArray[np.int32], count: int) -> list[tuple[int, pa.RecordBatch]]:
    """(partition, its records in their order) for each partition that has some."""
    sizes = np.bincount(partitions, minlength=count)
    used = np.flatnonzero(sizes).tolist()
    if len(used) == 1:
        return [(used[0], records)]
    order = np.argsort(partitions.astype(np.uint16), kind="stable")  # 16 bits: a radix sort, 6× faster
    grouped = records.take(pa.array(order))
    ends = np.cumsum(sizes).tolist()
    return [(p, grouped.slice(ends[p] - int(sizes[p]), int(sizes[p]))) for p in used]


def in_chunks(group: Sequence[Append | Posts]) -> list[tuple[str, int, pa.RecordBatch]]:
    """One batch for each (stream, partition), the requests' records one after another."""
    found: dict[tuple[str, int], list[pa.RecordBatch]] = {}
    for append in group:
        for partition, batch in append.batches:
            found.setdefault((append.stream_id, partition), []).append(batch)
    return [
        (*place, batches[0] if len(batches) == 1 else pa.concat_batches(batches))
        for place, batches in sorted(found.items(), key=lambda item: item[0])
    ]
