"""PATCH of a job over HTTP, on SQLite and on Postgres: what may change while its stores stay, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import Serving, serving

COUNT = {
    "op": "aggregate",
    "name": "visits",
    "window": {"type": "session", "gap_ms": 10},
    "aggregates": {"n": {"fn": "count"}},
}
FINAL = {
    "op": "suppress",
    "name": "final",
    "until": "window_closes",
    "buffer": {"max_records": 2, "when_full": "shut_down"},
}
LATER = {"op": "suppress", "name": "later", "until": "time_limit", "time_limit_ms": 5, "buffer": {"max_bytes": 100}}
JOB: dict[str, Any] = {"name": "visits", "source": "clicks", "operators": [COUNT, FINAL, LATER], "sink": "out"}
PATH = "/v1/jobs/visits"


@pytest.fixture
def service(tmp_path: Path, sqlite_url: str) -> Iterator[Serving]:
    with serving(tmp_path, sqlite_url, max_json_bytes=20_000) as running:
        _prepare(running)
        yield running


@pytest.fixture
def api(service: Serving) -> httpx.Client:
    return service.client("writer")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    """A service whose job nobody manages to change."""
    folder = tmp_path_factory.mktemp("changes")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", max_json_bytes=20_000) as running:
        _prepare(running)
        yield running


def _prepare(running: Serving) -> None:
    """A stopped job: nobody runs it, so it is drained at once."""
    admin = running.client()
    admin.post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
    admin.post("/v1/jobs", json=JOB).raise_for_status()
    assert admin.post(f"{PATH}:stop").json()["state"] == "stopped"


def tag_of(api: httpx.Client) -> dict[str, str]:
    return {"If-Match": api.get(PATH).headers["ETag"]}


def change(api: httpx.Client, body: object) -> httpx.Response:
    return api.patch(PATH, json=body, headers=tag_of(api))


def refused(answer: httpx.Response, status: int, code: str) -> list[str]:
    """Checks that an answer is this problem; the pointers in it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == code
    return [item["pointer"] for item in answer.json().get("errors", [])]


# ---------------------------------------------------------------- what may change


def test_a_change_is_merged_into_the_spec_and_leaves_the_rest(api: httpx.Client) -> None:
    before = api.get(PATH).json()
    fields = {"max_batch_records": 7, "commit_interval_ms": 0, "idle_close_after_ms": 900, "parallelism": 1}
    answer = change(api, {**fields, "buffers": {"final": {"max_records": 50}, "later": {"when_full": "shut_down"}}})
    assert answer.status_code == 200, answer.text
    after = answer.json()
    assert {**before["spec"], **fields, "operators": after["spec"]["operators"]} == after["spec"]
    buffers = [operator.get("buffer") for operator in after["spec"]["operators"]]
    assert buffers == [
        None,
        {"max_records": 50, "max_bytes": None, "when_full": "shut_down"},
        {"max_records": None, "max_bytes": 100, "when_full": "shut_down"},
    ]
    assert {name for name in after if after[name] != before[name]} == {"spec", "version", "spec_version"}


@pytest.mark.parametrize("is_before", [True, False])
def test_the_sub_topologies_of_a_job_stay_whoever_chose_partitions_and_when(
    api: httpx.Client, *, is_before: bool
) -> None:
    api.post("/v1/streams", json={"name": "views", "partitions": 2}).raise_for_status()
    chosen = {"records": [{"key": "a", "value": 1, "timestamp": 1, "partition": 1}]}
    job = {**JOB, "name": "seen", "source": "views"}
    for step in ("choose", "create") if is_before else ("create", "choose"):
        if step == "choose":
            api.post("/v1/streams/views/records", json=chosen).raise_for_status()
        else:
            before = api.post("/v1/jobs", json=job).raise_for_status().json()
    topology = api.get("/v1/jobs/seen/topology").json()
    assert len(topology["sub_topologies"]) == (2 if is_before else 1)
    tag = api.get("/v1/jobs/seen").headers["ETag"]
    changed = api.patch("/v1/jobs/seen", json={"max_batch_records": 7}, headers={"If-Match": tag})
    assert changed.raise_for_status().json()["spec"] == {**before["spec"], "max_batch_records": 7}
    assert api.get("/v1/jobs/seen/topology").json() == topology


