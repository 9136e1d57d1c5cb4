"""Small posts over HTTP: the quick way and the route answer alike, keep alike, and see what others change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from sqlalchemy.exc import InternalError

from service.catalog import streams
from service.catalog.engine import Catalog
from service.ingest import AppendBuffer
from service.payloads import JSON, NDJSON
from service.positions import position_of
from service.problems import MEDIA_TYPE
from service.storage.segments import Storage
from service.streams.errors import CatalogUnavailable, StorageUnavailable
from tests.property.test_small_posts import FIELDS, bodies
from tests.serving import Serving, serving

KEYS = (f"key-{n}" for n in count())
NAMES = (f"posts-{n}" for n in count())
ONE = b'{"records":[{"key":"a","value":1,"timestamp":5}]}'
GOOD = b"\n".join(
    b'{"key":%s,"value":{"a":%d,"s":"t"},"timestamp":%d,"headers":{"h":"v"}}' % (key, n, n)
    for n, key in enumerate([b'"k"', b"null", b'"\xc3\xa9"'] * 4)
)
BUFFER_BYTES = 1 << 20
QUICK_READ = "_read"  # of a stream's settings, ahead of the framework
ROUTE_READ = "_writable"  # the same in the route


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("posts")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    how = {"key_cache_ms": 600_000, "ingest_buffer_bytes": BUFFER_BYTES}
    with serving(folder, f"sqlite:///{folder}/catalog.db", **how) as running:
        yield running


@pytest.fixture(scope="module")
def writer(service: Serving) -> httpx.Client:
    """A writer whose key the service knows already."""
    client = service.client("writer")
    client.get("/v1/streams").raise_for_status()
    return client


def make(writer: httpx.Client, **how: Any) -> str:
    """The name of a new stream that the service has met in a post."""
    name = next(NAMES)
    writer.post("/v1/streams", json={"name": name, **how}).raise_for_status()
    return name


def post(writer: httpx.Client, name: str, body: bytes, media_type: str = JSON, **headers: str) -> httpx.Response:
    headers = {"Content-Type": media_type, **headers}
    return writer.post(f"/v1/streams/{name}/records", content=body, headers=headers)


def by_route(writer: httpx.Client, name: str, body: bytes, media_type: str = JSON) -> httpx.Response:
    """The same post, by the way that an Idempotency-Key takes."""
    return post(writer, name, body, media_type, **{"Idempotency-Key": next(KEYS)})


def kept(writer: httpx.Client, name: str) -> list[dict[str, Any]]:
    """All records of a stream."""
    partitions = len(writer.get(f"/v1/streams/{name}").json()["partitions"])
    pages = (
        writer.get(f"/v1/streams/{name}/records", params={"partition": p, "limit": 9999}) for p in range(partitions)
    )
    return [record for page in pages for record in page.json()["records"]]


def said(answer: httpx.Response, name: str) -> tuple[Any, ...]:
    """What an answer says, but for what differs by stream and request."""
    found = answer.json()
    if answer.status_code == 200:
        position = position_of(found.pop("position"))
        assert position is not None
        found["reached"] = position.offsets
    else:
        assert found.pop("request_id") == answer.headers["X-Request-Id"]
        assert found.pop("instance") == f"/v1/streams/{name}/records"
        found = json.loads(re.sub(r"arrival at \d+", "arrival", json.dumps(found)))
    return answer.status_code, answer.headers["Content-Type"], found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the service has read from its catalog."""
    works: list[str] = []
    read = Catalog.read

    def counted(self: Catalog, work: Callable[..., Any], *args: Any, **how: Any) -> Any:
        works.append(work.__name__)
        return read(self, work, *args, **how)

    monkeypatch.setattr(Catalog, "read", counted)
    return works


@pytest.mark.parametrize("fields", [None, FIELDS])
def test_the_quick_way_and_the_route_say_and_keep_the_same(writer: httpx.Client, fields: dict[str, str] | None) -> None:
    how = {"partitions": 4, "fields": fields, "max_future_ms": 2**53 - 1}
    quick, route = make(writer, **how), make(writer, **how)

    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture],
        max_examples=60,
        phases=[Phase.explicit, Phase.generate],
    )
    @example((True, GOOD))
    @given(bodies())
    def alike(body: tuple[bool, bytes]) -> None:
        is_ndjson, text = body
        media_type = NDJSON if is_ndjson else JSON
        assert said(post(writer, quick, text, media_type), quick) == said(
            by_route(writer, route, text, media_type), route
        )

    alike()
    both = [
        [{**record, "timestamp": record["timestamp"] < 10**12} for record in kept(writer, n)] for n in (quick, route)
    ]
    assert both[0] == both[1]
    assert len(both[0]) >= 12


