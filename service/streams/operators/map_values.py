"""map_values: gives each record another value, a JSON object with one field per expression.

It knows how SQL values look in JSON, exactly: integers digit by digit, doubles in the shortest text that
reads back the same, JSON as it was written, null where there is none. Key, timestamp and window stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field

from service.streams.operators.fields import ExpressionText, OperatorName, Spec, admitted, problem
from service.streams.operators.step import OnError, Step, evaluate_for
from service.streams.records import StateReader

_NEEDS_ESCAPE = r'[\x00-\x1f"\\]'
_NULL = pa.scalar("null", pa.utf8())


def _has_json_form(text: str) -> str:
    found = admitted(text).type_of()
    if not _writer(found):
        raise problem(f"{found} has no form in JSON; write to_json(…) or (…)::varchar")
    return text


ValueExpression = Annotated[ExpressionText, AfterValidator(_has_json_form)]
FieldName = Annotated[str, Field(min_length=1, max_length=256)]


class MapValuesSpec(Spec):
    """`{"op": "map_values", "select": {field: expression}}`"""

    op: Literal["map_values"]
    name: OperatorName | None = None
    select: Annotated[dict[FieldName, ValueExpression], Field(min_length=1, max_length=256)]


class MapValues:
    """Runs a MapValuesSpec."""

    def __init__(self, spec: MapValuesSpec, name: str, on_error: OnError) -> None:
        self.name, self.on_error = name, on_error
        self.expressions = {field: admitted(text) for field, text in spec.select.items()}

    def process(self, batch: pa.RecordBatch, state: StateReader | None = None) -> Step:
        """Every record with its new value."""
        done = evaluate_for(self.name, self.expressions, batch, self.on_error)
        return Step(done.rows.set_column(1, "value", _objects(done.results)), dropped=done.dropped)


def _objects(columns: pa.RecordBatch) -> pa.Array:
    """One JSON object text per row, its fields in the order of the columns."""
    parts: list[pa.Array | pa.Scalar] = []
    for i, (name, column) in enumerate(zip(columns.schema.names, columns.columns, strict=True)):
        parts += [pa.scalar(("," if i else "{") + json.dumps(name, ensure_ascii=False) + ":", pa.utf8())]
        parts += [_writer(column.type)(column).fill_null(_NULL)]
    return pc.binary_join_element_wise(*parts, pa.scalar("}", pa.utf8()), pa.scalar("", pa.utf8()))


def _writer(kind: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """How a column of this type becomes JSON texts, nulls staying null; None if it does not."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return _as_text
    if pa.types.is_floating(kind):
        return _as_double
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _as_string
    return None


def _as_text(column: pa.Array) -> pa.Array:
    return column.cast(pa.utf8())


def _as_double(column: pa.Array) -> pa.Array:
    """Whole numbers keep their point (1.0); JSON has no NaN and no infinities, so these are null."""
    texts = pc.replace_substring_regex(column.cast(pa.utf8()), r"^(-?[0-9]+)$", r"\1.0")
    return pc.if_else(pc.is_finite(column), texts, None)


def _as_string(column: pa.Array) -> pa.Array:
    """Quoted; only texts that need escapes are looked at one by one."""
    texts = column.cast(pa.utf8())
    quote = pa.scalar('"', pa.utf8())
    quoted = pc.binary_join_element_wise(quote, texts, quote, pa.scalar("", pa.utf8()))
    special = pc.match_substring_regex(texts, _NEEDS_ESCAPE)
    if not pc.any(special).as_py():
        return quoted
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special.fill_null(False), pa.array(escaped, pa.utf8()))
