"""Subscriptions over HTTP: at least once, in order, shared by who pulls; and what is refused."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import ClientDisconnect

from benchmarks.running import Running, wait_until
from service.catalog.subscriptions import PullWish
from service.notify import Hub
from service.reads import pages
from service.reads import subscriptions as reads
from service.storage.segments import open_storage
from tests.conftest import DATABASES, database
from tests.forkserver import ForkServer
from tests.integration.test_streams_api import refused
from tests.serving import Serving, serving

Json = dict[str, Any]

NAMES = (f"followed-{n}" for n in count())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("subscriptions")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db") as running:
        yield running


@pytest.fixture(scope="module")
def api(service: Serving) -> httpx.Client:
    return service.client("writer")


@pytest.fixture
def stream(api: httpx.Client) -> str:
    name = next(NAMES)
    api.post("/v1/streams", json={"name": name, "partitions": 2}).raise_for_status()
    return name


@pytest.fixture
def path(api: httpx.Client, stream: str) -> str:
    """The path of a subscription of a stream with two partitions, from its start."""
    body = {"name": "billing", "start": "earliest"}
    return api.post(f"/v1/streams/{stream}/subscriptions", json=body).raise_for_status().headers["Location"]


def post(api: httpx.Client, path: str, *values: Any, partition: int = 0) -> None:
    records = [{"key": f"k{value}", "value": value, "partition": partition} for value in values]
    api.post(f"{path.split('/subscriptions')[0]}/records", json={"records": records}).raise_for_status()


def pull(api: httpx.Client, path: str, consumer: str = "a", **more: Any) -> Json:
    found: Json = api.post(f"{path}:pull", json={"consumer": consumer, **more}).raise_for_status().json()
    return found


def ack(api: httpx.Client, path: str, pulled: Json, consumer: str = "a") -> Json:
    body = {"consumer": consumer, "positions": pulled["positions"]}
    found: Json = api.post(f"{path}:ack", json=body).raise_for_status().json()
    return found


def lease_until(api: httpx.Client, path: str) -> str:
    """Of the only consumer; empty: there is none."""
    return "".join(each["lease_until"] for each in api.get(path).json()["consumers"])


def values(pulled: Json) -> list[Any]:
    return [record["value"] for record in pulled["records"]]


def places(pulled: Json) -> dict[int, int]:
    return {each["partition"]: each["position"] for each in pulled["positions"]}


# ---------------------------------------------------------------- read to the end


def test_each_record_comes_until_it_is_acknowledged(api: httpx.Client, path: str) -> None:
    post(api, path, 1, 2, 3)
    post(api, path, 4, partition=1)
    first = pull(api, path)
    assert sorted(values(first)) == [1, 2, 3, 4]
    assert places(first) == {0: 3, 1: 1}
    assert (first["gaps"], first["partitions"]) == ([], [0, 1])
    page = api.get(f"{path.split('/subscriptions')[0]}/records", params={"partition": 0}).json()["records"]
    assert [record for record in first["records"] if record["partition"] == 0] == page
    assert pull(api, path)["records"] == first["records"]
    assert ack(api, path, first)["positions"] == first["positions"]
    assert pull(api, path)["records"] == []
    post(api, path, 5)
    assert values(pull(api, path)) == [5]


def test_the_same_pull_gives_the_same(api: httpx.Client, path: str) -> None:
    post(api, path, 1, 2, 3)
    first = pull(api, path, pull_id="one", max=2)
    post(api, path, 4)
    assert pull(api, path, pull_id="one", max=10)["records"] == first["records"]
    assert values(pull(api, path, pull_id="two", max=10)) == [1, 2, 3, 4]


def test_keys_are_shown_as_asked(api: httpx.Client, path: str) -> None:
    post(api, path, 1)
    assert pull(api, path)["records"][0]["key"] == "k1"
    assert pull(api, path, key_encoding="base64")["records"][0]["key"] == "azE="


def test_a_pull_waits_for_records_and_only_for_its_own(service: Serving, api: httpx.Client, path: str) -> None:
    other = service.client("writer")
    assert pull(api, path, "a")["partitions"] == [0, 1]
    assert pull(api, path, "b")["partitions"] == [0]
    with futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(pull, other, path, "b", wait_ms=60_000)
        post(api, path, 1, partition=1)
        assert values(pull(api, path, "a")) == [1]
        assert not waiting.done()
        post(api, path, 2, partition=0)
        assert values(waiting.result()) == [2]


def test_a_pull_that_waits_keeps_its_lease(service: Serving, api: httpx.Client, path: str) -> None:
    other = service.client("writer")
    with futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(pull, other, path, "a", wait_ms=60_000, lease_ms=400)
        ends: set[str] = set()
        wait_until(lambda: ends.add(lease_until(api, path)) or len(ends - {""}) > 3, "longer leases")
        post(api, path, 1)
        pulled = waiting.result()
    assert values(pulled) == [1]


def test_what_a_lost_consumer_had_comes_to_another_that_waits(service: Serving, api: httpx.Client, path: str) -> None:
    post(api, path, 1, 2)
    assert values(pull(api, path, "lost", lease_ms=300)) == [1, 2]
    assert values(pull(service.client("writer"), path, "other", wait_ms=60_000)) == [1, 2]
    body = {"consumer": "lost", "positions": [{"partition": 0, "position": 2}]}
    assert refused(api.post(f"{path}:ack", json=body), 409, "lease_lost") == ["/positions/0"]


def test_who_leaves_frees_what_it_has_for_who_waits(service: Serving, api: httpx.Client, path: str) -> None:
    post(api, path, 1, 2)
    pull(api, path, "a")
    with futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(pull, service.client("writer"), path, "b", wait_ms=60_000)
        body = {"consumer": "a", "positions": [{"partition": 0, "position": 1}], "leave": True}
        assert api.post(f"{path}:ack", json=body).raise_for_status().json()["lease_until"] is None
        assert values(waiting.result()) == [2]


def test_consumers_share_and_together_get_everything_once(service: Serving, api: httpx.Client, path: str) -> None:
    for partition in range(2):
        post(api, path, *range(100 * partition, 100 * partition + 60), partition=partition)

    def consume(consumer: str) -> list[int]:
        mine, found = service.client("writer"), []
        while mine.get(path).json()["lag_records"]:
            pulled = pull(mine, path, consumer, max=7, wait_ms=100)
            found += values(pulled)
            ack(mine, path, pulled, consumer)
        return found

    with futures.ThreadPoolExecutor(3) as threads:
        found = list(threads.map(consume, ["a", "b", "c"]))
    assert sorted(value for each in found for value in each) == [*range(60), *range(100, 160)]
    for each in found:
        for low in (0, 100):
            of_partition = [value for value in each if low <= value < low + 100]
            assert of_partition == sorted(of_partition)


def test_an_answer_is_bounded_in_bytes_and_its_batch_with_it(
    api: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 2_000)
    post(api, path, *["x" * 600] * 10)
    post(api, path, *["y" * 600] * 10, partition=1)
    found: list[Any] = []
    while (pulled := pull(api, path))["records"]:
        assert len(pulled["records"]) <= 4
        beyond = [{"partition": at, "position": position + 1} for at, position in places(pulled).items()]
        answer = api.post(f"{path}:ack", json={"consumer": "a", "positions": beyond})
        assert refused(answer, 422, "position_not_delivered")
        found += values(pulled)
        ack(api, path, pulled)
    assert sorted(found) == ["x" * 600] * 10 + ["y" * 600] * 10


def test_it_shows_where_it_stands(service: Serving, api: httpx.Client, stream: str, path: str) -> None:
    post(api, path, 1, 2, 3)
    pulled = pull(api, path, max=2)
    shown = service.client("reader").get(path).raise_for_status()
    body = shown.json()
    assert (body["name"], body["stream"], body["start"]) == ("billing", stream, "earliest")
    assert (body["lag_records"], body["is_expired"], body["expires_after_ms"]) == (3, False, 604_800_000)
    assert body["lag_ms"] >= 0
    first = {"partition": 0, "position": 0, "delivered_to": 2, "end": 3, "lag_records": 3, "consumer": "a"}
    assert body["partitions"][0] | first == body["partitions"][0]
    assert body["consumers"] == [{"consumer": "a", "lease_until": pulled["lease_until"], "partitions": [0, 1]}]
    listed = service.client("reader").get(f"/v1/streams/{stream}/subscriptions").json()
    assert [each["id"] for each in listed["items"]] == [body["id"]]
    metrics = service.client("reader").get("/metrics").text
    assert f'millrace_subscription_lag_records{{stream="{stream}",subscription="billing"}} 3.0' in metrics
    assert 'millrace_subscription_pulls_total{outcome="given"}' in metrics


def test_lists_are_paged(api: httpx.Client, stream: str) -> None:
    for name in ("a", "b", "c"):
        api.post(f"/v1/streams/{stream}/subscriptions", json={"name": name}).raise_for_status()
    first = api.get(f"/v1/streams/{stream}/subscriptions?limit=2").json()
    rest = api.get(f"/v1/streams/{stream}/subscriptions?limit=2&cursor={first['next']}").json()
    assert [each["name"] for each in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next"] is None


def test_made_again_it_is_the_same_and_deleted_it_is_gone(api: httpx.Client, stream: str, path: str) -> None:
    made = f"/v1/streams/{stream}/subscriptions"
    assert api.post(made, json={"name": "billing", "start": "earliest"}).status_code == 200
    assert refused(api.post(made, json={"name": "billing"}), 409, "subscription_exists") == []
    assert api.delete(path).status_code == 204
    for answer in (api.get(path), api.delete(path), api.post(f"{path}:pull", json={"consumer": "a"})):
        refused(answer, 404, "unknown_subscription")


def test_it_starts_at_a_time(api: httpx.Client, stream: str) -> None:
    records = [{"value": n, "timestamp": 1_000 * n, "partition": n % 2} for n in range(10)]
    api.post(f"/v1/streams/{stream}/records", json={"records": records}).raise_for_status()
    body = {"name": "then", "start": {"timestamp": 6_000}}
    path = api.post(f"/v1/streams/{stream}/subscriptions", json=body).raise_for_status().headers["Location"]
    assert sorted(values(pull(api, path))) == [6, 7, 8, 9]


def test_a_pull_that_waits_ends_with_its_subscription(service: Serving, api: httpx.Client, path: str) -> None:
    with futures.ThreadPoolExecutor(1) as thread:
        body = {"consumer": "a", "wait_ms": 60_000}
        waiting = thread.submit(service.client("writer").post, f"{path}:pull", json=body)
        wait_until(lambda: bool(api.get(path).json()["consumers"]), "a consumer")
        api.delete(path).raise_for_status()
        refused(waiting.result(), 404, "unknown_subscription")


# ---------------------------------------------------------------- whose caller went away

AN_HOUR_MS = 3_600_000


def asking(service: Serving, path: str, consumer: str, **more: Any) -> socket.socket:
    """A connection on which a pull was sent."""
    body = json.dumps({"consumer": consumer, "lease_ms": AN_HOUR_MS, "wait_ms": 60_000, **more})
    fields = {"Host": "x", "Authorization": f"Bearer {service.secrets['writer']}", "Content-Type": "application/json"}
    head = [f"POST {path}:pull HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    where = urlsplit(service.url)
    connection = socket.create_connection((where.hostname, where.port))
    connection.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", body]).encode())
    return connection


def test_a_pull_that_waits_takes_nothing_once_its_caller_is_gone(
    service: Serving, api: httpx.Client, path: str
) -> None:
    """Its lease has an hour to go."""
    with asking(service, path, "gone"):
        wait_until(lambda: bool(api.get(path).json()["consumers"]), "a consumer")
    wait_until(lambda: not api.get(path).json()["consumers"], "its leaving")
    post(api, path, 1, 2)
    pulled = pull(api, path, "other")
    assert (values(pulled), pulled["partitions"]) == ([1, 2], [0, 1])
    assert 'outcome="abandoned"' in service.client("reader").get("/metrics").text


def test_records_that_come_as_a_caller_leaves_come_to_the_next_at_once(
    service: Serving, api: httpx.Client, path: str
) -> None:
    """In whatever order the service hears of the two."""
    for n in range(8):
        with asking(service, path, "gone"):
            wait_until(lambda: bool(api.get(path).json()["consumers"]), "a consumer")
        post(api, path, n)
        pulled = pull(api, path, "other", wait_ms=60_000)
        assert values(pulled) == [n]
        body = {"consumer": "other", "positions": pulled["positions"], "leave": True}
        api.post(f"{path}:ack", json=body).raise_for_status()


@pytest.fixture
def abandoned(service: Serving, path: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pull as a consumer whose caller goes while its records are read, behind what happens `meanwhile`."""

    async def run(consumer: str, meanwhile: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()

        def reading(*what: Any) -> Any:
            monkeypatch.undo()
            found = pages.read_ranges(*what)
            meanwhile()
            loop.call_soon_threadsafe(gone.set_result, None)
            return found

        monkeypatch.setattr(reads, "read_ranges", reading)
        _, _, stream, _, name = path[1:].split("/")
        deliveries = reads.Deliveries(service.catalog, open_storage(service.settings.storage_uri), Hub())
        wish = PullWish(consumer, AN_HOUR_MS, 500)
        with pytest.raises(ClientDisconnect):
            await deliveries.pull(stream, name, wish, time.monotonic(), gone)

    return lambda consumer, meanwhile=lambda: None: asyncio.run(run(consumer, meanwhile))


def test_a_batch_whose_caller_goes_while_it_is_read_is_there_for_the_next(
    api: httpx.Client, path: str, abandoned: Callable[..., None]
) -> None:
    post(api, path, 1, 2)
    abandoned("gone")
    assert api.get(path).json()["consumers"] == []
    assert values(pull(api, path, "other")) == [1, 2]


def test_a_batch_that_a_consumer_had_before_stays_its_own(
    api: httpx.Client, path: str, abandoned: Callable[..., None]
) -> None:
    post(api, path, 1, 2)
    pulled = pull(api, path, "a", max=1)
    abandoned("a")
    assert values(pull(api, path, "b")) == []
    assert ack(api, path, pulled)["positions"] == pulled["positions"]


def test_what_a_consumer_asked_for_since_stays_its_own(
    api: httpx.Client, path: str, abandoned: Callable[..., None]
) -> None:
    post(api, path, 1, 2)
    again: list[Json] = []
    abandoned("a", lambda: again.append(pull(api, path, "a", lease_ms=AN_HOUR_MS - 1_000)))
    assert values(again[0]) == [1, 2]
    assert values(pull(api, path, "b")) == []
    assert ack(api, path, again[0])["positions"] == again[0]["positions"]


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"),
        ({"name": 5}, "/name"),
        ({"name": "n" * 65}, "/name"),
        ({"name": "With-Capitals"}, "/name"),
        ({"name": "x", "start": "tomorrow"}, "/start"),
        ({"name": "x", "start": {"timestamp": -1}}, "/start/timestamp"),
        ({"name": "x", "start": {"offsets": {"2": 0}}}, "/start/offsets/2"),
        ({"name": "x", "start": {"offsets": {"0": 5}}}, "/start/offsets/0"),
        ({"name": "x", "start": {"offsets": {"other": {"0": 0}}}}, "/start/offsets/other"),
        ({"name": "x", "expires_after_ms": 0}, "/expires_after_ms"),
        ({"name": "x", "expires_after_ms": 2**53}, "/expires_after_ms"),
        ({"name": "x", "holds_retention": "yes"}, "/holds_retention"),
        ({"name": "x", "retries": 5}, "/retries"),
    ],
)
def test_a_subscription_that_is_none_is_refused(api: httpx.Client, stream: str, body: Json, pointer: str) -> None:
    assert refused(api.post(f"/v1/streams/{stream}/subscriptions", json=body), 422, "invalid_spec") == [pointer]