def test_a_post_like_the_one_before_reads_nothing(writer: httpx.Client, reads: list[str]) -> None:
    name = make(writer, partitions=2)
    assert post(writer, name, ONE).json()["offsets"][0]["first"] == 0
    assert QUICK_READ in reads or "find_stream" in reads
    reads.clear()
    assert post(writer, name, ONE).json()["offsets"][0]["first"] == 1
    assert "find_stream" not in reads
    assert ROUTE_READ not in reads


def test_settings_that_another_process_changed_count_at_once(service: Serving, writer: httpx.Client) -> None:
    name = make(writer, partitions=2)
    assert post(writer, name, ONE).status_code == 200
    service.catalog.write(streams.update_stream, name, fields={"a": "long"})
    refused = post(writer, name, ONE)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/records/0/value")
    assert post(writer, name, b'{"records":[{"value":{"a":1}}]}').status_code == 200
    assert len(kept(writer, name)) == 2


def test_settings_that_changed_cost_null_keys_no_turn(service: Serving, writer: httpx.Client) -> None:
    """The quick way has given them partitions when it hears of the change, and the route gives them some again."""
    name = make(writer, partitions=4)
    two = b'{"records":[{"value":1},{"value":2}]}'
    assert [at["partition"] for at in post(writer, name, two).json()["offsets"]] == [0, 1]
    service.catalog.write(streams.update_stream, name, retention_ms=86_400_000)
    assert [at["partition"] for at in post(writer, name, two).json()["offsets"]] == [2, 3]
    assert [at["partition"] for at in post(writer, name, two).json()["offsets"]] == [0, 1]


def test_a_stream_that_is_gone_is_unknown_and_one_made_again_gets_the_records(
    service: Serving, writer: httpx.Client
) -> None:
    name = make(writer, partitions=2)
    assert post(writer, name, ONE).status_code == 200
    service.catalog.write(streams.delete_stream, name)
    assert post(writer, name, ONE).json()["code"] == "unknown_stream"
    service.catalog.write(streams.create_stream, name, partitions=1)
    answer = post(writer, name, ONE).json()
    assert answer["offsets"] == [{"partition": 0, "first": 0, "last": 0}]
    assert len(kept(writer, name)) == 1


def test_the_first_given_partition_marks_the_stream_and_the_next_goes_the_quick_way(
    writer: httpx.Client, reads: list[str]
) -> None:
    name = make(writer, partitions=4)
    chosen = b'{"records":[{"key":"a","partition":3}]}'
    for first in range(3):
        reads.clear()
        assert post(writer, name, chosen).json()["offsets"] == [{"partition": 3, "first": first, "last": first}]
    assert writer.get(f"/v1/streams/{name}").json()["custom_partitioning"]
    assert ROUTE_READ not in reads


