"""PUT, `:rollback`, `:copy` and versions of a job over HTTP: what they answer, and every refusal, with its pointer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import Serving, serving

Json = dict[str, Any]
COUNT: Json = {
    "op": "aggregate",
    "name": "n",
    "window": {"type": "tumbling", "size_ms": 100, "grace_ms": 5},
    "aggregates": {"n": {"fn": "count"}},
}
FINAL: Json = {"op": "suppress", "name": "final", "until": "window_closes"}
JOB: Json = {"name": "visits", "source": "clicks", "operators": [COUNT, FINAL], "sink": "out"}
SPREAD: Json = {"op": "select_key", "key": "value->>'user'"}
PATH = "/v1/jobs/visits"


def graced(grace_ms: int, **more: Any) -> Json:
    return {**COUNT, "window": {**COUNT["window"], "grace_ms": grace_ms}, **more}


def _prepare(running: Serving, state: str) -> None:
    admin = running.client()
    admin.post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
    admin.post("/v1/jobs", json=JOB).raise_for_status()
    if state != "starting":
        assert admin.post(f"{PATH}:stop").json()["state"] == state  # nobody runs it: it is drained at once


@pytest.fixture
def api(tmp_path: Path, sqlite_url: str) -> Iterator[httpx.Client]:
    """A writer at a service with a stopped job."""
    with serving(tmp_path, sqlite_url) as running:
        _prepare(running, "stopped")
        yield running.client("writer")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    """A service whose job nobody manages to change; its body may have 20 kB."""
    folder = tmp_path_factory.mktemp("versions")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", max_json_bytes=20_000) as running:
        _prepare(running, "stopped")
        yield running


def tag_of(api: httpx.Client, path: str = PATH) -> dict[str, str]:
    return {"If-Match": api.get(path).headers["ETag"]}


def put(api: httpx.Client, *operators: Json, path: str = PATH, **more: Any) -> httpx.Response:
    body = {**JOB, "operators": list(operators), **more}
    return api.put(path, json=body, headers=tag_of(api))


def rollback(api: httpx.Client, body: object, **params: Any) -> httpx.Response:
    return api.post(f"{PATH}:rollback", json=body, headers=tag_of(api), params=params)


def refused(answer: httpx.Response, status: int, code: str) -> list[str]:
    """Checks that an answer is this problem; the pointers in it."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    return [item["pointer"] for item in answer.json().get("errors", [])]


# ---------------------------------------------------------------- PUT


def test_a_stopped_job_is_another_version_at_once(api: httpx.Client) -> None:
    before = api.get(PATH).json()
    answer = put(api, graced(9), FINAL)
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert (job["state"], job["spec_version"], job["change"]) == ("stopped", 2, None)
    assert job["spec"]["operators"][0]["window"]["grace_ms"] == 9
    assert (job["id"], job["positions"], job["stores"]) == (before["id"], before["positions"], before["stores"])
    assert answer.headers["ETag"] == tag_of(api)["If-Match"]
    latest, first = api.get(f"{PATH}/versions").json()["items"]
    assert (latest["version"], latest["is_present"], latest["kind"], latest["who"]) == (2, True, "put", "writer")
    [count, final] = latest["operators"]
    assert (count["operator"], count["op"], count["former"], count["store"]) == ("n", "aggregate", "n", "visits-n")
    assert (count["verdict"], "5 -> 9" in count["detail"], final["verdict"]) == ("keeps", True, "keeps")
    assert [sink["stream"] for sink in latest["sinks"]] == ["out"]
    assert (first["version"], first["is_present"], first["kind"], first["operators"]) == (1, False, "create", [])
    line = api.get(f"{PATH}/history").json()["items"][0]
    assert (line["kind"], line["details"]["version"]) == ("version", 2)
    [sub_topology] = api.get(f"{PATH}/topology").json()["sub_topologies"]
    assert sub_topology["nodes"][0]["spec"]["window"]["grace_ms"] == 9


