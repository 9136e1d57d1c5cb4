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

from service.streams.operators.fields import ExpressionText, OperatorName, Spec, admitted, kind_name, problem
from service.streams.operators.step import OnError, Step, evaluate_for
from service.streams.records import StateReader

_NEEDS_ESCAPE = r'[\x00-\x1f"\\]'
_NULL = pa.scalar("null", pa.utf8())


def _has_json_form(text: str) -> str:
    found = admitted(text).type_of()
    if _writer(found) is None:
        raise problem(f"gives {kind_name(found)}, which has no form in JSON; write (…)::varchar for its text")
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
        write = _writer(column.type)
        if write is None:
            raise TypeError(f"{name}: {column.type} has no form in JSON")
        parts += [write(column).fill_null(_NULL)]
    return pc.binary_join_element_wise(*parts, pa.scalar("}", pa.utf8()), pa.scalar("", pa.utf8()))


def _writer(kind: pa.DataType) -> _Writer | None:
    """How a column of this type becomes JSON texts, nulls staying null; None if it does not."""
    if isinstance(kind, pa.JsonType):
        return _as_written
    return next((write for is_kind, write in _WRITERS if is_kind(kind)), None)


def _as_written(column: pa.Array) -> pa.Array:
    return column.storage.cast(pa.utf8())


def _as_text(column: pa.Array) -> pa.Array:
    return column.cast(pa.utf8())


def _as_double(column: pa.Array) -> pa.Array:
    """Whole numbers keep their point (1.0); JSON has no NaN and no infinities, so these are null."""
    texts = pc.replace_substring_regex(column.cast(pa.utf8()), r"^(-?[0-9]+)$", r"\1.0")
    return pc.if_else(pc.is_finite(column), texts, None)


def _as_quoted(column: pa.Array) -> pa.Array:
    quote = pa.scalar('"', pa.utf8())
    return pc.binary_join_element_wise(quote, column.cast(pa.utf8()), quote, pa.scalar("", pa.utf8()))


def _as_string(column: pa.Array) -> pa.Array:
    """Only texts that need escapes are looked at one by one."""
    texts = column.cast(pa.utf8())
    needs_escape = pc.match_substring_regex(texts, _NEEDS_ESCAPE).fill_null(False)
    if not pc.any(needs_escape).as_py():
        return _as_quoted(texts)
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(needs_escape).to_pylist()]
    return pc.replace_with_mask(_as_quoted(texts), needs_escape, pa.array(escaped, pa.utf8()))


_Writer = Callable[[pa.Array], pa.Array]
_WRITERS: list[tuple[Callable[[pa.DataType], bool], _Writer]] = [
    (pa.types.is_integer, _as_text),
    (pa.types.is_boolean, _as_text),
    (pa.types.is_decimal, _as_text),
    (pa.types.is_null, _as_text),
    (pa.types.is_floating, _as_double),
    (pa.types.is_string, _as_string),
    (pa.types.is_large_string, _as_string),
    (pa.types.is_date, _as_quoted),
    (pa.types.is_timestamp, _as_quoted),
]
