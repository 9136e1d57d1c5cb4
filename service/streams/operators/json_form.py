"""How SQL values look in JSON, column by column.

It knows it exactly: integers digit by digit, doubles in the shortest text that reads back the same, those that JSON
does not have as the strings "NaN", "Infinity" and "-Infinity" (which SQL casts back), JSON as it was written. It
refuses to know whose values they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

_NEEDS_ESCAPE = r'[\x00-\x1f"\\]'
_NULL = pa.scalar("null", pa.utf8())


def objects(columns: pa.RecordBatch) -> pa.Array:
    """One JSON object text (utf8) per row of `columns` (any schema), its fields in the order of the columns."""
    return fields([(name, texts(column)) for name, column in zip(columns.schema.names, columns.columns, strict=True)])


def fields(named: list[tuple[str, pa.Array]]) -> pa.Array:
    """One JSON object text per row from the JSON texts of its fields; null where a field has none."""
    parts: list[pa.Array | pa.Scalar] = []
    for i, (name, column) in enumerate(named):
        parts += [pa.scalar(("," if i else "{") + json.dumps(name, ensure_ascii=False) + ":", pa.utf8())]
        parts += [column.fill_null(_NULL)]
    return pc.binary_join_element_wise(*parts, pa.scalar("}", pa.utf8()), pa.scalar("", pa.utf8()))


def texts(column: pa.Array) -> pa.Array:
    """The JSON texts of values, nulls staying null."""
    write = writer(column.type)
    if write is None:
        raise TypeError(f"{column.type} has no form in JSON")
    return write(column)


def double(value: float) -> str:
    """One double as `texts` writes it; where Python writes it otherwise (with an exponent), Arrow is asked."""
    if value == 0 or 1e-3 <= abs(value) < 1e9:
        return repr(value)
    return texts(pa.array([value], pa.float64()))[0].as_py() or "null"


def writer(kind: pa.DataType) -> Writer | None:
    """How a column of this type becomes JSON texts, nulls staying null; None if it does not."""
    if isinstance(kind, pa.JsonType):
        return _as_written
    return next((write for is_kind, write in _WRITERS if is_kind(kind)), None)


def _as_written(column: pa.Array) -> pa.Array:
    return column.storage.cast(pa.utf8())


def _as_text(column: pa.Array) -> pa.Array:
    return column.cast(pa.utf8())


def _as_double(column: pa.Array) -> pa.Array:
    """Whole numbers keep their point (1.0)."""
    texts = pc.replace_substring_regex(column.cast(pa.utf8()), r"^(-?[0-9]+)$", r"\1.0")
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return texts
    for is_such, text in (
        (pc.is_nan(column), '"NaN"'),
        (pc.equal(column, float("inf")), '"Infinity"'),
        (pc.equal(column, float("-inf")), '"-Infinity"'),
    ):
        texts = pc.if_else(is_such, text, texts)
    return texts


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


Writer = Callable[[pa.Array], pa.Array]
_WRITERS: list[tuple[Callable[[pa.DataType], bool], Writer]] = [
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
