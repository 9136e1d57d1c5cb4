"""What a connection may do before it is a request, and how long: refused as a problem, and closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop

from benchmarks.running import wait_until
from service.connections import MAX_FIELDS, MAX_HEAD_BYTES, Connection
from service.settings import Settings

Address = tuple[str, int]

GET = b"GET /x HTTP/1.1\r\nHost: here\r\n"
POST = b"POST /read HTTP/1.1\r\nHost: here\r\n"
QUICK = {"header_timeout_ms": 400, "body_timeout_ms": 400, "idle_timeout_ms": 800}
PATIENT = {"body_timeout_ms": 1_500, "idle_timeout_ms": 2_000}  # on a machine that may stall for a second


@dataclass
class Answer:
    """An answer as it came."""

    status: int
    head: str
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert "content-type: application/problem+json" in self.head.lower()
        assert "connection: close" in self.head.lower()
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        assert f"x-request-id: {found['request_id']}" in self.head.lower()
        return found


async def app(scope: Any, receive: Any, send: Any) -> None:
    """/read: how long the body is. /wait: nothing before the caller goes. /long: more than a socket holds. Else: ok."""
    body = b""
    if scope["path"] == "/read":
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
    elif scope["path"] == "/wait":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    text = b"x" * (64 << 20) if scope["path"] == "/long" else b"%d %d" % (len(body), len(scope["headers"]))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


def quick_gets(target: bytes, fields: Any, state: Any) -> Any:
    """/quick…: answered from the second request on; with the fields of the first as many times as one likes."""
    return quickly if target.startswith(b"/quick") else None


def quickly(target: bytes) -> bytes | asyncio.Future[bytes | None] | None:
    """/quick: at once; /quick-soon: a little later; /quick-never: after all not, a little later; else not."""
    answer = b"content-length: 5\r\n\r\nquick"
    if target == b"/quick":
        return answer
    if target not in {b"/quick-soon", b"/quick-never"}:
        return None
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.05, future.set_result, answer if target == b"/quick-soon" else None)
    return future


@contextmanager
def serving(folder: Path, **limits: int) -> Iterator[tuple[Address, uvicorn.Server]]:
    """The app behind connections with these limits, in a thread of its own."""
    settings = Settings(data_dir=folder, **limits)
    protocol: Any = partial(Connection, settings=settings, quick_gets=quick_gets)
    idle_s: Any = settings.idle_timeout_ms / 1000
    config = uvicorn.Config(
        app, http=protocol, ws="none", loop="uvloop", log_config=None, lifespan="off", timeout_keep_alive=idle_s
    )
    server = uvicorn.Server(config)
    is_up, over = threading.Event(), threading.Event()

    async def run(listener: socket.socket) -> None:
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        is_up.set()
        await asyncio.to_thread(over.wait)
        await server.shutdown(sockets=[listener])

    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        address: Address = listener.getsockname()
        thread = threading.Thread(target=lambda: uvloop.run(run(listener)))
        thread.start()
        try:
            assert is_up.wait(30)
            yield address, server
        finally:
            over.set()
            thread.join(30)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with serving(tmp_path_factory.mktemp("connections")) as (address, _):
        yield address


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with serving(tmp_path_factory.mktemp("impatient"), **QUICK) as (address, _):
        yield address


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with serving(tmp_path_factory.mktemp("patient"), **PATIENT) as (address, _):
        yield address


def connected(address: Address) -> socket.socket:
    return socket.create_connection(address, timeout=30)


def all_of(client: socket.socket) -> bytes:
    """Whatever comes until the service closes."""
    return b"".join(iter(lambda: client.recv(1 << 20), b""))


def one_of(text: bytes) -> Answer:
    head, _, body = text.partition(b"\r\n\r\n")
    return Answer(int(head.split()[1]), head.decode(), body)


def asked(address: Address, *parts: bytes) -> Answer:
    """The only answer on a connection that the service closes."""
    with connected(address) as client:
        for part in parts:
            client.sendall(part)
        return one_of(all_of(client))


def fields(count: int, size: int = 1) -> bytes:
    return b"".join(b"X-%d: %s\r\n" % (n, b"v" * size) for n in range(count))


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = CHUNKED + b"1\r\na\r\n0\r\n"
LONG_HEADS = {
    "one field too many": (GET + fields(MAX_FIELDS) + b"\r\n", 431),
    "one long field": (GET + fields(1, MAX_HEAD_BYTES) + b"\r\n", 431),
    "a field without end": (GET + fields(1, 4 * MAX_HEAD_BYTES), 431),
    "much in many fields": (GET + fields(90, 1_000) + b"\r\n", 431),
    "a name without end": (GET + b"X" * 2 * MAX_HEAD_BYTES, 431),
    "a path without end": (b"GET /" + b"x" * 2 * MAX_HEAD_BYTES, 414),
    "a long path": (b"GET /" + b"x" * (MAX_HEAD_BYTES - 1) + b" HTTP/1.1\r\nHost: here\r\n\r\n", 414),
    "blank lines without end": (b"\r\n" * MAX_HEAD_BYTES, 400),
    "too many trailers": (LAST_CHUNK + fields(MAX_FIELDS + 1) + b"\r\n", 431),
    "a trailer without end": (LAST_CHUNK + b"X: " + b"v" * 16 * MAX_HEAD_BYTES, 431),
    "an extension without end": (CHUNKED + b"1;x=" + b"v" * 16 * MAX_HEAD_BYTES, 431),
}


@pytest.mark.parametrize(("request_bytes", "status"), LONG_HEADS.values(), ids=list(LONG_HEADS))
def test_too_much_that_is_no_body_is_refused(address: Address, request_bytes: bytes, status: int) -> None:
    answer = asked(address, request_bytes)
    assert answer.status == status
    assert answer.problem["code"] == {431: "headers_too_large", 414: "uri_too_long", 400: "bad_request"}[status]


@pytest.mark.parametrize("step", [1_000, 70_000])
def test_what_comes_in_pieces_is_refused_as_soon_as_it_is_too_much(address: Address, step: int) -> None:
    with connected(address) as client:
        client.sendall(GET + b"X: ")
        sent = 0
        while not is_answered(client) and sent < 1 << 22:
            client.sendall(b"v" * step)
            sent += step
        assert sent < 1 << 20
        assert one_of(all_of(client)).problem["code"] == "headers_too_large"


def is_answered(client: socket.socket) -> bool:
    client.settimeout(0.002)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        client.settimeout(30)


def test_a_head_within_the_limits_is_taken(address: Address) -> None:
    most = GET + b"Connection: close\r\n" + fields(MAX_FIELDS - 2, 650) + b"\r\n"
    assert MAX_HEAD_BYTES - 2_000 < len(most) < MAX_HEAD_BYTES
    assert asked(address, most).status == 200


def test_a_long_body_right_behind_its_head_counts_for_nothing(address: Address) -> None:
    head = POST + b"Connection: close\r\nContent-Length: 1000000\r\n\r\n"
    answer = asked(address, head + b"x" * 1_000_000)
    assert (answer.status, answer.body) == (200, b"1000000 3")


def test_trailers_are_no_headers(address: Address) -> None:
    chunks = b"1\r\na\r\n0\r\nX-Trailer: v\r\n\r\n"
    answer = asked(address, POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert (answer.status, answer.body) == (200, b"1 3")


MALFORMED = [
    b"HELLO\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"GET http://[ HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nNo colon\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: \x00\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    POST + b"Content-Length: -1\r\n\r\n",
    POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    CHUNKED + b"nothex\r\n",
]


@pytest.mark.parametrize("request_bytes", MALFORMED)
def test_what_is_no_http_is_a_problem_too(address: Address, request_bytes: bytes) -> None:
    answer = asked(address, request_bytes)
    assert (answer.status, answer.problem["code"]) == (400, "bad_request")
    assert answer.problem["detail"]


def test_what_follows_a_request_and_is_no_http_ends_the_connection_behind_the_answer(address: Address) -> None:
    with connected(address) as client:
        client.sendall(GET + b"\r\n" + b"\x00\x01\x02")
        answer = one_of(all_of(client))
    assert (answer.status, answer.body) == (200, b"0 1")


@pytest.mark.parametrize("head", [GET[:5], GET + b"X: ", b"\r\n"])
def test_a_head_that_is_late_is_refused_though_it_goes_on(impatient: Address, head: bytes) -> None:
    """Also the second one on a connection."""
    for before in (b"", GET + b"\r\n"):
        with connected(impatient) as client:
            client.sendall(before)
            if before:
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            client.sendall(head)
            trickling(client, b"\r\n" if head == b"\r\n" else b"x")
            answer = one_of(all_of(client))
        assert (answer.status, answer.problem["code"]) == (408, "request_timeout")


def trickling(client: socket.socket, byte: bytes) -> None:
    """A byte now and then, until there is an answer."""
    until = time.monotonic() + 30
    while not is_answered(client):
        assert time.monotonic() < until
        client.sendall(byte)
        time.sleep(0.02)


def test_a_connection_on_which_nothing_comes_is_closed_without_a_word(impatient: Address) -> None:
    with connected(impatient) as client:
        assert all_of(client) == b""
    with connected(impatient) as client:
        client.sendall(GET + b"\r\n")
        assert all_of(client).count(b"HTTP/1.1") == 1


def test_a_body_that_stops_or_trickles_is_refused(impatient: Address) -> None:
    with connected(impatient) as client:
        client.sendall(POST + b"Content-Length: 1000000\r\n\r\n" + b"x" * 70_000)
        assert one_of(all_of(client)).problem["code"] == "request_timeout"
    with connected(impatient) as client:
        client.sendall(POST + b"Content-Length: 1000000\r\n\r\n")
        trickling(client, b"x")
        assert one_of(all_of(client)).status == 408


def test_a_body_that_comes_slowly_but_fast_enough_is_read(patient: Address) -> None:
    with connected(patient) as client:
        client.sendall(POST + b"Connection: close\r\nContent-Length: 350000\r\n\r\n")
        for _ in range(70):
            client.sendall(b"x" * 5_000)
            time.sleep(0.05)  # 100 kB/s, in more than two periods
        assert one_of(all_of(client)).body == b"350000 3"


@pytest.mark.parametrize("more", [10 << 20, 100])
def test_a_body_that_nobody_reads_ends_the_connection_and_the_answer_arrives(impatient: Address, more: int) -> None:
    """Much of it at once, little of it when its time is over."""
    with connected(impatient) as client:
        client.sendall(GET.replace(b"GET", b"POST") + b"Content-Length: 99999999\r\n\r\n")
        with contextlib.suppress(OSError):  # it may close while this is sent
            client.sendall(b"x" * more)
        answer = one_of(all_of(client))
    assert (answer.status, answer.body) == (200, b"0 2")


def test_a_small_body_that_nobody_reads_is_no_matter(address: Address) -> None:
    with connected(address) as client:
        for _ in range(3):
            client.sendall(GET.replace(b"GET", b"POST") + b"Content-Length: 10\r\n\r\n")
            assert client.recv(1 << 16).endswith(b"0 2")
            client.sendall(b"x" * 10)


def test_requests_that_wait_for_each_other_are_answered_in_order_and_not_without_end(address: Address) -> None:
    with connected(address) as client:
        client.sendall((GET + b"\r\n") * 40 + GET + b"Connection: close\r\n\r\n")
        assert all_of(client).count(b"HTTP/1.1 200") == 41
    with connected(address) as client:
        client.sendall((GET + b"\r\n") * 5_000)
        assert 40 < all_of(client).count(b"HTTP/1.1 200") < 100


def test_another_protocol_is_not_spoken_but_its_request_answered(address: Address) -> None:
    with connected(address) as client:
        client.sendall(GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert one_of(all_of(client)).status == 200


def test_an_answer_that_nobody_reads_ends_the_connection(tmp_path: Path) -> None:
    with serving(tmp_path, **QUICK) as (address, server), connected(address) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(GET.replace(b"/x", b"/long") + b"\r\n")
        until_connections(server, 1)
        until_connections(server, 0)


def until_connections(server: uvicorn.Server, count: int) -> None:
    wait_until(lambda: len(server.server_state.connections) == count, f"{count} connections", every_s=0.005)


def test_beyond_the_bound_the_one_that_idles_longest_makes_room(tmp_path: Path) -> None:
    with serving(tmp_path, max_connections=3, header_timeout_ms=60_000) as (address, server):
        first, second, third, fourth = (connected(address) for _ in range(4))
        with first, second, third, fourth:
            until_connections(server, 3)
            fourth.sendall(GET + b"\r\n")
            assert fourth.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert first.recv(1) == b""
            second.sendall(GET + b"\r\n")
            assert second.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_where_all_are_busy_the_next_one_is_told_to_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, max_connections=2) as (address, server):
        for _ in range(2):
            busy = [connected(address) for _ in range(2)]
            for client in busy:
                client.sendall(GET.replace(b"/x", b"/wait") + b"\r\n")
            until_connections(server, 2)
            for _ in range(3):
                answer = asked(address)
                assert (answer.status, answer.problem["code"]) == (503, "too_many_connections")
                assert "retry-after: 1" in answer.head
            for client in busy:
                client.close()
            until_connections(server, 0)
        assert asked(address, GET + b"Connection: close\r\n\r\n").status == 200


# ---------------------------------------------------------------- what is asked again with the same fields

FIELDS = b"Host: here\r\nX-Of: me\r\n\r\n"
BY_APP = b"0 2"  # no body, two fields


def got(client: socket.socket, *targets: bytes, fields: bytes = FIELDS) -> list[bytes]:
    """The bodies of answers to requests that are sent in one piece."""
    client.sendall(b"".join(b"GET %b HTTP/1.1\r\n%b" % (target, fields) for target in targets))
    return [body_of(client) for _ in targets]


def body_of(client: socket.socket) -> bytes:
    """Of the next answer."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return client.recv(size, socket.MSG_WAITALL)