def test_many_at_once_share_segments_and_get_offsets_of_their_own(service: Serving, writer: httpx.Client) -> None:
    name = make(writer, partitions=3)
    clients = [service.client("writer") for _ in range(8)]

    def posts(number: int) -> list[dict[str, Any]]:
        records = [{"key": f"{number}-{turn}", "value": turn, "timestamp": turn} for turn in range(20)]
        return [post(clients[number], name, json.dumps({"records": [record]}).encode()).json() for record in records]

    with ThreadPoolExecutor(len(clients)) as threads:
        answers = list(threads.map(posts, range(len(clients))))
    found = {(record["partition"], record["offset"]): record for record in kept(writer, name)}
    assert len(found) == 8 * 20
    for number, of_client in enumerate(answers):
        for turn, answer in enumerate(of_client):
            (at,) = answer["offsets"]
            assert at["first"] == at["last"]
            assert found[at["partition"], at["first"]]["key"] == f"{number}-{turn}"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OSError("no space left"), 503, "storage_unavailable"),
        (InternalError("SELECT 1", {}, RuntimeError("the database is broken")), 503, "catalog_unavailable"),
        (ZeroDivisionError("nobody foresaw this"), 500, "internal_error"),
    ],
)
def test_what_keeps_a_group_out_is_answered_as_by_the_route(
    writer: httpx.Client, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    name = make(writer, partitions=1)
    assert post(writer, name, ONE).status_code == 200

    def refuse(*_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(Storage, "write", refuse)
        quick, route = post(writer, name, ONE), by_route(writer, name, ONE)
    assert said(quick, name) == said(route, name)
    assert quick.headers.get("Retry-After") == route.headers.get("Retry-After")
    assert (quick.status_code, quick.headers["Content-Type"], quick.json()["code"]) == (status, MEDIA_TYPE, code)
    assert post(writer, name, ONE).json()["offsets"] == [{"partition": 0, "first": 1, "last": 1}]


def test_a_group_that_fails_fails_for_each_who_posted(
    service: Serving, writer: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make(writer, partitions=1)
    assert post(writer, name, ONE).status_code == 200
    clients = [service.client("writer") for _ in range(8)]
    groups: list[int] = []
    write = AppendBuffer._write

    def refuse(self: AppendBuffer, group: Any) -> Any:
        groups.append(sum(one.requests for one in group))
        if sum(groups) <= len(clients):
            raise StorageUnavailable("no space left")
        return write(self, group)

    monkeypatch.setattr(AppendBuffer, "_write", refuse)
    with ThreadPoolExecutor(len(clients)) as threads:
        answers = list(threads.map(lambda client: post(client, name, ONE), clients))
    assert [answer.json()["code"] for answer in answers] == ["storage_unavailable"] * len(clients)
    assert sum(groups) == len(clients)
    assert post(writer, name, ONE).json()["offsets"] == [{"partition": 0, "first": 1, "last": 1}]


def test_a_full_buffer_is_answered_as_by_the_route(
    service: Serving, writer: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make(writer, partitions=1)
    assert post(writer, name, ONE).status_code == 200
    is_writing, may_write = Event(), Event()
    write = Storage.write

    def slow(self: Storage, *args: Any) -> None:
        is_writing.set()
        assert may_write.wait(30)
        write(self, *args)

    monkeypatch.setattr(Storage, "write", slow)
    large = b'{"records":[{"value":"%s"}]}' % (b"x" * BUFFER_BYTES)
    with ThreadPoolExecutor(1) as thread:
        posted = thread.submit(post, service.client("writer"), name, large)
        assert is_writing.wait(30)
        quick, route = post(writer, name, ONE), by_route(writer, name, ONE)
        may_write.set()
        assert posted.result().status_code == 200
    assert said(quick, name) == said(route, name)
    assert (quick.status_code, quick.json()["code"]) == (429, "ingest_buffer_full")
    assert post(writer, name, ONE).status_code == 200


def test_a_commit_whose_confirmation_is_lost_counts_once(
    service: Serving, writer: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that changed in between do not send records that are published around again."""
    name = make(writer, partitions=1)
    assert post(writer, name, ONE).status_code == 200
    write = Catalog.write
    lost: list[str] = []

    def lose(self: Catalog, work: Callable[..., Any], *args: Any, **how: Any) -> Any:
        result = write(self, work, *args, **how)
        if work.__name__ == "publish_group" and not lost:
            lost.append(work.__name__)
            write(service.catalog, streams.update_stream, name, max_future_ms=1)
            raise CatalogUnavailable("the confirmation is lost")
        return result

    monkeypatch.setattr(Catalog, "write", lose)
    answer = post(writer, name, ONE)
    assert lost
    assert answer.json()["offsets"] == [{"partition": 0, "first": 1, "last": 1}]
    assert len(kept(writer, name)) == 2


@pytest.mark.parametrize(
    ("media_type", "headers"),
    [
        (JSON + "; charset=utf-8", {}),
        (JSON, {"Content-Encoding": "identity"}),
        (JSON, {"Idempotency-Key": "once"}),
    ],
)
def test_what_is_not_plain_takes_the_route(
    writer: httpx.Client, reads: list[str], media_type: str, headers: dict[str, str]
) -> None:
    name = make(writer, partitions=1)
    assert post(writer, name, ONE, media_type, **headers).status_code == 200
    assert ROUTE_READ in reads


def test_a_key_that_is_revoked_posts_no_more(service: Serving, writer: httpx.Client) -> None:
    name = make(writer, partitions=1)
    admin = service.client("admin")
    token = admin.post("/v1/tokens", json={"role": "writer", "name": "short-lived"}).json()
    other = service.client(None, Authorization=f"Bearer {token['key']}")
    assert [post(other, name, ONE).status_code for _ in range(3)] == [200, 200, 200]
    admin.delete(f"/v1/tokens/{token['id']}").raise_for_status()
    assert post(other, name, ONE).status_code == 401
    assert len(kept(writer, name)) == 3


def test_a_stream_of_the_service_itself_takes_no_posts(service: Serving, writer: httpx.Client) -> None:
    name = next(NAMES)
    service.catalog.write(streams.create_stream, name, partitions=1, kind="changelog")
    for _ in range(2):
        quick, route = post(writer, name, ONE), by_route(writer, name, ONE)
        assert said(quick, name) == said(route, name)
        assert (quick.status_code, quick.json()["code"]) == (403, "internal_stream")


def test_a_reader_and_a_stranger_are_refused_as_ever(service: Serving, writer: httpx.Client) -> None:
    name = make(writer, partitions=1)
    assert post(writer, name, ONE).status_code == 200
    reader, stranger = service.client("reader"), service.client(None)
    reader.get("/v1/streams").raise_for_status()
    assert post(reader, name, ONE).status_code == 403
    assert post(stranger, name, ONE).status_code == 401
    assert len(kept(writer, name)) == 1
