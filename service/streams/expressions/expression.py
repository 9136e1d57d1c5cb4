"""An expression: a text that passed the gate, the columns it reads and the type it gives.

It knows what one expression is; it refuses to know batches (`run` evaluates).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import duckdb
import pyarrow as pa

from service.streams.errors import InvalidExpression
from service.streams.expressions.allowed import COLUMNS, RESULTS
from service.streams.expressions.gate import admit, enclosed
from service.streams.expressions.session import Broken, OutOfTime, Session, session

JSON = pa.json_(pa.utf8())
_INPUT = {"key": pa.utf8(), "value": JSON, **dict.fromkeys(COLUMNS[2:], pa.int64())}


class Expression:
    """`Expression(text)` admits a text, or raises InvalidExpression. Immutable; threads may share it.

    `columns` are the names of those it reads. `type` is the Arrow type of its results: a boolean, an integer,
    float32 or float64, decimal128, utf8, date32, timestamp[us] without a zone, arrow.json, or null.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        with session() as lent:
            admitted = admit(text, lent.parse)
            self.columns = admitted.columns
            self.work_per_byte, self.work_fixed = admitted.work_per_byte, admitted.work_fixed
            self.type = _planned(lent, text, input_schema([self]))

    def type_of(self) -> pa.DataType:
        """The Arrow type of its results."""
        return self.type

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def input_schema(expressions: Iterable[Expression]) -> pa.Schema:
    """The columns that expressions read. One is needed in any case, to know how many rows there are."""
    used: frozenset[str] = frozenset().union(*(expression.columns for expression in expressions))
    return _schema(used or frozenset({"timestamp"}))


@cache
def _schema(columns: frozenset[str]) -> pa.Schema:
    return pa.schema([(name, kind) for name, kind in _INPUT.items() if name in columns])


def reason(error: duckdb.Error) -> str:
    """DuckDB's message without its excerpt of the query, its candidates and its advice."""
    first = str(error).split("\n", 1)[0].split(" Use TRY(", 1)[0]
    return first if len(first) <= 400 else first[:400] + "…"


def _planned(lent: Session, text: str, schema: pa.Schema) -> pa.DataType:
    """The type of the results, for a text that DuckDB can plan."""
    try:
        kind = lent.type_of(enclosed(text), schema)
        _check_casts(lent, text, schema)
    except (OutOfTime, Broken) as error:
        raise InvalidExpression("can not be planned") from error
    except duckdb.Error as error:
        raise InvalidExpression(reason(error)) from error
    return _arrow_type(kind)


def _check_casts(lent: Session, text: str, schema: pa.Schema) -> None:
    """DuckDB finds a cast that does not exist (BIGINT to DATE) only when it runs it: so it runs it once.

    Any other failure on this made-up record says nothing about real ones.
    """
    ones = [pa.array(["1"]).cast(kind) for kind in schema.types]
    try:
        lent.run(enclosed(text), pa.RecordBatch.from_arrays(ones, schema=schema))
    except duckdb.Error as error:
        if "Unimplemented type for cast" in str(error):
            raise


def _arrow_type(kind: str) -> pa.DataType:
    if decimal := re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if kind not in RESULTS:
        advice = ": cast it to BIGINT or DECIMAL" if kind == "HUGEINT" else ""
        raise InvalidExpression(f"gives {kind}, which is not available{advice}")
    return RESULTS[kind]
