"""Two API processes of one catalog, killed, restarted or stopped (SIGSTOP) under load: their members go over, and
no task is lost to anybody.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from benchmarks.beats import Beats
from benchmarks.running import Running, wait_until
from service.catalog.engine import Catalog, now_ms
from service.catalog.tables import InstanceRow, SlotRow
from tests import sparkless
from tests.driving import ONCE_AN_HOUR, caught_up, contents, deduplicate, expected, make_stream
from tests.forkserver import ForkServer

PARTITIONS = 4
LEASE_MS = 5_000
GONE_OVER_S = 12.0  # a half of a lease, what a stopped transaction may hold, and a rebalance; on a machine that is busy
START_MS = 1_700_000_000_000
EVERY_S = 0.2  # a beat: what costs are commits
ENVIRONMENT = {"MILLRACE_LEASE_MS": str(LEASE_MS), "MILLRACE_API_KEY": "the-same-for-both-processes"}


@pytest.fixture
def apis(tmp_path: Path, postgres_url: str, forks: ForkServer) -> Iterator[list[Running]]:
    shared = {"MILLRACE_DATABASE_URL": postgres_url, "MILLRACE_STORAGE_URI": str(tmp_path / "storage")}
    with ExitStack() as opened:
        how: dict[str, Any] = {"instances": 0, "environment": ENVIRONMENT | shared, "popen": forks.popen}
        yield [opened.enter_context(Running(tmp_path / name, **how)) for name in ("one", "two")]


def start_again(api: Running) -> None:
    """Under the address that members know."""
    api.start(port=int(api.url.rpartition(":")[2]))


def group_of(api: Running) -> dict[str, Any]:
    """Who is there, who owns what under which epoch, and how often that was decided."""
    tasks = api.call("GET", "/v1/jobs/once/tasks")["items"]
    instances = api.call("GET", "/v1/instances")["items"]
    return {
        "tasks": {each["task"]: (each["slot"], each["epoch"]) for each in tasks},
        "instances": {each["name"]: (each["state"], each["incarnation"], len(each["slots"])) for each in instances},
        "rebalances": len(api.call("GET", "/v1/groups/once/rebalances")["items"]),
    }


class Load:
    """Beats through the API processes, one after the other."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._hours = count()

    @contextmanager
    def through(self, api: Running) -> Iterator[Beats]:
        """Through one of them; at the end all has come out."""
        start_ms = START_MS + next(self._hours) * 3_600_000
        where = {"partitions": PARTITIONS, "start_ms": start_ms, "every_s": EVERY_S}
        with Beats(api, "clicks", "once-out", **where) as beats:
            yield beats
        self.records += beats.records


def wait_for_commits(beats: Beats, since_s: float) -> None:
    """Until each task has committed a record that was posted since then."""
    of = {"posted_after_s": since_s, "read_after_s": since_s}
    are_there = lambda: None not in [beats.first_result_s(partition, **of) for partition in range(PARTITIONS)]  # noqa: E731
    wait_until(are_there, "a commit of each task")


def has_lease_run_out(catalog: Catalog) -> bool:
    """Whether that of a member has."""
    ends = [select(func.min(row.lease_until_ms)) for row in (InstanceRow, SlotRow)]
    return catalog.read(lambda s: min(s.scalars(end).one() for end in ends) < now_ms(s))


def is_shared(api: Running) -> bool:
    """Whether both members have half of the tasks, and nothing is on its way."""
    group = api.call("GET", "/v1/groups/once")
    loads = sorted(len(member["tasks"]) for member in group["members"])
    return loads == [1] * PARTITIONS and not (group["moving"] or group["probing"])


@contextmanager
def two_members(apis: list[Running], folder: Path, forks: ForkServer) -> Iterator[None]:
    """Who know both processes and ask the first, with a job whose tasks they share."""
    one, two = apis
    make_stream(one, "clicks", PARTITIONS)
    with ExitStack() as ends:
        (folder / "nodes").mkdir()
        for name in ("here", "there"):
            key = one.call("POST", "/v1/tokens", json={"role": "instance", "name": name})["key"]
            process = sparkless.start(forks, f"{one.url},{two.url}", key, folder / "nodes" / name, name)
            ends.callback(process.wait, 30)
            ends.callback(process.kill)
        wait_until(lambda: len(one.call("GET", "/v1/instances")["items"]) == 2, "both members")
        one.call("POST", "/v1/jobs", json=deduplicate("once", "clicks", "once-out"))
        wait_until(lambda: is_shared(one), "a task for each slot")
        yield


def test_members_go_from_one_process_to_the_other_and_no_task_moves(
    apis: list[Running], tmp_path: Path, postgres_url: str, forks: ForkServer
) -> None:
    (one, two), load = apis, Load()
    with two_members(apis, tmp_path, forks):
        before = group_of(one)

        with load.through(two) as beats:  # killed
            beats.wait_for_results(2)
            one.kill()
            wait_for_commits(beats, time.time())
        assert group_of(two) == before
        start_again(one)

        with load.through(one) as beats:  # restarted
            beats.wait_for_results(2)
            two.stop()
            wait_for_commits(beats, time.time())
            start_again(two)
        assert group_of(two) == before

        for each in apis:  # both away, until leases have run out
            each.kill()
        with closing(Catalog(postgres_url)) as catalog:
            wait_until(lambda: has_lease_run_out(catalog), "the end of a lease")
        start_again(two)
        with load.through(two) as beats:
            wait_for_commits(beats, time.time())
        caught_up(two, "once")
        assert group_of(two) == before
        right = expected(load.records, PARTITIONS, **ONCE_AN_HOUR)
        assert contents(two, "once-out", PARTITIONS) == right


def test_members_leave_a_process_that_hangs_and_it_harms_nobody_when_it_goes_on(
    apis: list[Running], tmp_path: Path, forks: ForkServer
) -> None:
    """It accepts connections, and answers none: what it was asked lies in its sockets until it goes on."""
    (one, two), load = apis, Load()
    with two_members(apis, tmp_path, forks):
        with load.through(two) as beats:
            beats.wait_for_results(2)
            since_s = time.time()
            os.kill(one.process.pid, signal.SIGSTOP)
            try:
                wait_for_commits(beats, since_s)
                took_s = time.time() - since_s
                wait_until(lambda: is_shared(two), "a task for each slot")
                until_s = time.time() + LEASE_MS / 1000  # whatever it knows of leases is over by then
                while time.time() < until_s:
                    wait_for_commits(beats, time.time())
                meanwhile = group_of(two)
            finally:
                os.kill(one.process.pid, signal.SIGCONT)
            one.call("GET", "/healthz")
            wait_for_commits(beats, time.time())
        with load.through(one) as beats:  # which looks at leases again, and is asked
            wait_for_commits(beats, time.time())
        caught_up(one, "once")
        assert group_of(one) == group_of(two) == meanwhile
        right = expected(load.records, PARTITIONS, **ONCE_AN_HOUR)
        assert contents(two, "once-out", PARTITIONS) == right
    assert took_s < GONE_OVER_S, took_s
