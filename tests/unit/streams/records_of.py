"""Batches of records written down in tests: bare lists become RECORD_SCHEMA."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from service.streams.records import RECORD_SCHEMA


def batch_of(
    values: Sequence[str | None], keys: Sequence[bytes | None] | None = None, timestamps: Sequence[int] | None = None
) -> pa.RecordBatch:
    """Records with these JSON texts as values; keys null and timestamps 0, 1, 2 … unless given."""
    rows = len(values)
    columns = [
        pa.array(keys if keys is not None else [None] * rows, pa.binary()),
        pa.array(values, pa.utf8()),
        pa.array(timestamps if timestamps is not None else range(rows), pa.int64()),
        pa.nulls(rows, pa.int64()),
        pa.nulls(rows, pa.int64()),
        pa.nulls(rows, pa.utf8()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
