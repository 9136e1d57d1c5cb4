"""The border of a request: ids, problems for every refusal, limits on decoded bytes, one place for surprises."""

import gzip
import json
import random
import re
import socket
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from benchmarks.running import wait_until
from service.catalog import jobs, totals
from service.problems import new_request_id
from tests import openapi_documents
from tests.serving import Serving, serving

LIMIT = 20_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("border")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    limits = {"max_json_bytes": LIMIT, "max_body_bytes": 2 * LIMIT}
    with serving(folder, f"sqlite:///{folder}/catalog.db", **limits) as running:
        running.client().post("/v1/streams", json={"name": "s", "partitions": 1}).raise_for_status()
        yield running


@pytest.fixture
def api(service: Serving) -> httpx.Client:
    return service.client("admin")


def test_each_answer_has_an_id_and_a_decent_one_of_the_caller_is_kept(api: httpx.Client) -> None:
    first, second = (api.get("/healthz").headers["X-Request-Id"] for _ in range(2))
    assert first != second
    assert api.get("/healthz", headers={"X-Request-Id": "abc-1.2"}).headers["X-Request-Id"] == "abc-1.2"
    for bad in ("a b", "x" * 65, "a;b"):
        assert api.get("/healthz", headers={"X-Request-Id": bad}).headers["X-Request-Id"] != bad


def test_a_problem_has_every_member_and_the_id_of_its_request(api: httpx.Client) -> None:
    answer = api.get("/v1/jobs/none")
    problem = answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert problem == {
        "type": "urn:millrace:problem:unknown_job",
        "title": "Not Found",
        "status": 404,
        "detail": "Job 'none' does not exist",
        "instance": "/v1/jobs/none",
        "code": "unknown_job",
        "request_id": answer.headers["X-Request-Id"],
    }


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/jobs/", 404),
        ("POST", "/healthz", 405),
        ("DELETE", "/v1/jobs", 405),
        ("PUT", "/openapi.json", 405),
        ("PROPFIND", "/v1/jobs", 405),
    ],
)
def test_what_is_not_served_is_a_problem_too(api: httpx.Client, method: str, path: str, status: int) -> None:
    answer = api.request(method, path)
    assert answer.status_code == status
    assert answer.json()["status"] == status
    assert (status != 405) or answer.headers["Allow"]


def test_a_log_line_carries_the_id_of_its_request(api: httpx.Client) -> None:
    with capture_logs() as lines:
        answer = api.get("/v1/jobs")
    [line] = [line for line in lines if line["event"] == "request"]
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/jobs", 200)
    assert answer.headers["X-Request-Id"]


def test_too_many_bytes_are_refused_however_they_come(api: httpx.Client) -> None:
    body = b" " * LIMIT + b"{}"
    headers = {"Content-Type": "application/json"}
    declared = api.post("/v1/jobs:validate", content=body, headers=headers)
    streamed = api.post("/v1/jobs:validate", content=iter([body[:LIMIT], body[LIMIT:]]), headers=headers)
    packed = api.post("/v1/jobs:validate", content=gzip.compress(body), headers={**headers, "Content-Encoding": "gzip"})
    for answer in (declared, streamed, packed):
        assert answer.status_code == 413
        assert answer.json()["code"] == "payload_too_large"


def test_a_bomb_is_stopped_before_it_is_unpacked(api: httpx.Client) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert api.post("/v1/jobs:validate", content=bomb, headers=headers).status_code == 413
    assert api.post("/v1/streams/s/records", content=bomb, headers=headers).status_code == 413


def test_posts_of_records_have_a_limit_of_their_own(api: httpx.Client) -> None:
    records = {"records": [{"key": "k", "value": "x" * LIMIT}]}
    assert api.post("/v1/streams/s/records", json=records).status_code == 200
    twice = {"records": [{"key": "k", "value": "x" * 2 * LIMIT}]}
    assert api.post("/v1/streams/s/records", json=twice).status_code == 413


