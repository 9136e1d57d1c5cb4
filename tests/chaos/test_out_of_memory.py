"""A slot that gets no more memory from the kernel: a real limit of its process, and batches that need more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.running import wait_until
from tests.chaos.conftest import Breakable
from tests.driving import ONCE_AN_HOUR, Record, caught_up, contents, deduplicate, expected, in_state, make_stream, post

pytestmark = pytest.mark.services

# 2.5 MB each: a chunk is decoded whole, and freed memory is in pieces, of which one has to be as large as that.
POSTS, RECORDS, TEXT = 24, 125, "x" * 20_000
ROOM_BYTES = 32 << 20


def the_slot(breakable: Breakable) -> psutil.Process:
    """The process of the one slot that there is."""
    replicas = breakable.running.data_dir / "replicas"
    wait_until(lambda: len(pulses(replicas)) == 1, "one slot")
    return psutil.Process(int(pulses(replicas)[0].split()[0]))


def pulses(replicas: Path) -> list[str]:
    """What the slots say of themselves: the process, and the slot once it has joined."""
    found = [file.read_text() for file in replicas.glob("*/pulses/*")]
    return [each for each in found if len(each.split()) == 2 and psutil.pid_exists(int(each.split()[0]))]


def bound(process: psutil.Process, room_bytes: int) -> None:
    """Have the kernel give it so much more memory, and no more."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [data] = re.findall(r"VmData:\s*(\d+) kB", status)
    _, most = process.rlimit(psutil.RLIMIT_DATA)
    process.rlimit(psutil.RLIMIT_DATA, (1024 * int(data) + room_bytes, most))


def large_records() -> list[Record]:
    return [
        {"key": f"k{n}", "value": {"id": str(n), "text": TEXT}, "timestamp": 1_700_000_000_000 + n}
        for n in range(POSTS * RECORDS)
    ]


def failures(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"task_failed"' in line]
    return [line for line in lines if "MemoryError" in str(line["exception"])]


def test_a_task_for_whose_batch_there_is_no_memory_goes_on_with_smaller_ones(breakable: Breakable) -> None:
    running, records = breakable.running, large_records()
    make_stream(running, "large", 1)
    running.call("POST", "/v1/jobs", json=deduplicate("once", "large", "large-out"))
    in_state(running, "once", "running")
    slot = the_slot(breakable)
    post(running, "large", records[:1])
    caught_up(running, "once")  # by now it has all that it needs for any batch
    running.call("POST", "/v1/jobs/once:pause")
    for start in range(1, len(records), RECORDS):
        post(running, "large", records[start : start + RECORDS])
    log = running.data_dir / "sparkless.log"
    assert failures(log) == []
    bound(slot, ROOM_BYTES)
    running.call("POST", "/v1/jobs/once:resume")
    assert caught_up(running, "once")["state"] == "running"
    assert contents(running, "large-out", 1) == expected(records, 1, **ONCE_AN_HOUR)
    assert failures(log)
    assert the_slot(breakable) == slot