def test_a_job_that_works_with_nothing_on_its_way_is_too(api: httpx.Client) -> None:
    api.post(f"{PATH}:restart").raise_for_status()
    answer = put(api, graced(9), FINAL)
    assert (answer.status_code, answer.json()["state"], answer.json()["spec_version"]) == (200, "starting", 2)


def test_one_with_records_on_their_way_reads_them_before(api: httpx.Client) -> None:
    body = {**JOB, "name": "across", "operators": [SPREAD, COUNT]}
    api.post("/v1/jobs", json=body).raise_for_status()
    api.post("/v1/streams/clicks/records", json={"records": [{"key": "a", "value": {}}]}).raise_for_status()
    path = "/v1/jobs/across"
    renamed = {**body, "operators": [{"op": "filter", "where": "key IS NOT NULL"}, SPREAD, COUNT]}
    answer = api.put(path, json=renamed, headers=tag_of(api, path), params={"wait": "running", "timeout_ms": 0})
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["state"], job["spec_version"]) == ("changing", 1)
    assert job["change"] == {"state": "pending", "version": 2, "reason": "changed"}
    for ask in (
        lambda: api.put(path, json=body | {"max_batch_records": 7}, headers=tag_of(api, path)),
        lambda: api.patch(path, json={"max_batch_records": 7}, headers=tag_of(api, path)),
        lambda: api.post(f"{path}:rollback", json={"version": 1, "restart": ["n"]}, headers=tag_of(api, path)),
        lambda: api.post(f"{path}:pause"),
        lambda: api.post(f"{path}:flush"),
    ):
        refused(ask(), 409, "illegal_transition")
    given_up = api.post(f"{path}:resume").raise_for_status().json()
    assert (given_up["state"], given_up["spec_version"], given_up["change"]) == ("starting", 1, None)
    assert "given up" in api.get(f"{path}/history").json()["items"][0]["reason"]


def test_an_equal_specification_changes_nothing(api: httpx.Client) -> None:
    before, history = tag_of(api), api.get(f"{PATH}/history").json()
    answer = api.put(PATH, json=api.get(PATH).json()["spec"], headers=before)
    assert (answer.status_code, answer.headers["ETag"]) == (200, before["If-Match"])
    assert api.get(f"{PATH}/history").json() == history
    assert len(api.get(f"{PATH}/versions").json()["items"]) == 1


def test_a_dry_run_says_what_would_be_and_changes_nothing(api: httpx.Client) -> None:
    before, tag = api.get(PATH).json(), tag_of(api)
    body = {**JOB, "operators": [{**COUNT, "name": "m"}], "renames": {"n": "m"}, "sink": "other"}
    answer = api.put(PATH, json=body, headers=tag, params={"dry_run": True})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["version"], found["is_possible"], found["errors"]) == (2, True, [])
    assert (found["spec"]["operators"][0]["name"], found["spec"]["sink"]) == ("m", "other")
    assert found["spec"].keys() == before["spec"].keys()  # with its defaults
    assert {each["operator"]: each["verdict"] for each in found["operators"]} == {"m": "keeps", "final": "removed"}
    assert {each["stream"]: each["verdict"] for each in found["sinks"]} == {"other": "added", "out": "removed"}
    body = {**JOB, "operators": [{**COUNT, "window": {"type": "tumbling", "size_ms": 50}}, FINAL]}
    found = api.put(PATH, json=body, headers=tag, params={"dry_run": True}).json()
    assert found["is_possible"] is False
    assert [each["pointer"] for each in found["errors"]][:1] == ["/operators/0/window/size_ms"]
    assert api.get(PATH).json() == before
    assert api.get("/v1/streams/other").status_code == 404


def test_sinks_that_others_write_are_warned_of_where_they_are_added(api: httpx.Client) -> None:
    api.post(
        "/v1/jobs", json={**JOB, "name": "other", "sink": [{"stream": "shared"}, {"stream": "out"}]}
    ).raise_for_status()
    body = {**JOB, "sink": [{"stream": name} for name in ("out", "shared", "own")]}
    expected = [
        {"pointer": "/sink/1/stream", "detail": "'shared' is written by 'other' too: results will lie among them"}
    ]
    dry = api.put(PATH, json=body, headers=tag_of(api), params={"dry_run": True})
    assert dry.json()["warnings"] == expected
    assert api.put(PATH, json=body, headers=tag_of(api)).json()["warnings"] == expected
    again = api.put(PATH, json={**body, "operators": [graced(9), FINAL]}, headers=tag_of(api))
    assert (again.status_code, "warnings" in again.json()) == (200, False)


