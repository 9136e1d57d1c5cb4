"""Expressions at work: admitted once, then run over record batches, many at a time, as one query.

It knows which row failed and why; it refuses to know what an operator does about it. A result depends on its
record alone: neighbours, other expressions and the cut into batches change nothing. Three limits depend on
more than the record, and so are never turned into a dropped record: time, and the size of all results.

key is VARCHAR (the bytes must be UTF-8), value JSON, timestamp, window_start and window_end are BIGINT (ms).
`value->>'a.b'` is the field named `a.b`; only a text that begins with `$` is a path (`$.a.b`), one that
begins with `/` a JSON pointer (`/a/b`), and the empty text is the whole value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.errors import ExpressionFailed, InvalidExpression
from service.streams.expressions import session as sessions
from service.streams.expressions.allowed import RESULTS
from service.streams.expressions.gate import COLUMNS, admit, enclosed
from service.streams.expressions.session import OutOfTime, Session

MAX_WORK_BYTES = 256 << 20  # what one query may make; more rows go in several, a larger row fails
MAX_RESULT_BYTES = 1 << 30  # what all expressions may give for one batch

_JSON = pa.json_(pa.utf8())
_INPUT = {"key": pa.utf8(), "value": _JSON, **dict.fromkeys(COLUMNS[2:], pa.int64())}


class Expression:
    """A text that passed the gate. `columns` are those it reads, `type` is the Arrow type that it gives."""

    def __init__(self, text: str) -> None:
        self.text = text
        with sessions.session() as session:
            admitted = admit(text, session.parse)
            self.columns = admitted.columns
            self.work_per_byte, self.work_fixed = admitted.work_per_byte, admitted.work_fixed
            self.type = _type_of(session, text, _reads(self.columns))

    def type_of(self) -> pa.DataType:
        """The Arrow type of the results."""
        return self.type

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def evaluate(expressions: Mapping[str, Expression], batch: pa.RecordBatch) -> pa.RecordBatch:
    """One column per expression, one row per record. Raises ExpressionFailed for the first row that fails."""
    with sessions.session() as session:
        evaluation = _Evaluation(session, expressions)
        return evaluation.assembled([evaluation.strict(first, rows) for first, rows in evaluation.portions(batch)])


def evaluate_lenient(
    expressions: Mapping[str, Expression], batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
    """The same, with null in all columns of the rows that fail, and which rows those are.

    Raises ExpressionFailed only for limits of the whole batch. Where all rows fail: 0.1 M rows/s.
    """
    failed = np.zeros(batch.num_rows, np.bool_)
    with sessions.session() as session:
        evaluation = _Evaluation(session, expressions)
        parts = [
            evaluation.lenient(first, rows, failed[first : first + rows.num_rows])
            for first, rows in evaluation.portions(batch)
        ]
        return evaluation.assembled(parts), failed


class _RowTooLarge(Exception):
    """One row could make the expressions work on more than a query may."""

    def __str__(self) -> str:
        return "the record is too large for this expression"


class _KeyNotText(Exception):
    """An expression reads a key that is not UTF-8."""

    def __str__(self) -> str:
        return "the key is not valid UTF-8, and the expression reads it"


_RowErrors = (duckdb.Error, _RowTooLarge, _KeyNotText)


class _Evaluation:
    """Some expressions over one batch, in one session, until a deadline."""

    def __init__(self, session: Session, expressions: Mapping[str, Expression]) -> None:
        self._session, self._expressions = session, expressions
        self._deadline = time.monotonic() + sessions.TIME_LIMIT_S
        self._bytes = 0

    def portions(self, batch: pa.RecordBatch, first: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The batch in slices small enough for one query each, with the index of their first row."""
        half = batch.num_rows // 2
        if half == 0 or _work(self._expressions, batch) <= MAX_WORK_BYTES:
            yield first, batch
        else:
            yield from self.portions(batch.slice(0, half), first)
            yield from self.portions(batch.slice(half), first + half)

    def strict(self, first: int, rows: pa.RecordBatch) -> pa.Table:
        """Results of all rows. Where they fail together, halving finds the first row that does."""
        try:
            return self._query(first, self._expressions, rows)
        except _RowErrors as error:
            if rows.num_rows <= 1:
                raise self._failure(first, rows, error) from error
        half = rows.num_rows // 2
        before = self.strict(first, rows.slice(0, half))
        return pa.concat_tables([before, self.strict(first + half, rows.slice(half))])

    def lenient(self, first: int, rows: pa.RecordBatch, failed: npt.NDArray[np.bool_]) -> pa.Table:
        """Results of all rows, null where one failed; marks those in `failed`."""
        try:
            return self._query(first, self._expressions, rows)
        except _RowTooLarge:
            failed[:] = True
            return self._nulls(rows.num_rows)
        except _RowErrors:
            rows = _mark_keys(rows, failed)
        return self._guarded(first, rows, failed)

    def _guarded(self, first: int, rows: pa.RecordBatch, failed: npt.NDArray[np.bool_]) -> pa.Table:
        """Row by row inside DuckDB: TRY gives null for a row that fails, a struct for one whose result is null."""
        try:
            tried = self._query(first, rows, _guard)
        except _RowErrors as error:
            raise ExpressionFailed("expression", first, _message(error)) from error
        columns = [column.combine_chunks() for column in tried.columns]
        for column in columns:
            failed |= column.is_null().to_numpy(zero_copy_only=False)
        worked = pa.array(~failed)
        results = [pc.if_else(worked, column.field(0), pa.scalar(None, column.type[0].type)) for column in columns]
        return pa.table(results, tried.column_names)

    def _query(self, first: int, rows: pa.RecordBatch, form: Callable[[str], str] = enclosed) -> pa.Table:
        """One query for all expressions. What no row is to blame for becomes ExpressionFailed here."""
        if rows.num_rows == 1 and _work(self._expressions, rows) > MAX_WORK_BYTES:
            raise _RowTooLarge
        items = ", ".join(f"{form(e.text)} AS c{i}" for i, e in enumerate(self._expressions.values()))
        try:
            if time.monotonic() > self._deadline:
                raise OutOfTime
            results = self._session.run(items, _input(self._expressions, rows))
        except OutOfTime as error:
            raise ExpressionFailed("expression", first, f"took longer than {TIME_LIMIT_S:g} s") from error
        self._bytes += results.nbytes
        if self._bytes > MAX_RESULT_BYTES:
            raise ExpressionFailed("expression", first, f"the results of the batch pass {MAX_RESULT_BYTES:,} bytes")
        return results

    def _failure(self, first: int, row: pa.RecordBatch, together: Exception) -> ExpressionFailed:
        """Which of the expressions fails on this row, and what DuckDB says about it."""
        for name, expression in self._expressions.items():
            try:
                _Evaluation(self._session, {name: expression})._query(first, row)
            except _RowErrors as error:
                return ExpressionFailed(name, first, f"{name}: {_message(error)}")
        return ExpressionFailed("expression", first, _message(together))

    def assembled(self, parts: list[pa.Table]) -> pa.RecordBatch:
        """The results as one batch: a column per expression, under its name and of its type."""
        columns = [column.combine_chunks() for column in pa.concat_tables(parts).columns]
        fields = [pa.field(name, expression.type) for name, expression in self._expressions.items()]
        typed = [_as(column, field.type) for column, field in zip(columns, fields, strict=True)]
        return pa.RecordBatch.from_arrays(typed, schema=pa.schema(fields))


