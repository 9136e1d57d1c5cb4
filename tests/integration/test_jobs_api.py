"""Jobs over HTTP, on SQLite and on Postgres: submitted, looked at, moved from state to state, deleted."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import Serving, serving

ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 600_000}
JOB: dict[str, Any] = {"name": "visits", "source": "clicks", "operators": [ONCE], "sink": "visits-once"}


@pytest.fixture
def service(tmp_path: Path, sqlite_url: str) -> Iterator[Serving]:
    with serving(tmp_path, sqlite_url, max_json_bytes=20_000) as running:
        running.client().post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
        yield running


@pytest.fixture
def api(service: Serving) -> httpx.Client:
    return service.client("writer")


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[httpx.Client]:
    """A service for tests that leave nothing behind: what they send is refused, or kept nowhere."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", max_json_bytes=20_000) as running:
        running.client().post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
        yield running.client("writer")


def test_a_job_is_made_once_and_an_equal_body_finds_it(api: httpx.Client) -> None:
    made = api.post("/v1/jobs", json=JOB)
    assert made.status_code == 201, made.text
    assert made.headers["Location"] == "/v1/jobs/visits"
    again = api.post("/v1/jobs", json={**JOB, "on_error": "fail"})  # a default spelled out is the same job
    assert again.status_code == 200
    assert again.json()["id"] == made.json()["id"]
    other = api.post("/v1/jobs", json={**JOB, "sink": "elsewhere"})
    assert other.status_code == 409
    assert other.json()["code"] == "job_exists"


def test_a_new_job_shows_its_spec_its_positions_and_its_state(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    job = api.get("/v1/jobs/visits").json()
    assert job["name"] == "visits"
    assert job["state"] == "starting"
    assert job["spec"]["operators"] == [ONCE]
    assert job["spec"]["max_batch_records"] == 500_000
    assert job["positions"] == [
        {"stream": "clicks", "partition": p, "position": 0, "end": 0, "lag": 0} for p in range(2)
    ]
    assert job["stream_time"] is None
    assert job["error"] is None
    assert job["stores"] == ["visits-once"]


def test_what_belongs_to_a_job_is_made_with_it(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    streams = {stream["name"]: stream for stream in api.get("/v1/streams").json()["items"]}
    assert streams["visits-once"]["kind"] == "user"
    assert streams["visits-once-changelog"]["kind"] == "changelog"
    assert len(streams["visits-once-changelog"]["partitions"]) == 2


def test_validating_compiles_and_keeps_nothing(refusing: httpx.Client) -> None:
    compiled = refusing.post("/v1/jobs:validate", json=JOB).json()
    assert compiled["topology"]["sub_topologies"][0]["partitions"] == 2
    assert compiled["spec"]["acceptable_recovery_lag"] == 10_000
    assert refusing.get("/v1/jobs").json() == {"items": [], "next": None}


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs:validate"])
@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": "Not A Name"}, "/name"),
        ({"name": None}, "/name"),
        ({"source": "nowhere"}, "/source"),
        ({"operators": "filter"}, "/operators"),
        ({"operators": [{"op": "explode"}]}, "/operators/0/op"),
        ({"operators": [{**ONCE, "interval_ms": "long"}]}, "/operators/0/interval_ms"),
        ({"max_batch_records": 0}, "/max_batch_records"),
        ({"colour": "blue"}, "/colour"),
        ({"start": {"offsets": {"7": 0}}}, "/start/offsets/7"),
    ],
)
def test_a_job_that_can_not_be_is_refused_with_a_pointer(
    refusing: httpx.Client, path: str, change: dict[str, Any], pointer: str
) -> None:
    answer = refusing.post(path, json={**JOB, **change})
    assert answer.status_code == 422, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert pointer in [item["pointer"] for item in answer.json()["errors"]]


def test_bodies_that_are_no_jobs_are_told_apart(refusing: httpx.Client) -> None:
    json_type = {"Content-Type": "application/json"}
    assert refusing.post("/v1/jobs", content=b'{"name":', headers=json_type).status_code == 400
    assert refusing.post("/v1/jobs", content=b"", headers=json_type).status_code == 400
    assert refusing.post("/v1/jobs", content=b"name: visits", headers={"Content-Type": "text/yaml"}).status_code == 415
    assert refusing.post("/v1/jobs", json=[JOB]).status_code == 422
    assert refusing.post("/v1/jobs", json={**JOB, "name": "x" * 30_000}).status_code == 413


