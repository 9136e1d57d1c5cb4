"""The nouns as Arrow schemas: a batch of records, a batch of a task, a batch of changes to a store.

It knows the shape of a record; it refuses to know what any operator does with one, where a batch comes
from and where it goes.

record     key: bytes or null · value: JSON text or null · timestamp: ms · window [start, end) or null ·
           headers: JSON object text or null
task       the same plus the ordinal of the source row that caused it (`service.streams.inputs`), as the last column
changelog  key -> value bytes, null value = deleted; sorted by key, each key at most once
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.utf8()),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("window_start", pa.int64()),
        pa.field("window_end", pa.int64()),
        pa.field("headers", pa.utf8()),
    ]
)
TASK_SCHEMA = RECORD_SCHEMA.append(pa.field("ordinal", pa.int64(), nullable=False))
CHANGELOG_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])


StoreType = Literal["key_value", "session", "window"]
StoreKind = Literal["deduplicate", "aggregate", "distinct", "suppress"]


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """What a replica must know about a store to keep it: its names, and how its entries expire.

    `interval_ms`: how long, in stream time, an entry lives after its own time (deduplicate: its timestamp; a
    session: its end; a window: its start); None = until it is deleted.
    """

    name: str
    operator: str
    type: StoreType
    changelog: str
    kind: StoreKind
    interval_ms: int | None


class ChunkMeta(NamedTuple):
    """One record batch inside a segment, as its writer describes it before it has offsets.

    `byte_offset` and `byte_length` say where it lies in the file, `crc32` what its bytes sum up to.
    """

    stream_id: str
    partition: int
    records: int
    min_timestamp: int
    max_timestamp: int
    byte_offset: int
    byte_length: int
    crc32: int


class Chunk(NamedTuple):
    """One published record batch: where its bytes lie, and the offset of its first record.

    `index` is its place among the chunks of its segment; (`segment`, `index`) names it for ever.
    """

    path: str
    segment: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    byte_offset: int
    byte_length: int
    crc32: int
    first_offset: int
    records: int


class StateReader(Protocol):
    """One consistent view of a store at the position of its replica."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: list[bytes], default: bytes) -> list[bytes]: ...

    def scan(
        self, start: bytes, end: bytes, limit: int | None = None, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Entries with start <= key < end in the order of their keys, the first `limit` of them.

        Reversed: from the last before `end` down.
        """


@dataclass(frozen=True, slots=True)
class Dropped:
    """Records that an operator did not let through: `rows` as they reached it (TASK_SCHEMA)."""

    operator: str
    reason: str
    rows: pa.RecordBatch


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records (RECORD_SCHEMA) of task rows (TASK_SCHEMA), without their ordinals; no copy."""
    return batch.select(RECORD_SCHEMA.names)


def as_task_rows(records: pa.RecordBatch, ordinals: pa.Array) -> pa.RecordBatch:
    """Records (RECORD_SCHEMA) with the ordinals of the source rows that caused them (int64): TASK_SCHEMA. No copy."""
    return pa.RecordBatch.from_arrays([*records.columns, ordinals], schema=TASK_SCHEMA)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of `schema` without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)
