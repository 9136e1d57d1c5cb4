"""Lookups over HTTP: how many a second, how long each waits, and how soon a record that was posted can be looked up.

Starts a service that looks into replicas on disk, then one that looks into Redis, and puts both under the same load.
The load comes from a process of its own that speaks just enough HTTP/1.1 over bare sockets that its clients cost a
small part of what they measure. `python -m benchmarks.lookups` prints the figures.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import uvloop

from benchmarks.running import NDJSON, Running
from tests.services import redis_server

ROOT = Path(__file__).parents[1]
CLIENTS = 32
RATE = 2_500.0  # a second: half of what must be possible
KEYS = 5_000
START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
PARTITIONS = 4

Where = Literal["lmdb", "redis"]


@dataclass(frozen=True)
class Load:
    """What to ask: paths in turn, by so many clients for so long; `rate` a second in all, 0 = as fast as it goes."""

    url: str
    key: str
    paths: Sequence[str]
    clients: int = CLIENTS
    seconds: float = 5.0
    rate: float = 0.0


@dataclass(frozen=True)
class Found:
    """Answers a second, and the time each took; `failed`: answers other than 200; `busy`: the load's own share of a
    processor.
    """

    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int
    busy: float


@dataclass(frozen=True)
class Figures:
    """Of one kind of store: lookups by key as fast as they go and at RATE, and POST acknowledged to lookup visible."""

    where: Where
    fastest: Found
    steady: Found
    visible_ms: list[float]

    @property
    def visible_p50_ms(self) -> float:
        return statistics.median(self.visible_ms)


def figures(where: Where, *, seconds: float = 5.0, rounds: int = 100) -> Figures:
    """Start a service whose lookups go there, fill a session store, and measure.

    Raises:
        tests.services.RedisMissing: Redis is not installed.
    """
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millrace-lookups-")))
        environment = {}
        if where == "redis":
            environment["MILLRACE_REDIS_URL"] = opened.enter_context(redis_server())
        running = opened.enter_context(Running(scratch / "data", environment=environment))
        paths = _filled(running)
        load = Load(running.url, running.client.headers["Authorization"].split()[1], paths, seconds=seconds)
        measure(Load(**{**asdict(load), "seconds": 1.0}))  # what runs for the first time is slower
        return Figures(
            where,
            fastest=measure(load),
            steady=measure(Load(**{**asdict(load), "rate": RATE})),
            visible_ms=list(_visible_ms(running, rounds)),
        )


def measure(load: Load) -> Found:
    """Put a service under load, from another process."""
    command = [sys.executable, "-m", "benchmarks.lookups", "--load"]
    done = subprocess.run(command, input=json.dumps(asdict(load)), capture_output=True, text=True, cwd=ROOT, check=True)
    return Found(**json.loads(done.stdout))


# ---------------------------------------------------------------- what is looked into


def _filled(running: Running) -> list[str]:
    """The paths of all keys of a session store: three sessions each."""
    for name in ("visits", "seen"):
        running.call("POST", "/v1/streams", json={"name": name, "partitions": PARTITIONS})
        running.call("POST", "/v1/jobs", json={"name": name, "source": name, "operators": [_sessions()]})
    records = [_record(f"user-{n}", START_MS + visit * 5 * MINUTE_MS) for visit in range(3) for n in range(KEYS)]
    body = "".join(json.dumps(record) + "\n" for record in records)
    position = running.call(
        "POST", "/v1/streams/visits/records", content=body.encode(), headers={"Content-Type": NDJSON}
    )["position"]
    path = "/v1/stores/visits-s/sessions"
    running.call("GET", path, params={"min_position": position, "timeout_ms": 60_000, "limit": 1})
    assert len(running.call("GET", f"{path}/user-0")["items"]) == 3
    return [f"{path}/user-{n}" for n in range(KEYS)]


def _sessions() -> dict[str, Any]:
    window = {"type": "session", "gap_ms": MINUTE_MS, "grace_ms": MINUTE_MS}
    aggregates = {"n": {"fn": "count"}, "spent": {"fn": "sum", "of": "(value->>'amount')::bigint"}}
    return {"op": "aggregate", "name": "s", "window": window, "aggregates": aggregates}


def _record(key: str, timestamp: int) -> dict[str, Any]:
    return {"key": key, "value": {"amount": 3}, "timestamp": timestamp}


def _visible_ms(running: Running, rounds: int) -> Iterator[float]:
    """From the answer of a POST to the moment its session is found, one record at a time on an idle system."""
    for number in range(rounds + 10):
        key = f"one-{number}"
        records = [_record(key, START_MS + number)]
        running.call("POST", "/v1/streams/seen/records", json={"records": records})
        started = time.perf_counter()
        while not running.call("GET", f"/v1/stores/seen-s/sessions/{key}")["items"]:
            if time.perf_counter() - started > 30:
                raise TimeoutError(f"record {number} was never seen")
        waited = time.perf_counter() - started
        if number >= 10:
            yield 1000 * waited
        time.sleep(0.15)  # idle again: longer than the commit interval


# ---------------------------------------------------------------- the load


@dataclass
class _Run:
    """All clients together. At a given rate requests are due at given times: one that waits for its turn is late."""

    load: Load
    requests: list[bytes]
    loop: asyncio.AbstractEventLoop
    waits: list[float] = field(default_factory=list)
    failed: int = 0
    asked: int = 0
    open: int = 0

    def __post_init__(self) -> None:
        self.started = time.perf_counter()
        self.is_over: asyncio.Future[None] = self.loop.create_future()

    def next(self, client: _Client) -> None:
        """Let a client ask again, or end it."""
        now = time.perf_counter()
        if now - self.started >= self.load.seconds:
            client.close()
            self.open -= 1
            if self.open == 0:
                self.is_over.set_result(None)
            return
        due = self.started + self.asked / self.load.rate if self.load.rate else now
        request = self.requests[self.asked % len(self.requests)]
        self.asked += 1
        if due > now:
            self.loop.call_later(due - now, client.ask, request, due)
        else:
            client.ask(request, due)


class _Client(asyncio.Protocol):
    """One connection; the next request goes out when the answer to the last is in."""

    def __init__(self, run: _Run) -> None:
        self._run, self._answer, self._due_s = run, b"", 0.0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._run.open += 1
        self._run.next(self)

    def ask(self, request: bytes, due_s: float) -> None:
        self._due_s = due_s
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._answer = self._answer + data if self._answer else data
        head = self._answer.find(b"\r\n\r\n")
        if head < 0 or len(self._answer) < head + 4 + _length(self._answer[:head]):
            return
        self._run.waits.append(time.perf_counter() - self._due_s)
        self._run.failed += not self._answer.startswith(b"HTTP/1.1 200")
        self._answer = b""
        self._run.next(self)


def _length(head: bytes) -> int:
    place = head.lower().find(b"content-length:")
    return int(head[place + 15 :].split(b"\r\n", 1)[0])


async def _ask_all(load: Load) -> Found:
    at = urlsplit(load.url)
    head = f"HTTP/1.1\r\nHost: {at.netloc}\r\nAuthorization: Bearer {load.key}\r\n\r\n"
    run = _Run(load, [f"GET {path} {head}".encode() for path in load.paths], asyncio.get_running_loop())
    began_s = time.process_time()
    for _ in range(load.clients):
        await run.loop.create_connection(lambda: _Client(run), at.hostname, at.port)
    await run.is_over
    busy = (time.process_time() - began_s) / load.seconds
    waits = sorted(run.waits)
    p50, p99 = (1000 * waits[int(len(waits) * share)] for share in (0.5, 0.99))
    return Found(len(waits) / load.seconds, p50, p99, run.failed, busy)


if __name__ == "__main__":
    if "--load" in sys.argv:
        print(json.dumps(asdict(uvloop.run(_ask_all(Load(**json.load(sys.stdin)))))))
    else:
        for where in ("lmdb", "redis"):
            print(figures(where, seconds=3.0, rounds=30))
