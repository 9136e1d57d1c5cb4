"""Sessions on Postgres of a process that stopped, or whose machine is gone, in the midst of a transaction: they end,
and the locks that they hold with them.

Knows two ways of being silent. Behind a statement Postgres itself ends the session. Between the rows of an
`executemany`, which psycopg sends as a pipeline, row by row, it takes the session for busy, and none of its time limits
counts that (17's `transaction_timeout` would end long reads too): so the other processes look. Refuses to know what a
transaction does.
"""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg
import structlog

MAX_SILENT_MS: Final = 5_000  # between two statements there is no waiting, only a few lines of ours
LOOK_EVERY_S: Final = 1.0

_SILENT: Final = """
SELECT pid, query_start, client_addr::text FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
  AND state = 'active' AND wait_event = 'ClientRead' AND backend_type = 'client backend'
  AND query_start < clock_timestamp() - %s * interval '1 ms'
"""


def end_idle_transactions(connection: Any, _record: object = None) -> None:
    """Have Postgres end this session where it is silent behind a statement; a listener of SQLAlchemy's `connect`."""
    connection.execute(f"SET idle_in_transaction_session_timeout = {MAX_SILENT_MS}")
    connection.commit()


class SilentPipelines:
    """Ends sessions of this database and user that are silent within a pipeline, in whichever process."""

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._next_s = 0.0

    def end(self, connection: psycopg.Connection) -> None:
        """Look, once a second. Who was silent at the look before too, with the same statement, ends: at one look alone
        a statement that took long may just be over. `connection` commits by itself.
        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + LOOK_EVERY_S
        silent = set(connection.execute(_SILENT, [MAX_SILENT_MS]).fetchall())
        for pid, since, address in silent & self._seen:
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            log = structlog.get_logger()
            log.warning("silent_session_ended", pid=pid, address=address, statement_at=since.isoformat())
        self._seen = silent
