"""The keys under which operators remember something about themselves, and what stream time looks like there.

It knows these keys, all of them, so that no two operators' meanings meet; it refuses to know who reads them when.

0x02 "obs"       the operator's stream time
0x02 "records"   how far stream time would be by records alone, while it is ahead of that
0x02 "last"      the highest end of all windows that the operator ever had
0x02 "totals"    records and bytes in the buffer of suppress
0x02 "closed"    up to where windows are closed, while that is not simply stream time less the operator's delay
0x02 "floor"     entries whose own time is below it are absent
0x02 "forgot"    entries whose own time was below it when it was written are gone: no copy keeps any of them behind it
0x02 "begins"    where the store began anew: windows that begin before it take no records
0x02 "ttl"       how long (ms) entries live after their own time: every copy forgets by what its changelog said last, so
                 that one which replays it under another version forgets what those forgot that ran then
0x02 "backlog"   what is still to be done of what the operator was given (`backlog`)
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from service.streams import clock
from service.streams.records import StateReader

PREFIX: Final = b"\x02"
OBS_KEY: Final = b"\x02obs"
RECORD_TIME_KEY: Final = b"\x02records"
LAST_END_KEY: Final = b"\x02last"
TOTALS_KEY: Final = b"\x02totals"
CLOSED_KEY: Final = b"\x02closed"
FLOOR_KEY: Final = b"\x02floor"
FORGOT_KEY: Final = b"\x02forgot"
BEGINS_KEY: Final = b"\x02begins"
TTL_KEY: Final = b"\x02ttl"
BACKLOG_KEY: Final = b"\x02backlog"


def pack_time(time: int) -> bytes:
    """A time or a length of time (ms) as a store value: int64 little-endian."""
    return struct.pack("<q", time)


def unpack_time(value: bytes) -> int:
    """The inverse of `pack_time`."""
    return int(struct.unpack("<q", value)[0])


def time_at(key: bytes, state: StateReader) -> int | None:
    """The time that a store has under a reserved key; None where it has none."""
    packed = state.get(key)
    return unpack_time(packed) if packed else None


def time_in(key: bytes, changes: pa.RecordBatch) -> int | None:
    """The time that changes to a store (CHANGELOG_SCHEMA) write under a reserved key, if they do."""
    row = int(pc.index(changes.column("key"), pa.scalar(key, pa.binary())).as_py())
    packed = None if row < 0 else changes.column("value")[row].as_py()
    return unpack_time(packed) if packed else None


def stream_time(state: StateReader) -> int:
    """An operator's stream time as its store has it; `clock.NOT_STARTED` where it has none."""
    found = time_at(OBS_KEY, state)
    return clock.NOT_STARTED if found is None else found
