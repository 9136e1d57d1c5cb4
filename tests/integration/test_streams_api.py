"""Streams over HTTP: made, listed, read, changed, deleted, and every way in which that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session

from service.catalog import streams
from service.catalog.tables import JobRow, JobStreamRow
from tests.serving import Serving, serving

NAMES = (f"stream-{n}" for n in count())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", max_json_bytes=10_000) as running:
        yield running


@pytest.fixture(scope="module")
def writer(service: Serving) -> httpx.Client:
    return service.client("writer")


@pytest.fixture
def made(writer: httpx.Client) -> httpx.Response:
    """A new stream of two partitions, as it was answered."""
    return writer.post("/v1/streams", json={"name": next(NAMES), "partitions": 2})


def refused(answer: httpx.Response, status: int, code: str) -> list[str]:
    """Checks that an answer is this problem; the pointers in it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["code"]) == (status, code)
    assert body["request_id"] == answer.headers["X-Request-Id"]
    return [item["pointer"] for item in body.get("errors", [])]


def path_of(made: httpx.Response) -> str:
    return f"/v1/streams/{made.json()['name']}"


# ---------------------------------------------------------------- made


def test_a_stream_on_either_database(database_url: str, tmp_path: Path) -> None:
    with serving(tmp_path, database_url) as running:
        writer = running.client("writer")
        wanted = {"name": "clicks", "retention_ms": 1000, "fields": {"id": "string?"}, "max_future_ms": 5}
        made = writer.post("/v1/streams", json=wanted)
        assert made.status_code == 201
        assert writer.get("/v1/streams/clicks").json() == made.json()
        change = writer.patch("/v1/streams/clicks", json={"fields": None}, headers={"If-Match": made.headers["ETag"]})
        assert change.json()["fields"] is None
        assert [item["name"] for item in writer.get("/v1/streams").json()["items"]] == ["clicks"]
        assert writer.delete("/v1/streams/clicks").status_code == 204
        assert writer.get("/v1/streams").json() == {"items": [], "next": None}


def test_a_new_stream_has_the_defaults_of_the_contract(writer: httpx.Client) -> None:
    name = next(NAMES)
    made = writer.post("/v1/streams", json={"name": name})
    assert made.status_code == 201
    assert made.headers["Location"] == f"/v1/streams/{name}"
    assert made.headers["ETag"].startswith('"')
    body = made.json()
    assert body["partitions"] == [{"partition": p, "start_offset": 0, "end_offset": 0} for p in range(4)]
    assert (body["retention_ms"], body["fields"], body["max_future_ms"]) == (None, None, 3_600_000)
    assert (body["records"], body["bytes"], body["kind"]) == (0, 0, "user")
    assert body["created_at"].endswith("+00:00")


def test_an_equal_body_again_is_200_and_another_one_409(writer: httpx.Client) -> None:
    wanted = {"name": next(NAMES), "partitions": 3, "fields": {"id": "string", "n": "long?"}}
    assert writer.post("/v1/streams", json=wanted).status_code == 201
    again = writer.post("/v1/streams", json={**wanted, "fields": {"n": "long?", "id": "string"}})
    assert again.status_code == 200
    for other in ({"partitions": 4}, {"fields": {"id": "string"}}, {"retention_ms": 5}, {"max_future_ms": 0}):
        refused(writer.post("/v1/streams", json={**wanted, **other}), 409, "stream_exists")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": None}, "/name"),
        ({"name": "Clicks"}, "/name"),
        ({"name": "1clicks"}, "/name"),
        ({"name": "a" * 129}, "/name"),
        ({"name": "a/b"}, "/name"),
        ({"name": "clicks\n"}, "/name"),
        ({"partitions": 0}, "/partitions"),
        ({"partitions": 1025}, "/partitions"),
        ({"partitions": "4"}, "/partitions"),
        ({"partitions": True}, "/partitions"),
        ({"partitions": 4.0}, "/partitions"),
        ({"retention_ms": 0}, "/retention_ms"),
        ({"retention_ms": "1d"}, "/retention_ms"),
        ({"max_future_ms": -1}, "/max_future_ms"),
        ({"max_future_ms": None}, "/max_future_ms"),
        ({"max_future_ms": 2**60}, "/max_future_ms"),
        ({"fields": []}, "/fields"),
        ({"fields": {"a": "int"}}, "/fields/a"),
        ({"fields": {"a": "long??"}}, "/fields/a"),
        ({"fields": {"a": 1}}, "/fields/a"),
        ({"retention": 1}, "/retention"),
    ],
)
def test_a_stream_that_can_not_be_is_refused_with_a_pointer(
    writer: httpx.Client, change: dict[str, Any], pointer: str
) -> None:
    answer = writer.post("/v1/streams", json={"name": next(NAMES), **change})
    assert refused(answer, 422, "invalid_request") == [pointer]


