"""`POST /v1/jobs/{job}/dropped:replay`: dropped records go in again at the operator that dropped them, each once."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.serving import Serving

pytestmark = pytest.mark.services

Json = dict[str, Any]

MAX = 2**63 - 1
DOUBLED = {"op": "map_values", "name": "doubled", "select": {"v": "value->>'v' || '0'"}}
ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'v'", "interval_ms": 1_000}
TOTAL = {"op": "aggregate", "name": "total", "aggregates": {"sum": {"fn": "sum", "of": "(value->>'v')::bigint"}}}
WINDOWED = {
    "op": "aggregate",
    "name": "windowed",
    "window": {"type": "tumbling", "size_ms": 10, "grace_ms": 0},
    "aggregates": {"n": {"fn": "count"}},
}
CAUGHT_UP = {"wait": "caught_up", "timeout_ms": 60_000}


@pytest.fixture(scope="module")
def http(working: Serving) -> httpx.Client:
    return working.client("writer")


def make(http: httpx.Client, name: str, operators: list[Json], **more: Any) -> None:
    http.post("/v1/streams", json={"name": f"{name}-in", "partitions": 1}).raise_for_status()
    spec = {"name": name, "source": f"{name}-in", "sink": f"{name}-out", "operators": operators}
    http.post("/v1/jobs", json=spec | {"commit_interval_ms": 0} | more).raise_for_status()


def post(http: httpx.Client, name: str, *values: tuple[int, Json]) -> None:
    """Values with their timestamps; returns when the job has read them."""
    records = [{"key": "k", "value": value, "timestamp": at} for at, value in values]
    http.post(f"/v1/streams/{name}-in/records", json={"records": records}).raise_for_status()
    caught_up(http, name)


def caught_up(http: httpx.Client, name: str) -> Json:
    found: Json = http.get(f"/v1/jobs/{name}", params=CAUGHT_UP).raise_for_status().json()
    assert (found["state"], found["caught_up"], found["is_replaying"]) == ("running", True, False), found
    return found


def replay(http: httpx.Client, name: str, **wanted: Any) -> Json:
    """Answers when it is done."""
    answer = http.post(f"/v1/jobs/{name}/dropped:replay", json=wanted)
    assert answer.status_code == 202, answer.text
    caught_up(http, name)
    asked: Json = answer.json()
    return asked


def read(http: httpx.Client, stream: str) -> list[Json]:
    answer = http.get(f"/v1/streams/{stream}/records", params={"partition": 0, "from_offset": 0, "limit": 1000})
    found: list[Json] = answer.raise_for_status().json()["records"]
    return found


def test_a_record_goes_in_again_at_the_operator_that_dropped_it_and_not_before(http: httpx.Client) -> None:
    make(http, "over", [DOUBLED, ONCE, TOTAL], on_error="dead_letter", keep_dropped=True)
    post(http, "over", (1, {"v": 922337203685477580}), (2, {"v": 1}), (3, {"v": 1}), (4, {"v": -3}))
    assert [each["value"]["sum"] for each in read(http, "over-out")] == [MAX - 7, MAX - 37]
    assert [each["headers"]["millrace-reason"] for each in read(http, "over-dropped")] == [
        "integer_overflow",
        "duplicate",
    ]
    asked = replay(http, "over", reason=["integer_overflow"])
    assert asked == {
        "job": "over",
        "stream": "over-dropped",
        "partitions": [{"partition": 0, "start": 0, "end": 2}],
    }
    out = read(http, "over-out")
    assert [each["value"]["sum"] for each in out] == [MAX - 7, MAX - 37, MAX - 27]
    assert out[-1]["timestamp"] == 4
    assert len(read(http, "over-dropped")) == 2


def test_what_is_dropped_again_is_not_replayed_again(http: httpx.Client) -> None:
    make(http, "late", [WINDOWED], keep_dropped=True)
    post(http, "late", (100, {}), (1, {}), (2, {}))
    assert replay(http, "late")["partitions"] == [{"partition": 0, "start": 0, "end": 2}]
    dropped = read(http, "late-dropped")
    assert [(each["timestamp"], each["headers"]["millrace-reason"]) for each in dropped] == [
        (1, "late"),
        (2, "late"),
        (1, "late"),
        (2, "late"),
    ]
    assert len(read(http, "late-out")) == 1


def test_filters_hold(http: httpx.Client) -> None:
    """Replayed duplicates and late records are dropped again: so the stream says which ones were."""
    make(http, "some", [ONCE, WINDOWED], keep_dropped=True)
    post(http, "some", (100, {"v": 1}), (101, {"v": 1}), (1, {"v": 2}), (2, {"v": 3}), (3, {"v": 4}))
    seen = len(read(http, "some-dropped"))
    assert seen == 4
    for wanted, expected in [
        ({"reason": ["expired"]}, []),
        ({"reason": ["late"], "from_timestamp": 3}, [3]),
        ({"operator": "windowed", "to_timestamp": 1}, [1]),
        ({"from_timestamp": 2, "to_timestamp": 2, "operator": "once"}, []),
        ({"reason": ["late", "duplicate"], "from_timestamp": 101}, [101]),
    ]:
        replay(http, "some", **wanted)
        again = read(http, "some-dropped")[seen:]
        seen += len(again)
        assert sorted({each["timestamp"] for each in again}) == expected, wanted


def test_a_replay_waits_for_its_job_and_there_is_one_at_a_time(http: httpx.Client) -> None:
    make(http, "paused", [WINDOWED], keep_dropped=True)
    post(http, "paused", (100, {}), (1, {}))
    http.post("/v1/jobs/paused:pause").raise_for_status()
    http.post("/v1/jobs/paused/dropped:replay", json={}).raise_for_status()
    refused = http.post("/v1/jobs/paused/dropped:replay", json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "replay_under_way")
    found = http.get("/v1/jobs/paused").json()
    assert (found["is_replaying"], found["caught_up"]) == (True, False)
    [task] = http.get("/v1/jobs/paused/tasks").json()["items"]
    assert task["replay"] == {"position": 0, "end": 1}
    assert len(read(http, "paused-dropped")) == 1
    http.post("/v1/jobs/paused:resume").raise_for_status()
    caught_up(http, "paused")
    assert len(read(http, "paused-dropped")) == 2
    assert "replay" in [each["reason"] for each in http.get("/v1/jobs/paused/history").json()["items"]]


def test_a_sinks_condition_that_failed_is_asked_again_alone(http: httpx.Client) -> None:
    sinks = [{"stream": "gated-a", "where": "(value->>'v')::bigint > 0"}, {"stream": "gated-b"}]
    make(http, "gated", [], sink=sinks, on_error="dead_letter")
    post(http, "gated", (1, {"v": "x"}), (2, {"v": 5}))
    replay(http, "gated", operator="sink-0")
    assert [each["timestamp"] for each in read(http, "gated-b")] == [1, 2]
    assert [each["timestamp"] for each in read(http, "gated-a")] == [2]
    assert [each["timestamp"] for each in read(http, "gated-dropped")] == [1, 1]


def test_a_replay_that_fails_its_job_goes_on_as_dead_letters(http: httpx.Client) -> None:
    make(http, "strict", [TOTAL], on_error="dead_letter", keep_dropped=True)
    post(http, "strict", (1, {"v": "many"}), (2, {"v": 1}))
    http.post("/v1/jobs/strict:stop", params={"wait": "stopped", "timeout_ms": 60_000}).raise_for_status()
    change(http, "strict", on_error="fail")
    http.post("/v1/jobs/strict/dropped:replay", json={}).raise_for_status()
    http.post("/v1/jobs/strict:restart").raise_for_status()
    failed = http.get("/v1/jobs/strict", params=CAUGHT_UP).json()
    assert (failed["state"], failed["is_replaying"]) == ("failed", True)
    assert {name: failed["error"][name] for name in ("stream", "partition", "offset")} == {
        "stream": "strict-dropped",
        "partition": 0,
        "offset": 0,
    }
    change(http, "strict", on_error="dead_letter")
    http.post("/v1/jobs/strict:restart").raise_for_status()
    caught_up(http, "strict")
    assert [each["headers"]["millrace-reason"] for each in read(http, "strict-dropped")] == ["expression_failed"] * 2


def change(http: httpx.Client, name: str, **fields: Any) -> None:
    tag = http.get(f"/v1/jobs/{name}").headers["ETag"]
    http.patch(f"/v1/jobs/{name}", json=fields, headers={"If-Match": tag}).raise_for_status()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"reason": "late"}, "/reason"),
        ({"reason": []}, "/reason"),
        ({"reason": ["late", "bored"]}, "/reason/1"),
        ({"operator": "nobody"}, "/operator"),
        ({"operator": 1}, "/operator"),
        ({"from_timestamp": "1"}, "/from_timestamp"),
        ({"to_timestamp": -1}, "/to_timestamp"),
        ({"to_timestamp": 2**63}, "/to_timestamp"),
        ({"from_timestamp": 2, "to_timestamp": 1}, "/from_timestamp"),
        ({"reasons": ["late"]}, "/reasons"),
    ],
)
def test_what_is_no_replay_is_refused_with_a_pointer(http: httpx.Client, body: Json, pointer: str) -> None:
    if http.get("/v1/jobs/refusing").status_code == 404:
        make(http, "refusing", [WINDOWED], keep_dropped=True)
    answer = http.post("/v1/jobs/refusing/dropped:replay", json=body)
    assert answer.status_code == 422, answer.text
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]
    assert not http.get("/v1/jobs/refusing").json()["is_replaying"]


def test_a_job_that_keeps_nothing_has_nothing_to_replay(http: httpx.Client) -> None:
    make(http, "careless", [WINDOWED])
    answer = http.post("/v1/jobs/careless/dropped:replay", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "nothing_kept")
    assert http.post("/v1/jobs/nobody/dropped:replay", json={}).status_code == 404


@pytest.mark.parametrize(("role", "status"), [(None, 401), ("reader", 403), ("instance", 403)])
def test_only_writers_replay(working: Serving, role: str | None, status: int) -> None:
    assert working.client(role).post("/v1/jobs/any/dropped:replay", json={}).status_code == status
