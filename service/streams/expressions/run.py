"""Expressions at work: many at a time over a record batch, as one query.

It knows which row failed and why; it refuses to know what an operator does about it. A result depends on its
record alone: neighbours, other expressions and the cut into batches change nothing. Two limits depend on more
than the record, time and the size of all results, and so never turn into a dropped record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.errors import ExpressionFailed
from service.streams.expressions import session as sessions
from service.streams.expressions.expression import JSON, Expression, input_schema, reason
from service.streams.expressions.gate import enclosed

MAX_WORK_BYTES = 256 << 20  # what one query may make: more rows go in several, a larger row fails
MAX_RESULT_BYTES = 1 << 30  # what all expressions may give for one batch
MAX_EXPLAINED = 500  # rows of a batch whose failure is looked into, one by one
UNEXPLAINED = f"not looked into: more than {MAX_EXPLAINED} records of the batch fail"

Expressions = Mapping[str, Expression]
Flags = npt.NDArray[np.bool_]


def evaluate(expressions: Expressions, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A column per expression, a row per record of a batch with the columns of RECORD_SCHEMA.

    Raises ExpressionFailed for the first row that fails; its `operator` is the name of the expression.
    """
    with sessions.session() as lent:
        evaluation = _Evaluation(lent, expressions)
        parts = [evaluation.strict(first, rows) for first, rows in _portions(expressions, batch)]
    return _assembled(expressions, parts)


def evaluate_lenient(expressions: Expressions, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Flags]:
    """The same, with null in all columns of the rows that fail, and which rows those are.

    Raises ExpressionFailed only for limits of the whole batch. Where every row fails: 0.1 M rows/s.
    """
    failed = np.zeros(batch.num_rows, np.bool_)
    with sessions.session() as lent:
        evaluation = _Evaluation(lent, expressions)
        parts = [
            evaluation.lenient(first, rows, failed[first : first + rows.num_rows])
            for first, rows in _portions(expressions, batch)
        ]
    return _assembled(expressions, parts), failed


def explain(expressions: Expressions, batch: pa.RecordBatch) -> list[str]:
    """Why each of the rows that `evaluate_lenient` found to fail does, each run alone (some ms): the first
    MAX_EXPLAINED of them, the others say that they are too many.
    """
    with sessions.session() as lent:
        found = [
            _Evaluation(lent, expressions)._failure(i, batch.slice(i, 1), _RowError("fails among others")).detail
            for i in range(min(batch.num_rows, MAX_EXPLAINED))
        ]
    return found + [UNEXPLAINED] * (batch.num_rows - len(found))


class _RowError(Exception):
    """These rows can not be evaluated; where it is one row, the message says why."""


class _Evaluation:
    """Some expressions over one batch, in one session, until a deadline."""

    def __init__(self, lent: sessions.Session, expressions: Expressions) -> None:
        self._session, self._expressions = lent, expressions
        self._deadline = time.monotonic() + sessions.TIME_LIMIT_S
        self._result_bytes = 0

    def strict(self, first: int, rows: pa.RecordBatch) -> pa.Table:
        """The results of all rows. Where they fail together, halving finds the first row that fails."""
        try:
            return self._query(first, rows)
        except _RowError as error:
            if rows.num_rows <= 1:
                raise self._failure(first, rows, error) from error
        half = rows.num_rows // 2
        before = self.strict(first, rows.slice(0, half))
        return pa.concat_tables([before, self.strict(first + half, rows.slice(half))])

    def lenient(self, first: int, rows: pa.RecordBatch, failed: Flags) -> pa.Table:
        """The results of all rows, null where one fails; marks those in `failed`.

        TRY does inside DuckDB what halving would do from outside, at 10 µs instead of 20 queries a failing
        row: it gives null for a row that fails, and a struct for one whose result is null.
        """
        try:
            return self._query(first, rows)
        except _RowError:
            rows = _without_unreadable(self._expressions, rows, failed)
        try:
            tried = self._query(first, rows, _guarded)
        except _RowError as error:
            raise ExpressionFailed("expression", first, str(error)) from error
        columns = [column.combine_chunks() for column in tried.columns]
        for column in columns:
            failed |= column.is_null().to_numpy(zero_copy_only=False)
        worked = pa.array(~failed)
        return pa.table([_where(worked, column.field(0)) for column in columns], tried.column_names)

    def _query(self, first: int, rows: pa.RecordBatch, form: Callable[[str], str] = enclosed) -> pa.Table:
        """One query for all expressions. What no row is to blame for is an ExpressionFailed already here."""
        items = ", ".join(f"{form(e.text)} AS c{i}" for i, e in enumerate(self._expressions.values()))
        try:
            if time.monotonic() > self._deadline:
                raise sessions.OutOfTime
            results = self._session.run(items, _input(self._expressions, rows))
        except sessions.OutOfTime as error:
            limit = f"took longer than {sessions.TIME_LIMIT_S:g} s"
            raise ExpressionFailed("expression", first, limit) from error
        except sessions.Broken as error:
            raise ExpressionFailed("expression", first, f"stopped the engine: {error}") from error
        except duckdb.Error as error:
            raise _RowError(reason(error)) from error
        self._result_bytes += results.nbytes
        if self._result_bytes > MAX_RESULT_BYTES:
            raise ExpressionFailed("expression", first, f"the results of the batch pass {MAX_RESULT_BYTES:,} bytes")
        return results

    def _failure(self, first: int, row: pa.RecordBatch, together: _RowError) -> ExpressionFailed:
        """Which of the expressions fails on this row, and why."""
        for name, expression in self._expressions.items():
            try:
                _Evaluation(self._session, {name: expression})._query(first, row)
            except _RowError as error:
                return ExpressionFailed(name, first, f"{name}: {error}")
        return ExpressionFailed("expression", first, str(together))