def test_a_store_follows_its_operator_and_a_removed_one_is_not_there(api: httpx.Client) -> None:
    answer = put(api, {**COUNT, "name": "m"}, renames={"n": "m"})
    assert answer.json()["stores"] == ["visits-m"]
    assert api.get("/v1/stores/visits-m").status_code == 200
    assert [store["name"] for store in api.get("/v1/stores").json()["items"]] == ["visits-m"]
    for store in ("visits-n", "visits-final"):
        refused(api.get(f"/v1/stores/{store}"), 404, "unknown_store")
        refused(api.get(f"/v1/stores/{store}/keys/a"), 404, "unknown_store")


def test_a_restarted_store_is_another_one(api: httpx.Client) -> None:
    changelog = api.get("/v1/streams/visits-n-changelog").json()["id"]
    smaller = {**COUNT, "window": {"type": "tumbling", "size_ms": 50}}
    assert put(api, smaller, FINAL, restart=["n", "final"]).status_code == 200
    assert api.get("/v1/streams/visits-n-changelog").json()["id"] != changelog


def test_the_first_body_is_another_one_after_a_change(api: httpx.Client) -> None:
    put(api, graced(9), FINAL)
    answer = api.post("/v1/jobs", json=JOB)
    assert refused(answer, 409, "job_exists") == ["/name"]
    assert "PUT" in answer.json()["detail"]
    assert api.post("/v1/jobs", json={**JOB, "operators": [graced(9), FINAL]}).status_code == 200


def test_a_patch_makes_a_version_too(api: httpx.Client) -> None:
    api.patch(PATH, json={"max_batch_records": 7}, headers=tag_of(api)).raise_for_status()
    latest = api.get(f"{PATH}/versions").json()["items"][0]
    assert (latest["version"], latest["kind"], latest["is_present"]) == (2, "patch", True)
    assert rollback(api, {"version": 1}).json()["spec"]["max_batch_records"] == 500_000


def layouts(api: httpx.Client, job: str) -> object:
    [sub_topology] = api.get(f"/v1/jobs/{job}/topology").json()["sub_topologies"]
    return sub_topology["nodes"][0]["store"]["layouts"]


def test_what_entries_look_like_is_known_after_a_patch_and_to_a_copy(api: httpx.Client) -> None:
    assert layouts(api, "visits") is None
    put(api, {**COUNT, "aggregates": {"n": {"fn": "count"}, "m": {"fn": "max", "of": "timestamp"}}}, FINAL)
    known = layouts(api, "visits")
    assert known is not None
    api.patch(PATH, json={"max_batch_records": 7}, headers=tag_of(api)).raise_for_status()
    api.post(f"{PATH}:copy", json={"name": "trial", "sink": None}).raise_for_status()
    assert layouts(api, "visits") == layouts(api, "trial") == known


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ([], ""),
        ({**JOB, "operators": 7}, "/operators"),
        ({name: JOB[name] for name in ("name", "operators")}, "/source"),
        ({**JOB, "unknown": 1}, "/unknown"),
        ({**JOB, "renames": ["n"]}, "/renames"),
        ({**JOB, "renames": {"n": 7}}, "/renames/n"),
        ({**JOB, "restart": "n"}, "/restart"),
        ({**JOB, "restart": ["No/Name"]}, "/restart/0"),
        ({**JOB, "restart": ["n"] * 65}, "/restart"),
        ({**JOB, "max_batch_records": 0}, "/max_batch_records"),
    ],
)
def test_what_is_no_change_is_refused_with_a_pointer(untouched: Serving, body: object, pointer: str) -> None:
    api = untouched.client("writer")
    before = api.get(PATH).json()
    assert refused(api.put(PATH, json=body, headers=tag_of(api)), 422, "invalid_spec") == [pointer]
    assert api.get(PATH).json() == before


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": "other"}, "/name"),
        ({"source": ["clicks", "wide"]}, "/source/1"),
        ({"operators": [{**COUNT, "window": None}]}, "/operators/0/window"),
        ({"operators": [SPREAD, COUNT, FINAL]}, "/operators"),
        ({"renames": {"nobody": "n"}}, "/renames/nobody"),
        ({"renames": {"n": "nobody"}}, "/renames/n"),
        ({"restart": ["nobody"]}, "/restart"),
    ],
)
def test_what_stores_can_not_bear_is_refused_with_a_way_out(untouched: Serving, change: Json, pointer: str) -> None:
    api = untouched.client("writer")
    untouched.client().post("/v1/streams", json={"name": "wide", "partitions": 4})
    before = api.get(PATH).json()
    if "renames" in change or "restart" in change:
        change = {**change, "operators": [graced(9), FINAL]}
    answer = api.put(PATH, json={**JOB, **change}, headers=tag_of(api))
    assert refused(answer, 422, "incompatible_change")[0].startswith(pointer)
    assert api.get(PATH).json() == before


