"""A stream followed by Server-Sent Events: everything once, in order, also for who comes back; the slow harm nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from msgspec import structs

from benchmarks.tails import figures
from service.positions import opaque, position_of
from service.reads import tails
from service.reads.pages import StreamPage
from service.streams.errors import CatalogUnavailable, StorageUnavailable
from tests.forkserver import ForkServer
from tests.integration.test_streams_api import refused
from tests.serving import Serving, serving

NAMES = (f"tailed-{n}" for n in count())


class Event(NamedTuple):
    event: str
    id: str | None
    data: Any


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("tails")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db") as running:
        yield running


@pytest.fixture
def stream(service: Serving) -> str:
    return make(service, partitions=2)


def make(service: Serving, **settings: Any) -> str:
    name = next(NAMES)
    service.client("writer").post("/v1/streams", json={"name": name, **settings}).raise_for_status()
    return name


def post(service: Serving, stream: str, *values: int, partition: int = 0, **more: Any) -> str:
    records = [{"key": f"k{value}", "value": value, "partition": partition, **more} for value in values]
    answer = service.client("writer").post(f"/v1/streams/{stream}/records", json={"records": records})
    return str(answer.raise_for_status().json()["position"])


def events(lines: Iterator[str]) -> Iterator[Event]:
    """As a browser reads them; a comment is an event "" where it carries an id."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            data = json.loads(fields["data"]) if "data" in fields else None
            yield Event(fields.get("event", "message" if "data" in fields else ""), fields.get("id"), data)
            fields = {}


