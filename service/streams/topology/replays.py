"""Dropped records that were kept, once more: which of them, as they were, and where they go in again.

It knows the headers of `<job>-dropped`: which operator dropped a record and why. It refuses to know where the records
are read and how far a replay is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams.inputs import Batch
from service.streams.records import TASK_SCHEMA
from service.streams.topology.dropped import OPERATOR, OURS, REASON

REASONS: Final = frozenset(  # of the operators that Millrace brings; installed ones may have others
    {
        "duplicate",
        "late",
        "closed_idle",
        "before_version",
        "expired",
        "null_key",
        "null_value",
        "key_too_long",
        "expression_failed",
        "integer_overflow",
        "aggregate_too_large",
        "aggregator_failed",
    }
)


class Wanted(msgspec.Struct, frozen=True):
    """Which dropped records to replay: of these reasons, of one operator, with timestamps (ms) from, to (inclusive);
    None: of any.
    """

    reason: list[str] | None = None
    operator: str | None = None
    from_timestamp: int | None = None
    to_timestamp: int | None = None

    def takes(self, operator: str, reason: str) -> bool:
        """Whether records that this operator dropped for this reason are wanted."""
        return self.operator in {None, operator} and (self.reason is None or reason in self.reason)

    def of_time(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these timestamps (ms) are wanted."""
        chosen = np.ones(len(timestamps), bool)
        if self.from_timestamp is not None:
            chosen &= timestamps >= self.from_timestamp
        if self.to_timestamp is not None:
            chosen &= timestamps <= self.to_timestamp
        return chosen


@dataclass(frozen=True, slots=True)
class Replayed:
    """Kept records to take in again. `batch`: those that are wanted, without the headers that say why they were
    dropped; `operators`: of each row the operator that dropped it.
    """

    batch: Batch
    operators: Sequence[str]

    @property
    def operator(self) -> str | None:
        """The operator at which the first row goes in; None where there is no row."""
        return self.operators[0] if self.operators else None

    @property
    def first(self) -> Batch:
        """The first rows, as many as one operator dropped: no others go in together with them."""
        count = next((i for i, each in enumerate(self.operators) if each != self.operator), len(self.operators))
        return replace(self.batch, rows=self.batch.rows.slice(0, count))


def select_kept(kept: Batch, wanted: Wanted, operators: Collection[str]) -> Replayed:
    """What is wanted of kept records, and was dropped by these operators; the others are passed over."""
    at = TASK_SCHEMA.get_field_index("headers")
    headers: list[dict[str, Any]] = [json.loads(text or "{}") for text in kept.rows.column(at).to_pylist()]
    dropped_by = [each.get(OPERATOR, "") for each in headers]
    chosen = wanted.of_time(kept.rows.column("timestamp").to_numpy()) & np.array(
        [
            by in operators and wanted.takes(by, each.get(REASON, ""))
            for by, each in zip(dropped_by, headers, strict=True)
        ],
        bool,
    )
    own = pa.array([_own(each) for each in headers], pa.utf8())
    rows = kept.rows.set_column(at, TASK_SCHEMA.field(at), own).filter(pa.array(chosen))
    return Replayed(
        replace(kept, rows=rows), [by for by, is_chosen in zip(dropped_by, chosen, strict=True) if is_chosen]
    )


def _own(headers: dict[str, Any]) -> str | None:
    """The record's own headers; it had none where no others are left."""
    own = {name: value for name, value in headers.items() if name not in OURS}
    return json.dumps(own, ensure_ascii=False) if own else None