def test_the_same_fields_again_are_answered_without_the_app(address: Address) -> None:
    with connected(address) as client:
        assert got(client, b"/quick") == [BY_APP]
        assert got(client, b"/quick") == got(client, b"/quick") == [b"quick"]
        assert got(client, b"/else") == got(client, b"/quick-else") == [BY_APP]
        assert got(client, b"/quick") == [b"quick"]


@pytest.mark.parametrize(
    "fields",
    [
        b"Host: here\r\nX-Of: you\r\n\r\n",
        b"Host: here\r\nX-Of:  me\r\n\r\n",
        b"Host: here\r\nx-of: me\r\n\r\n",
        b"X-Of: me\r\nHost: here\r\n\r\n",
    ],
)
def test_other_fields_are_parsed_and_count_from_then_on(address: Address, fields: bytes) -> None:
    with connected(address) as client:
        assert got(client, b"/quick") == [BY_APP]
        assert got(client, b"/quick", fields=fields) == [BY_APP]
        assert got(client, b"/quick", fields=fields) == [b"quick"]
        assert got(client, b"/quick") == [BY_APP]


@pytest.mark.parametrize(
    "field", [b"Connection: close", b"Connection: upgrade", b"Content-Length: 0", b"Upgrade: h2c", b"Expect: x"]
)
def test_fields_of_connection_or_body_are_never_taken_for_granted(address: Address, field: bytes) -> None:
    with connected(address) as client:
        for _ in range(2):
            client.sendall(b"GET /quick HTTP/1.1\r\nHost: here\r\n%b\r\n\r\n" % field)
            assert body_of(client) == BY_APP
            if field == b"Connection: close":
                assert client.recv(1) == b""
                return


