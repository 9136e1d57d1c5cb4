"""Simulations in processes of their own: what one takes is bounded, and is never the API's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest
import uvloop

from benchmarks.running import Running
from service.api.simulations import SMALL_SIMULATION_BYTES
from service.problems import ProblemError, Refusal
from service.simulate import processes
from service.simulate.child import Limits
from service.simulate.processes import BoundedProcesses, Simulations
from tests.forkserver import ForkServer

T = TypeVar("T")
TIGHT = Limits(memory_bytes=128 << 20, cpu_s=1, file_bytes=1 << 20)
ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 10}
SMALL = {"job": {"operators": [ONCE]}, "records": [{"key": "a", "timestamp": 1}, {"key": "a", "timestamp": 2}]}


def hopping(records: int, size: int, hops: int = 60) -> dict[str, Any]:
    """Records whose value, of that size, comes out for each window of `hops`."""
    window = {"type": "hopping", "size_ms": 1000 * hops, "advance_ms": 1000}
    last = {"op": "aggregate", "name": "agg", "window": window, "aggregates": {"last": {"fn": "last", "of": "value"}}}
    given = [{"key": f"k{i % 7}", "value": "x" * size, "timestamp": 1000 * (hops + i)} for i in range(records)]
    return {"job": {"operators": [last]}, "records": given}


class Simulating:
    """Simulations on an event loop of their own."""

    def __init__(self, limits: Limits) -> None:
        self.loop = uvloop.new_event_loop()
        self.not_mine = set(psutil.Process().children())
        self.processes = BoundedProcesses(limits)
        self.simulations = Simulations(self.processes)

    def do(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)

    def run(self, body: dict[str, Any]) -> Any:
        found = self.do(self.simulations.run(json.dumps(body).encode()))
        return found if isinstance(found, Refusal) else json.loads(found)

    def forkserver(self) -> psutil.Process:
        mine = (each for each in psutil.Process().children() if each not in self.not_mine)
        return next(each for each in mine if "service.simulate.forkserver" in each.cmdline())

    def close(self) -> None:
        self.do(self.processes.close())
        self.loop.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where these simulations, and no others of this machine, keep what they keep meanwhile."""
    return tmp_path_factory.mktemp("simulations")


@pytest.fixture(scope="module")
def tight(folder: Path) -> Iterator[Simulating]:
    """Simulations that may take little."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TMPDIR", str(folder))
        simulating = Simulating(TIGHT)
        yield simulating
        simulating.close()


def is_well(simulating: Simulating) -> bool:
    """Whether the next one is answered."""
    return [each["timestamp"] for each in simulating.run(SMALL)["outputs"]] == [1]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(hopping(1_600, 600), id="memory"),
        pytest.param(hopping(40, 60_000, hops=1), id="disk"),
        pytest.param({**hopping(4_000, 8, hops=1), "batch_records": 1}, id="processor"),
    ],
)
def test_one_that_takes_too_much_is_ended_and_the_next_is_answered(tight: Simulating, body: dict[str, Any]) -> None:
    refused = tight.run(body)
    assert (refused.status, refused.code) == (422, "simulation_too_large")
    assert "it took more than 128 MiB of memory, 1 s of a processor or 1 MiB of disk" in refused.detail
    assert is_well(tight)


def test_nothing_is_left_of_it(tight: Simulating, folder: Path) -> None:
    tight.run(hopping(1_600, 600))
    assert is_well(tight)
    assert tight.forkserver().children() == []
    assert list(folder.iterdir()) == []


def test_few_run_at_once_and_the_others_are_refused(tight: Simulating, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_well(tight)
    monkeypatch.setattr(processes, "WAIT_S", 0.05)
    parent = tight.forkserver()

    async def one_more_than_may() -> list[Any]:
        bodies = [json.dumps(SMALL).encode()] * (processes.AT_ONCE + 1)
        running = [asyncio.create_task(tight.simulations.run(body)) for body in bodies]
        refused, others = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        parent.resume()
        return [*(each.exception() for each in refused), *await asyncio.gather(*others)]

    parent.suspend()
    refused, *answers = tight.do(one_more_than_may())
    assert isinstance(refused, ProblemError)
    assert (refused.status_code, refused.code) == (429, "simulations_busy")
    assert refused.headers
    assert int(refused.headers["Retry-After"]) > 0
    assert [isinstance(each, bytes) for each in answers] == [True] * processes.AT_ONCE


def test_their_parent_is_started_again_when_it_was_killed(tight: Simulating) -> None:
    assert is_well(tight)
    first = tight.forkserver()
    first.kill()
    first.wait(30)
    assert is_well(tight)


def test_the_parent_knows_no_key_and_ends_with_the_service() -> None:
    simulating = Simulating(Limits())
    assert is_well(simulating)
    parent = simulating.forkserver()
    assert not [name for name in parent.environ() if name.startswith("MILLRACE_")]
    simulating.close()
    assert not parent.is_running()


# ---------------------------------------------------------------- over HTTP


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("service") / "data", instances=0, popen=forks.popen) as running:
        running.call("POST", "/v1/jobs:simulate", json=SMALL)
        yield running


def client(running: Running, role: str) -> httpx.Client:
    key = running.call("POST", "/v1/tokens", json={"role": role})["key"]
    return httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {key}"}, timeout=120)


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def test_a_simulation_takes_the_memory_of_another_process(running: Running) -> None:
    """A million characters of values come out sixty times: the answer itself passes through the API, no more."""
    before = peak_bytes(running.process.pid)
    with client(running, "writer") as writer:
        answer = writer.post("/v1/jobs:simulate", json=hopping(1_000, 600))
    assert answer.status_code == 200
    assert len(answer.json()["outputs"]) == 60_000
    assert peak_bytes(running.process.pid) - before < 4 * len(answer.content)


def test_what_is_large_needs_the_role_writer(running: Running) -> None:
    room = SMALL_SIMULATION_BYTES - len(json.dumps({**SMALL, "records": [{"value": "", "timestamp": 1}]}))
    just, more = ({**SMALL, "records": [{"value": "x" * (room + n), "timestamp": 1}]} for n in (0, 1))
    with client(running, "reader") as reader, client(running, "writer") as writer:
        for body, status in ((just, 200), (more, 403)):
            content, headers = json.dumps(body), {"Content-Type": "application/json"}
            assert reader.post("/v1/jobs:simulate", content=content, headers=headers).status_code == status
            assert writer.post("/v1/jobs:simulate", content=content, headers=headers).status_code == 200
        refused = reader.post("/v1/jobs:simulate", content=json.dumps(more), headers=headers).json()
    assert refused["code"] == "forbidden"
    assert "role writer" in refused["detail"]
