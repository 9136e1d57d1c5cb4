"""SIGKILL around a change of version: made once or not at all, and what was kept before counts by the new version."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import httpx
import pytest

from benchmarks.running import Running, wait_until
from tests.chaos.conftest import Breakable
from tests.driving import all_records, caught_up, make_stream, post

pytestmark = pytest.mark.services

SPREAD = {"op": "select_key", "key": "value->>'user'"}
GATE = {"op": "filter", "where": "value->>'user' <> 'k0'"}
HOUR, COUNT = 3_600_000, 50
JOB = {"name": "job", "source": "in", "sink": "out", "commit_interval_ms": 0}


def once(hours: int) -> dict[str, Any]:
    return {"op": "deduplicate_by_key", "name": "once", "interval_ms": hours * HOUR}


def change(running: Running, *before: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Have the job remember for ten hours instead of one, behind these operators, unless it does already."""
    tag = running.client.get("/v1/jobs/job").raise_for_status().headers["ETag"]
    body = {**JOB, "operators": [*before, once(10)], **more}
    try:
        found: dict[str, Any] = running.call("PUT", "/v1/jobs/job", json=body, headers={"If-Match": tag})
    except httpx.HTTPStatusError as refused:
        if refused.response.status_code != 412:  # it was changed since it was read: it may have become the version
            raise
        return change(running, *before, **more)
    return found


def post_at(running: Running, hours: float) -> None:
    """A record of each key at this time, and one of another key there."""
    at = round(hours * HOUR)
    keys = [*(f"k{i}" for i in range(COUNT)), f"at {hours}"]
    post(running, "in", [{"key": key, "value": {"user": key}, "timestamp": at} for key in keys])


@pytest.mark.parametrize(
    "point",
    ["change.before", "change.after", "commit.before", "commit.after", "segment.after_write", "replay.middle"],
)
def test_a_kill_around_a_change_neither_loses_it_nor_makes_it_twice(breakable: Breakable, point: str) -> None:
    running = breakable.running
    make_stream(running, "in", 1)
    running.call("POST", "/v1/jobs", json={**JOB, "operators": [once(1)]})
    post_at(running, 0)
    caught_up(running, "job")
    breakable.arm(point, 0)
    with suppress(httpx.TransportError):
        change(running)
    breakable.wait_for_fault(point)
    if point.startswith(("change", "commit")):
        breakable.restart_when_dead()
    assert change(running)["spec_version"] == 2
    caught_up(running, "job")
    versions = running.call("GET", "/v1/jobs/job/versions")["items"]
    assert [version["version"] for version in versions] == [2, 1]
    post_at(running, 5)  # longer ago than an hour, within ten
    post_at(running, 16)
    caught_up(running, "job")
    keys = [record["key"] for record in all_records(running, "out", 0)]
    each = [f"k{i}" for i in range(COUNT)]
    assert keys == [*each, "at 0", "at 5", *each, "at 16"]


@pytest.mark.parametrize("point", ["change.before", "segment.after_write"])
def test_a_kill_around_a_change_in_front_of_a_repartition_leaves_nothing_on_its_way(
    breakable: Breakable, point: str
) -> None:
    """What was there when it was asked for is read by the version before, in both sub-topologies; then it is made."""
    running = breakable.running
    make_stream(running, "in", 2)
    running.call("POST", "/v1/jobs", json={**JOB, "operators": [SPREAD, once(1)]})
    caught_up(running, "job")
    post_at(running, 0)
    breakable.arm(point, 0)
    with suppress(httpx.TransportError):
        change(running, GATE, SPREAD)
    breakable.wait_for_fault(point)
    if point.startswith(("change", "commit")):
        breakable.restart_when_dead()
    wait_until(lambda: _is_changed(running, GATE, SPREAD), "the change to be made")
    versions = running.call("GET", "/v1/jobs/job/versions")["items"]
    assert [version["version"] for version in versions] == [2, 1]
    post_at(running, 5)
    post_at(running, 16)
    caught_up(running, "job")
    keys = Counter(record["key"] for partition in (0, 1) for record in all_records(running, "out", partition))
    once_each = {"k0": 1, "at 0": 1, "at 5": 1, "at 16": 1}
    assert keys == {**{f"k{i}": 2 for i in range(1, COUNT)}, **once_each}


@pytest.mark.parametrize("point", ["change.before", "change.after", "commit.before", "segment.after_write"])
def test_a_kill_around_a_change_of_tasks_leaves_those_of_one_version(breakable: Breakable, point: str) -> None:
    """A store moves behind a repartition: what was there is in the former one, what comes then in the other."""
    running = breakable.running
    make_stream(running, "in", 2)
    running.call("POST", "/v1/jobs", json={**JOB, "operators": [once(1)]})
    caught_up(running, "job")
    post_at(running, 0)
    breakable.arm(point, 0)
    anew = {"restart": ["once"]}
    with suppress(httpx.TransportError):
        change(running, SPREAD, **anew)
    breakable.wait_for_fault(point)
    if point.startswith(("change", "commit")):
        breakable.restart_when_dead()
    wait_until(lambda: _is_changed(running, SPREAD, **anew), "the change to be made")
    versions = running.call("GET", "/v1/jobs/job/versions")["items"]
    assert [version["version"] for version in versions] == [2, 1]
    post_at(running, 5)  # a new store: each once more
    post_at(running, 14)  # within ten hours of that
    caught_up(running, "job")
    assert {task["task"] for task in running.call("GET", "/v1/jobs/job/tasks")["items"]} == {"0_0", "0_1", "1_0", "1_1"}
    keys = Counter(record["key"] for partition in (0, 1) for record in all_records(running, "out", partition))
    assert keys == {**{f"k{i}": 2 for i in range(COUNT)}, "at 0": 1, "at 5": 1, "at 14": 1}


def _is_changed(running: Running, *before: dict[str, Any], **more: Any) -> bool:
    """Whether it is the next version; asks for that where the kill came before the change was taken."""
    found = running.call("GET", "/v1/jobs/job")
    if found["spec_version"] == 1 and found["state"] != "changing":
        found = change(running, *before, **more)
    return bool(found["spec_version"] == 2)
