"""What a poll leaves of a repartition chunk's ranges for one target, found once more, as plainly as numpy allows."""

from __future__ import annotations

from service.ranges import pack, unpack


def of_target(packed: bytes | None, target: int) -> bytes | None:
    """The range that is for a target, packed; None where the chunk has nothing for it."""
    ranges = unpack(packed or b"")
    return pack(ranges[ranges["target"] == target]) or None
