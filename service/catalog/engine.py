"""The one place that commits.

It knows how SQLite and Postgres are opened, begun, committed, retried and told apart, and who is woken after a
commit. It refuses to know what is in the tables: that is for the functions, each taking a Session first, that
`Catalog.write` and `Catalog.read` run.

    catalog.write(publish, segment_id, bytes=..., chunks=...)   # one transaction, committed, waiters woken
    catalog.read(get_stream, "clicks")                          # one snapshot, read-only

A function must be repeatable: it runs again after a deadlock, a lost race for a unique name or a connection lost
before the commit. A connection lost *in* the commit is `CatalogUnavailable`: the caller asks again under the same id.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cached_property
from importlib.resources import files
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import BigInteger, Engine, create_engine, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from service import backoff
from service.catalog.silent_sessions import SilentPipelines, end_idle_transactions
from service.catalog.tables import MetaRow, new_id
from service.streams.errors import CatalogUnavailable

P = ParamSpec("P")
R = TypeVar("R")
OnWake = Callable[[Iterable[str]], None]

EVERYTHING = "*"  # woken when wake-ups of other processes may have been missed
JOBS = "jobs"  # the set of jobs, or the state of one, changed
PUSHES = "pushes"  # the set of subscriptions with a target changed
CHANNEL = "millrace"
RACES = {"40001", "40P01"}  # serialization failure, deadlock: Postgres undid all of it
BUSY_TIMEOUT_MS = 10_000  # for the other processes on a SQLite file; inside a process a lock keeps order
MAX_PAYLOAD_BYTES = 7_500  # of one NOTIFY; Postgres refuses 8,000


def stream_topic(stream_id: str) -> str:
    """Woken when records of the stream were published."""
    return f"stream:{stream_id}"


def partition_topic(stream_id: str, partition: int) -> str:
    """Woken when records of this partition were published: who reads the others sleeps on."""
    return f"stream:{stream_id}/{partition}"


def target_topic(stream_id: str, target: int) -> str:
    """Woken when a repartition stream got records for this target: what is for others it passes over later."""
    return f"stream:{stream_id}>{target}"


def subscription_topic(subscription_id: str) -> str:
    """Woken when a partition of the subscription became free, or the subscription is gone."""
    return f"subscription:{subscription_id}"


def job_topic(job_id: str) -> str:
    """Woken when the job's state or the owner of one of its tasks changed."""
    return f"job:{job_id}"


def progress_topic(job_id: str) -> str:
    """Woken when a task of the job committed or said how far its replicas are: `?wait=caught_up` waits here."""
    return f"progress:{job_id}"


def wake(session: Session, *topics: str) -> None:
    """Wake who waits for these topics, once the transaction is committed."""
    session.info["topics"].update(topics)


def is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"


class Now(FunctionElement[int]):
    """The database's clock in ms, to be used in a statement beside its columns."""

    name = "now_ms"
    type = BigInteger()
    inherit_cache = True


@compiles(Now, "postgresql")
def _postgres_now(_element: Now, _compiler: object, **_: object) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(Now, "sqlite")
def _sqlite_now(_element: Now, _compiler: object, **_: object) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


def now_ms(session: Session) -> int:
    """The database's clock, in ms; SQLite's is that of this process."""
    return time.time_ns() // 1_000_000 if is_sqlite(session) else session.scalars(_NOW).one()


_NOW = select(Now())


