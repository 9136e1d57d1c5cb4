"""When what is open closes, and what for: `GET /v1/jobs/{job}/time` of jobs that run, to the millisecond."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from benchmarks.running import wait_until
from tests.browsing import NOON_MS
from tests.serving import Serving

Json = dict[str, Any]
MINUTE_MS = 60_000
COUNT = {"n": {"fn": "count"}}
AGGREGATE = {"op": "aggregate", "aggregates": COUNT}
WINDOWS = {**AGGREGATE, "name": "minutes", "window": {"type": "tumbling", "size_ms": MINUTE_MS, "grace_ms": 10_000}}
SESSIONS = {**AGGREGATE, "name": "visits", "window": {"type": "session", "gap_ms": 30_000}}


@pytest.fixture(scope="module")
def http(working: Serving) -> httpx.Client:
    return working.client()


def ran(http: httpx.Client, name: str, operators: list[Json], *records: tuple[str, int], **fields: Any) -> Json:
    """What a job says of time that has read these records, (key, time after NOON_MS)."""
    if http.get(f"/v1/streams/{name}").status_code == 404:
        body = {"name": name, "partitions": 1, "max_future_ms": 2 * 86_400_000}
        http.post("/v1/streams", json=body).raise_for_status()
    rows = [{"key": key, "value": {"id": key}, "timestamp": NOON_MS + at} for key, at in records]
    http.post(f"/v1/streams/{name}/records", json={"records": rows}).raise_for_status()
    http.post("/v1/jobs", json={"name": name, "source": name, "operators": operators, **fields}).raise_for_status()
    assert http.get(f"/v1/jobs/{name}?wait=caught_up&timeout_ms=60000").json()["caught_up"]
    return times(http, name)


def times(http: httpx.Client, name: str) -> Json:
    found: Json = http.get(f"/v1/jobs/{name}/time").raise_for_status().json()
    return found


def operators_of(found: Json, task: int = 0) -> dict[str, Json]:
    return {each["operator"]: each for each in found["items"][task]["operators"]}


def test_windows_sessions_and_what_is_held_back_close_at_a_record_of_this_time(http: httpx.Client) -> None:
    final = {
        "op": "suppress",
        "name": "final",
        "until": "window_closes",
        "buffer": {"max_bytes": 10_000, "when_full": "shut_down"},
    }
    start = NOON_MS // MINUTE_MS * MINUTE_MS
    at = start - NOON_MS  # so that records are in the minute that begins then
    found = ran(http, "times_windows", [WINDOWS, final], ("a", at), ("b", at + 1), ("a", at + MINUTE_MS + 5_000))
    [task] = found["items"]
    assert (task["stream_time"], task["ahead"], task["is_closed"]) == (start + MINUTE_MS + 5_000, None, False)
    minutes, held = operators_of(found).values()
    first = {"stream_time": start + MINUTE_MS + 10_000, "end": start + MINUTE_MS, "number": 2, "is_all": True}
    second = {**first, "stream_time": first["stream_time"] + MINUTE_MS, "end": first["end"] + MINUTE_MS, "number": 1}
    assert minutes["open"] == {
        "number": 3,
        "is_all": True,
        "next": [first, second],
        "last_stream_time": second["stream_time"],
        "open_from": start + 55_001,
        "held": None,
    }
    assert (minutes["what"], minutes["is_emitted"], minutes["behind"], minutes["length_ms"]) == (
        "window",
        False,
        [],
        MINUTE_MS,
    )
    assert (held["what"], held["is_emitted"], held["behind"]) == ("buffered", True, ["minutes"])
    assert (held["open"]["next"], held["open"]["number"]) == ([first, second], 3)
    assert held["open"]["held"] == {
        "bytes": 3 * (1 + len('{"n":1}') + 16),
        "max_records": None,
        "max_bytes": 10_000,
        "when_full": "shut_down",
    }
    # one before that time closes nothing, one of it all that ends first
    for key, stream_time, number in (("x", first["stream_time"] - 1, 4), ("y", first["stream_time"], 3)):
        row = {"key": key, "value": {}, "timestamp": stream_time}
        http.post("/v1/streams/times_windows/records", json={"records": [row]}).raise_for_status()
        assert http.get("/v1/jobs/times_windows?wait=caught_up&timeout_ms=60000").json()["caught_up"]
        assert operators_of(times(http, "times_windows"))["final"]["open"]["number"] == number


def test_a_session_is_open_for_the_gap_and_an_identity_for_the_interval(http: httpx.Client) -> None:
    once = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 40_000}
    found = operators_of(
        ran(http, "times_visits", [once, SESSIONS], ("a", 0), ("b", 20_000), ("b", 20_000), ("c", 25_000))
    )
    once_open, visits = found["once"]["open"], found["visits"]
    assert (found["once"]["what"], once_open["number"], once_open["open_from"]) == ("identity", 3, NOON_MS - 15_000)
    assert once_open["next"][0] == {"stream_time": NOON_MS + 40_001, "end": NOON_MS, "number": 1, "is_all": True}
    assert (visits["what"], visits["behind"], visits["open"]["number"]) == ("session", ["once"], 3)
    assert [(each["stream_time"] - NOON_MS, each["end"] - NOON_MS) for each in visits["open"]["next"]] == [
        (30_001, 0),
        (50_001, 20_000),
        (55_001, 25_000),
    ]


def test_nothing_of_a_table_closes_and_silence_says_when_it_does(http: httpx.Client) -> None:
    found = ran(http, "times_table", [{**AGGREGATE, "name": "counts"}], ("a", 0), idle_close_after_ms=3_600_000)
    [counts] = operators_of(found).values()
    assert (counts["what"], counts["open"], counts["unknown"], counts["stream_time"]) == (None, None, None, None)
    assert found["idle_close"]["unread"] == 0
    found = ran(http, "times_idle", [WINDOWS], ("a", 0), idle_close_after_ms=3_600_000)
    idle, [read] = found["idle_close"], found["items"][0]["inputs"]
    assert (idle["after_ms"], idle["last_input"]["stream"], idle["last_input"]["partition"]) == (
        3_600_000,
        "times_idle",
        0,
    )
    assert idle["due_in_ms"] == 3_600_000 - idle["last_input"]["silent_ms"]
    assert (read["role"], read["lag"], read["read_to"], read["last_timestamp"]) == ("silent", 0, NOON_MS, NOON_MS)
    assert found["items"][0]["stream_time"] == NOON_MS
    http.post("/v1/jobs/times_idle:flush").raise_for_status()
    assert http.get("/v1/jobs/times_idle?wait=caught_up&timeout_ms=60000").json()["caught_up"]
    flushed = times(http, "times_idle")
    [window] = operators_of(found)["minutes"]["open"]["next"]
    assert (
        flushed["items"][0]["advanced"]["to"]
        == window["stream_time"]
        == operators_of(flushed)["minutes"]["stream_time"]
    )
    assert operators_of(flushed)["minutes"]["open"]["number"] == 0


def test_the_record_that_moved_time_ahead_is_named(http: httpx.Client) -> None:
    far = int(time.time() * 1000) + 86_400_000 - NOON_MS
    found = ran(http, "times_ahead", [WINDOWS], ("a", 0), ("b", far), ("c", 1_000), ("d", far))
    ahead = found["items"][0]["ahead"]
    assert {name: ahead[name] for name in ("stream", "partition", "offset", "timestamp")} == {
        "stream": "times_ahead",
        "partition": 0,
        "offset": 1,
        "timestamp": NOON_MS + far,
    }
    assert (
        0 <= ahead["by_ms"] - 86_400_000 + (found["now"] - ahead["since_ms"]) < 60_000 or ahead["by_ms"] <= 86_400_000
    )
    assert ahead["since_ms"] <= found["now"]


def test_who_waits_for_an_input_that_is_silent(http: httpx.Client) -> None:
    """Two sources: the record of the second may come behind another of that time in the first, and waits for it."""
    names = ("times_left", "times_right")
    for name in names:
        http.post("/v1/streams", json={"name": name, "partitions": 1}).raise_for_status()
        row = {"key": "a", "value": {}, "timestamp": NOON_MS}
        http.post(f"/v1/streams/{name}/records", json={"records": [row]}).raise_for_status()
    spec = {"name": "times_two", "source": list(names), "operators": [WINDOWS], "max_task_idle_ms": 3_600_000}
    http.post("/v1/jobs", json=spec).raise_for_status()

    def inputs() -> list[tuple[str, str, int]]:
        found = times(http, "times_two")["items"][0]["inputs"]
        return [(each["stream"], each["role"], each["lag"]) for each in found]

    wait_until(lambda: inputs()[0][2] == 0, "the first record was read")
    assert inputs() == [("times_left", "waited_for", 0), ("times_right", "reading", 1)]


def test_what_is_asked_for_wrongly_is_refused_and_pages_go_on(http: httpx.Client) -> None:
    assert http.get("/v1/jobs/nobody/time").json()["code"] == "unknown_job"
    http.post("/v1/streams", json={"name": "times_pages", "partitions": 3}).raise_for_status()
    http.post(
        "/v1/jobs", json={"name": "times_pages", "source": "times_pages", "operators": [WINDOWS]}
    ).raise_for_status()
    first = http.get("/v1/jobs/times_pages/time?limit=2").json()
    assert ([each["task"] for each in first["items"]], first["next"]) == (["0_0", "0_1"], "0_1")
    rest = http.get("/v1/jobs/times_pages/time?limit=2&cursor=0_1").json()
    assert ([each["task"] for each in rest["items"]], rest["next"]) == (["0_2"], None)
    assert http.get("/v1/jobs/times_pages/time?cursor=no").json()["code"] == "invalid_cursor"
    [empty] = operators_of(rest).values()
    assert (empty["stream_time"], empty["open"]["number"], empty["open"]["next"]) == (None, 0, [])
