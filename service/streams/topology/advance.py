"""Time that is being moved by hand along a chain, where it has to wait for an operator that is not through yet.

It knows how that is noted in the operator's store; it refuses to know why the operator is not through.

0x02 "advance"   stream time (int64 little-endian), reason
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self, cast

import pyarrow as pa

from service.streams import store_keys
from service.streams.operators.closing import CloseReason
from service.streams.records import StateReader

_KEY: Final = b"\x02advance"


class Advance(NamedTuple):
    """Stream time is to be moved to `to`, for that operator and those behind it."""

    to: int
    reason: CloseReason

    @classmethod
    def of(cls, state: StateReader) -> Self | None:
        """What is noted in a store."""
        packed = state.get(_KEY)
        if packed is None:
            return None
        return cls(int.from_bytes(packed[:8], "little"), cast(CloseReason, packed[8:].decode()))


def noted(advance: Advance | None, state: StateReader, changes: pa.RecordBatch | None) -> pa.RecordBatch | None:
    """Changes to a store (CHANGELOG_SCHEMA), and the note where that changes; None: nothing waits there any more."""
    if advance == Advance.of(state):
        return changes
    packed = None if advance is None else advance.to.to_bytes(8, "little") + advance.reason.encode()
    entry = pa.array([_KEY], pa.binary()), pa.array([packed], pa.binary())
    return store_keys.changelog([entry] if changes is None else [(changes.column(0), changes.column(1)), entry], None)