@pytest.mark.parametrize(
    ("verb", "body", "pointer"),
    [
        (":pull", {}, "/consumer"),
        (":pull", {"consumer": ""}, "/consumer"),
        (":pull", {"consumer": "a\u0000"}, "/consumer"),
        (":pull", {"consumer": "a", "lease_ms": 99}, "/lease_ms"),
        (":pull", {"consumer": "a", "lease_ms": 3_600_001}, "/lease_ms"),
        (":pull", {"consumer": "a", "max": 0}, "/max"),
        (":pull", {"consumer": "a", "max": 10_001}, "/max"),
        (":pull", {"consumer": "a", "wait_ms": 60_001}, "/wait_ms"),
        (":pull", {"consumer": "a", "wait_ms": "5"}, "/wait_ms"),
        (":pull", {"consumer": "a", "pull_id": 7}, "/pull_id"),
        (":pull", {"consumer": "a", "pull_id": "p" * 201}, "/pull_id"),
        (":pull", {"consumer": "a", "key_encoding": "hex"}, "/key_encoding"),
        (":pull", {"consumer": "a", "limit": 5}, "/limit"),
        (":ack", {"positions": []}, "/consumer"),
        (":ack", {"consumer": "a"}, "/positions"),
        (":ack", {"consumer": "a", "positions": {"0": 5}}, "/positions"),
        (":ack", {"consumer": "a", "positions": [{"partition": 0}]}, "/positions/0/position"),
        (":ack", {"consumer": "a", "positions": [{"partition": 0, "position": -1}]}, "/positions/0/position"),
        (":ack", {"consumer": "a", "positions": [{"partition": 0, "position": 2**63}]}, "/positions/0/position"),
        (":ack", {"consumer": "a", "positions": [{"partition": 0, "position": 0}] * 2}, "/positions/1/partition"),
        (":ack", {"consumer": "a", "positions": [], "leave": 1}, "/leave"),
    ],
)
def test_a_pull_and_an_acknowledgement_that_are_none_are_refused(
    api: httpx.Client, refusing: str, verb: str, body: Json, pointer: str
) -> None:
    assert refused(api.post(f"{refusing}{verb}", json=body), 422, "invalid_request") == [pointer]


