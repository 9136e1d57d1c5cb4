"""SIGKILL of an instance whose tasks have copies elsewhere: they go on from those, without a restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import func, select

from benchmarks.running import Running, wait_until
from service.catalog.engine import Catalog
from service.catalog.tables import ReplicaRow
from tests.chaos.conftest import Breakable
from tests.driving import (
    ONCE_AN_HOUR,
    caught_up,
    contents,
    deduplicate,
    expected,
    make_stream,
    post,
    some_records,
)
from tests.forkserver import ForkServer
from tests.members import Members

pytestmark = pytest.mark.services

PARTITIONS = 4


@pytest.fixture
def members(breakable_api: Breakable, forks: ForkServer) -> Iterator[Members]:
    made = Members(breakable_api.running, forks)
    with ExitStack() as ends:
        ends.callback(lambda: [made.kill(name) for name in list(made.processes)])
        yield made


def standbys(data_dir: Path) -> int:
    """How many standbys are at the ends of their changelogs, as far as the catalog knows."""
    query = select(func.count()).where(
        ReplicaRow.role == "standby", ReplicaRow.state == "running", ReplicaRow.slot_id.is_not(None)
    )
    with closing(Catalog(f"sqlite:///{data_dir}/catalog.db")) as catalog:
        return int(catalog.read(lambda s: s.scalars(query).one()))


def spread(running: Running, job: str) -> set[int]:
    """How many tasks each instance runs."""
    members = running.call("GET", f"/v1/groups/{job}")["members"]
    names = {member["instance"] for member in members}
    return {sum(len(each["tasks"]) for each in members if each["instance"] == name) for name in names}


def test_tasks_go_on_from_their_standbys_and_so_do_lookups(members: Members) -> None:
    """The node of the killed instance is out of reach: nothing that lies there is of use."""
    running, records = members.running, some_records(12_000)
    make_stream(running, "clicks", PARTITIONS)
    for name in ("a", "b"):
        members.start(name, node=name)
    running.call("POST", "/v1/jobs", json=deduplicate("once", "clicks", "clicks-once", standby_replicas=1))
    post(running, "clicks", records[:8_000])
    caught_up(running, "once")
    wait_until(lambda: spread(running, "once") == {2}, "an even share")
    wait_until(lambda: standbys(running.data_dir) == PARTITIONS, "all standbys")
    before = len(members.opened("b"))
    owner = running.call("GET", "/v1/stores/once-once/owner", params={"key": "user-1"})
    assert {owner["active"]["name"], *(each["name"] for each in owner["standbys"])} == {"a", "b"}
    post(running, "clicks", records[8_000:10_000])
    members.kill("a")
    (members.folder / "a").rename(running.data_dir / "out-of-reach")
    post(running, "clicks", records[10_000:])
    served = set()
    for number in range(40):
        found = running.call("GET", f"/v1/stores/once-once/keys/user-{number}", params={"max_lag_records": 12_000})
        served.add(found["as_of"]["served_by"])
    assert served <= {"b", "b (standby)"}
    assert "b (standby)" in served
    caught_up(running, "once")
    assert contents(running, "clicks-once", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)
    taken = members.opened("b")[before:]
    assert len(taken) == 2
    assert sum(each["changes_to_replay"] for each in taken) <= 2_000  # of some 5,000 in their changelogs


def test_an_instance_on_the_same_node_goes_on_with_what_lies_there(members: Members) -> None:
    running, records = members.running, some_records(6_000)
    make_stream(running, "clicks", PARTITIONS)
    for name in ("c", "d"):
        members.start(name, node="shared")
    running.call("POST", "/v1/jobs", json=deduplicate("once", "clicks", "clicks-once"))
    post(running, "clicks", records[:5_000])
    caught_up(running, "once")
    wait_until(lambda: spread(running, "once") == {2}, "an even share")
    caught_up(running, "once")
    before = len(members.opened("d"))
    members.kill("c")
    post(running, "clicks", records[5_000:])
    caught_up(running, "once")
    assert contents(running, "clicks-once", PARTITIONS) == expected(records, PARTITIONS, **ONCE_AN_HOUR)
    assert [each["changes_to_replay"] for each in members.opened("d")[before:]] == [0, 0]
