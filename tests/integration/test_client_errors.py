"""Errors of the service as the Python client raises them: at least one of each family, by its class."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update

from millrace_client import Client, Retries, codes, errors
from millrace_client.errors import ApiError
from millrace_client.exchanges import Request
from service.catalog.tables import PartitionRow
from service.storage.segments import Storage
from tests.serving import Serving, serving

BUFFER_BYTES = 100_000
COUNT = {"op": "aggregate", "name": "n", "aggregates": {"n": {"fn": "count"}}}
JOB = {"name": "job", "source": "clicks", "operators": [COUNT]}
RECORDS = "/v1/streams/clicks/records"
ONE = {"records": [{"value": 1, "partition": 0}]}

# Requests whose answer hangs on nothing but them.
REFUSED: list[tuple[type[ApiError], str, str, Any, dict[str, str]]] = [
    (codes.NoSuchRoute, "GET", "/v1/nothing", None, {}),
    (codes.UnknownStream, "GET", "/v1/streams/nobody", None, {}),
    (codes.UnknownJob, "GET", "/v1/jobs/nobody", None, {}),
    (codes.MethodNotAllowed, "DELETE", "/v1/streams", None, {}),
    (codes.NotAcceptable, "GET", RECORDS, None, {"Accept": "image/png"}),
    (codes.StreamExists, "POST", "/v1/streams", {"name": "clicks", "partitions": 7}, {}),
    (codes.JobExists, "POST", "/v1/jobs", {**JOB, "sink": "elsewhere"}, {}),
    (codes.StreamInUse, "DELETE", "/v1/streams/clicks", None, {}),
    (codes.InternalStream, "DELETE", "/v1/streams/job-n-changelog", None, {}),
    (codes.StaleTag, "PATCH", "/v1/streams/clicks", {"retention_ms": 1}, {"If-Match": '"none"'}),
    (codes.PreconditionRequired, "PATCH", "/v1/streams/clicks", {"retention_ms": 1}, {}),
    (codes.UnsupportedMediaType, "POST", RECORDS, ONE, {"Content-Type": "text/html"}),
    (codes.PayloadTooLarge, "POST", RECORDS, {"records": [{"value": "x" * BUFFER_BYTES}]}, {}),
    (codes.InvalidSpec, "POST", "/v1/jobs", {"name": "Job"}, {}),
    (codes.InvalidRecords, "POST", RECORDS, {"records": [{"timestamp": -1}]}, {}),
    (codes.InvalidCursor, "GET", f"{RECORDS}?cursor=elsewhere", None, {}),
    (codes.StoreBehind, "GET", "/v1/stores/job-n/keys?key=k&max_lag_records=0&timeout_ms=0", None, {}),
]
# Those that the tests below meet.
MET = {
    codes.MalformedJson,
    codes.Unauthenticated,
    codes.Forbidden,
    codes.OffsetTruncated,
    codes.IngestBufferFull,
    codes.SegmentMissing,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    """Without an instance, and with room for one body."""
    folder = tmp_path_factory.mktemp("errors")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    bounds = {"ingest_buffer_bytes": BUFFER_BYTES, "max_body_bytes": BUFFER_BYTES}
    with serving(folder, f"sqlite:///{folder}/catalog.db", **bounds) as running:
        http = running.client()
        http.post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
        http.post("/v1/jobs", json=JOB).raise_for_status()
        http.post(RECORDS, json=ONE).raise_for_status()
        yield running


@pytest.fixture
def client(service: Serving) -> Iterator[Client]:
    """It asks once."""
    with Client(service.url, service.secrets["admin"], retries=Retries(limit_s=0)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("kind", "method", "path", "body", "headers"), REFUSED, ids=[kind.code for kind, *_ in REFUSED]
)
def test_a_refusal_is_raised_by_its_code(
    client: Client, kind: type[ApiError], method: str, path: str, body: Any, headers: dict[str, str]
) -> None:
    with pytest.raises(kind) as raised:
        client.call(method, path, body, headers=headers)
    assert (raised.value.status, raised.value.code) == (kind.http_status, kind.code)
    assert raised.value.detail
    assert raised.value.request_id


def test_there_is_one_of_each_family() -> None:
    """But of 5xx that only proxies answer."""
    met = {*(kind for kind, *_ in REFUSED), *MET}
    families = {kind for kind in vars(errors).values() if isinstance(kind, type) and ApiError in kind.__bases__}
    assert {base for kind in met for base in kind.__bases__} == families


def test_a_body_that_is_no_json(client: Client) -> None:
    with pytest.raises(codes.MalformedJson):
        client.answer(Request("POST", "/v1/jobs", headers={"Content-Type": "application/json"}, content=b"{"))


def test_who_is_not_known_and_who_may_not(service: Serving) -> None:
    with Client(service.url) as nobody, pytest.raises(codes.Unauthenticated):
        nobody.call("GET", "/v1/streams")
    with Client(service.url, service.secrets["reader"]) as reader, pytest.raises(codes.Forbidden):
        reader.call("POST", RECORDS, ONE)


def test_what_retention_took(service: Serving, client: Client) -> None:
    client.call("POST", "/v1/streams", {"name": "short", "partitions": 1})
    client.call("POST", "/v1/streams/short/records", {"records": [{}, {}, {}]})
    stream = client.call("GET", "/v1/streams/short")["id"]
    truncated = update(PartitionRow).where(PartitionRow.stream_id == stream).values(start_offset=2)
    service.catalog.write(lambda s: s.execute(truncated))
    with pytest.raises(codes.OffsetTruncated) as raised:
        client.call("GET", "/v1/streams/short/records", query={"partition": 0, "from_offset": 1})
    assert raised.value.problem["start_offset"] == 2


def test_a_buffer_that_is_full(service: Serving, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """One post holds it, until the storage goes on."""
    is_writing, may_write, write = threading.Event(), threading.Event(), Storage.write

    def slow(self: Storage, *arguments: Any) -> None:
        is_writing.set()
        assert may_write.wait(30)
        write(self, *arguments)

    monkeypatch.setattr(Storage, "write", slow)
    large = {"records": [{"value": "x" * (BUFFER_BYTES - 1_000)}]}
    with ThreadPoolExecutor(1) as thread:
        posted = thread.submit(client.call, "POST", RECORDS, large)
        try:
            assert is_writing.wait(30)
            with pytest.raises(codes.IngestBufferFull) as raised:
                client.call("POST", RECORDS, {"records": [{"value": "x" * 2_000}]})
        finally:
            may_write.set()
        assert raised.value.retry_after_s >= 1
        assert posted.result()["accepted"] == 1


def test_a_file_that_is_gone(service: Serving, client: Client) -> None:
    client.call("POST", "/v1/streams", {"name": "broken", "partitions": 1})
    before = set(service.settings.data_dir.rglob("*.arrows"))
    client.call("POST", "/v1/streams/broken/records", ONE)
    for file in set(service.settings.data_dir.rglob("*.arrows")) - before:
        file.unlink()
    with pytest.raises(codes.SegmentMissing):
        client.call("GET", "/v1/streams/broken/records")