@pytest.fixture(scope="module")
def refusing(api: httpx.Client) -> str:
    """A subscription of which nothing is taken."""
    name = next(NAMES)
    api.post("/v1/streams", json={"name": name}).raise_for_status()
    made = api.post(f"/v1/streams/{name}/subscriptions", json={"name": "s"})
    return str(made.raise_for_status().headers["Location"])


def test_a_partition_that_is_not_there_is_refused(api: httpx.Client, refusing: str) -> None:
    body = {"consumer": "a", "positions": [{"partition": 9, "position": 0}]}
    answer = api.post(f"{refusing}:ack", json=body)
    assert refused(answer, 422, "position_not_delivered") == ["/positions/0/partition"]


def test_who_may_read_may_look_and_who_may_write_may_pull(service: Serving, refusing: str) -> None:
    made = refusing.rpartition("/")[0]
    body, positions = {"consumer": "a"}, {"consumer": "a", "positions": []}
    for role, status, code in ((None, 401, "unauthenticated"), ("instance", 403, "forbidden")):
        for where in (refusing, made):
            refused(service.client(role).get(where), status, code)
    reader = service.client("reader")
    assert reader.get(refusing).status_code == reader.get(made).status_code == 200
    for role, status, code in ((None, 401, "unauthenticated"), ("reader", 403, "forbidden")):
        client = service.client(role)
        refused(client.post(f"{refusing}:pull", json=body), status, code)
        refused(client.post(f"{refusing}:ack", json=positions), status, code)
        refused(client.post(made, json={"name": "x"}), status, code)
        refused(client.delete(refusing), status, code)


