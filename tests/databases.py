"""Migrated databases on Postgres for tests: emptied and lent again, which costs a fifth of making and dropping one.

Each test finds a name of its own: who comes back after its test is refused, as where a database is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import psycopg

from service.catalog.engine import upgrade

TEMPLATE = "migrated"

# What migrations have inserted stands in a schema of its own, to be put back.
KEEP = """
CREATE SCHEMA inserted;
DO $$
DECLARE name text; has_rows boolean;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', name) INTO has_rows;
        IF has_rows THEN
            EXECUTE format('CREATE TABLE inserted.%I AS TABLE public.%I', name, name);
        END IF;
    END LOOP;
END $$
"""
# A table whose rows were deleted would give later ones in another order: it is truncated, where it has had any.
EMPTY = """
DO $$
DECLARE used text; name text;
BEGIN
    SELECT string_agg(oid::regclass::text, ', ') INTO used FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0;
    EXECUTE 'TRUNCATE ' || used || ' RESTART IDENTITY CASCADE';
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'inserted' LOOP
        EXECUTE format('INSERT INTO public.%I SELECT * FROM inserted.%I', name, name);
    END LOOP;
END $$
"""


class Databases:
    """Databases of one server."""

    def __init__(self, server: str, admin: psycopg.Connection) -> None:
        self._server, self._admin = server, admin
        self._names = (f"test_{n}" for n in count())
        self._empty: list[str] = []
        admin.execute(f"CREATE DATABASE {TEMPLATE}")
        upgrade(self._url(TEMPLATE))
        with psycopg.connect(self._url(TEMPLATE)) as connection:
            connection.execute(KEEP)

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The URL of a migrated, empty database; whoever has a session in it at the end loses it."""
        name = self._empty.pop() if self._empty else self._make()
        yield self._url(name)
        self._empty.append(self._take_back(name))

    def _make(self) -> str:
        name = next(self._names)
        self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return name

    def _take_back(self, name: str) -> str:
        end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
        self._admin.execute(end, [name])
        new = next(self._names)
        self._admin.execute(f"ALTER DATABASE {name} RENAME TO {new}")
        with psycopg.connect(self._url(new)) as connection:
            connection.execute(EMPTY)
        return new

    def _url(self, name: str) -> str:
        return f"{self._server}/{name}"
