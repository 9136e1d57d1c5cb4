"""Webhooks out: records posted to a target, signed, in order, again until they are taken; and what is refused."""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import select

from benchmarks.running import PATIENCE_S, Running, wait_until
from service.catalog.engine import Catalog
from service.catalog.tables import SubscriptionRow
from service.webhooks import pusher, sender
from service.webhooks.messages import messages_of
from service.webhooks.signing import key_of, signed_headers
from tests.forkserver import Forked, ForkServer
from tests.integration.test_streams_api import refused
from tests.serving import Serving, serving

Json = dict[str, Any]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NAMES = (f"pushed-{n}" for n in count())


class Request(NamedTuple):
    """What a target got."""

    path: str
    headers: dict[str, str]
    body: bytes
    at_ms: float

    @property
    def record(self) -> Json:
        found: Json = json.loads(self.body)["data"]
        return found


class Target:
    """Takes what is posted; `answer` says with which status, and may say more of the answer's body."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.answer: Callable[[Request], tuple[int, dict[str, str]]] = lambda _: (204, {})
        target = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:  # who was killed between the two: nobody waits for an answer
                    self.close_connection = True
                    return
                fields = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, fields, body, time.time() * 1000)
                target.seen.append(request)
                status, headers = target.answer(request)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing to say."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://localhost:{self.server.server_port}/hook"

    def values(self) -> list[Any]:
        return [each.record["value"] for each in self.seen]


@pytest.fixture
def target() -> Iterator[Target]:
    made = Target()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture(scope="module", autouse=True)
def impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pusher, "FIRST_S", 0.02)
        patch.setattr(pusher, "MOST_S", 0.1)
        patch.setattr(sender, "TIMEOUT_S", 2.0)
        yield


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("webhooks")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", webhook_private_addresses="on") as running:
        yield running


@pytest.fixture
def api(service: Serving) -> httpx.Client:
    return service.client("writer")


def push(api: httpx.Client, url: str, **more: Any) -> str:
    """The path of a subscription, with a target, of a stream of its own with two partitions."""
    name = next(NAMES)
    api.post("/v1/streams", json={"name": name, "partitions": 2}).raise_for_status()
    body = {"name": name, "push": {"url": url, "secret": SECRET}, **more}
    return str(api.post(f"/v1/streams/{name}/subscriptions", json=body).raise_for_status().headers["Location"])


def post(api: httpx.Client, path: str, *values: Any, partition: int = 0) -> None:
    records = [{"key": f"k{value}", "value": value, "partition": partition} for value in values]
    api.post(f"{path.split('/subscriptions')[0]}/records", json={"records": records}).raise_for_status()


def is_done(api: httpx.Client, path: str) -> bool:
    return bool(api.get(path).raise_for_status().json()["lag_records"] == 0)


def test_each_record_is_posted_once_signed_and_in_order(api: httpx.Client, target: Target) -> None:
    path = push(api, target.url)
    post(api, path, *range(20))
    wait_until(lambda: is_done(api, path), "all records to be taken")
    assert target.values() == list(range(20))
    first = target.seen[0]
    name = path.rpartition("/")[2]
    assert first.path == "/hook"
    assert first.headers["host"] == target.url.split("/")[2]
    body = json.loads(first.body)
    assert (body["type"], body["stream"], body["subscription"]) == ("record", name, name)
    assert first.record == api.get(f"/v1/streams/{name}/records?partition=0&limit=1").json()["records"][0]
    for each in target.seen:
        timestamp = int(each.headers["webhook-timestamp"])
        expected = signed_headers(key_of(SECRET), each.headers["webhook-id"], timestamp, each.body)
        assert {header: each.headers[header] for header in expected} == expected
    assert len({each.headers["webhook-id"] for each in target.seen}) == 20


def test_a_record_that_is_not_taken_holds_up_its_partition_alone(api: httpx.Client, target: Target) -> None:
    is_well = threading.Event()

    def answer(request: Request) -> tuple[int, dict[str, str]]:
        return (200, {}) if is_well.is_set() or request.record["partition"] == 1 else (503, {})

    target.answer = answer
    path = push(api, target.url)
    post(api, path, 1, 2)
    post(api, path, 3, 4, partition=1)
    wait_until(lambda: target.values().count(1) > 3 and 4 in target.values(), "retries")
    assert 2 not in target.values()
    post(api, path, 5, partition=1)
    wait_until(lambda: 5 in target.values(), "the other partition")
    [failure] = api.get(path).json()["push"]["failures"]
    assert (failure["partition"], failure["detail"]) == (0, "answered 503")
    assert failure["attempts"] > 1
    is_well.set()
    wait_until(lambda: is_done(api, path), "all records to be taken")
    wait_until(lambda: api.get(path).json()["push"]["failures"] == [], "no failure")
    assert len({each.headers["webhook-id"] for each in target.seen}) == 5
    assert [value for value in target.values() if value in (1, 2)][-2:] == [1, 2]


def test_what_is_refused_goes_to_a_stream_of_its_own(api: httpx.Client, target: Target) -> None:
    target.answer = lambda request: (422 if request.record["value"] == 2 else 200, {})
    path = push(api, target.url)
    post(api, path, 1, 2, 3)
    wait_until(lambda: is_done(api, path), "all records to be taken")
    assert target.values() == [1, 2, 3]
    name = path.rpartition("/")[2]
    [dead] = api.get(f"/v1/streams/{name}-dead/records").raise_for_status().json()["records"]
    assert (dead["key"], dead["value"]) == ("k2", 2)
    assert dead["headers"] == {
        "millrace-webhook-status": "422",
        "millrace-webhook-stream": name,
        "millrace-webhook-partition": "0",
        "millrace-webhook-offset": "1",
    }


@pytest.mark.parametrize(
    ("answer", "detail"),
    [((302, {"Location": "/elsewhere"}), "answered 302"), ((429, {}), "answered 429"), ((500, {}), "answered 500")],
)
def test_a_redirect_is_not_followed_and_too_many_requests_are_no_refusal(
    api: httpx.Client, target: Target, answer: tuple[int, dict[str, str]], detail: str
) -> None:
    target.answer = lambda _: answer
    path = push(api, target.url)
    post(api, path, 1)
    wait_until(lambda: len(target.seen) > 2, "retries")
    assert {each.path for each in target.seen} == {"/hook"}
    wait_until(lambda: bool(api.get(path).json()["push"]["failures"]), "a failure")
    assert api.get(path).json()["push"]["failures"][0]["detail"] == detail
    api.delete(path).raise_for_status()


def test_a_target_that_asks_for_time_has_it(api: httpx.Client, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it would have been tried again after 20 ms."""
    monkeypatch.setattr(pusher, "MOST_S", 5.0)
    target.answer = lambda _: (503, {"Retry-After": "1"}) if len(target.seen) == 1 else (204, {})
    path = push(api, target.url)
    post(api, path, 1)
    wait_until(lambda: is_done(api, path), "the record to be taken")
    first, second = target.seen
    assert second.at_ms - first.at_ms >= 990  # by a clock that may be set


