"""`:explain` of jobs that run: verdicts with their causes, what closed windows, and what nobody knows.

That verdicts are right is shown by tests/conformance/test_explain.py; here is how the history of a task comes to it.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import update

from benchmarks.running import wait_until
from service.api import explanations
from service.catalog.tables import PartitionRow
from tests.serving import Serving

pytestmark = pytest.mark.services

Json = dict[str, Any]
CAUGHT_UP = {"wait": "caught_up", "timeout_ms": 60_000}
ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 1_000}
COUNT = {"n": {"fn": "count"}}
VISITS = {"op": "aggregate", "name": "visits", "window": {"type": "session", "gap_ms": 100}, "aggregates": COUNT}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}}
POSITIVE = {"op": "filter", "name": "positive", "where": "(value->>'n')::bigint > 0"}


@pytest.fixture(scope="module")
def http(working: Serving) -> httpx.Client:
    return working.client("writer")


def make(http: httpx.Client, name: str, *operators: Json, partitions: int = 1, **more: Any) -> None:
    http.post("/v1/streams", json={"name": f"{name}-in", "partitions": partitions}).raise_for_status()
    spec = {"name": name, "source": f"{name}-in", "sink": f"{name}-out", "operators": list(operators)}
    http.post("/v1/jobs", json=spec | {"commit_interval_ms": 0} | more).raise_for_status()


def post(http: httpx.Client, name: str, *records: tuple[str | None, int, Json]) -> None:
    """Keys, timestamps, values; returns when the job has read them."""
    body = [{"key": key, "timestamp": at, "value": value} for key, at, value in records]
    http.post(f"/v1/streams/{name}-in/records", json={"records": body}).raise_for_status()
    http.get(f"/v1/jobs/{name}", params=CAUGHT_UP).raise_for_status()


def explain(http: httpx.Client, name: str, **asked: Any) -> Json:
    answer = http.get(f"/v1/jobs/{name}:explain", params=asked)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def said(found: Json) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("verdict", "operator", "reason", "cause", "by_ms"))


def record(offset: int, timestamp: int) -> Json:
    return {"offset": offset, "timestamp": timestamp, "reason": "record"}


def test_a_duplicate_says_whose_and_by_how_much(http: httpx.Client) -> None:
    make(http, "explained", POSITIVE, ONCE)
    post(http, "explained", ("a", 5_000, {"id": "x", "n": 1}), ("b", 5_100, {"id": "x", "n": 1}))
    post(http, "explained", ("a", 5_400, {"id": "x", "n": 1}), ("a", 5_500, {"id": "y", "n": 0}))
    assert said(explain(http, "explained", key="a", id="x")) == ("out", "once", "duplicate", record(0, 5_000), 600)
    assert said(explain(http, "explained", key="a")) == ("out", "positive", "filtered", None, None)
    assert said(explain(http, "explained", partition=0, offset=1)) == ("in", None, None, None, None)
    found = explain(http, "explained", key="a", timestamp=5_400)
    assert found["record"] == {"partition": 0, "offset": 2, "timestamp": 5_400}
    assert (found["known_from"], found["matched"], found["why"]) == (0, 2, None)
    assert [(each["offset"], each["verdict"]) for each in found["records"]] == [(0, "in"), (2, "out")]


def test_sessions_say_who_is_in_them_and_what_closed_them(http: httpx.Client) -> None:
    """A record closes the first, a flush the second: what comes for it then is out because of the flush."""
    make(http, "sessions-why", VISITS, FINAL)
    post(http, "sessions-why", ("a", 1_000, {}), ("a", 1_050, {}), ("b", 1_300, {}), ("a", 900, {}))
    found = explain(http, "sessions-why", key="a")
    assert said(found) == ("out", "visits", "late", record(2, 1_300), 300)
    found = explain(http, "sessions-why", partition=0, offset=1)
    [window] = found["windows"]
    assert (window["start"], window["end"], window["closed"]) == (1_000, 1_050, record(2, 1_300))
    assert window["updates"] == [{"offset": 0, "timestamp": 1_000}, {"offset": 1, "timestamp": 1_050}]
    assert window["finals"] == [{"operator": "final", "reason": "stream_time", "offset": 2}]
    http.post("/v1/jobs/sessions-why:flush").raise_for_status()
    wait_until(lambda: not http.get("/v1/jobs/sessions-why").json()["is_flushing"], 60, "the flush")
    post(http, "sessions-why", ("b", 1_300, {}))
    found = explain(http, "sessions-why", key="b")
    flushed = {"offset": None, "timestamp": 1_401, "reason": "flush"}
    assert said(found) == ("out", "visits", "closed_idle", flushed, 1)
    [window] = explain(http, "sessions-why", key="b", timestamp=1_300)["windows"]
    assert (window["updated"], window["closed"]) == (1, flushed)
    assert window["finals"] == [{"operator": "final", "reason": "flush", "offset": None}]


def test_a_record_may_not_be_read_yet_or_not_be_there(http: httpx.Client) -> None:
    make(http, "unread-why", ONCE)
    post(http, "unread-why", ("a", 1, {"id": "x"}))
    http.post("/v1/jobs/unread-why:pause").raise_for_status()
    body = {"records": [{"key": "a", "timestamp": 2, "value": {"id": "x"}}]}
    http.post("/v1/streams/unread-why-in/records", json=body).raise_for_status()
    for asked, reason in (
        ({"key": "a"}, "unread"),
        ({"key": "nobody"}, "no_record"),
        ({"key": "a", "id": "z"}, "no_record"),
    ):
        found = explain(http, "unread-why", **asked)
        assert (found["verdict"], found["reason"], found["windows"]) == ("unknown", reason, [])
        assert found["why"]


def test_what_went_on_to_others_is_unknown_what_did_not_is_not(http: httpx.Client) -> None:
    by_id = {"op": "deduplicate", "name": "anywhere", "id": "value->>'id'", "interval_ms": 1_000}
    make(http, "across-why", POSITIVE, by_id, partitions=2)
    post(http, "across-why", ("a", 1, {"id": "x", "n": 1}), ("b", 1, {"id": "x", "n": 0}))
    assert explain(http, "across-why", key="a")["reason"] == "repartitioned"
    assert said(explain(http, "across-why", key="b")) == ("out", "positive", "filtered", None, None)


def test_after_a_reset_the_history_is_a_new_one_and_a_change_ends_it(http: httpx.Client) -> None:
    make(http, "changed-why", ONCE)
    post(http, "changed-why", ("a", 1_000, {"id": "x"}), ("a", 1_001, {"id": "x"}))
    http.post("/v1/jobs/changed-why:stop", params={"wait": "stopped", "timeout_ms": 60_000}).raise_for_status()
    http.post("/v1/jobs/changed-why:reset", json={"start": {"offsets": {"0": 1}}}).raise_for_status()
    http.post("/v1/jobs/changed-why:restart").raise_for_status()
    http.get("/v1/jobs/changed-why", params=CAUGHT_UP).raise_for_status()
    found = explain(http, "changed-why", key="a")
    assert (found["verdict"], found["known_from"], found["matched"]) == ("in", 1, 1)
    seen = http.get("/v1/jobs/changed-why")
    spec = seen.json()["spec"] | {"operators": [ONCE | {"interval_ms": 5}]}
    headers = {"If-Match": seen.headers["etag"]}
    http.put("/v1/jobs/changed-why", json=spec, headers=headers).raise_for_status()
    http.get("/v1/jobs/changed-why", params=CAUGHT_UP).raise_for_status()
    post(http, "changed-why", ("a", 1_002, {"id": "x"}))
    found = explain(http, "changed-why", key="a")
    assert (found["verdict"], found["reason"]) == ("unknown", "version_changed")
    assert [each["verdict"] for each in found["records"]] == ["in", "unknown"]


def test_a_task_with_several_inputs_and_one_whose_records_are_gone_are_unknown(
    http: httpx.Client, working: Serving
) -> None:
    make(http, "gone-why", ONCE)
    post(http, "gone-why", ("a", 1_000, {"id": "x"}), ("a", 1_001, {"id": "x"}))
    stream = http.get("/v1/streams/gone-why-in").json()["id"]
    taken = update(PartitionRow).where(PartitionRow.stream_id == stream).values(start_offset=1)
    working.catalog.write(lambda s: s.execute(taken))
    found = explain(http, "gone-why", key="a")
    assert (found["verdict"], found["reason"], found["known_from"]) == ("unknown", "retention", 1)
    sources = {"source": ["gone-why-in", "explained-two-in"]}
    make(http, "explained-two", ONCE, **sources)
    assert explain(http, "explained-two", key="a", stream="gone-why-in")["reason"] == "several_inputs"
    answer = http.get("/v1/jobs/explained-two:explain", params={"key": "a"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "?stream")


def test_more_records_than_are_run_again_are_refused(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    make(http, "long-why", ONCE)
    post(http, "long-why", ("a", 1_000, {"id": "x"}), ("a", 1_001, {"id": "x"}))
    monkeypatch.setattr(explanations, "MAX_RECORDS", 1)
    answer = http.get("/v1/jobs/long-why:explain", params={"key": "a"})
    assert (answer.status_code, answer.json()["code"]) == (422, "explanation_too_large")
    assert answer.json()["errors"][0]["pointer"] == "{job}"


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({}, "?key"),
        ({"partition": 0}, "?key"),
        ({"key": "a", "offset": 1}, "?offset"),
        ({"offset": 1, "timestamp": 1, "partition": 0}, "?offset"),
        ({"offset": 0}, "?partition"),
        ({"key": "a", "partition": 2}, "?partition"),
        ({"key": "a", "stream": "another"}, "?stream"),
        ({"key": "a", "id": "x"}, "?id"),
        ({"key": "a", "timestamp": "soon"}, "?timestamp"),
        ({"key": "a", "timestamp": -1}, "?timestamp"),
        ({"key": "a", "timestamp": 2**63}, "?timestamp"),
        ({"partition": 0, "offset": 2**47}, "?offset"),
        ({"key": "k" * 5_000}, "?key"),
        ({"key": "a", "where": "true"}, "?where"),
    ],
)
def test_a_question_that_says_too_little_or_too_much_is_refused(
    http: httpx.Client, refused_job: str, asked: Json, pointer: str
) -> None:
    answer = http.get(f"/v1/jobs/{refused_job}:explain", params=asked)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


@pytest.fixture(scope="module")
def refused_job(http: httpx.Client) -> str:
    make(http, "refused-why", POSITIVE, partitions=2)
    return "refused-why"


def test_an_unknown_job_is_not_found(http: httpx.Client) -> None:
    assert http.get("/v1/jobs/nobody:explain", params={"key": "a"}).json()["code"] == "unknown_job"