@contextmanager
def tail(service: Serving, stream: str, *, last: str | None = None, **query: Any) -> Iterator[Iterator[Event]]:
    headers = {} if last is None else {"Last-Event-ID": last}
    path = f"/v1/streams/{stream}/tail"
    with service.client("reader").stream("GET", path, params=query, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        found = events(answer.iter_lines())
        assert next(found).event == ""  # at once: from here on nothing is missed
        yield found


def values(found: Iterator[Event], number: int) -> list[Any]:
    return [next(each for each in found if each.event == "message").data["value"] for _ in range(number)]


def test_records_come_as_they_are_posted(service: Serving, stream: str) -> None:
    post(service, stream, 1)
    with tail(service, stream) as found:
        post(service, stream, 2, 3)
        post(service, stream, 4, partition=1)
        first = next(found)
        assert first.data["value"] == 2
        assert (
            first.data
            == service.client()
            .get(f"/v1/streams/{stream}/records", params={"partition": 0, "from_offset": 1, "limit": 1})
            .json()["records"][0]
        )
        assert values(found, 2) == [3, 4]


def test_it_begins_where_it_is_asked_to(service: Serving, stream: str) -> None:
    position = ""
    for n in range(5):
        position = post(service, stream, n, timestamp=1_000 * n)
    at_two = service.client().get(f"/v1/streams/{stream}/records", params={"partition": 0, "limit": 2}).json()["next"]
    for begin, expected in (("earliest", 5), ("3000", 2), (at_two, 3), ("2001", 2)):
        with tail(service, stream, **{"from": begin}) as found:
            assert values(found, expected) == list(range(5 - expected, 5))
    with tail(service, stream, **{"from": position}) as found:
        post(service, stream, 9)
        assert values(found, 1) == [9]


def test_who_comes_back_misses_nothing_and_gets_nothing_twice(service: Serving, stream: str) -> None:
    """After any record, though others came in between, and for any part of the stream."""
    for n in range(10):
        post(service, stream, n, 100 + n, partition=n % 2)
    with tail(service, stream, **{"from": "earliest"}) as found:
        whole = [next(found) for _ in range(20)]
    for cut in range(20):
        with tail(service, stream, last=whole[cut].id, **{"from": "latest"}) as found:
            post(service, stream, 1_000 + cut)
            rest = [*whole[cut + 1 :]]
            got = [next(found) for _ in range(len(rest) + 1 + cut)]
        assert {each.id for each in rest} <= {each.id for each in got} or cut
        assert sorted(each.data["value"] for each in got) == sorted(
            [*(each.data["value"] for each in rest), *range(1_000, 1_001 + cut)]
        )


def test_only_what_is_asked_for_comes(service: Serving, stream: str) -> None:
    for n in range(4):
        post(service, stream, n, partition=n % 2)
    with tail(service, stream, **{"from": "earliest", "partition": 1}) as found:
        assert values(found, 2) == [1, 3]
    with tail(service, stream, **{"from": "earliest", "key": "k2"}) as found:
        assert values(found, 1) == [2]
        post(service, stream, 5)
        post(service, stream, 2, partition=1)
        assert values(found, 1) == [2]


def test_a_tail_ends_after_its_time_and_a_heartbeat_carries_the_place(
    service: Serving, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(tails, "CHECK_S", 0.05)
    with tail(service, stream, key="nobody", timeout_ms=400) as found:
        post(service, stream, 1)
        beats = list(found)
    assert beats
    assert {each.event for each in beats} == {""}
    with tail(service, stream, last=beats[-1].id, timeout_ms=0) as found:
        assert {each.event for each in found} <= {""}  # no record


def test_many_tails_get_the_same_and_what_each_missed_before(service: Serving, stream: str) -> None:
    """Tails that begin at different places join one feed while records come."""
    stop = threading.Event()
    posted = count()

    def produce() -> None:
        while not stop.is_set():
            post(service, stream, *[next(posted) for _ in range(20)], partition=next(posted) % 2)

    def follow(_: int) -> list[int]:
        with tail(service, stream, **{"from": "earliest"}) as found:
            seen: dict[int, list[int]] = {0: [], 1: []}
            while sum(map(len, seen.values())) < 600:
                event = next(found)
                if event.event == "message":
                    seen[event.data["partition"]].append(event.data["offset"])
            assert all(offsets == list(range(len(offsets))) for offsets in seen.values())
        return [len(each) for each in seen.values()]

    with futures.ThreadPoolExecutor(9) as threads:
        producing = threads.submit(produce)
        following = list(threads.map(follow, range(8)))
        stop.set()
        producing.result()
    assert len(following) == 8


def test_a_tail_that_is_too_slow_is_told_where_it_stands(
    service: Serving, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loses its place in the queue, not its records; others go on."""
    monkeypatch.setattr(tails, "MAX_PENDING_BYTES", 1 << 20)
    text = "x" * 200_000
    with tail(service, stream) as slow, tail(service, stream) as quick:
        for _ in range(60):
            post(service, stream, 1, value=text)
            assert values(quick, 1) == [text]
        got = list(slow)
    assert got[-1].event == "overrun"
    assert 0 < len(got) <= 60
    with tail(service, stream, last=got[-1].id) as again:
        assert len(values(again, 60 - (len(got) - 1))) == 60 - (len(got) - 1)


def test_nothing_is_lost_or_repeated_through_a_killed_service(forks: ForkServer) -> None:
    """Clients that come back with their last id, posts that are repeated: each client gets each record once."""
    found = figures(rate=500, clients=3, seconds=2, popen=forks.popen)
    assert (found.followed.lost, found.followed.repeated) == (0, 0)
    assert found.followed.returns >= 3


@pytest.mark.parametrize("error", [CatalogUnavailable("it restarts"), StorageUnavailable("it is away"), OSError(5, "")])
def test_a_tail_outlives_a_catalog_and_a_storage_that_were_away(
    service: Serving, stream: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """While it catches up, and while it follows."""
    failures, real = [error], tails.read_page

    def fails_once(*args: Any) -> StreamPage:
        if failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(tails, "RETRY_S", 0.01)
    monkeypatch.setattr(tails, "read_page", fails_once)
    post(service, stream, 1)
    with tail(service, stream, **{"from": "earliest"}) as found:
        assert values(found, 1) == [1]
        failures.append(error)
        post(service, stream, 2)
        assert values(found, 1) == [2]
    assert not failures


def test_a_revoked_key_ends_its_tails(service: Serving, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "CHECK_S", 0.05)
    admin = service.client("admin")
    made = admin.post("/v1/tokens", json={"name": "passing", "role": "reader"}).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    with service.client(None).stream("GET", f"/v1/streams/{stream}/tail", headers=headers) as answer:
        found = events(answer.iter_lines())
        next(found)
        admin.delete(f"/v1/tokens/{made['id']}").raise_for_status()
        assert [each.data["code"] for each in found if each.event == "error"] == ["unauthenticated"]


def test_a_stream_that_is_deleted_ends_its_tails(service: Serving) -> None:
    stream = make(service, partitions=1)
    with tail(service, stream) as found:
        service.client("writer").delete(f"/v1/streams/{stream}").raise_for_status()
        assert [each.data["code"] for each in found if each.event == "error"] == ["unknown_partition"]


def test_a_fault_of_ours_ends_tails_and_who_comes_back_misses_nothing(
    service: Serving, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tail(service, stream) as found, tail(service, stream) as other:
        post(service, stream, 1)
        last = next(found)
        assert [last.data["value"], *values(other, 1)] == [1, 1]
        with monkeypatch.context() as broken:
            broken.setattr(tails, "_events_of", lambda *_: 1 / 0)
            post(service, stream, 2)
            assert [*found, *other] == []
    with tail(service, stream, last=last.id) as found:
        post(service, stream, 3)
        assert values(found, 2) == [2, 3]


def test_a_key_that_is_no_text_ends_a_tail_of_texts_alone(service: Serving, stream: str) -> None:
    import pyarrow as pa

    table = pa.table({"key": pa.array([b"\xff"], pa.binary()), "value": ["1"], "partition": [0]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with tail(service, stream) as texts, tail(service, stream, key_encoding="base64") as encoded:
        service.client("writer").post(
            f"/v1/streams/{stream}/records",
            content=sink.getvalue().to_pybytes(),
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        ).raise_for_status()
        assert [each.data["code"] for each in texts if each.event == "error"] == ["key_not_text"]
        assert next(encoded).data["key"] == "/w=="


@pytest.mark.parametrize(
    ("query", "pointer", "code"),
    [
        ({"from": "yesterday"}, "?from", "invalid_cursor"),
        ({"from": "x" * 32_001}, "?from", "invalid_request"),
        ({"key": "x" * 10_001}, "?key", "invalid_request"),
        ({"partition": -1}, "?partition", "invalid_request"),
        ({"partition": "one"}, "?partition", "invalid_request"),
        ({"timeout_ms": -1}, "?timeout_ms", "invalid_request"),
        ({"key_encoding": "hex"}, "?key_encoding", "invalid_request"),
        ({"since": "1"}, "?since", "invalid_request"),
    ],
)
def test_a_query_that_can_not_be_is_refused(
    service: Serving, stream: str, query: dict[str, Any], pointer: str, code: str
) -> None:
    answer = service.client("reader").get(f"/v1/streams/{stream}/tail", params=query)
    assert refused(answer, 422, code) == [pointer]


def test_what_is_not_there_or_not_allowed_is_refused(service: Serving, stream: str) -> None:
    path = f"/v1/streams/{stream}/tail"
    refused(service.client("reader").get("/v1/streams/nothing/tail"), 404, "unknown_stream")
    refused(service.client("reader").get(path, params={"partition": 2}), 404, "unknown_partition")
    refused(service.client(None).get(path), 401, "unauthenticated")
    refused(service.client("instance").get(path), 403, "forbidden")
    other = make(service, partitions=1)
    cursor = service.client().get(f"/v1/streams/{other}/records").json()["next"]
    answer = service.client("reader").get(path, headers={"Last-Event-ID": cursor})
    assert refused(answer, 422, "invalid_cursor") == ["Last-Event-ID:"]


def test_a_position_of_partitions_that_are_none_begins_at_the_end(service: Serving, stream: str) -> None:
    position = position_of(post(service, stream, 1))
    assert position is not None
    forged = opaque(structs.replace(position, offsets={"one": 0, "-1": 0}))
    with tail(service, stream, **{"from": forged}) as found:
        post(service, stream, 2)
        assert values(found, 1) == [2]


def test_the_end_of_the_service_ends_its_tails(tmp_path: Path, migrated_sqlite: bytes) -> None:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with futures.ThreadPoolExecutor(1) as threads:
        with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db") as service:
            stream = make(service, partitions=1)
            is_open = threading.Event()

            def follow() -> list[Event]:
                headers = {"Authorization": f"Bearer {service.secrets['reader']}"}
                with httpx.stream("GET", f"{service.url}/v1/streams/{stream}/tail", headers=headers) as answer:
                    is_open.set()
                    return list(events(answer.iter_lines()))

            following = threads.submit(follow)
            assert is_open.wait(30)
        assert [each.event for each in following.result(30)] == [""]
