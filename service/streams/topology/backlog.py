"""What an operator of a chain still has to do, as it is too much at once: its store holds it until it is done.

It knows how that lies in the store, under one key whatever the operator; it refuses to know why it is too much.

0x02 "backlog"   Arrow IPC stream of the rows that wait (RECORD_SCHEMA and the word of their origin, `inputs`), whose
                 metadata says what is in part, and how far time is to be moved
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self, cast

import numpy as np
import pyarrow as pa

from service.streams import store_keys
from service.streams.inputs import Origins, codes
from service.streams.operators.closing import CloseReason
from service.streams.operators.step import Rest
from service.streams.records import RECORD_SCHEMA, StateReader, as_records, as_task_rows

KEY: Final = b"\x02backlog"
_STORED = RECORD_SCHEMA.append(pa.field("origin", pa.int64(), nullable=False))
_CAUSE, _TO, _REASON = b"cause", b"to", b"reason"


class Advance(NamedTuple):
    """Stream time (ms) is to be moved to `to`, for an operator and for those behind it; no record causes it."""

    to: int
    reason: CloseReason


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is to be done, in this order: `rest` (its ordinals are codes, `inputs`), then time that is to be moved."""

    rest: Rest
    advance: Advance | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.advance is None and self.rest.cause is None and not self.rest.rows.num_rows

    @classmethod
    def of(cls, state: StateReader, skipped: frozenset[int] = frozenset()) -> Self | None:
        """That of an operator with this store, None where it has none. Rows with a skipped origin are passed over."""
        packed = state.get(KEY)
        if packed is None:
            return None
        [stored] = pa.ipc.open_stream(packed)
        said = {name: int(value) for name, value in (stored.schema.metadata or {}).items() if name != _REASON}
        words = stored.column("origin").to_numpy()
        rows = as_task_rows(stored.select(RECORD_SCHEMA.names), pa.array(codes(words)))
        if skipped:
            rows = rows.filter(pa.array(~np.isin(words, list(skipped))))
        cause = int(codes(np.array([said[_CAUSE]]))[0]) if _CAUSE in said else None
        reason = cast(CloseReason, stored.schema.metadata[_REASON].decode()) if _TO in said else None
        return cls(Rest(rows, cause), None if reason is None else Advance(said[_TO], reason))

    def entry(self, origins: Origins) -> tuple[pa.Array, pa.Array]:
        """Its entry in a store: key and value (binary). `origins` are those of the batch that it comes from."""
        said: dict[bytes, bytes] = {}
        if self.rest.cause is not None:
            said[_CAUSE] = b"%d" % origins.words(np.array([self.rest.cause]))[0]
        if self.advance is not None:
            said |= {_TO: b"%d" % self.advance.to, _REASON: self.advance.reason.encode()}
        words = pa.array(origins.words(self.rest.rows.column("ordinal").to_numpy()))
        schema, sink = _STORED.with_metadata(said), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays([*as_records(self.rest.rows).columns, words], schema=schema))
        return pa.array([KEY], pa.binary()), pa.array([sink.getvalue().to_pybytes()], pa.binary())


def noted(
    backlog: Backlog, origins: Origins, state: StateReader, changes: pa.RecordBatch | None
) -> pa.RecordBatch | None:
    """Changes to a store (CHANGELOG_SCHEMA), and its backlog in place of the one that it has."""
    if backlog.is_empty and state.get(KEY) is None:
        return changes
    entry = (pa.array([KEY], pa.binary()), pa.nulls(1, pa.binary())) if backlog.is_empty else backlog.entry(origins)
    return store_keys.changelog([entry] if changes is None else [(changes.column(0), changes.column(1)), entry], None)
