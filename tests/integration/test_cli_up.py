"""`millrace up` as a process: one line when it serves, one at a time, and nothing that blocks the next start."""

import os
import pty
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg

from benchmarks.running import Running, clean_environment, wait_until
from tests.forkserver import ForkServer

MILLRACE = [sys.executable, "-m", "service.cli"]


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*MILLRACE, *arguments]
    environment = clean_environment(more)
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=120)


@contextmanager
def up(
    data_dir: Path, popen: Callable[..., Any] = subprocess.Popen, **more: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service without instances, and where it is served; forked where only what it serves is asked for."""
    with Running(data_dir, instances=0, environment=more, popen=popen) as running:
        yield running.process, running.url


def admin(url: str, data_dir: Path) -> httpx.Client:
    key = (data_dir / "admin-key").read_text().strip()
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"})


def test_it_serves_says_so_in_one_line_and_ends_well_on_sigterm(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data) as (process, url):
        assert stat.S_IMODE((data / "admin-key").stat().st_mode) == 0o600
        with admin(url, data) as api:
            api.post("/v1/streams", json={"name": "s", "partitions": 1}).raise_for_status()
            api.post("/v1/streams/s/records", json={"records": [{"value": 1}]}).raise_for_status()
            assert api.get("/v1/tokens").json()["items"][0]["role"] == "admin"
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert rest == ""  # one line on stdout, no more


def test_it_ends_though_the_database_answers_nothing_any_more(tmp_path: Path, postgres_url: str) -> None:
    """A real process: a forked one would not wait for its threads."""
    shared = {"MILLRACE_DATABASE_URL": postgres_url}
    with (
        psycopg.connect(postgres_url) as holder,
        Running(tmp_path / "data", instances=0, environment=shared) as running,
    ):
        holder.execute("LOCK TABLE instances IN ACCESS EXCLUSIVE MODE")
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'instances'::regclass"
        wait_until(lambda: holder.execute(waiting).fetchone() != (0,), "a statement that waits")
        assert running.stop() == 1
        log = running.log.read_text()
    assert "end_not_awaited" in log
    assert "evictions.py" in log  # where it stood


def test_on_a_terminal_it_prints_a_link_that_signs_in_once(tmp_path: Path, forks: ForkServer) -> None:
    command = [*MILLRACE, "up", "--port", "0", "--instances", "0", "--data-dir", str(tmp_path / "data")]
    ours, terminal = pty.openpty()
    with (tmp_path / "log").open("w") as log, os.fdopen(terminal, "w") as output:
        process = forks.popen(command, env=clean_environment(), stdout=output, stderr=log)
    try:
        with os.fdopen(ours) as heard:
            url, link = (heard.readline().split()[1] for _ in range(2))
            page, _, code = link.partition("#code=")
            assert page == f"{url}/admin"
            answers = [httpx.post(f"{url}/admin/session", json={"code": code}) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [201, 401]
            assert answers[0].json()["role"] == "admin"
    finally:
        process.terminate()
        process.wait(30)


def test_a_second_one_on_the_same_folder_names_the_first_and_gives_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data) as (process, url):
        second = run("up", "--port", "0", "--instances", "0", "--data-dir", str(data))
        assert second.returncode == 1
        assert second.stdout == ""
        [line] = second.stderr.splitlines()
        assert f"pid {process.pid}" in line
        assert str(data) in line
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_after_a_crash_it_starts_again_with_what_was_acknowledged_and_the_same_key(
    tmp_path: Path, forks: ForkServer
) -> None:
    data = tmp_path / "data"
    with up(data, forks.popen) as (process, url), admin(url, data) as api:
        api.post("/v1/streams", json={"name": "s", "partitions": 1}).raise_for_status()
        api.post("/v1/streams/s/records", json={"records": [{"value": 1}]}).raise_for_status()
        key = (data / "admin-key").read_text()
        process.kill()
        process.wait(30)
    with up(data, forks.popen) as (_, url), admin(url, data) as api:
        assert (data / "admin-key").read_text() == key
        assert api.get("/v1/streams/s").json()["records"] == 1


def test_a_key_of_the_environment_is_the_admin_key_and_ends_the_one_before(tmp_path: Path, forks: ForkServer) -> None:
    for keys in (("first",), ("second", "first")):
        with up(tmp_path / "data", forks.popen, MILLRACE_API_KEY=keys[0]) as (_, url):
            assert not (tmp_path / "data" / "admin-key").exists()
            answers = [httpx.get(f"{url}/v1/tokens", headers={"Authorization": f"Bearer {key}"}) for key in keys]
            assert [answer.status_code for answer in answers] == [200, 401][: len(keys)]


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = run("up", "--port", port, "--instances", "0", "--data-dir", str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("millrace: ")


def test_no_authentication_is_refused_where_others_can_reach_it(tmp_path: Path) -> None:
    refused = run("up", "--host", "0.0.0.0", "--data-dir", str(tmp_path), MILLRACE_AUTH="off")
    assert refused.returncode == 1
    assert "AUTH=off is refused" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
