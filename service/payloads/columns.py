"""What every format yields before the rules are asked: five columns, and how to point at a record.

Knows the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from service.streams.errors import InvalidRecords, Problem

MAX_RECORDS = 2_000_000  # a request; bounds what a body of nothing but `{}` lines makes of memory
MAX_PROBLEMS = 100  # told of one request; more would help nobody


@dataclass(frozen=True, slots=True)
class Columns:
    """Records as sent. A null timestamp means arrival, a null partition that none was given."""

    key: pa.Array  # binary
    value: pa.Array  # utf8: valid JSON, or null
    timestamp: pa.Array  # int64
    partition: pa.Array  # int64
    headers: pa.Array  # utf8: a JSON object of texts, or null
    pointer_to: Callable[[int], str]  # record -> JSON pointer of it in the body


def refuse_too_many(records: int) -> None:
    """InvalidRecords when a request has more than MAX_RECORDS."""
    if records > MAX_RECORDS:
        raise InvalidRecords([Problem("", f"a request may carry {MAX_RECORDS} records, this one has {records}")])
