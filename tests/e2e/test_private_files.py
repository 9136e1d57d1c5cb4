"""What `millrace up` leaves on disk is for its own user alone, whatever the umask it was started with."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from benchmarks.running import Running
from tests.driving import caught_up, deduplicate, make_stream, post, some_records

pytestmark = pytest.mark.spark


def open_to_others(root: Path) -> list[str]:
    found = [root, *root.rglob("*")]
    return [f"{path} {stat.filemode(path.lstat().st_mode)}" for path in found if path.lstat().st_mode & 0o077]


def test_nobody_else_reads_data_replicas_or_keys(running: Running, replicas: Path) -> None:
    make_stream(running, "private", 2)
    running.call("POST", "/v1/jobs", json=deduplicate("private", "private", "private-once"))
    post(running, "private", some_records(100))
    caught_up(running, "private")
    assert list(replicas.rglob("data.mdb"))
    assert open_to_others(running.data_dir) + open_to_others(replicas) == []
