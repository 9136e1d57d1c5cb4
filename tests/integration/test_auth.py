"""Who may do what, over HTTP: 401 without a valid key, 403 with one of the wrong role."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service import auth
from service.auth import ROLES, KeyRing
from service.catalog import keys
from service.catalog.engine import Catalog
from tests.serving import Serving, serving

JOB = {"name": "j", "source": "clicks", "sink": "out", "operators": [{"op": "filter", "where": "true"}]}
ROUTES = [
    ("GET", "/v1/jobs", None, {"reader", "writer", "admin"}),
    ("GET", "/v1/streams", None, {"reader", "writer", "admin"}),
    ("GET", "/v1/instances", None, {"reader", "writer", "admin"}),
    ("GET", "/info", None, {"reader", "writer", "admin"}),
    ("GET", "/metrics", None, {"reader", "writer", "admin"}),
    ("GET", "/v1/aggregators", None, {"reader", "writer", "admin"}),
    ("GET", "/v1/stores", None, {"reader", "writer", "admin"}),
    ("GET", "/v1/stores/x-y/keys/k", None, {"reader", "writer", "admin"}),
    ("POST", "/v1/stores/x-y:lookup", {"keys": ["k"]}, {"reader", "writer", "admin"}),
    ("POST", "/v1/jobs:validate", JOB, {"reader", "writer", "admin"}),
    ("POST", "/v1/jobs:simulate", {"job": {}}, {"reader", "writer", "admin"}),
    ("GET", "/v1/jobs/x:explain?key=k", None, {"reader", "writer", "admin"}),
    ("POST", "/v1/jobs", JOB, {"writer", "admin"}),
    ("POST", "/v1/jobs/x:pause", None, {"writer", "admin"}),
    ("POST", "/v1/jobs/x:resume", None, {"writer", "admin"}),
    ("POST", "/v1/jobs/x:stop", None, {"writer", "admin"}),
    ("POST", "/v1/jobs/x:restart", None, {"writer", "admin"}),
    ("POST", "/v1/jobs/x:flush", None, {"writer", "admin"}),
    ("POST", "/v1/jobs/x:reset", None, {"writer", "admin"}),
    ("PATCH", "/v1/jobs/x", {}, {"writer", "admin"}),
    ("DELETE", "/v1/jobs/x", None, {"writer", "admin"}),
    ("POST", "/v1/streams", {}, {"writer", "admin"}),
    ("PATCH", "/v1/streams/x", {}, {"writer", "admin"}),
    ("DELETE", "/v1/streams/x", None, {"writer", "admin"}),
    ("POST", "/v1/streams/x/records", {"records": []}, {"writer", "admin"}),
    ("POST", "/v1/jobs/x:skip", {"partition": 0, "offset": 0}, {"admin"}),
    ("POST", "/v1/jobs/x:reset-time", {"stream_time": 0}, {"admin"}),
    ("GET", "/v1/tokens", None, {"admin"}),
    ("POST", "/v1/tokens", {"role": "reader"}, {"admin"}),
    ("DELETE", "/v1/tokens/x", None, {"admin"}),
    ("GET", "/v1/audit", None, {"admin"}),
    ("POST", "/v1/instances/x:drain", None, {"admin"}),
    ("POST", "/v1/instances/x:heartbeat", {"incarnation": "1"}, {"instance", "admin"}),
    ("POST", "/v1/instances/x:leave", {"incarnation": "1"}, {"instance", "admin"}),
    ("POST", "/v1/instances/x/slots", {"slot": "s", "job": "j", "index": 0}, {"instance", "admin"}),
    ("POST", "/v1/instances/x/slots/y:poll", {}, {"instance", "admin"}),
    ("POST", "/v1/instances/x/slots/y:fail", {}, {"instance", "admin"}),
    ("POST", "/v1/instances/x/slots/y:leave", {}, {"instance", "admin"}),
    ("POST", "/v1/instances/x/slots/y/segments", {}, {"instance", "admin"}),
    ("GET", "/v1/instances/x/slots/y/chunks", None, {"instance", "admin"}),
    ("POST", "/v1/instances/x/slots/y:commit", {"commits": []}, {"instance", "admin"}),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("auth")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", key_cache_ms=50) as running:
        yield running


@pytest.mark.parametrize(("method", "path", "body", "allowed"), ROUTES)
def test_each_route_takes_the_roles_it_should_and_no_other(
    service: Serving, method: str, path: str, body: object, allowed: set[str]
) -> None:
    for role in ROLES:
        answer = service.client(role).request(method, path, json=body)
        assert (answer.status_code != 403) == (role in allowed), (role, answer.text)
        assert answer.status_code != 401
    answer = service.client(None).request(method, path, json=body)
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthenticated"


def test_a_key_of_the_wrong_role_is_told_which_role_it_needs(service: Serving) -> None:
    answer = service.client("reader").post("/v1/jobs", json=JOB).json()
    assert (answer["status"], answer["code"]) == (403, "forbidden")
    assert answer["detail"] == "this needs the role writer; the key has the role reader"


@pytest.mark.parametrize("header", ["", "Bearer", "Basic YTpi", "Bearer not-a-key", "bearer x y"])
def test_no_valid_key_is_401_with_a_challenge(service: Serving, header: str) -> None:
    answer = service.client(None, Authorization=header).get("/v1/jobs")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="millrace"')
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_key_that_is_not_valid_is_told_from_none_at_all(service: Serving) -> None:
    assert "invalid_token" not in service.client(None).get("/v1/jobs").headers["WWW-Authenticate"]
    wrong = service.client(None, Authorization="Bearer wrong").get("/v1/jobs")
    assert 'error="invalid_token"' in wrong.headers["WWW-Authenticate"]


def test_the_key_is_judged_before_the_body(service: Serving) -> None:
    answer = service.client(None).post("/v1/jobs", content=b"{", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 401


def test_health_and_the_document_are_open(service: Serving) -> None:
    nobody = service.client(None)
    assert nobody.get("/healthz").json() == {"status": "ok"}
    assert nobody.get("/readyz").status_code == 503
    assert nobody.get("/openapi.json").json()["info"]["title"] == "Millrace"
    assert nobody.get("/openapi-worker.json").json()["info"]["title"] == "Millrace: the protocol of workers"
    assert nobody.get("/docs").headers["Content-Type"].startswith("text/html")


def test_a_key_made_over_http_works_and_ends_at_once_when_it_is_revoked(service: Serving) -> None:
    admin = service.client("admin")
    made = admin.post("/v1/tokens", json={"role": "reader", "name": "dashboard"})
    assert made.status_code == 201
    token = made.json()
    assert made.headers["Location"] == f"/v1/tokens/{token['id']}"
    reader = service.client(None, Authorization=f"Bearer {token['key']}")
    assert reader.get("/v1/jobs").status_code == 200
    assert admin.delete(f"/v1/tokens/{token['id']}").status_code == 204
    assert reader.get("/v1/jobs").status_code == 401


def test_a_revocation_by_another_process_is_seen_within_the_time_that_keys_are_remembered(service: Serving) -> None:
    row, secret = service.catalog.write(keys.create_key, "other", "reader")
    reader = service.client(None, Authorization=f"Bearer {secret}")
    assert reader.get("/v1/jobs").status_code == 200
    service.catalog.write(keys.revoke_key, row.id)
    while reader.get("/v1/jobs").status_code == 200:
        pass  # pytest's timeout bounds it; a key is remembered for 50 ms here
    assert reader.get("/v1/jobs").status_code == 401


def test_tokens_are_listed_page_by_page_without_their_secrets(service: Serving) -> None:
    admin = service.client("admin")
    first = admin.get("/v1/tokens", params={"limit": 2}).json()
    rest = admin.get("/v1/tokens", params={"cursor": first["next"]}).json()
    names = [token["name"] for token in first["items"] + rest["items"]]
    assert len(first["items"]) == 2
    assert names[:4] == ["reader", "writer", "admin", "instance"]
    assert rest["next"] is None
    assert all("key" not in token and "sha256" not in token for token in first["items"])


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/role"),
        ({"role": "root"}, "/role"),
        ({"role": 1}, "/role"),
        ({"role": "reader", "name": "x" * 201}, "/name"),
        ({"role": "reader", "secret": "mine"}, "/secret"),
        ([], ""),
    ],
)
def test_a_token_that_can_not_be_is_refused_with_a_pointer(service: Serving, body: object, pointer: str) -> None:
    answer = service.client("admin").post("/v1/tokens", json=body)
    assert answer.status_code == 422
    assert [item["pointer"] for item in answer.json()["errors"]] == [pointer]


def test_revoking_a_key_that_is_not_there_is_404(service: Serving) -> None:
    answer = service.client("admin").delete("/v1/tokens/none")
    assert answer.status_code == 404
    assert answer.json()["code"] == "unknown_key"


def test_without_authentication_everybody_on_loopback_is_an_admin(tmp_path: Path, migrated_sqlite: bytes) -> None:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db", auth="off") as running:
        answer = httpx.get(f"{running.url}/v1/tokens")
        assert answer.status_code == 200
        assert httpx.get(f"{running.url}/metrics").status_code == 200


def test_of_too_many_keys_the_least_recently_used_is_forgotten(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "CACHED_KEYS", 2)
    names = ("first", "second", "third")
    secrets = [catalog.write(keys.create_key, name=name, role="reader")[1] for name in names]

    async def shown() -> list[str]:
        ring = KeyRing(catalog, ttl_ms=60_000)
        for secret in (*secrets[:2], secrets[0], secrets[2]):
            assert await ring.caller(secret) is not None
        return [caller.name for secret in secrets if (caller := ring.at_hand(secret)) is not None]

    assert asyncio.run(shown()) == ["first", "third"]