def test_bodies_that_are_no_specifications_are_told_apart(untouched: Serving) -> None:
    api = untouched.client("writer")
    headers = {**tag_of(api), "Content-Type": "application/json"}
    for path, ask in ((PATH, api.put), (f"{PATH}:rollback", api.post), (f"{PATH}:copy", api.post)):
        refused(ask(path, content=b'{"na', headers=headers), 400, "malformed_json")
        yaml = {**headers, "Content-Type": "text/yaml"}
        refused(ask(path, content=b"{}", headers=yaml), 415, "unsupported_media_type")
        large = {**JOB, "renames": {f"n{i}": "x" * 60 for i in range(400)}}
        refused(ask(path, json=large, headers=headers), 413, "payload_too_large")


def test_a_change_needs_the_tag_of_what_it_changes(untouched: Serving) -> None:
    api = untouched.client("writer")
    for ask in (
        lambda headers: api.put(PATH, json={**JOB, "operators": [graced(9), FINAL]}, headers=headers),
        lambda headers: api.post(f"{PATH}:rollback", json={"version": 1}, headers=headers),
    ):
        refused(ask({}), 428, "precondition_required")
        for stale in ('"other"', "*", '""', f"W/{tag_of(api)['If-Match']}"):
            refused(ask({"If-Match": stale}), 412, "stale_tag")


def test_only_writers_change_and_copy_and_readers_look(untouched: Serving) -> None:
    spec = untouched.client().get(PATH).json()["spec"]
    for role, status in ((None, 401), ("reader", 403), ("instance", 403), ("writer", 200)):
        api, headers = untouched.client(role), tag_of(untouched.client())
        assert api.put(PATH, json=spec, headers=headers).status_code == status
        assert api.post(f"{PATH}:rollback", json={"version": 1}, headers=headers).status_code == status
        if status != 200:
            assert api.post(f"{PATH}:copy", json={"name": "trial", "sink": None}).status_code == status
    for role, status in ((None, 401), ("instance", 403), ("reader", 200)):
        for path in (f"{PATH}/versions", f"{PATH}/versions/1"):
            assert untouched.client(role).get(path).status_code == status


def test_a_job_that_is_not_there_is_404(untouched: Serving) -> None:
    api, nobody = untouched.client("writer"), "/v1/jobs/nobody"
    headers = tag_of(api)
    for answer in (
        api.put(nobody, json={**JOB, "name": "nobody"}, headers=headers),
        api.post(f"{nobody}:rollback", json={"version": 1}, headers=headers),
        api.post(f"{nobody}:copy", json={"name": "trial", "sink": None}),
        api.get(f"{nobody}/versions"),
        api.get(f"{nobody}/versions/1"),
    ):
        refused(answer, 404, "unknown_job")


