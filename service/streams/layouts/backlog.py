"""What an operator of a chain still has to do, as it is too much at once: its store holds it until it is done.

It knows how that lies in the store, under one key whatever the operator; it refuses to know why it is too much.

0x02 "backlog"   Arrow IPC stream of the rows that wait (RECORD_SCHEMA and the word of their origin, `inputs`), whose
                 metadata says what is in part, and how far time is to be moved
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self, cast

import numpy as np
import pyarrow as pa

from service.streams.clock import CloseReason
from service.streams.inputs import Origins, codes
from service.streams.layouts.changelog import Part, change, changelog_of, with_change
from service.streams.layouts.reserved import BACKLOG_KEY
from service.streams.records import RECORD_SCHEMA, StateReader, as_records, as_task_rows

_STORED = RECORD_SCHEMA.append(pa.field("origin", pa.int64(), nullable=False))
_CAUSE, _TO, _REASON = b"cause", b"to", b"reason"


class TimeAdvance(NamedTuple):
    """Stream time (ms) is to be moved to `to`, for an operator and for those behind it; no record causes it. None: of
    each to the lowest time that closes all that is open in it.
    """

    to: int | None
    reason: CloseReason


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is to be done, in this order: what has not left yet because of the row `cause` (an ordinal; None: nothing),
    `rows` (TASK_SCHEMA), time that is to be moved. Ordinals of a stored one are codes (`inputs`).
    """

    rows: pa.RecordBatch
    cause: int | None = None
    advance: TimeAdvance | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.advance is None and self.cause is None and not self.rows.num_rows

    @classmethod
    def of(cls, state: StateReader, skipped: frozenset[int] = frozenset()) -> Self | None:
        """That of an operator with this store, None where it has none. Rows with a skipped origin are passed over."""
        packed = state.get(BACKLOG_KEY)
        if packed is None:
            return None
        [stored] = pa.ipc.open_stream(packed)
        said: dict[bytes, bytes] = stored.schema.metadata or {}
        words = stored.column("origin").to_numpy()
        rows = as_task_rows(stored.select(RECORD_SCHEMA.names), pa.array(codes(words)))
        if skipped:
            rows = rows.filter(pa.array(~np.isin(words, list(skipped))))
        cause = int(codes(np.array([int(said[_CAUSE])]))[0]) if _CAUSE in said else None
        advance = None
        if _REASON in said:
            advance = TimeAdvance(int(said[_TO]) if _TO in said else None, cast(CloseReason, said[_REASON].decode()))
        return cls(rows, cause, advance)

    def change(self, origins: Origins) -> Part:
        """What it changes in a store. `origins` are those of the batch that it comes from."""
        if self.is_empty:
            return change(BACKLOG_KEY, None)
        said: dict[bytes, bytes] = {}
        if self.cause is not None:
            said[_CAUSE] = b"%d" % origins.words(np.array([self.cause]))[0]
        if self.advance is not None:
            said |= {_REASON: self.advance.reason.encode()}
            said |= {} if self.advance.to is None else {_TO: b"%d" % self.advance.to}
        words = pa.array(origins.words(self.rows.column("ordinal").to_numpy()))
        schema, sink = _STORED.with_metadata(said), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays([*as_records(self.rows).columns, words], schema=schema))
        return change(BACKLOG_KEY, sink.getvalue().to_pybytes())


def noted(
    backlog: Backlog, origins: Origins, state: StateReader, changed: pa.RecordBatch | None
) -> pa.RecordBatch | None:
    """`changed` (CHANGELOG_SCHEMA, or nothing) with the backlog in place of the one that the store has."""
    if backlog.is_empty and state.get(BACKLOG_KEY) is None:
        return changed
    entry = backlog.change(origins)
    return changelog_of([entry], None) if changed is None else with_change(changed, entry)