def test_a_missing_name_is_pointed_at(writer: httpx.Client) -> None:
    assert refused(writer.post("/v1/streams", json={}), 422, "invalid_request") == ["/name"]


def test_bodies_that_are_not_json_or_too_large_are_refused(writer: httpx.Client) -> None:
    as_json = {"Content-Type": "application/json"}
    refused(writer.post("/v1/streams", content=b"{", headers=as_json), 400, "malformed_json")
    refused(
        writer.post("/v1/streams", content=b"{}", headers={"Content-Type": "text/plain"}), 415, "unsupported_media_type"
    )
    large = {"name": "large", "fields": {"a" * 11_000: "long"}}
    refused(writer.post("/v1/streams", json=large), 413, "payload_too_large")


def test_only_writers_make_change_and_delete_streams(service: Serving, made: httpx.Response) -> None:
    path, tag = path_of(made), {"If-Match": made.headers["ETag"]}
    for role, status in ((None, 401), ("reader", 403), ("instance", 403)):
        client = service.client(role)
        assert client.post("/v1/streams", json={"name": "mine"}).status_code == status
        assert client.patch(path, json={"retention_ms": 1}, headers=tag).status_code == status
        assert client.delete(path).status_code == status
    for role, status in ((None, 401), ("reader", 200), ("instance", 403), ("admin", 200)):
        assert service.client(role).get(path).status_code == status
        assert service.client(role).get("/v1/streams").status_code == status


# ---------------------------------------------------------------- listed and read


def test_streams_are_listed_by_name_page_by_page(service: Serving, writer: httpx.Client) -> None:
    names = sorted(f"listed-{n}" for n in range(5))
    for name in reversed(names):
        writer.post("/v1/streams", json={"name": name, "partitions": 1})
    found, cursor = [], "listed"
    while cursor is not None:
        page = service.client("reader").get("/v1/streams", params={"limit": 2, "cursor": cursor}).json()
        found += [item["name"] for item in page["items"]]
        cursor = page["next"]
    assert [name for name in found if name.startswith("listed-")] == names


@pytest.mark.parametrize("cursor", ["%00", "Nothing", "a b"])
def test_a_cursor_that_no_page_gave_is_refused(writer: httpx.Client, cursor: str) -> None:
    refused(writer.get(f"/v1/streams?cursor={cursor}"), 422, "invalid_cursor")


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x"])
def test_a_page_has_bounds(writer: httpx.Client, limit: str) -> None:
    assert refused(writer.get("/v1/streams", params={"limit": limit}), 422, "invalid_request") == ["?limit"]


@pytest.mark.parametrize("name", ["nothing", "Nothing", "%00", "a%20b", "x" * 200])
@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_a_stream_that_is_not_there_is_404(writer: httpx.Client, method: str, name: str) -> None:
    answer = writer.request(method, f"/v1/streams/{name}", headers={"If-Match": '"1"'}, json={})
    refused(answer, 404, "unknown_stream")


def test_other_methods_are_405(writer: httpx.Client, made: httpx.Response) -> None:
    answer = writer.put(path_of(made), json={})
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "DELETE, GET, PATCH"


# ---------------------------------------------------------------- changed


def test_a_change_needs_the_tag_of_what_it_changes(writer: httpx.Client, made: httpx.Response) -> None:
    path, old = path_of(made), made.headers["ETag"]
    refused(writer.patch(path, json={"retention_ms": 5}), 428, "precondition_required")
    changed = writer.patch(path, json={"retention_ms": 5}, headers={"If-Match": old})
    assert changed.status_code == 200
    assert changed.json()["retention_ms"] == 5
    assert changed.headers["ETag"] == writer.get(path).headers["ETag"] != old
    refused(writer.patch(path, json={"retention_ms": 6}, headers={"If-Match": old}), 412, "stale_tag")
    refused(writer.patch(path, json={"retention_ms": 6}, headers={"If-Match": '"other"'}), 412, "stale_tag")
    assert writer.get(path).json()["retention_ms"] == 5


