"""Sign-in to the dashboard: sessions of browsers, what ends them, and what pages of others can not do with them."""

from __future__ import annotations

import gzip
import http.cookies
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from service.api import dashboard
from service.auth import cookie_names
from service.catalog import keys, sessions
from service.reads import tails
from tests.serving import Serving, serving

STREAM = {"name": "clicks", "partitions": 1}
WORKER_ROUTES = [
    ("POST", "/v1/instances:join", {"name": "n", "incarnation": "1", "host": "h", "cores": 1}),
    ("POST", "/v1/instances/x:heartbeat", {"incarnation": "1"}),
    ("POST", "/v1/instances/x/slots/y:poll", {}),
    ("POST", "/v1/instances/x/slots/y:commit", {"commits": []}),
    ("GET", "/v1/instances/x/slots/y/chunks", None),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("sessions")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", key_cache_ms=50) as running:
        yield running


class Browser:
    """What a browser sends of a page of the service at `origin`; `csrf_token` is that of who signed in."""

    def __init__(self, service: Serving, origin: str | None = None) -> None:
        self.origin = origin or service.url
        self.http = service.client(None, Origin=self.origin)
        self.csrf_token = ""

    def sign_in(self, **given: str) -> httpx.Response:
        answer = self.http.post("/admin/session", json=given)
        if answer.is_success:
            self.csrf_token = answer.json()["csrf_token"]
        return answer

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self.http.request(method, path, json=body, headers={"X-CSRF-Token": self.csrf_token} | headers)


def signed_in(service: Serving, role: str = "admin") -> Browser:
    browser = Browser(service)
    assert browser.sign_in(key=service.secrets[role]).status_code == 201
    return browser


def code_of(answer: httpx.Response) -> str:
    assert answer.status_code == 403, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    return str(answer.json()["code"])


def cookie_of(answer: httpx.Response) -> http.cookies.Morsel[str]:
    [morsel] = http.cookies.SimpleCookie(answer.headers["Set-Cookie"]).values()
    return morsel


def test_a_key_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_gets(service: Serving) -> None:
    browser = Browser(service)
    answer = browser.sign_in(key=service.secrets["writer"])
    assert answer.status_code == 201
    cookie = cookie_of(answer)
    assert cookie.key == cookie_names(service.catalog)[1]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
    assert not cookie["secure"]
    assert cookie["max-age"] == "43200"
    assert answer.headers["Cache-Control"] == "no-store"
    said = answer.json()
    assert (said["name"], said["role"], said["is_open"]) == ("writer", "writer", False)
    assert service.secrets["writer"] not in answer.text + str(answer.headers)
    assert cookie.value not in answer.text
    assert browser.http.get("/admin/session").json() == said
    assert browser.http.get("/v1/jobs").status_code == 200


def test_under_tls_the_cookie_is_one_of_this_host_alone(service: Serving) -> None:
    browser = Browser(service, service.url.replace("http:", "https:"))
    cookie = cookie_of(browser.sign_in(key=service.secrets["reader"]))
    assert cookie.key == "__Host-" + cookie_names(service.catalog)[1]
    assert cookie["secure"]
    assert not cookie["domain"]


def test_each_catalog_has_a_cookie_of_its_own(service: Serving) -> None:
    with_tls, plain = cookie_names(service.catalog)
    assert service.catalog.lineage[:12] in plain
    assert with_tls == f"__Host-{plain}"


@pytest.mark.parametrize("given", [{"key": "not-a-key"}, {"code": "not-a-code"}])
def test_what_is_not_valid_signs_nobody_in(service: Serving, given: dict[str, str]) -> None:
    answer = Browser(service).sign_in(**given)
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    ("given", "pointer"), [({}, ""), ({"key": "a", "code": "b"}, ""), ({"key": 1}, "/key"), ({"name": "x"}, "/name")]
)
def test_a_sign_in_that_can_not_be_is_refused_with_a_pointer(
    service: Serving, given: dict[str, Any], pointer: str
) -> None:
    answer = Browser(service).http.post("/admin/session", json=given)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_an_instances_key_signs_nobody_in(service: Serving) -> None:
    assert code_of(Browser(service).sign_in(key=service.secrets["instance"])) == "forbidden"


def test_a_write_needs_the_sessions_token(service: Serving) -> None:
    browser, other = signed_in(service), signed_in(service)
    for forged in ("", "x", other.csrf_token, "é"):
        answer = browser.http.post("/v1/streams", json=STREAM, headers={"X-CSRF-Token": forged.encode()})
        assert code_of(answer) == "cross_site_request"
    assert browser.ask("POST", "/v1/streams", STREAM).status_code == 201
    tag = browser.ask("GET", "/v1/streams/clicks").headers["ETag"]
    assert browser.ask("DELETE", "/v1/streams/clicks", None, **{"If-Match": tag}).status_code == 204


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "http://localhost", "null"])
def test_a_write_of_another_page_is_refused_though_it_had_the_token(service: Serving, origin: str) -> None:
    browser = signed_in(service)
    assert code_of(browser.ask("POST", "/v1/streams", STREAM, Origin=origin)) == "cross_site_request"
    assert browser.ask("GET", "/v1/streams").status_code == 200


