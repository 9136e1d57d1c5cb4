"""Fixtures for all tests: catalogs, on SQLite and on Postgres.

One Postgres server serves a whole run; each test gets a database that nobody else has.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer

from service.catalog.engine import Catalog, upgrade
from tests import class_archive, compiled, services
from tests.databases import Databases
from tests.forkserver import ForkServer
from tests.scheduling import LongestFirst

# What a worker imports and collects stays: looking through it for garbage took 1 to 2 s of CPU, of 7.
if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()
    atexit.register(gc.unfreeze)  # modules in C that count what is left at the end would complain

ABSENT = Path(__file__).parent / "absent"  # modules that processes which tests start do not find

# A busy machine is not a failing example. What fails says how to run it again.
settings.register_profile("fresh", deadline=None, print_blob=True, max_examples=60)
settings.register_profile("quick", settings.get_profile("fresh"), max_examples=10)  # for `make check`
settings.register_profile("long", settings.get_profile("fresh"), max_examples=1_000)  # after a change of an operator
settings.register_profile("ci", settings.get_profile("fresh"), derandomize=True)  # the same examples in every run
settings.load_profile("ci" if os.environ.get("CI") else "fresh")

class_archive.use()
compiled.share()

# structlog's own way of showing an exception, with all variables, takes seconds in which a lease may run out.
shown = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], shown])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst | None:
    """Of `--dist loadscope`, which `make test` asks for, units and order are ours."""
    return LongestFirst(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_finish() -> None:
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    # pyarrow imports pandas where it finds it: 0.3 s of CPU in each service and each worker daemon. The image has none.
    # Not before workers have been started: tests of the client need it.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ABSENT), os.environ.get("PYTHONPATH")]))


NAMES = count()
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Where services and instances come from of tests that do not ask how a process starts."""
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a Postgres server, without a database."""
    with services.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a Redis server that all tests of a run share: names in it carry ids."""
    with services.redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_admin(postgres_server: str) -> Iterator[psycopg.Connection]:
    """A connection to the server that makes databases and drops them: a session less for each."""
    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def databases(postgres_server: str, postgres_admin: psycopg.Connection) -> Databases:
    """Migrated databases of that server."""
    return Databases(postgres_server, postgres_admin)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of a migrated SQLite file: each test writes it to a file of its own."""
    path = tmp_path_factory.mktemp("catalog") / "migrated.db"
    upgrade(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture(params=DATABASES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without a single table: SQLite, then Postgres."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/catalog.db"
        return
    server: str = request.getfixturevalue("postgres_server")
    admin: psycopg.Connection = request.getfixturevalue("postgres_admin")
    name = f"empty_{next(NAMES)}"
    admin.execute(f"CREATE DATABASE {name}")
    yield f"{server}/{name}"
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The URL of a migrated, empty catalog of the kind that the parameter of `request` names; `folder` is for files."""
    if request.param == "sqlite":
        path = folder / "catalog.db"
        path.write_bytes(request.getfixturevalue("migrated_sqlite"))
        yield f"sqlite:///{path}"
        return
    with request.getfixturevalue("databases").lend() as url:
        yield url


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated, empty catalog: SQLite, then Postgres."""
    with database(request, tmp_path) as url:
        yield url


@pytest.fixture(params=DATABASES[1:])
def postgres_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated, empty catalog on Postgres, for what several processes share."""
    with database(request, tmp_path) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_sqlite: bytes) -> str:
    """The URL of a migrated, empty catalog on SQLite, for what does not ask what the catalog is on."""
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    return f"sqlite:///{tmp_path}/catalog.db"


@pytest.fixture
def open_catalog(database_url: str) -> Iterator[Callable[[], Catalog]]:
    """Opens the test's catalog, as one more process would; all are closed afterwards."""
    opened: list[Catalog] = []

    def open_one() -> Catalog:
        opened.append(Catalog(database_url))
        return opened[-1]

    yield open_one
    for catalog in opened:
        catalog.close()


@pytest.fixture
def catalog(open_catalog: Callable[[], Catalog]) -> Catalog:
    """A migrated, empty catalog: on SQLite, then on Postgres."""
    return open_catalog()
