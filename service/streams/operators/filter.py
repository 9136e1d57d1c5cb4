"""filter: lets through the records whose condition is true.

It knows a condition; null counts as not true, as in SQL. A record that is let through is unchanged. Of a table's
updates none may be missing: one that is not let through becomes a tombstone, and tombstones pass (as in KTable.filter).
Behind final results nothing needs to be taken back: there it is left out.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from service.streams.operators.declaration import OperatorSpec, operator
from service.streams.operators.fields import Condition, admitted
from service.streams.operators.step import OnError, Step, evaluate_for, evaluate_updates
from service.streams.operators.upstream import PLAIN, Upstream


@operator
class FilterSpec(OperatorSpec):
    """`{"op": "filter", "where": expression}`"""

    op: Literal["filter"]
    where: Condition

    def runner(self, name: str, on_error: OnError, upstream: Upstream) -> Filter:
        """It lets through, or takes back."""
        return Filter(self, name, on_error, upstream)


class Filter:
    """Runs a FilterSpec."""

    def __init__(self, spec: FilterSpec, name: str, on_error: OnError, upstream: Upstream = PLAIN) -> None:
        self.name, self.on_error = name, on_error
        self.takes_back = upstream.is_table and not upstream.is_final
        self.expressions = {"where": admitted(spec.where)}

    def process(self, rows: pa.RecordBatch) -> Step:
        """Records where the condition is true, in order; of a table that updates all, with null values where not."""
        if self.takes_back:
            return self._process_updates(rows)
        done = evaluate_for(self.name, self.expressions, rows, self.on_error)
        return Step(done.rows.filter(done.results.column("where")), dropped=done.dropped)

    def _process_updates(self, rows: pa.RecordBatch) -> Step:
        done = evaluate_updates(self.name, self.expressions, rows, self.on_error)
        passes = done.results.column("where").fill_null(False)
        values = pc.if_else(passes, done.rows.column("value"), None)
        return Step(done.rows.set_column(1, "value", values), dropped=done.dropped)
