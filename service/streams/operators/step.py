"""What one operator makes of one batch, and how an operator meets its expressions.

It knows the shape that all operators share; it refuses to know what any of them means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import pyarrow as pa

from service.streams.errors import ExpressionFailed
from service.streams.expressions import Expression, evaluate, evaluate_lenient
from service.streams.records import Dropped, StateReader

OnError = Literal["fail", "drop"]


@dataclass(frozen=True, slots=True)
class Step:
    """`forward`: TASK_SCHEMA. `changes`: CHANGELOG_SCHEMA sorted by key, or None when the store did not move."""

    forward: pa.RecordBatch
    changes: pa.RecordBatch | None = None
    dropped: list[Dropped] = field(default_factory=list)


class Operator(Protocol):
    """A deterministic function of (state, ordered records): how they are cut into batches changes nothing."""

    def process(self, batch: pa.RecordBatch, state: StateReader | None = None) -> Step: ...


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The rows whose expressions worked (TASK_SCHEMA), the results beside them, and the rows that failed."""

    rows: pa.RecordBatch
    results: pa.RecordBatch
    dropped: list[Dropped]


def evaluate_for(
    operator: str, expressions: Mapping[str, Expression], batch: pa.RecordBatch, on_error: OnError
) -> Evaluated:
    """Run an operator's expressions. A failing row raises ExpressionFailed with its offset, or is dropped; what took
    too long or grew too large raises in any case.
    """
    try:
        if on_error == "drop":
            return _evaluate_or_drop(operator, expressions, batch)
        return Evaluated(batch, evaluate(expressions, batch), [])
    except ExpressionFailed as error:
        offset = batch.column("offset")[error.row].as_py()
        raise ExpressionFailed(operator, error.row, error.detail, offset) from error


def _evaluate_or_drop(operator: str, expressions: Mapping[str, Expression], batch: pa.RecordBatch) -> Evaluated:
    results, failed = evaluate_lenient(expressions, batch)
    if not failed.any():
        return Evaluated(batch, results, [])
    worked = pa.array(~failed)
    dropped = Dropped(operator, "expression_failed", batch.filter(pa.array(failed)))
    return Evaluated(batch.filter(worked), results.filter(worked), [dropped])
