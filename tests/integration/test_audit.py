"""Who did what when, over HTTP: each change has an entry, committed with it; what changes nothing has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from typer.testing import CliRunner

from service import audit
from service.catalog import streams
from service.catalog.engine import Catalog
from service.cli import app as command
from tests.serving import Serving, serving

JOB = {"name": "audited", "source": "seen", "sink": "seen-out", "operators": [{"op": "filter", "where": "true"}]}
# What needs a role that may change something, is no GET, and stands in no audit.
UNFOLLOWED = {"append_records", "pull_records", "acknowledge_records"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", key_cache_ms=0) as running:
        yield running


def entries(service: Serving, **which: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.client().get("/v1/audit", params=which).raise_for_status().json()["items"]
    return found


def outlines(found: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(entry["what"], entry["resource"], entry["status"]) for entry in reversed(found)]


def test_a_change_is_there_with_who_made_it_and_what_was_sent(service: Serving) -> None:
    writer = service.client("writer", **{"X-Request-Id": "asked-for-this"})
    writer.post("/v1/streams", json={"name": "told", "partitions": 2, "retention_ms": 5_000}).raise_for_status()
    [entry] = entries(service, resource="streams/told")
    [key] = [each for each in service.client().get("/v1/tokens").json()["items"] if each["name"] == "writer"]
    told = {name: entry[name] for name in entry.keys() - {"id", "at"}}
    assert told == {
        "key_id": key["id"],
        "who": "writer",
        "role": "writer",
        "what": "create_stream",
        "method": "POST",
        "path": "/v1/streams",
        "resource": "streams/told",
        "status": 201,
        "request_id": "asked-for-this",
        "change": {"name": "told", "partitions": 2, "retention_ms": 5_000},
    }
    assert key["last_used_at"] is not None


def test_the_life_of_a_stream_a_subscription_a_job_and_a_key(service: Serving) -> None:
    http = service.client()
    made = http.post("/v1/streams", json={"name": "seen", "partitions": 1})
    http.post("/v1/streams", json={"name": "seen", "partitions": 1}).raise_for_status()
    tag = {"If-Match": made.headers["ETag"]}
    http.patch("/v1/streams/seen", json={"retention_ms": 1_000}, headers=tag).raise_for_status()
    push = {"url": "https://hooks.example/T0/secret", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
    http.post("/v1/streams/seen/subscriptions", json={"name": "mail", "push": push}).raise_for_status()
    http.delete("/v1/streams/seen/subscriptions/mail").raise_for_status()
    http.post("/v1/jobs", json=JOB).raise_for_status()
    http.post("/v1/jobs/audited:stop").raise_for_status()
    tag = {"If-Match": http.get("/v1/jobs/audited").headers["ETag"]}
    other = JOB | {"operators": [{"op": "filter", "where": "1 = 1"}]}
    http.put("/v1/jobs/audited?dry_run=true", json=other, headers=tag).raise_for_status()
    http.put("/v1/jobs/audited", json=other, headers=tag).raise_for_status()
    http.post("/v1/jobs/audited:copy", json={"name": "twin", "sink": None}).raise_for_status()
    for job in ("audited", "twin"):
        http.post(f"/v1/jobs/{job}:stop")
        http.delete(f"/v1/jobs/{job}").raise_for_status()
    assert outlines(entries(service, resource="streams/seen")) == [
        ("create_stream", "streams/seen", 201),
        ("create_stream", "streams/seen", 200),  # it was there
        ("update_stream", "streams/seen", 200),
        ("create_subscription", "streams/seen/subscriptions/mail", 201),
        ("delete_subscription", "streams/seen/subscriptions/mail", 204),
    ]
    [subscribed] = entries(service, what="create_subscription")
    assert subscribed["change"]["push"] == {"url": "https://hooks.example/…", "secret": "…"}
    assert outlines(entries(service, resource="jobs/audited"))[:3] == [
        ("create_job", "jobs/audited", 201),
        ("stop_job", "jobs/audited", 200),
        ("put_job", "jobs/audited", 200),
    ]
    assert outlines(entries(service, resource="jobs/twin"))[0] == ("copy_job", "jobs/twin", 201)
    key = http.post("/v1/tokens", json={"role": "reader", "name": "shown-once"}).json()
    http.delete(f"/v1/tokens/{key['id']}").raise_for_status()
    about = entries(service, resource=f"tokens/{key['id']}")
    assert outlines(about) == [
        ("create_token", f"tokens/{key['id']}", 201),
        ("revoke_token", f"tokens/{key['id']}", 204),
    ]
    assert key["key"] not in str(about)


def test_a_jobs_history_names_the_same_people(service: Serving) -> None:
    service.client("writer").post("/v1/streams", json={"name": "same", "partitions": 1}).raise_for_status()
    service.client("writer").post("/v1/jobs", json=JOB | {"name": "same", "source": "same"}).raise_for_status()
    service.client("admin").post("/v1/jobs/same:pause").raise_for_status()
    history = service.client().get("/v1/jobs/same/history").json()["items"]
    audited = entries(service, resource="jobs/same")
    assert [entry["who"] for entry in audited] == ["admin", "writer"]
    assert [(change["who"], change["at"][:16]) for change in history] == [
        (entry["who"], entry["at"][:16]) for entry in audited
    ]


def test_what_changes_nothing_is_not_there(service: Serving) -> None:
    service.client().post("/v1/streams", json={"name": "quiet", "partitions": 1}).raise_for_status()
    before = entries(service)
    writer = service.client("writer")
    writer.post("/v1/streams/quiet/records", json={"records": [{"value": 1}]}).raise_for_status()
    writer.post("/v1/jobs:validate", json=JOB | {"source": "quiet"}).raise_for_status()
    writer.post("/v1/jobs:simulate", json={"job": {"operators": []}, "records": []})
    for method, path, body, status in (
        ("POST", "/v1/streams", {"name": "quiet", "partitions": 3}, 409),
        ("POST", "/v1/streams", {"name": "Quiet"}, 422),
        ("POST", "/v1/jobs/nowhere:pause", None, 404),
        ("POST", "/v1/tokens", {"role": "reader"}, 403),
        ("DELETE", "/v1/streams/nowhere", None, 404),
    ):
        assert writer.request(method, path, json=body).status_code == status
    assert entries(service) == before


def test_a_change_that_fails_takes_its_entry_with_it(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are of one transaction."""
    service.client().post("/v1/streams", json={"name": "stays", "partitions": 1}).raise_for_status()
    add, before = audit.audit.add_entry, entries(service)

    def fails_behind(*how: Any, **what: Any) -> int:
        add(*how, **what)
        raise OSError("the disk is gone")

    monkeypatch.setattr(audit.audit, "add_entry", fails_behind)
    assert service.client().delete("/v1/streams/stays").status_code == 500
    monkeypatch.undo()
    assert entries(service) == before
    assert service.catalog.read(streams.find_stream, "stays") is not None


