"""Statements that SQLAlchemy has compiled, kept for all catalogs that this process opens one after the other.

It keeps them by itself for one engine alone, for the service has one; tests have hundreds, which say the same things.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

STATEMENTS = 2_000
_compiled: LRUCache[object, object] = LRUCache(STATEMENTS)


def share() -> None:
    """Share them from now on."""
    for dialect in SQLiteDialect_pysqlite, PGDialect_psycopg:  # it is part of the key, as an object
        dialect.__eq__ = _compiles_alike  # type: ignore[method-assign,assignment]
        dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    event.listen(Engine, "engine_connect", _use)


def _compiles_alike(self: object, other: object) -> bool:
    return type(self) is type(other) and self._json_serializer is other._json_serializer  # type: ignore[attr-defined]


def _use(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_compiled)
