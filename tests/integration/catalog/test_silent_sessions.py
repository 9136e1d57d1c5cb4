"""A process that stops in the midst of a transaction keeps nobody waiting for its locks, wherever it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import update

from benchmarks.running import wait_until
from service.catalog import silent_sessions
from service.catalog.engine import Catalog
from service.catalog.tables import MetaRow

CHANGE = b"UPDATE meta SET value = value WHERE name = 'lineage'"


@pytest.fixture
def stopped(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A session that says nothing more, on the terms of every session of the catalog."""
    monkeypatch.setattr(silent_sessions, "MAX_SILENT_MS", 200)
    monkeypatch.setattr(silent_sessions, "LOOK_EVERY_S", 0.05)
    with closing(psycopg.connect(postgres_url)) as connection:
        silent_sessions.end_idle_transactions(connection)
        yield connection


def stop_behind_a_statement(session: psycopg.Connection) -> None:
    session.execute(CHANGE)


def stop_within_a_pipeline(session: psycopg.Connection) -> None:
    session.execute("SELECT 1")
    session.pgconn.enter_pipeline_mode()
    session.pgconn.send_query_params(CHANGE, [])
    session.pgconn.send_flush_request()
    session.pgconn.flush()


@pytest.mark.parametrize("stop", [stop_behind_a_statement, stop_within_a_pipeline])
def test_the_locks_of_a_process_that_has_stopped_are_free(
    stopped: psycopg.Connection, postgres_url: str, stop: Callable[[psycopg.Connection], None]
) -> None:
    stop(stopped)
    with closing(Catalog(postgres_url)) as catalog:
        catalog.listen()
        changed: Any = update(MetaRow).where(MetaRow.name == "lineage").values(value="another")
        catalog.write(lambda s: s.execute(changed))  # waits for the lock
        assert catalog.lineage == "another"


def test_a_pipeline_that_is_busy_goes_on(stopped: psycopg.Connection, postgres_url: str) -> None:
    with closing(psycopg.connect(postgres_url, autocommit=True)) as watching, stopped.pipeline():
        sleeping = stopped.execute("SELECT pg_sleep(1)")
        wait_until(lambda: is_asleep(watching, stopped.info.backend_pid), "the statement to begin", every_s=0.01)
        looks = silent_sessions.SilentPipelines()
        while is_asleep(watching, stopped.info.backend_pid):
            looks.end(watching)
        assert sleeping.fetchall() == [("",)]


def is_asleep(watching: psycopg.Connection, pid: int) -> bool:
    query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
    return watching.execute(query, [pid]).fetchone() is not None
