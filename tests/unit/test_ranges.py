"""What a repartition chunk says of its targets, packed."""

from __future__ import annotations

import numpy as np
import pytest

from service.ranges import RANGE, of_target, pack, unpack


def ranges_of(*targets: int) -> bytes:
    found = np.zeros(len(targets), RANGE)
    found["target"] = targets
    found["rows"] = np.arange(1, len(targets) + 1)
    found["first_row"] = np.cumsum(found["rows"]) - found["rows"]
    found["crc32"] = 2**32 - 1
    return pack(found)


def test_a_target_gets_its_own_range_and_no_other() -> None:
    packed = ranges_of(0, 3, 63)
    cut = of_target(packed, 3)
    assert cut is not None
    assert len(cut) == RANGE.itemsize == 56
    assert unpack(cut)[["target", "first_row", "rows", "crc32"]].tolist() == [(3, 1, 2, 2**32 - 1)]
    assert of_target(cut, 3) == cut


@pytest.mark.parametrize("target", [1, 2, 4, 64])
def test_a_target_without_records_has_no_range(target: int) -> None:
    assert of_target(ranges_of(0, 3, 63), target) is None
    assert of_target(b"", target) is None


def test_bytes_that_are_no_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of element size"):
        unpack(ranges_of(0)[:-1])