def test_a_change_leaves_what_it_does_not_name(writer: httpx.Client, made: httpx.Response) -> None:
    path = path_of(made)
    change = {"retention_ms": 5, "fields": {"a": "long"}, "max_future_ms": 7, "retention_overrides_jobs": True}
    tag = writer.patch(path, json=change, headers={"If-Match": made.headers["ETag"]}).headers["ETag"]
    tag = writer.patch(path, json={"retention_ms": None}, headers={"If-Match": tag}).headers["ETag"]
    after = writer.patch(path, json={}, headers={"If-Match": tag}).json()
    assert {name: after[name] for name in change} == {**change, "retention_ms": None}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"partitions": 3}, "/partitions"),
        ({"name": "other"}, "/name"),
        ({"max_future_ms": None}, "/max_future_ms"),
        ({"fields": {"a": "number"}}, "/fields/a"),
        ({"retention_overrides_jobs": "yes"}, "/retention_overrides_jobs"),
        ([], ""),
    ],
)
def test_a_change_that_can_not_be_is_refused_with_a_pointer(
    writer: httpx.Client, made: httpx.Response, change: object, pointer: str
) -> None:
    answer = writer.patch(path_of(made), json=change, headers={"If-Match": made.headers["ETag"]})
    assert refused(answer, 422, "invalid_request") == [pointer]


def test_the_tag_does_not_change_with_the_records(writer: httpx.Client, made: httpx.Response) -> None:
    path = path_of(made)
    writer.post(f"{path}/records", json={"records": [{"value": 1}]})
    read = writer.get(path)
    assert read.json()["records"] == 1
    assert read.json()["bytes"] > 0
    assert read.headers["ETag"] == made.headers["ETag"]


# ---------------------------------------------------------------- deleted


def test_a_deleted_stream_is_gone_and_its_name_free(writer: httpx.Client, made: httpx.Response) -> None:
    path = path_of(made)
    writer.post(f"{path}/records", json={"records": [{"value": 1}]})
    assert writer.delete(path).status_code == 204
    refused(writer.get(path), 404, "unknown_stream")
    refused(writer.delete(path), 404, "unknown_stream")
    again = writer.post("/v1/streams", json={"name": made.json()["name"], "partitions": 2})
    assert again.status_code == 201
    assert again.json()["records"] == 0
    assert again.json()["id"] != made.json()["id"]
    assert again.headers["ETag"] != made.headers["ETag"]


def test_a_stream_that_a_job_uses_stays(service: Serving, writer: httpx.Client, made: httpx.Response) -> None:
    def use(s: Session) -> None:
        job = JobRow(name="visits", spec={}, spec_sha256="", topology={}, state="stopped", max_batch_records=1)
        s.add(job)
        s.flush()
        s.add(JobStreamRow(job_id=job.id, stream_id=made.json()["id"], role="source"))

    service.catalog.write(use)
    answer = writer.delete(path_of(made))
    refused(answer, 409, "stream_in_use")
    assert "visits" in answer.json()["detail"]
    assert writer.get(path_of(made)).status_code == 200


def test_an_internal_stream_is_read_and_never_changed(service: Serving, writer: httpx.Client) -> None:
    name = next(NAMES)
    service.catalog.write(streams.create_stream, name, partitions=1, kind="changelog")
    read = writer.get(f"/v1/streams/{name}")
    assert read.json()["kind"] == "changelog"
    tag = {"If-Match": read.headers["ETag"]}
    refused(writer.patch(f"/v1/streams/{name}", json={"retention_ms": 1}, headers=tag), 403, "internal_stream")
    refused(writer.delete(f"/v1/streams/{name}"), 403, "internal_stream")
    refused(writer.post(f"/v1/streams/{name}/records", json={"records": [{}]}), 403, "internal_stream")
    refused(writer.post("/v1/streams", json={"name": name, "partitions": 1}), 409, "stream_exists")
