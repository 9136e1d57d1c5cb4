"""Records over HTTP: posted in three formats, read back by offset and cursor, and every way in which that fails."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.catalog import segments, streams
from service.catalog.tables import ChunkRow, PartitionRow, SegmentRow, new_id
from service.payloads import ARROW, JSON, NDJSON
from service.payloads.answers import PAGE_SCHEMA
from service.storage.segments import encode_segment, open_storage, path_of
from service.streams.records import CHANGELOG_SCHEMA
from tests import openapi_documents
from tests.integration.test_streams_api import refused
from tests.serving import Serving, serving
from tests.unit.ingest.bodies import FORMATS, PREFIX, body_of, ipc

MAX_BODY_BYTES = 200_000
NAMES = (f"records-{n}" for n in count())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("records")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    url = f"sqlite:///{folder}/catalog.db"
    with serving(folder, url, max_body_bytes=MAX_BODY_BYTES, ingest_buffer_bytes=2 * MAX_BODY_BYTES) as running:
        yield running


@pytest.fixture(scope="module")
def writer(service: Serving) -> httpx.Client:
    return service.client("writer")


@pytest.fixture
def path(writer: httpx.Client) -> str:
    """The records of a new stream of one partition."""
    return make(writer, partitions=1)


def make(writer: httpx.Client, **settings: Any) -> str:
    name = next(NAMES)
    assert writer.post("/v1/streams", json={"name": name, **settings}).status_code == 201
    return f"/v1/streams/{name}/records"


def post(client: httpx.Client, path: str, body: bytes, media_type: str = JSON, **headers: str) -> httpx.Response:
    return client.post(path, content=body, headers={"Content-Type": media_type, **headers})


def read(client: httpx.Client, path: str, **query: Any) -> list[dict[str, Any]]:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["records"]
    return found


# ---------------------------------------------------------------- in


RECORDS: list[dict[str, Any]] = [
    {"key": "a", "value": {"id": 1, "text": "ü\n"}, "timestamp": 5, "headers": {"h": "x"}},
    {"key": None, "value": None, "timestamp": 6},
    {"key": "b", "value": [1.50, 12345678901234567890, "\u0000"], "timestamp": 4},
]


@pytest.mark.parametrize("media_type", FORMATS)
def test_records_come_back_as_they_went_in_on_either_database(
    database_url: str, tmp_path: Path, media_type: str
) -> None:
    with serving(tmp_path, database_url) as running:
        writer = running.client("writer")
        path = make(writer, partitions=1)
        posted = post(writer, path, body_of(media_type, RECORDS), media_type).json()
        assert posted["accepted"] == 3
        assert posted["offsets"] == [{"partition": 0, "first": 0, "last": 2}]
        assert read(running.client("reader"), path, partition=0, from_offset=0, limit=500) == [
            {"partition": 0, "offset": n, "window": None, "headers": {}, **record} for n, record in enumerate(RECORDS)
        ]


def test_equal_keys_go_to_one_partition_and_the_offsets_say_which(writer: httpx.Client) -> None:
    path = make(writer, partitions=4)
    body = body_of(NDJSON, [{"key": f"k{n % 7}", "value": n} for n in range(70)])
    posted = post(writer, path, body, NDJSON).json()
    assert sum(at["last"] - at["first"] + 1 for at in posted["offsets"]) == 70
    where: dict[str, set[int]] = {}
    for at in posted["offsets"]:
        for record in read(writer, path, partition=at["partition"]):
            where.setdefault(record["key"], set()).add(record["partition"])
    assert len(where) == 7
    assert all(len(partitions) == 1 for partitions in where.values())


def test_a_given_partition_marks_the_stream(writer: httpx.Client) -> None:
    path = make(writer, partitions=4)
    stream = path.removesuffix("/records")
    assert not writer.get(stream).json()["custom_partitioning"]
    posted = post(writer, path, b'{"records":[{"key":"a","partition":3}]}').json()
    assert posted["offsets"] == [{"partition": 3, "first": 0, "last": 0}]
    assert writer.get(stream).json()["custom_partitioning"]


def test_the_timestamp_is_the_arrival_when_none_is_given(writer: httpx.Client, path: str) -> None:
    before = time.time_ns() // 1_000_000
    post(writer, path, b'{"records":[{},{}]}')
    first, second = (record["timestamp"] for record in read(writer, path))
    assert before <= first == second <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("media_type", FORMATS)
def test_one_bad_record_refuses_all_of_them_with_a_pointer(writer: httpx.Client, media_type: str, path: str) -> None:
    body = body_of(media_type, [{"timestamp": 1}, {"timestamp": -1}, {"timestamp": 2**60}])
    prefix = PREFIX[media_type]
    answer = post(writer, path, body, media_type)
    assert refused(answer, 422, "invalid_records") == [f"{prefix}1/timestamp", f"{prefix}2/timestamp"]
    assert read(writer, path) == []


@pytest.mark.parametrize("media_type", FORMATS)
def test_fields_are_checked_with_a_pointer_per_bad_record(writer: httpx.Client, media_type: str) -> None:
    path = make(writer, partitions=1, fields={"id": "string", "n": "long?"})
    good: dict[str, Any] = {"value": {"id": "a", "n": 9007199254740993, "more": []}}
    body = body_of(media_type, [good, {"value": {"id": 1}}, {"value": {"id": "a", "n": 0.5}}, {"value": None}])
    prefix = PREFIX[media_type]
    answer = post(writer, path, body, media_type)
    expected = [f"{prefix}1/value/id", f"{prefix}2/value/n", f"{prefix}3/value/id"]
    assert refused(answer, 422, "invalid_records") == expected
    assert post(writer, path, body_of(media_type, [good]), media_type).status_code == 200
    assert read(writer, path)[0]["value"] == good["value"]


@pytest.mark.parametrize(
    ("body", "media_type", "status", "code"),
    [
        (b"", JSON, 422, "invalid_records"),
        (b"{", JSON, 422, "invalid_records"),
        (b'{"records":[]}', JSON, 422, "invalid_records"),
        (b"\n", NDJSON, 422, "invalid_records"),
        (b"{}", ARROW, 422, "invalid_records"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"{}", "application/json; charset=utf-16", 415, "unsupported_media_type"),
        (b"{}", "", 415, "unsupported_media_type"),
        (b"x" * (MAX_BODY_BYTES + 1), NDJSON, 413, "payload_too_large"),
    ],
)
def test_bodies_that_can_not_be_read_are_refused(
    writer: httpx.Client, path: str, body: bytes, media_type: str, status: int, code: str
) -> None:
    refused(post(writer, path, body, media_type), status, code)


def test_a_body_in_pieces_without_a_length_is_bounded_too(writer: httpx.Client, path: str) -> None:
    line = b'{"value":"' + b"x" * 1000 + b'"}\n'
    headers = {"Content-Type": NDJSON}
    assert writer.post(path, content=(line for _ in range(100)), headers=headers).json()["accepted"] == 100
    refused(writer.post(path, content=(line for _ in range(250)), headers=headers), 413, "payload_too_large")


def test_a_gzip_body_is_read_and_bounded_by_what_it_holds(writer: httpx.Client, path: str) -> None:
    good = gzip.compress(body_of(NDJSON, RECORDS))
    assert post(writer, path, good, NDJSON, **{"Content-Encoding": "gzip"}).json()["accepted"] == 3
    bomb = gzip.compress(b"\n" * (MAX_BODY_BYTES + 1))
    refused(post(writer, path, bomb, NDJSON, **{"Content-Encoding": "gzip"}), 413, "payload_too_large")
    refused(post(writer, path, good, NDJSON, **{"Content-Encoding": "br"}), 415, "unsupported_encoding")
    refused(post(writer, path, b"no gzip", NDJSON, **{"Content-Encoding": "gzip"}), 400, "malformed_body")


def test_an_arrow_body_is_bounded_by_what_it_unfolds_to(writer: httpx.Client, path: str) -> None:
    bomb = ipc(pa.table({"value": ['"' + "a" * MAX_BODY_BYTES + '"']}), compression="zstd")
    assert len(bomb) < MAX_BODY_BYTES // 10
    refused(post(writer, path, bomb, ARROW), 413, "payload_too_large")


def test_only_writers_post_and_only_readers_and_writers_read(service: Serving, path: str) -> None:
    for role, may_post, may_read in (
        (None, 401, 401),
        ("instance", 403, 403),
        ("reader", 403, 200),
        ("writer", 200, 200),
        ("admin", 200, 200),
    ):
        client = service.client(role)
        assert post(client, path, b'{"records":[{}]}').status_code == may_post
        assert client.get(path).status_code == may_read


def test_a_stream_that_is_not_there_is_404(writer: httpx.Client) -> None:
    refused(post(writer, "/v1/streams/nothing/records", b'{"records":[{}]}'), 404, "unknown_stream")
    refused(writer.get("/v1/streams/nothing/records"), 404, "unknown_stream")


def test_a_full_buffer_is_429_and_says_when_to_come_back(service: Serving, writer: httpx.Client, path: str) -> None:
    """Two bodies that hold the whole buffer and do not end keep a third one out, until they do."""
    held = [threading.Event() for _ in range(2)]
    release = threading.Event()
    line = b'{"value":"' + b"x" * (MAX_BODY_BYTES - 1_000) + b'"}\n'

    def slow_body(is_held: threading.Event) -> Iterator[bytes]:
        yield line
        is_held.set()
        release.wait(30)
        yield b"\n"

    answers: list[httpx.Response] = []

    def hold(is_held: threading.Event) -> None:
        client = service.client("writer")
        answers.append(client.post(path, content=slow_body(is_held), headers={"Content-Type": NDJSON}))

    threads = [threading.Thread(target=hold, args=(event,)) for event in held]
    for thread in threads:
        thread.start()
    assert all(event.wait(30) for event in held)
    while f"millrace_ingest_buffered_bytes {2.0 * len(line)}" not in writer.get("/metrics").text:
        pass  # the held bodies are on their way through the sockets
    body = b'{"records":[{"value":"' + b"x" * 50_000 + b'"}]}'
    answer = post(writer, path, body)
    refused(answer, 429, "ingest_buffer_full")
    assert int(answer.headers["Retry-After"]) >= 1
    release.set()
    for thread in threads:
        thread.join()
    assert [held_answer.status_code for held_answer in answers] == [200, 200]
    assert post(writer, path, body).status_code == 200


# ---------------------------------------------------------------- Idempotency-Key


@pytest.mark.parametrize("media_type", FORMATS)
def test_the_same_key_and_body_is_appended_once_and_answered_the_same(
    writer: httpx.Client, path: str, media_type: str
) -> None:
    body = body_of(media_type, [{"key": "a", "value": 1}])
    key = {"Idempotency-Key": "order-1"}
    first = post(writer, path, body, media_type, **key)
    again = post(writer, path, body, media_type, **key)
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert len(read(writer, path)) == 1
    other = body_of(media_type, [{"key": "a", "value": 2}])
    assert refused(post(writer, path, other, media_type, **key), 422, "idempotency_conflict") == ["Idempotency-Key:"]


def test_a_repeated_request_is_answered_even_when_its_records_would_be_refused_now(
    writer: httpx.Client, path: str
) -> None:
    body, key = b'{"records":[{"value":1}]}', {"Idempotency-Key": "k"}
    first = post(writer, path, body, **key)
    stream = path.removesuffix("/records")
    tag = {"If-Match": writer.get(stream).headers["ETag"]}
    assert writer.patch(stream, json={"fields": {"id": "string"}}, headers=tag).status_code == 200
    assert post(writer, path, body, **key).content == first.content
    refused(post(writer, path, body), 422, "invalid_records")


def test_keys_of_other_callers_and_other_streams_are_other_keys(service: Serving, path: str) -> None:
    admin, writer = service.client("admin"), service.client("writer")
    body, key = b'{"records":[{"value":1}]}', {"Idempotency-Key": "k"}
    other = make(writer, partitions=1)
    for client, target in ((admin, path), (writer, path), (writer, other)):
        assert post(client, target, body, **key).status_code == 200
    assert (len(read(writer, path)), len(read(writer, other))) == (2, 1)


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_has_1_to_255_characters(writer: httpx.Client, path: str, key: str) -> None:
    answer = post(writer, path, b'{"records":[{}]}', **{"Idempotency-Key": key})
    assert refused(answer, 422, "invalid_request") == ["Idempotency-Key:"]


def test_concurrent_requests_with_one_key_append_once(service: Serving, path: str) -> None:
    body, key = b'{"records":[{"value":1}]}', {"Idempotency-Key": "k"}
    answers: list[httpx.Response] = []
    clients = [service.client("writer") for _ in range(8)]
    threads = [
        threading.Thread(target=lambda client=client: answers.append(post(client, path, body, **key)))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({answer.content for answer in answers if answer.status_code == 200}) == 1
    for answer in answers:
        if answer.status_code == 409:
            refused(answer, 409, "idempotency_in_flight")
    assert len(read(clients[0], path)) == 1


# ---------------------------------------------------------------- out


@pytest.fixture(scope="module")
def full(writer: httpx.Client) -> str:
    """The records of a stream with 25 records in five segments."""
    path = make(writer, partitions=2)
    for start in range(0, 25, 5):
        body = body_of(NDJSON, [{"value": n, "partition": 1} for n in range(start, start + 5)])
        assert post(writer, path, body, NDJSON).status_code == 200
    return path


@pytest.mark.parametrize("limit", [1, 4, 5, 24, 25, 26])
def test_pages_follow_each_other_by_cursor_until_the_end(writer: httpx.Client, full: str, limit: int) -> None:
    values: list[int] = []
    query: dict[str, Any] = {"partition": 1, "limit": limit}
    while True:
        page = writer.get(full, params=query).json()
        assert 0 < len(page["records"]) <= limit
        values += [record["value"] for record in page["records"]]
        query = {"cursor": page["next"], "limit": limit}
        if page["at_end"]:
            break
    assert values == list(range(25))
    assert writer.get(full, params=query).json() == {"records": [], "next": page["next"], "at_end": True}


@pytest.mark.parametrize(("offset", "expected"), [(0, 25), (7, 18), (24, 1), (25, 0), (1000, 0)])
def test_reading_begins_at_an_offset(writer: httpx.Client, full: str, offset: int, expected: int) -> None:
    found = read(writer, full, partition=1, from_offset=offset)
    assert [record["offset"] for record in found] == list(range(offset, offset + expected))


def test_the_end_of_an_empty_partition_is_reached_at_once(writer: httpx.Client, full: str) -> None:
    page = writer.get(full, params={"partition": 0}).json()
    assert (page["records"], page["at_end"]) == ([], True)


def test_a_cursor_at_the_end_gives_what_comes_there(writer: httpx.Client) -> None:
    path = make(writer, partitions=2)
    at_end = writer.get(path, params={"partition": 1}).json()
    post(writer, path, body_of(NDJSON, [{"value": 1, "partition": 1}, {"value": 2, "partition": 0}]), NDJSON)
    assert [record["value"] for record in read(writer, path, cursor=at_end["next"])] == [1]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_one_cursor_is_for_all_partitions(writer: httpx.Client, limit: int) -> None:
    """Each record once, in order within its partition; a long partition keeps no other waiting."""
    path = make(writer, partitions=3)
    sizes = {0: 20, 1: 0, 2: 3}
    for partition, size in sizes.items():
        records = [{"value": n, "partition": partition} for n in range(size)]
        if records:
            post(writer, path, body_of(NDJSON, records), NDJSON)
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    query: dict[str, Any] = {"limit": limit}
    pages = 0
    while True:
        page = writer.get(path, params=query).json()
        pages += 1
        assert 0 < len(page["records"]) <= limit
        for record in page["records"]:
            found[record["partition"]].append(record["offset"])
        query = {"limit": limit, "cursor": page["next"]}
        if limit >= 2 and pages == 3:
            assert len(found[2]) == 3
        if page["at_end"]:
            break
    assert found == {partition: list(range(size)) for partition, size in sizes.items()}
    post(writer, path, body_of(NDJSON, [{"value": 1, "partition": 1}, {"value": 2, "partition": 2}]), NDJSON)
    assert [(each["partition"], each["value"]) for each in read(writer, path, **query | {"limit": 9})] == [
        (1, 1),
        (2, 2),
    ]


def test_reading_all_partitions_begins_at_a_time(writer: httpx.Client) -> None:
    path = make(writer, partitions=2)
    records = [{"value": n, "timestamp": 1_000 * n, "partition": n % 2} for n in range(10)]
    post(writer, path, body_of(NDJSON, records), NDJSON)
    assert sorted(each["value"] for each in read(writer, path, from_timestamp=6_000)) == [6, 7, 8, 9]


def test_a_cursor_of_the_widest_stream_is_taken_back(writer: httpx.Client) -> None:
    path = make(writer, partitions=1_024)
    page = writer.get(path, params={"limit": 1}).json()
    assert writer.get(path, params={"cursor": page["next"]}).json() == page


def test_an_offset_is_of_one_partition(writer: httpx.Client, full: str) -> None:
    assert refused(writer.get(full, params={"from_offset": 3}), 422, "invalid_request") == ["?from_offset"]
    assert len(read(writer, full, from_offset=0)) == 25


@pytest.mark.parametrize("query", [{}, {"partition": 0}])
def test_who_waits_gets_the_next_record_as_it_comes(
    service: Serving, writer: httpx.Client, path: str, query: dict[str, Any]
) -> None:
    at_end = writer.get(path, params=query).json()
    reader = service.client("reader")
    with futures.ThreadPoolExecutor(1) as others:
        waiting = others.submit(reader.get, path, params={"cursor": at_end["next"], "wait_ms": 60_000}, timeout=70)
        post(writer, path, b'{"records":[{"value":"new","partition":0}]}')
        page = waiting.result().json()
    assert [record["value"] for record in page["records"]] == ["new"]
    assert page["at_end"]


def test_who_waits_in_vain_gets_an_empty_page_to_read_on_from(writer: httpx.Client, path: str) -> None:
    at_end = writer.get(path).json()
    page = writer.get(path, params={"cursor": at_end["next"], "wait_ms": 50}).json()
    assert page == {"records": [], "next": at_end["next"], "at_end": True}


def test_who_waits_on_a_stream_that_is_deleted_hears_of_it(service: Serving, writer: httpx.Client) -> None:
    path = make(writer, partitions=1)
    reader = service.client("reader")
    with futures.ThreadPoolExecutor(1) as others:
        waiting = others.submit(reader.get, path, params={"wait_ms": 60_000}, timeout=70)
        writer.delete(path.removesuffix("/records"))
        assert waiting.result().status_code == 404


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"partition": -1}, "?partition"),
        ({"partition": "x"}, "?partition"),
        ({"from_offset": -1}, "?from_offset"),
        ({"from_offset": 2**63}, "?from_offset"),
        ({"limit": 0}, "?limit"),
        ({"limit": 100_001}, "?limit"),
        ({"wait_ms": -1}, "?wait_ms"),
        ({"wait_ms": 60_001}, "?wait_ms"),
        ({"wait_ms": "long"}, "?wait_ms"),
        ({"key_encoding": "hex"}, "?key_encoding"),
    ],
)
def test_a_query_that_can_not_be_is_refused(
    writer: httpx.Client, full: str, query: dict[str, Any], pointer: str
) -> None:
    assert refused(writer.get(full, params=query), 422, "invalid_request") == [pointer]


def test_a_partition_that_is_not_there_is_404(writer: httpx.Client, full: str) -> None:
    refused(writer.get(full, params={"partition": 2}), 404, "unknown_partition")
    refused(writer.get(full, params={"partition": 2**40}), 404, "unknown_partition")


def test_a_cursor_belongs_to_one_stream_and_place(writer: httpx.Client, full: str, path: str) -> None:
    cursor = writer.get(full, params={"partition": 1, "limit": 1}).json()["next"]
    assert read(writer, full, cursor=cursor, partition=1, limit=1)[0]["offset"] == 1
    for query in ({"cursor": "abc"}, {"cursor": "ü"}, {"cursor": cursor, "partition": 0}):
        refused(writer.get(full, params=query), 422, "invalid_cursor")
    refused(writer.get(full, params={"cursor": cursor, "from_offset": 0}), 422, "invalid_cursor")
    refused(writer.get(path, params={"cursor": cursor}), 422, "invalid_cursor")


def test_a_cursor_of_a_stream_made_again_is_refused(writer: httpx.Client) -> None:
    path = make(writer, partitions=1)
    post(writer, path, b'{"records":[{},{}]}')
    cursor = writer.get(path, params={"limit": 1}).json()["next"]
    name = path.split("/")[3]
    writer.delete(f"/v1/streams/{name}")
    writer.post("/v1/streams", json={"name": name, "partitions": 1})
    refused(writer.get(path, params={"cursor": cursor}), 422, "invalid_cursor")


@pytest.mark.parametrize("media_type", FORMATS)
def test_times_that_look_like_seconds_are_taken_with_a_warning(
    writer: httpx.Client, path: str, media_type: str
) -> None:
    """Small or large, in any format; the same again by its Idempotency-Key."""
    for size in (1, 1_000):
        body = body_of(media_type, [{"value": 1, "timestamp": 1_700_000_000}] * size)
        posted, again = (post(writer, path, body, media_type, **{"Idempotency-Key": f"{size}"}) for _ in range(2))
        plain = post(writer, path, body, media_type)
        for answer in (posted, again, plain):
            (warning,) = answer.json()["warnings"]
            assert warning["pointer"].endswith("/0/timestamp")
            assert "looks like seconds" in warning["detail"]
        assert posted.content == again.content
    fine = post(writer, path, body_of(media_type, [{"value": 1, "timestamp": 1_700_000_000_000}]), media_type)
    assert "warnings" not in fine.json()


def test_reading_begins_at_a_time(writer: httpx.Client, path: str) -> None:
    """At the first record of that time or later, wherever its chunk begins; at the end where there is none."""
    for times in ([1_000, 3_000], [2_000, 5_000, 4_000], [500, 9_000]):
        post(writer, path, body_of(NDJSON, [{"value": t, "timestamp": t, "partition": 0} for t in times]), NDJSON)
    times = [1_000, 3_000, 2_000, 5_000, 4_000, 500, 9_000]
    for asked in (0, 999, 1_000, 1_001, 3_000, 3_001, 5_000, 5_001, 9_000, 9_001, 2**63 - 1):
        first = next((n for n, t in enumerate(times) if t >= asked), len(times))
        found = read(writer, path, partition=0, from_timestamp=asked)
        assert [record["value"] for record in found] == times[first:], asked
    page = writer.get(path, params={"partition": 0, "from_timestamp": 3_001, "limit": 2}).json()
    assert [record["offset"] for record in page["records"]] == [3, 4]
    assert [record["offset"] for record in read(writer, path, cursor=page["next"])] == [5, 6]


@pytest.mark.parametrize(
    ("query", "status", "pointer"),
    [
        ({"from_timestamp": 1, "from_offset": 0}, 422, "?from_timestamp"),
        ({"from_timestamp": "now"}, 422, "?from_timestamp"),
        ({"from_timestamp": -1}, 422, "?from_timestamp"),
        ({"from_timestamp": 2**63}, 422, "?from_timestamp"),
        ({"from_timestamp": 1, "partition": 99}, 404, None),
        ({"from_time": 1}, 422, "?from_time"),
    ],
)
def test_a_time_that_is_none_or_one_of_two_places_is_refused(
    writer: httpx.Client, path: str, query: dict[str, Any], status: int, pointer: str | None
) -> None:
    answer = writer.get(path, params=query)
    assert answer.status_code == status, answer.text
    assert [error["pointer"] for error in answer.json().get("errors", [])] == ([pointer] if pointer else [])


def test_below_the_start_is_410_with_the_start_offset(service: Serving, writer: httpx.Client, path: str) -> None:
    for _ in range(2):
        post(writer, path, b'{"records":[{},{},{}]}')
    stream = writer.get(path.removesuffix("/records")).json()["id"]

    def truncate(s: Session) -> None:
        s.execute(update(PartitionRow).where(PartitionRow.stream_id == stream).values(start_offset=3))
        for chunk in s.scalars(select(ChunkRow).where(ChunkRow.stream_id == stream, ChunkRow.end_offset <= 3)):
            s.delete(chunk)

    service.catalog.write(truncate)
    answer = writer.get(path, params={"from_offset": 2})
    refused(answer, 410, "offset_truncated")
    assert answer.json()["start_offset"] == 3
    assert [record["offset"] for record in read(writer, path)] == [3, 4, 5]


def test_a_page_is_bounded_in_bytes(service: Serving, tmp_path: Path, migrated_sqlite: bytes) -> None:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db") as running:
        writer = running.client("writer")
        path = make(writer, partitions=1)
        record = {"value": "x" * (7 << 20)}
        for _ in range(2):
            post(writer, path, body_of(NDJSON, [record] * 3), NDJSON)
        first = writer.get(path).json()
        assert [record["offset"] for record in first["records"]] == [0, 1, 2, 3]
        rest = writer.get(path, params={"cursor": first["next"]}).json()
        assert [record["offset"] for record in rest["records"]] == [4, 5]


def test_records_are_read_as_arrow(writer: httpx.Client, full: str) -> None:
    answer = writer.get(full, params={"partition": 1, "from_offset": 3, "limit": 10}, headers={"Accept": ARROW})
    assert answer.headers["Content-Type"] == ARROW
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema == PAGE_SCHEMA
    assert table["offset"].to_pylist() == list(range(3, 13))
    assert table["value"].to_pylist() == [str(n) for n in range(3, 13)]
    cursor = answer.headers["Millrace-Next"]
    rest = writer.get(full, params={"cursor": cursor}, headers={"Accept": f"{ARROW}, */*;q=0.1"})
    assert pa.ipc.open_stream(rest.content).read_all()["offset"].to_pylist() == list(range(13, 25))
    assert (answer.headers["Millrace-At-End"], rest.headers["Millrace-At-End"]) == ("false", "true")


def test_an_empty_page_is_arrow_too(writer: httpx.Client, full: str) -> None:
    answer = writer.get(full, params={"partition": 0}, headers={"Accept": ARROW})
    assert pa.ipc.open_stream(answer.content).read_all().num_rows == 0


def test_another_format_is_406(writer: httpx.Client, full: str) -> None:
    refused(writer.get(full, headers={"Accept": "text/csv"}), 406, "not_acceptable")


def test_keys_that_are_not_text_are_read_as_base64(writer: httpx.Client, path: str) -> None:
    keys = [b"a", b"\xff\x00", None]
    post(writer, path, ipc(pa.table({"key": pa.array(keys, pa.binary())})), ARROW)
    answer = writer.get(path)
    refused(answer, 422, "key_not_text")
    assert "base64" in answer.json()["detail"]
    shown = [record["key"] for record in read(writer, path, key_encoding="base64")]
    assert [key and base64.b64decode(key) for key in shown] == keys
    table = pa.ipc.open_stream(writer.get(path, headers={"Accept": ARROW}).content).read_all()
    assert table["key"].to_pylist() == keys


def test_values_come_back_as_the_very_text_that_was_sent(writer: httpx.Client, path: str) -> None:
    text = b'{ "b": 1.50,\t"a": 123456789012345678901234567890, "e": "\\u00e9" }'
    post(writer, path, b'{"value":' + text + b"}", NDJSON)
    assert text in writer.get(path).content


def test_a_changelog_is_read_as_base64(service: Serving, writer: httpx.Client) -> None:
    name = next(NAMES)
    stream = service.catalog.write(streams.create_stream, name, partitions=1, kind="changelog")
    batch = pa.RecordBatch.from_pylist(
        [{"key": b"\x00a", "value": b"\x01\xff"}, {"key": b"\x00b", "value": None}], schema=CHANGELOG_SCHEMA
    )
    encoded, segment = encode_segment([(stream.id, 0, batch)]), new_id()
    service.catalog.write(segments.register_segments, "test", [(segment, path_of(segment))])
    open_storage(service.settings.storage_uri).write(path_of(segment), encoded)
    service.catalog.write(segments.publish, segment, bytes=encoded.bytes, chunks=encoded.chunks)
    found = read(writer, f"/v1/streams/{name}/records")
    assert [(record["key"], record["value"], record["timestamp"]) for record in found] == [
        (base64.b64encode(b"\x00a").decode(), base64.b64encode(b"\x01\xff").decode(), None),
        (base64.b64encode(b"\x00b").decode(), None, None),
    ]


def test_a_segment_that_is_gone_is_an_error_that_names_it(service: Serving, writer: httpx.Client, path: str) -> None:
    post(writer, path, b'{"records":[{}]}')
    stream = writer.get(path.removesuffix("/records")).json()["id"]
    query = (
        select(SegmentRow.path).join(ChunkRow, ChunkRow.segment_id == SegmentRow.id).where(ChunkRow.stream_id == stream)
    )
    where = service.catalog.read(lambda s: s.scalars(query).one())
    (Path(service.settings.storage_uri) / where).unlink()
    answer = writer.get(path)
    refused(answer, 500, "segment_missing")
    assert where in answer.json()["detail"]


def test_the_document_tells_the_formats_and_its_examples_are_accepted(writer: httpx.Client, path: str) -> None:
    document = openapi_documents.for_people()
    operation = document["paths"]["/v1/streams/{stream}/records"]["post"]
    content = operation["requestBody"]["content"]
    assert set(content) == set(FORMATS)
    assert post(writer, path, json.dumps(content[JSON]["example"]).encode()).status_code == 200
    assert post(writer, path, content[NDJSON]["example"].encode(), NDJSON).status_code == 200
    assert operation["operationId"] == "append_records"