def test_what_runs_is_what_was_changed(api: httpx.Client) -> None:
    change(api, {"buffers": {"final": {"when_full": "spill_to_disk", "max_records": None, "max_bytes": 9}}})
    [sub_topology] = api.get(f"{PATH}/topology").json()["sub_topologies"]
    assert sub_topology["nodes"][1]["spec"]["buffer"] == {"max_bytes": 9, "when_full": "spill_to_disk"}


def test_null_takes_a_bound_or_a_setting_away(api: httpx.Client) -> None:
    change(api, {"parallelism": 3, "idle_close_after_ms": 5})
    spec = change(
        api, {"parallelism": None, "idle_close_after_ms": None, "buffers": {"later": {"max_bytes": None}}}
    ).json()["spec"]
    assert (spec["parallelism"], spec["idle_close_after_ms"]) == (None, None)
    assert spec["operators"][2]["buffer"] == {"max_records": None, "max_bytes": None, "when_full": None}


def test_a_changed_job_is_the_one_that_its_new_body_names(api: httpx.Client) -> None:
    job = change(api, {"max_batch_records": 7}).json()
    again = api.post("/v1/jobs", json={**JOB, "max_batch_records": 7})
    assert (again.status_code, again.json()["id"]) == (200, job["id"])
    refused(api.post("/v1/jobs", json=JOB), 409, "job_exists")


def test_history_says_who_changed_what(api: httpx.Client) -> None:
    change(api, {"buffers": {"final": {"max_records": 50}}})
    latest = api.get(f"{PATH}/history").json()["items"][0]
    assert (latest["from_state"], latest["to_state"], latest["who"]) == ("stopped", "stopped", "writer")
    assert latest["reason"] == 'changed: {"buffers":{"final":{"max_records":50}}}'


@pytest.mark.parametrize("body", [{}, {"max_batch_records": 500_000}, {"buffers": {"final": {"max_records": 2}}}])
def test_a_change_to_what_is_changes_nothing(api: httpx.Client, body: dict[str, Any]) -> None:
    before, history = tag_of(api), api.get(f"{PATH}/history").json()
    assert change(api, body).headers["ETag"] == before["If-Match"]
    assert api.get(f"{PATH}/history").json() == history


def test_a_source_that_was_written_with_partitions_since_is_no_hindrance(api: httpx.Client) -> None:
    api.post("/v1/streams/clicks/records", json={"records": [{"key": "a", "partition": 1}]}).raise_for_status()
    assert change(api, {"buffers": {"final": {"max_records": 3}}}).status_code == 200


# ---------------------------------------------------------------- the tag


def test_a_change_needs_the_tag_of_what_it_changes(api: httpx.Client) -> None:
    old = tag_of(api)
    refused(api.patch(PATH, json={"max_batch_records": 7}), 428, "precondition_required")
    changed = api.patch(PATH, json={"max_batch_records": 7}, headers=old)
    assert changed.headers["ETag"] == tag_of(api)["If-Match"] != old["If-Match"]
    for stale in (old["If-Match"], '"other"', "*", '""', f"W/{changed.headers['ETag']}"):
        refused(api.patch(PATH, json={"max_batch_records": 8}, headers={"If-Match": stale}), 412, "stale_tag")
    assert api.get(PATH).json()["spec"]["max_batch_records"] == 7


