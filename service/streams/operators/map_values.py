"""map_values: gives each record another value, a JSON object with one field per expression.

It knows how SQL values look in JSON, exactly: integers digit by digit, doubles in the shortest text that
reads back the same, JSON as it was written, null where there is none. Key, timestamp and window stay.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field

from service.streams.operators.declaration import OperatorSpec, operator
from service.streams.operators.fields import ExpressionText, admitted, kind_name, problem
from service.streams.operators.json_form import objects, writer
from service.streams.operators.step import OnError, Step, evaluate_for, evaluate_updates
from service.streams.operators.upstream import PLAIN, Upstream


def _has_json_form(text: str) -> str:
    found = admitted(text).type_of()
    if writer(found) is None:
        raise problem(f"gives {kind_name(found)}, which has no form in JSON; write (…)::varchar for its text")
    return text


ValueExpression = Annotated[ExpressionText, AfterValidator(_has_json_form)]
FieldName = Annotated[str, Field(min_length=1, max_length=256)]


@operator
class MapValuesSpec(OperatorSpec):
    """`{"op": "map_values", "select": {field: expression}}`"""

    op: Literal["map_values"]
    select: Annotated[dict[FieldName, ValueExpression], Field(min_length=1, max_length=256)]

    def runner(self, name: str, on_error: OnError, upstream: Upstream) -> MapValues:
        """It gives each record a value."""
        return MapValues(self, name, on_error, upstream)


class MapValues:
    """Runs a MapValuesSpec."""

    def __init__(self, spec: MapValuesSpec, name: str, on_error: OnError, upstream: Upstream = PLAIN) -> None:
        self.name, self.on_error, self.is_table = name, on_error, upstream.is_table
        self.expressions = {field: admitted(text) for field, text in spec.select.items()}

    def process(self, rows: pa.RecordBatch) -> Step:
        """Every row (TASK_SCHEMA) with its new value; tombstones of a table stay. Raises ExpressionFailed."""
        if self.is_table:
            return self._process_updates(rows)
        done = evaluate_for(self.name, self.expressions, rows, self.on_error)
        return Step(done.rows.set_column(1, "value", objects(done.results)), dropped=done.dropped)

    def _process_updates(self, rows: pa.RecordBatch) -> Step:
        done = evaluate_updates(self.name, self.expressions, rows, self.on_error)
        values = pc.if_else(done.rows.column("value").is_valid(), objects(done.results), None)
        return Step(done.rows.set_column(1, "value", values), dropped=done.dropped)
