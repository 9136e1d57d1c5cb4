"""The client against a real server that loses answers: what is asked again, and under which ids."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from service.protocol import HeartbeatRequest, JoinRequest, PollRequest, SlotRequest, TaskCommit, TaskError
from spark_jobs.client import Api, Gone, Refused, Unreachable

Answer = tuple[int, dict[str, Any]] | None  # None: the connection is closed without one
COMMIT = TaskCommit("c1", "t", 1, 0, positions=[])


class Server(ThreadingHTTPServer):
    """Gives one prepared answer after another, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, Any, str | None]] = []
        self.connections: set[Any] = set()
        self.proxy_logins: list[str | None] = []
        self.closes_silently, self.has_closed = False, threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        self.server.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
        self.server.connections.add(self.client_address)
        self.server.proxy_logins.append(self.headers.get("Proxy-Authorization"))
        answer = self.server.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, document = answer
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = self.server.closes_silently

    def finish(self) -> None:
        super().finish()
        self.connection.close()
        self.server.has_closed.set()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with Api(server.url, "secret") as client:
        yield client


def problem(status: int, code: str) -> Answer:
    return status, {"code": code, "detail": "no"}


def accepted(offset: int) -> Answer:
    published = [{"stream_id": "s", "partition": 0, "first_offset": offset, "end_offset": offset + 1}]
    verdict = {"task": "t", "commit_id": "c1", "status": "accepted", "reason": None, "version": 1}
    return 200, {"results": [verdict | {"published": published}]}


def test_every_request_carries_the_key(server: Server, api: Api) -> None:
    server.answers = [(200, {"results": []})]
    api.commit("/slot", [])
    assert server.asked[0][3] == "Bearer secret"


def test_a_commit_whose_answer_was_lost_is_repeated_under_the_same_id(server: Server, api: Api) -> None:
    server.answers = [None, accepted(42)]
    (verdict,) = api.commit("/slot", [COMMIT])
    assert (verdict.status, verdict.published[0].first_offset) == ("accepted", 42)
    assert [body["commits"][0]["commit_id"] for _, _, body, _ in server.asked] == ["c1", "c1"]
    assert server.asked[0] == server.asked[1]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_an_answer_that_settles_nothing_is_asked_for_again(server: Server, api: Api, status: int) -> None:
    server.answers = [problem(status, "busy"), accepted(0)]
    assert api.commit("/slot", [COMMIT])[0].status == "accepted"


def test_reserved_segments_keep_their_ids_when_asked_again(server: Server, api: Api) -> None:
    server.answers = [None, (200, {"paths": {"s1": "segments/s1", "s2": "segments/s2"}})]
    assert api.register_segments("/slot", 2) == [("s1", "segments/s1"), ("s2", "segments/s2")]
    assert server.asked[0][2] == server.asked[1][2]


@pytest.mark.parametrize(
    ("status", "error"), [(404, Gone), (410, Gone), (401, Refused), (403, Refused), (409, Refused), (422, Refused)]
)
def test_a_refusal_is_not_asked_for_again(server: Server, api: Api, status: int, error: type[Refused]) -> None:
    server.answers = [problem(status, "some_code")]
    with pytest.raises(error, match="some_code"):
        api.commit("/slot", [])
    assert len(server.asked) == 1


def test_a_refusal_that_is_no_problem_document_still_says_its_status(server: Server, api: Api) -> None:
    server.answers = [(403, {"oops": True})]
    with pytest.raises(Refused, match="403"):
        api.commit("/slot", [])


def test_patience_ends(server: Server, api: Api) -> None:
    server.answers = [None] * 100
    with pytest.raises(Unreachable):
        api.commit("/slot", [], patience_s=0.2)


def test_nobody_there_is_unreachable() -> None:
    with Api("http://127.0.0.1:1", "secret") as api, pytest.raises(Unreachable):
        api.commit("/slot", [], patience_s=0.1)


def test_a_poll_tells_work_changelog_ends_and_skips(server: Server, api: Api) -> None:
    chunk = ["p", "s", 0, 0, 9, 1, 5, 15, 10]
    task = {
        "task": "t",
        "name": "0_0",
        "sub_topology": 0,
        "partition": 0,
        "epoch": 2,
        "version": 3,
        "inputs": [{"stream_id": "in", "partition": 0, "position": 5, "end": 100}],
        "work": [{"input": 0, "start": 5, "end": 15, "chunks": [chunk]}],
        "changelogs": {"store": 7},
        "skips": [[0, 9]],
        "a_field_of_a_later_version": True,
        "advance": None,
    }
    server.answers = [(200, {"directive": "run", "tasks": [task]})]
    (found,) = api.poll("/slot", PollRequest(timeout_ms=0)).tasks
    [work] = found.work
    assert (work.start, work.end, work.chunks[0].records, work.chunks[0].is_sparse) == (5, 15, 10, False)
    assert (found.changelogs, found.skips) == ({"store": 7}, [(0, 9)])


