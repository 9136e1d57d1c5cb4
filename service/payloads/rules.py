"""What every stream asks of a record, whatever format brought it.

Knows limits and the stream's own rules. Refuses to know formats. All checks are over whole columns; a bad request
costs one pass more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.payloads.columns import MAX_PROBLEMS, Columns
from service.payloads.fields import bad_fields
from service.payloads.units import odd_times, unit_of
from service.streams.errors import InvalidRecords, Problem
from service.streams.records import RECORD_SCHEMA

MAX_KEY_BYTES = 64 << 10
MAX_VALUE_BYTES = 8 << 20
MAX_HEADERS_BYTES = 64 << 10

Fault = tuple[int, str, str]  # row, member of the record, what is wrong with it


@dataclass(frozen=True, slots=True)
class Rules:
    """What a stream asks of its records; `now_ms` is the arrival of the request.

    `max_bytes` bounds the decoded columns where a format compresses inside itself.
    """

    partitions: int
    now_ms: int
    max_future_ms: int = 3_600_000
    fields: Mapping[str, str] | None = None
    max_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Payload:
    """Records of RECORD_SCHEMA in the order sent, and the partitions (int32) they ask for: -1 where they do not,
    None where none does. `warnings` point at what is taken, and may be meant otherwise."""

    records: pa.RecordBatch
    partitions: npt.NDArray[np.int32] | None
    warnings: tuple[Problem, ...] = ()


def judge(columns: Columns, rules: Rules) -> Payload:
    """The records, when all of them are good; else InvalidRecords, in the order of the records."""
    value = columns.value
    if pc.any(is_null := pc.equal(value, "null")).as_py():
        value = pc.if_else(is_null, None, value)
    timestamp = pc.fill_null(columns.timestamp, rules.now_ms)
    faults = [
        *islice(_bad_timestamps(timestamp, rules), MAX_PROBLEMS),
        *islice(_bad_partitions(columns.partition, rules.partitions), MAX_PROBLEMS),
        *islice(_too_long(columns.key, "key", MAX_KEY_BYTES), MAX_PROBLEMS),
        *islice(_too_long(value, "value", MAX_VALUE_BYTES), MAX_PROBLEMS),
        *islice(_too_long(columns.headers, "headers", MAX_HEADERS_BYTES), MAX_PROBLEMS),
        *(bad_fields(value, rules.fields, MAX_PROBLEMS) if rules.fields else ()),
    ]
    if faults:
        faults.sort()
        raise InvalidRecords(
            [Problem(f"{columns.pointer_to(row)}/{member}", detail) for row, member, detail in faults[:MAX_PROBLEMS]]
        )
    none = pa.nulls(len(value), pa.int64())
    batch = [columns.key, value, timestamp, none, none, columns.headers]
    records = pa.RecordBatch.from_arrays(batch, schema=RECORD_SCHEMA)
    warnings = (Problem(f"{columns.pointer_to(row)}/timestamp", detail) for row, detail in odd_times(timestamp))
    return Payload(records, _asked(columns.partition), tuple(warnings))


def _asked(partition: pa.Array) -> npt.NDArray[np.int32] | None:
    if partition.null_count == len(partition):
        return None
    asked: npt.NDArray[np.int32] = pc.fill_null(partition, -1).to_numpy().astype(np.int32)
    return asked


def _rows(mask: pa.Array) -> Iterator[int]:
    """The rows where a mask is true, null counting as false."""
    if pc.any(mask).as_py():
        yield from np.flatnonzero(pc.fill_null(mask, fill_value=False).to_numpy(zero_copy_only=False)).tolist()


def _bad_timestamps(timestamp: pa.Array, rules: Rules) -> Iterator[Fault]:
    for row in _rows(pc.less(timestamp, 0)):
        yield row, "timestamp", "must not be negative"
    for row in _rows(pc.greater(timestamp, rules.now_ms + rules.max_future_ms)):
        detail = f"is more than {rules.max_future_ms} ms ahead of its arrival at {rules.now_ms}"
        unit = unit_of(timestamp[row].as_py())
        yield row, "timestamp", f"{detail}; it looks like {unit}: send milliseconds" if unit else detail


def _bad_partitions(partition: pa.Array, count: int) -> Iterator[Fault]:
    for row in _rows(pc.or_(pc.less(partition, 0), pc.greater_equal(partition, count))):
        yield row, "partition", f"must be 0 to {count - 1}"


def _too_long(column: pa.Array, member: str, limit: int) -> Iterator[Fault]:
    for row in _rows(pc.greater(pc.binary_length(column), limit)):
        yield row, member, f"has more than {limit} bytes"
