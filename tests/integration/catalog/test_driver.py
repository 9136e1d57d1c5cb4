"""Queries that are compiled once: what they find is what SQLAlchemy finds, on SQLite and on Postgres."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Select, bindparam, literal, select
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from service.catalog.driver import Driver, Prepared
from service.catalog.engine import Catalog
from service.catalog.tables import JobRow, StreamRow, TaskRow
from service.streams.errors import CatalogUnavailable
from tests.integration.catalog.world import make_job, make_stream

NAMED = StreamRow.name.in_(bindparam("names", expanding=True))
QUERIES: dict[str, tuple[Select[*tuple[Any, ...]], list[dict[str, Any]]]] = {
    "values of each type": (
        select(StreamRow.name, StreamRow.fields, StreamRow.custom_partitioning, StreamRow.max_future_ms)
        .where(StreamRow.name == bindparam("name"), StreamRow.kind != "none")
        .limit(5),
        [{"name": "clicks"}, {"name": "100%"}, {"name": "views"}],
    ),
    "as many as are named": (
        select(StreamRow.name, StreamRow.kind).where(NAMED).order_by(StreamRow.name),
        [{"names": []}, {"names": ["views"]}, {"names": ["views", "clicks", "no"]}, {"names": ["no", "views", "x"]}],
    ),
    "bytes, documents and a name twice": (
        select(TaskRow.positions, JobRow.spec, TaskRow.id, JobRow.id, literal("100%"))
        .join(JobRow, JobRow.id == TaskRow.job_id)
        .order_by(TaskRow.id),
        [{}],
    ),
}


@pytest.mark.parametrize(("query", "asked"), QUERIES.values(), ids=list(QUERIES))
def test_a_prepared_query_finds_the_same(
    catalog: Catalog, query: Select[*tuple[Any, ...]], asked: list[dict[str, Any]]
) -> None:
    make_stream(catalog, "clicks")
    make_stream(catalog, "views", partitions=2)
    make_job(catalog)
    prepared = Prepared(query)

    def find(s: Session, parameters: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        return prepared.rows(s, **parameters), list(s.execute(query, parameters))

    for parameters in asked * 2:
        mine, theirs = catalog.read(find, parameters)
        assert [tuple(row) for row in mine] == [tuple(row) for row in theirs]
        assert [[type(value) for value in row] for row in mine] == [[type(value) for value in row] for row in theirs]


def test_rows_have_the_names_of_their_columns(catalog: Catalog) -> None:
    make_stream(catalog)
    (row,) = catalog.read(Prepared(select(StreamRow.name, StreamRow.partitions)).rows)
    assert (row.name, row.partitions) == ("clicks", 4)


def test_a_prepared_query_sees_what_its_session_has_not_written_yet(catalog: Catalog) -> None:
    def add(s: Session) -> list[Any]:
        s.add(StreamRow(name="late", partitions=1, max_future_ms=0, kind="user"))
        return Prepared(select(StreamRow.name)).rows(s)

    assert catalog.write(add) == [("late",)]


INSERT = "INSERT INTO meta (name, value) VALUES (?, ?)"


def test_a_race_that_a_text_loses_runs_again(catalog: Catalog) -> None:
    catalog.write(lambda s: Driver(s).each(INSERT, [("a", "0"), ("b", "0")]))
    names = iter("bac")

    def work(s: Session) -> str:
        Driver(s).rows(INSERT, [name := next(names), "1"])
        return name

    assert catalog.write(work) == "c"
    found = catalog.read(lambda s: Driver(s).rows("SELECT name, value FROM meta WHERE name IN (?, ?, ?)", "abc"))
    assert sorted(found) == [("a", "0"), ("b", "0"), ("c", "1")]


def test_a_connection_that_a_text_finds_lost_is_taken_again(catalog: Catalog) -> None:
    attempts: list[int] = []

    def work(s: Session) -> None:
        driver = Driver(s)
        driver.rows(INSERT, [f"attempt-{len(attempts)}", ""])
        attempts.append(1)
        if len(attempts) == 1 and s.get_bind().dialect.name == "postgresql":
            driver.rows("SELECT pg_terminate_backend(pg_backend_pid())", ())

    catalog.write(work)
    found = catalog.read(lambda s: Driver(s).rows("SELECT count(*) FROM meta WHERE name LIKE ?", ["attempt-%"]))
    assert found == [(1,)]


@pytest.mark.parametrize("rows", [None, [("x",), ("y",)]], ids=["one", "many"])
def test_what_the_database_refuses_is_an_error_of_sqlalchemy(catalog: Catalog, rows: list[tuple[str]] | None) -> None:
    def work(s: Session) -> None:
        if rows is None:
            Driver(s).rows("SELECT nothing FROM nowhere WHERE name = ?", ["x"])
        else:
            Driver(s).each("UPDATE nowhere SET name = ?", rows)

    with pytest.raises((ProgrammingError, CatalogUnavailable)):
        catalog.write(work)
    make_stream(catalog)  # the connection is as good as before
