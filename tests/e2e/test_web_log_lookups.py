"""The 9,999 real web requests as sessions: every key has what the naive twin has, on disk and in Redis."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.running import Running
from tests import naive
from tests.driving import Record, caught_up, make_stream, post

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
LOG = Path(os.environ.get("MILLRACE_ACCESS_LOG", ROOT.parent / "shared" / "data" / "access-log.ndjson.gz"))
MINUTE_MS, YEAR_MS = 60_000, 366 * 24 * 3_600_000
PARTITIONS = 4
BYTES = "(value->>'bytes')::bigint"
SESSIONS = {"type": "session", "gap_ms": 30 * MINUTE_MS, "grace_ms": MINUTE_MS, "retention_ms": YEAR_MS}
VISITS = {
    "op": "aggregate",
    "name": "visits",
    "window": SESSIONS,
    "aggregates": {"n": {"fn": "count"}, "bytes": {"fn": "sum", "of": BYTES}},
}


def stored(updates: list[Record]) -> dict[str, list[Record]]:
    """What a table holds after its updates: key → sessions in order."""
    table: dict[tuple[Any, ...], Record] = {}
    for update in updates:
        identity = (update["key"], update["window"]["end"], update["window"]["start"])
        if update["value"] is None:
            table.pop(identity, None)
        else:
            table[identity] = update
    found: dict[str, list[Record]] = {}
    for (key, _, _), update in sorted(table.items()):
        found.setdefault(key, []).append({name: update[name] for name in ("key", "window", "value", "timestamp")})
    return found


@pytest.mark.parametrize("where", ["disk", "redis"])
def test_every_key_has_the_sessions_of_the_naive_twin(
    tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    with gzip.open(LOG, "rt") as lines:
        requests = [json.loads(line) for line in lines]
    naive.EXPRESSIONS.setdefault(BYTES, naive.field_integer("bytes"))
    expected: dict[str, list[Record]] = {}
    for partition in naive.partitions_of(requests, PARTITIONS):
        expected |= stored(naive.run([VISITS], partition))
    environment = {"MILLRACE_REDIS_URL": request.getfixturevalue("redis_server")} if where == "redis" else {}
    with Running(tmp_path / "data", environment=environment) as running:
        make_stream(running, "requests", PARTITIONS)
        running.call(
            "POST",
            "/v1/jobs",
            json={"name": "log", "source": "requests", "operators": [VISITS], "max_batch_records": 999},
        )
        position = post(running, "requests", requests)["position"]
        assert caught_up(running, "log")["state"] == "running"
        whole = running.call("GET", "/v1/stores/log-visits/sessions", params={"min_position": position, "limit": 1})
        assert whole["as_of"]["served_by"] == ("redis" if where == "redis" else "embedded-0")
        found = {key: running.call("GET", "/v1/stores/log-visits/sessions", params={"key": key}) for key in expected}
        every = running.client.get("/v1/stores/log-visits/sessions", headers={"Accept": "application/x-ndjson"})
    shown = {key: [_plain(item) for item in page["items"]] for key, page in found.items()}
    assert shown == expected
    assert all(page["next"] is None for page in found.values())
    lines = [_plain(json.loads(line)) for line in every.text.splitlines()]
    assert lines == [session for key in sorted(expected, key=str.encode) for session in expected[key]]


def _plain(item: Record) -> Record:
    return {name: item[name] for name in ("key", "window", "value", "timestamp")}