def test_who_runs_a_job_that_works_does_not_change(api: httpx.Client) -> None:
    api.post(f"{PATH}:restart").raise_for_status()
    answer = put(api, COUNT, FINAL, parallelism=1)
    refused(answer, 409, "illegal_transition")
    assert "`:stop` it first" in answer.json()["detail"]


def test_sources_come_and_go_and_history_says_up_to_where_they_were_read(api: httpx.Client) -> None:
    api.post("/v1/streams", json={"name": "views", "partitions": 2}).raise_for_status()
    body = [{"key": "a", "value": {}, "timestamp": 1_000 + i} for i in range(5)]
    api.post("/v1/streams/views/records", json={"records": body}).raise_for_status()
    where = next(at["partition"] for at in api.get("/v1/streams/views").json()["partitions"] if at["end_offset"])
    more = {"source": ["clicks", "views"], "start": {"timestamp": 1_003}}
    dry = api.put(PATH, json={**JOB, **more}, headers=tag_of(api), params={"dry_run": True}).json()
    assert [(each["stream"], each["verdict"]) for each in dry["sources"]] == [
        ("clicks", "unchanged"),
        ("views", "added"),
    ]
    added = put(api, COUNT, FINAL, **more)
    assert added.status_code == 200, added.text
    at = {(each["stream"], each["partition"]): each["position"] for each in added.json()["positions"]}
    assert at == {("clicks", 0): 0, ("clicks", 1): 0, ("views", where): 3, ("views", 1 - where): 0}
    refused(put(api, COUNT, FINAL, source="clicks"), 409, "illegal_transition")  # stopped, and not all of it is read
    assert put(api, COUNT, FINAL, source="views", start="latest").json()["spec_version"] == 3
    line = api.get(f"{PATH}/history").json()["items"][0]
    assert line["details"]["removed_sources"] == {"clicks": {"0": 0, "1": 0}}
    assert {each["stream"] for each in api.get(PATH).json()["positions"]} == {"views"}


# ---------------------------------------------------------------- back to a former version


def test_a_rollback_is_a_new_version_with_the_names_of_the_former_one(api: httpx.Client) -> None:
    changelog = api.get("/v1/streams/visits-n-changelog").json()["id"]
    put(api, {**graced(9), "name": "m"}, FINAL, renames={"n": "m"}).raise_for_status()
    put(api, {**graced(7), "name": "k"}, FINAL, renames={"m": "k"}).raise_for_status()
    answer = rollback(api, {"version": 1})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["spec_version"], answer.json()["stores"]) == (4, ["visits-final", "visits-n"])
    assert answer.json()["spec"] == api.get(f"{PATH}/versions/1").json()["spec"]
    assert api.get("/v1/streams/visits-n-changelog").json()["id"] == changelog
    latest = api.get(f"{PATH}/versions").json()["items"][0]
    assert (latest["kind"], latest["reason"]) == ("rollback", "rollback to version 1")
    dry = rollback(api, {"version": 2}, dry_run=True).json()
    assert (dry["version"], dry["is_possible"]) == (5, True)


def test_a_rollback_to_what_stores_can_not_bear_takes_a_restart(api: httpx.Client) -> None:
    smaller = {**COUNT, "window": {"type": "tumbling", "size_ms": 50}}
    put(api, smaller, FINAL, restart=["n", "final"]).raise_for_status()
    assert refused(rollback(api, {"version": 1}), 422, "incompatible_change")[0].startswith("/operators/0/window")
    assert rollback(api, {"version": 1, "restart": ["n", "final"]}).json()["spec_version"] == 3


@pytest.mark.parametrize(
    ("body", "status", "code", "pointers"),
    [
        ({"version": 2}, 404, "unknown_version", []),
        ({"version": 0}, 422, "invalid_spec", ["/version"]),
        ({"version": "1"}, 422, "invalid_spec", ["/version"]),
        ({"version": 2**63}, 422, "invalid_spec", ["/version"]),
        ({}, 422, "invalid_spec", ["/version"]),
        ({"version": 1, "renames": {}}, 422, "invalid_spec", ["/renames"]),
        ({"version": 1, "restart": [7]}, 422, "invalid_spec", ["/restart/0"]),
    ],
)
def test_where_nobody_can_go_back_to(
    untouched: Serving, body: object, status: int, code: str, pointers: list[str]
) -> None:
    assert refused(rollback(untouched.client("writer"), body), status, code) == pointers


