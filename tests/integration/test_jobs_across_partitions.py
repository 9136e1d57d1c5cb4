"""Jobs across partitions through the real API, its slot protocol and a real slot: equal to the oracle, however cut."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks.running import NDJSON
from spark_jobs.slot import Slot
from tests import naive, naive_repartition, web_log
from tests.driving import body_of
from tests.integration.test_spark_slot import World, end, turn_until
from tests.serving import serving

Record = dict[str, Any]
PARTITIONS = 4
HOUR = 3_600_000
BY_PATH = [{"op": "deduplicate", "name": "once", "id": "value->>'path'", "interval_ms": HOUR}]
VISITS_BY_LENGTH = [
    {"op": "select_key", "key": "value->>'path'"},
    {
        "op": "aggregate",
        "name": "visits",
        "window": {"type": "session", "gap_ms": HOUR // 6, "grace_ms": 0},
        "aggregates": {"n": {"fn": "count"}},
        "emit": "on_update",
    },
    {"op": "suppress", "name": "final", "until": "window_closes"},
    {"op": "select_key", "key": "(value->>'n')::bigint"},
    {
        "op": "aggregate",
        "name": "lengths",
        "window": {"type": "tumbling", "size_ms": 6 * HOUR, "grace_ms": HOUR},
        "aggregates": {"visits": {"fn": "count"}},
        "emit": "on_update",
    },
]
TREE = [
    {**BY_PATH[0], "after": "source"},
    {**VISITS_BY_LENGTH[0], "name": "paths", "after": "source"},
    *VISITS_BY_LENGTH[1:3],
    {"op": "filter", "name": "long", "where": "(value->>'n')::bigint > 1", "after": "final"},
]
FIELDS = ("key", "value", "timestamp", "window")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", lease_ms=600_000) as service, ExitStack() as opened:
        yield World(service, folder, opened)


def target_of(operators: list[Record], record: Record) -> int:
    """The task of the last stage that a result of one of these chains is of."""
    key = record["value"]["path"] if operators is BY_PATH else record["key"]
    return naive.partition_of(key, PARTITIONS)


def results(world: World, stream: str, operators: list[Record]) -> Mapping[tuple[int, int], list[Record]]:
    """By task and partition of the sink, in the order of its offsets."""
    found = defaultdict(list)
    for partition in range(PARTITIONS):
        where: dict[str, Any] | None = {"partition": partition, "from_offset": 0, "limit": 10_000}
        page = world.call("GET", f"/v1/streams/{stream}/records", params=where)
        assert page["at_end"]
        for record in page["records"]:
            shown = {name: record[name] for name in FIELDS}
            found[target_of(operators, record), partition].append(shown)
    return found


def expected(operators: list[Record], records: list[Record]) -> Mapping[tuple[int, int], list[Record]]:
    """The same by the oracle, where all of it is there when the job begins."""
    logs = [list(enumerate(log)) for log in naive.partitions_of(records, PARTITIONS)]
    found = defaultdict(list)
    for result in naive_repartition.run(operators, [logs], PARTITIONS):
        found[result.task, result.partition].append(result.record)
    return found


def has_work(slot: Slot) -> bool:
    """Whether a task was told to do something, and has not done all of it."""
    return any(task.is_due for task in slot._tasks.values())


@pytest.mark.parametrize(
    ("operators", "most", "count"),
    [
        pytest.param(BY_PATH, 1, 50, id="path-1"),
        pytest.param(BY_PATH, 100, 9_999, id="path-100"),
        pytest.param(BY_PATH, 500_000, 9_999, id="path-500000"),
        pytest.param(VISITS_BY_LENGTH, 50, 600, id="visits-50"),
    ],
)
def test_a_backlog_comes_out_in_the_order_of_time(
    world: World,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    operators: list[Record],
    most: int,
    count: int,
) -> None:
    monkeypatch.setattr(Slot, "_wait_ms", lambda _: 50)  # at the end a poll tells what is applied, and no more
    records, name = web_log.requests()[:count], request.node.callspec.id
    world.call("POST", "/v1/streams", json={"name": f"{name}-in", "partitions": PARTITIONS})
    world.call("POST", "/v1/streams", json={"name": f"{name}-out", "partitions": PARTITIONS})
    headers = {"Content-Type": NDJSON}
    world.call("POST", f"/v1/streams/{name}-in/records", content=body_of(records), headers=headers)
    job_id = world.job(name, source=f"{name}-in", operators=operators, max_batch_records=most)
    slot = world.slot(job_id)
    turn_until(slot, lambda: not has_work(slot) and world.state(name)["caught_up"], turns=2_000)
    end(slot)
    found = results(world, f"{name}-out", operators)
    assert found == expected(operators, records)
    if operators is BY_PATH and count == 9_999:
        assert sum(map(len, found.values())) == 5_479


def grouped(outputs: Iterable[Record], stream: str) -> list[Any]:
    """What a sink got, by partition, in any order: simulations answer in that of causes."""
    found = [
        (each["partition"], *(json.dumps(each[name]) for name in FIELDS))
        for each in outputs
        if each["stream"] == stream
    ]
    return sorted(found)


def test_each_branch_of_a_tree_gives_what_it_gives_alone_and_what_simulate_gives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task writes two repartition streams, three sub-topologies sinks, one of them two."""
    monkeypatch.setattr(Slot, "_wait_ms", lambda _: 50)
    records = web_log.requests()[:600]
    placed = [{**each, "partition": naive.partition_of(each["key"], PARTITIONS)} for each in records]
    sinks = {"tree-once": "once", "tree-visits": "final", "tree-long": "long", "tree-all": "source"}
    for stream in ("tree-in", *sinks):
        world.call("POST", "/v1/streams", json={"name": stream, "partitions": PARTITIONS})
    world.call("POST", "/v1/streams/tree-in/records", content=body_of(records), headers={"Content-Type": NDJSON})
    job = {"source": "tree-in", "operators": TREE, "sink": [{"stream": to, "after": at} for to, at in sinks.items()]}
    slot = world.slot(world.job("tree", **job, max_batch_records=100))
    turn_until(slot, lambda: not has_work(slot) and world.state("tree")["caught_up"], turns=2_000)
    end(slot)
    simulated = world.call("POST", "/v1/jobs:simulate", json={"job": {"name": "tree", **job}, "records": placed})
    for stream in sinks:
        found = [
            {**record, "stream": stream, "partition": partition}
            for (_, partition), results_of in results(world, stream, BY_PATH if stream == "tree-once" else TREE).items()
            for record in results_of
        ]
        assert grouped(found, stream) == grouped(simulated["outputs"], stream)
        assert found
    for stream, operators in {"tree-once": BY_PATH, "tree-visits": VISITS_BY_LENGTH[:3], "tree-all": []}.items():
        assert results(world, stream, operators) == expected(operators, records)
