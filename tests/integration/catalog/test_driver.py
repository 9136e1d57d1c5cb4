"""Queries that are compiled once: what they find is what SQLAlchemy finds, on SQLite and on Postgres."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Select, bindparam, literal, select
from sqlalchemy.orm import Session

from service.catalog.driver import Prepared
from service.catalog.engine import Catalog
from service.catalog.tables import JobRow, StreamRow, TaskRow
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
