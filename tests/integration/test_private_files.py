"""What `millrace up` leaves on disk is for its own user alone, whatever the umask it was started with."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.running import Running
from tests.driving import caught_up, deduplicate, make_stream, post, some_records

pytestmark = pytest.mark.spark


def open_to_others(root: Path) -> list[str]:
    found = [root, *root.rglob("*")]
    return [f"{path} {stat.filemode(path.lstat().st_mode)}" for path in found if path.lstat().st_mode & 0o077]


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """Processes are started as a shell would: what they make is for all to read unless they see to it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_nobody_else_reads_data_replicas_or_keys(tmp_path: Path) -> None:
    data, replicas = tmp_path / "data", tmp_path / "elsewhere" / "replicas"
    data.mkdir()
    with Running(data, environment={"MILLRACE_REPLICA_DIR": str(replicas)}) as running:
        make_stream(running, "clicks", 2)
        running.call("POST", "/v1/jobs", json=deduplicate("once", "clicks", "out"))
        post(running, "clicks", some_records(100))
        caught_up(running, "once")
        assert list(replicas.rglob("data.mdb"))
        assert open_to_others(data) + open_to_others(replicas) == []