def _guarded(text: str) -> str:
    return f"TRY({{'v': {enclosed(text)}}})"


def _portions(expressions: Expressions, rows: pa.RecordBatch, first: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows in slices small enough for one query each, with the index of the first row of each."""
    half = rows.num_rows // 2
    if half == 0 or _work(expressions, rows) <= MAX_WORK_BYTES:
        yield first, rows
    else:
        yield from _portions(expressions, rows.slice(0, half), first)
        yield from _portions(expressions, rows.slice(half), first + half)


def _work(expressions: Expressions, rows: pa.RecordBatch) -> int:
    """The bytes that the expressions can make of these rows, at most."""
    read = sum(rows.column(name).nbytes for name in _texts(expressions))
    return sum(e.work_per_byte * read + e.work_fixed * rows.num_rows for e in expressions.values())


def _texts(expressions: Expressions) -> list[str]:
    return [name for name in input_schema(expressions.values()).names if name in {"key", "value"}]


def _input(expressions: Expressions, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that the expressions read, without a copy."""
    if rows.num_rows == 1 and _work(expressions, rows) > MAX_WORK_BYTES:
        raise _RowError("the record is too large for this expression")
    schema = input_schema(expressions.values())
    columns = {name: rows.column(name) for name in schema.names}
    if "key" in columns:
        try:
            columns["key"] = columns["key"].cast(pa.utf8())
        except pa.ArrowInvalid as error:
            raise _RowError("reads the key, which is not valid UTF-8") from error
    if "value" in columns:
        columns["value"] = pa.ExtensionArray.from_storage(JSON, columns["value"])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def _without_unreadable(expressions: Expressions, rows: pa.RecordBatch, failed: Flags) -> pa.RecordBatch:
    """The rows with null in place of what can not even be handed to DuckDB; marks those in `failed`."""
    texts = _texts(expressions)
    if rows.num_rows == 1 and _work(expressions, rows) > MAX_WORK_BYTES:
        failed[:] = True
    if "key" in texts:
        failed |= np.fromiter((not _is_utf8(key) for key in rows.column("key").to_pylist()), np.bool_)
    for name in texts:
        place, column = rows.schema.get_field_index(name), rows.column(name)
        kept = pa.nulls(len(column), column.type) if failed.all() else _where(pa.array(~failed), column)
        rows = rows.set_column(place, rows.schema.field(place), kept)
    return rows


def _is_utf8(key: bytes | None) -> bool:
    try:
        (key or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _where(keep: pa.BooleanArray, column: pa.Array) -> pa.Array:
    return pc.if_else(keep, column, pa.scalar(None, column.type))


def _assembled(expressions: Expressions, parts: list[pa.Table]) -> pa.RecordBatch:
    """The results as one batch: a column per expression, under its name and of its type."""
    fields = [pa.field(name, expression.type) for name, expression in expressions.items()]
    columns = [column.combine_chunks() for column in pa.concat_tables(parts).columns]
    typed = [
        pa.ExtensionArray.from_storage(JSON, column) if field.type == JSON else column
        for column, field in zip(columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(typed, schema=pa.schema(fields))