def test_records_that_come_in_change_the_tag_but_do_not_make_it_stale(api: httpx.Client) -> None:
    old = tag_of(api)
    api.post("/v1/streams/clicks/records", json={"records": [{"key": "a"}]}).raise_for_status()
    assert tag_of(api) != old
    assert api.patch(PATH, json={"max_batch_records": 7}, headers=old).status_code == 200


def test_a_job_made_again_under_the_name_has_another_tag(api: httpx.Client) -> None:
    old = tag_of(api)
    api.delete(PATH)
    api.post("/v1/jobs", json=JOB)
    api.post(f"{PATH}:stop")
    refused(api.patch(PATH, json={"max_batch_records": 7}, headers=old), 412, "stale_tag")


# ---------------------------------------------------------------- what may not


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ([], ""),
        ("max_batch_records", ""),
        ({"name": "other"}, "/name"),
        ({"source": "clicks"}, "/source"),
        ({"operators": []}, "/operators"),
        ({"on_error": "explode"}, "/on_error"),
        ({"on_error": None}, "/on_error"),
        ({"keep_dropped": None}, "/keep_dropped"),
        ({"keep_dropped": 1}, "/keep_dropped"),
        ({"max_batch_records": 0}, "/max_batch_records"),
        ({"max_batch_records": None}, "/max_batch_records"),
        ({"max_batch_records": "7"}, "/max_batch_records"),
        ({"max_batch_records": True}, "/max_batch_records"),
        ({"commit_interval_ms": -1}, "/commit_interval_ms"),
        ({"commit_interval_ms": 0.5}, "/commit_interval_ms"),
        ({"idle_close_after_ms": 0}, "/idle_close_after_ms"),
        ({"idle_close_after_ms": 2**63}, "/idle_close_after_ms"),
        ({"standby_replicas": -1}, "/standby_replicas"),
        ({"standby_replicas": 101}, "/standby_replicas"),
        ({"standby_replicas": "1"}, "/standby_replicas"),
        ({"acceptable_recovery_lag": None}, "/acceptable_recovery_lag"),
        ({"max_warmup_replicas": 0}, "/max_warmup_replicas"),
        ({"strategy": "rack"}, "/strategy"),
        ({"parallelism": 0}, "/parallelism"),
        ({"parallelism": 10_001}, "/parallelism"),
        ({"buffers": [{"max_records": 3}]}, "/buffers"),
        ({"buffers": {"final": 3}}, "/buffers/final"),
        ({"buffers": {"final": {"max_records": -1}}}, "/buffers/final/max_records"),
        ({"buffers": {"final": {"max_bytes": "1 MB"}}}, "/buffers/final/max_bytes"),
        ({"buffers": {"final": {"when_full": "explode"}}}, "/buffers/final/when_full"),
        ({"buffers": {"final": {"until": "time_limit"}}}, "/buffers/final/until"),
        ({"buffers": {"final": {"when_full": "emit_early"}}}, "/buffers/final"),
        ({"buffers": {"final": {"when_full": None}}}, "/buffers/final"),
        ({"buffers": {"visits": {"max_records": 3}}}, "/buffers/visits"),
        ({"buffers": {"nobody": {}}}, "/buffers/nobody"),
        ({"buffers": {"No/Name": {}}}, "/buffers/No~1Name"),
    ],
)
def test_what_can_not_be_changed_is_refused_with_a_pointer(untouched: Serving, body: object, pointer: str) -> None:
    api = untouched.client("writer")
    before = api.get(PATH).json()
    assert refused(change(api, body), 422, "invalid_spec") == [pointer]
    assert api.get(PATH).json() == before


def test_bodies_that_are_no_changes_are_told_apart(untouched: Serving) -> None:
    api = untouched.client("writer")
    headers = {**tag_of(api), "Content-Type": "application/json"}
    refused(api.patch(PATH, content=b'{"max', headers=headers), 400, "malformed_json")
    refused(
        api.patch(PATH, content=b"{}", headers={**headers, "Content-Type": "text/yaml"}), 415, "unsupported_media_type"
    )
    large = {"buffers": {f"b{i}": {"max_records": i} for i in range(2_000)}}
    refused(api.patch(PATH, json=large, headers=headers), 413, "payload_too_large")


