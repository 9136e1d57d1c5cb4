"""The 9,999 real web requests as sessions, by jobs: every update, every final and every lookup is the naive
twin's; looked up in Redis, which forgets all in the middle of the run, and then in the replicas on disk.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pytest
import redis

from benchmarks.running import ARROW, NDJSON, Running, wait_until
from tests import naive, services, web_log
from tests.driving import Record, all_records, caught_up, make_stream, post
from tests.forkserver import ForkServer
from tests.sparkless import SparklessRunning

pytestmark = pytest.mark.services

MINUTE_MS, YEAR_MS = 60_000, 366 * 24 * 3_600_000
GAP_MS, GRACE_MS = 30 * MINUTE_MS, MINUTE_MS
PARTITIONS = 4
BYTES = "(value->>'bytes')::bigint"
VISITS = {
    "op": "aggregate",
    "name": "visits",
    "window": {"type": "session", "gap_ms": GAP_MS, "grace_ms": GRACE_MS, "retention_ms": YEAR_MS},
    "aggregates": {"n": {"fn": "count"}, "bytes": {"fn": "sum", "of": BYTES}},
}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}}
JOBS = [
    {"name": "log", "source": "requests", "operators": [VISITS], "sink": "updates", "max_batch_records": 137},
    {"name": "closed", "source": "requests", "operators": [VISITS, FINAL], "sink": "finals", "max_batch_records": 999},
]
STORE = "/v1/stores/log-visits/sessions"


class World:
    """What came out of a run, and what the naive twin says, by partition."""

    def __init__(self, data_dir: Path, running: Running, redis_url: str, requests: list[Record]) -> None:
        naive.EXPRESSIONS.setdefault(BYTES, naive.field_integer("bytes"))
        self.data_dir, self.redis_url = data_dir, redis_url
        partitions = naive.partitions_of(requests, PARTITIONS)
        self.updates = [naive.run([VISITS], partition) for partition in partitions]
        self.finals = [naive.run([VISITS, FINAL], partition) for partition in partitions]
        self.stored: dict[str, list[Record]] = {}
        for partition, updates in zip(partitions, self.updates, strict=True):
            self.stored |= stored(updates, max(record["timestamp"] for record in partition))
        self.run(running, requests)

    def run(self, running: Running, requests: list[Record]) -> None:
        """Both jobs over all requests; Redis loses everything between the two halves."""
        make_stream(running, "requests", PARTITIONS)
        for job in JOBS:
            running.call("POST", "/v1/jobs", json=job)
        with redis.Redis.from_url(self.redis_url) as client:
            post(running, "requests", requests[:5_000])
            wait_until(lambda: client.dbsize() > 0, "a view")
            client.flushall()
            self.position = post(running, "requests", requests[5_000:])["position"]
        for job in JOBS:
            assert caught_up(running, job["name"])["state"] == "running"
        self.came_out = {sink: self.contents(running, sink) for sink in ("updates", "finals")}
        self.in_redis = self.lookups(running)

    def contents(self, running: Running, stream: str) -> list[list[Record]]:
        return [[plain(record) for record in all_records(running, stream, p)] for p in range(PARTITIONS)]

    def lookups(self, running: Running) -> dict[str, Any]:
        """Every key alone, and all of the store in each way."""
        fresh = {"min_position": self.position, "timeout_ms": 60_000, "limit": 1}
        first = running.call("GET", STORE, params=fresh)
        return {
            "served_by": first["as_of"]["served_by"],
            "lag_records": first["as_of"]["lag_records"],
            "by key": dict(self.by_key(running)),
            "lines": [json.loads(line) for line in running.client.get(STORE, headers={"Accept": NDJSON}).iter_lines()],
            "arrow": pa.ipc.open_stream(running.client.get(STORE, headers={"Accept": ARROW}).content).read_all(),
        }

    def by_key(self, running: Running) -> Iterator[tuple[str, list[Record]]]:
        """Over one bare connection: thousands of lookups are to take a second."""
        headers = {"Authorization": running.client.headers["Authorization"]}
        with closing(http.client.HTTPConnection(urlsplit(running.url).netloc, timeout=30)) as connection:
            for key in [*self.stored, "nobody"]:
                connection.request("GET", f"{STORE}/{quote(key, safe='')}", headers=headers)
                found = json.loads(connection.getresponse().read())
                assert found["next"] is None
                yield key, found["items"]


def stored(updates: list[Record], stream_time: int) -> dict[str, list[Record]]:
    """What a table holds after its updates, as lookups show it: key → sessions in order."""
    table: dict[tuple[Any, ...], Record] = {}
    for update in updates:
        identity = (update["key"], update["window"]["end"], update["window"]["start"])
        if update["value"] is None:
            table.pop(identity, None)
        else:
            table[identity] = update
    found: dict[str, list[Record]] = {}
    for (key, end, _), update in sorted(table.items()):
        closes_at = end + GAP_MS + GRACE_MS
        more = {"closes_at": closes_at, "is_final": stream_time > closes_at}
        found.setdefault(key, []).append(plain(update) | more)
    return found


def plain(record: Record) -> Record:
    return {name: record[name] for name in ("key", "window", "value", "timestamp")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[World]:
    requests = web_log.requests()
    data_dir = tmp_path_factory.mktemp("web-log") / "data"
    with services.redis_server() as url:  # one of its own: it is to forget everything
        with SparklessRunning(data_dir, forks, {"MILLRACE_REDIS_URL": url}) as running:
            made = World(data_dir, running, url, requests)
        yield made


def test_every_update_of_every_session_is_the_naive_twins(world: World) -> None:
    assert world.came_out["updates"] == [[plain(update) for update in updates] for updates in world.updates]
    assert sum(map(len, world.updates)) > 9_999


def test_every_final_is_the_naive_twins_and_the_last_word_on_its_session(world: World) -> None:
    assert world.came_out["finals"] == [[plain(final) for final in finals] for finals in world.finals]
    closed = [session for sessions in world.stored.values() for session in sessions if session["is_final"]]
    finals = [final for finals in world.came_out["finals"] for final in finals]
    order: Callable[[Record], Any] = lambda one: (one["key"], one["window"]["start"])  # noqa: E731
    assert sorted(finals, key=order) == sorted((plain(session) for session in closed), key=order)


def test_every_key_is_found_in_redis_though_it_lost_everything_in_the_middle(world: World) -> None:
    assert world.in_redis["served_by"] == "redis"
    is_all_there(world.in_redis, world.stored)


def test_every_key_is_found_in_the_replicas_on_disk(world: World, forks: ForkServer) -> None:
    with Running(world.data_dir, instances=0, popen=forks.popen) as running:
        on_disk = world.lookups(running)
    assert on_disk["served_by"] != "redis"
    is_all_there(on_disk, world.stored)


def is_all_there(found: dict[str, Any], expected: dict[str, list[Record]]) -> None:
    assert found["lag_records"] == 0
    assert found["by key"] == {**expected, "nobody": []}
    in_order = [session for key in sorted(expected, key=str.encode) for session in expected[key]]
    assert found["lines"] == in_order
    assert [as_line(row) for row in found["arrow"].to_pylist()] == in_order


def as_line(row: Record) -> Record:
    """A row of an Arrow export as a line of JSON."""
    window = {"start": row["window_start"], "end": row["window_end"]}
    rest = {name: row[name] for name in ("timestamp", "closes_at", "is_final")}
    return {"key": row["key"].decode(), "window": window, "value": json.loads(row["value"]), **rest}
