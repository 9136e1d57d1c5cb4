"""Real servers for tests: a Postgres 15 and a Redis 7 of their own, in temporary folders, on free loopback ports.

Debian's packages bring them; `make test` installs what is missing. As root Postgres runs as the user `postgres`, for
it refuses root. None survives the tests, even when they are killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import redis

POSTGRES_BINARIES = "/usr/lib/postgresql"
START_TIMEOUT_S = 30
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",  # a crash of the machine may cost the tests their data
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
}


class PostgresMissing(RuntimeError):
    """Postgres is not installed: `make test` installs it, or `apt-get install postgresql-15`."""


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a running server, without a database; it is stopped and removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
    if _is_root():
        shutil.chown(folder, "postgres", "postgres")
    try:
        _run_initdb(folder)
        port = free_port()
        server = _start(folder, port)
        try:
            _wait_until_ready(server, port, folder)
            yield f"postgresql://millrace@127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGINT)  # fast shutdown: sessions are ended, nothing is waited for
            server.wait(START_TIMEOUT_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class RedisMissing(RuntimeError):
    """Redis is not installed: `make test` installs it, or `apt-get install redis-server`."""


@contextmanager
def redis_server(port: int | None = None) -> Iterator[str]:
    """The URL of a running, empty Redis that keeps nothing on disk; it is stopped afterwards."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise RedisMissing(RedisMissing.__doc__)
    folder = Path(tempfile.mkdtemp(prefix="millrace-redis-"))
    port = port or free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with (folder / "log").open("wb") as log:
        command = ["setpriv", "--pdeathsig=KILL", "--", binary, *options]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for_redis(server, port, folder)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait(START_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run_initdb(folder: Path) -> None:
    options = ["--auth=trust", "--username=millrace", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
    command = [_binary("initdb"), *options, f"--pgdata={folder}/data"]
    subprocess.run(_as_postgres(command), check=True, capture_output=True, cwd=folder)


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    command = [_binary("postgres"), f"-D{folder}/data", f"-p{port}", f"-k{folder}", *settings]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(_as_postgres(command, dies_with_us=True), stdout=log, stderr=log, cwd=folder)


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="millrace", dbname="postgres").close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text()) from None
            time.sleep(0.02)
        else:
            return


def _wait_for_redis(server: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with redis.Redis(port=port) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "log").read_text()) from None
                time.sleep(0.02)
            else:
                return


def _binary(name: str) -> str:
    found = sorted(Path(POSTGRES_BINARIES).glob(f"*/bin/{name}"))
    if not found:
        raise PostgresMissing(PostgresMissing.__doc__)
    return str(found[-1])


def _as_postgres(command: list[str], *, dies_with_us: bool = False) -> list[str]:
    user = ["--reuid=postgres", "--regid=postgres", "--init-groups"] if _is_root() else []
    end = ["--pdeathsig=QUIT"] if dies_with_us else []
    return ["setpriv", *user, *end, "--", *command] if user or end else command


def _is_root() -> bool:
    return os.geteuid() == 0