def test_each_route_that_changes_something_is_followed(service: Serving) -> None:
    """A new one has an entry unless it is named in both places."""
    assert audit.UNFOLLOWED == UNFOLLOWED
    routes = [route for route in service.app.routes if isinstance(route, APIRoute) and "worker" not in route.tags]
    changing = {route.name for route in routes if route.methods - audit.SAFE and route.path.startswith("/v1/")}
    asking = {"validate_job", "simulate_job", "plan_group", "look_up_keys"}  # a reader may: they change nothing
    assert changing >= UNFOLLOWED | asking
    for name in changing - UNFOLLOWED - asking:
        [route] = [route for route in routes if route.name == name]
        roles = {call.__qualname__ for call in (each.call for each in route.dependant.dependencies) if call is not None}
        assert "_require.<locals>.caller" in roles, name
        path = route.path_format.format(**dict.fromkeys(route.param_convertors, "x"))
        for method in route.methods:
            assert service.client("reader").request(method, path).status_code == 403, name


def test_sign_ins_are_there_and_of_refused_ones_ten_a_minute(service: Serving) -> None:
    browser = service.client(None, Origin=service.url)
    signed_in = browser.post("/admin/session", json={"key": service.secrets["reader"]})
    token = {"X-CSRF-Token": signed_in.json()["csrf_token"]}
    assert browser.delete("/admin/session", headers=token).status_code == 204
    assert service.client("writer").post("/admin/codes").status_code == 201
    for _ in range(12):
        assert browser.post("/admin/session", json={"key": "guessed"}).status_code == 401
    assert browser.post("/admin/session", json={"key": service.secrets["instance"]}).status_code == 403
    found = entries(service, resource="sessions")
    refused = [entry for entry in found if entry["status"] == 401]
    assert len(refused) == audit.REFUSED_A_MINUTE == 10
    assert {(entry["who"], entry["key_id"], entry["role"]) for entry in refused} == {("", "", "")}
    others = [(entry["what"], entry["who"], entry["status"]) for entry in reversed(found) if entry not in refused]
    assert others == [("sign_in", "reader", 201), ("sign_out", "reader", 204), ("make_code", "writer", 201)]
    assert service.secrets["reader"] not in str(found)


def test_those_left_out_are_counted_in_the_next_entry(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit.time, "monotonic", lambda: 1e9)  # as if a minute had passed
    service.client(None, Origin=service.url).post("/admin/session", json={"key": "guessed"})
    [latest] = entries(service, what="sign_in", limit=1)
    assert latest["change"]["left_out"] >= 1


def test_a_command_that_goes_to_the_catalog_itself_is_there(
    tmp_path: Path, migrated_sqlite: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path))
    made = CliRunner().invoke(command, ["token", "create", "--role", "reader", "--name", "by-hand"])
    assert made.exit_code == 0, made.output
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    [row] = catalog.read(audit.audit.list_entries)
    catalog.close()
    assert (row.key_name, row.operation, row.method, row.path) == (
        "command line",
        "create_token",
        "CLI",
        "millrace token create",
    )
    assert row.change == {"role": "reader", "name": "by-hand"}
    assert made.output.strip() not in str(vars(row))


def test_pages_go_on_where_the_one_before_ended(service: Serving) -> None:
    whole = entries(service, limit=1000)
    first = service.client().get("/v1/audit?limit=3").json()
    second = service.client().get("/v1/audit", params={"limit": 1000, "cursor": first["next"]}).json()
    assert [*first["items"], *second["items"]] == whole
    assert second["next"] is None


@pytest.mark.parametrize(
    ("query", "code", "pointer"),
    [
        ("cursor=x", "invalid_cursor", "?cursor"),
        ("from=2&until=1", "invalid_request", "?from"),
        ("from=yesterday", "invalid_request", "?from"),
        ("until=-1", "invalid_request", "?until"),
        ("who=", "invalid_request", "?who"),
        ("limit=0", "invalid_request", "?limit"),
    ],
)
def test_what_is_asked_wrongly_is_pointed_at(service: Serving, query: str, code: str, pointer: str) -> None:
    answer = service.client().get(f"/v1/audit?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]


def test_it_is_for_admins_alone(service: Serving) -> None:
    for role in ("reader", "writer", "instance"):
        assert service.client(role).get("/v1/audit").status_code == 403
