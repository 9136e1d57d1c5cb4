"""A buffer that shuts its job down when full: what is seen of it, and that it goes on with a larger one, nothing lost.

Each test has its own stream and jobs.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.running import Running, wait_until
from tests import naive
from tests.driving import Record, all_records, caught_up, in_state, make_stream, outputs, post

pytestmark = pytest.mark.spark

COUNT = {"n": {"fn": "count"}}


def final(**buffer: Any) -> Record:
    return {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {"when_full": "shut_down", **buffer}}


def count(**window: Any) -> Record:
    return {"op": "aggregate", "name": "n", "window": window or None, "aggregates": COUNT}


def start(running: Running, name: str, operators: list[Record], **more: Any) -> None:
    body = {"name": name, "source": name, "operators": operators, "sink": f"{name}-out", "parallelism": 1, **more}
    running.call("POST", "/v1/jobs", json=body)


def change(running: Running, name: str, body: Record) -> Record:
    tag = running.client.get(f"/v1/jobs/{name}").headers["ETag"]
    changed: Record = running.call("PATCH", f"/v1/jobs/{name}", json=body, headers={"If-Match": tag})
    return changed


def enlarge(running: Running, name: str, operator: str, **buffer: Any) -> None:
    """Give a failed job a larger buffer and let it go on."""
    change(running, name, {"buffers": {operator: buffer}})
    running.call("POST", f"/v1/jobs/{name}:restart")


def unbounded(operators: list[Record]) -> list[Record]:
    return [{**each, "buffer": {}} if each["op"] == "suppress" else each for each in operators]


def record(key: str, timestamp: int) -> Record:
    return {"key": key, "value": {}, "timestamp": timestamp}


def test_a_full_buffer_fails_the_job_with_figures_and_commits_nothing_of_the_batch(running: Running) -> None:
    operators = [count(type="tumbling", size_ms=10, grace_ms=0), final(max_records=4)]
    fits = [record(key, 1) for key in "abc"]
    too_much = [record("tick", 12), *(record(key, 13) for key in "ghijk")]  # a, b and c are final with its first
    make_stream(running, "figures", 1)
    start(running, "figures", operators)
    post(running, "figures", fits)
    before = caught_up(running, "figures")
    changelog = all_records(running, "figures-final-changelog", 0)
    post(running, "figures", too_much)
    failed = in_state(running, "figures", "failed")
    size = 4 * (1 + len('{"n":1}') + 16) + len("tick") + len('{"n":1}') + 16
    assert failed["error"] == {
        "code": "buffer_full",
        "detail": f"the buffer holds 5 records (at most 4) and {size} bytes (at most any number)",
        "operator": "final",
        "stream": "figures",
        "partition": 0,
        "offset": 3 + 4,
        "records": 5,
        "max_records": 4,
        "bytes": size,
        "max_bytes": None,
        "task": "0_0",
    }
    assert running.call("GET", "/v1/jobs/figures/errors")["items"][0]["error"] == failed["error"]
    assert [at["position"] for at in failed["positions"]] == [at["position"] for at in before["positions"]] == [3]
    assert outputs(running, "figures-out") == []
    assert all_records(running, "figures-final-changelog", 0) == changelog
    running.call("POST", "/v1/jobs/figures:restart")
    assert in_state(running, "figures", "failed")["error"] == failed["error"]
    enlarge(running, "figures", "final", max_records=6)
    assert caught_up(running, "figures")["state"] == "running"
    assert outputs(running, "figures-out") == naive.run(unbounded(operators), fits + too_much)


JOBS: dict[str, tuple[list[Record], str, str]] = {
    "sessions": ([count(type="session", gap_ms=40, grace_ms=60), final(max_records=3)], "final", "max_records"),
    "hops": (
        [count(type="hopping", size_ms=60, advance_ms=20, grace_ms=30), final(max_bytes=200)],
        "final",
        "max_bytes",
    ),
    "limit": (
        [
            count(),
            {
                "op": "suppress",
                "name": "later",
                "until": "time_limit",
                "time_limit_ms": 100,
                "buffer": {"max_records": 5, "when_full": "shut_down"},
            },
        ],
        "later",
        "max_records",
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_is_given_a_larger_buffer_whenever_it_is_full_loses_and_repeats_nothing(
    running: Running, name: str
) -> None:
    operators, operator, bound = JOBS[name]
    rng = random.Random(5)
    records = [record(f"k{rng.randrange(25)}", 3 * i + rng.randrange(50)) for i in range(400)]
    make_stream(running, name, 1)
    post(running, name, records)
    start(running, name, operators, max_batch_records=60)
    stops = []
    while (job := caught_up(running, name))["state"] == "failed":
        assert job["error"]["code"] == "buffer_full"
        stops.append(job["positions"][0]["position"])
        [now] = [each["buffer"][bound] for each in job["spec"]["operators"] if each["op"] == "suppress"]
        enlarge(running, name, operator, **{bound: 2 * now})
    assert len(stops) > 1, "it was full more than once"
    assert outputs(running, f"{name}-out") == naive.run(unbounded(operators), records)


def test_a_full_buffer_may_be_let_spill_to_disk_instead(running: Running) -> None:
    operators = [count(type="tumbling", size_ms=1_000, grace_ms=0), final(max_bytes=100)]
    records = [*(record(f"k{i}", i) for i in range(500)), record("tick", 1_000)]
    make_stream(running, "spilling", 1)
    post(running, "spilling", records)
    start(running, "spilling", operators)
    assert in_state(running, "spilling", "failed")["error"]["code"] == "buffer_full"
    enlarge(running, "spilling", "final", when_full="spill_to_disk")
    assert caught_up(running, "spilling")["state"] == "running"
    assert outputs(running, "spilling-out") == naive.run(unbounded(operators), records)


def test_a_changed_parallelism_is_what_runs_after_the_restart(running: Running) -> None:
    make_stream(running, "wider", 2)
    start(running, "wider", [])
    in_state(running, "wider", "running")
    assert len(_members(running)) == 1
    running.call("POST", "/v1/jobs/wider:stop")
    in_state(running, "wider", "stopped")
    change(running, "wider", {"parallelism": 2})
    running.call("POST", "/v1/jobs/wider:restart")
    wait_until(lambda: [len(member["tasks"]) for member in _members(running)] == [1, 1], "two slots, a task each")


def _members(running: Running) -> list[Record]:
    members: list[Record] = running.call("GET", "/v1/groups/wider")["members"]
    return members
