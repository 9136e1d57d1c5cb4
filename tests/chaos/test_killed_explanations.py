"""SIGKILL between the order of a task's inputs being recorded and its commit: an explanation is as if nothing had been.

The second stream wakes late, so the commit that is killed begins before where the one before it ended: a place in the
order is part of it (ADR 34). One that was lost, or is there twice, would have the record repeat nobody.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.running import Running
from tests.chaos.conftest import Breakable
from tests.driving import all_records, caught_up, make_stream, post

pytestmark = pytest.mark.services

ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 1_000}
FIRST, SECOND = "killed-why-one", "killed-why-two"
Said = tuple[str, str | None, int | None]  # verdict, whose repetition (stream/offset), by how many ms


@pytest.mark.parametrize(
    ("point", "passes", "ends_service"),
    [
        pytest.param("segment.after_write", 1, False, id="the slot, before it asks for the commit"),
        pytest.param("order.noted", 0, True, id="the service, between the order and the commit"),
        pytest.param("commit.after", 0, True, id="the service, before it says that it is committed"),
    ],
)
def test_explanations_around_a_kill_name_who_was_taken_before(
    breakable: Breakable, point: str, passes: int, ends_service: bool
) -> None:
    running = breakable.running
    for name in (FIRST, SECOND):
        make_stream(running, name, 1)
    job = {"name": "killed_why", "source": [FIRST, SECOND], "sink": "killed-why-out", "operators": [ONCE]}
    running.call("POST", "/v1/jobs", json=job | {"commit_interval_ms": 0})
    give(running, FIRST, ("x", 1_500), ("y", 1_600))
    caught_up(running, "killed_why")

    breakable.arm(point, passes)  # segment.after_write: the service writes what is posted, then the slot what comes out
    give(running, SECOND, ("x", 1_100), ("z", 1_550))
    breakable.wait_for_fault(point)
    if ends_service:
        breakable.restart_when_dead()
    caught_up(running, "killed_why")
    give(running, FIRST, ("z", 1_580))
    caught_up(running, "killed_why")
    give(running, SECOND, ("y", 1_590))
    caught_up(running, "killed_why")

    assert [record["value"]["id"] for record in all_records(running, "killed-why-out", 0)] == ["x", "y", "z"]
    assert [said(running, FIRST, offset) for offset in range(3)] == [
        ("in", None, None),
        ("in", None, None),
        ("out", f"{SECOND}/1", 970),
    ]
    assert [said(running, SECOND, offset) for offset in range(3)] == [
        ("out", f"{FIRST}/0", 600),
        ("in", None, None),
        ("out", f"{FIRST}/1", 990),
    ]


def give(running: Running, stream: str, *records: tuple[str, int]) -> None:
    """Ids and timestamps, of one key."""
    post(running, stream, [{"key": "a", "value": {"id": each}, "timestamp": at} for each, at in records])


def said(running: Running, stream: str, offset: int) -> Said:
    asked = {"stream": stream, "partition": 0, "offset": offset}
    found: dict[str, Any] = running.call("GET", "/v1/jobs/killed_why:explain", params=asked)
    cause = found["cause"] if found["verdict"] == "out" else None
    return found["verdict"], cause and f"{cause['stream']}/{cause['offset']}", found["by_ms"] if cause else None