class Catalog:
    """The catalog database behind a URL, opened once per process."""

    def __init__(self, url: str) -> None:
        self.url = _driver_url(url)
        self._is_sqlite = self.url.get_backend_name() == "sqlite"
        self._writer, self._reader = _sqlite_engines(self.url) if self._is_sqlite else _postgres_engines(self.url)
        self._write_lock = threading.Lock() if self._is_sqlite else nullcontext()
        self._callbacks: list[OnWake] = []
        self._listener: _Listener | None = None
        self._origin = new_id()
        self._is_closed = False
        for pool in {self._writer.pool, self._reader.pool}:  # Postgres has one
            event.listen(pool, "checkin", self._close_when_late)

    def write(self, work: Callable[Concatenate[Session, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work(session, ...)` in one transaction and commit it; then wake the topics it named."""
        result, topics = _repeat(lambda: self._commit(work, *args, **kwargs))
        if topics:
            self._wake(topics)
        return result

    def read(self, work: Callable[Concatenate[Session, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work(session, ...)` on one snapshot of the catalog, which it can not change."""
        return _repeat(lambda: self._look(work, *args, **kwargs))

    def on_wake(self, callback: OnWake) -> None:
        """Call `callback(topics)` after every commit that wakes some; from any thread, so it must be quick."""
        self._callbacks.append(callback)

    def listen(self) -> None:
        """Hear the wake-ups of other processes too (Postgres; SQLite has one process)."""
        if not self._is_sqlite and self._listener is None:
            self._listener = _Listener(self._writer, self._origin, self._wake)

    def close(self) -> None:
        """Stop listening and close every connection; one in use, by a thread that nobody waits for, when it is free."""
        if self._listener is not None:
            self._listener.stop()
        self._is_closed = True
        self._writer.dispose()
        self._reader.dispose()

    def _close_when_late(self, connection: DBAPIConnection | None, _record: object) -> None:
        if (
            self._is_closed and connection is not None
        ):  # the pool that it comes back to was given up, and would leave it to the garbage collector
            connection.close()

    @cached_property
    def lineage(self) -> str:
        """The id of this catalog's history; another one after a restore from a backup."""
        return self.read(lineage_of)

    @property
    def is_current(self) -> bool:
        """Whether the schema is the one that this code was written for."""
        with self._reader.connect() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
        return found == ScriptDirectory.from_config(_alembic()).get_current_head()

    def upgrade(self, revision: str = "head") -> None:
        """Bring the schema to `revision`."""
        self._migrate(command.upgrade, revision)

    def downgrade(self, revision: str) -> None:
        """Take the schema back to `revision` (`base`: nothing left)."""
        self._migrate(command.downgrade, revision)

    def _commit(
        self, work: Callable[Concatenate[Session, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R, set[str]]:
        topics: set[str] = set()
        with self._write_lock, Session(self._writer, expire_on_commit=False, info={"topics": topics}) as session:
            result = work(session, *args, **kwargs)
            session.flush()
            if topics and not self._is_sqlite:
                _notify(session, self._origin, topics)
            try:
                session.commit()
            except DBAPIError as error:
                raise CatalogUnavailable("The catalog did not confirm a commit") from error
        return result, topics

    def _look(self, work: Callable[Concatenate[Session, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with Session(self._reader, expire_on_commit=False, autoflush=False) as session:
            found = work(session, *args, **kwargs)
            session.commit()  # behind a ROLLBACK psycopg has Postgres forget all that is prepared
            return found

    def _wake(self, topics: Iterable[str]) -> None:
        for callback in self._callbacks:
            callback(topics)

    def _migrate(self, step: Callable[[Config, str], None], revision: str) -> None:
        config = _alembic()
        with self._write_lock, self._writer.begin() as connection:
            config.attributes["connection"] = connection
            step(config, revision)
        self.__dict__.pop("lineage", None)


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the catalog behind `url` to `revision`."""
    catalog = Catalog(url)
    try:
        catalog.upgrade(revision)
    finally:
        catalog.close()


def downgrade(url: str, revision: str) -> None:
    """Take the catalog behind `url` back to `revision`."""
    catalog = Catalog(url)
    try:
        catalog.downgrade(revision)
    finally:
        catalog.close()


def lineage_of(session: Session) -> str:
    """The id of this catalog's history."""
    return session.scalars(select(MetaRow.value).where(MetaRow.name == "lineage")).one()


def _repeat(attempt: Callable[[], R]) -> R:
    """Run `attempt` again where the database undid it; say `CatalogUnavailable` where it can not be reached."""
    try:
        try:
            return attempt()
        except DBAPIError as error:
            if not _was_undone(error):
                raise
        again = Retrying(  # made when it is needed: making it takes longer than many an attempt
            retry=retry_if_exception(_was_undone),
            stop=stop_after_attempt(7),
            wait=backoff.exponential(0.005, 0.5),
            reraise=True,
        )
        return again(attempt)
    except OperationalError as error:
        raise CatalogUnavailable(f"The catalog can not be reached: {error.orig}") from error


def _was_undone(error: BaseException) -> bool:
    """Whether a second run is safe and may end better: nothing of the first one is left."""
    if not isinstance(error, DBAPIError):
        return False
    lost = error.connection_invalidated or isinstance(error.orig, psycopg.errors.AdminShutdown)
    return lost or isinstance(error, IntegrityError) or getattr(error.orig, "sqlstate", None) in RACES


# ---------------------------------------------------------------- the two databases


def _driver_url(url: str) -> URL:
    parsed = make_url(url)
    if parsed.drivername in {"postgres", "postgresql"}:
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _sqlite_engines(url: URL) -> tuple[Engine, Engine]:
    """One connection that writes (BEGIN IMMEDIATE, fsync at every commit), many that only read a snapshot."""
    arguments: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
    writer = create_engine(url, connect_args=arguments, pool_size=1, max_overflow=0, json_serializer=_to_json)
    reader = create_engine(url, connect_args=arguments, pool_size=16, max_overflow=48)
    pragmas = [f"busy_timeout={BUSY_TIMEOUT_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"]
    _begin_by_hand(writer, "BEGIN IMMEDIATE", pragmas)
    _begin_by_hand(reader, "BEGIN", [*pragmas[:1], "query_only=ON"])
    return writer, reader


def _begin_by_hand(engine: Engine, begin: str, pragmas: list[str]) -> None:
    """The driver's own idea of when to begin (before a write, never before a read) gives no snapshots."""

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin_now(connection: Any) -> None:
        connection.exec_driver_sql(begin)


def _postgres_engines(url: URL) -> tuple[Engine, Engine]:
    """READ COMMITTED with explicit row locks to write, REPEATABLE READ to read one snapshot."""
    engine = create_engine(
        url, isolation_level="READ COMMITTED", pool_size=16, max_overflow=48, json_serializer=_to_json
    )
    event.listen(engine, "connect", end_idle_transactions)
    reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return engine, reader


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    return config


# ---------------------------------------------------------------- wake-ups between processes (Postgres)


def _notify(session: Session, origin: str, topics: set[str]) -> None:
    """Send the topics with the commit, in as many notifications as their length asks for."""
    batch: list[str] = []
    for topic in sorted(topics):
        if sum(map(len, batch)) + 3 * len(batch) + len(topic) > MAX_PAYLOAD_BYTES:
            session.execute(select(func.pg_notify(CHANNEL, _to_json([origin, *batch]))))
            batch = []
        batch.append(topic)
    session.execute(select(func.pg_notify(CHANNEL, _to_json([origin, *batch]))))


class _Listener:
    """One thread with one connection that hears what other processes committed, and that one of them has stopped."""

    def __init__(self, engine: Engine, origin: str, on_topics: OnWake) -> None:
        self._arguments = dict(engine.dialect.create_connect_args(engine.url)[1])
        self._origin = origin
        self._on_topics = on_topics
        self._stopping = threading.Event()
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="catalog-listener", daemon=True)
        self._thread.start()
        self._is_listening.wait(timeout=5)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._hear()
            except psycopg.OperationalError:
                self._stopping.wait(0.5)

    def _hear(self) -> None:
        with psycopg.connect(**self._arguments, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self._is_listening.set()
            self._on_topics([EVERYTHING])
            pipelines = SilentPipelines()
            while not self._stopping.is_set():
                pipelines.end(connection)
                for notification in connection.notifies(timeout=0.25):
                    origin, *topics = json.loads(notification.payload)
                    if origin != self._origin:
                        self._on_topics(topics)