def test_versions_are_paged_and_told_apart(api: httpx.Client) -> None:
    for grace_ms in (6, 7):
        put(api, graced(grace_ms), FINAL).raise_for_status()
    page = api.get(f"{PATH}/versions", params={"limit": 2}).json()
    assert [item["version"] for item in page["items"]] == [3, 2]
    rest = api.get(f"{PATH}/versions", params={"cursor": page["next"]}).json()
    assert ([item["version"] for item in rest["items"]], rest["next"]) == ([1], None)
    one = api.get(f"{PATH}/versions/2")
    assert one.json()["spec"]["operators"][0]["window"]["grace_ms"] == 6
    assert one.json()["topology"]["job"] == "visits"
    unchanged = api.get(f"{PATH}/versions/2", headers={"If-None-Match": one.headers["ETag"]})
    assert unchanged.status_code == 304
    refused(api.get(f"{PATH}/versions/9"), 404, "unknown_version")
    assert refused(api.get(f"{PATH}/versions/x"), 422, "invalid_request") == ["{version}"]
    assert refused(api.get(f"{PATH}/versions", params={"cursor": "x"}), 422, "invalid_cursor") == ["?cursor"]


# ---------------------------------------------------------------- a second job


def test_a_copy_is_made_where_the_first_stands(api: httpx.Client) -> None:
    body = {"name": "trial", "sink": "trial-out", "start_paused": True}
    answer = api.post(f"{PATH}:copy", json=body)
    assert (answer.status_code, answer.headers["Location"]) == (201, "/v1/jobs/trial"), answer.text
    job = answer.json()
    assert (job["state"], job["stores"], job["spec_version"]) == ("paused", ["trial-final", "trial-n"], 1)
    assert job["spec"] == {**api.get(PATH).json()["spec"], "name": "trial", "sink": "trial-out"}
    assert "warnings" not in job
    api.post("/v1/streams/trial-out/records", json={"records": [{"key": "a"}]}).raise_for_status()
    warned = api.post(f"{PATH}:copy", json={**body, "name": "third"}).json()
    assert [item["pointer"] for item in warned["warnings"]] == ["/sink"]
    assert api.post(f"{PATH}:copy", json={"name": "stores", "sink": None}).json()["state"] == "starting"


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ([], 422, "invalid_spec", ""),
        ({"name": "trial"}, 422, "invalid_spec", "/sink"),
        ({"sink": None}, 422, "invalid_spec", "/name"),
        ({"name": 7, "sink": None}, 422, "invalid_spec", "/name"),
        ({"name": "Trial", "sink": None}, 422, "invalid_spec", "/name"),
        ({"name": "trial", "sink": None, "start_paused": "yes"}, 422, "invalid_spec", "/start_paused"),
        ({"name": "trial", "sink": None, "source": "views"}, 422, "invalid_spec", "/source"),
        ({"name": "trial", "sink": "clicks"}, 422, "invalid_spec", "/sink"),
        ({"name": "trial", "sink": "out"}, 422, "incompatible_change", "/sink"),
        ({"name": "trial", "sink": [{"stream": "out"}]}, 422, "incompatible_change", "/sink/0/stream"),
        ({"name": "trial", "sink": "visits-n-changelog"}, 403, "internal_stream", "/sink"),
        ({"name": "visits", "sink": None}, 409, "job_exists", "/name"),
    ],
)
def test_what_is_no_copy_is_refused_with_a_pointer(
    untouched: Serving, body: object, status: int, code: str, pointer: str
) -> None:
    api = untouched.client("writer")
    assert refused(api.post(f"{PATH}:copy", json=body), status, code) == [pointer]
    assert api.get("/v1/jobs/trial").status_code == 404