def make_verbs() -> list[Callable[[Api], object]]:
    return [
        lambda api: api.join_instance(JoinRequest("i", "1", "here", 1)),
        lambda api: api.heartbeat("i", HeartbeatRequest("1")),
        lambda api: api.lose_executors("i", "1", ["0"]),
        lambda api: api.join_slot("i", SlotRequest("s", "j", 0)),
        lambda api: api.poll("/slot", PollRequest(timeout_ms=0)),
        lambda api: api.find_chunks("/slot", "s", 0, 0, 1),
        lambda api: api.fail_task("/slot", task_id="t", epoch=1, error=TaskError("x", "y")),
    ]


@pytest.mark.parametrize("verb", make_verbs())
def test_whatever_is_asked_of_the_gone_is_answered_with_gone(
    server: Server, api: Api, verb: Callable[[Api], object]
) -> None:
    server.answers = [problem(410, "instance_gone")]
    with pytest.raises(Gone):
        verb(api)


# ---------------------------------------------------------------- connections


def test_a_connection_is_kept_for_the_next_request(server: Server, api: Api) -> None:
    server.answers = [(200, {"results": []})] * 3
    for _ in range(3):
        api.commit("/slot", [])
    assert len(server.connections) == 1


def test_a_connection_that_was_closed_while_idle_costs_no_attempt(server: Server, api: Api) -> None:
    """The answer does not say that the server closes, and the next request finds out before it is sent."""
    server.answers = [(200, {"results": []})] * 2
    server.closes_silently = True
    api.commit("/slot", [])
    server.has_closed.wait(10)
    api.commit("/slot", [], patience_s=0.0)
    assert len(server.connections) == 2


def test_where_one_does_not_answer_the_next_is_asked_from_then_on(server: Server) -> None:
    server.answers = [(200, {"results": []})] * 2
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with Api(f"{nobody},{server.url}/", "secret") as api:
        for _ in range(2):
            api.commit("/slot", [])
        assert api._at == 1
    assert [asked[1] for asked in server.asked] == ["/slot:commit"] * 2


def test_who_can_not_answer_is_left_and_who_says_no_is_not(server: Server) -> None:
    server.answers = [problem(503, "catalog_unavailable"), (200, {"results": []}), problem(410, "instance_gone")]
    with Api(f"{server.url},{server.url}", "secret") as api:
        api.commit("/slot", [])
        assert api._at == 1
        with pytest.raises(Gone):
            api.commit("/slot", [])
        assert api._at == 1


def test_one_that_hangs_is_left_before_the_lease_is_over(server: Server) -> None:
    """Its connections are taken, by its machine, and nothing comes."""
    joined = {"instance_id": "i", "lease_ms": 2_000, "storage_uri": "s", "lineage": "l", "scale_down_timeout_ms": 0}
    server.answers = [(200, joined), problem(503, "catalog_unavailable"), (200, {"directive": "run", "tasks": []})]
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        silent = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with Api(f"{server.url},{silent}", "secret") as api:
            api.join_instance(JoinRequest("one", "1", "here", 1))
            asked_s = time.monotonic()
            api.poll("/slot", PollRequest(timeout_ms=10_000))  # refused here, unheard there, answered here
            assert 0.8 <= time.monotonic() - asked_s < 6.0  # not the ten seconds of one that there is no other of
    assert [body["timeout_ms"] for _, path, body, _ in server.asked if path == "/slot:poll"] == [400, 400]


def test_of_one_process_an_answer_may_take_its_time(server: Server) -> None:
    joined = {"instance_id": "i", "lease_ms": 2_000, "storage_uri": "s", "lineage": "l", "scale_down_timeout_ms": 0}
    server.answers = [(200, joined), (200, {"directive": "run", "tasks": []})]
    with Api(server.url, "secret") as api:
        api.join_instance(JoinRequest("one", "1", "here", 1))
        api.poll("/slot", PollRequest(timeout_ms=10_000))
    assert server.asked[-1][2]["timeout_ms"] == 10_000


def test_a_proxy_of_the_environment_is_asked_for_other_machines(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//user:pass%20word@"))
    server.answers = [(200, {"results": []})]
    with Api("http://millrace.example:8080", "secret") as api:
        api.commit("/slot", [])
    assert server.asked[0][1] == "http://millrace.example:8080/slot:commit"
    assert server.proxy_logins == ["Basic " + base64.b64encode(b"user:pass word").decode()]


def test_no_proxy_is_asked_for_this_machine(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server.answers = [(200, {"results": []})]
    with Api(server.url, "secret") as api:
        api.commit("/slot", [])
    assert server.asked[0][1] == "/slot:commit"
