"""The examples of the Python client: payments are booked once, and have a receipt or more, whoever is killed."""

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
EXAMPLES = ROOT / "clients" / "python" / "examples"
PAYMENTS = 1_500
KILLS = 5

pytestmark = pytest.mark.services


def webhooks() -> list[dict[str, object]]:
    """Each payment comes once, every second one again, in any order."""
    payments = [{"id": f"p{n}", "account": f"a{n % 40}", "cents": n} for n in range(PAYMENTS)]
    sent = payments + payments[::2]
    random.Random(13).shuffle(sent)
    return sent


def started(breakable: Breakable, example: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    key = (breakable.running.data_dir / "admin-key").read_text().strip()
    more = {"MILLRACE_URL": breakable.running.url, "MILLRACE_API_KEY": key, "PYTHONPATH": str(EXAMPLES.parent)}
    return subprocess.Popen([sys.executable, EXAMPLES / example, *arguments], env={**os.environ, **more})


def booked(database: Path) -> list[tuple[str, int]]:
    if not database.exists():
        return []
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        is_there = db.execute("select 1 from sqlite_master where name = 'bookings'").fetchone()
        return db.execute("select payment, cents from bookings").fetchall() if is_there else []


def receipts(file: Path) -> list[tuple[str, int]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [(payment, int(cents)) for payment, cents in map(str.split, lines)]


def test_payments_are_booked_once_and_have_a_receipt_or_more_whoever_is_killed(
    breakable: Breakable, tmp_path: Path
) -> None:
    """Eight threads post; who books and who sends receipts are killed five times, the service once."""
    for example in EXAMPLES.iterdir():
        assert len(example.read_text().splitlines()) < 60
    sent, file = webhooks(), tmp_path / "webhooks.ndjson"
    database, sent_receipts = tmp_path / "bookings.db", tmp_path / "receipts.txt"
    file.write_text("".join(f"{json.dumps(webhook)}\n" for webhook in sent))
    processes = [started(breakable, "payments.py", "post", file)]
    try:
        for kill in range(KILLS + 1):
            consumers = [
                started(breakable, "payments.py", "book", database),
                started(breakable, "receipts.py", sent_receipts, "receipts-1"),
            ]
            processes += consumers
            enough = PAYMENTS * (kill + 1) // (KILLS + 1)
            wait_until(
                lambda enough=enough: len(booked(database)) >= enough and len(set(receipts(sent_receipts))) >= enough,
                f"{enough} bookings and receipts",
            )
            if kill == KILLS // 2:
                breakable.running.process.kill()
                breakable.restart_when_dead(is_there_again=True)
            if kill < KILLS:
                for consumer in consumers:
                    consumer.kill()
                    consumer.wait()
        assert processes[0].wait(PATIENCE_S) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert breakable.running.call("GET", "/v1/streams/payments")["records"] == len(sent)  # attempts were many
    payments = [(f"p{n}", n) for n in range(PAYMENTS)]
    assert sorted(booked(database)) == sorted(payments)
    assert set(receipts(sent_receipts)) == set(payments)
