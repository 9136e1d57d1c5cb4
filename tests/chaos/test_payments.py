"""The example of the Python client: payments are booked once, whoever is killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.running import PATIENCE_S, wait_until
from tests.chaos.conftest import Breakable

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "clients" / "python" / "examples" / "payments.py"
PAYMENTS = 1_500
KILLS = 5

pytestmark = pytest.mark.services


def webhooks() -> list[dict[str, object]]:
    """Each payment comes once, every second one again, in any order."""
    payments = [{"id": f"p{n}", "account": f"a{n % 40}", "cents": n} for n in range(PAYMENTS)]
    sent = payments + payments[::2]
    random.Random(13).shuffle(sent)
    return sent


def started(breakable: Breakable, verb: str, path: Path) -> subprocess.Popen[bytes]:
    key = (breakable.running.data_dir / "admin-key").read_text().strip()
    more = {"MILLRACE_URL": breakable.running.url, "MILLRACE_API_KEY": key, "PYTHONPATH": str(EXAMPLE.parents[1])}
    return subprocess.Popen([sys.executable, str(EXAMPLE), verb, str(path)], env={**os.environ, **more})


def booked(database: Path) -> list[tuple[str, int]]:
    if not database.exists():
        return []
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        is_there = db.execute("select 1 from sqlite_master where name = 'bookings'").fetchone()
        return db.execute("select payment, cents from bookings").fetchall() if is_there else []


def test_each_payment_is_booked_once_whoever_is_killed(breakable: Breakable, tmp_path: Path) -> None:
    """Eight threads post; who books is killed five times, the service once."""
    assert len(EXAMPLE.read_text().splitlines()) < 60
    sent, file, database = webhooks(), tmp_path / "webhooks.ndjson", tmp_path / "bookings.db"
    file.write_text("".join(f"{json.dumps(webhook)}\n" for webhook in sent))
    processes = [started(breakable, "post", file)]
    try:
        for kill in range(KILLS + 1):
            processes.append(started(breakable, "book", database))
            enough = PAYMENTS * (kill + 1) // (KILLS + 1)
            wait_until(lambda enough=enough: len(booked(database)) >= enough, PATIENCE_S, f"{enough} bookings")
            if kill == KILLS // 2:
                breakable.running.process.kill()
                breakable.restart_when_dead(is_there_again=True)
            if kill < KILLS:
                processes[-1].kill()
                processes[-1].wait()
        assert processes[0].wait(PATIENCE_S) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert breakable.running.call("GET", "/v1/streams/payments")["records"] == len(sent)  # attempts were many
    assert sorted(booked(database)) == sorted((f"p{n}", n) for n in range(PAYMENTS))
