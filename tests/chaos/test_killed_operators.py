"""SIGKILL in the middle of every stateful operator at once: what comes out is what comes out of an undisturbed run.

One service, one job an operator, each with a stream of its own. The cases are those of the conformance families, so
what has to come out is what Kafka Streams gives (distinct has no such cases: there it is the naive twin's).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.running import Running
from tests import naive
from tests.chaos.conftest import Breakable
from tests.conformance.given import promised, sample
from tests.driving import Record, caught_up, make_stream, outputs, post

pytestmark = pytest.mark.services

PARTS = (
    "deduplicate_by_key_value",
    "tumbling-on-close",
    "tumbling-suppress-limit",
    "hopping-suppress-final",
    "session-updates",
    "session-on-close",
    "session-suppress-final",
    "sliding-updates",
)
MAX_RECORDS = 100  # of a case
IN_A_SLOT = ("segment.before_write", "segment.after_write", "replay.middle")
IN_THE_API = ("commit.before", "commit.after")
Case = dict[str, Any]


def _case(given: Case) -> Case:
    return {"operators": given["job"]["operators"], "records": given["records"], "outputs": promised(given)}


def _distinct(window: Record) -> Case:
    operators = [{"op": "distinct", "name": "first", "window": {**window, "grace_ms": 40}}]
    rng = random.Random(6)
    records = [
        {"key": f"k{rng.randrange(6)}", "value": {"v": i}, "timestamp": 7 * i + rng.randrange(60)} for i in range(80)
    ]
    return {"operators": operators, "records": records, "outputs": naive.run(operators, records)}


SAMPLE = sample(MAX_RECORDS)
CASES: dict[str, Case] = {part.replace("-", "_"): _case(SAMPLE[part]) for part in PARTS} | {
    "distinct_session": _distinct({"type": "session", "gap_ms": 25}),
}


class Side:
    """All jobs side by side, fed in steps by a client that repeats what was not answered, under the same key."""

    def __init__(self, breakable: Breakable, steps: int) -> None:
        self.breakable, self.running, self.restarts = breakable, breakable.running, 0
        self._left = {name: enumerate(_in_steps(case["records"], steps)) for name, case in CASES.items()}
        for name, case in CASES.items():
            make_stream(self.running, name, 1)
            body = {"name": name, "source": name, "sink": f"{name}-out", "operators": case["operators"]}
            self.running.call("POST", "/v1/jobs", json={**body, "parallelism": 1, "max_batch_records": 7})

    def feed(self) -> None:
        """The next step of every job's records."""
        for name, steps in self._left.items():
            number, records = next(steps)
            while not self._is_posted(name, records, f"{name}-{number}"):
                self.restart()

    def _is_posted(self, name: str, records: list[Record], key: str) -> bool:
        try:
            post(self.running, name, records, key=key)
        except httpx.TransportError:
            return False
        return True

    def restart(self) -> None:
        """Start the service again, which was killed."""
        self.breakable.restart_when_dead()
        self.restarts += 1

    def settle(self) -> None:
        """Wait until every job has read and replayed all there is."""
        for name in CASES:
            assert caught_up(self.running, name)["state"] == "running"

    def found(self) -> dict[str, list[Record]]:
        assert all(next(steps, None) is None for steps in self._left.values()), "all records were posted"
        return {name: outputs(self.running, f"{name}-out") for name in CASES}


def _in_steps(records: list[Record], steps: int) -> Iterator[list[Record]]:
    size = -(-len(records) // steps)
    return (records[start : start + size] for start in range(0, len(records), size))


EXPECTED = {name: case["outputs"] for name, case in CASES.items()}


def test_operators_whose_machine_lost_its_disk_go_on_from_their_changelogs(breakable: Breakable) -> None:
    jobs = Side(breakable, 2)
    jobs.feed()
    jobs.settle()
    before = {name: outputs(breakable.running, f"{name}-out") for name in CASES}
    assert all(before[name] != EXPECTED[name] for name in CASES), "every job has something left to say"
    breakable.kill_instance()
    _lose(breakable.running.data_dir / "replicas")
    breakable.start_instance()
    jobs.feed()
    jobs.settle()
    assert jobs.found() == EXPECTED


def test_a_kill_at_each_point_in_one_run_of_all_operators_changes_nothing(breakable: Breakable) -> None:
    jobs = Side(breakable, len(IN_A_SLOT + IN_THE_API))
    rng = random.Random(7)
    for point in IN_A_SLOT + IN_THE_API:
        jobs.settle()
        restarts = jobs.restarts
        breakable.arm(point, rng.randrange(8))
        jobs.feed()
        breakable.wait_for_fault(point)
        if point in IN_THE_API and jobs.restarts == restarts:
            jobs.restart()
    jobs.settle()
    assert jobs.found() == EXPECTED


SPILT = [
    {
        "op": "aggregate",
        "name": "latest",
        "window": {"type": "tumbling", "size_ms": 1_000_000},
        "aggregates": {"v": {"fn": "last", "of": "value->>'v'"}},
    },
    {
        "op": "suppress",
        "name": "final",
        "until": "window_closes",
        "buffer": {"max_bytes": 4_000_000, "when_full": "spill_to_disk"},
    },
]


@pytest.mark.parametrize(("point", "passes"), [("replay.middle", 2), ("replay.middle", 3), ("commit.after", 1)])
def test_a_kill_between_the_steps_in_which_a_spilt_buffer_leaves_changes_nothing(
    breakable: Breakable, point: str, passes: int
) -> None:
    """The kill comes with nothing left to read: the next slot has to find by itself that there is more to say.

    What closes the window is replayed by two stores, each step after it by one.
    """
    running = breakable.running
    records = [{"key": f"k{i:05}", "value": {"v": f"{i:05}" * 500}, "timestamp": i} for i in range(5_000)]
    make_stream(running, "spilt", 1)
    body = {"name": "spilt", "source": "spilt", "sink": "spilt-out", "operators": SPILT, "max_batch_records": 1_000}
    running.call("POST", "/v1/jobs", json=body)
    post(running, "spilt", records)
    caught_up(running, "spilt")
    assert outputs(running, "spilt-out") == []
    before = _version(running)
    breakable.arm(point, passes)
    post(running, "spilt", [{"key": "tick", "value": {}, "timestamp": 1_000_000}])
    breakable.wait_for_fault(point)
    if point in IN_THE_API:
        breakable.restart_when_dead()
    assert caught_up(running, "spilt")["state"] == "running"
    window = {"start": 0, "end": 1_000_000}
    found = outputs(running, "spilt-out")
    assert found == [{**record, "window": window} for record in records]
    assert _version(running) - before > 3, "it took several commits"


def _version(running: Running) -> int:
    [task] = running.call("GET", "/v1/jobs/spilt/tasks")["items"]
    version: int = task["version"]
    return version


def _lose(replicas: Path) -> None:
    files = [path for path in replicas.rglob("data.mdb") if path.stat().st_size]
    assert len(files) > len(CASES), "there was something to lose: a replica of each store"
    shutil.rmtree(replicas)
