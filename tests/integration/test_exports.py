"""A stream in one answer: everything once, with types, in bounded memory; and pages as lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
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
from service.payloads import ARROW, NDJSON
from service.reads import exports
from service.storage.segments import encode_segment, open_storage, path_of
from service.streams.records import CHANGELOG_SCHEMA
from tests.integration.test_streams_api import refused
from tests.serving import Serving, serving

NAMES = (f"exported-{n}" for n in count())
FIELDS = {"id": "string", "n": "long", "amount": "double?", "ok": "boolean?", "more": "json?"}
BASE = ["partition", "offset", "key", "value", "timestamp", "window_start", "window_end", "headers"]
AT = 1_700_000_000_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("exports")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db") as running:
        yield running


@pytest.fixture
def stream(service: Serving) -> str:
    """30 records in three partitions, of several posts."""
    name = make(service, partitions=3, fields=FIELDS)
    for begin in range(0, 30, 10):
        post(service, name, *range(begin, begin + 10))
    return name


def make(service: Serving, **settings: Any) -> str:
    name = next(NAMES)
    service.client("writer").post("/v1/streams", json={"name": name, **settings}).raise_for_status()
    return name


def record(n: int) -> dict[str, Any]:
    value = {"id": f"e{n}", "n": n, "amount": n / 2, "ok": n % 2 == 0, "more": {"list": [n]}, "beside": "x"}
    return {"key": f"k{n}", "value": value, "timestamp": AT + n, "partition": n % 3}


def post(service: Serving, stream: str, *numbers: int, partition: int | None = None) -> None:
    records = [record(n) | ({} if partition is None else {"partition": partition}) for n in numbers]
    service.client("writer").post(f"/v1/streams/{stream}/records", json={"records": records}).raise_for_status()


def export(service: Serving, stream: str, media_type: str = ARROW, **query: Any) -> httpx.Response:
    return service.client("reader").get(f"/v1/streams/{stream}/export", params=query, headers={"Accept": media_type})


def table(answer: httpx.Response) -> pa.Table:
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == ARROW
    return pa.ipc.open_stream(answer.content).read_all()


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == NDJSON
    return [json.loads(line) for line in answer.text.splitlines()]


def pages(service: Serving, stream: str) -> list[dict[str, Any]]:
    path = f"/v1/streams/{stream}/records"
    found: list[dict[str, Any]] = service.client("reader").get(path, params={"limit": 1_000}).json()["records"]
    return found


def test_all_partitions_come_in_one_answer_with_typed_columns(service: Serving, stream: str) -> None:
    found = table(export(service, stream))
    assert found.schema.names == [*BASE, *(f"value.{name}" for name in FIELDS)]
    types = [pa.utf8(), pa.int64(), pa.float64(), pa.bool_(), pa.utf8()]
    assert [found.schema.field(f"value.{name}").type for name in FIELDS] == types
    assert {found.schema.field(name).type for name in ("timestamp", "window_start")} == {pa.timestamp("ms")}
    where = list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
    assert where == [(partition, offset) for partition in range(3) for offset in range(10)]
    numbers = found["value.n"].to_pylist()
    assert sorted(numbers) == list(range(30))
    for n, row in zip(numbers, found.to_pylist(), strict=True):
        assert row["key"] == f"k{n}".encode()
        assert row["timestamp"].replace(tzinfo=UTC) == datetime.fromtimestamp((AT + n) / 1000, UTC)
        assert (row["value.id"], row["value.amount"], row["value.ok"]) == (f"e{n}", n / 2, n % 2 == 0)
        assert json.loads(row["value.more"]) == {"list": [n]}
        assert json.loads(row["value"]) == record(n)["value"]


def test_it_says_where_it_ended_and_one_can_go_on_by_page_tail_and_export(service: Serving, stream: str) -> None:
    answer = export(service, stream)
    cursor = answer.headers["Millrace-Next"]
    assert answer.headers["Millrace-At-End"] == "true"
    assert table(answer).schema.metadata == {b"millrace.next": cursor.encode()}
    assert table(export(service, stream, cursor=cursor)).num_rows == 0
    post(service, stream, 30, 31, partition=1)
    assert table(export(service, stream, cursor=cursor))["value.n"].to_pylist() == [30, 31]
    path = f"/v1/streams/{stream}"
    page = service.client("reader").get(f"{path}/records", params={"cursor": cursor}).json()["records"]
    assert [each["value"]["n"] for each in page] == [30, 31]
    tail = service.client("reader").get(f"{path}/tail", params={"from": cursor, "timeout_ms": 1})
    assert [json.loads(line[5:])["value"]["n"] for line in tail.text.splitlines() if line[:5] == "data:"] == [30, 31]


def test_a_member_that_does_not_fit_is_null_beside_the_whole_value(service: Serving) -> None:
    """As where `fields` are declared once records are there."""
    stream = make(service, partitions=1)
    texts = ['{"n": 1}', '{"n":"one"}', "[1]", "null", '{"n": 1.5, "id": "x"}']
    body = "".join(f'{{"value":{text}}}\n' for text in texts)
    writer = service.client("writer", **{"Content-Type": NDJSON})
    writer.post(f"/v1/streams/{stream}/records", content=body).raise_for_status()
    tag = writer.get(f"/v1/streams/{stream}").headers["ETag"]
    change = {"fields": {"n": "long", "id": "string?"}}
    service.client("writer", **{"If-Match": tag}).patch(f"/v1/streams/{stream}", json=change).raise_for_status()
    found = table(export(service, stream))
    assert found["value.n"].to_pylist() == [1, None, None, None, None]
    assert found["value.id"].to_pylist() == [None, None, None, None, "x"]
    assert found["value"].to_pylist() == [*texts[:3], None, texts[4]]


def test_a_stream_without_fields_has_the_columns_of_all_records(service: Serving) -> None:
    stream = make(service, partitions=2)
    assert table(export(service, stream)).schema.names == BASE
    assert lines(export(service, stream, NDJSON)) == []


def test_lines_are_the_records_of_pages(service: Serving, stream: str) -> None:
    answer = export(service, stream, NDJSON)
    assert lines(answer) == sorted(pages(service, stream), key=lambda each: (each["partition"], each["offset"]))
    assert answer.headers["Millrace-Next"] == export(service, stream).headers["Millrace-Next"]


def test_a_page_comes_as_lines_too(service: Serving, stream: str) -> None:
    found, cursor = [], {}
    while True:
        path = f"/v1/streams/{stream}/records"
        answer = service.client("reader").get(path, params={"limit": 7, **cursor}, headers={"Accept": NDJSON})
        found += lines(answer)
        cursor = {"cursor": answer.headers["Millrace-Next"]}
        if answer.headers["Millrace-At-End"] == "true":
            break
    assert sorted(each["value"]["n"] for each in found) == list(range(30))


@pytest.mark.parametrize("limit", [1, 2, 7, 29, 30, 31])
def test_a_limit_is_kept_and_the_rest_comes_by_the_cursor(service: Serving, stream: str, limit: int) -> None:
    found: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        answer = export(service, stream, limit=limit, **cursor)
        some = table(answer)["value.n"].to_pylist()
        assert len(some) == min(limit, 30 - len(found))
        found += some
        cursor = {"cursor": answer.headers["Millrace-Next"]}
        if answer.headers["Millrace-At-End"] == "true":
            break
    assert sorted(found) == list(range(30))


def bytes_of(found: pa.Table) -> int:
    texts = [found[name].to_pylist() for name in ("key", "value", "headers")]
    return sum(128 + sum(len(each or "") for each in row) for row in zip(*texts, strict=True))


@pytest.mark.parametrize(("max_bytes", "batch_records"), [(1, 16_384), (1_000, 2), (3_333, 16_384), (100_000, 2)])
def test_a_bound_of_bytes_is_kept_and_the_rest_comes_by_the_cursor(
    service: Serving, stream: str, monkeypatch: pytest.MonkeyPatch, max_bytes: int, batch_records: int
) -> None:
    monkeypatch.setattr(exports, "BATCH_RECORDS", batch_records)
    found: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        answer = export(service, stream, max_bytes=max_bytes, **cursor)
        some = table(answer)
        assert some.num_rows == 1 or 1 < bytes_of(some) <= max_bytes
        found += some["value.n"].to_pylist()
        cursor = {"cursor": answer.headers["Millrace-Next"]}
        assert some.schema.metadata == {b"millrace.next": cursor["cursor"].encode()}
        assert lines(export(service, stream, NDJSON, max_bytes=max_bytes))
        if answer.headers["Millrace-At-End"] == "true":
            break
    assert sorted(found) == list(range(30))


def test_of_bytes_each_partition_has_its_share_and_a_large_record_what_is_left(service: Serving) -> None:
    stream = make(service, partitions=3)
    writer = service.client("writer")
    sizes = {0: [10], 1: [600] + [10] * 19, 2: [10] * 30}  # 140 bytes each, the large one 730
    records = [{"value": "x" * size, "partition": at} for at, each in sizes.items() for size in each]
    writer.post(f"/v1/streams/{stream}/records", json={"records": records}).raise_for_status()

    def given(max_bytes: int, **more: Any) -> list[int]:
        partitions = table(export(service, stream, max_bytes=max_bytes, **more))["partition"].to_pylist()
        return [partitions.count(at) for at in range(3)]

    assert given(9 * 140) == [1, 1, 2]
    assert given(860) == [1, 0, 5]  # 720 are left where it is the large record's turn
    assert given(100) == [1, 0, 0]
    assert given(100, partition=1) == [0, 1, 0]
    assert given(900, partition=1) == [0, 2, 0]
    assert given(10**9, limit=5) == [1, 2, 2]


def test_shares_that_a_short_partition_leaves_are_for_the_others(service: Serving) -> None:
    stream = make(service, partitions=3)
    post(service, stream, 0, partition=0)
    post(service, stream, *range(1, 11), partition=2)
    found = lines(export(service, stream, NDJSON, limit=9))
    assert [each["partition"] for each in found] == [0, *[2] * 8]


def test_it_begins_where_it_is_asked_to(service: Serving, stream: str) -> None:
    assert table(export(service, stream, partition=1))["partition"].to_pylist() == [1] * 10
    assert table(export(service, stream, partition=1, from_offset=8))["offset"].to_pylist() == [8, 9]
    assert table(export(service, stream, partition=1, from_offset=99)).num_rows == 0
    assert sorted(table(export(service, stream, from_timestamp=AT + 25))["value.n"].to_pylist()) == [25, 26, 27, 28, 29]
    cursor = export(service, stream, partition=1, limit=4).headers["Millrace-Next"]
    assert table(export(service, stream, cursor=cursor))["offset"].to_pylist() == [4, 5, 6, 7, 8, 9]


def test_it_ends_where_the_stream_ended_when_it_began(service: Serving, stream: str) -> None:
    path = f"/v1/streams/{stream}/export"
    with service.client("reader").stream("GET", path, headers={"Accept": NDJSON}) as answer:
        post(service, stream, 30)
        assert len(list(answer.iter_lines())) == 30


def test_it_comes_in_pieces_of_bounded_size(service: Serving, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "BATCH_RECORDS", 2)
    with pa.ipc.open_stream(export(service, stream).content) as reader:
        sizes = [batch.num_rows for batch in reader]
    assert sum(sizes) == 30
    assert max(sizes) == 2
    monkeypatch.setattr(exports, "BATCH_BYTES", 1)
    with pa.ipc.open_stream(export(service, stream).content) as reader:
        assert [batch.num_rows for batch in reader] == [1] * 30


def test_keys_that_are_no_text_are_refused_as_lines_and_bytes_as_arrow(service: Serving) -> None:
    stream = make(service, partitions=1)
    sink = pa.BufferOutputStream()
    keys = pa.table({"key": pa.array([b"\xff"], pa.binary())})
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    body = sink.getvalue().to_pybytes()
    posted = service.client("writer", **{"Content-Type": ARROW}).post(f"/v1/streams/{stream}/records", content=body)
    posted.raise_for_status()
    refused(export(service, stream, NDJSON), 422, "key_not_text")
    assert [each["key"] for each in lines(export(service, stream, NDJSON, key_encoding="base64"))] == ["/w=="]
    assert table(export(service, stream))["key"].to_pylist() == [b"\xff"]


def test_a_changelog_has_no_times_and_its_bytes_are_base64_as_lines(service: Serving) -> None:
    name = next(NAMES)
    stream = service.catalog.write(streams.create_stream, name, partitions=1, kind="changelog")
    batch = pa.RecordBatch.from_pylist([{"key": b"\x00a", "value": b"\x01\xff"}], schema=CHANGELOG_SCHEMA)
    encoded, segment = encode_segment([(stream.id, 0, batch)]), new_id()
    service.catalog.write(segments.register_segments, "test", [(segment, path_of(segment))])
    open_storage(service.settings.storage_uri).write(path_of(segment), encoded)
    service.catalog.write(segments.publish, segment, bytes=encoded.bytes, chunks=encoded.chunks)
    [line] = lines(export(service, name, NDJSON))
    assert (line["key"], line["value"], line["timestamp"]) == ("AGE=", "Af8=", None)
    found = table(export(service, name))
    assert found.select(["key", "value", "timestamp"]).to_pylist() == [
        {"key": b"\x00a", "value": '"Af8="', "timestamp": None}
    ]
    refused(export(service, name, from_timestamp=1), 422, "invalid_request")


def test_below_the_start_is_410(service: Serving, stream: str) -> None:
    stream_id = service.client("reader").get(f"/v1/streams/{stream}").json()["id"]

    def truncate(s: Session) -> None:
        where = PartitionRow.stream_id == stream_id, PartitionRow.partition == 1
        s.execute(update(PartitionRow).where(*where).values(start_offset=4))

    service.catalog.write(truncate)
    answer = export(service, stream, partition=1, from_offset=3)
    refused(answer, 410, "offset_truncated")
    assert answer.json()["start_offset"] == 4
    assert table(export(service, stream, partition=1))["offset"].to_pylist() == [4, 5, 6, 7, 8, 9]


def test_a_segment_that_is_gone_is_an_error_first_and_breaks_off_later(service: Serving) -> None:
    stream = make(service, partitions=1)
    post(service, stream, 0, 1, partition=0)
    post(service, stream, 2, 3, partition=0)
    stream_id = service.client("reader").get(f"/v1/streams/{stream}").json()["id"]
    query = select(SegmentRow.path).join(ChunkRow, ChunkRow.segment_id == SegmentRow.id)
    query = query.where(ChunkRow.stream_id == stream_id).order_by(ChunkRow.end_offset)
    first, second = service.catalog.read(lambda s: s.scalars(query).all())
    (Path(service.settings.storage_uri) / second).unlink()
    with pytest.raises(httpx.RemoteProtocolError):
        export(service, stream)
    (Path(service.settings.storage_uri) / first).unlink()
    refused(export(service, stream), 500, "segment_missing")


def test_arrow_is_what_who_takes_anything_gets(service: Serving, stream: str) -> None:
    assert table(export(service, stream, "*/*")).num_rows == 30
    refused(export(service, stream, "application/json"), 406, "not_acceptable")
    refused(export(service, stream, "text/csv"), 406, "not_acceptable")


@pytest.mark.parametrize(
    ("query", "pointer", "code"),
    [
        ({"limit": 0}, "?limit", "invalid_request"),
        ({"limit": "all"}, "?limit", "invalid_request"),
        ({"max_bytes": 0}, "?max_bytes", "invalid_request"),
        ({"max_bytes": 2**63}, "?max_bytes", "invalid_request"),
        ({"max_bytes": "1k"}, "?max_bytes", "invalid_request"),
        ({"limit": 2**63}, "?limit", "invalid_request"),
        ({"partition": -1}, "?partition", "invalid_request"),
        ({"from_offset": 1}, "?from_offset", "invalid_request"),
        ({"partition": 1, "from_offset": 1, "from_timestamp": 1}, "?from_timestamp", "invalid_request"),
        ({"cursor": "x"}, "?cursor", "invalid_cursor"),
        ({"cursor": "x" * 32_001}, "?cursor", "invalid_request"),
        ({"key_encoding": "hex"}, "?key_encoding", "invalid_request"),
        ({"wait_ms": 1}, "?wait_ms", "invalid_request"),
    ],
)
def test_a_query_that_can_not_be_is_refused(
    service: Serving, stream: str, query: dict[str, Any], pointer: str, code: str
) -> None:
    assert refused(export(service, stream, **query), 422, code) == [pointer]


def test_what_is_not_there_or_not_allowed_is_refused(service: Serving, stream: str) -> None:
    refused(export(service, "nothing"), 404, "unknown_stream")
    refused(export(service, stream, partition=3), 404, "unknown_partition")
    refused(service.client(None).get(f"/v1/streams/{stream}/export"), 401, "unauthenticated")
    refused(service.client("instance").get(f"/v1/streams/{stream}/export"), 403, "forbidden")