def test_a_kept_connection_may_say_so(address: Address) -> None:
    fields = b"Host: here\r\nConnection: Keep-Alive\r\n\r\n"
    with connected(address) as client:
        assert got(client, b"/quick", fields=fields) == [BY_APP]
        assert got(client, b"/quick", fields=fields) == [b"quick"]


def test_what_does_not_come_alone_and_whole_is_parsed(address: Address) -> None:
    with connected(address) as client:
        assert got(client, b"/quick") == [BY_APP]
        assert got(client, b"/quick", b"/quick", b"/quick-else") == [BY_APP] * 3
        client.sendall(b"GET /quick HT")
        assert not is_answered(client)
        client.sendall(b"TP/1.1\r\n" + FIELDS)
        assert body_of(client) == BY_APP
        client.sendall(b"POST /read HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(FIELDS) + FIELDS)
        assert body_of(client) == b"%d 2" % len(FIELDS)
        client.sendall(POST + b"Content-Length: 60\r\n\r\n")
        client.sendall(b"GET /quick HTTP/1.1\r\n".ljust(60 - len(FIELDS), b"x") + FIELDS)  # a body that looks like one
        assert body_of(client) == b"60 2"


@pytest.mark.parametrize("line", [b"GET /quick HTTP/1.0", b"HEAD /quick HTTP/1.1", b"GET  /quick HTTP/1.1"])
def test_another_first_line_is_the_parsers(address: Address, line: bytes) -> None:
    with connected(address) as client:
        assert got(client, b"/quick") == [BY_APP]
        client.sendall(line + b"\r\n" + FIELDS)
        head = client.recv(1 << 16)
        assert b"quick" not in head


def test_a_long_target_is_refused_with_known_fields_too(address: Address) -> None:
    with connected(address) as client:
        assert got(client, b"/quick") == [BY_APP]
        client.sendall(b"GET /%b HTTP/1.1\r\n" % (b"x" * MAX_HEAD_BYTES) + FIELDS)
        assert one_of(all_of(client)).problem["code"] == "uri_too_long"


def test_an_answer_that_is_awaited_comes_before_what_was_asked_behind_it(address: Address) -> None:
    with connected(address) as client:
        assert got(client, b"/quick") == [BY_APP]
        for first, answer in ((b"/quick-soon", b"quick"), (b"/quick-never", BY_APP)):
            client.sendall(b"GET %b HTTP/1.1\r\n%b" % (first, FIELDS))
            assert not is_answered(client)  # the next one comes apart from it
            client.sendall(b"GET /quick HTTP/1.1\r\n" + FIELDS)
            client.sendall(b"GET /quick-else HTTP/1.1\r\n" + FIELDS)
            assert [body_of(client) for _ in range(3)][::2] == [answer, BY_APP]


def test_a_caller_who_leaves_while_an_answer_is_awaited_harms_nobody(address: Address) -> None:
    with connected(address) as client:
        assert got(client, b"/quick") == [BY_APP]
        client.sendall(b"GET /quick-soon HTTP/1.1\r\n" + FIELDS)
    with connected(address) as client:
        assert got(client, b"/quick") == [BY_APP]
        assert got(client, b"/quick-soon") == [b"quick"]


def test_an_answer_that_is_awaited_is_given_before_the_service_ends(tmp_path: Path) -> None:
    for target, answer in ((b"/quick-soon", b"quick"), (b"/quick-never", BY_APP)):
        with serving(tmp_path) as (address, _):
            client = connected(address)
            assert got(client, b"/quick") == [BY_APP]
            client.sendall(b"GET %b HTTP/1.1\r\n%b" % (target, FIELDS))
            is_answered(client)  # it has arrived
        with client:
            assert body_of(client) == answer
            assert client.recv(1) == b""


def test_quick_answers_keep_a_connection_and_silence_ends_it(patient: Address) -> None:
    with connected(patient) as client:
        started = time.monotonic()
        assert got(client, b"/quick") == [BY_APP]
        while time.monotonic() - started < 2.5:  # longer than may be idled
            assert got(client, b"/quick") == [b"quick"]
            time.sleep(0.1)  # slow enough to be a caller who thinks
        assert client.recv(1) == b""