def test_of_an_internal_stream_and_of_none_there_is_no_subscription(api: httpx.Client, stream: str) -> None:
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 5}
    api.post("/v1/jobs", json={"name": stream, "source": stream, "operators": [once]}).raise_for_status()
    internal = f"/v1/streams/{stream}-once-changelog/subscriptions"
    assert refused(api.post(internal, json={"name": "x"}), 403, "internal_stream") == []
    for answer in (
        api.post("/v1/streams/nothing/subscriptions", json={"name": "x"}),
        api.get("/v1/streams/nothing/subscriptions"),
        api.get("/v1/streams/nothing/subscriptions/x"),
        api.post("/v1/streams/nothing/subscriptions/x:pull", json={"consumer": "a"}),
    ):
        refused(answer, 404, "unknown_stream")


# ---------------------------------------------------------------- several processes


@pytest.fixture(params=DATABASES[1:])
def postgres_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Several processes share a catalog on Postgres alone."""
    with database(request, tmp_path) as url:
        yield url


def test_two_processes_over_one_catalog_wake_each_other(tmp_path: Path, postgres_url: str) -> None:
    with serving(tmp_path, postgres_url) as one, serving(tmp_path, postgres_url) as two:
        api, other = one.client(), two.client()
        api.post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
        path = api.post("/v1/streams/clicks/subscriptions", json={"name": "s"}).raise_for_status().headers["Location"]
        with futures.ThreadPoolExecutor(2) as threads:
            waiting = threads.submit(pull, other, path, "b", wait_ms=60_000)
            wait_until(lambda: bool(api.get(path).json()["consumers"]), "a consumer")
            post(api, path, 1)
            pulled = waiting.result()
            assert values(pulled) == [1]
            post(api, path, 2, partition=1)
            assert values(pull(api, path, "a")) == [2]  # of which `b` has nothing
            waiting = threads.submit(pull, other, path, "c", wait_ms=60_000)
            api.post(f"{path}:ack", json={"consumer": "a", "positions": [], "leave": True}).raise_for_status()
            assert values(waiting.result()) == [2]
            assert ack(api, path, pulled, "b")["positions"] == pulled["positions"]


def test_a_process_that_is_killed_between_pull_and_acknowledgement_loses_nothing(
    tmp_path: Path, postgres_url: str, forks: ForkServer
) -> None:
    """The consumer goes on at another process: with the batch that it has, and with one whose answer it never got."""
    environment = {"MILLRACE_DATABASE_URL": postgres_url, "MILLRACE_API_KEY": "one-key-for-both-of-them"}
    environment["MILLRACE_STORAGE_URI"] = str(tmp_path / "storage")
    how: dict[str, Any] = {"instances": 0, "environment": environment, "popen": forks.popen}
    first, second = (Running(tmp_path / name, **how) for name in ("one", "two"))
    with first, second:
        api, other = first.client, second.client
        api.post("/v1/streams", json={"name": "clicks", "partitions": 1}).raise_for_status()
        body = {"name": "s", "start": "earliest"}
        path = api.post("/v1/streams/clicks/subscriptions", json=body).raise_for_status().headers["Location"]
        post(api, path, *range(10))
        pulled = pull(api, path, max=4, pull_id="1")
        first.kill()
        assert pull(other, path, max=4, pull_id="1")["records"] == pulled["records"]
        assert ack(other, path, pulled)["positions"] == [{"partition": 0, "position": 4}]
        assert values(pull(other, path, max=4, pull_id="2")) == [4, 5, 6, 7]
        second.kill()
        api = first.start().client
        assert values(again := pull(api, path, max=4, pull_id="3")) == [4, 5, 6, 7]
        assert ack(api, path, again)["positions"] == [{"partition": 0, "position": 8}]
        assert ack(api, path, pulled)["positions"] == [{"partition": 0, "position": 8}]
        assert values(pull(api, path)) == [8, 9]
