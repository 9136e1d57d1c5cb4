"""The nouns as Arrow schemas: a batch of records, a batch of a task, a batch of changes to a store.

It knows the shape of a record; it refuses to know what any operator does with one, where a batch comes
from and where it goes.

record     key: bytes or null · value: JSON text or null · timestamp: ms · window [start, end) or null ·
           headers: JSON object text or null
task       the same plus the ordinal of the source row that caused it (`service.streams.inputs`), as the last column
repartition  a record plus how far (ms) the task that wrote it had come, as the last column
changelog  key -> value bytes, null value = deleted; sorted by key, each key at most once
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
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
ALIGNED_AT_FIELD = pa.field("aligned_at", pa.int64(), nullable=False)
REPARTITION_SCHEMA = RECORD_SCHEMA.append(ALIGNED_AT_FIELD)
OFFSET_FIELD = pa.field("offset", pa.int64(), nullable=False)  # the last column of a sparse chunk's stored batch

# Scalars as the catalog's columns hold them.
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Int32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Ranges = Annotated[bytes, msgspec.Meta(max_length=1 << 20)]


StoreType = Literal["key_value", "session", "window"]
Layout = Literal["identities", "ordered"]  # how its entries lie in bytes: `layouts`


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """What a replica must know about a store to keep it: its names, what its operator keeps in it (`kind`, as lookups
    and metrics call it), how that lies in bytes, and how it expires.

    `interval_ms`: how long, in stream time, an entry lives after its own time (deduplicate: its timestamp; a
    session: its end; a window: its start); None = until it is deleted.

    `layouts`: where former versions of its operator wrote entries otherwise, all layouts that there were, the present
    one last, as JSON (`operators.aggregate_layouts`); None = there never was another than the first.
    """

    name: str
    operator: str
    type: StoreType
    changelog: str
    kind: str
    layout: Layout
    interval_ms: int | None
    layouts: list[dict[str, Any]] | None = None


class Handover(msgspec.Struct, frozen=True):
    """What a store must know of the version before, all in ms, None where there is nothing to know.

    `delay_ms`: what the old operator took off stream time to have what is closed. `kept_ms`: how long its entries
    lived after their own time. `begins_at`: the store is a new one, and begins at this stream time. `stream_time`: the
    operator's stream time is set back to this.
    """

    delay_ms: int | None = None
    kept_ms: int | None = None
    begins_at: int | None = None
    stream_time: int | None = None


class ChunkMeta(msgspec.Struct, frozen=True, array_like=True):
    """One record batch inside a segment, as its writer describes it before it has offsets.

    `byte_offset` and `byte_length` say where it lies in the file, `crc32` what its bytes sum up to. `is_sparse`: its
    offsets have gaps, so the stored batch carries them in a column. `ranges`: what lies where inside it, packed.
    """

    stream_id: Id
    partition: Int32
    records: Count
    min_timestamp: Int64
    max_timestamp: Int64
    byte_offset: Count
    byte_length: Count
    crc32: Count
    is_sparse: bool = False
    ranges: Ranges | None = None


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """One published record batch: where its bytes lie, and the offsets [first_offset, end_offset) that it stands for.

    `index` is its place among the chunks of its segment; (`segment`, `index`) names it for ever. A dense chunk has a
    record at each offset; a sparse one has fewer, and a column of its batch says which.
    """

    path: str
    segment: str
    index: int
    byte_offset: int
    byte_length: int
    crc32: int
    first_offset: int
    end_offset: int
    records: int
    is_sparse: bool = False
    ranges: bytes | None = None


class Published(msgspec.Struct, frozen=True):
    """Where the records of one chunk are once it is published: offsets [first_offset, end_offset)."""

    stream_id: str
    partition: int
    first_offset: int
    end_offset: int


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
    """Records that an operator did not let through: `rows` as they reached it (TASK_SCHEMA).

    `errors`: what it failed at, a text a row, where failed records are kept (`on_error: dead_letter`); else None.
    `causes`: of each row the origin (in one word, `service.streams.inputs`) of the earlier record that it was dropped
    for; None where the operator keeps none. `missed_by_ms`: by how many ms each missed going on; None: no time would
    have let it.
    """

    operator: str
    reason: str
    rows: pa.RecordBatch
    errors: Sequence[str] | None = None
    causes: npt.NDArray[np.int64] | None = field(default=None, compare=False)
    missed_by_ms: npt.NDArray[np.int64] | None = field(default=None, compare=False)


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records (RECORD_SCHEMA) of task rows (TASK_SCHEMA), without their ordinals; no copy."""
    return batch.select(RECORD_SCHEMA.names)


def as_task_rows(records: pa.RecordBatch, ordinals: pa.Array) -> pa.RecordBatch:
    """Records (RECORD_SCHEMA) with the ordinals of the source rows that caused them (int64): TASK_SCHEMA. No copy."""
    return pa.RecordBatch.from_arrays([*records.columns, ordinals], schema=TASK_SCHEMA)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of `schema` without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)
