"""Load over HTTP from a process of its own: so many keep-alive clients, each asks again when it has its answer.

Speaks just enough HTTP/1.1 over bare sockets (asyncio protocols on uvloop) that its clients cost a small part of what
they measure; how much that was is part of what is found. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop

ROOT = Path(__file__).parents[1]
GENERATOR = "benchmarks.load (asyncio protocols on uvloop)"


@dataclass(frozen=True)
class Load:
    """What to ask: `paths` in turn, with the body of the same place where there are `bodies` (POST, else GET), by so
    many clients for so long; `rate` a second in all, 0 = as fast as it goes.
    """

    url: str
    headers: Mapping[str, str]
    paths: Sequence[str]
    bodies: Sequence[str] = ()
    clients: int = 32
    seconds: float = 5.0
    rate: float = 0.0


@dataclass(frozen=True)
class LoadFigures:
    """Answers a second, and the time each took; `failed`: answers other than 200; `busy`: the load's own share of a
    processor.
    """

    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int
    busy: float


def measure(load: Load) -> LoadFigures:
    """Put a service under load, from another process."""
    command = [sys.executable, "-m", "benchmarks.load"]
    done = subprocess.run(command, input=json.dumps(asdict(load)), capture_output=True, text=True, cwd=ROOT, check=True)
    return LoadFigures(**json.loads(done.stdout))


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


def _requests(load: Load) -> list[bytes]:
    at = urlsplit(load.url)
    head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": at.netloc, **load.headers}.items())
    if not load.bodies:
        return [f"GET {path} HTTP/1.1\r\n{head}\r\n".encode() for path in load.paths]
    bodies = [body.encode() for body in load.bodies]
    return [
        f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        for path, body in zip(load.paths, bodies, strict=True)
    ]


async def _ask_all(load: Load) -> LoadFigures:
    at = urlsplit(load.url)
    run = _Run(load, _requests(load), asyncio.get_running_loop())
    began_s = time.process_time()
    for _ in range(load.clients):
        await run.loop.create_connection(lambda: _Client(run), at.hostname, at.port)
    await run.is_over
    busy = (time.process_time() - began_s) / load.seconds
    waits = sorted(run.waits)
    p50, p99 = (1000 * waits[int(len(waits) * share)] for share in (0.5, 0.99))
    return LoadFigures(len(waits) / load.seconds, p50, p99, run.failed, busy)


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(_ask_all(Load(**json.load(sys.stdin)))))))
