"""The DuckDB that expressions run in: sealed off, single-threaded, in UTC, bounded in time and memory.

It knows how to run select items over an Arrow batch; it refuses to know what they mean. One database per
process and one session (a connection and its bound queries) per evaluation that goes on at the same time;
sessions are lent, not owned by threads, so threads that come and go leave nothing behind. A forked child
opens its own.
"""

from __future__ import annotations

import atexit
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

TIME_LIMIT_S = 5.0  # a batch takes a second; a slot that is silent for 10 s loses its tasks (MILLRACE_MAX_BUSY_MS)
MAX_BOUND = 128  # queries kept per session: binding one costs 1 ms, running a bound one on 10 rows 0.5 ms

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "async_threads": 0,  # else 8 threads wait for files that can not be opened
    "memory_limit": "512MB",
    "temp_directory": "",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    # It would compute what two expressions share before either runs: outside of TRY, or as the wrong one's error.
    "disabled_optimizers": "common_subexpressions",
}
_SEALING = (
    "SET TimeZone = 'UTC'",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class OutOfTime(Exception):
    """A query was interrupted at its time limit."""


class Broken(Exception):
    """The database gave up for good; the next session opens another."""


class _Engine:
    """The database of this process, and the sessions that nobody is using."""

    def __init__(self) -> None:
        self.database = duckdb.connect(":memory:", config=_SETTINGS | {"max_execution_time": int(TIME_LIMIT_S * 1000)})
        self.idle: list[Session] = []
        for statement in _SEALING:
            self.database.execute(statement)

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()


# By process. A forked child must neither use nor free what its parent opened, so that stays here, untouched.
_engines: dict[int, _Engine] = {}


@contextmanager
def session() -> Iterator[Session]:
    """A session for one evaluation. (setdefault, pop and append are atomic: no lock is needed.)"""
    process = os.getpid()
    engine = _engines.get(process) or _engines.setdefault(process, _Engine())
    try:
        lent = engine.idle.pop()
    except IndexError:
        lent = Session(engine.database)
    try:
        yield lent
    finally:
        if lent.is_broken:
            close_engine()
        if _engines.get(process) is engine:
            engine.idle.append(lent)
        else:
            lent.close()


@atexit.register
def close_engine() -> None:
    """Close what is idle; the next session opens another database."""
    if engine := _engines.pop(os.getpid(), None):
        engine.close()


class _Source:
    """What bound queries read: each run sees the batch that is there at the time."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.batch = self.empty = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.batch.schema, [self.batch])
        return reader.__arrow_c_stream__(requested_schema)


class Session:
    """One connection. Not for two threads at once. Its methods raise duckdb.Error, OutOfTime or Broken."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self.is_broken = False
        self._connection = database.cursor()
        self._sources: dict[pa.Schema, _Source] = {}
        self._bound: OrderedDict[tuple[str, str], duckdb.DuckDBPyRelation] = OrderedDict()

    def parse(self, statement: str) -> bytes:
        """DuckDB's tree of a statement, as JSON; it is not run."""
        with self._final_errors():
            self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement])
            (tree,) = self._connection.fetchall()[0]
        return str(tree).encode()

    def type_of(self, item: str, schema: pa.Schema) -> str:
        """DuckDB's name of the type of a select item over batches of a schema, after a run over no rows."""
        with self._final_errors():
            query = self._bind(item, self._source(schema))
            query.to_arrow_table()
            return str(query.types[0])

    def run(self, items: str, batch: pa.RecordBatch) -> pa.Table:
        """The select items (SQL) for each row of `batch` (any schema, columns by name), in order: a column an item."""
        source = self._source(batch.schema)
        source.batch = batch
        try:
            with self._final_errors():
                return self._bind(items, source).to_arrow_table()
        finally:
            source.batch = source.empty

    def close(self) -> None:
        """End the session. A connection that is not closed and its sources hold each other for ever."""
        self._bound.clear()
        self._connection.close()

    @contextmanager
    def _final_errors(self) -> Iterator[None]:
        try:
            yield
        except duckdb.InterruptException as error:
            raise OutOfTime from error
        except (duckdb.FatalException, duckdb.InternalException) as error:
            self.is_broken = True
            raise Broken(str(error)) from error

    def _source(self, schema: pa.Schema) -> _Source:
        """The source of a schema; there are as few as there are sets of columns."""
        if schema not in self._sources:
            source = self._sources[schema] = _Source(f"batch_{len(self._sources)}", schema)
            self._connection.register(source.name, source)
        return self._sources[schema]

    def _bind(self, items: str, source: _Source) -> duckdb.DuckDBPyRelation:
        wanted = items, source.name
        if wanted not in self._bound:
            self._bound[wanted] = self._connection.sql(f"SELECT {items} FROM {source.name}")
            if len(self._bound) > MAX_BOUND:
                self._bound.popitem(last=False)
        self._bound.move_to_end(wanted)
        return self._bound[wanted]
