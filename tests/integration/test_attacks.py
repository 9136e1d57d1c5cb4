"""What is sent to a real `millrace up` to stall it, without a key and with one: others are served meanwhile."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from threading import Event, Thread
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from benchmarks.running import Running, wait_until
from tests.forkserver import ForkServer

MB = 1_000_000
PATIENCE_S = 3.0  # of those who ask meanwhile, on a busy machine; the attacks stalled them for longer
LIMITS = {
    "MILLRACE_HEADER_TIMEOUT_MS": "1000",
    "MILLRACE_BODY_TIMEOUT_MS": "1000",
    "MILLRACE_IDLE_TIMEOUT_MS": "2000",
    "MILLRACE_LOG_LEVEL": "warning",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("attacked")
    with Running(folder / "data", instances=0, environment=LIMITS, popen=forks.popen) as running:
        running.call("POST", "/v1/streams", json={"name": "s", "partitions": 1})
        yield running


@pytest.fixture(autouse=True)
def others(running: Running) -> Iterator[None]:
    """Somebody who asks and somebody who posts all the time, and is answered each time, soon."""
    waits: list[float] = []
    over = Event()

    def keep_asking() -> None:
        with httpx.Client(base_url=running.url, headers=running.client.headers, timeout=60) as client:
            while not over.is_set():
                started = time.monotonic()
                client.get("/healthz").raise_for_status()
                client.post("/v1/streams/s/records", json={"records": [{"value": 1}]}).raise_for_status()
                waits.append(time.monotonic() - started)
                over.wait(0.02)
            waits.append(0.0)

    thread = Thread(target=keep_asking)
    thread.start()
    yield
    over.set()
    thread.join(60)
    assert waits[-1] == 0.0, "they were refused"
    assert max(waits) < PATIENCE_S


def connected(running: Running) -> socket.socket:
    url = urlsplit(running.url)
    return socket.create_connection((url.hostname, url.port), timeout=60)


def rest_of(client: socket.socket) -> bytes:
    """Whatever comes until the service closes the connection."""
    try:
        return b"".join(iter(lambda: client.recv(1 << 16), b""))
    except ConnectionResetError:
        return b""


def flood(client: socket.socket, count: int) -> None:
    """Send so many bytes, or fewer where the service has enough."""
    piece = b"a" * 65_536
    with contextlib.suppress(OSError):
        for _ in range(0, count, len(piece)):
            client.sendall(piece)


def memory(running: Running) -> int:
    return int(psutil.Process(running.process.pid).memory_info().rss)


def connections(running: Running) -> int:
    found = psutil.Process(running.process.pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED for each in found)


@pytest.mark.parametrize("head", ["GET /healthz HTTP/1.1\r\nHost: x\r\nX: ", "GET /", "POST /v1/streams HTTP/1.1\r\nX"])
def test_headers_without_end_stall_nobody_and_are_431(running: Running, head: str) -> None:
    """Without a key: 100 MB took all others from 0.01 s to 8 s, and memory to 900 MB."""
    before = memory(running)
    for _ in range(3):
        with connected(running) as client:
            client.sendall(head.encode())
            flood(client, 100 * MB)
            answer = rest_of(client)
        assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 "))
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] in (431, 414)
    assert memory(running) - before < 200 * MB


def test_three_hundred_half_open_requests_are_gone_in_time(running: Running) -> None:
    halves = [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: a",
        b"GET",
        b"POST /v1/streams HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    ]
    clients = [connected(running) for _ in range(300)]
    for number, client in enumerate(clients):
        client.sendall(halves[number % 3])
    answers = [rest_of(client) for client in clients]
    assert {answer[:13] for answer in answers} <= {b"HTTP/1.1 408 ", b"HTTP/1.1 401 "}
    wait_until(lambda: connections(running) <= 20, "the ends of the connections", every_s=0.1)
    for client in clients:
        client.close()


def head_of_post(running: Running, length: int, kind: str = "application/x-ndjson") -> bytes:
    key = running.client.headers["Authorization"]
    lines = ["POST /v1/streams/s/records HTTP/1.1", "Host: x", f"Authorization: {key}", f"Content-Type: {kind}"]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def test_idle_sockets_that_announce_much_hold_no_room_of_others(running: Running) -> None:
    """Four of them stopped all ingest: each had reserved the 64 MiB that it announced."""
    clients = [connected(running) for _ in range(20)]
    for client in clients:
        client.sendall(head_of_post(running, 64 << 20))
    posted = running.client.post("/v1/streams/s/records", json={"records": [{"value": 1}]})
    assert posted.status_code == 200
    for client in clients:
        assert rest_of(client).startswith(b"HTTP/1.1 408 ")
        client.close()


def test_bodies_that_trickle_are_ended(running: Running) -> None:
    clients = [connected(running) for _ in range(8)]
    for client in clients:
        client.sendall(head_of_post(running, 64 << 20) + b"{" * 300_000)
    over = Event()

    def trickle() -> None:
        while not over.wait(0.1):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(b" ")

    thread = Thread(target=trickle)
    thread.start()
    answers = [rest_of(client) for client in clients]
    over.set()
    thread.join()
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
    for client in clients:
        client.close()
    nothing = "millrace_ingest_buffered_bytes 0.0"  # others post, too
    wait_until(lambda: nothing in running.client.get("/metrics").text, "the room, given back")


@pytest.mark.parametrize("length", ["Content-Length: 99999999999", "Transfer-Encoding: chunked"])
def test_an_early_413_ends_the_connection(running: Running, length: str) -> None:
    head = head_of_post(running, 0).replace(b"Content-Length: 0", length.encode())
    chunk = b"%x\r\n" % 65_536 + b"a" * 65_536 + b"\r\n"
    with connected(running) as client:
        client.sendall(head)
        with contextlib.suppress(OSError):
            for _ in range(1_100):  # 72 MB
                client.sendall(chunk)
        answer = rest_of(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "payload_too_large"
