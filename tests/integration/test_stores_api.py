"""Lookups over HTTP, from replicas on disk and from Redis: contract.md's section, line by line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

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
        found: Json = self.call("GET", f"/v1/stores/{path}", params=params)
        return found

    def refused(self, status: int, path: str, **params: Any) -> Json:
        answer = self.http.get(f"/v1/stores/{path}", params=params)
        assert answer.status_code == status, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        return dict(answer.json())


@pytest.fixture(scope="module", params=["lmdb", pytest.param("redis", marks=pytest.mark.services)])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path
) -> Iterator[World]:
    """What all tests here look into: nobody takes away what others rely on."""
    folder = tmp_path_factory.mktemp(f"stores-{request.param}")
    shutil.copy(migrated_sqlite, folder / "catalog.db")
    redis_url = request.getfixturevalue("redis_server") if request.param == "redis" else None
    with serving(folder, f"sqlite:///{folder}/catalog.db", redis_url=redis_url) as service:
        made = World(service, folder)
        with instance(service, folder / "replicas"):
            yield made


@pytest.fixture(scope="module")
def visits(world: World) -> World:
    """Sessions of u1 [1000, 1800] and [5000, 5000], of u2 [1500, 1500], of a/b [5100, 5100]."""
    position = world.post(("u1", 1_000, 5), ("u2", 1_500, 1), ("u1", 1_800, 7), ("u1", 5_000, 2), ("a/b", 5_100, 4))
    for name in ("visits-s/sessions", "minutes-w/windows", "totals-k/keys", "once-d/keys"):
        world.look(name, min_position=position, timeout_ms=60_000)
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