def test_a_target_that_is_away_is_tried_again(api: httpx.Client, target: Target) -> None:
    target.server.server_close()
    path = push(api, target.url)
    post(api, path, 1)
    wait_until(lambda: bool(api.get(path).json()["push"]["failures"]), "a failure")
    assert not is_done(api, path)
    api.delete(path).raise_for_status()


def test_a_fault_of_ours_ends_no_subscription(
    service: Serving, api: httpx.Client, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_broken = threading.Event()

    def breaking_once(*given: Any) -> Any:
        if not has_broken.is_set():
            has_broken.set()
            raise ZeroDivisionError
        return messages_of(*given)

    monkeypatch.setattr(pusher, "messages_of", breaking_once)
    path = push(api, target.url)
    post(api, path, 1)
    wait_until(lambda: is_done(api, path), "the record to be taken")
    assert has_broken.is_set()
    assert 'millrace_loop_failures_total{loop="pusher"} ' in service.client("reader").get("/metrics").text
    assert service.client().get("/readyz").json()["parts"]["loops"] == "ok"


def test_a_deleted_subscription_posts_nothing_any_more(api: httpx.Client, target: Target) -> None:
    path = push(api, target.url)
    post(api, path, 1)
    wait_until(lambda: is_done(api, path), "the record to be taken")
    api.delete(path).raise_for_status()
    other = push(api, target.url)
    post(api, path, 2)
    post(api, other, 3)
    wait_until(lambda: is_done(api, other), "the other record to be taken")
    assert target.values() == [1, 3]


def test_the_secret_is_sealed_and_never_shown(service: Serving, api: httpx.Client, target: Target) -> None:
    path = push(api, target.url)
    assert "whsec" not in api.get(path).text
    name = path.rpartition("/")[2]
    row = service.catalog.read(lambda s: s.scalars(select(SubscriptionRow).where(SubscriptionRow.name == name)).one())
    assert SECRET not in repr(vars(row))
    body = {"name": name, "push": {"url": target.url, "secret": SECRET}}
    made = path.rpartition("/")[0]
    assert api.post(made, json=body).status_code == 200
    other = {"url": target.url, "secret": "whsec_" + "A" * 32}
    refused(api.post(made, json=body | {"push": other}), 409, "subscription_exists")


def test_nobody_else_pulls_from_it(api: httpx.Client, target: Target) -> None:
    path = push(api, target.url)
    refused(api.post(f"{path}:pull", json={"consumer": "a"}), 409, "subscription_pushes")
    refused(api.post(f"{path}:ack", json={"consumer": "a", "positions": []}), 409, "subscription_pushes")


@pytest.mark.parametrize(
    ("target_of_it", "pointer"),
    [
        ({}, "/push/url"),
        ({"url": "ftp://example.org/"}, "/push/url"),
        ({"url": "http:///nowhere"}, "/push/url"),
        ({"url": "http://user@example.org/"}, "/push/url"),
        ({"url": "http://example.org:99999/"}, "/push/url"),
        ({"url": "http://exämple.org/"}, "/push/url"),
        ({"url": "http://example.org/ x"}, "/push/url"),
        ({"url": f"http://example.org/{'x' * 2_000}"}, "/push/url"),
        ({"url": 5}, "/push/url"),
        ({"url": "http://example.org/", "secret": "whsec_AAAA"}, "/push/secret"),
        ({"url": "http://example.org/", "secret": 7}, "/push/secret"),
        ({"url": "http://example.org/", "method": "PUT"}, "/push/method"),
    ],
)
def test_a_target_that_is_none_is_refused(api: httpx.Client, target_of_it: Json, pointer: str) -> None:
    name = next(NAMES)
    api.post("/v1/streams", json={"name": name}).raise_for_status()
    body = {"name": "x", "push": {"secret": SECRET, **target_of_it}}
    assert refused(api.post(f"/v1/streams/{name}/subscriptions", json=body), 422, "invalid_spec") == [pointer]


def test_private_addresses_are_refused_unless_a_setting_allows_them(
    tmp_path: Path, migrated_sqlite: bytes, target: Target
) -> None:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db") as running:
        api = running.client("writer")
        api.post("/v1/streams", json={"name": "s", "partitions": 1}).raise_for_status()
        for host in ("127.0.0.1", "[::1]", "169.254.169.254", "localhost"):
            body = {"name": "x", "push": {"url": f"http://{host}:{target.server.server_port}/", "secret": SECRET}}
            answer = api.post("/v1/streams/s/subscriptions", json=body)
            assert refused(answer, 422, "invalid_spec") == ["/push/url"]
        # one that only who connects finds to be this machine
        body = {"name": "x", "push": {"url": f"http://127.1:{target.server.server_port}/", "secret": SECRET}}
        path = api.post("/v1/streams/s/subscriptions", json=body).raise_for_status().headers["Location"]
        post(api, path, 1)
        wait_until(lambda: bool(api.get(path).json()["push"]["failures"]), "a failure")
        assert "no public address" in api.get(path).json()["push"]["failures"][0]["detail"]
        assert target.seen == []


def test_of_several_processes_one_posts_a_record(tmp_path: Path, postgres_url: str, target: Target) -> None:
    private = {"webhook_private_addresses": "on"}
    with serving(tmp_path, postgres_url, **private) as one, serving(tmp_path, postgres_url, **private) as two:
        path = push(one.client(), target.url)
        wait_until(lambda: len(one.client().get(path).json()["consumers"]) == 2, "both pushers")
        for n in range(10):
            post((one, two)[n % 2].client(), path, *range(10 * n, 10 * n + 10), partition=n % 2)
        wait_until(lambda: is_done(two.client(), path), "all records to be taken")
    assert sorted(target.values()) == list(range(100))
    for partition in range(2):
        offsets = [each.record["offset"] for each in target.seen if each.record["partition"] == partition]
        assert offsets == sorted(offsets)


def test_a_pusher_that_is_killed_in_the_middle_of_a_turn_is_replaced_behind_its_lease(
    tmp_path: Path, postgres_url: str, target: Target, forks: ForkServer
) -> None:
    """What the target took and nobody acknowledged comes again, under the ids that it had."""

    def popen(args: list[str], **how: Any) -> Forked:
        return forks.popen([sys.executable, "-m", "tests.short_turns", *args[3:]], **how)

    environment = {
        "MILLRACE_DATABASE_URL": postgres_url,
        "MILLRACE_API_KEY": "one-key-for-both-of-them",
        "MILLRACE_SECRET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "MILLRACE_STORAGE_URI": str(tmp_path / "storage"),
        "MILLRACE_WEBHOOK_PRIVATE_ADDRESSES": "on",
    }
    first, second = (
        Running(tmp_path / name, instances=0, environment=environment, popen=popen) for name in ("one", "two")
    )
    has_died = threading.Event()

    def answer(request: Request) -> tuple[int, dict[str, str]]:
        if request.record["partition"] == 0 and request.record["offset"] == 5 and not has_died.is_set():
            first.process.kill()  # the five before it were answered, and are not acknowledged: the turn is not over
            first.process.wait(PATIENCE_S)
            has_died.set()
        return 204, {}

    target.answer = answer
    with first:
        path = push(first.client, target.url)
        wait_until(lambda: len(first.client.get(path).json()["consumers"]) == 1, "its pusher")
        stream = path.split("/subscriptions")[0]
        records = [{"value": n, "partition": n % 2} for n in range(40)]
        first.client.post(f"{stream}/records", json={"records": records}).raise_for_status()
        assert has_died.wait(PATIENCE_S)
    catalog = Catalog(postgres_url)
    [lease] = catalog.read(lambda s: s.scalars(select(SubscriptionRow.consumers)).one()).values()
    catalog.close()
    with second:
        wait_until(lambda: is_done(second.client, path), "all records to be taken")
    for partition in range(2):
        of_it = [each for each in target.seen if each.record["partition"] == partition]
        offsets = [each.record["offset"] for each in of_it]
        begun_again = max(place for place, offset in enumerate(offsets) if offset == 0)
        assert offsets == [*range(begun_again), *range(20)]
        assert begun_again == 6 or partition == 1
        assert of_it[begun_again].at_ms >= lease["until_ms"]
    ids = {(each.record["partition"], each.record["offset"], each.headers["webhook-id"]) for each in target.seen}
    assert len(ids) == len({webhook_id for _, _, webhook_id in ids}) == 40