def test_jobs_are_listed_by_name_page_by_page(api: httpx.Client) -> None:
    for name in ("b", "a", "c"):
        api.post("/v1/jobs", json={"name": name, "source": "clicks"}).raise_for_status()
    first = api.get("/v1/jobs", params={"limit": 2}).json()
    rest = api.get("/v1/jobs", params={"limit": 2, "cursor": first["next"]}).json()
    assert [job["name"] for job in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next"] is None


def test_jobs_are_listed_by_state(api: httpx.Client) -> None:
    for name in ("a", "b", "c"):
        api.post("/v1/jobs", json={"name": name, "source": "clicks"}).raise_for_status()
    api.post("/v1/jobs/b:pause").raise_for_status()

    def listed(**query: Any) -> list[str]:
        return [job["name"] for job in api.get("/v1/jobs", params=query).json()["items"]]

    assert listed(state="paused") == ["b"]
    assert listed(state="starting") == ["a", "c"]
    assert listed(state="starting", cursor="a") == ["c"]
    assert listed(state="failed") == []
    refused = api.get("/v1/jobs", params={"state": "busy"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?state")


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
def test_a_page_has_a_decent_size(refusing: httpx.Client, limit: str) -> None:
    answer = refusing.get("/v1/jobs", params={"limit": limit})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "?limit"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/topology"),
        ("GET", "/tasks"),
        ("GET", "/metrics"),
        ("GET", "/errors"),
        ("GET", "/history"),
        ("POST", ":pause"),
        ("POST", ":resume"),
        ("POST", ":stop"),
        ("POST", ":restart"),
        ("DELETE", ""),
    ],
)
def test_a_job_that_is_not_there_is_404(refusing: httpx.Client, method: str, path: str) -> None:
    answer = refusing.request(method, f"/v1/jobs/nobody{path}")
    assert answer.status_code == 404
    assert answer.json()["code"] == "unknown_job"


def test_a_verb_that_is_not_there_is_404_and_a_method_that_is_not_there_405(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    unknown = api.post("/v1/jobs/visits:explode")
    assert unknown.status_code == 404
    assert unknown.json()["code"] == "no_such_route"
    wrong = api.put("/v1/jobs")
    assert wrong.status_code == 405
    assert wrong.headers["Allow"] == "GET, POST"
    assert wrong.json()["code"] == "method_not_allowed"
    assert api.get("/v1/jobs/visits:pause").status_code == 405


def test_a_job_pauses_resumes_stops_and_restarts(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    states = [api.post(f"/v1/jobs/visits:{verb}").json()["state"] for verb in ("pause", "resume", "stop", "restart")]
    assert states == ["paused", "starting", "stopped", "starting"]  # nobody runs it: it is drained at once
    history = api.get("/v1/jobs/visits/history").json()["items"]
    assert [change["to_state"] for change in history][:2] == ["starting", "stopped"]
    assert history[-1]["reason"] == "created"
    assert {change["who"] for change in history} >= {"writer"}


def pages(api: httpx.Client, path: str) -> list[dict[str, Any]]:
    """All items of a list, one a page."""
    items, cursor = [], None
    while cursor is not None or not items:
        page = api.get(path, params={"limit": 1} | ({"cursor": cursor} if cursor else {})).raise_for_status().json()
        assert len(page["items"]) == 1
        items += page["items"]
        cursor = page["next"]
    return items


def test_what_belongs_to_a_job_is_listed_page_by_page(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    for verb in ("pause", "resume", "stop"):
        api.post(f"/v1/jobs/visits:{verb}").raise_for_status()
    for name in ("history", "tasks"):
        path = f"/v1/jobs/visits/{name}"
        assert pages(api, path) == api.get(path).json()["items"]
    assert [change["to_state"] for change in pages(api, "/v1/jobs/visits/history")][-1] == "starting"
    assert pages(api, "/v1/aggregators") == api.get("/v1/aggregators").json()["items"]


def test_a_cursor_of_another_list_is_refused(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    api.post("/v1/jobs", json={**JOB, "name": "other", "sink": "elsewhere"})
    api.post("/v1/jobs/other:pause").raise_for_status()
    cursors = (api.get("/v1/jobs/other/history", params={"limit": 1}).json()["next"], "nonsense", "\0")
    for name, cursor in product(("history", "errors", "tasks", "dropped"), cursors):
        answer = api.get(f"/v1/jobs/visits/{name}", params={"cursor": cursor})
        assert answer.status_code == 422, (name, cursor)
        assert [error["pointer"] for error in answer.json()["errors"]] == ["?cursor"]


def test_an_illegal_transition_names_the_state(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    for verb in ("resume", "restart"):
        answer = api.post(f"/v1/jobs/visits:{verb}")
        assert answer.status_code == 409
        assert answer.json()["code"] == "illegal_transition"
        assert "starting" in answer.json()["detail"]
    refused = api.delete("/v1/jobs/visits")
    assert refused.status_code == 409
    assert refused.json()["detail"] == (
        "A job that is starting can not be deleted: `:stop` it first, and wait until it is stopped"
    )


def test_deleting_removes_stores_and_keeps_sinks_and_frees_the_name(api: httpx.Client) -> None:
    first = api.post("/v1/jobs", json=JOB).json()
    api.post("/v1/jobs/visits:stop")
    assert api.delete("/v1/jobs/visits").status_code == 204
    assert api.get("/v1/jobs/visits").status_code == 404
    assert [stream["name"] for stream in api.get("/v1/streams").json()["items"]] == ["clicks", "visits-once"]
    assert api.post("/v1/jobs", json=JOB).json()["id"] != first["id"]


def test_a_stream_that_a_job_reads_can_not_go_and_an_internal_one_can_not_be_touched(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    assert api.delete("/v1/streams/clicks").status_code == 409
    assert api.delete("/v1/streams/visits-once-changelog").status_code == 403


def test_the_topology_is_json_or_the_text_that_people_know(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    as_json = api.get("/v1/jobs/visits/topology")
    assert as_json.json()["sub_topologies"][0]["nodes"][0]["op"] == "deduplicate_by_key_value"
    as_text = api.get("/v1/jobs/visits/topology", headers={"Accept": "text/plain"})
    assert as_text.headers["Content-Type"].startswith("text/plain")
    assert "Sub-topology: 0" in as_text.text
    as_picture = api.get("/v1/jobs/visits/topology", headers={"Accept": "image/svg+xml"})
    assert as_picture.headers["Content-Type"] == "image/svg+xml"
    assert "default-src 'none'" in as_picture.headers["Content-Security-Policy"]
    assert b"<svg " in as_picture.content
    assert b"visits-once" in as_picture.content
    assert api.get("/v1/jobs/visits/topology", headers={"Accept": "image/png"}).status_code == 406


def test_a_job_has_a_strong_tag_and_is_not_sent_twice(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    answer = api.get("/v1/jobs/visits")
    tag = answer.headers["ETag"]
    assert tag.startswith('"')
    assert api.get("/v1/jobs/visits", headers={"If-None-Match": tag}).status_code == 304
    api.post("/v1/jobs/visits:pause")
    assert api.get("/v1/jobs/visits", headers={"If-None-Match": tag}).status_code == 200


def test_an_empty_job_has_tasks_without_owners_and_no_errors(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    tasks = api.get("/v1/jobs/visits/tasks").json()["items"]
    assert [(task["task"], task["slot"], task["stream_time"]) for task in tasks] == [
        ("0_0", None, None),
        ("0_1", None, None),
    ]
    metrics = api.get("/v1/jobs/visits/metrics").json()
    assert (metrics["records_in"], metrics["records_out"], metrics["lag"]) == (0, 0, 0)
    assert api.get("/v1/jobs/visits/errors").json() == {"items": [], "next": None}


def test_waiting_ends_when_the_time_is_over_and_says_so(api: httpx.Client) -> None:
    api.post("/v1/streams/clicks/records", json={"records": [{"key": "a", "value": 1}]}).raise_for_status()
    api.post("/v1/jobs", json=JOB)
    job = api.get("/v1/jobs/visits", params={"wait": "caught_up", "timeout_ms": 50}).json()
    assert not job["caught_up"]
    assert sum(position["lag"] for position in job["positions"]) == 1


def test_waiting_for_a_job_with_nothing_to_do_is_over_at_once(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    assert api.get("/v1/jobs/visits", params={"wait": "caught_up", "timeout_ms": 30_000}).json()["caught_up"]


@pytest.mark.parametrize("query", [{"wait": "godot"}, {"timeout_ms": "-1"}, {"timeout_ms": "60001"}])
def test_only_what_can_be_waited_for_is_taken(refusing: httpx.Client, query: dict[str, str]) -> None:
    assert refusing.get("/v1/jobs/any", params=query).status_code == 422


def test_a_start_at_a_timestamp_finds_the_record_inside_its_chunk(api: httpx.Client) -> None:
    records = [{"key": "a", "value": i, "timestamp": 1_000 + i, "partition": 0} for i in range(10)]
    api.post("/v1/streams/clicks/records", json={"records": records}).raise_for_status()
    spec = {"name": "late", "source": "clicks", "start": {"timestamp": 1_006}}
    job = api.post("/v1/jobs", json=spec).json()
    assert [position["position"] for position in job["positions"]] == [6, 0]


def test_only_a_failed_job_skips_and_only_a_record_with_an_offset(service: Serving, api: httpx.Client) -> None:
    api.post("/v1/jobs", json=JOB)
    admin = service.client("admin")
    refused = admin.post("/v1/jobs/visits:skip", json={"partition": 0, "offset": 0})
    assert refused.status_code == 409
    assert "only a failed one can" in refused.json()["detail"]
    for body, pointer in [
        ({"partition": 0}, "/offset"),
        ({"partition": -1, "offset": 0}, "/partition"),
        ({"partition": 0, "offset": "first"}, "/offset"),
        ({"partition": 0, "offset": 0, "force": True}, "/force"),
    ]:
        answer = admin.post("/v1/jobs/visits:skip", json=body)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == pointer


def test_simulating_needs_no_stream_and_keeps_nothing(refusing: httpx.Client) -> None:
    body = {
        "job": {"operators": [ONCE]},
        "records": [{"key": "u", "value": {"id": x}, "timestamp": t} for t, x in enumerate("aabab")],
        "batch_records": 2,
    }
    answer = refusing.post("/v1/jobs:simulate", json=body)
    assert answer.status_code == 200, answer.text
    assert [record["value"]["id"] for record in answer.json()["outputs"]] == ["a", "b"]
    assert refusing.get("/v1/jobs").json()["items"] == []


def simulated(api: httpx.Client, operators: list[dict[str, Any]], values: list[str]) -> list[dict[str, Any]]:
    """What comes out of values that are written like this."""
    records = [f'{{"key":"k{i}","timestamp":{i},"value":{value}}}' for i, value in enumerate(values)]
    body = f'{{"job":{{"operators":{json.dumps(operators)}}},"records":[{",".join(records)}]}}'
    answer = api.post("/v1/jobs:simulate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = json.loads(answer.text)["outputs"]
    return found


def test_a_simulation_keeps_values_as_they_were_written(refusing: httpx.Client) -> None:
    """Integers beyond 64 bits too: as numbers of JSON they would round to the same."""
    values = ['{"id":123456789012345678901}', '{"id":123456789012345678902}', '{"id":123456789012345678901}', "null"]
    once = {**ONCE, "op": "deduplicate", "id": "value->>'id'"}
    assert [out["value"] for out in simulated(refusing, [once], values)] == [
        {"id": 123456789012345678901},
        {"id": 123456789012345678902},
        None,
    ]


def test_a_simulation_weighs_what_suppress_holds_back_as_a_job_does(refusing: httpx.Client) -> None:
    """Each holds 2 bytes of key and 10 of compact JSON, however it was written."""
    hold = {"op": "suppress", "name": "hold", "until": "time_limit", "time_limit_ms": 100, "buffer": {"max_bytes": 24}}
    values = [r'{"t":"\u00e9"}', '{ "t" : "\u00e9" }', '{"t":"é"}']
    assert [out["key"] for out in simulated(refusing, [hold], values)] == ["k0"]


def test_a_job_to_validate_or_simulate_is_the_body_or_its_member(refusing: httpx.Client) -> None:
    bare = refusing.post("/v1/jobs:validate", json=JOB)
    assert refusing.post("/v1/jobs:validate", json={"job": JOB}).json() == bare.json()
    fed = {
        "records": [{"key": "u", "value": {"id": x}, "timestamp": t} for t, x in enumerate("aab")],
        "batch_records": 1,
    }
    member = refusing.post("/v1/jobs:simulate", json={"job": {"operators": [ONCE]}, **fed})
    assert refusing.post("/v1/jobs:simulate", json={"operators": [ONCE], **fed}).json() == member.json()
    assert len(member.json()["outputs"]) == 2


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("validate", {"job": {**JOB, "operators": [{"op": "explode"}]}}, "/job/operators/0/op"),
        ("validate", {"job": {**JOB, "source": "nothing"}}, "/job/source"),
        ("validate", {"job": {**JOB, "sink": "visits-once-changelog"}}, "/job/sink"),
        ("validate", {"job": JOB, "name": "other"}, "/name"),
        ("validate", {"job": JOB, "records": []}, "/records"),
        ("validate", {"job": 7}, "/job"),
        ("validate", {"job": None}, "/job"),
        ("simulate", {"operators": [{"op": "explode"}]}, "/operators/0/op"),
        ("simulate", {"operators": [ONCE], "record": []}, "/record"),
        ("simulate", {"operators": [ONCE], "batch_records": 0}, "/batch_records"),
        ("simulate", {"job": {}, "operators": [ONCE]}, "/operators"),
        ("simulate", {"records": []}, "/job"),
    ],
)
def test_what_is_wrong_with_either_form_is_pointed_at(
    refusing: httpx.Client, path: str, body: dict[str, Any], pointer: str
) -> None:
    answer = refusing.post(f"/v1/jobs:{path}", json=body)
    assert answer.status_code == 422, answer.text
    assert [item["pointer"] for item in answer.json()["errors"]] == [pointer]


def test_names_follow_one_rule_and_what_they_make_together_is_taken_once(api: httpx.Client) -> None:
    api.post("/v1/streams", json={"name": "page-views.v2", "partitions": 1}).raise_for_status()
    body = {"source": "page-views.v2", "operators": [{**ONCE, "name": "by-id.v1"}]}
    made = api.post("/v1/jobs", json={"name": "unique-views", **body})
    assert (made.status_code, made.json()["stores"]) == (201, ["unique-views-by-id.v1"]), made.text
    assert api.get("/v1/stores/unique-views-by-id.v1").status_code == 200
    assert api.get("/v1/streams/unique-views-by-id.v1-changelog").status_code == 200
    assert api.post("/v1/jobs/unique-views:pause").status_code == 200
    taken = api.post("/v1/jobs", json={"name": "unique", **body, "operators": [{**ONCE, "name": "views-by-id.v1"}]})
    assert (taken.status_code, taken.json()["code"]) == (409, "stream_exists")
    assert taken.json()["errors"][0]["pointer"] == "/name"
    operators = [{"op": "filter", "where": "true"}, {**ONCE, "name": "filter-0"}]
    twice = api.post("/v1/jobs", json={"name": "twice", **body, "operators": operators})
    assert (twice.status_code, twice.json()["errors"][0]["pointer"]) == (422, "/operators/1/name")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/job"),
        ({"job": {}, "records": [{"timestamp": "now"}]}, "/records/0/timestamp"),
        ({"job": {"operators": [{"op": "explode"}]}}, "/job/operators/0/op"),
        ({"job": {}, "records": [], "batch_records": 0}, "/batch_records"),
    ],
)
def test_a_simulation_that_can_not_be_is_refused_with_a_pointer(
    refusing: httpx.Client, body: dict[str, Any], pointer: str
) -> None:
    answer = refusing.post("/v1/jobs:simulate", json=body)
    assert answer.status_code == 422
    assert pointer in [item["pointer"] for item in answer.json()["errors"]]


def test_a_simulation_that_gives_too_much_is_refused_with_a_pointer(refusing: httpx.Client) -> None:
    hops = {"type": "hopping", "size_ms": 1000, "advance_ms": 1}
    count = {"op": "aggregate", "name": "agg", "window": hops, "aggregates": {"n": {"fn": "count"}}}
    body = {"job": {"operators": [count]}, "records": [{"key": "k", "timestamp": 9_000 + i} for i in range(300)]}
    answer = refusing.post("/v1/jobs:simulate", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "simulation_too_large")
    assert [item["pointer"] for item in answer.json()["errors"]] == ["/records"]
    assert "100000" in answer.json()["detail"]


def test_a_new_job_is_warned_of_sinks_that_others_wrote_or_write(api: httpx.Client) -> None:
    def warned(**job: Any) -> list[tuple[str, str]]:
        answer = api.post("/v1/jobs", json={"source": "clicks", **job})
        assert answer.status_code == 201, answer.text
        return [(each["pointer"], each["detail"]) for each in answer.json().get("warnings", [])]

    assert warned(name="first", sink="out") == []
    ((pointer, detail),) = warned(name="second", sink="out", start="latest")
    assert pointer == "/sink"
    assert detail == "'out' is written by 'first' too: results will lie among them"
    api.post("/v1/streams", json={"name": "posted", "partitions": 1}).raise_for_status()
    api.post("/v1/streams/posted/records", json={"records": [{"value": 1}, {"value": 2}]}).raise_for_status()
    sinks = [{"stream": "fresh"}, {"stream": "posted"}]
    ((pointer, detail),) = warned(name="third", sink=sinks)
    assert pointer == "/sink/1/stream"
    assert detail == "'posted' holds 2 record(s) that this job did not write: results will lie among them"
    again = api.post("/v1/jobs", json={"source": "clicks", "name": "third", "sink": sinks})
    assert (again.status_code, "warnings" in again.json()) == (200, False)