def test_only_writers_change_jobs(untouched: Serving) -> None:
    for role, status in ((None, 401), ("reader", 403), ("instance", 403), ("admin", 200), ("writer", 200)):
        headers = tag_of(untouched.client())
        assert untouched.client(role).patch(PATH, json={}, headers=headers).status_code == status


def test_a_job_that_is_not_there_is_404(untouched: Serving) -> None:
    api = untouched.client("writer")
    refused(api.patch("/v1/jobs/nobody", json={}, headers=tag_of(api)), 404, "unknown_job")


WHILE_RUNNING: dict[str, Any] = {
    "max_batch_records": 7,
    "commit_interval_ms": 5,
    "idle_close_after_ms": 900,
    "standby_replicas": 1,
    "acceptable_recovery_lag": 5,
    "max_warmup_replicas": 3,
    "strategy": "sticky",
    "buffers": {"final": {"max_records": 50}},
}
STOPPED_FIRST = [{"on_error": "drop"}, {"keep_dropped": True}, {"parallelism": 1}]


@pytest.mark.parametrize("verbs", [["restart"], ["restart", "pause"]])
def test_a_job_that_somebody_may_run_takes_what_its_slots_take_over(api: httpx.Client, verbs: list[str]) -> None:
    for verb in verbs:
        state = api.post(f"{PATH}:{verb}").json()["state"]
    for body in STOPPED_FIRST:
        answer = change(api, {**WHILE_RUNNING, **body})
        refused(answer, 409, "illegal_transition")
        assert state in answer.json()["detail"]
    changed = change(api, {**WHILE_RUNNING, "on_error": "fail", "keep_dropped": False, "parallelism": None})
    assert (changed.status_code, changed.json()["state"]) == (200, state), changed.text
    assert changed.json()["spec"]["idle_close_after_ms"] == 900
    assert changed.json()["spec"]["operators"][1]["buffer"]["max_records"] == 50


def test_dropped_records_are_kept_from_a_change_on_and_stay_when_that_ends(api: httpx.Client) -> None:
    assert api.get(f"{PATH}/dropped").json()["stream"] is None
    assert change(api, {"keep_dropped": True, "on_error": "drop"}).json()["spec"]["on_error"] == "drop"
    assert api.get(f"{PATH}/dropped").json()["stream"] == "visits-dropped"
    kept = api.get("/v1/streams/visits-dropped").json()
    assert (kept["kind"], len(kept["partitions"])) == ("dropped", 2)
    [sub_topology] = api.get(f"{PATH}/topology").json()["sub_topologies"]
    assert sub_topology["dropped"] == "visits-dropped"
    for is_kept in (False, True):
        assert change(api, {"keep_dropped": is_kept}).status_code == 200
        assert api.get("/v1/streams/visits-dropped").json()["id"] == kept["id"]
    assert api.delete(PATH).status_code == 204
    assert api.get("/v1/streams/visits-dropped").status_code == 404


def test_dropped_records_are_not_kept_in_somebodys_stream(api: httpx.Client) -> None:
    api.post("/v1/streams", json={"name": "visits-dropped", "partitions": 2}).raise_for_status()
    assert refused(change(api, {"keep_dropped": True}), 409, "stream_exists") == ["/keep_dropped"]
    body = {**JOB, "name": "other", "sink": "other-dropped"}
    api.post("/v1/jobs", json=body).raise_for_status()
    api.post("/v1/jobs/other:stop")
    tag = {"If-Match": api.get("/v1/jobs/other").headers["ETag"]}
    answer = api.patch("/v1/jobs/other", json={"keep_dropped": True}, headers=tag)
    assert refused(answer, 422, "invalid_spec") == ["/keep_dropped"]
