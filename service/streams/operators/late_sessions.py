"""Sessions that a late record would be in, had nobody moved stream time without a record: `closed_idle`, not `late`.

It knows which stored sessions a record reaches (semantics.md, Session); it refuses to know what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams.layouts import store_keys
from service.streams.layouts.reserved import FLOOR_KEY, time_at
from service.streams.operators.closed_to import ClosedTo
from service.streams.operators.keyed import BEFORE_VERSION, ClosedEnds, Keyed, dropped_late
from service.streams.operators.windows import SessionWindow, kept_ms
from service.streams.records import Dropped, StateReader

Int64s = npt.NDArray[np.int64]
Times = tuple[int, int]  # start, end

_PAST_ALL = b"\xff" * 9  # behind all times


def ends_reached(
    rows: pa.RecordBatch,
    closes: Int64s,
    running: Int64s,
    window: SessionWindow,
    state: StateReader,
    packed: Callable[[bytes], Iterable[Times]] = lambda key: (),
) -> Int64s:
    """For each row (TASK_SCHEMA, with keys) the end (ms) of the session that it would be in where all that ended before
    closes[i] is closed; its own timestamp where it would begin one.

    `running`: stream time as each sees it: what the store does not keep any more at that time is not there, nor is
    what lies below its floor. `packed`
    gives the sessions that a store keeps elsewhere than under keys of their own, of a key in its ordered form.
    """
    ordered = store_keys.ordered(rows.column("key")).to_pylist()
    stamps, keep, floor = rows.column("timestamp").to_pylist(), kept_ms(window), time_at(FLOOR_KEY, state) or 0
    found = np.array(stamps, np.int64)
    for i, (key, at) in enumerate(zip(ordered, stamps, strict=True)):
        lowest = max(at - window.gap_ms, int(closes[i]), int(running[i]) - keep, floor, 0)
        for start, end in [*_alone(state, key, lowest), *packed(key)]:
            if end >= lowest and start <= at + window.gap_ms:
                found[i] = max(found[i], end)
    return found


def _alone(state: StateReader, key: bytes, lowest: int) -> Iterable[Times]:
    bounds = store_keys.session_key(key, lowest, 0), store_keys.SESSION + key + _PAST_ALL
    for place, _ in state.scan(*bounds):
        yield int.from_bytes(place[-8:]), int.from_bytes(place[-16:-8])


def begun(
    operator: str, keyed: Keyed, closing: ClosedTo, by_records: Int64s, begins_at: int
) -> tuple[pa.BooleanArray, list[Dropped]]:
    """Which records with a key that can be stored come into sessions where the store began at a stream time; the
    others, dropped: those of earlier sessions, and of these the ones that are late.

    `by_records`: stream time as each row sees it by records alone.
    """
    stamps = keyed.rows.column("timestamp").to_numpy()
    is_kept = keyed.keys.is_valid().to_numpy(zero_copy_only=False)
    is_early = is_kept & (stamps < begins_at)
    if not is_early.any():
        return keyed.keys.is_valid(), []
    is_late = is_early & (stamps < closing.at_each(keyed.running))
    closed = ClosedEnds(stamps, closing.at_each_by(by_records, keyed.running), closing.at_each(keyed.running))
    late = dropped_late(operator, keyed.rows, is_late, stamps >= closed.by_records, closed)
    is_missed = is_early & ~is_late
    missed = [Dropped(operator, BEFORE_VERSION, keyed.rows.filter(pa.array(is_missed)))] if is_missed.any() else []
    return pa.array(is_kept & ~is_early), [*missed, *late]
