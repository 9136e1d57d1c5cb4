"""What lies where inside a chunk of a repartition stream: a range of its rows a target, packed.

It knows that a chunk has its targets one after the other, and where the rows of each begin in its offsets and its
bytes. It refuses to know how records find their target.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

RANGE: Final = np.dtype(
    [
        ("target", "<i4"),
        ("crc32", "<u4"),
        ("first_row", "<i8"),
        ("rows", "<i8"),
        ("byte_offset", "<i8"),
        ("byte_length", "<i8"),
        ("first_aligned_at", "<i8"),
        ("last_aligned_at", "<i8"),
    ]
)
Ranges = npt.NDArray[Any]  # of RANGE


def pack(ranges: Ranges) -> bytes:
    return ranges.tobytes()


def unpack(packed: bytes) -> Ranges:
    return np.frombuffer(packed, RANGE)


def of_target(packed: bytes, target: int) -> bytes | None:
    ranges = unpack(packed)
    place = int(np.searchsorted(ranges["target"], target))
    return pack(ranges[place : place + 1]) if place < len(ranges) and ranges["target"][place] == target else None
