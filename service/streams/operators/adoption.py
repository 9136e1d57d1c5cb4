"""How a store goes over from one version of its operator to the next: what the change would otherwise undo is written.

It knows what holds for ever, whatever the parameters become: what was closed stays closed, what was over stays absent,
and a store that begins anew has missed what was before. It refuses to know operators and versions.

A lower delay closes more, a higher one would open again what came out as closed: so where the old operator had closed
to is kept until the new one has closed as far (`closed_to`). A longer interval would revive entries that some replicas
have deleted and others have not yet: so the old one leaves a `floor`.
"""

from __future__ import annotations

import pyarrow as pa

from service.streams import clock
from service.streams.layouts import store_keys
from service.streams.layouts.changelog import change, changelog_of
from service.streams.layouts.reserved import BEGINS_KEY, CLOSED_KEY, FLOOR_KEY, pack_time, stream_time, time_at
from service.streams.records import Handover, StateReader


def adopt(state: StateReader, handover: Handover) -> pa.RecordBatch | None:
    """What a store has to learn (CHANGELOG_SCHEMA) before the new version runs over it; None: nothing.

    Where one change follows another without a record between them, a lower delay may have closed what did not come out
    yet: that decides what comes out next, so `closed_to` stays what it was. A store that begins anew is empty; in every
    other `begins_at` is None.
    """
    if handover.begins_at is not None:
        return changelog_of([change(BEGINS_KEY, pack_time(handover.begins_at))], handover.begins_at)
    now = stream_time(state)
    if now == clock.NOT_STARTED:
        return None
    parts = []
    if handover.delay_ms is not None:
        before, closed = time_at(CLOSED_KEY, state), now - handover.delay_ms
        if before is None or (before < closed and not _has_more_to_emit(state)):
            parts.append(change(CLOSED_KEY, pack_time(closed)))
    if handover.kept_ms is not None:
        before, floor = time_at(FLOOR_KEY, state), now - handover.kept_ms
        if before is None or before < floor:
            parts.append(change(FLOOR_KEY, pack_time(floor)))
    return changelog_of(parts, None)


def _has_more_to_emit(state: StateReader) -> bool:
    """Whether an operator that emits at close has windows that did not come out: these are indexed."""
    return bool(state.scan(store_keys.index_bound(0), store_keys.index_bound(1 << 63), 1))
