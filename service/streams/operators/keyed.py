"""Records as an operator with an ordered store takes them: null keys out, stream time beside each, long keys apart.

It knows what a key must be to be stored (semantics.md, Null and Time); it refuses to know what is stored under it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams import clock, measures
from service.streams.layouts import store_keys
from service.streams.layouts.changelog import Part, change
from service.streams.layouts.reserved import LAST_END_KEY, RECORD_TIME_KEY, pack_time, stream_time, unpack_time
from service.streams.measures import Reading
from service.streams.records import Dropped, StateReader

Flags = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

BEFORE_VERSION: Final = "before_version"  # dropped: for a window that begins before the store did


def last_end(state: StateReader) -> int | None:
    """The highest end of all windows that an operator ever had; None before the first."""
    packed = state.get(LAST_END_KEY)
    return unpack_time(packed) if packed else None


def last_end_after(ends: npt.NDArray[np.int64], state: StateReader) -> list[Part]:
    """Its change, where windows with these ends let it rise."""
    before, after = last_end(state), int(ends.max(initial=-1))
    if not len(ends) or (before is not None and before >= after):
        return []
    return [change(LAST_END_KEY, pack_time(after))]


@dataclass(frozen=True, slots=True)
class Keyed:
    """`rows`: the records with a key (TASK_SCHEMA), each of which moves stream time; `keys`: theirs, null where they
    are too long to be stored; `running`: stream time as each of them sees it; `before`, `now`: as the batch found it
    and leaves it.
    """

    rows: pa.RecordBatch
    keys: pa.Array
    running: npt.NDArray[np.int64]
    before: int
    now: int
    dropped: list[Dropped]

    @classmethod
    def of(cls, operator: str, batch: pa.RecordBatch, state: StateReader) -> Self:
        """A batch (TASK_SCHEMA) for an operator with this store; rows without a key, or too long a one, are dropped."""
        before, dropped = stream_time(state), []
        keys = batch.column("key")
        if keys.null_count:
            dropped.append(Dropped(operator, "null_key", batch.filter(keys.is_null())))
            batch = batch.filter(keys.is_valid())
            keys = batch.column("key")
        is_storable = store_keys.is_storable(keys)
        is_too_long = pc.invert(is_storable)
        if pc.any(is_too_long).as_py():
            dropped.append(Dropped(operator, "key_too_long", batch.filter(is_too_long)))
            keys = pc.if_else(is_storable, keys, None)
        running = clock.observe(before, batch.column("timestamp").to_numpy())
        return cls(batch, keys, running, before, clock.latest(before, running), dropped)

    @property
    def lateness(self) -> Reading:
        """How late the records are."""
        return measures.lateness(self.running, self.rows.column("timestamp").to_numpy())


@dataclass(frozen=True, slots=True)
class RecordTime:
    """How far stream time would be by records alone: it tells `late` from `closed_idle`.

    The store has it only while stream time is ahead of it, moved there by hand. `running`: as each row sees it.
    """

    is_stored: bool
    before: int
    running: npt.NDArray[np.int64]

    @classmethod
    def of(cls, keyed: Keyed, state: StateReader) -> Self:
        """The same for a batch of records."""
        packed = state.get(RECORD_TIME_KEY)
        before = keyed.before if packed is None else unpack_time(packed)
        is_behind = packed is not None
        running = clock.observe(before, keyed.rows.column("timestamp").to_numpy()) if is_behind else keyed.running
        return cls(is_behind, before, running)

    def changes(self, now: int) -> list[Part]:
        """What the store has to learn of it when stream time is `now`: (keys, values), at most one of each."""
        time = clock.latest(self.before, self.running)
        is_behind = time < now
        if not (is_behind or self.is_stored) or (is_behind and self.is_stored and time == self.before):
            return []
        return [change(RECORD_TIME_KEY, pack_time(time) if is_behind else None)]


class ClosedEnds(NamedTuple):
    """What was closed (ms) when rows that are late came: `by_records` alone, and in truth; `ends` (ms): of the windows
    that each missed. Of sessions a row's own time, where it would have begun one.
    """

    ends: Int64s
    by_records: Int64s
    closes: Int64s


def dropped_late(
    operator: str, rows: pa.RecordBatch, is_late: Flags, would_be_open: Flags, closing: ClosedEnds
) -> list[Dropped]:
    """`rows` (TASK_SCHEMA) that are late: `closed_idle` where only idle close or flush made them so. They missed their
    window by as much as what was closed lay behind its end.
    """
    parts = {
        "late": (is_late & ~would_be_open, closing.by_records),
        "closed_idle": (is_late & would_be_open, closing.closes),
    }
    return [
        Dropped(
            operator,
            reason,
            rows.filter(pa.array(which)),
            missed_by_ms=(closes - closing.ends)[which],
        )
        for reason, (which, closes) in parts.items()
        if which.any()
    ]
