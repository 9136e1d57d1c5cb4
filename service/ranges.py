"""Ranges of a repartition chunk: which of its records are for which target, and where their bytes lie.

It knows the packed form that `chunks.ranges` and `ChunkMeta.ranges` hold. It refuses to know how records lie in bytes
(`service.storage.segments`) and how far a target has read (`service.catalog`).

A chunk of a repartition log holds the records of one commit, target after target. Each target that has records has
one range: a slice of the chunk's rows, and so of its offsets, as one message of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

RANGE: Final = np.dtype(
    [
        ("target", "<i4"),
        ("crc32", "<u4"),  # of the bytes of the range
        ("first_row", "<i8"),  # from the first row of the chunk
        ("rows", "<i8"),
        ("byte_offset", "<i8"),  # from the first byte of the chunk
        ("byte_length", "<i8"),
        ("first_aligned_at", "<i8"),  # ms
        ("last_aligned_at", "<i8"),
    ]
)
Ranges = npt.NDArray[np.void]


def pack(ranges: Ranges) -> bytes:
    """Ranges (n, dtype RANGE, ascending by target, a target at most once) as the catalog holds them."""
    return ranges.tobytes()


def unpack(packed: bytes) -> Ranges:
    """The ranges (n, dtype RANGE) in a packed value. Raises ValueError where it is none."""
    return np.frombuffer(packed, RANGE)


def is_whole(packed: bytes, records: int, byte_length: int) -> bool:
    """Whether this is packed, each record of a chunk is in one range, and each range inside the chunk's bytes."""
    if not packed or len(packed) % RANGE.itemsize:
        return False
    ranges = unpack(packed)
    ends = np.cumsum(ranges["rows"])
    is_in_order = bool(
        (np.diff(ranges["target"]) > 0).all() and ranges["target"][0] >= 0 and (ranges["rows"] > 0).all()
    )
    is_gapless = bool((ends - ranges["rows"] == ranges["first_row"]).all() and ends[-1] == records)
    places, lengths = ranges["byte_offset"], ranges["byte_length"]
    is_inside = bool((places >= 0).all() and (lengths >= 0).all() and (places <= byte_length - lengths).all())
    return is_in_order and is_gapless and is_inside
