"""The one place that commits: all or nothing, waiters woken after it, and only then; again where it was undone."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from service.catalog import streams
from service.catalog.engine import EVERYTHING, Catalog, now_ms, wake
from service.catalog.tables import MetaRow, StreamRow
from service.streams.errors import CatalogUnavailable, StreamExists, UnknownStream


def create_and_fail(s: Session) -> None:
    streams.create_stream(s, "clicks", partitions=1)
    wake(s, "stream:clicks")
    raise ValueError


def test_a_function_that_fails_leaves_nothing_and_wakes_nobody(catalog: Catalog) -> None:
    woken: list[str] = []
    catalog.on_wake(woken.extend)
    with pytest.raises(ValueError):  # noqa: PT011 - ours, and without words
        catalog.write(create_and_fail)
    with pytest.raises(UnknownStream):
        catalog.read(streams.get_stream, "clicks")
    assert woken == []


def test_waiters_are_woken_once_it_is_committed(catalog: Catalog) -> None:
    found: list[str] = []

    def look(_topics: Iterable[str]) -> None:
        found.append(catalog.read(streams.get_stream, "clicks").name)

    def create(s: Session) -> None:
        streams.create_stream(s, "clicks", partitions=1)
        wake(s, "anything")

    catalog.on_wake(look)
    catalog.write(create)
    assert found == ["clicks"]


def test_a_read_can_not_write(catalog: Catalog) -> None:
    with pytest.raises((DBAPIError, CatalogUnavailable)):
        catalog.read(streams.create_stream, "clicks", partitions=1)
    with pytest.raises(UnknownStream):
        catalog.read(streams.get_stream, "clicks")


def test_a_read_sees_one_snapshot(catalog: Catalog) -> None:
    def read(s: Session) -> tuple[list[str], list[str]]:
        before = list(s.scalars(select(StreamRow.name)))
        catalog.write(streams.create_stream, "clicks", partitions=1)
        return before, list(s.scalars(select(StreamRow.name)))

    assert catalog.read(read) == ([], [])
    assert catalog.read(streams.get_stream, "clicks").partitions == 1


def test_of_two_that_make_the_same_name_one_is_told(catalog: Catalog) -> None:
    barrier = threading.Barrier(4)

    def create() -> str:
        barrier.wait()
        try:
            return catalog.write(streams.create_stream, "clicks", partitions=2).id
        except StreamExists:
            return "exists"

    with ThreadPoolExecutor(4) as pool:
        answers = [future.result() for future in [pool.submit(create) for _ in range(4)]]
    assert answers.count("exists") == 3


def test_what_a_deadlock_undid_runs_again(catalog: Catalog) -> None:
    """Two transactions lock two rows in opposite order; SQLite has one writer and no such thing."""
    for name in ("a", "b"):
        catalog.write(lambda s, name: s.add(MetaRow(name=name, value="0")), name)
    meeting = threading.Barrier(2, timeout=1)

    def swap(s: Session, first: str, second: str) -> None:
        lock(s, first).value += "1"
        s.flush()
        with suppress(threading.BrokenBarrierError):
            meeting.wait()
        lock(s, second).value += "1"

    def lock(s: Session, name: str) -> MetaRow:
        return s.scalars(select(MetaRow).where(MetaRow.name == name).with_for_update()).one()

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(catalog.write, swap, *names) for names in (("a", "b"), ("b", "a"))]:
            future.result()
    assert catalog.read(lambda s: [s.get_one(MetaRow, name).value for name in ("a", "b")]) == ["011", "011"]


def test_a_connection_lost_before_the_commit_is_taken_again(catalog: Catalog) -> None:
    attempts: list[int] = []

    def work(s: Session) -> None:
        streams.create_stream(s, "clicks", partitions=1)
        attempts.append(1)
        if len(attempts) == 1 and s.get_bind().dialect.name == "postgresql":
            s.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    catalog.write(work)
    assert catalog.read(streams.get_stream, "clicks").partitions == 1


def test_a_connection_that_is_in_use_at_the_end_is_closed_when_it_comes_back(catalog: Catalog) -> None:
    """A round that nobody waits for may be under way; the pool that it came from is gone by then."""
    is_in_use, may_end = threading.Event(), threading.Event()

    def work(s: Session) -> Any:
        connection = s.connection().connection.dbapi_connection
        is_in_use.set()
        assert may_end.wait(30)
        return connection

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(catalog.read, work)
        assert is_in_use.wait(30)
        catalog.close()
        may_end.set()
        connection = late.result()
    with pytest.raises((psycopg.OperationalError, sqlite3.ProgrammingError), match="closed"):
        connection.execute("SELECT 1")


def test_a_connection_lost_in_the_commit_leaves_the_outcome_open(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: Session) -> None:
        raise OperationalError("COMMIT", {}, Exception("gone"))

    monkeypatch.setattr(Session, "commit", lost)
    with pytest.raises(CatalogUnavailable):
        catalog.write(streams.create_stream, "clicks", partitions=1)


def test_the_clock_is_in_milliseconds_and_goes_on(catalog: Catalog) -> None:
    first = catalog.read(now_ms)
    assert 1_500_000_000_000 < first <= catalog.read(now_ms) < 10_000_000_000_000


@pytest.mark.parametrize("topics", [["one"], [f"topic:{i:04}" for i in range(2_000)]], ids=["one", "many"])
def test_another_process_hears_what_was_committed(
    open_catalog: Callable[[], Catalog], database_url: str, topics: list[str]
) -> None:
    writer, listener = open_catalog(), open_catalog()
    heard: set[str] = set()
    is_done = threading.Event()

    def hear(names: Iterable[str]) -> None:
        heard.update(names)
        if heard.issuperset(topics):
            is_done.set()

    (listener if database_url.startswith("postgres") else writer).on_wake(hear)
    writer.listen()
    listener.listen()
    writer.write(lambda s: wake(s, *topics))
    assert is_done.wait(10)
    assert heard <= {*topics, EVERYTHING}


def test_a_process_hears_its_own_commits_once(catalog: Catalog) -> None:
    heard: list[str] = []
    catalog.listen()
    catalog.on_wake(heard.extend)
    for i in range(3):
        catalog.write(lambda s, i: wake(s, str(i)), i)
    catalog.close()
    assert [topic for topic in heard if topic != EVERYTHING] == ["0", "1", "2"]
