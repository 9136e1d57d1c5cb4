"""Statements as texts: the few that every group of posts and every commit of tasks runs.

Knows where SQLite and Postgres differ in them; both keep a text prepared that they are given again. Refuses to know
what they say. Building, compiling and unpacking one takes SQLAlchemy 120 µs; as a text it takes 15 to 25, SQLite's own
3 among them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy.orm import Session


class Driver:
    """The connection of a session's transaction. Texts have `?` for parameters, and `{lock}` where rows are locked
    against writers (SQLite has one writer).
    """

    def __init__(self, s: Session) -> None:
        s.flush()
        self._connection = s.connection()
        self._own = _for_sqlite if self._connection.dialect.name == "sqlite" else _for_postgres

    def rows(self, text: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """All rows that a query finds."""
        return [tuple(row) for row in self._connection.exec_driver_sql(self._own(text), tuple(parameters))]

    def each(self, text: str, rows: Collection[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""
        self._connection.exec_driver_sql(self._own(text), [tuple(row) for row in rows])


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
