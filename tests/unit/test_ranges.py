"""What a repartition chunk says of its targets, packed."""

from __future__ import annotations

import numpy as np
import pytest

from service.ranges import RANGE, pack, unpack


def ranges_of(*targets: int) -> bytes:
    found = np.zeros(len(targets), RANGE)
    found["target"] = targets
    found["rows"] = np.arange(1, len(targets) + 1)
    found["first_row"] = np.cumsum(found["rows"]) - found["rows"]
    found["crc32"] = 2**32 - 1
    return pack(found)


def test_ranges_come_back_as_they_were_packed() -> None:
    packed = ranges_of(0, 3, 63)
    assert len(packed) == 3 * RANGE.itemsize == 3 * 56
    found = unpack(packed)[["target", "first_row", "rows", "crc32"]].tolist()
    assert found == [(0, 0, 1, 2**32 - 1), (3, 1, 2, 2**32 - 1), (63, 3, 3, 2**32 - 1)]


def test_bytes_that_are_no_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of element size"):
        unpack(ranges_of(0)[:-1])
