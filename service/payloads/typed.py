"""Records as columns with types: times as timestamps, and a column for each of the stream's `fields`.

Knows how columns are named. Refuses to know where records come from. A member that does not fit (`fields` were changed
after its record was written, or a job wrote it) is null in its column; the whole value stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from service.payloads.answers import PAGE_SCHEMA
from service.payloads.fields import COLUMN_TYPES, columns_of

TIMESTAMP: Final = pa.timestamp("ms")  # UTC
_TIMES: Final = frozenset({"timestamp", "window_start", "window_end"})
_BASE: Final = [pa.field(each.name, TIMESTAMP if each.name in _TIMES else each.type) for each in PAGE_SCHEMA]


def typed_schema(fields: Mapping[str, str]) -> pa.Schema:
    """PAGE_SCHEMA with timestamps, then `value.<name>` of each field."""
    members = [pa.field(f"value.{name}", COLUMN_TYPES[kind.removesuffix("?")]) for name, kind in fields.items()]
    return pa.schema([*_BASE, *members])


def typed_columns(page: pa.RecordBatch, fields: Mapping[str, str]) -> list[pa.Array]:
    """The columns of `typed_schema` for a batch of PAGE_SCHEMA."""
    columns = [column.cast(each.type) for column, each in zip(page.columns, _BASE, strict=True)]
    return [*columns, *(columns_of(page.column("value"), fields) if fields else ())]
