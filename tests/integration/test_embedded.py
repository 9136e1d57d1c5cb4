"""What `up` does with processes and its folder: a lock, a key, children that are watched and end with it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from benchmarks.running import wait_until
from service import embedded
from service.settings import Settings
from tests.attached import are_gone


def child(code: str) -> embedded.InstanceProcess:
    return embedded.InstanceProcess([sys.executable, "-c", code], os.environ)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def until_lines(path: Path, count: int) -> list[str]:
    async with asyncio.timeout(30):
        while len(lines_of(path)) < count:
            await asyncio.sleep(0.01)
    return lines_of(path)


def note(path: Path, then: str) -> str:
    """A program that writes its pid on a line of its own, then does something."""
    return f"import os,signal,sys,time\nwith open({str(path)!r},'a') as f: print(os.getpid(), file=f)\n{then}"


def test_a_folder_is_locked_by_one_at_a_time_and_free_when_it_ends(tmp_path: Path) -> None:
    busy = pytest.raises(embedded.DataDirBusy, match=f"pid {os.getpid()}")
    with embedded.data_dir_lock(tmp_path), busy, embedded.data_dir_lock(tmp_path):
        pass
    with embedded.data_dir_lock(tmp_path):
        pass


def test_a_lock_that_a_killed_process_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1\n")
    with embedded.data_dir_lock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_an_admin_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    secret = embedded.admin_secret(settings)
    assert len(secret) >= 43  # 256 bits
    assert embedded.admin_secret(settings) == secret
    assert (tmp_path / "admin-key").stat().st_mode & 0o777 == 0o600


def test_an_admin_key_file_that_was_never_filled_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "admin-key").touch()
    assert len(embedded.admin_secret(Settings(data_dir=tmp_path))) >= 43


def test_a_child_that_ends_is_started_again_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "BACK_OFF_S", (0.01, 0.02, 0.04))
    started = tmp_path / "started"

    async def scenario() -> None:
        process = child(note(started, "sys.exit(3)"))
        watching = asyncio.create_task(process.supervise())
        await until_lines(started, 4)
        await process.stop(5)
        watching.cancel()

    asyncio.run(scenario())
    assert len(set(lines_of(started))) >= 4


def test_a_killed_child_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "BACK_OFF_S", (0.01,))
    started = tmp_path / "started"

    async def scenario() -> None:
        process = child(note(started, "time.sleep(60)"))
        watching = asyncio.create_task(process.supervise())
        await until_lines(started, 1)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await until_lines(started, 2)
        await process.stop(5)
        await watching

    asyncio.run(scenario())


def test_stopping_lets_a_child_finish_and_starts_no_other(tmp_path: Path) -> None:
    said = tmp_path / "said"
    finish = f"signal.signal(signal.SIGTERM, lambda *_: (open({str(said)!r},'a').write('bye\\n'), sys.exit(0)))"

    async def scenario() -> None:
        process = child(note(said, f"{finish}\nprint('x', file=open({str(said)!r},'a'))\ntime.sleep(60)"))
        watching = asyncio.create_task(process.supervise())
        await until_lines(said, 2)
        await process.stop(30)
        await watching

    asyncio.run(scenario())
    assert lines_of(said)[1:] == ["x", "bye"]


def test_a_child_that_does_not_listen_is_killed_when_the_time_is_over(tmp_path: Path) -> None:
    started = tmp_path / "started"
    deaf = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('x', file=open({str(started)!r},'a'))\ntime.sleep(60)"

    async def scenario() -> float:
        process = child(note(started, deaf))
        watching = asyncio.create_task(process.supervise())
        await until_lines(started, 2)
        began = time.monotonic()
        await process.stop(0.05)
        await watching
        return time.monotonic() - began

    assert asyncio.run(scenario()) < 30


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = [sys.executable, "-c", note(started, "time.sleep(60)")]
    supervise = f"asyncio.run(embedded.InstanceProcess({command!r}, os.environ).supervise())"
    parent = f"import asyncio, os\nfrom service import embedded\n{supervise}"
    process = subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.DEVNULL)
    [pid] = asyncio.run(until_lines(started, 1))
    child = psutil.Process(int(pid))
    process.kill()
    process.wait(30)
    # long before it ends by itself
    wait_until(lambda: are_gone([child]), "the end of the child, whose parent is gone", timeout_s=30)


def test_an_instance_is_told_where_the_service_is_and_how_many_cores_it_has() -> None:
    command = embedded.instance_command("http://127.0.0.1:1", 0, 3)
    assert command[1:3] == ["-m", "spark_jobs.instance"]
    assert ("--spark-master", "local[3]") in list(pairwise(command))
    assert "--watch-stdin" in command
