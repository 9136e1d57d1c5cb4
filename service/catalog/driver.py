"""Statements as texts: the few that every group of posts, every poll and every commit of tasks runs.

Knows where SQLite and Postgres differ in them; both keep a text prepared that they are given again. Refuses to know
what they say. Building, compiling and unpacking one takes SQLAlchemy 120 µs, giving it a text 15 to 25; the driver's
own cursor, which is used here, takes 5, SQLite's own 3 among them.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import Select
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session


class Driver:
    """The connection of a session's transaction. Texts have `?` for parameters, and `{lock}` where rows are locked
    against writers (SQLite has one writer).
    """

    def __init__(self, s: Session) -> None:
        s.flush()
        self._connection = _connection_of(s)
        self._own = _for_sqlite if self._connection.dialect.name == "sqlite" else _for_postgres

    def rows(self, text: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """All rows that a query finds."""
        return run(self._connection, self._own(text), tuple(parameters))

    def each(self, text: str, rows: Collection[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""
        run(self._connection, self._own(text), [tuple(row) for row in rows])


def _connection_of(s: Session) -> Connection:
    """Of a session's only transaction. Asked once, and kept: asking takes a session as long as a query takes SQLite."""
    found: Connection | None = s.info.get("connection")
    if found is None:
        found = s.info["connection"] = s.connection()
    return found


def run(connection: Connection, text: str, parameters: Any) -> list[tuple[Any, ...]]:
    """All rows that a text finds, given to the driver as it is; once for each of a list of parameters, it finds none.

    Raises DBAPIError as SQLAlchemy would: who repeats transactions, and the pool, judge by that.
    """
    cursor: Any = connection.connection.cursor()
    try:
        if isinstance(parameters, list):
            if len(parameters) == 1:  # as a pipeline, which `executemany` begins, it would take three times as long
                cursor.execute(text, parameters[0])
            else:
                cursor.executemany(text, parameters)
            return []
        cursor.execute(text, parameters)
        return cursor.fetchall() if cursor.description else []
    except connection.dialect.loaded_dbapi.Error as error:
        raise _as_sqlalchemys(connection, text, parameters, error) from error
    finally:
        cursor.close()


def _as_sqlalchemys(connection: Connection, text: str, parameters: Any, error: Any) -> DBAPIError:
    dialect, lost = connection.dialect, False
    if dialect.is_disconnect(error, connection.connection, None):
        connection.invalidate(error)
        lost = True
    wrapped: Any = DBAPIError.instance(
        text, parameters, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )
    return cast("DBAPIError", wrapped)


class Prepared:
    """A query that is compiled once for each database, and for each number of values behind an `IN`."""

    def __init__(self, query: Select[*tuple[Any, ...]]) -> None:
        self._query = query
        self._compiled: dict[tuple[str, tuple[int, ...]], _Compiled] = {}
        self._row: Any = namedtuple("Row", [c.key for c in query.selected_columns], rename=True)  # type: ignore[misc]

    def rows(self, s: Session, **parameters: Any) -> list[Any]:
        """All rows that it finds, as tuples with the names of its columns; a list is what an `IN` expands to."""
        s.flush()
        connection = _connection_of(s)
        lists = tuple(len(value) for value in parameters.values() if isinstance(value, list))
        compiled = self._compiled.get((connection.dialect.name, lists))
        if compiled is None:
            compiled = self._compile(connection.dialect, parameters)
            self._compiled[connection.dialect.name, lists] = compiled
        found = compiled.run(connection, parameters)
        for at, process in compiled.processors:
            found = [(*row[:at], process(row[at]), *row[at + 1 :]) for row in found]
        return list(map(self._row._make, found))

    def _compile(self, dialect: Dialect, parameters: Mapping[str, Any]) -> _Compiled:
        compiled = self._query.compile(dialect=dialect)
        state = compiled.construct_expanded_state(dict(parameters))
        types = [column.type.dialect_impl(dialect) for column in self._query.selected_columns]
        processes = ((at, kind.result_processor(dialect, None)) for at, kind in enumerate(types))
        names = None if state.positiontup is None else tuple(state.positiontup)
        return _Compiled(state.statement, names, state.parameters, [(at, each) for at, each in processes if each])


class _Compiled(NamedTuple):
    """A query's text; the names of its parameters where they go by position; their values, of which those that are
    always the same count; what its columns need to become values.
    """

    text: str
    names: tuple[str, ...] | None
    values: Mapping[str, Any]
    processors: Sequence[tuple[int, Callable[[Any], Any]]]

    def run(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        given = {**self.values, **parameters}
        for name, value in parameters.items():
            if isinstance(value, list):
                given.update({f"{name}_{number}": each for number, each in enumerate(value, start=1)})
        named = given if self.names is None else tuple([given[name] for name in self.names])
        return run(connection, self.text, named)


def values(rows: int, columns: int) -> str:
    """`VALUES (?, ?), (?, ?)`: what a tuple of columns may be in."""
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * rows)}"


@lru_cache
def _for_sqlite(text: str) -> str:
    return text.replace("{lock}", "")


@lru_cache
def _for_postgres(text: str) -> str:
    return text.replace("{lock}", "FOR NO KEY UPDATE").replace("?", "%s")