def test_a_packed_body_is_read(api: httpx.Client) -> None:
    body = gzip.compress(json.dumps({"job": {}, "records": []}).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert api.post("/v1/jobs:simulate", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"not gzip at all", id="no gzip"),
        pytest.param(gzip.compress(b"{}")[:-4], id="cut short"),
        pytest.param(gzip.compress(b"{}") + b"more", id="more behind it"),
    ],
)
def test_a_packed_body_that_is_not_whole_is_400(api: httpx.Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = api.post("/v1/jobs:simulate", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_body")


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd"])
def test_another_encoding_is_415_and_says_what_is_read(api: httpx.Client, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    answer = api.post("/v1/jobs:simulate", content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert answer.headers["Accept-Encoding"] == "gzip"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/jsonx", "multipart/form-data; boundary=x"])
def test_a_body_that_does_not_say_that_it_is_json_is_415(api: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = api.post("/v1/jobs:validate", content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert answer.headers["Accept"] == "application/json"


@pytest.mark.parametrize(
    "kind", ["application/json", "APPLICATION/JSON; charset=utf-8", "application/merge-patch+json"]
)
def test_json_by_any_of_its_names_is_read(api: httpx.Client, kind: str) -> None:
    answer = api.post("/v1/jobs:simulate", content=b'{"job":{}}', headers={"Content-Type": kind})
    assert answer.status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b'{"a":NaN}', b"\xff", b'{"a":1}{', b"'a'"])
def test_a_body_that_is_not_json_is_400(api: httpx.Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for path in ("/v1/jobs", "/v1/tokens", "/v1/instances:join"):
        answer = api.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")


TWICE = [
    ("POST", "/v1/streams", b'{"name":"a","name":"b"}', "/name"),
    (
        "POST",
        "/v1/jobs",
        b'{"name":"a","operators":[{"op":"filter","where":"true","where":"false"}]}',
        "/operators/0/where",
    ),
    ("POST", "/v1/jobs:validate", b'{"name":"a","source":"s","sink":"x","sink":"y"}', "/sink"),
    ("POST", "/v1/jobs:simulate", b'{"job":{},"job":{}}', "/job"),
    ("PATCH", "/v1/jobs/none", b'{"parallelism":1,"parallelism":2}', "/parallelism"),
    ("POST", "/v1/tokens", b'{"role":"reader","role":"admin"}', "/role"),
    ("POST", "/v1/stores/a-b:lookup", b'{"keys":["a"],"keys":["b"]}', "/keys"),
    ("POST", "/v1/instances:join", b'{"name":"a","incarnation":"1","host":"h","cores":1,"cores":2}', "/cores"),
]


@pytest.mark.parametrize(("method", "path", "body", "pointer"), TWICE)
def test_a_body_with_a_name_twice_is_400(api: httpx.Client, method: str, path: str, body: bytes, pointer: str) -> None:
    answer = api.request(method, path, content=body, headers={"Content-Type": "application/json", "If-Match": '"x"'})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")
    assert answer.json()["errors"] == [{"pointer": pointer, "detail": "the name is given more than once"}]
    assert api.get("/v1/jobs/a").status_code == 404


def test_a_simulated_value_may_have_what_a_posted_one_may(api: httpx.Client) -> None:
    body = b'{"job":{},"records":[{"value":{"a":1,"a":2},"timestamp":1}]}'
    answer = api.post("/v1/jobs:simulate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


def test_a_surprise_is_500_and_logged_and_says_nothing_more(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(jobs, "list_jobs", explode)
    with capture_logs() as lines:
        answer = api.get("/v1/jobs")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal_error"
    assert "secret" not in answer.text
    assert [line["log_level"] for line in lines if line["event"] == "request_broke"] == ["error"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/streams", "application/json"),
        ("/v1/streams/s/records", "application/x-ndjson"),
        ("/v1/instances:join", "application/json"),
    ],
)
def test_a_caller_who_goes_away_while_sending_is_counted_and_no_fault(service: Serving, path: str, kind: str) -> None:
    key, route = service.secrets["admin"], path.replace("/s/", "/{stream}/")
    series = f'millrace_http_requests_total{{method="POST",route="{route}",status="499"}} '
    before = service.client("admin").get("/metrics").text.partition(series)[2].partition("\n")[0]
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Type: {kind}"]
    with capture_logs() as lines:
        with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2]))) as caller:
            caller.sendall("\r\n".join([*head, "Content-Length: 1000", "Expect: 100-continue", "", '{"a']).encode())
            assert caller.recv(1 << 16).startswith(b"HTTP/1.1 100 ")  # it is being read
        wait_until(lambda: bool(lines), "the end of the request")
    [line] = lines
    assert (line["event"], line["log_level"], line["status"]) == ("request", "info", 499)
    assert f"{series}{float(before or 0) + 1}" in service.client("admin").get("/metrics").text


def test_a_database_that_is_away_is_503_and_may_be_asked_again(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("select", {}, Exception("no route to host"))

    monkeypatch.setattr(jobs, "list_jobs", away)
    answer = api.get("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (503, "catalog_unavailable")
    assert answer.headers["Retry-After"] == "1"


def test_readiness_says_what_is_broken_and_not_where_it_is(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("select", {}, Exception("user 'shop' at db.internal"))

    monkeypatch.setattr(totals, "live_instances", away)
    monkeypatch.setattr(service.settings, "redis_url", "redis://shop@127.0.0.1:1/0")
    with capture_logs() as logs:
        parts = service.client(None).get("/readyz").json()["parts"]
    assert parts["database"] == "the database does not answer; why is in the log"
    assert parts["redis"] == "Redis does not answer; why is in the log"
    assert parts["storage"] == "ok"
    assert any("db.internal" in entry.get("error", "") for entry in logs)


WORDS = [
    ("POST", "/v1/jobs:simulate", {"job": {}, "records": ["x"]}, "/records/0", "must be an object"),
    ("POST", "/v1/jobs:simulate", {"job": {}, "record": []}, "/record", "is not a known field"),
    ("POST", "/v1/jobs:simulate", {"job": {}, "batch_records": 0}, "/batch_records", "must be at least 1"),
    ("POST", "/v1/streams", {"name": "x", "partitions": "4"}, "/partitions", "must be an integer"),
    ("POST", "/v1/streams", {"partitions": 4}, "/name", "is required"),
    ("POST", "/v1/streams", ["x"], "", "must be an object"),
    ("POST", "/v1/tokens", {"role": "king"}, "/role", "must be one of 'reader', 'writer', 'admin' or 'instance'"),
    ("POST", "/v1/stores/a-b:lookup", {"keys": "a"}, "/keys", "must be a list"),
    ("GET", "/v1/jobs?limit=many", None, "?limit", "must be an integer"),
    ("GET", "/v1/jobs?limit=0", None, "?limit", "must be at least 1"),
]


@pytest.mark.parametrize(("method", "path", "body", "pointer", "detail"), WORDS)
def test_what_is_wrong_is_said_in_one_language_with_its_place(
    api: httpx.Client, method: str, path: str, body: object, pointer: str, detail: str
) -> None:
    refused = api.request(method, path, json=body).json()
    assert refused["errors"] == [{"pointer": pointer, "detail": detail}]
    assert refused["detail"] == f"{pointer or 'the body'}: {detail}"


def test_no_route_takes_a_parameter_that_it_does_not_have(service: Serving) -> None:
    """Every operation, with the key of an admin; without one it is not said what there is."""
    admin, nobody = service.client("admin"), service.client(None)
    count = 0
    paths = openapi_documents.for_people()["paths"] | openapi_documents.for_workers()["paths"]
    for path, item in paths.items():
        for method, operation in item.items():
            place = re.sub(r"{\w+}", "a-b" if "/stores/" in path else "ab", path) + "?stat=running"
            answer = admin.request(method, place)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), (method, path)
            assert [error["pointer"] for error in answer.json()["errors"]] == ["?stat"]
            assert nobody.request(method, place).status_code == (401 if operation.get("security") else 422)
            count += 1
    assert count > 40


def test_a_parameter_that_is_given_twice_is_refused(api: httpx.Client) -> None:
    answer = api.get("/v1/jobs?limit=1&limit=2")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "?limit")


def test_a_service_about_to_stop_serves_instances_alone(service: Serving, api: httpx.Client) -> None:
    service.app.state.is_draining = True
    try:
        refused = api.get("/v1/jobs")
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        assert refused.headers["Retry-After"]
        assert api.get("/v1/instances").status_code == 200
        assert api.get("/readyz").json()["parts"]["intake"] == "draining"
    finally:
        service.app.state.is_draining = False


def test_requests_are_counted_by_route_and_not_by_path(api: httpx.Client) -> None:
    api.get("/v1/jobs/some-name")
    exposition = api.get("/metrics")
    assert exposition.headers["Content-Type"].startswith("text/plain")
    assert 'millrace_http_requests_total{method="GET",route="/v1/jobs/{job}",status="404"}' in exposition.text
    assert "some-name" not in exposition.text


def test_ids_of_requests_take_nothing_from_the_common_random_numbers() -> None:
    """Who seeds those gets the sequence that was asked for, whatever a service in the same process answers."""
    before = random.getstate()
    assert new_request_id() != new_request_id()
    assert random.getstate() == before
