"""Drives a real service over HTTP in tests: streams, records, jobs, and all that came out.

Everything goes through the public API. What a record should become is `tests/naive.py`'s to say.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from benchmarks.running import NDJSON, PATIENCE_S, Running
from tests import naive

Record = dict[str, Any]
ONCE_AN_HOUR = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 3_600_000}


def body_of(records: Iterable[Record]) -> bytes:
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()


def make_stream(running: Running, name: str, partitions: int) -> None:
    running.call("POST", "/v1/streams", json={"name": name, "partitions": partitions})


def post(running: Running, stream: str, records: Sequence[Record], key: str | None = None) -> dict[str, Any]:
    headers = {"Content-Type": NDJSON} | ({"Idempotency-Key": key} if key else {})
    path = f"/v1/streams/{stream}/records"
    answer: dict[str, Any] = running.call("POST", path, content=body_of(records), headers=headers)
    return answer


def deduplicate(name: str, source: str, sink: str, **more: Any) -> dict[str, Any]:
    """A job that removes what has the key and `id` of another within an hour."""
    return {"name": name, "source": source, "operators": [ONCE_AN_HOUR], "sink": sink} | more


def caught_up(running: Running, job: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """The job, once every position is at its end and its replicas have applied what came of it.

    Raises:
        TimeoutError: it is not in time; the message holds the job as it stands.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        path = f"/v1/jobs/{job}?wait=caught_up&timeout_ms=2000"
        try:
            found: dict[str, Any] = running.call("GET", path)
        except httpx.TransportError:  # it is killed, and starts again
            time.sleep(0.05)
            continue
        if found["state"] == "failed" or (found["state"] == "running" and found["caught_up"]):
            return found
    raise TimeoutError(f"{job} did not catch up: {running.call('GET', f'/v1/jobs/{job}')}")


def some_records(count: int, seed: int = 1) -> list[Record]:
    """Records of which about a third repeat an earlier (key, id), minutes out of order."""
    rng = random.Random(seed)
    return [
        {
            "key": f"user-{rng.randrange(200)}",
            "value": {"id": f"e{rng.randrange(count // 300 + 1)}", "n": number},
            "timestamp": 1_700_000_000_000 + number * 100 + rng.randrange(120_000),
        }
        for number in range(count)
    ]


def in_state(running: Running, job: str, state: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """The job, once it is in `state`."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        found: dict[str, Any] = running.call("GET", f"/v1/jobs/{job}")
        if found["state"] == state:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{job} never became {state}: {found}")


def all_records(running: Running, stream: str, partition: int) -> list[Record]:
    """Every record of one partition, page by page."""
    records: list[Record] = []
    where: dict[str, Any] = {"partition": partition, "from_offset": 0, "limit": 5000}
    while True:
        page = running.call("GET", f"/v1/streams/{stream}/records", params=where)
        records += page["records"]
        if page["at_end"]:
            return records
        where = {"partition": partition, "cursor": page["next"], "limit": 5000}


def expected(records: Iterable[Record], partitions: int, **operator: Any) -> list[list[tuple[Any, ...]]]:
    """What an undisturbed run of one deduplicating operator gives, by the naive twin, as `contents` shows it."""
    identity, interval_ms = naive.identity_of(operator), operator["interval_ms"]
    return [
        [_shown(record) for record in naive.deduplicate(each, identity, interval_ms)]
        for each in naive.partitions_of(records, partitions)
    ]


def _shown(record: Record) -> tuple[Any, ...]:
    return record["key"], json.dumps(record["value"]), record["timestamp"]


def contents(running: Running, stream: str, partitions: int) -> list[list[tuple[Any, ...]]]:
    """(key, value, timestamp) of each record, a list a partition, in order; the offsets must rise."""
    found = []
    for partition in range(partitions):
        records = all_records(running, stream, partition)
        offsets = [record["offset"] for record in records]
        assert offsets == sorted(set(offsets))
        found.append([_shown(record) for record in records])
    return found


def outputs(running: Running, stream: str) -> list[Record]:
    """What is in a stream of one partition, as the conformance cases write it."""
    fields = ("key", "window", "value", "timestamp")
    return [{name: record[name] for name in fields} for record in all_records(running, stream, 0)]
