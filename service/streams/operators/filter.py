"""filter: lets through the records whose condition is true.

It knows a condition; null counts as not true, as in SQL. A record that is let through is unchanged.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from service.streams.operators.fields import Condition, OperatorName, Spec, admitted
from service.streams.operators.step import OnError, Step, evaluate_for
from service.streams.records import StateReader


class FilterSpec(Spec):
    """`{"op": "filter", "where": expression}`"""

    op: Literal["filter"]
    name: OperatorName | None = None
    where: Condition


class Filter:
    """Runs a FilterSpec."""

    def __init__(self, spec: FilterSpec, name: str, on_error: OnError) -> None:
        self.name, self.on_error = name, on_error
        self.expressions = {"where": admitted(spec.where)}

    def process(self, batch: pa.RecordBatch, state: StateReader | None = None) -> Step:
        """Records where the condition is true, in order."""
        done = evaluate_for(self.name, self.expressions, batch, self.on_error)
        return Step(done.rows.filter(done.results.column("where")), dropped=done.dropped)
