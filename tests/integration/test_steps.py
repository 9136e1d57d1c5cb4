"""What is too much at once goes through a real slot and catalog in steps (ADR 7), and a slot that dies between two of
them is followed by one that goes on: the output is that of one step.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.streams.operators import aggregate, grouping, suppress
from spark_jobs import job as slot_jobs
from spark_jobs import work
from spark_jobs.slot import Slot
from spark_jobs.work import Run, read_batch
from tests.integration.test_spark_slot import World, end, turn_until
from tests.naive import Record
from tests.serving import serving

TUMBLING = {"type": "tumbling", "size_ms": 10, "grace_ms": 0}
COUNT = {"n": {"fn": "count"}}
CLOSING = {"op": "aggregate", "name": "closing", "window": TUMBLING, "aggregates": COUNT, "emit": "on_window_close"}
HOPPING = {
    "op": "aggregate",
    "name": "hopping",
    "window": {"type": "hopping", "size_ms": 10, "advance_ms": 2, "grace_ms": 0},
    "aggregates": COUNT,
}
HOLD = {"op": "suppress", "name": "hold", "until": "time_limit", "time_limit_ms": 100}
OPENED = [{"key": f"k{i}", "value": {}, "timestamp": i % 20} for i in range(12)]
JUMP = [{"key": "z", "value": {}, "timestamp": 1000}, {"key": "z", "value": {}, "timestamp": 1001}]


@pytest.fixture
def world(tmp_path: Path, migrated_sqlite: bytes) -> Iterator[World]:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db", lease_ms=60_000) as service, ExitStack() as opened:
        world = World(service, tmp_path, opened)
        world.call("POST", "/v1/streams", json={"name": "one", "partitions": 1})
        yield world


@pytest.fixture(autouse=True)
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One window, one entry, six events."""
    monkeypatch.setattr(aggregate, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(grouping, "MAX_EVENTS", 6)
    for bound in ("_LEAST_AT_ONCE", "_MOST_AT_ONCE"):
        monkeypatch.setattr(suppress, bound, 1)


def post(world: World, records: list[Record]) -> None:
    world.call("POST", "/v1/streams/one/records", json={"records": records})


def out(world: World) -> list[Record]:
    where = {"partition": 0, "from_offset": 0, "limit": 1000}
    records: list[Record] = world.call("GET", "/v1/streams/job-out/records", params=where)["records"]
    return [{name: each[name] for name in ("key", "value", "timestamp", "window")} for each in records]


def tasks(world: World) -> list[Record]:
    found: list[Record] = world.call("GET", "/v1/jobs/job/tasks")["items"]
    return found


def simulated(world: World, operators: list[Record], records: list[Record], **more: Any) -> list[Record]:
    """What one task says to the records."""
    job = {"name": "job", "source": "one", "operators": operators, "sink": "job-out"}
    found: list[Record] = world.call("POST", "/v1/jobs:simulate", json={"job": job, "records": records, **more})[
        "outputs"
    ]
    return [{name: each[name] for name in ("key", "value", "timestamp", "window")} for each in found]


def succeeded(world: World, slot: Slot, job: str) -> Slot:
    """Another slot, after this one died and took its replicas along."""
    end(slot)
    shutil.rmtree(world.folder / "replicas")
    return world.slot(job)


def test_what_one_record_closes_comes_out_commit_by_commit_whoever_dies(world: World) -> None:
    job = world.job(operators=[CLOSING], source="one")
    slot = world.slot(job)
    post(world, OPENED + JUMP)
    sizes = [0]
    for _ in range(60):
        slot.turn()
        sizes.append(len(out(world)))
        if sizes[-1] not in (sizes[-2], 12):
            slot = succeeded(world, slot, job)
        if sizes[-1] == 12:
            break
    assert out(world) == simulated(world, [CLOSING], OPENED + JUMP)
    # the last commit is that of a batch, which closes what it opened itself, too
    assert {then - before for before, then in pairwise(sizes[:-1])} == {0, 1}
    assert sizes[-2] == 10
    assert sizes[-1] == 12


def test_a_batch_of_many_events_is_committed_in_parts(world: World) -> None:
    job = world.job(operators=[HOPPING], source="one")
    slot = world.slot(job)
    post(world, OPENED)
    expected = simulated(world, [HOPPING], OPENED)
    seen = set()
    for _ in range(60):
        slot.turn()
        seen.add(len(out(world)))
        if seen >= {len(expected)}:
            break
        slot = succeeded(world, slot, job)
    assert out(world) == expected
    assert len(seen) > 5


def test_what_waits_of_a_record_can_be_skipped_where_it_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record closes five windows, whose results are summed one at a time; the fourth passes 64 bits."""
    monkeypatch.setattr(aggregate, "MOST_AT_ONCE", 100)
    three = 3_000_000_000_000_000_000
    behind = {**HOPPING, "name": "behind", "aggregates": {"s": {"fn": "sum", "of": f"(value->>'n')::bigint * {three}"}}}
    job = world.job(operators=[CLOSING, {"op": "select_key", "key": "'all'"}, behind], source="one")
    slot = world.slot(job)
    post(world, [{"key": f"k{i}", "value": {}, "timestamp": 21} for i in range(5)] + JUMP[:1])
    turn_until(slot, lambda: world.call("GET", "/v1/jobs/job")["state"] == "failed")
    failed = world.call("GET", "/v1/jobs/job")
    assert [failed["error"][name] for name in ("code", "operator", "offset")] == ["integer_overflow", "behind", 5]
    assert failed["positions"][0]["position"] == 6
    world.call("POST", "/v1/jobs/job:skip", json={"partition": 0, "offset": 5})
    world.call("POST", "/v1/jobs/job:restart")
    end(slot)
    slot = world.slot(job)
    post(world, [{"key": "k0", "value": {}, "timestamp": 2000}])
    turn_until(slot, lambda: len(out(world)) > 3 * 5)
    assert world.call("GET", "/v1/jobs/job")["state"] == "running"
    sums = [each["value"]["s"] for each in out(world) if each["window"]["start"] == 20]
    assert sums == [three, 2 * three, 3 * three]


def test_after_a_cut_no_more_is_read_than_may_be_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "LEAST_AFTER_CUT", 1)
    read: list[int] = []

    def reading(storage: Any, assigned: Any, run: Run) -> Any:
        read.extend(given.end - given.start for given in run.ranges)
        return read_batch(storage, assigned, run)

    monkeypatch.setattr(slot_jobs, "read_batch", reading)
    slot = world.slot(world.job(operators=[HOPPING], source="one"))
    post(world, OPENED)
    turn_until(slot, lambda: all(at["lag"] == 0 for task in tasks(world) for at in task["positions"]))
    assert read[0] == len(OPENED)
    assert max(read[1:]) <= 8
    assert out(world) == simulated(world, [HOPPING], OPENED)


def test_a_flush_waits_for_what_leaves_in_steps_before_it_goes_on(world: World) -> None:
    """Else the aggregate's time would pass the records that suppress has still to let go."""
    operators = [HOLD, CLOSING]
    job = world.job(operators=operators, source="one")
    slot = world.slot(job)
    post(world, OPENED)
    turn_until(slot, lambda: all(at["lag"] == 0 for task in tasks(world) for at in task["positions"]))
    world.call("POST", "/v1/jobs/job:flush")
    for _ in range(60):
        slot.turn()
        if len(out(world)) == len(OPENED):
            break
        slot = succeeded(world, slot, job)
    assert out(world) == simulated(world, operators, OPENED, advance_to=1000)
    assert world.call("GET", "/v1/jobs/job/dropped")["items"] == []
