"""`:reset` and `:reset-time` over HTTP: refused with a pointer or the state, and through slots that run; and lookups of
a job that becomes another version while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.running import wait_until
from tests.forkserver import ForkServer
from tests.services import redis_server
from tests.serving import Serving, serving
from tests.sparkless import instance

Json = dict[str, Any]

COUNT: Json = {"op": "aggregate", "name": "n", "aggregates": {"n": {"fn": "count"}}}
JOB: Json = {"name": "visits", "source": "clicks", "operators": [COUNT], "sink": "counts", "commit_interval_ms": 0}


def records(*keys: str, first: int = 1_000) -> Json:
    return {
        "records": [{"key": key, "value": {}, "timestamp": first + i, "partition": 0} for i, key in enumerate(keys)]
    }


# ---------------------------------------------------------------- no slot


@pytest.fixture
def service(tmp_path: Path, sqlite_url: str) -> Iterator[Serving]:
    """A stopped job, trusting its two partitions, over ten records of the first."""
    with serving(tmp_path, sqlite_url) as running:
        http = running.client("writer")
        http.post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
        http.post("/v1/streams/clicks/records", json=records(*"abcdefghij")).raise_for_status()
        http.post("/v1/jobs", json=JOB | {"trust_partitions": True}).raise_for_status()
        http.post("/v1/jobs/visits:stop").raise_for_status()
        yield running


@pytest.fixture
def api(service: Serving) -> httpx.Client:
    return service.client("writer")


def positions(job: Json) -> list[int]:
    return [at["position"] for at in job["positions"]]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 0]),
        ("latest", [10, 0]),
        ({"timestamp": 1_006}, [6, 0]),
        ({"offsets": {"0": 4}}, [4, 0]),
        ({"offsets": {"clicks": {"0": 7}}}, [7, 0]),
    ],
)
def test_a_stopped_job_is_reset_to_every_start(api: httpx.Client, start: object, expected: list[int]) -> None:
    before = api.get("/v1/jobs/visits").json()
    answer = api.post("/v1/jobs/visits:reset", json={"start": start})
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert (job["state"], positions(job)) == ("stopped", expected)
    assert job["version"] > before["version"]
    assert answer.headers["ETag"]


def test_a_reset_without_a_start_takes_that_of_the_specification(service: Serving) -> None:
    api = service.client("writer")
    api.post("/v1/jobs", json=JOB | {"name": "late", "trust_partitions": True, "start": {"timestamp": 1_008}})
    api.post("/v1/jobs/late:stop")
    for body in ({}, {"json": {}}, {"json": {"start": None}}):
        api.post("/v1/jobs/late:reset", json={"start": "earliest"}).raise_for_status()
        answer = api.post("/v1/jobs/late:reset", **body)
        assert answer.status_code == 200, answer.text
        assert positions(answer.json()) == [8, 0]


def test_history_tells_resets_from_changes_of_state(service: Serving) -> None:
    api = service.client("writer")
    api.post("/v1/jobs/visits:reset", json={"start": {"offsets": {"0": 4}}}).raise_for_status()
    tag = api.get("/v1/jobs/visits").headers["ETag"]
    api.patch("/v1/jobs/visits", json={"max_batch_records": 7}, headers={"If-Match": tag}).raise_for_status()
    found = api.get("/v1/jobs/visits/history", params={"limit": 2}).json()
    spec, reset = found["items"]
    assert (spec["kind"], spec["details"], spec["who"]) == ("spec", {"max_batch_records": 7}, "writer")
    assert (reset["kind"], reset["details"]) == ("reset", {"start": {"offsets": {"0": 4}}})
    assert (reset["from_state"], reset["to_state"], reset["who"]) == ("stopped", "stopped", "writer")
    following = api.get("/v1/jobs/visits/history", params={"cursor": found["next"]}).json()["items"]
    assert [(item["kind"], item["to_state"]) for item in following][-1] == ("state", "starting")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"start": "now"}, "/start"),
        ({"start": 7}, "/start"),
        ({"start": {}}, "/start/timestamp"),
        ({"start": {"timestamp": -1}}, "/start/timestamp"),
        ({"start": {"offsets": {"0": 11}}}, "/start/offsets/0"),
        ({"start": {"offsets": {"0": 2**63}}}, "/start/offsets/0"),
        ({"start": {"offsets": {"2": 0}}}, "/start/offsets/2"),
        ({"start": {"offsets": {"clicks": {"0": 11}}}}, "/start/offsets/clicks/0"),
        ({"start": {"offsets": {"views": {"0": 1}}}}, "/start/offsets/views"),
        ({"from": "latest"}, "/from"),
        ([], ""),
    ],
)
def test_a_start_that_can_not_be_is_pointed_at(api: httpx.Client, body: object, pointer: str) -> None:
    answer = api.post("/v1/jobs/visits:reset", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert positions(api.get("/v1/jobs/visits").json()) == [0, 0]


def test_bodies_that_are_no_resets_are_told_apart(api: httpx.Client) -> None:
    text = api.post("/v1/jobs/visits:reset", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (text.status_code, text.json()["code"]) == (415, "unsupported_media_type")
    broken = api.post("/v1/jobs/visits:reset", content=b"{", headers={"Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["code"]) == (400, "malformed_json")


def test_only_a_job_that_nobody_runs_is_reset_and_only_by_a_writer(service: Serving) -> None:
    api = service.client("writer")
    assert service.client("reader").post("/v1/jobs/visits:reset").status_code == 403
    assert service.client(None).post("/v1/jobs/visits:reset").status_code == 401
    assert api.post("/v1/jobs/nobody:reset").json()["code"] == "unknown_job"
    api.post("/v1/jobs/visits:restart").raise_for_status()
    answer = api.post("/v1/jobs/visits:reset")
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    assert answer.json()["detail"].startswith("A job that is starting can not be reset: `:stop` it first")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/stream_time"),
        ({"stream_time": None}, "/stream_time"),
        ({"stream_time": "2099-01-01T00:00:00Z"}, "/stream_time"),
        ({"stream_time": 1.5}, "/stream_time"),
        ({"stream_time": True}, "/stream_time"),
        ({"stream_time": -1}, "/stream_time"),
        ({"stream_time": 2**63}, "/stream_time"),
        ({"stream_time": 1, "tasks": []}, "/tasks"),
        ([], ""),
    ],
)
def test_a_time_that_can_not_be_is_pointed_at(service: Serving, body: object, pointer: str) -> None:
    answer = service.client("admin").post("/v1/jobs/visits:reset-time", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_only_an_admin_sets_time_back_and_only_of_a_job_that_nobody_runs(service: Serving) -> None:
    body = {"stream_time": 1}
    for role, status in ((None, 401), ("reader", 403), ("writer", 403)):
        assert service.client(role).post("/v1/jobs/visits:reset-time", json=body).status_code == status
    api = service.client("admin")
    assert api.post("/v1/jobs/nobody:reset-time", json=body).json()["code"] == "unknown_job"
    answer = api.post("/v1/jobs/visits:reset-time", json=body)
    assert answer.json() == {"job": "visits", "stream_time": 1, "tasks": [], "operators": []}
    assert api.post("/v1/jobs/visits:reset-time", json=body, params={"dry_run": "perhaps"}).status_code == 422
    api.post("/v1/jobs/visits:restart").raise_for_status()
    for dry_run in (True, False):
        answer = api.post("/v1/jobs/visits:reset-time", json=body, params={"dry_run": dry_run})
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")


# ---------------------------------------------------------------- through slots


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes, forks: ForkServer) -> Iterator[Serving]:
    """A service whose lookups read views in Redis, and an instance without Spark."""
    folder = tmp_path_factory.mktemp("resets")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with (
        redis_server() as redis_url,
        serving(folder, f"sqlite:///{folder}/catalog.db", redis_url=redis_url) as running,
        instance(running, forks, folder / "replicas"),
    ):
        yield running


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes, forks: ForkServer) -> Iterator[Serving]:
    """A service whose lookups read the replicas, and an instance without Spark."""
    folder = tmp_path_factory.mktemp("resets")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    replica_dir = folder / "replicas"
    with (
        serving(folder, f"sqlite:///{folder}/catalog.db", replica_dir=replica_dir) as running,
        instance(running, forks, replica_dir),
    ):
        yield running


def looked_up(api: httpx.Client, key: str) -> list[int]:
    answer = api.get(f"/v1/stores/visits-n/keys/{key}").raise_for_status()
    return [item["value"]["n"] for item in answer.json()["items"]]


def counts(api: httpx.Client) -> list[tuple[str, int]]:
    found = api.get("/v1/streams/counts/records?partition=0&from_offset=0&limit=1000").raise_for_status().json()
    return [(record["key"], record["value"]["n"]) for record in found["records"]]


@pytest.mark.services
@pytest.mark.parametrize("where", ["replicas", "views"])
def test_a_reset_job_counts_from_nothing_and_lookups_forget_what_was(
    where: str, request: pytest.FixtureRequest
) -> None:
    api = request.getfixturevalue(where).client("writer")
    api.post("/v1/streams", json={"name": "clicks", "partitions": 1}).raise_for_status()
    api.post("/v1/streams/clicks/records", json=records("a", "b", "a")).raise_for_status()
    api.post("/v1/jobs", json=JOB, params={"wait": "caught_up", "timeout_ms": 30_000}).raise_for_status()
    assert (looked_up(api, "a"), looked_up(api, "b")) == ([2], [1])
    first = [("a", 1), ("b", 1), ("a", 2)]
    assert counts(api) == first

    api.post("/v1/jobs/visits:stop?wait=stopped").raise_for_status()
    reset = api.post("/v1/jobs/visits:reset", json={"start": {"offsets": {"0": 1}}}).raise_for_status().json()
    assert (reset["stream_time"], reset["caught_up"]) == (None, False)
    assert (looked_up(api, "a"), looked_up(api, "b")) == ([], [])
    assert api.get("/v1/jobs/visits/metrics").json()["records_in"] == 0

    api.post("/v1/jobs/visits:restart", params={"wait": "caught_up", "timeout_ms": 30_000}).raise_for_status()
    wait_until(lambda: api.get("/v1/jobs/visits").json()["caught_up"], "the job has read all again")
    assert (looked_up(api, "a"), looked_up(api, "b")) == ([1], [1])
    assert counts(api) == [*first, ("b", 1), ("a", 1)]
    assert api.get("/v1/jobs/visits/metrics").json()["records_in"] == 2


@pytest.mark.services
def test_a_failed_job_goes_on_from_a_start_behind_its_fault(replicas: Serving) -> None:
    api = replicas.client("writer")
    api.post("/v1/streams", json={"name": "sums", "partitions": 1}).raise_for_status()
    broken = {"op": "map_values", "select": {"v": "(value->>'v')::bigint"}}
    bodies = [{"key": "k", "value": {"v": v}, "timestamp": 1} for v in ("1", "x", "3")]
    api.post("/v1/streams/sums/records", json={"records": bodies}).raise_for_status()
    job = {"name": "sum", "source": "sums", "operators": [broken], "sink": "sum-out", "commit_interval_ms": 0}
    api.post("/v1/jobs", json=job).raise_for_status()
    wait_until(lambda: api.get("/v1/jobs/sum").json()["state"] == "failed", "the job failed")
    reset = api.post("/v1/jobs/sum:reset", json={"start": {"offsets": {"0": 2}}}).raise_for_status().json()
    assert (reset["state"], reset["error"]) == ("stopped", None)
    api.post("/v1/jobs/sum:restart", params={"wait": "caught_up", "timeout_ms": 30_000}).raise_for_status()
    wait_until(lambda: api.get("/v1/jobs/sum").json()["caught_up"], "the job has read what is left")
    found = api.get("/v1/streams/sum-out/records?partition=0&from_offset=0").json()["records"]
    assert [record["value"] for record in found] == [{"v": 1}, {"v": 3}]


@pytest.mark.services
def test_a_job_of_two_sub_topologies_counts_from_nothing_again(replicas: Serving) -> None:
    """What it had sent on to other tasks is gone with their stores: every record counts once."""
    api = replicas.client("writer")
    for name in ("left", "right"):
        api.post("/v1/streams", json={"name": name, "partitions": 2}).raise_for_status()
        bodies = [{"key": f"{name}-{i}", "value": {"u": f"u{i % 3}"}, "timestamp": i} for i in range(30)]
        api.post(f"/v1/streams/{name}/records", json={"records": bodies}).raise_for_status()
    by_user = {"op": "select_key", "key": "value->>'u'"}
    job = {"name": "users", "source": ["left", "right"], "operators": [by_user, COUNT], "commit_interval_ms": 0}

    def counted() -> dict[str, int]:
        wait_until(lambda: api.get("/v1/jobs/users?wait=caught_up").json()["caught_up"], "all is read")
        items = api.get("/v1/stores/users-n/keys").raise_for_status().json()["items"]
        return {item["key"]: item["value"]["n"] for item in items}

    api.post("/v1/jobs", json=job).raise_for_status()
    assert counted() == {"u0": 20, "u1": 20, "u2": 20}
    positions = api.get("/v1/jobs/users").json()["positions"]
    ends = {at["partition"]: at["end"] for at in positions if at["stream"] == "left"}
    api.post("/v1/jobs/users:stop?wait=stopped").raise_for_status()
    start = {"offsets": {"left": {str(partition): end for partition, end in ends.items()}}}
    reset = api.post("/v1/jobs/users:reset", json={"start": start}).raise_for_status().json()
    assert {at["position"] for at in reset["positions"] if at["stream"] not in {"left"}} == {0}
    assert [at["end"] for at in reset["positions"] if at["stream"] == "users-n-repartition"] == [0, 0]
    api.post("/v1/jobs/users:restart").raise_for_status()
    assert counted() == {"u0": 10, "u1": 10, "u2": 10}


AHEAD = 4_000_000


@pytest.mark.services
@pytest.mark.parametrize("where", ["replicas", "views"])
def test_a_record_from_far_ahead_is_undone(where: str, request: pytest.FixtureRequest) -> None:
    """Duplicates are known again, windows begin anew from the time that is set; what was over or final stays so."""
    api = request.getfixturevalue(where).client("admin")
    api.post("/v1/streams", json={"name": "hits", "partitions": 1}).raise_for_status()
    window = {"type": "tumbling", "size_ms": 100, "grace_ms": 0}
    count = {"op": "aggregate", "name": "n", "window": window, "aggregates": COUNT["aggregates"]}
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 50}
    job = {"name": "hit", "source": "hits", "operators": [once, count], "sink": "hit-counts", "commit_interval_ms": 0}
    waits = {"wait": "caught_up", "timeout_ms": 30_000}

    def post(*times: int) -> None:
        bodies = [{"key": "a", "value": {}, "timestamp": time} for time in times]
        api.post("/v1/streams/hits/records", json={"records": bodies}).raise_for_status()
        wait_until(lambda: api.get("/v1/jobs/hit", params=waits).json()["caught_up"], "all is read")

    def put_out() -> list[tuple[int, int]]:
        found = api.get("/v1/streams/hit-counts/records?partition=0&from_offset=0").json()["records"]
        return [(record["window"]["start"], record["value"]["n"]) for record in found]

    def seen() -> list[int]:
        items = api.get("/v1/stores/hit-once/keys/a").raise_for_status().json()["items"]
        return [item["timestamp"] for item in items]

    api.post("/v1/jobs", json=job).raise_for_status()
    post(1_000, 1_001, AHEAD, 1_010)
    assert put_out() == [(1_000, 1), (AHEAD, 1)]
    api.post("/v1/jobs/hit:stop?wait=stopped").raise_for_status()
    asked = {"json": {"stream_time": 1_080}}
    expected = api.post("/v1/jobs/hit:reset-time?dry_run=true", **asked).raise_for_status().json()
    assert expected["tasks"] == [{"task": "0_0", "was": AHEAD}]
    assert {each["operator"]: each["closed_to"] for each in expected["operators"]} == {"once": None, "n": AHEAD}
    assert api.get("/v1/jobs/hit").json()["stream_time"] == AHEAD
    assert api.post("/v1/jobs/hit:reset-time", **asked).raise_for_status().json() == expected
    newest = api.get("/v1/jobs/hit/history").json()["items"][0]
    assert (newest["kind"], newest["details"]) == ("reset_time", {"stream_time": 1_080})
    tag = {"If-Match": api.get("/v1/jobs/hit").headers["ETag"]}
    api.put("/v1/jobs/hit", json={**job, "restart": ["n"]}, headers=tag).raise_for_status()
    api.post("/v1/jobs/hit:restart").raise_for_status()
    post(1_090, 1_095, 1_110, 1_150, 1_170)
    assert put_out() == [(1_000, 1), (AHEAD, 1), (1_100, 1)]
    assert seen() == [1_150]
    dropped = api.get("/v1/jobs/hit/dropped").json()["items"]
    assert {(each["operator"], each["reason"]): each["records"] for each in dropped}["n", "before_version"] == 1


@pytest.mark.services
@pytest.mark.parametrize("where", ["replicas", "views"])
def test_lookups_follow_an_interval_that_changes_while_the_job_runs(where: str, request: pytest.FixtureRequest) -> None:
    """A longer one revives nothing, a shorter one hides at once: on the replica as in the view."""
    api = request.getfixturevalue(where).client("writer")
    api.post("/v1/streams", json={"name": "taps", "partitions": 1}).raise_for_status()
    job = {"name": "tap", "source": "taps", "sink": "tap-out", "commit_interval_ms": 0}

    def once(interval_ms: int) -> list[Json]:
        return [{"op": "deduplicate_by_key", "name": "once", "interval_ms": interval_ms}]

    def is_settled(version: int) -> bool:
        found = api.get("/v1/jobs/tap", params={"wait": "caught_up", "timeout_ms": 30_000}).json()
        return (found["state"], found["spec_version"], found["caught_up"]) == ("running", version, True)

    def seen(version: int, key: str | None = None, time: int = 0) -> list[str]:
        if key is not None:
            body = {"records": [{"key": key, "value": {}, "timestamp": time}]}
            api.post("/v1/streams/taps/records", json=body).raise_for_status()
        wait_until(lambda: is_settled(version), f"version {version} has read all")
        return [item["key"] for item in api.get("/v1/stores/tap-once/keys").raise_for_status().json()["items"]]

    def change(interval_ms: int) -> None:
        tag = {"If-Match": api.get("/v1/jobs/tap").headers["ETag"]}
        api.put("/v1/jobs/tap", json={**job, "operators": once(interval_ms)}, headers=tag).raise_for_status()

    api.post("/v1/jobs", json={**job, "operators": once(50)}).raise_for_status()
    assert seen(1, "a", 1_000) == ["a"]
    assert seen(1, "b", 1_100) == ["b"]
    change(500)
    assert seen(2) == ["b"]
    assert seen(2, "c", 1_300) == ["b", "c"]
    change(150)
    assert seen(3) == ["c"]
    change(500)
    assert seen(4, "d", 1_301) == ["c", "d"]


@pytest.mark.services
def test_a_source_that_is_added_while_the_job_runs_goes_into_the_same_stores(replicas: Serving) -> None:
    api = replicas.client("writer")
    for name in ("doors", "windows"):
        api.post("/v1/streams", json={"name": name, "partitions": 1}).raise_for_status()
        api.post(f"/v1/streams/{name}/records", json=records("a", "b", "a")).raise_for_status()
    job = {"name": "house", "source": "doors", "operators": [COUNT], "sink": "house-out", "commit_interval_ms": 0}

    def counted(version: int) -> dict[str, int]:
        def is_settled() -> bool:
            found = api.get("/v1/jobs/house", params={"wait": "caught_up", "timeout_ms": 30_000}).json()
            return (found["state"], found["spec_version"], found["caught_up"]) == ("running", version, True)

        wait_until(is_settled, f"version {version} has read all")
        items = api.get("/v1/stores/house-n/keys").raise_for_status().json()["items"]
        return {item["key"]: item["value"]["n"] for item in items}

    api.post("/v1/jobs", json=job).raise_for_status()
    assert counted(1) == {"a": 2, "b": 1}
    tag = {"If-Match": api.get("/v1/jobs/house").headers["ETag"]}
    api.put("/v1/jobs/house", json={**job, "source": ["doors", "windows"]}, headers=tag).raise_for_status()
    assert counted(2) == {"a": 4, "b": 2}
    for name in ("doors", "windows"):
        api.post(f"/v1/streams/{name}/records", json=records("b", first=2_000)).raise_for_status()
    assert counted(2) == {"a": 4, "b": 4}