def _guard(text: str) -> str:
    return f"TRY({{'v': {enclosed(text)}}})"


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, column) if kind == _JSON else column


def _reads(expressions: Mapping[str, Expression]) -> list[str]:
    """The columns to hand to DuckDB; one is needed to know how many rows there are."""
    used = {column for expression in expressions.values() for column in expression.columns}
    return [column for column in COLUMNS if column in used] or ["timestamp"]


def _input(expressions: Mapping[str, Expression], rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that the expressions read, without a copy. Raises _KeyNotText."""
    columns = {name: rows.column(name) for name in _reads(expressions)}
    if "key" in columns:
        try:
            columns["key"] = columns["key"].cast(pa.utf8())
        except pa.ArrowInvalid as error:
            raise _KeyNotText from error
    if "value" in columns:
        columns["value"] = pa.ExtensionArray.from_storage(_JSON, columns["value"])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=_schema(tuple(columns)))


@cache
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, _INPUT[name]) for name in columns])


def _work(expressions: Mapping[str, Expression], rows: pa.RecordBatch) -> int:
    """The bytes that the expressions can make of these rows, at most."""
    read = [rows.column(name).nbytes for name in _reads(expressions) if name in {"key", "value"}]
    return sum(e.work_per_byte * sum(read) + e.work_fixed * rows.num_rows for e in expressions.values())


def _mark_keys(rows: pa.RecordBatch, failed: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows with null for the keys that are not UTF-8; marks those in `failed`."""
    keys = rows.column("key").to_pylist()
    failed |= np.fromiter((not _is_text(key) for key in keys), np.bool_, len(keys))
    return rows.set_column(rows.schema.get_field_index("key"), "key", pc.if_else(pa.array(~failed), rows.column("key"), None))
