"""How a store goes over from one version of its operator to the next, or back in time: what that would otherwise undo
is written.

It knows what holds for ever, whatever the parameters and stream time become: what was closed stays closed, what was
over stays absent, and a store that begins anew has missed what was before. It refuses to know operators and versions.

A lower delay closes more, a higher one would open again what came out as closed: so where the old operator had closed
to is kept until the new one has closed as far (`closed_to`). A longer interval would revive entries that some replicas
have deleted already and others have not: so the old one leaves a `floor`.

A lower stream time does both. Of windows the floor stays where the higher one had it, as nothing below it is open any
more. Where entries stand for themselves (deduplicate), those to come lie below it and count: so there every copy
deletes what was over, at once (`forgot`), and there is no floor.
"""

from __future__ import annotations

import pyarrow as pa

from service.streams import clock
from service.streams.layouts import store_keys
from service.streams.layouts.changelog import Part, change, changelog_of
from service.streams.layouts.reserved import (
    BEGINS_KEY,
    CLOSED_KEY,
    FLOOR_KEY,
    FORGOT_KEY,
    RECORD_TIME_KEY,
    pack_time,
    stream_time,
    time_at,
)
from service.streams.records import Handover, StateReader


def adopt(state: StateReader, handover: Handover) -> pa.RecordBatch | None:
    """What a store has to learn (CHANGELOG_SCHEMA) before the new version runs over it; None: nothing.

    Where one change follows another without a record between them, a lower delay may have closed what did not come out
    yet: that decides what comes out next, so `closed_to` stays what it was. A store that begins anew is empty; in every
    other `begins_at` is None. Stream time never rises: one that is not beyond `stream_time` stays.
    """
    if handover.begins_at is not None:
        return changelog_of([change(BEGINS_KEY, pack_time(handover.begins_at))], handover.begins_at)
    now = stream_time(state)
    if now == clock.NOT_STARTED:
        return None
    parts = []
    to = handover.stream_time if handover.stream_time is not None and handover.stream_time < now else None
    if handover.delay_ms is not None:
        before, closed = time_at(CLOSED_KEY, state), now - handover.delay_ms
        if before is None or (before < closed and not _has_more_to_emit(state)):
            parts.append(change(CLOSED_KEY, pack_time(closed)))
    if handover.kept_ms is not None:
        floor, oldest = time_at(FLOOR_KEY, state), now - handover.kept_ms
        if to is not None and handover.delay_ms is None:
            parts += _forgotten(floor, oldest)
        elif floor is None or floor < oldest:
            parts.append(change(FLOOR_KEY, pack_time(oldest)))
    if to is not None:
        by_records = time_at(RECORD_TIME_KEY, state)
        parts += [] if by_records is None or by_records < to else [change(RECORD_TIME_KEY, None)]
    return changelog_of(parts, to)


def _forgotten(floor: int | None, oldest: int) -> list[Part]:
    """Entries below either are gone, so that no floor is needed any more."""
    if floor is None:
        return [change(FORGOT_KEY, pack_time(oldest))]
    return [change(FORGOT_KEY, pack_time(max(floor, oldest))), change(FLOOR_KEY, None)]


def _has_more_to_emit(state: StateReader) -> bool:
    """Whether an operator that emits at close has windows that did not come out: these are indexed."""
    return bool(state.scan(store_keys.index_bound(0), store_keys.index_bound(1 << 63), 1))
