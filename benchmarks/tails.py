"""Tails over HTTP: how late a record is at readers that follow its stream, and whether each of them gets each record
once though the service is killed and started again meanwhile.

The readers are Server-Sent Events clients in a process of their own, asyncio protocols that come back with their last
id; the records are posted at a steady rate by another, each post repeated under its Idempotency-Key until it is
answered. `python -m benchmarks.tails` prints the figures.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil
import uvloop

from benchmarks.running import PATIENCE_S, Running, wait_until

ROOT: Final = Path(__file__).parents[1]
PARTITIONS: Final = 4
POSTS: Final = 50  # a second
AFTER_RESTART_S: Final = 1.0  # what waited for the service is sent then
COME_BACK_S: Final = 0.05
CASES: Final = ((2_000, 50), (10_000, 5), (500, 200))  # records a second, clients

_RECORD = re.compile(rb'data: \{"partition":(\d+),"offset":(\d+),.*?"value":\{"at":(\d+)\}')
_ID = re.compile(rb"id: (\S+)\n\n")


@dataclass(frozen=True)
class Following:
    """So many clients that follow a stream until each has so many records."""

    url: str
    headers: Mapping[str, str]
    stream: str
    clients: int
    records: int
    delays: str  # the file that gets when each record was posted (monotonic, s) and how late it came (s), float64
    timeout_s: float


@dataclass(frozen=True)
class TailsFound:
    """What clients found: records that never came, or twice; how often they came back; their share of a processor."""

    lost: int
    repeated: int
    returns: int
    busy: float


@dataclass(frozen=True)
class TailFigures:
    """Of one case: how late records are (ms) while the service runs, and at most, those posted while it was away
    included. `rss_mb`: of the API's process, before and with its tails; `cpu`: its share of a processor.
    """

    rate: int
    clients: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    away_s: float
    rss_mb: tuple[float, float]
    cpu: float
    followed: TailsFound


def figures(rate: int, clients: int, *, seconds: float, popen: Callable[..., Any] = subprocess.Popen) -> TailFigures:
    """Start a service (by `popen`), follow a stream of it, kill it halfway through and start it again."""
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millrace-tails-")))
        running = opened.enter_context(Running(scratch / "data", instances=0, popen=popen))
        return _followed(running, scratch / "delays", rate, clients, seconds)


def _followed(running: Running, delays: Path, rate: int, clients: int, seconds: float) -> TailFigures:
    running.call("POST", "/v1/streams", json={"name": "tailed", "partitions": PARTITIONS})
    headers = {"Authorization": running.client.headers["Authorization"]}
    with SteadyPosts(running.url, headers, rate, seconds) as posts:
        return _followed_with(running, delays, posts, clients)


def _followed_with(running: Running, delays: Path, posts: SteadyPosts, clients: int) -> TailFigures:
    posts.post(0)  # what runs for the first time is slower
    before_mb = _rss_mb(running)
    asked = Following(
        running.url, posts.headers, "tailed", clients, posts.records, str(delays), posts.seconds + PATIENCE_S
    )
    follower = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.tails", "follow"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    with follower, ThreadPoolExecutor(1) as threads:
        assert follower.stdin is not None
        assert follower.stdout is not None
        follower.stdin.write(json.dumps(asdict(asked)).encode())
        follower.stdin.close()
        wait_until(lambda: _tails(running) == clients, "the clients")
        cpu_s, began_s = _cpu_s(running), time.monotonic()
        posting = threads.submit(posts.run)
        time.sleep(posts.seconds / 2)
        killed_s = time.monotonic()
        cpu = (_cpu_s(running) - cpu_s) / (killed_s - began_s)
        with_mb = _rss_mb(running)
        port = urlsplit(running.url).port or 0
        running.kill()
        running.start(port=port)
        back_s = time.monotonic()
        posting.result()
        followed = TailsFound(**json.loads(follower.stdout.read()))
    at_s, late_s = np.fromfile(delays).reshape(-1, 2).T
    is_steady = (at_s >= began_s) & ((at_s < killed_s - AFTER_RESTART_S) | (at_s > back_s + AFTER_RESTART_S))
    steady_s = late_s[is_steady] if is_steady.any() else [np.nan]  # a short load on a busy machine has none
    p50, p99 = (1_000 * float(each) for each in np.quantile(steady_s, (0.5, 0.99)))
    worst_ms = 1_000 * float(late_s[at_s >= began_s].max())
    away_s = back_s - killed_s
    return TailFigures(posts.rate, clients, p50, p99, worst_ms, away_s, (before_mb, with_mb), cpu, followed)


def _tails(running: Running) -> int:
    return int(float(re.findall(r"^millrace_tails (\S+)$", running.client.get("/metrics").text, re.MULTILINE)[0]))


def _cpu_s(running: Running) -> float:
    times = psutil.Process(running.process.pid).cpu_times()
    return times.user + times.system


def _rss_mb(running: Running) -> float:
    return psutil.Process(running.process.pid).memory_info().rss / 1e6


class SteadyPosts:
    """Records at a steady rate, POSTS times a second, each of which says when it was handed over."""

    def __init__(self, url: str, headers: Mapping[str, str], rate: int, seconds: float) -> None:
        self._client = httpx.Client(base_url=url, headers=headers, timeout=5, verify=False)
        self.headers, self.rate, self.seconds = headers, rate, seconds
        self._size, self._number = rate // POSTS, int(seconds * POSTS)
        self.records = self._size * (self._number + 1)

    def run(self) -> None:
        """Post, each as soon as it is due and the one before is answered."""
        began_s = time.monotonic()
        for number in range(1, self._number + 1):
            time.sleep(max(0.0, began_s + number / POSTS - time.monotonic()))
            self.post(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def post(self, number: int) -> None:
        """One of them, until it is answered."""
        at = time.monotonic_ns()
        records = [{"key": f"k{row}", "value": {"at": at}, "partition": row % PARTITIONS} for row in range(self._size)]
        body = json.dumps({"records": records}, separators=(",", ":"))
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"post-{number}"}
        while True:
            try:
                answer = self._client.post("/v1/streams/tailed/records", content=body, headers=headers)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 200:
                return
            if answer is not None and answer.status_code not in (409, 429, 503):
                answer.raise_for_status()
            time.sleep(COME_BACK_S)


# ---------------------------------------------------------------- the clients, in a process of their own


@dataclass
class _Clients:
    """All of them: what they found together."""

    asked: Following
    loop: asyncio.AbstractEventLoop
    delays: array[float] = field(default_factory=lambda: array("d"))
    lost: int = 0
    repeated: int = 0
    returns: int = -1
    done: int = 0

    def __post_init__(self) -> None:
        self.are_over: asyncio.Future[None] = self.loop.create_future()

    async def connect(self, client: _Client) -> None:
        """Follow from where the client is, as soon as somebody listens."""
        at = urlsplit(self.asked.url)
        self.returns += 1
        while True:
            try:
                await self.loop.create_connection(lambda: client, at.hostname, at.port)
            except OSError:
                await asyncio.sleep(COME_BACK_S)
            else:
                return


class _Client(asyncio.Protocol):
    """One reader."""

    def __init__(self, clients: _Clients) -> None:
        self._clients = clients
        self._next = [0] * PARTITIONS
        self._seen = 0
        self._last_id = b""
        self._buffer = b""
        self._transport: Any  # uvloop's are no asyncio.Transport
        self._coming: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        self._transport, self._buffer = transport, b""
        asked = self._clients.asked
        headers = dict(asked.headers) | {"Host": urlsplit(asked.url).netloc}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id.decode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        transport.write(f"GET /v1/streams/{asked.stream}/tail?from=earliest HTTP/1.1\r\n{lines}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Events end with an empty line; what is between them (heads of chunks) is none of ours."""
        self._buffer += data
        events, end, rest = self._buffer.rpartition(b"\n\n")
        if not end:
            return
        self._buffer = rest
        now_s = time.monotonic()
        self._take(_RECORD.findall(events), now_s)
        ids = _ID.findall(events[-40_000:] + end)
        self._last_id = ids[-1] if ids else self._last_id
        if self._seen >= self._clients.asked.records:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """Come back, unless all is here."""
        if self._seen < self._clients.asked.records:
            self._coming = self._clients.loop.create_task(self._clients.connect(self))
            return
        self._clients.done += 1
        if self._clients.done == self._clients.asked.clients and not self._clients.are_over.done():
            self._clients.are_over.set_result(None)

    def _take(self, records: list[tuple[bytes, bytes, bytes]], now_s: float) -> None:
        clients, following = self._clients, self._next
        for partition_text, offset_text, at_text in records:
            partition, offset, at_s = int(partition_text), int(offset_text), int(at_text) / 1e9
            expected = following[partition]
            clients.lost += max(0, offset - expected)
            clients.repeated += offset < expected
            following[partition] = max(expected, offset + 1)
            clients.delays.append(at_s)
            clients.delays.append(now_s - at_s)
        self._seen = sum(following)


async def _follow(asked: Following) -> TailsFound:
    clients = _Clients(asked, asyncio.get_running_loop(), returns=-asked.clients)
    cpu_s, began_s = time.process_time(), time.monotonic()
    for _ in range(asked.clients):
        await clients.connect(_Client(clients))
    async with asyncio.timeout(asked.timeout_s):
        await clients.are_over
    busy = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
    with Path(asked.delays).open("wb") as file:
        clients.delays.tofile(file)
    return TailsFound(clients.lost, clients.repeated, clients.returns, busy)


def cases(seconds: float) -> Iterator[TailFigures]:
    """All CASES."""
    for rate, clients in CASES:
        yield figures(rate, clients, seconds=seconds)


if __name__ == "__main__":
    if sys.argv[1:] == ["follow"]:
        print(json.dumps(asdict(uvloop.run(_follow(Following(**json.load(sys.stdin)))))))
    else:
        for each in cases(seconds=10.0):
            print(each)
