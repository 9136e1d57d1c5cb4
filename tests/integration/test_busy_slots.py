"""A slot in a batch that takes longer than its lease keeps it, up to a limit; beyond, others take its tasks over."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.running import PATIENCE_S, wait_until
from service.protocol import HeartbeatRequest
from service.streams.operators import installed_aggregators
from spark_jobs.client import Gone
from spark_jobs.slot import Slot
from tests.installing import install
from tests.integration.test_spark_slot import World, turn_until
from tests.serving import serving

LEASE_MS, MAX_BUSY_MS, BATCH_S = 3_000, 6_000, 5.0
SLOW = """
import threading

begun, may_end = threading.Event(), threading.Event()
wait_s = 0.0


class Slow:
    def initializer(self):
        return 0

    def aggregator(self, key, value, aggregate):
        begun.set()
        may_end.wait(wait_s)
        return aggregate + 1
"""
COUNTING = {"x": {"fn": "custom", "aggregator": "slow", "of": "(value->>'id')::bigint"}}
JOB: dict[str, Any] = {"operators": [{"op": "aggregate", "name": "agg", "window": None, "aggregates": COUNTING}]}


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The installed module whose aggregator waits."""
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", "slow-ones", "1.0", SLOW, installed_aggregators.GROUP, {"slow": "slow_ones:Slow"})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    installed_aggregators.aggregator_named.cache_clear()
    __import__("slow_ones")
    yield sys.modules["slow_ones"]
    sys.modules["slow_ones"].may_end.set()
    installed_aggregators.aggregator_named.cache_clear()
    sys.modules.pop("slow_ones")


@pytest.fixture
def world(slow: ModuleType, tmp_path: Path, migrated_sqlite: bytes) -> Iterator[World]:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    database, how = f"sqlite:///{tmp_path}/catalog.db", {"lease_ms": LEASE_MS, "max_busy_ms": MAX_BUSY_MS}
    with serving(tmp_path, database, **how) as service, ExitStack() as opened:
        world = World(service, tmp_path, opened)
        ended = threading.Event()
        heart = threading.Thread(target=_beat, args=(world, ended))
        heart.start()
        yield world
        ended.set()
        heart.join()


def _beat(world: World, ended: threading.Event) -> None:
    """As the instance's driver: only the slot is slow."""
    while not ended.wait(LEASE_MS / 5_000):
        world.api.heartbeat(world.member.instance_id, HeartbeatRequest("1"))


def out_of(world: World) -> list[Any]:
    records = world.call("GET", "/v1/streams/job-out/records?partition=0&from_offset=0")["records"]
    return [record["value"] for record in records]


def turn_later(slot: Slot) -> tuple[threading.Thread, list[Gone]]:
    """Turn until the slot is gone, or nothing is left to do."""
    gone: list[Gone] = []

    def turn() -> None:
        try:
            for _ in range(30):
                slot.turn()
        except Gone as error:
            gone.append(error)

    thread = threading.Thread(target=turn)
    thread.start()
    return thread, gone


def test_a_batch_of_five_seconds_keeps_a_lease_of_three(world: World, slow: ModuleType) -> None:
    slow.wait_s = BATCH_S
    slot = world.slot(world.job(**JOB))
    world.post(7)
    began_s = time.monotonic()
    turn_until(slot, lambda: slow.begun.is_set() and out_of(world) == [{"x": 1}])
    assert time.monotonic() - began_s >= BATCH_S
    assert [each["reason"] for each in world.call("GET", "/v1/groups/job/rebalances")["items"]] == ["a slot joined"]


def test_a_loop_that_hangs_is_replaced_and_commits_nothing_more(world: World, slow: ModuleType) -> None:
    slow.wait_s = PATIENCE_S
    job = world.job(**JOB)
    hanging = world.slot(job)
    world.post(7)
    thread, gone = turn_later(hanging)
    assert slow.begun.wait(PATIENCE_S)
    wait_until(lambda: not world.call("GET", "/v1/groups/job")["members"], "the eviction")
    other = world.slot(job, index=1)
    slow.may_end.set()
    thread.join()
    assert len(gone) == 1
    turn_until(other, lambda: out_of(world) == [{"x": 1}])