def test_a_write_that_names_no_page_is_refused(service: Serving) -> None:
    browser = signed_in(service)
    del browser.http.headers["Origin"]
    assert code_of(browser.ask("POST", "/v1/streams", STREAM)) == "cross_site_request"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_nothing_is_read_for_a_page_of_another_port(service: Serving, site: str) -> None:
    browser = signed_in(service)
    assert code_of(browser.ask("GET", "/v1/jobs", **{"Sec-Fetch-Site": site})) == "cross_site_request"
    assert browser.ask("GET", "/v1/jobs", **{"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_no_other_page_signs_anybody_in(service: Serving) -> None:
    browser = Browser(service, "https://evil.example")
    assert code_of(browser.sign_in(key=service.secrets["reader"])) == "cross_site_request"


@pytest.mark.parametrize(("method", "path", "body"), WORKER_ROUTES)
def test_a_session_is_not_valid_on_worker_routes(service: Serving, method: str, path: str, body: Any) -> None:
    answer = signed_in(service).ask(method, path, body)
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthenticated"


def test_a_session_has_the_role_of_its_key(service: Serving) -> None:
    reader = signed_in(service, "reader")
    assert reader.ask("GET", "/v1/streams").status_code == 200
    assert code_of(reader.ask("POST", "/v1/streams", STREAM)) == "forbidden"
    assert code_of(reader.ask("GET", "/v1/tokens")) == "forbidden"


def test_signing_out_ends_the_session_for_whoever_kept_the_cookie(service: Serving) -> None:
    browser = signed_in(service)
    kept = dict(browser.http.cookies)
    answer = browser.ask("DELETE", "/admin/session")
    assert answer.status_code == 204
    assert cookie_of(answer)["max-age"] == "0"
    assert not browser.http.cookies
    assert service.client(None).get("/v1/jobs", headers=as_cookie(kept)).status_code == 401


def as_cookie(cookies: dict[str, str]) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}


def test_nobody_is_signed_out_by_another_page(service: Serving) -> None:
    browser = signed_in(service)
    assert code_of(browser.ask("DELETE", "/admin/session", Origin="https://evil.example")) == "cross_site_request"
    assert browser.ask("GET", "/v1/jobs").status_code == 200


def test_a_session_ends_with_its_key(service: Serving) -> None:
    row, secret = service.catalog.write(keys.create_key, "leaving", "reader")
    browser = Browser(service)
    browser.sign_in(key=secret)
    assert browser.ask("GET", "/v1/jobs").status_code == 200
    assert service.client("admin").delete(f"/v1/tokens/{row.id}").status_code == 204
    assert browser.ask("GET", "/v1/jobs").status_code == 401


def test_a_session_is_over_when_its_time_is(service: Serving) -> None:
    row, _ = service.catalog.write(keys.create_key, "late", "reader")
    name = cookie_names(service.catalog)[1]
    for lasts_ms, status in ((0, 401), (60_000, 200)):
        secret, _ = service.catalog.write(sessions.begin_session, row.id, lasts_ms=lasts_ms)
        answer = service.client(None).get("/v1/jobs", headers={"Cookie": f"{name}={secret}"})
        assert answer.status_code == status


def test_a_key_in_the_header_counts_before_a_session_and_needs_no_token(service: Serving) -> None:
    browser = signed_in(service, "reader")
    header = {"Authorization": f"Bearer {service.secrets['admin']}"}
    assert browser.http.get("/v1/tokens", headers=header).status_code == 200
    made = browser.http.post("/v1/tokens", json={"role": "reader"}, headers=header)
    assert made.status_code == 201
    assert browser.http.get("/admin/session", headers=header).json()["csrf_token"] is None


def test_a_code_signs_in_once_as_who_had_it_made(service: Serving) -> None:
    link = httpx.URL(service.client("writer").post("/admin/codes").json()["url"])
    assert str(link).startswith(f"{service.url}/admin#code=")
    code = link.fragment.removeprefix("code=")
    browser = Browser(service)
    assert browser.sign_in(code=code).json()["role"] == "writer"
    assert Browser(service).sign_in(code=code).status_code == 401


def test_a_code_ends_with_its_time_and_with_its_key(service: Serving) -> None:
    row, _ = service.catalog.write(keys.create_key, "leaving", "reader")
    over = service.catalog.write(sessions.make_code, row.id, lasts_ms=0)
    code = service.catalog.write(sessions.make_code, row.id)
    service.catalog.write(keys.revoke_key, row.id)
    for each in (over, code):
        assert Browser(service).sign_in(code=each).status_code == 401


def test_only_a_key_makes_codes(service: Serving) -> None:
    assert signed_in(service).ask("POST", "/admin/codes").status_code == 401
    assert service.client("instance").post("/admin/codes").status_code == 403


def test_a_tail_ends_with_the_session_that_follows_it(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "CHECK_S", 0.05)
    service.client("admin").post("/v1/streams", json={"name": "followed", "partitions": 1}).raise_for_status()
    browser = signed_in(service)
    with browser.http.stream("GET", "/v1/streams/followed/tail") as tail:
        lines = tail.iter_lines()
        next(lines)
        assert browser.ask("DELETE", "/admin/session").status_code == 204
        assert "unauthenticated" in "".join(lines)


def test_a_page_may_load_nothing_but_its_own(service: Serving) -> None:
    first, second = (service.client(None).get("/admin/streams/clicks?view=tail") for _ in range(2))
    policies = [
        dict(part.split(" ", 1) for part in each.headers["Content-Security-Policy"].split("; "))
        for each in (first, second)
    ]
    assert policies[0]["script-src"] == "'self'"
    assert policies[0]["default-src"] == policies[0]["frame-ancestors"] == "'none'"
    assert policies[0]["style-src"] != policies[1]["style-src"], "a nonce is of one answer"
    assert first.headers["Cache-Control"] == "no-store"
    assert first.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("name", ["none.js", "..%2f..%2fauth.py", "%2e%2e", ".hidden"])
def test_only_assets_are_served_as_assets(service: Serving, name: str) -> None:
    answer = service.client(None).get(f"/admin/assets/{name}")
    assert answer.status_code == 404 or answer.headers["Content-Type"].startswith("text/html")
    assert "import " not in answer.text


def test_where_it_was_not_built_the_page_says_why(
    service: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "BUILT", tmp_path)
    page = service.client(None).get("/admin")
    assert page.status_code == 503
    assert "this package was built without it" in page.text
    (tmp_path / dashboard.WHY_NOT).write_text("npm <answered> nothing")
    assert "npm &lt;answered&gt; nothing" in service.client(None).get("/admin/streams").text


def test_a_built_page_gets_a_nonce_and_its_assets_are_kept_packed(
    service: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "BUILT", tmp_path)
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(f"<meta content='{dashboard.NONCE}'>")
    (tmp_path / "assets" / "a-1.js").write_text("plain")
    (tmp_path / "assets" / "a-1.js.gz").write_bytes(gzip.compress(b"packed"))
    http = service.client(None)
    page = http.get("/admin")
    assert re.fullmatch("<meta content='(.+)'>", page.text)[1] in page.headers["Content-Security-Policy"]
    for accepted, text in (("gzip", "packed"), ("identity", "plain")):
        asset = http.get("/admin/assets/a-1.js", headers={"Accept-Encoding": accepted})
        assert asset.text == text
        assert asset.headers["Content-Type"].startswith("text/javascript")
        assert "immutable" in asset.headers["Cache-Control"]
    assert http.get("/admin/assets/a-1.js.gz").status_code == 404


# ---------------------------------------------------------------- without authentication, and behind a proxy


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("open")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    url = "https://millrace.example"
    with serving(folder, f"sqlite:///{folder}/catalog.db", auth="off", public_url=url) as running:
        yield running


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"Origin": "{url}"}, 201),
        ({"Origin": "https://millrace.example"}, 201),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "millrace.example", "Origin": "https://millrace.example"}, 201),
        ({"Host": "localhost:8080"}, 201),
        ({"Host": "[::1]:8080"}, 201),
        ({"Host": "[::1"}, 403),
    ],
)
def test_without_authentication_no_other_page_changes_anything(
    open_service: Serving, headers: dict[str, str], status: int
) -> None:
    given = {name: value.replace("{url}", open_service.url) for name, value in headers.items()}
    http = open_service.client(None, **given)
    name = f"s{uuid4().hex}"
    assert http.post("/v1/streams", json={"name": name, "partitions": 1}).status_code == status
    records = http.post("/v1/streams/posts/records", json={"records": []})  # ahead of the framework
    assert (records.status_code == 403) == (status == 403)
    assert (http.get("/v1/stores/x-y/keys/k").status_code == 403) == (status == 403)


def test_without_authentication_everybody_is_signed_in(open_service: Serving) -> None:
    browser = Browser(open_service)
    said = browser.http.get("/admin/session").json()
    assert (said["role"], said["is_open"], said["csrf_token"]) == ("admin", True, None)
    assert browser.sign_in(key="any").status_code == 200
    assert open_service.client(None).post("/admin/codes").json() == {"url": "https://millrace.example/admin"}
