"""Lookups over HTTP, from replicas on disk and from Redis: contract.md's section, line by line."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator

from benchmarks.running import wait_until
from service.streams.partitioner import murmur2
from tests import openapi_documents
from tests.forkserver import ForkServer
from tests.serving import Serving, serving
from tests.sparkless import instance

Json = dict[str, Any]

GAP_MS, GRACE_MS = 1_000, 500
COUNT = {"n": {"fn": "count"}, "spent": {"fn": "sum", "of": "(value->>'amount')::bigint"}}
SESSION = {"type": "session", "gap_ms": GAP_MS, "grace_ms": GRACE_MS}
TUMBLING = {"type": "tumbling", "size_ms": 1_000, "grace_ms": GRACE_MS}
JOBS = {
    "visits": {"op": "aggregate", "name": "s", "window": SESSION, "aggregates": COUNT},
    "minutes": {"op": "aggregate", "name": "w", "window": TUMBLING, "aggregates": COUNT},
    "totals": {"op": "aggregate", "name": "k", "aggregates": COUNT},
    "once": {"op": "deduplicate_by_key", "name": "d", "interval_ms": 3_600_000},
}
PARTITIONS = 3


class World:
    """A service with an instance, four jobs over one stream, and who asks."""

    def __init__(self, service: Serving, folder: Path) -> None:
        self.service, self.folder = service, folder
        self.http = service.client("writer")
        self.call("POST", "/v1/streams", json={"name": "clicks", "partitions": PARTITIONS})
        for name, operator in JOBS.items():
            job = {"name": name, "source": "clicks", "operators": [operator], "commit_interval_ms": 0}
            self.call("POST", "/v1/jobs", json=job)

    def call(self, method: str, path: str, **how: Any) -> Any:
        answer = self.http.request(method, path, **how)
        if answer.is_error:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        return answer.json()

    def post(self, *records: tuple[str, int, int], stream: str = "clicks") -> str:
        """(key, timestamp, amount) of each; the position behind them."""
        body = [{"key": k, "timestamp": t, "value": {"amount": a}} for k, t, a in records]
        return str(self.call("POST", f"/v1/streams/{stream}/records", json={"records": body})["position"])

    def look(self, path: str, **params: Any) -> Json:
        """Waits for `min_position` longer than a lookup does by itself: a disk that is busy takes its time."""
        patience = {"timeout_ms": 60_000} if "min_position" in params else {}
        found: Json = self.call("GET", f"/v1/stores/{path}", params=patience | params)
        return found

    def refused(self, status: int, path: str, **params: Any) -> Json:
        answer = self.http.get(f"/v1/stores/{path}", params=params)
        assert answer.status_code == status, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        return dict(answer.json())


@pytest.fixture(scope="module", params=["lmdb", pytest.param("redis", marks=pytest.mark.services)])
def world(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    migrated_sqlite: bytes,
    forks: ForkServer,
) -> Iterator[World]:
    """What all tests here look into: nobody takes away what others rely on."""
    folder = tmp_path_factory.mktemp(f"stores-{request.param}")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    redis_url = request.getfixturevalue("redis_server") if request.param == "redis" else None
    with serving(folder, f"sqlite:///{folder}/catalog.db", redis_url=redis_url) as service:
        made = World(service, folder)
        with instance(service, forks, folder / "replicas"):
            yield made


@pytest.fixture(scope="module")
def visits(world: World) -> World:
    """Sessions of u1 [1000, 1800] and [5000, 5000], of u2 [1500, 1500], of a/b [5100, 5100]."""
    position = world.post(("u1", 1_000, 5), ("u2", 1_500, 1), ("u1", 1_800, 7), ("u1", 5_000, 2), ("a/b", 5_100, 4))
    for name in ("visits-s/sessions", "minutes-w/windows", "totals-k/keys", "once-d/keys"):
        world.look(name, min_position=position)
    return world


def test_a_lookup_by_key_answers_its_entries_and_the_moment_they_are_of(visits: World) -> None:
    found = visits.look("visits-s/sessions/u1")
    assert found["store"] == "visits-s"
    assert [(item["key"], item["window"], item["value"], item["timestamp"]) for item in found["items"]] == [
        ("u1", {"start": 1_000, "end": 1_800}, {"n": 2, "spent": 12}, 1_800),
        ("u1", {"start": 5_000, "end": 5_000}, {"n": 1, "spent": 2}, 5_000),
    ]
    assert found["next"] is None
    assert set(found["as_of"]) == {"stream_time", "position", "lag_records", "served_by"}
    assert found["as_of"]["lag_records"] == 0
    assert found["as_of"]["served_by"] == ("redis" if visits.service.settings.redis_url else "sparkless")


def keys(found: Json) -> list[Any]:
    return [item["key"] for item in found["items"]]


def windows(found: Json) -> list[tuple[str, int, int]]:
    return [(item["key"], item["window"]["start"], item["window"]["end"]) for item in found["items"]]


# ---------------------------------------------------------------- which entries


ALL_SESSIONS = [("a/b", 5_100, 5_100), ("u1", 1_000, 1_800), ("u1", 5_000, 5_000), ("u2", 1_500, 1_500)]


def test_each_type_of_store_has_its_own_lookup(visits: World) -> None:
    (total,) = visits.look("totals-k/keys/u1")["items"]
    assert total == {
        "key": "u1",
        "window": None,
        "value": {"n": 3, "spent": 14},
        "timestamp": 5_000,
        "closes_at": None,
        "is_final": False,
    }
    minutes = visits.look("minutes-w/windows/u1")["items"]
    assert [(item["window"], item["value"], item["closes_at"]) for item in minutes] == [
        ({"start": 1_000, "end": 2_000}, {"n": 2, "spent": 12}, 2_500),
        ({"start": 5_000, "end": 6_000}, {"n": 1, "spent": 2}, 6_500),
    ]
    (once,) = visits.look("once-d/keys/u1")["items"]
    assert (once["key"], once["value"], once["timestamp"]) == ("u1", None, 1_000)


def test_closed_sessions_are_final_and_say_when_they_closed(visits: World) -> None:
    first, second = visits.look("visits-s/sessions/u1")["items"]
    assert (first["closes_at"], first["is_final"]) == (1_800 + GAP_MS + GRACE_MS, True)
    assert (second["closes_at"], second["is_final"]) == (5_000 + GAP_MS + GRACE_MS, False)


def test_a_key_with_line_ends_is_found_by_its_path(world: World) -> None:
    found = ["line\r\nend", "\n", "a/\r\nb\n", "tab\tand space "]
    world.call("POST", "/v1/streams", json={"name": "lines", "partitions": 1})
    operator = {"op": "aggregate", "name": "k", "aggregates": COUNT}
    world.call("POST", "/v1/jobs", json={"name": "lines", "source": "lines", "operators": [operator]})
    position = world.post(*((key, 1_000, 1) for key in found), stream="lines")
    for key in found:
        for query in (f"?min_position={quote(position)}&timeout_ms=60000", "?limit=5", ""):
            assert keys(world.call("GET", f"/v1/stores/lines-k/keys/{quote(key, safe='')}{query}")) == [key]


@pytest.mark.parametrize("path", ["sessions/a/b", "sessions/a%2Fb", "sessions?key=a/b", "sessions?key=a%2Fb"])
def test_keys_may_hold_slashes(visits: World, path: str) -> None:
    assert windows(visits.call("GET", f"/v1/stores/visits-s/{path}")) == [("a/b", 5_100, 5_100)]


def test_an_unknown_key_has_no_entries(visits: World) -> None:
    for path in ("visits-s/sessions/nobody", "minutes-w/windows/nobody", "totals-k/keys/nobody", "once-d/keys/nobody"):
        found = visits.look(path)
        assert (found["items"], found["next"]) == ([], None)
        assert found["as_of"]["position"]
    assert visits.look("visits-s/sessions", key="")["items"] == []
    assert visits.look("visits-s/sessions", key="k" * 5_000)["items"] == []


def test_without_a_key_there_are_ranges_and_all(visits: World) -> None:
    assert windows(visits.look("visits-s/sessions")) == ALL_SESSIONS
    assert windows(visits.look("visits-s/sessions", reverse=True)) == ALL_SESSIONS[::-1]
    assert windows(visits.look("visits-s/sessions", from_key="u1")) == ALL_SESSIONS[1:]
    assert windows(visits.look("visits-s/sessions", to_key="u1")) == ALL_SESSIONS[:3]
    assert windows(visits.look("visits-s/sessions", from_key="b", to_key="u1")) == ALL_SESSIONS[1:3]
    assert windows(visits.look("visits-s/sessions", from_key="u1", to_key="b")) == []
    assert keys(visits.look("totals-k/keys", from_key="u")) == ["u1", "u2"]
    assert keys(visits.look("once-d/keys", to_key="u1")) == ["a/b", "u1"]


def test_times_bound_what_is_found(visits: World) -> None:
    look = visits.look
    assert windows(look("visits-s/sessions/u1", earliest_end=1_801)) == [("u1", 5_000, 5_000)]
    assert windows(look("visits-s/sessions/u1", earliest_end=1_800)) == [("u1", 1_000, 1_800), ("u1", 5_000, 5_000)]
    assert windows(look("visits-s/sessions/u1", latest_start=4_999)) == [("u1", 1_000, 1_800)]
    assert windows(look("visits-s/sessions", earliest_end=1_600, latest_start=1_200)) == [("u1", 1_000, 1_800)]
    assert windows(look("minutes-w/windows/u1", **{"from": 1_001})) == [("u1", 5_000, 6_000)]
    assert windows(look("minutes-w/windows/u1", to=1_000)) == [("u1", 1_000, 2_000)]
    assert windows(look("minutes-w/windows", **{"from": 1_000, "to": 1_000})) == [
        ("u1", 1_000, 2_000),
        ("u2", 1_000, 2_000),
    ]
    assert windows(look("visits-s/sessions/u1", reverse="true")) == [("u1", 5_000, 5_000), ("u1", 1_000, 1_800)]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_pages_follow_their_cursor(visits: World, limit: int, reverse: bool) -> None:
    found: list[tuple[str, int, int]] = []
    cursor: dict[str, Any] = {}
    for _ in range(10):
        page = visits.look("visits-s/sessions", limit=limit, reverse=reverse, **cursor)
        assert len(page["items"]) <= limit
        found += windows(page)
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert found == (ALL_SESSIONS[::-1] if reverse else ALL_SESSIONS)


def test_the_way_past_the_routes_answers_as_the_routes_do(visits: World) -> None:
    for path in (
        "visits-s/sessions/u1",
        "minutes-w/windows/u1",
        "totals-k/keys/u1",
        "once-d/keys/u1",
        "totals-k/keys/x",
    ):
        for _ in range(2):  # what is known of a store is fresh the second time
            assert visits.look(path) == visits.look(path, limit=100) == visits.look(path, limit=100, reverse=False)
        routed = visits.http.get(f"/v1/stores/{path}", params={"limit": 100})
        for _ in range(2):  # from the second one on past the parser, too
            quick = visits.http.get(f"/v1/stores/{path}")
            assert quick.headers.keys() == routed.headers.keys()
            assert quick.headers["Content-Type"] == "application/json"
            assert quick.headers["X-Request-Id"] != routed.headers["X-Request-Id"]
            assert quick.content == routed.content


def test_lookups_with_the_same_fields_are_judged_one_by_one(visits: World) -> None:
    path = "/v1/stores/totals-k/keys/u1"
    token = visits.service.client("admin").post("/v1/tokens", json={"name": "again", "role": "reader"}).json()
    client = visits.service.client(None, **{"Authorization": f"Bearer {token['key']}", "X-Request-Id": "mine"})
    for _ in range(3):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["X-Request-Id"]) == (200, "mine")
    assert client.get("/v1/stores/totals-k/keys/").status_code == 404
    assert client.get("/v1/stores/visits-s/keys/u1").status_code == 409
    assert client.get(path).status_code == 200
    visits.service.app.state.is_draining = True
    try:
        assert client.get(path).status_code == 503
    finally:
        visits.service.app.state.is_draining = False
    client = visits.service.client(None, Authorization=f"Bearer {token['key']}")
    assert [client.get(path).status_code for _ in range(3)] == [200] * 3
    visits.service.client("admin").delete(f"/v1/tokens/{token['id']}")
    assert client.get(path).status_code == 401


@pytest.mark.parametrize(
    "path", ["/v1/stores/visits-s/sessions/", "/v1/stors/visits-s/sessions/u1", "/v2/stores/visits-s/sessions/u1"]
)
def test_only_what_is_a_lookup_goes_past_the_routes(visits: World, path: str) -> None:
    visits.look("visits-s/sessions/u1")  # so that the store is known
    answer = visits.http.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_route")


def job_of_its_own(world: World, name: str, **window: int) -> str:
    """A session store over a stream of its own, for what would be in the way of others; its path."""
    world.call("POST", "/v1/streams", json={"name": name, "partitions": PARTITIONS})
    operator = {"op": "aggregate", "name": "s", "window": {"type": "session", **window}, "aggregates": COUNT}
    job = {"name": name, "source": name, "operators": [operator], "commit_interval_ms": 0}
    world.call("POST", "/v1/jobs", json=job)
    return f"{name}-s/sessions"


def test_the_current_session_of_a_key_is_one_call(world: World) -> None:
    path = job_of_its_own(world, "current", gap_ms=10)
    position = world.post(("u", 0, 1), ("u", 100, 1), ("u", 107, 1), ("v", 50, 1), stream="current")
    found = world.look(f"{path}/u", open=True, min_position=position)
    assert (windows(found), found["items"][0]["is_final"]) == ([("u", 100, 107)], False)
    assert windows(world.look(f"{path}/u")) == [("u", 0, 0), ("u", 100, 107)]
    assert windows(world.look(f"{path}/u", open=False)) == windows(world.look(f"{path}/u"))
    found = world.look(path, open=True, min_position=position)  # that of `v` is in another partition
    assert windows(found) == [("u", 100, 107), ("v", 50, 50)]
    assert [item["is_final"] for item in found["items"]] == [False, False]
    assert world.refused(422, f"{path}/u", open="perhaps")["errors"][0]["pointer"] == "?open"
    assert world.refused(422, "minutes-w/windows/u1", open=True)["errors"][0]["pointer"] == "?open"


@pytest.mark.parametrize("reverse", [False, True])
def test_a_cursor_is_stable_while_others_write(world: World, reverse: bool) -> None:
    """Between any two pages sessions come, grow, merge and close, before the cursor, behind it, and right there."""
    name = "backward" if reverse else "forward"
    path = job_of_its_own(world, name, gap_ms=10, grace_ms=10_000)
    stay = [(f"k{n}", start, start) for n in range(4) for start in (100, 200, 300)]
    position = world.post(*((key, start, 1) for key, start, _ in stay), stream=name)
    found: list[tuple[str, int, int]] = []
    cursor: dict[str, Any] = {}
    for turn in range(40):
        page = world.look(path, limit=2, reverse=reverse, min_position=position, **cursor)
        found += windows(page)
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
        at_cursor = found[-1][0]
        if turn < 5:  # else those that come behind the cursor would never end
            new = [(f"{at_cursor}+", 50), (f"k0{turn}", 7), (at_cursor, 1_000 + 20 * turn), ("k3", 650 + turn)]
            position = world.post(*((key, start, 1) for key, start in new), stream=name)
    world.call("POST", f"/v1/jobs/{name}:stop")
    assert found == sorted(set(found), key=lambda one: (one[0], one[2]), reverse=reverse), "in order, nothing twice"
    assert [one for one in found if one in stay] == sorted(stay, reverse=reverse)


def test_what_stream_time_has_expired_is_hidden_from_every_lookup(world: World) -> None:
    path = job_of_its_own(world, "aging", gap_ms=10, retention_ms=1_000)
    kept_ms = 10 + 1_000
    arrow = {"Accept": "application/vnd.apache.arrow.stream"}
    for stream_time, is_there in ((100 + kept_ms, True), (100 + kept_ms + 1, False)):
        records = [("old", 100, 1)] if is_there else []
        position = world.post(*records, ("old", stream_time, 1), stream="aging")
        newest = ("old", 100 + kept_ms, stream_time)
        expected = [("old", 100, 100), newest] if is_there else [newest]
        found = world.look(path, key="old", min_position=position)
        assert windows(found) == expected
        assert found["as_of"]["stream_time"] == stream_time
        assert windows(world.look(f"{path}/old")) == windows(world.look(path)) == expected
        assert windows(world.look(path, to_key="z", reverse=True)) == expected[::-1]
        assert windows(world.call("POST", "/v1/stores/aging-s:lookup", json={"keys": ["old"]})) == expected
        export = world.http.get(f"/v1/stores/{path}", headers=arrow)
        assert pa.ipc.open_stream(export.content).read_all().num_rows == len(expected)
    world.call("POST", "/v1/jobs/aging:stop")


def test_the_same_lookup_again_is_as_of_now(world: World) -> None:
    """The entry lies there unchanged while another key moves stream time past its close and its end."""
    path = job_of_its_own(world, "again", gap_ms=10, grace_ms=5, retention_ms=1_000)
    other = next(key for key in map(str, range(99)) if murmur2(key.encode()) % PARTITIONS == murmur2(b"u") % PARTITIONS)
    position = world.post(("u", 100, 1), stream="again")
    seen = []
    for stream_time in (101, 115, 116, 1_110, 1_120):
        position = world.post((other, stream_time, 1), stream="again")
        routed = world.look(f"{path}/u", min_position=position)
        for _ in range(3):
            found = world.look(f"{path}/u")
            assert found["items"] == routed["items"]
            assert found["as_of"]["stream_time"] == stream_time
        seen.append([(item["window"]["end"], item["is_final"]) for item in found["items"]])
    assert seen == [[(100, False)]] * 2 + [[(100, True)]] * 2 + [[]]
    world.call("POST", "/v1/jobs/again:stop")


# ---------------------------------------------------------------- batches, owners, lists


def test_a_batch_answers_key_after_key(visits: World) -> None:
    found = visits.call("POST", "/v1/stores/visits-s:lookup", json={"keys": ["u2", "nobody", "u1"]})
    assert windows(found) == [("u2", 1_500, 1_500), ("u1", 1_000, 1_800), ("u1", 5_000, 5_000)]
    assert found["store"] == "visits-s"
    assert found["next"] is None
    assert set(found["as_of"]) == {"stream_time", "position", "lag_records", "served_by"}
    assert keys(visits.call("POST", "/v1/stores/totals-k:lookup", json={"keys": ["u2", "u1", "u2"]})) == [
        "u2",
        "u1",
        "u2",
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_batch_is_paged_too(visits: World, limit: int) -> None:
    found: list[tuple[str, int, int]] = []
    body: Json = {"keys": ["u1", "u2", "nobody", "a/b"], "limit": limit}
    for _ in range(10):
        page = visits.call("POST", "/v1/stores/visits-s:lookup", json=body)
        assert len(page["items"]) <= limit
        found += windows(page)
        if page["next"] is None:
            break
        body["cursor"] = page["next"]
    assert found == [("u1", 1_000, 1_800), ("u1", 5_000, 5_000), ("u2", 1_500, 1_500), ("a/b", 5_100, 5_100)]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/keys"),
        ({"keys": []}, "/keys"),
        ({"keys": "u1"}, "/keys"),
        ({"keys": [1]}, "/keys/0"),
        ({"keys": ["a"] * 1_001}, "/keys"),
        ({"keys": ["a"], "limit": 0}, "/limit"),
        ({"keys": ["a"], "what": 1}, "/what"),
        ({"keys": ["***"], "key_encoding": "base64"}, "/keys/0"),
        ([], ""),
    ],
)
def test_a_batch_that_is_not_one_is_refused(visits: World, body: Any, pointer: str) -> None:
    answer = visits.http.post("/v1/stores/visits-s:lookup", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_batch_must_be_json(visits: World) -> None:
    path = "/v1/stores/visits-s:lookup"
    assert visits.http.post(path, content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
    assert visits.http.post(path, content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert visits.http.post("/v1/stores/none-s:lookup", json={"keys": ["a"]}).status_code == 404
    assert visits.http.get(path).status_code in (404, 405)


def test_the_owner_of_a_key_is_a_task_of_an_instance(visits: World) -> None:
    tasks = {task["task"]: task for task in visits.call("GET", "/v1/jobs/visits/tasks")["items"]}
    for key in ("u1", "u2", "a/b"):
        owner = visits.look("visits-s/owner", key=key)
        assert (owner["store"], owner["key"], owner["standbys"]) == ("visits-s", key, [])
        assert owner["task"] == f"0_{owner['partition']}"
        assert owner["active"]["name"] == "sparkless"
        assert owner["active"]["slot"] == tasks[owner["task"]]["slot"]


def test_stores_are_listed_with_how_much_is_in_them(visits: World) -> None:
    listed = visits.call("GET", "/v1/stores")
    names = [store["name"] for store in listed["items"]]
    assert names == sorted(names)
    assert {"visits-s", "minutes-w", "totals-k", "once-d"} <= set(names)
    first = visits.call("GET", "/v1/stores", params={"limit": 3})
    rest = visits.call("GET", "/v1/stores", params={"cursor": first["next"]})
    assert first["items"] + rest["items"] == listed["items"]
    store = visits.look("visits-s")
    assert {name: store[name] for name in ("type", "kind", "job", "operator", "lag")} == {
        "type": "session",
        "kind": "aggregate",
        "job": "visits",
        "operator": "s",
        "lag": 0,
    }
    assert len(store["partitions"]) == PARTITIONS
    assert store["entries"] == sum(at["entries"] for at in store["partitions"]) > 0
    assert store["bytes"] > 0
    assert all(at["position"] == at["end"] and at["instance"] == "sparkless" for at in store["partitions"])
    assert {visits.look(name)["type"] for name in ("minutes-w", "totals-k")} == {"window", "key_value"}


def test_a_store_carries_an_entity_tag(visits: World) -> None:
    answer = visits.http.get("/v1/stores/visits-s")
    again = visits.http.get("/v1/stores/visits-s", headers={"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304


# ---------------------------------------------------------------- exports


def test_all_of_a_store_as_lines(visits: World) -> None:
    answer = visits.http.get("/v1/stores/visits-s/sessions", headers={"Accept": "application/x-ndjson"})
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines == visits.look("visits-s/sessions")["items"]
    assert json.loads(answer.headers["Millrace-As-Of"]) == visits.look("visits-s/sessions")["as_of"]
    assert "Millrace-Next" not in answer.headers


def test_all_of_a_store_as_arrow(visits: World) -> None:
    headers = {"Accept": "application/vnd.apache.arrow.stream"}
    answer = visits.http.get("/v1/stores/visits-s/sessions", headers=headers)
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema.names == ["key", "window_start", "window_end", "value", "timestamp", "closes_at", "is_final"]
    rows = [(row["key"].decode(), row["window_start"], row["window_end"]) for row in table.to_pylist()]
    assert rows == ALL_SESSIONS
    assert json.loads(table.column("value")[1].as_py()) == {"n": 2, "spent": 12}
    empty = visits.http.get("/v1/stores/visits-s/sessions/nobody", headers=headers)
    assert pa.ipc.open_stream(empty.content).read_all().num_rows == 0


def test_times_of_arrow_come_as_timestamps_where_that_is_asked_for(visits: World) -> None:
    headers = {"Accept": "application/vnd.apache.arrow.stream"}
    found = [
        pa.ipc.open_stream(visits.http.get("/v1/stores/visits-s/sessions", params=query, headers=headers).content)
        for query in ({"from_key": "u1", "to_key": "u2"}, {"from_key": "u1", "to_key": "u2", "times_as": "timestamp"})
    ]
    plain, typed = (reader.read_all() for reader in found)
    for name in ("window_start", "window_end", "timestamp", "closes_at"):
        assert typed.schema.field(name).type == pa.timestamp("ms")
        assert typed[name].cast(pa.int64()) == plain[name]
    assert plain.num_rows > 1
    assert not typed.schema.field("timestamp").nullable
    assert visits.refused(422, "visits-s/sessions", times_as="date")["code"] == "invalid_request"


def test_an_export_with_a_limit_is_a_page(visits: World) -> None:
    found: list[Json] = []
    cursor: dict[str, Any] = {}
    for _ in range(10):
        answer = visits.http.get(
            "/v1/stores/visits-s/sessions", params={"limit": 3, **cursor}, headers={"Accept": "application/x-ndjson"}
        )
        found += [json.loads(line) for line in answer.text.splitlines()]
        if "Millrace-Next" not in answer.headers:
            break
        cursor = {"cursor": answer.headers["Millrace-Next"]}
    assert windows({"items": found}) == ALL_SESSIONS


def test_what_can_not_be_served_is_not_acceptable(visits: World) -> None:
    for path in ("visits-s/sessions", "visits-s/sessions/u1"):
        answer = visits.http.get(f"/v1/stores/{path}", headers={"Accept": "text/html"})
        assert answer.status_code == 406


def test_a_weight_of_zero_is_not_acceptable(visits: World) -> None:
    headers = {"Accept": "application/x-ndjson;q=0."}
    assert visits.http.get("/v1/stores/visits-s/sessions", headers=headers).status_code == 406
    headers = {"Accept": "application/x-ndjson;q=0, application/json;q=.5"}
    served = visits.http.get("/v1/stores/visits-s/sessions", headers=headers)
    assert served.headers["Content-Type"] == "application/json"


# ---------------------------------------------------------------- freshness


def test_what_was_posted_is_found_by_its_position(world: World, visits: World) -> None:
    for n in range(10):
        position = world.post(("fresh", 6_000 + n, 1))
        total = world.look("totals-k/keys/fresh", min_position=position)
        assert total["items"][0]["value"]["n"] == n + 1
        assert total["as_of"]["lag_records"] == 0
        assert (
            world.look("visits-s/sessions", key="fresh", min_position=position)["items"][-1]["window"]["end"]
            == 6_000 + n
        )
        everything = world.look("minutes-w/windows", min_position=position, from_key="fresh", to_key="fresh")
        assert everything["items"][-1]["value"]["n"] == n + 1
        body = {"keys": ["fresh"]}
        batch = world.call("POST", "/v1/stores/totals-k:lookup", json=body, params={"min_position": position})
        assert batch["items"][0]["value"]["n"] == n + 1


def test_an_answer_is_no_older_than_the_one_before(visits: World) -> None:
    first = visits.look("visits-s/sessions/u1")
    again = visits.look("visits-s/sessions/u1", min_position=first["as_of"]["position"])
    assert again["items"] == first["items"]
    assert visits.look("visits-s/sessions", min_position=first["as_of"]["position"])["items"]
    refused = visits.refused(422, "totals-k/keys/u1", min_position=first["as_of"]["position"])
    assert refused["code"] == "invalid_position"


def partition_of(world: World, key: str) -> int:
    return int(world.look("totals-k/owner", key=key)["partition"])


def is_refused_as_behind(answer: httpx.Response) -> None:
    assert answer.status_code == 503
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json()["code"] == "store_behind"
    assert "paused" in answer.json()["reason"]
    assert answer.json()["reason"] in answer.json()["detail"]


def test_a_paused_job_is_said_to_be_behind(world: World, visits: World) -> None:
    world.call("POST", "/v1/jobs/totals:pause")
    before = world.look("totals-k/keys/paused")
    position = world.post(("paused", 7_000, 1))
    for wanted in ({"min_position": position}, {"max_lag_records": 0}):
        for path in ("totals-k/keys/paused", "totals-k/keys"):
            answer = world.http.get(f"/v1/stores/{path}", params={**wanted, "timeout_ms": 200})
            assert answer.elapsed.total_seconds() >= 0.2
            is_refused_as_behind(answer)
        batch = {"json": {"keys": ["u1", "paused"]}, "params": {**wanted, "timeout_ms": 0}}
        is_refused_as_behind(world.http.post("/v1/stores/totals-k:lookup", **batch))
    elsewhere = next(key for key in ("u1", "u2", "a/b") if partition_of(world, key) != partition_of(world, "paused"))
    assert world.look(f"totals-k/keys/{elsewhere}", min_position=position, timeout_ms=0)["items"]  # not its partition
    stale = world.look("totals-k/keys/paused", max_lag_records=1)
    assert stale["items"] == before["items"] == []
    assert stale["as_of"]["lag_records"] == 1
    assert world.look("totals-k/keys/paused")["as_of"]["lag_records"] == 1
    world.call("POST", "/v1/jobs/totals:resume")
    assert len(world.look("totals-k/keys/paused", min_position=position)["items"]) == 1
    assert len(world.look("totals-k/keys/paused", max_lag_records=0)["items"]) == 1


def test_a_position_of_something_else_is_refused(world: World, visits: World) -> None:
    world.call("POST", "/v1/streams", json={"name": "other", "partitions": PARTITIONS})
    other = world.post(("u1", 1, 1), stream="other")
    for wrong in (other, "x", "", other[:-4], base64.urlsafe_b64encode(b"{}").decode()):
        refused = world.refused(422, "totals-k/keys/u1", min_position=wrong)
        assert (refused["code"], refused["errors"][0]["pointer"]) == ("invalid_position", "?min_position")


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("nothing-s", 404, "unknown_store"),
        ("nothing-s/sessions", 404, "unknown_store"),
        ("nothing-s/sessions/u1", 404, "unknown_store"),
        ("nothing-s/owner?key=a", 404, "unknown_store"),
        ("No%20Name/sessions/u1", 404, "unknown_store"),
        ("No%00Name/sessions/u1", 404, "unknown_store"),
        ("visits-s/sessions/", 404, "no_such_route"),
        ("visits-s/nothing", 404, "no_such_route"),
        ("visits-s/windows/u1", 409, "wrong_store_type"),
        ("visits-s/keys", 409, "wrong_store_type"),
        ("minutes-w/sessions/u1", 409, "wrong_store_type"),
        ("totals-k/windows?key=u1", 409, "wrong_store_type"),
        ("visits-s/sessions?limit=0", 422, "invalid_request"),
        ("visits-s/sessions?limit=1001", 422, "invalid_request"),
        ("visits-s/sessions?limit=many", 422, "invalid_request"),
        ("visits-s/sessions?reverse=perhaps", 422, "invalid_request"),
        ("visits-s/sessions?earliest_end=-1", 422, "invalid_request"),
        ("visits-s/sessions?latest_start=9223372036854775808", 422, "invalid_request"),
        ("visits-s/sessions?earliest_end=soon", 422, "invalid_request"),
        ("minutes-w/windows?from=x", 422, "invalid_request"),
        ("minutes-w/windows?to=1.5", 422, "invalid_request"),
        ("visits-s/sessions?timeout_ms=60001", 422, "invalid_request"),
        ("visits-s/sessions?max_lag_records=-1", 422, "invalid_request"),
        ("visits-s/sessions?key_encoding=rot13", 422, "invalid_request"),
        ("visits-s/sessions?key=a&from_key=b", 422, "invalid_request"),
        ("visits-s/sessions/a?key=a", 422, "invalid_request"),
        ("visits-s/sessions/a?to_key=a", 422, "invalid_request"),
        ("visits-s/sessions?key=%FF", 422, "invalid_key"),
        ("visits-s/sessions/%FF", 422, "invalid_key"),
        ("visits-s/sessions?key=***&key_encoding=base64", 422, "invalid_key"),
        ("visits-s/sessions?cursor=nonsense", 422, "invalid_cursor"),
        ("visits-s/sessions?cursor=e30", 422, "invalid_cursor"),
        ("visits-s/owner", 422, "invalid_request"),
        ("visits-s/owner?key=a&bogus", 422, "invalid_request"),
        ("visits-s?bogus=1", 422, "invalid_request"),
        ("visits-s/sessions?bogus=1", 422, "invalid_request"),
        ("visits-s/sessions?key=a&min_postion=x", 422, "invalid_request"),
        ("visits-s/sessions/a?from=5", 422, "invalid_request"),
        ("minutes-w/windows?earliest_end=5", 422, "invalid_request"),
        ("visits-s/sessions?key=a&key=b", 422, "invalid_request"),
        ("visits-s/sessions?limit=1&limit=2", 422, "invalid_request"),
        ("?bogus=1", 422, "invalid_request"),
        ("?limit=0", 422, "invalid_request"),
        ("?cursor=Not%20a%20name", 422, "invalid_cursor"),
    ],
)
def test_what_makes_no_sense_is_refused(visits: World, path: str, status: int, code: str) -> None:
    url = f"/v1/stores/{path}" if not path.startswith("?") else f"/v1/stores{path}"
    answer = visits.http.get(url)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    if status == 422:
        pointer = answer.json()["errors"][0]["pointer"]
        assert pointer in answer.json()["detail"] or code != "invalid_request"
        name = pointer.removeprefix("?")
        assert pointer == "{key}" or name in path or name == "key", pointer


def test_a_parameter_that_is_not_known_is_told_with_those_that_are(visits: World) -> None:
    [error] = visits.refused(422, "visits-s/sessions", earliest_ends=5)["errors"]
    assert error["pointer"] == "?earliest_ends"
    assert "earliest_end, latest_start" in error["detail"]
    refused = visits.http.post("/v1/stores/visits-s:lookup", params={"limit": 1}, json={"keys": ["u1"]})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "?limit")
    nobody = visits.service.client(None).get("/v1/stores/visits-s", params={"bogus": 1})
    assert nobody.status_code == 401


def test_a_cursor_belongs_to_its_store_and_its_lookup(visits: World) -> None:
    cursor = visits.look("visits-s/sessions", limit=1)["next"]
    assert visits.look("visits-s/sessions", cursor=cursor, limit=7)["items"]
    for path, params in (
        ("visits-s/sessions", {"reverse": True}),
        ("visits-s/sessions/u1", {}),
        ("visits-s/sessions", {"earliest_end": 5}),
        ("totals-k/keys", {}),
    ):
        refused = visits.refused(422, path, cursor=cursor, **params)
        assert (refused["code"], refused["errors"][0]["pointer"]) == ("invalid_cursor", "?cursor")
    for body in ({"keys": ["u1"], "cursor": cursor}, {"keys": ["u1"], "cursor": "nonsense"}):
        refused = visits.http.post("/v1/stores/visits-s:lookup", json=body).json()
        assert (refused["code"], refused["errors"][0]["pointer"]) == ("invalid_cursor", "/cursor")


def test_lookups_need_a_key_that_may_read(visits: World) -> None:
    for path in (
        "/v1/stores",
        "/v1/stores/visits-s",
        "/v1/stores/visits-s/sessions",
        "/v1/stores/visits-s/sessions/u1",
    ):
        visits.look("visits-s/sessions/u1")  # so that it is known
        assert visits.service.client(None).get(path).status_code == 401
        assert visits.service.client(None, Authorization="Bearer wrong").get(path).status_code == 401
        assert visits.service.client(None, Authorization="Basic wrong").get(path).status_code == 401
        assert visits.service.client("instance").get(path).status_code == 403
        for role in ("reader", "writer", "admin"):
            assert visits.service.client(role).get(path).status_code == 200
    assert visits.service.client(None).post("/v1/stores/visits-s:lookup", json={"keys": ["a"]}).status_code == 401
    assert visits.service.client("instance").post("/v1/stores/visits-s:lookup", json={"keys": ["a"]}).status_code == 403
    assert visits.http.delete("/v1/stores/visits-s").status_code == 405


# ---------------------------------------------------------------- keys that are no text


def test_keys_are_bytes_and_can_be_written_in_base64(world: World, visits: World) -> None:
    key = b"\xff\x00/\x01"
    columns = {"key": pa.array([key], pa.binary()), "value": ['{"amount":1}'], "timestamp": [9_000]}
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    world.call("POST", "/v1/streams", json={"name": "raw", "partitions": 2})
    job = {"name": "raws", "source": "raw", "operators": [JOBS["totals"]], "commit_interval_ms": 0}
    world.call("POST", "/v1/jobs", json=job)
    headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
    posted = world.call("POST", "/v1/streams/raw/records", content=sink.getvalue().to_pybytes(), headers=headers)
    encoded = base64.b64encode(key).decode()
    found = world.look("raws-k/keys", key=encoded, key_encoding="base64", min_position=posted["position"])
    assert keys(found) == [encoded]
    urlsafe = base64.urlsafe_b64encode(key).decode()
    assert keys(world.look("raws-k/keys", from_key=urlsafe, key_encoding="base64")) == [encoded]
    body = {"keys": [encoded], "key_encoding": "base64"}
    assert keys(world.call("POST", "/v1/stores/raws-k:lookup", json=body)) == [encoded]
    for accepted in ("application/json", "application/x-ndjson"):
        refused = world.http.get("/v1/stores/raws-k/keys", headers={"Accept": accepted})
        assert (refused.status_code, refused.json()["code"]) == (422, "key_not_text")
        assert refused.json()["errors"][0]["pointer"] == "?key_encoding"
    lines = {"params": {"key_encoding": "base64"}, "headers": {"Accept": "application/x-ndjson"}}
    assert world.http.get("/v1/stores/raws-k/keys", **lines).json()["key"] == encoded
    arrow = world.http.get("/v1/stores/raws-k/keys", headers={"Accept": "application/vnd.apache.arrow.stream"})
    assert pa.ipc.open_stream(arrow.content).read_all().column("key").to_pylist() == [key]
    world.call("POST", "/v1/jobs/raws:stop")


def test_keys_may_be_any_text(visits: World) -> None:
    for key in ("é ü+&=%", "日本", " ", "a:b", "?", "..", "%41"):
        position = visits.post((key, 5_500, 3))
        found = visits.look("totals-k/keys", key=key, min_position=position)
        assert [(item["key"], item["value"]["spent"] % 3) for item in found["items"]] == [(key, 0)]
        if key != "..":  # clients take that out of a path
            path = quote(key, safe="")
            assert visits.look(f"totals-k/keys/{path}")["items"] == found["items"]
        assert visits.look("totals-k/keys", from_key=key, to_key=key)["items"] == found["items"]


# ---------------------------------------------------------------- partitions chosen by hand, jobs that end


def test_where_partitions_are_chosen_by_hand_a_key_is_looked_for_in_all(world: World, visits: World) -> None:
    world.call("POST", "/v1/streams", json={"name": "hand", "partitions": 3})
    job = {"name": "hands", "source": "hand", "operators": [JOBS["totals"]], "commit_interval_ms": 0}
    world.call("POST", "/v1/jobs", json=job)
    assert world.look("hands-k/owner", key="k")["task"].startswith("0_")
    records = [{"key": "k", "partition": p, "timestamp": 5 + p, "value": {"amount": p}} for p in range(3)]
    posted = world.call("POST", "/v1/streams/hand/records", json={"records": records})
    for how in ({"key": "k"}, {"from_key": "k", "to_key": "k"}, {}):
        found = world.look("hands-k/keys", min_position=posted["position"], **how)
        assert [item["value"]["spent"] for item in found["items"]] == [0, 1, 2]
    assert [item["value"]["spent"] for item in world.look("hands-k/keys/k")["items"]] == [0, 1, 2]
    assert world.refused(409, "hands-k/owner", key="k")["code"] == "key_has_no_owner"
    world.call("POST", "/v1/jobs/hands:stop")


def test_the_store_of_a_stopped_job_is_there_until_it_is_deleted(world: World, visits: World) -> None:
    job = {"name": "brief", "source": "clicks", "operators": [JOBS["totals"]], "commit_interval_ms": 0}
    world.call("POST", "/v1/jobs", json=job)
    assert world.look("brief-k/keys/u1", max_lag_records=0, timeout_ms=30_000)["items"][0]["value"]["n"] == 3
    world.call("POST", "/v1/jobs/brief:stop")
    wait_until(lambda: world.call("GET", "/v1/jobs/brief")["state"] == "stopped", "the job's end")
    assert world.look("brief-k/keys/u1")["items"][0]["value"]["n"] == 3
    position = world.post(("brief", 8_000, 1))
    refused = world.http.get("/v1/stores/brief-k/keys/brief", params={"min_position": position})
    assert refused.status_code == 503
    assert "stopped" in refused.json()["detail"]
    world.http.delete("/v1/jobs/brief").raise_for_status()
    world.refused(404, "brief-k/keys/u1")
    world.refused(404, "brief-k")
    world.call("POST", "/v1/jobs", json={**job, "start": "latest"})  # the same name, another store
    assert world.look("brief-k/keys/u1")["items"] == []
    world.call("POST", "/v1/jobs/brief:stop")


# ---------------------------------------------------------------- the document, the counts


def test_every_answer_is_what_the_document_says(visits: World) -> None:
    document = openapi_documents.for_people()
    for path, real in (
        ("/v1/stores", "/v1/stores"),
        ("/v1/stores/{store}", "/v1/stores/visits-s"),
        ("/v1/stores/{store}/sessions", "/v1/stores/visits-s/sessions"),
        ("/v1/stores/{store}/sessions/{key}", "/v1/stores/visits-s/sessions/u1"),
        ("/v1/stores/{store}/windows/{key}", "/v1/stores/minutes-w/windows/u1?limit=1"),
        ("/v1/stores/{store}/keys/{key}", "/v1/stores/once-d/keys/u1"),
        ("/v1/stores/{store}/owner", "/v1/stores/visits-s/owner?key=u1"),
        ("/v1/stores/{store}/keys", "/v1/stores/visits-s/keys"),
        ("/v1/stores/{store}/sessions", "/v1/stores/visits-s/sessions?limit=0"),
    ):
        answer = visits.http.get(real)
        declared = document["paths"][path]["get"]["responses"][str(answer.status_code)]
        schema = declared["content"][answer.headers["Content-Type"]]["schema"]
        validator = Draft202012Validator({**schema, "components": document["components"]})
        assert [fault.message for fault in validator.iter_errors(answer.json())] == [], real


def test_plain_lookups_are_counted_under_their_route(visits: World) -> None:
    visits.look("totals-k/keys/u1")
    visits.look("totals-k/keys/u1")
    lines = visits.http.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("millrace_http_requests_total") and "/keys/{key}" in line]
    assert any('route="/v1/stores/{store}/keys/{key}"' in line and 'status="200"' in line for line in counts)
