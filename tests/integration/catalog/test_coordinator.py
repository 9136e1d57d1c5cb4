"""Membership: joining, polling, hand-overs, leases, evictions; who owns a task and under which epoch."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from service import coordinator
from service.catalog import groups, job_creation, job_states, jobs, segments, streams
from service.catalog.engine import Catalog, job_topic, now_ms, partition_topic
from service.catalog.tables import JobRow, SlotRow, new_id
from service.coordinator import evictions
from service.protocol import PollAnswer
from service.streams.errors import IllegalTransition, InstanceGone, StaleEpoch, UnknownInstance, UnknownJob
from tests.integration.catalog.world import (
    LEASE_MS,
    SlotDouble,
    age_segments,
    commit_of,
    expire_instance,
    expire_slot,
    join,
    lease_of,
    make_job,
    make_stream,
    owners,
    post,
    silence_coordinator,
    silence_instance,
    silence_slot,
    slot,
    state_of,
    statements,
    tick,
)

POISONED = {"code": "expression_failed", "operator": "once", "partition": 1, "offset": 7, "detail": "not a number"}


@pytest.fixture
def job(catalog: Catalog) -> JobRow:
    make_stream(catalog)
    return make_job(catalog)


def now(catalog: Catalog) -> int:
    return catalog.read(now_ms)


def reasons(catalog: Catalog, job: JobRow) -> list[str]:
    return [row.reason for row in catalog.read(groups.rebalances_of, job.id)]


# ---------------------------------------------------------------- instances


def test_an_instance_keeps_its_id_under_its_name(catalog: Catalog) -> None:
    assert join(catalog, "one") == join(catalog, "one")
    assert join(catalog, "one") == join(catalog, "one", incarnation="second")
    assert join(catalog, "one") != join(catalog, "two")


def test_a_heartbeat_answers_the_jobs_that_want_slots(catalog: Catalog, job: JobRow) -> None:
    make_job(catalog, "narrow", parallelism=1)
    make_job(catalog, "halted")
    catalog.write(coordinator.change_job, "halted", "stop")
    instance = join(catalog, cores=3)
    answer = coordinator.heartbeat(catalog, instance, incarnation="first")
    assert [(at.name, at.slots) for at in answer.jobs] == [("narrow", 1), ("visits", 3)]
    assert answer.lease_ms == LEASE_MS


def test_an_instance_without_cores_is_given_nothing_to_run(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog, cores=0)
    assert coordinator.heartbeat(catalog, instance, incarnation="first", shortage="no_cores").jobs == []
    assert catalog.read(groups.get_instance, instance).shortage == "no_cores"
    [wanted] = coordinator.heartbeat(catalog, instance, incarnation="first", cores=2).jobs
    assert wanted.slots == 2
    shown = catalog.read(groups.get_instance, instance)
    assert (shown.cores, shown.shortage) == (2, "")


def test_a_heartbeats_version_changes_with_the_wanted_jobs(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    beat = lambda: coordinator.heartbeat(catalog, instance, incarnation="first").version  # noqa: E731
    before = beat()
    assert beat() == before
    catalog.write(coordinator.change_job, "visits", "stop")
    assert beat() != before


def test_a_former_incarnation_is_gone_with_its_slots(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    former = slot(catalog, instance, job)
    join(catalog, incarnation="second")
    with pytest.raises(InstanceGone):
        coordinator.heartbeat(catalog, instance, incarnation="first")
    with pytest.raises(InstanceGone):
        former.poll()
    coordinator.heartbeat(catalog, instance, incarnation="second")


def test_leaving_frees_the_tasks_and_may_be_repeated(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    slot(catalog, instance, job)
    for _ in range(2):
        catalog.write(coordinator.leave_instance, instance, incarnation="first")
    assert set(owners(catalog, job).values()) == {None}
    with pytest.raises(InstanceGone):
        coordinator.heartbeat(catalog, instance, incarnation="first")
    with pytest.raises(UnknownInstance):
        coordinator.heartbeat(catalog, new_id(), incarnation="first")


# ---------------------------------------------------------------- slots


def test_the_first_slot_gets_every_task_and_all_it_needs_to_run(catalog: Catalog, job: JobRow) -> None:
    worker = slot(catalog, join(catalog), job)
    assert worker.names() == ["0_0", "0_1", "0_2", "0_3"]
    assert worker.joined.job.topology["sub_topologies"][0]["sources"] == ["clicks"]
    assert set(worker.joined.streams) == {"clicks", "visits-out", "visits-once-changelog"}
    assert set(worker.joined.stores) == {"visits-once"}
    assert state_of(catalog) == "running"


def test_joining_again_under_the_same_id_gets_the_same_answer(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    worker = slot(catalog, instance, job)
    arguments = {"job_id": job.id, "slot_id": worker.id, "index": 0, "lease_ms": LEASE_MS}
    assert catalog.write(coordinator.join_slot, instance, **arguments) == worker.joined
    assert {task.epoch for task in worker.tasks()} == {1}
    worker.leave()
    with pytest.raises(InstanceGone):
        catalog.write(coordinator.join_slot, instance, **arguments)


def test_who_may_not_join(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    with pytest.raises(UnknownInstance):
        slot(catalog, new_id(), job)
    catalog.write(coordinator.change_job, "visits", "stop")
    with pytest.raises(IllegalTransition):
        slot(catalog, instance, job)
    catalog.write(job_creation.delete_job, "visits")
    with pytest.raises(UnknownJob):
        slot(catalog, instance, job)


def test_a_slot_of_the_same_place_fences_the_former_one(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    former = slot(catalog, instance, job, index=2)
    task = former.tasks()[0]
    latter = slot(catalog, instance, job, index=2)
    assert {at.epoch for at in latter.tasks()} == {3}
    assert former.commit(commit_of(task))[0].reason == "stale_epoch"
    with pytest.raises(InstanceGone):
        former.poll()


def test_a_second_slot_is_given_its_share_in_the_polls_of_the_first(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    one = slot(catalog, instance, job, index=0)
    one.poll()
    two = slot(catalog, instance, job, index=1)
    assert two.names() == []
    assert set(owners(catalog, job).values()) == {one.id}
    assert state_of(catalog) == "rebalancing"
    kept = {task.name: task.epoch for task in one.tasks()}
    assert set(kept.values()) == {1}
    given = {task.name: task.epoch for task in two.tasks()}
    assert set(given.values()) == {2}
    assert sorted([*kept, *given]) == ["0_0", "0_1", "0_2", "0_3"]
    assert len(kept) == len(given) == 2
    assert state_of(catalog) == "running"
    assert all(row.took_ms is not None for row in catalog.read(groups.rebalances_of, job.id))


def test_an_owner_commits_what_it_ran_before_it_hands_over(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    one = slot(catalog, instance, job, index=0)
    tasks = one.tasks()
    slot(catalog, instance, job, index=1)
    assert {verdict.status for verdict in one.commit(*map(commit_of, tasks))} == {"accepted"}


def test_a_move_to_a_slot_that_is_gone_is_called_off(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    one = slot(catalog, instance, job, index=0)
    slot(catalog, instance, job, index=1).leave()
    assert {task.epoch for task in one.tasks()} == {1}
    assert len(one.names()) == 4
    assert state_of(catalog) == "running"


def test_the_tasks_of_a_slot_that_leaves_go_to_the_others_at_once(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    one, two = slot(catalog, instance, job, index=0), slot(catalog, instance, job, index=1)
    one.poll()
    two.leave()
    assert len(one.names()) == 4
    assert reasons(catalog, job)[0] == "a slot left"


def test_a_second_instance_takes_half(catalog: Catalog, job: JobRow) -> None:
    one = slot(catalog, join(catalog, "one"), job)
    two = slot(catalog, join(catalog, "two"), job)
    assert len(one.names()) == 2
    assert len(two.names()) == 2


# ---------------------------------------------------------------- polls


def test_a_poll_is_ready_when_what_is_owned_is_news(catalog: Catalog, job: JobRow) -> None:
    worker = slot(catalog, join(catalog), job)
    first = worker.poll()
    assert first.is_ready
    assert not worker.poll().is_ready
    clicks = catalog.read(streams.get_stream, "clicks")
    assert first.topics == {job_topic(job.id), *(partition_topic(clicks.id, p) for p in range(4))}


def test_records_wake_the_slot_that_reads_their_partition_and_no_other(catalog: Catalog, job: JobRow) -> None:
    one, other = (slot(catalog, join(catalog, name), job) for name in ("one", "other"))
    for worker in (one, other, one, other):
        worker.poll()
    clicks, woken = catalog.read(streams.get_stream, "clicks"), set[str]()
    catalog.on_wake(woken.update)
    mine = one.poll().answer.tasks[0].partition
    post(catalog, clicks, {mine: 1})
    assert one.poll().topics & woken
    assert not other.poll().topics & woken


def test_a_poll_is_ready_when_there_is_work(catalog: Catalog, job: JobRow) -> None:
    worker = slot(catalog, join(catalog), job)
    worker.poll()
    clicks = catalog.read(streams.get_stream, "clicks")
    post(catalog, clicks, {2: 10})
    answer = worker.poll()
    assert answer.is_ready
    work = [task.work for task in answer.answer.tasks]
    assert [[(at.input, at.start, at.end) for at in ranges] for ranges in work] == [[], [], [(0, 0, 10)], []]
    assert [(at.first_offset, at.end_offset) for at in work[2][0].chunks] == [(0, 10)]


def test_work_is_bounded_by_max_batch_records(catalog: Catalog) -> None:
    clicks = make_stream(catalog, partitions=1)
    job = make_job(catalog, max_batch_records=15)
    for _ in range(4):
        post(catalog, clicks, {0: 10})
    worker = slot(catalog, join(catalog), job)
    assert [worker.run() for _ in range(4)] == [15, 15, 10, 0]


def test_an_idle_poll_writes_nothing(catalog: Catalog, job: JobRow, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = join(catalog)
    coordinator.heartbeat(catalog, instance, incarnation="first")
    worker = slot(catalog, instance, job)
    for _ in range(2):  # the second says that its copies are restored
        worker.poll()
    monkeypatch.setattr(Catalog, "write", lambda *_, **__: pytest.fail("a write"))
    for _ in range(3):
        worker.poll()
    coordinator.heartbeat(catalog, instance, incarnation="first")


def test_a_poll_renews_a_lease_of_which_a_third_is_over(catalog: Catalog, job: JobRow) -> None:
    worker = slot(catalog, join(catalog), job)
    first = lease_of(catalog, worker.id)
    worker.poll()
    assert lease_of(catalog, worker.id) == first
    expire_slot(catalog, worker.id)
    worker.poll()
    assert lease_of(catalog, worker.id) >= first


def test_a_second_look_for_the_same_question_renews_nothing(catalog: Catalog, job: JobRow) -> None:
    worker = slot(catalog, join(catalog), job)
    worker.poll()
    expire_slot(catalog, worker.id)
    coordinator.poll_slot(catalog, worker.id, worker.held, renews=False)  # whose copies are written
    coordinator.poll_slot(catalog, worker.id, worker.held, renews=False)
    assert lease_of(catalog, worker.id) == 0
    worker.leave()
    with pytest.raises(InstanceGone):
        coordinator.poll_slot(catalog, worker.id, worker.held, renews=False)


def test_a_heartbeat_that_is_looked_at_again_renews_nothing(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    worker = slot(catalog, instance, job)
    expire_instance(catalog, instance)
    expire_slot(catalog, worker.id)
    lease = lambda: catalog.read(groups.get_instance, instance).lease_until_ms  # noqa: E731
    coordinator.heartbeat(catalog, instance, incarnation="first", living={worker.id: 0}, renews=False)
    assert (lease(), lease_of(catalog, worker.id)) == (0, 0)
    coordinator.heartbeat(catalog, instance, incarnation="first", living={worker.id: 0})
    assert lease() > 0
    assert lease_of(catalog, worker.id) > 0


def test_a_heartbeat_renews_the_leases_of_its_slots_as_of_their_signs_of_life(catalog: Catalog, job: JobRow) -> None:
    instance, elsewhere = join(catalog), join(catalog, "two")
    one, two, ended = (slot(catalog, instance, job, index=index) for index in range(3))
    other = slot(catalog, elsewhere, job)
    for each in (one, two, other):
        expire_slot(catalog, each.id)
    ended.leave()
    living = {one.id: 1_000, other.id: 0, ended.id: 0}
    coordinator.heartbeat(catalog, instance, incarnation="first", living=living)
    lease = catalog.read(groups.get_instance, instance).lease_until_ms - lease_of(catalog, one.id)
    assert 0 < lease <= 1_000 + LEASE_MS // 10
    assert [lease_of(catalog, each.id) for each in (two, other)] == [0, 0]
    assert catalog.read(lambda s: s.get_one(SlotRow, ended.id)).state == "gone"


def test_signs_of_life_that_a_former_incarnation_brings_renew_nothing(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    worker = slot(catalog, instance, job)
    expire_slot(catalog, worker.id)
    with pytest.raises(InstanceGone):
        coordinator.heartbeat(catalog, instance, incarnation="other", living={worker.id: 0})
    assert lease_of(catalog, worker.id) == 0


def test_a_paused_job_keeps_its_owners_and_gets_no_work(catalog: Catalog, job: JobRow) -> None:
    worker = slot(catalog, join(catalog), job)
    catalog.write(coordinator.change_job, "visits", "pause")
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 10})
    answer = worker.poll().answer
    assert answer.directive == "run"
    assert len(answer.tasks) == 4
    assert not any(task.work for task in answer.tasks)
    catalog.write(coordinator.change_job, "visits", "resume")
    assert state_of(catalog) == "running"
    assert worker.run() == 10


def test_a_stopped_job_drains_slot_by_slot(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    slots = [slot(catalog, instance, job, index=i) for i in range(2)]
    catalog.write(coordinator.change_job, "visits", "stop")
    for at in slots:
        assert state_of(catalog) == "draining"
        assert at.poll().answer == PollAnswer("leave")
        at.leave()
    assert state_of(catalog) == "stopped"
    catalog.write(coordinator.change_job, "visits", "restart")
    assert state_of(catalog) == "starting"
    assert len(slot(catalog, instance, job).names()) == 4
    assert state_of(catalog) == "running"


def test_what_retention_took_from_a_job_fails_it(catalog: Catalog, job: JobRow) -> None:
    worker = slot(catalog, join(catalog), job)
    post(catalog, catalog.read(streams.get_stream, "clicks"), {1: 10})
    age_segments(catalog, 10_000)
    catalog.write(streams.update_stream, "clicks", retention_ms=1_000, retention_overrides_jobs=True)
    assert catalog.write(segments.truncate_by_retention) == 1
    assert worker.poll().answer.directive == "leave"
    failed = catalog.read(jobs.get_job, "visits")
    assert failed.state == "failed"
    assert failed.error is not None
    assert (failed.error["code"], failed.error["partition"]) == ("source_truncated", 1)


# ---------------------------------------------------------------- failures


def test_a_failing_task_fails_its_job_alone(catalog: Catalog, job: JobRow) -> None:
    other = make_job(catalog, "other")
    instance = join(catalog)
    worker, bystander = slot(catalog, instance, job), slot(catalog, instance, other)
    task = worker.tasks()[1]
    fail = {"task_id": task.task, "epoch": task.epoch, "error": POISONED}
    catalog.write(coordinator.fail_task, worker.id, **fail)
    failed = catalog.read(jobs.get_job, "visits")
    assert (failed.state, failed.reason, failed.error) == ("failed", "not a number", POISONED | {"task": "0_1"})
    assert worker.poll().answer.directive == "leave"
    assert len(bystander.names()) == 4
    assert catalog.read(jobs.transitions_of, job.id, errors_only=True)[0].error == failed.error


def test_only_the_owner_fails_a_task(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    worker = slot(catalog, instance, job)
    task = worker.tasks()[0]
    slot(catalog, instance, job)
    for task_id in (task.task, new_id()):
        fail = {"task_id": task_id, "epoch": task.epoch, "error": POISONED}
        with pytest.raises(StaleEpoch):
            catalog.write(coordinator.fail_task, worker.id, **fail)
    assert state_of(catalog) == "running"


def test_a_failed_job_is_restarted_past_a_skipped_record(catalog: Catalog, job: JobRow) -> None:
    post(catalog, catalog.read(streams.get_stream, "clicks"), {1: 10})
    worker = slot(catalog, join(catalog), job)
    task = worker.tasks()[1]
    fail = {"task_id": task.task, "epoch": task.epoch, "error": POISONED}
    catalog.write(coordinator.fail_task, worker.id, **fail)
    catalog.write(job_states.skip_record, "visits", partition=1, offset=7)
    catalog.write(coordinator.change_job, "visits", "restart")
    assert catalog.read(jobs.get_job, "visits").error is None
    assert [at.skips for at in worker.tasks()] == [[], [(0, 7)], [], []]
    assert worker.tasks()[1].epoch > task.epoch  # a slot that has not left yet begins anew
    worker.run()
    assert [at.skips for at in worker.tasks()] == [[], [], [], []]


# ---------------------------------------------------------------- leases


def live(catalog: Catalog, job: JobRow) -> tuple[str, SlotDouble, SlotDouble]:
    """Two slots on two instances, the coordinator awake."""
    tick(catalog)
    other = join(catalog, "two")
    return other, slot(catalog, join(catalog, "one"), job), slot(catalog, other, job)


def test_a_slot_without_lease_is_evicted_and_its_tasks_go_on(catalog: Catalog, job: JobRow) -> None:
    _, one, two = live(catalog, job)
    one.poll()
    expire_slot(catalog, two.id)
    assert tick(catalog) == 1
    assert len(one.names()) == 4
    with pytest.raises(InstanceGone):
        two.poll()
    assert reasons(catalog, job)[0] == "a slot was lost"


def test_an_instance_without_lease_is_evicted_with_its_slots(catalog: Catalog, job: JobRow) -> None:
    other, one, _ = live(catalog, job)
    one.poll()
    expire_instance(catalog, other)
    assert tick(catalog) == 1
    assert len(one.names()) == 4
    assert catalog.read(groups.get_instance, other).state == "gone"
    with pytest.raises(InstanceGone):
        coordinator.heartbeat(catalog, other, incarnation="first")


def test_slots_of_a_killed_driver_end_together_though_their_leases_do_not(
    catalog: Catalog, job: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, one, two = live(catalog, job)
    beside = slot(catalog, other, job, index=1)
    for each in (one, two, beside) * 2:
        each.poll()
    silence_instance(catalog, other, LEASE_MS // 4)
    expire_slot(catalog, two.id)
    with monkeypatch.context() as patched:  # while the driver may be lost too, nothing is decided
        patched.setattr(Catalog, "write", lambda *_, **__: pytest.fail("a write"))
        assert tick(catalog) == 0
    assert set(owners(catalog, job).values()) == {one.id, two.id, beside.id}
    before = len(reasons(catalog, job))
    expire_instance(catalog, other)
    assert tick(catalog) == 1
    assert set(owners(catalog, job).values()) == {one.id}
    assert reasons(catalog, job)[:-before] == ["an instance was lost"]


def test_a_slot_that_is_lost_beside_a_driver_that_was_late_ends_once_that_is_heard(
    catalog: Catalog, job: JobRow
) -> None:
    other, one, two = live(catalog, job)
    one.poll()
    silence_instance(catalog, other, LEASE_MS // 4)
    expire_slot(catalog, two.id)
    assert tick(catalog) == 0
    coordinator.heartbeat(catalog, other, incarnation="first")
    assert tick(catalog) == 1
    assert set(owners(catalog, job).values()) == {one.id}
    assert catalog.read(groups.get_instance, other).state == "live"


def test_who_is_lost_at_the_same_time_is_given_nothing(catalog: Catalog, job: JobRow) -> None:
    other, one, two = live(catalog, job)
    third = join(catalog, "three")
    with_it = slot(catalog, third, job)
    for each in (one, two, with_it) * 2:
        each.poll()
    epochs = {task.name: task.epoch for task in (*two.tasks(), *with_it.tasks())}
    before = len(reasons(catalog, job))
    expire_instance(catalog, other, third)
    assert tick(catalog) == 2
    found = {task.name: task.epoch for task in one.tasks()}
    assert {name: found[name] for name in epochs} == {name: epoch + 2 for name, epoch in epochs.items()}
    assert len(reasons(catalog, job)) == before + 1


def test_a_tick_with_nothing_to_do_writes_nothing(
    catalog: Catalog, job: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(catalog, job)
    monkeypatch.setattr(Catalog, "write", lambda *_, **__: pytest.fail("a write"))
    assert tick(catalog) == 0


def test_a_tick_with_nothing_to_do_asks_the_catalog_once(catalog: Catalog, job: JobRow) -> None:
    live(catalog, job)
    with statements(catalog) as asked:
        tick(catalog)
    assert len(asked) <= 1


def test_after_its_own_outage_the_coordinator_evicts_nobody(catalog: Catalog, job: JobRow) -> None:
    _, one, two = live(catalog, job)
    one.poll()
    expire_slot(catalog, two.id)
    silence_coordinator(catalog, 90_000)
    assert tick(catalog) == 0
    assert lease_of(catalog, two.id) > lease_of(catalog, one.id) - 1_000
    assert tick(catalog) == 0
    assert len(two.names()) == 2
    expire_slot(catalog, two.id)
    assert tick(catalog) == 1


def test_time_in_which_no_process_looked_counts_against_nobody(catalog: Catalog, job: JobRow) -> None:
    """Shorter than a lease, and still longer than what was left of some."""
    other, one, two = live(catalog, job)
    one.poll()
    before, away_ms = lease_of(catalog, one.id), LEASE_MS // 2
    silence_instance(catalog, other, -1_000)
    silence_slot(catalog, two.id, -1_000)
    silence_coordinator(catalog, away_ms)
    assert tick(catalog, late_ms=math.inf) == 0  # a process that has just begun
    assert away_ms - 2_000 < lease_of(catalog, two.id) - now(catalog) < away_ms
    assert before <= lease_of(catalog, one.id) <= now(catalog) + LEASE_MS
    assert len(two.names()) == 2
    expire_instance(catalog, other)
    silence_coordinator(catalog, away_ms)
    assert tick(catalog, late_ms=away_ms) == 1  # lost before that


def test_who_looked_all_the_time_and_who_comes_beside_such_a_one_put_nothing_off(catalog: Catalog, job: JobRow) -> None:
    other, one, _ = live(catalog, job)
    silence_instance(catalog, other, -1_000)
    assert tick(catalog, late_ms=math.inf) == 1
    expire_slot(catalog, one.id)
    silence_coordinator(catalog, LEASE_MS // 2)
    assert tick(catalog, late_ms=1_000) == 1


def test_rounds_know_how_late_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    late_ms, moments_s = list[float](), iter((100.0, 100.25, 101.0, 102.0))
    monkeypatch.setattr(evictions, "time", SimpleNamespace(monotonic=lambda: next(moments_s)))

    def look(_: Catalog | None, **how: float) -> int:
        late_ms.append(how["late_ms"])
        if len(late_ms) == 3:
            raise OSError("no catalog")
        return 0

    monkeypatch.setattr(evictions, "tick", look)
    ticks = coordinator.Ticks(None, every_ms=250, lease_ms=3_000, initial_delay_ms=0)  # type: ignore[arg-type]
    for _ in range(4):
        with contextlib.suppress(OSError):
            ticks.run_once()
    assert late_ms == [math.inf, 0, 500, 1500]


def test_slots_that_are_long_gone_are_forgotten(catalog: Catalog, job: JobRow) -> None:
    tick(catalog)
    former = slot(catalog, join(catalog), job)
    former.leave()
    catalog.write(lambda s: s.execute(update(SlotRow).values(gone_ms=0)))
    silence_coordinator(catalog, 60_000)
    tick(catalog, lease_ms=90_000)
    assert catalog.read(lambda s: s.get(SlotRow, former.id)) is None


def test_that_the_coordinator_is_there_takes_it_two_statements(
    catalog: Catalog, job: JobRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evictions, "SWEEP_EVERY_MS", 2**62)  # the first tick of a minute looks around
    live(catalog, job)
    silence_coordinator(catalog, LEASE_MS // 2)
    with statements(catalog) as asked:
        tick(catalog)
    assert asked == ["SELECT meta", "UPDATE meta"]
    with statements(catalog) as asked:
        tick(catalog)
    assert len(asked) <= 1


def test_a_tick_gives_out_what_nobody_owns(catalog: Catalog, job: JobRow) -> None:
    tick(catalog)
    worker = slot(catalog, join(catalog), job)
    catalog.write(lambda s: job_states.lock_tasks(s, job.id)[0].__setattr__("slot_id", None))
    tick(catalog)
    assert len(worker.names()) == 4


# ---------------------------------------------------------------- executors


def test_the_slots_of_a_lost_executor_end_before_any_task_is_given_out(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    lost = [slot(catalog, instance, job, index=index, executor="7") for index in (0, 1)]
    stays = slot(catalog, instance, job, index=2, executor="8")
    for _ in range(2):
        for each in (*lost, stays):
            each.poll()
    lose = {"incarnation": "first", "executors": ["7", ""]}
    assert catalog.write(coordinator.lose_executors, instance, **lose) == 2
    assert set(owners(catalog, job).values()) == {stays.id}
    assert reasons(catalog, job)[:2] == ["an executor was lost", "a slot joined"]
    assert {row.took_ms for row in catalog.read(groups.rebalances_of, job.id, limit=1)} == {0}
    for each in lost:
        with pytest.raises(InstanceGone):
            each.poll()
    assert catalog.write(coordinator.lose_executors, instance, **lose) == 0


def test_an_executor_is_its_instances_alone_and_slots_without_one_stay(catalog: Catalog, job: JobRow) -> None:
    one, other = join(catalog, "one"), join(catalog, "other")
    bystander = slot(catalog, other, job, executor="7")
    unnamed = slot(catalog, one, job)
    assert catalog.write(coordinator.lose_executors, one, incarnation="first", executors=["7", ""]) == 0
    assert {bystander.id, unnamed.id} == {row.id for row, _ in catalog.read(groups.members_of, job.id)}


def test_only_who_is_there_loses_executors(catalog: Catalog) -> None:
    instance = join(catalog)
    with pytest.raises(UnknownInstance):
        catalog.write(coordinator.lose_executors, new_id(), incarnation="first", executors=["7"])
    with pytest.raises(InstanceGone):
        catalog.write(coordinator.lose_executors, instance, incarnation="second", executors=["7"])
    catalog.write(coordinator.leave_instance, instance, incarnation="first")
    with pytest.raises(InstanceGone):
        catalog.write(coordinator.lose_executors, instance, incarnation="first", executors=["7"])


# ---------------------------------------------------------------- the first slots of a job


def test_the_first_slot_leaves_their_shares_to_those_that_are_to_follow(catalog: Catalog, job: JobRow) -> None:
    tick(catalog)
    instance = join(catalog, cores=2)
    first = slot(catalog, instance, job, initial_delay_ms=60_000)
    assert first.names() == ["0_0", "0_2"]
    tick(catalog, initial_delay_ms=60_000)
    assert first.names() == ["0_0", "0_2"]
    second = slot(catalog, instance, job, index=1, initial_delay_ms=60_000)
    assert (first.names(), second.names()) == (["0_0", "0_2"], ["0_1", "0_3"])
    assert len(reasons(catalog, job)) == 1


def test_slots_of_other_instances_are_waited_for_too_but_not_on_dead_ones(catalog: Catalog, job: JobRow) -> None:
    one, two = join(catalog, "one", cores=2), join(catalog, "two", cores=2)
    gone = join(catalog, "gone", cores=2)
    catalog.write(coordinator.leave_instance, gone, incarnation="first")
    assert len(slot(catalog, one, job, initial_delay_ms=60_000).names()) == 1
    assert len(slot(catalog, two, job, initial_delay_ms=60_000).names()) == 1


def test_what_is_kept_free_in_vain_is_given_out(catalog: Catalog, job: JobRow) -> None:
    tick(catalog)
    only = slot(catalog, join(catalog, cores=2), job, initial_delay_ms=60_000)
    assert len(only.names()) == 2
    catalog.write(lambda s: s.execute(update(JobRow).values(rebalance_at_ms=1)))  # the time is over
    tick(catalog, initial_delay_ms=60_000)
    assert len(only.names()) == 4
    assert len(reasons(catalog, job)) == 1


def test_nobody_is_waited_for_once_a_slot_has_been_there_for_a_while(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog)
    slot(catalog, instance, job)
    catalog.write(lambda s: s.execute(update(SlotRow).values(joined_ms=SlotRow.joined_ms - 60_000)))
    slot(catalog, instance, job, index=1, initial_delay_ms=30_000)
    assert None not in owners(catalog, job).values()


# ---------------------------------------------------------------- draining an instance


def test_a_draining_instance_commits_before_its_slots_leave(catalog: Catalog, job: JobRow) -> None:
    instance = join(catalog, "one")
    one = slot(catalog, instance, job)
    tasks = one.tasks()
    catalog.write(coordinator.leave_instance, instance, incarnation="first", drain=True)
    assert coordinator.heartbeat(catalog, instance, incarnation="first").jobs == []
    with pytest.raises(InstanceGone):
        slot(catalog, instance, job, index=1)
    two = slot(catalog, join(catalog, "two"), job)
    assert one.commit(commit_of(tasks[0]))[0].status == "accepted"
    assert one.poll().answer == PollAnswer("leave")
    assert two.names() == []
    one.leave()
    assert len(two.names()) == 4
    catalog.write(coordinator.leave_instance, instance, incarnation="first")
    assert catalog.read(groups.get_instance, instance).state == "gone"
