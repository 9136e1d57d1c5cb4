"""Cores shared between jobs: who hears of which share, how slots beyond it leave, who lacks a core."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from service import coordinator
from service.api.job_views import find_job_view
from service.catalog import groups
from service.catalog.engine import JOBS, Catalog
from service.catalog.streams import get_stream
from service.catalog.tables import JobRow
from service.catalog.totals import instances_standing
from tests.grouping import LEASE_MS, PlayedGroup
from tests.integration.catalog.world import (
    SlotDouble,
    expire_instance,
    expire_slot,
    join,
    make_job,
    make_stream,
    owners,
    post,
    slot,
    tick,
)

COUNTED = {"master": "spark://m:7077"}
LOCAL = {"master": "local[1024,1000000]"}
TIMEOUT_MS, DELAY_MS = 60_000, 60_000


@pytest.fixture
def job(catalog: Catalog) -> JobRow:
    make_stream(catalog)
    tick(catalog)
    return make_job(catalog)


def beat(catalog: Catalog, instance: str, **how: Any) -> dict[str, int]:
    """What an instance hears that it should run."""
    delays = {"scale_down_timeout_ms": TIMEOUT_MS, "initial_delay_ms": DELAY_MS}
    arguments = {"incarnation": "first", **delays, **how}
    answer = coordinator.heartbeat(catalog, instance, **arguments)
    return {job.name: job.slots for job in answer.jobs}


def start(catalog: Catalog, instance: str, job: JobRow, slots: int) -> list[SlotDouble]:
    """The slots of a share join; all polls that it takes until each has its tasks."""
    found = [slot(catalog, instance, job, index) for index in range(slots)]
    poll(*found)
    return found


def poll(*slots: SlotDouble) -> None:
    for _ in range(2):
        for each in slots:
            each.poll()


def directive(each: SlotDouble) -> str:
    return each.poll().answer.directive


def shortage(catalog: Catalog, job: str) -> str | None:
    found: str | None = catalog.read(find_job_view, job)["shortage"]
    return found


# ---------------------------------------------------------------- shares


def test_each_job_hears_of_one_slot_before_any_of_a_second(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog, cores=3, spark=COUNTED)
    assert beat(catalog, instance) == {"visits": 3}
    make_job(catalog, "second")
    assert beat(catalog, instance) == {"visits": 2, "second": 1}
    make_job(catalog, "third")
    assert beat(catalog, instance) == {"visits": 1, "second": 1, "third": 1}
    catalog.write(coordinator.change_job, "second", "stop")
    assert beat(catalog, instance) == {"visits": 2, "third": 1}


def test_slots_of_local_instances_cost_no_core(catalog: Catalog, job: JobRow) -> None:
    for name in ("second", "third"):
        make_job(catalog, name)
    assert beat(catalog, join(catalog, cores=2, spark=LOCAL)) == {"visits": 2, "second": 2, "third": 2}


def test_local_instances_have_threads_for_so_many(catalog: Catalog, job: JobRow) -> None:
    make_job(catalog, "second")
    assert beat(catalog, join(catalog, cores=4, spark={"master": "local[6,1]"})) == {"visits": 3, "second": 3}


def test_instances_do_not_hold_more_slots_than_a_job_has_tasks(catalog: Catalog, job: JobRow) -> None:
    instances = [join(catalog, name) for name in ("one", "two", "three")]
    shares = [beat(catalog, each) for each in instances]
    assert sorted(share["visits"] for share in shares) == [1, 1, 2]


def test_standbys_have_slots_though_there_are_fewer_tasks(catalog: Catalog) -> None:
    make_stream(catalog, partitions=1)
    make_job(catalog, standby_replicas=1)
    instances = [join(catalog, name) for name in ("one", "two", "three")]
    assert sum(beat(catalog, each).get("visits", 0) for each in instances) == 2


def test_who_answers_next_knows_of_an_instance_that_was_lost(catalog: Catalog, job: JobRow) -> None:
    one, two = join(catalog, "one"), join(catalog, "two")
    assert [beat(catalog, one), beat(catalog, two)] == [{"visits": 2}, {"visits": 2}]
    woken: list[str] = []
    catalog.on_wake(woken.extend)
    expire_instance(catalog, two)
    tick(catalog)
    assert JOBS in woken
    assert beat(catalog, one) == {"visits": 4}


def test_nothing_is_written_where_cores_are_shared(
    catalog: Catalog, job: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = join(catalog)
    before = beat(catalog, instance)
    monkeypatch.setattr(Catalog, "write", lambda *_, **__: pytest.fail("a write"))
    assert beat(catalog, instance) == before


def test_a_job_that_is_restarted_is_where_it_was(catalog: Catalog) -> None:
    make_stream(catalog, partitions=1)
    one, two = join(catalog, "one"), join(catalog, "two")
    make_job(catalog, "other")
    make_job(catalog)
    assert [beat(catalog, one), beat(catalog, two)] == [{"other": 1}, {"visits": 1}]
    for verb in ("stop", "restart"):
        for name in ("other", "visits"):
            catalog.write(coordinator.change_job, name, verb)
            tick(catalog)
        beat(catalog, one)
    assert [beat(catalog, one), beat(catalog, two)] == [{"other": 1}, {"visits": 1}]


# ---------------------------------------------------------------- slots beyond their share


def test_a_slot_gives_its_core_up_warm_when_a_job_comes(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog, cores=2, spark=COUNTED)
    assert beat(catalog, instance) == {"visits": 2}
    first, second = start(catalog, instance, job, 2)
    before = {task.name: task.epoch for task in (*first.tasks(), *second.tasks())}
    stays = set(first.names())
    comer = make_job(catalog, "comer")
    assert beat(catalog, instance) == {"visits": 1, "comer": 1}
    assert set(owners(catalog, job).values()) == {first.id, second.id}  # nobody stops in the round that decides
    post(catalog, catalog.read(get_stream, "clicks"), dict.fromkeys(range(4), 5))
    assert first.run() == 10
    assert second.run() == 0  # its poll hands over
    assert directive(second) == "leave"
    assert first.run() == 10
    after = {task.name: task.epoch for task in first.tasks()}
    assert {name for name in before if after[name] == before[name]} == stays
    second.leave()
    assert len(slot(catalog, instance, comer).names()) == 4
    assert directive(first) == "run"


def test_slots_beyond_their_share_keep_their_tasks_until_those_elsewhere_have_joined(
    catalog: Catalog, job: JobRow
) -> None:
    one = join(catalog, "one")
    assert beat(catalog, one) == {"visits": 4}
    early = start(catalog, one, job, 4)
    two = join(catalog, "two")
    assert beat(catalog, two) == {"visits": 2}
    assert beat(catalog, one) == {"visits": 2}
    before = owners(catalog, job)
    poll(*early)
    assert owners(catalog, job) == before
    late = [slot(catalog, two, job, index, initial_delay_ms=DELAY_MS) for index in range(2)]
    poll(*early, *late)
    after = owners(catalog, job)
    assert {name: at for name, at in after.items() if at == before[name]} == {
        name: at for name, at in before.items() if at in {each.id for each in early[:2]}
    }
    assert [directive(each) for each in (*early, *late)] == ["run", "run", "leave", "leave", "run", "run"]


def counted(group: PlayedGroup, name: str, cores: int) -> str:
    """An instance of the group whose cores are counted; its id."""
    arguments = {"name": name, "incarnation": "1", "host": name, "cores": cores, "spark": COUNTED}
    return group.catalog.write(coordinator.join_instance, **arguments, lease_ms=LEASE_MS).id


def test_a_job_that_loses_its_slot_on_a_node_moves_warm(catalog: Catalog) -> None:
    group = PlayedGroup(catalog, 2)
    nodes = {counted(group, name, 1): group.node(name) for name in ("s1", "s2")}
    instances = [counted(group, name, 1) for name in ("s1", "s2")]
    assert [beat(catalog, each, incarnation="1") for each in instances] == [{"visits": 1}, {"visits": 1}]
    group.settle()
    group.fill(1_000)
    make_job(catalog, "comer")
    shares = {at: beat(catalog, at, incarnation="1") for at in instances}
    [leaving] = [nodes[at] for at, share in shares.items() if "visits" not in share]
    assert list(shares.values()).count({"visits": 1}) == list(shares.values()).count({"comer": 1}) == 1
    group.turn()
    group.turn()
    assert len(leaving.running) == 1  # until its copy has caught up elsewhere
    group.settle()
    assert leaving.slots == []
    assert set(group.owners().values()) == {name for name in ("s1", "s2") if name != leaving.name}
    assert group.cost["restored"] == 0


def test_a_second_instance_takes_its_share_warm(catalog: Catalog) -> None:
    group = PlayedGroup(catalog, 4, initial_delay_ms=DELAY_MS)
    first = group.node("s1", cores=4)
    assert beat(catalog, first.instance, incarnation="1") == {"visits": 4}
    group.settle()
    group.fill(1_000)
    second = group.node("s2", cores=4, slots=0)
    assert beat(catalog, second.instance, incarnation="1") == {"visits": 2}
    group.turn()
    assert len(first.slots) == 4
    for _ in range(2):
        second.join_slot()
    group.settle()
    assert (len(first.slots), len(second.slots)) == (2, 2)
    assert sorted(Counter(group.owners().values()).values()) == [2, 2]
    assert group.cost["restored"] == 0


def test_what_is_not_taken_over_in_time_is_given_up(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog, cores=2, spark=COUNTED)
    beat(catalog, instance)
    _first, second = start(catalog, instance, job, 2)
    make_job(catalog, "comer")
    beat(catalog, instance, scale_down_timeout_ms=0)
    assert directive(second) == "leave"


def test_who_has_been_there_longest_stays_whatever_its_index(catalog: Catalog, job: JobRow) -> None:
    """The executor of the first two is lost for good: those that live go on, what starts again leaves."""
    instance = join(catalog, cores=4, spark=COUNTED)
    assert beat(catalog, instance) == {"visits": 4}
    slots = start(catalog, instance, job, 4)
    lost, living = slots[:2], slots[2:]
    for each in lost:
        expire_slot(catalog, each.id)
    tick(catalog)
    assert beat(catalog, instance, cores=2) == {"visits": 2}
    again = slot(catalog, instance, job, 0)
    poll(*living, again)
    assert [directive(each) for each in (*living, again)] == ["run", "run", "leave"]
    assert set(owners(catalog, job).values()) == {each.id for each in living}


def test_what_a_draining_instance_had_is_shared_without_a_round_of_its_own(catalog: Catalog, job: JobRow) -> None:
    one, two = join(catalog, "one"), join(catalog, "two")
    assert [beat(catalog, one), beat(catalog, two)] == [{"visits": 2}, {"visits": 2}]
    poll(*start(catalog, one, job, 2), *start(catalog, two, job, 2))
    catalog.write(coordinator.leave_instance, two, incarnation="first", drain=True, scale_down_timeout_ms=TIMEOUT_MS)
    assert [beat(catalog, one), beat(catalog, two)] == [{"visits": 4}, {}]
    assert "cores were shared anew" not in {row.reason for row in catalog.read(groups.rebalances_of, job.id)}


# ---------------------------------------------------------------- who lacks a core


def test_a_job_without_a_core_says_so_and_gets_the_first_that_is_free(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog, cores=1, spark=COUNTED)
    beat(catalog, instance)
    [first] = start(catalog, instance, job, 1)
    make_job(catalog, "comer")
    assert beat(catalog, instance) == {"visits": 1}
    assert [shortage(catalog, name) for name in ("visits", "comer")] == [None, "no_cores"]
    assert catalog.read(instances_standing) == "4 tasks wait for cores"
    catalog.write(coordinator.change_job, "visits", "stop")
    assert directive(first) == "leave"
    assert beat(catalog, instance) == {"comer": 1}
    assert [shortage(catalog, name) for name in ("visits", "comer")] == [None, None]
    assert catalog.read(instances_standing) == "ok"


def test_a_job_that_is_stopped_lacks_nothing(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog, cores=0, spark=COUNTED)
    assert beat(catalog, instance) == {}
    assert shortage(catalog, "visits") == "no_cores"
    catalog.write(coordinator.change_job, "visits", "stop")
    assert shortage(catalog, "visits") is None
