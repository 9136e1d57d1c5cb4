"""What the dashboard costs: what its overview asks for at first, and many of it open while records come.

`python -m benchmarks.dashboard` starts a service on SQLite, without an instance, whose catalog has JOBS jobs of
PARTITIONS tasks and STREAMS streams. Figures are processor time of the API's process: a busy machine changes them
little. Open dashboards are followers of `/v1/events` in this process; records come at POSTS a second, with them and
without.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from benchmarks.report import Measurement
from benchmarks.running import Running, wait_until

JOBS, PARTITIONS, STREAMS = 50, 20, 200
OPEN: Final = 20
POSTS: Final = 10  # a second
ROUNDS: Final = 10
SECONDS: Final = 20.0
PATIENCE_S: Final = 60.0
OPERATOR: Final[dict[str, Any]] = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}
OVERVIEW: Final = (
    "/v1/jobs?limit=1000",
    "/v1/streams?limit=1000",
    "/v1/instances?limit=1000",
    "/readyz",
    "/v1/overview",
)


def main() -> None:
    """Measure, and print."""
    for row in rows():
        print(f"{row.measure}: {row.figure:.1f} {row.unit} (bar: {row.bar}; {row.conditions})")


def rows() -> Iterator[Measurement]:
    """Fill a catalog, ask as the overview does, then have it followed."""
    with ExitStack() as opened:
        scratch = opened.enter_context(tempfile.TemporaryDirectory(prefix="millrace-dashboard-"))
        running = opened.enter_context(Running(Path(scratch, "data"), instances=0))
        _fill(running)
        asked = [path for path in OVERVIEW if running.client.get(path).status_code != 404]
        each_ms = {path: _cost_ms(running, path) for path in asked}
        said = ", ".join(f"`{path.partition('?')[0]}` {ms:.0f}" for path, ms in each_ms.items())
        conditions = f"{JOBS} jobs of {PARTITIONS} tasks, {STREAMS} streams; {said} ms; {_machine()}"
        yield Measurement("what the overview asks for at first", sum(each_ms.values()), "ms", conditions, bar="≤ 300")
        without, bytes_s = _busy(running, [])
        with_them, bytes_s = _busy(running, asked)
    conditions = f"{OPEN} followers, {POSTS} posts a second, {bytes_s / 1e6:.1f} MB/s of events; without them "
    conditions += f"the API takes {without:.1f} %; {_machine()}"
    yield Measurement(f"processor for {OPEN} open dashboards", with_them - without, "%", conditions, bar="≤ 5")


def _fill(running: Running) -> None:
    for n in range(STREAMS):
        partitions = PARTITIONS if n < JOBS else 4
        running.call("POST", "/v1/streams", json={"name": f"s{n}", "partitions": partitions})
    for n in range(JOBS):
        running.call("POST", "/v1/jobs", json={"name": f"j{n}", "source": f"s{n}", "operators": [OPERATOR]})


def _cost_ms(running: Running, path: str) -> float:
    running.client.get(path)  # what runs for the first time is slower
    before = _cpu_s(running)
    for _ in range(ROUNDS):
        running.client.get(path)
    return 1_000 * (_cpu_s(running) - before) / ROUNDS


def _busy(running: Running, topics: list[str]) -> tuple[float, float]:
    """The share of a processor (%) that the API takes while records come, and bytes of events a second."""
    over = threading.Event()
    count = OPEN if topics else 0
    with ThreadPoolExecutor(OPEN + 1) as threads:
        try:
            for _ in range(count):
                threads.submit(_follow, running, topics, over.is_set)
            threads.submit(_post, running, over)
            wait_until(lambda: _figure(running, "event_streams") == count, "the followers")
            time.sleep(2)  # the first answers are not what goes on
            began_s, cpu_s, sent = time.monotonic(), _cpu_s(running), _figure(running, "event_bytes_total")
            time.sleep(SECONDS)
            took_s, cpu_s = time.monotonic() - began_s, _cpu_s(running) - cpu_s
            sent = _figure(running, "event_bytes_total") - sent
        finally:
            over.set()
    return 100 * cpu_s / took_s, sent / took_s


def _follow(running: Running, topics: list[str], is_over: Callable[[], bool]) -> None:
    headers = {"Authorization": running.client.headers["Authorization"]}
    asked = {"topics": ",".join(topics)}
    with httpx.stream("GET", f"{running.url}/v1/events", params=asked, headers=headers, timeout=PATIENCE_S) as answer:
        for _ in answer.iter_raw():
            if is_over():
                return


def _post(running: Running, over: threading.Event) -> None:
    n = 0
    while not over.wait(1 / POSTS):
        running.call("POST", f"/v1/streams/s{n % STREAMS}/records", json={"records": [{"key": "k", "value": n}]})
        n += 1


def _figure(running: Running, name: str) -> float:
    lines = running.client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"millrace_{name} ")))


def _cpu_s(running: Running) -> float:
    times = psutil.Process(running.process.pid).cpu_times()
    return times.user + times.system


def _machine() -> str:
    return f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
