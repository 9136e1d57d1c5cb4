"""Times in another unit than milliseconds: what they look like, and what to send instead.

Knows numbers and texts of times. Refuses to know what is done about one: a time in seconds is a good one of 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
IN_MS: Final = "milliseconds since 1970-01-01T00:00Z, as an integer"
_UNITS: Final = (  # of the years 2001 to 2286
    ("seconds", 10**9, 10**10),
    ("microseconds", 10**15, 10**16),
    ("nanoseconds", 10**18, 2**63 - 1),
)


def unit_of(timestamp: int) -> str | None:
    """The unit in which a timestamp is one of our days, unless that is ms."""
    return next((unit for unit, least, beyond in _UNITS if least <= timestamp < beyond), None)


def odd_times(timestamps: pa.Array) -> Iterator[tuple[int, str]]:
    """For each unit that some look like: the first row, and a text that says how many do. At least one, no nulls."""
    values = timestamps.to_numpy()
    least, most = int(values.min()), int(values.max())
    for unit, low, high in _UNITS:
        if low <= most and least < high:  # nearly always false: no more is looked at
            is_odd = (values >= low) & (values < high)
            count = int(np.count_nonzero(is_odd))
            if count:
                row = int(np.argmax(is_odd))
                yield row, f"{values[row]} looks like {unit}, as {count} of {len(values)} do: send milliseconds"


def milliseconds_of(text: str) -> int | None:
    """An ISO 8601 time in ms, UTC where it names no zone; None where it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1)
