"""Changes of jobs to other versions in the catalog: when they are made, what becomes of rows, what tasks take over."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service import coordinator
from service.catalog import (
    job_changes,
    job_creation,
    job_states,
    job_versions,
    jobs,
    segments,
    stores,
    streams,
)
from service.catalog.engine import Catalog, job_topic
from service.catalog.inputs import inputs_of_job, inputs_of_tasks, packed_positions
from service.catalog.job_changes import BufferBound
from service.catalog.start_positions import FirstRecords
from service.catalog.tables import CatalogTable, JobRow, StoreRow, StreamRow, TaskRow
from service.lookups.known import _form
from service.protocol import AssignedTask, Verdict
from service.streams.errors import (
    IllegalTransition,
    IncompatibleChange,
    InvalidSpec,
    ReplayUnderWay,
    StreamExists,
    StreamInUse,
    UnknownStore,
)
from service.streams.operators.aggregate import AggregateSpec
from service.streams.records import Handover
from service.streams.topology.graph import Topology
from service.streams.topology.replays import Wanted
from service.streams.topology.spec import JobSpec
from tests.integration.catalog.world import (
    SlotDouble,
    batch,
    commit_of,
    ends,
    job_at_work,
    join,
    make_job,
    make_stream,
    owners,
    post,
    slot,
    state_of,
    statements,
    tick,
)

SPREAD = {"op": "select_key", "key": "value->>'user'"}
KEEP = {"op": "filter", "where": "key IS NOT NULL"}


def once(interval_ms: int = 1_000, name: str = "once") -> dict[str, Any]:
    return {"op": "deduplicate_by_key", "name": name, "interval_ms": interval_ms}


def windows(grace_ms: int, name: str = "n") -> dict[str, Any]:
    window = {"type": "tumbling", "size_ms": 100, "grace_ms": grace_ms, "retention_ms": 0}
    return {"op": "aggregate", "name": name, "window": window, "aggregates": {"n": {"fn": "count"}}}


HOLD = {"op": "suppress", "name": "hold", "until": "time_limit", "time_limit_ms": 10, "buffer": {}}


def worked(catalog: Catalog, *operators: Any, **more: Any) -> tuple[JobRow, SlotDouble]:
    """A job over two partitions that has read ten records of each, up to the time 500."""
    job, worker = job_at_work(catalog, operators=list(operators or [once()]), **more)
    catalog.write(lambda s: s.execute(update(TaskRow).values(stream_time=500)))
    return job, worker


def put(
    catalog: Catalog,
    *operators: Any,
    kind: job_versions.Kind = "put",
    renames: dict[str, str] | None = None,
    restart: tuple[str, ...] = (),
    records: FirstRecords | None = None,
    **more: Any,
) -> list[BufferBound]:
    """Ask for these operators instead; returns the bounds that hindered it."""
    how: dict[str, Any] = {"renames": renames or {}, "restart": restart}

    def write(s: Session) -> list[BufferBound]:
        job = job_states.lock_job(s, name="visits")
        spec = JobSpec.parse({**job.spec, "operators": list(operators), **more})
        found = job_changes.compare(s, job, spec, **how)
        if found.problems:
            raise IncompatibleChange(found.problems)
        asked = job_changes.wanted(s, job, spec, found, kind=kind, who="me", reason="changed", records=records, **how)
        return coordinator.change_version(s, job, asked)

    return catalog.write(write)


def found(catalog: Catalog) -> JobRow:
    return catalog.read(jobs.get_job, "visits")


def tasks(catalog: Catalog) -> list[TaskRow]:
    query = select(TaskRow).order_by(TaskRow.sub_topology, TaskRow.partition)
    return catalog.read(lambda s: list(s.scalars(query)))


def versions_of_tasks(catalog: Catalog) -> list[tuple[int, int | None]]:
    return [(task.spec_version, task.next_version) for task in tasks(catalog)]


def store(catalog: Catalog, name: str) -> StoreRow:
    return catalog.read(lambda s: s.scalars(select(StoreRow).where(StoreRow.name == name)).one())


def everything(catalog: Catalog) -> list[Any]:
    """Every row of every table."""
    tables = CatalogTable.metadata.sorted_tables
    return catalog.read(lambda s: [sorted(map(repr, s.execute(select(table)).all())) for table in tables])


def adopt(worker: SlotDouble, **more: Any) -> list[Verdict]:
    """Commit what its tasks have to take over."""
    due = [task for task in worker.tasks() if task.adopt is not None]
    return worker.commit(*(commit_of(task, adopted=task.adopt.version, **more) for task in due if task.adopt))


def reasons(verdicts: list[Verdict]) -> list[str | None]:
    return [verdict.reason for verdict in verdicts]


def given(task: AssignedTask) -> dict[str, Handover] | None:
    return None if task.adopt is None else task.adopt.stores


# ---------------------------------------------------------------- at once


def test_a_job_at_work_with_nothing_on_its_way_is_another_version_at_once(catalog: Catalog) -> None:
    job, worker = worked(catalog)
    before, kept, at = found(catalog), store(catalog, "visits-once"), catalog.read(jobs.positions, job.id)
    epochs = [task.epoch for task in tasks(catalog)]
    assert put(catalog, KEEP, once(2_000)) == []
    after = found(catalog)
    assert (after.state, after.spec_version, after.change) == ("running", 2, None)
    assert after.etag > before.etag
    assert after.spec["operators"][1]["interval_ms"] == 2_000
    assert [task.epoch for task in tasks(catalog)] == [epoch + 1 for epoch in epochs]
    assert set(owners(catalog, job).values()) == {worker.id}
    assert catalog.read(jobs.positions, job.id) == at
    changed = store(catalog, "visits-once")
    assert (changed.id, changed.changelog_stream_id) == (kept.id, kept.changelog_stream_id)
    assert changed.spec["interval_ms"] == 2_000
    latest, first = catalog.read(job_versions.versions_of, job.id)
    assert (latest.version, latest.kind, latest.who, latest.spec) == (2, "put", "me", after.spec)
    assert (first.version, first.kind, first.spec) == (1, "create", before.spec)
    line = catalog.read(jobs.transitions_of, job.id)[0]
    assert (line.kind, line.who, line.details) == ("version", "me", {"version": 2, "renames": {}, "restart": []})


def test_a_slot_learns_of_it_with_its_next_poll_and_adopts_before_it_works(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5, 1: 5})
    put(catalog, once(2_000))
    answer = coordinator.poll_slot(
        catalog, worker.id, worker.held, known=worker.joined.job.spec_sha256, known_version=1
    )
    assert answer.is_ready
    assert answer.answer.job is not None
    assert (answer.answer.job.version, answer.answer.job.spec["operators"][0]["interval_ms"]) == (2, 2_000)
    assert set(answer.answer.stores) == {"visits-once"}
    for task in answer.answer.tasks:
        assert (task.work, task.advance, task.replay) == ([], None, None)
        assert task.adopt is not None
        assert (task.adopt.version, task.adopt.stores) == (2, {"visits-once": Handover(kept_ms=1_000)})
    assert versions_of_tasks(catalog) == [(1, 2), (1, 2)]
    assert reasons(adopt(worker)) == [None, None]
    assert versions_of_tasks(catalog) == [(2, None), (2, None)]
    assert worker.run() == 10


def test_an_adoption_is_accepted_once_and_nothing_comes_before_it_or_with_it(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5})
    early = next(task for task in worker.tasks() if task.work)
    late = batch(catalog, early, worker.joined)
    put(catalog, once(2_000))
    assert reasons(worker.commit(late)) == ["stale_epoch"]
    task = next(each for each in worker.tasks() if each.task == early.task)
    assert reasons(worker.commit(commit_of(task, moves=[(0, 10, 15)]))) == ["not_adopted"]
    assert reasons(worker.commit(commit_of(task, moves=[(0, 10, 15)], adopted=2))) == ["more_than_adopted"]
    assert reasons(worker.commit(commit_of(task, adopted=3))) == ["wrong_job_version"]
    commit = commit_of(task, adopted=2)
    first, again = worker.commit(commit), worker.commit(commit)
    assert (reasons(first), first) == ([None], again)
    assert reasons(worker.commit(commit_of(task, adopted=2))) == ["stale_version"]
    now = next(each for each in worker.tasks() if each.task == early.task)
    assert reasons(worker.commit(commit_of(now, adopted=2))) == ["wrong_job_version"]
    assert now.adopt is None


def test_a_poll_of_a_job_without_a_change_asks_no_more_than_before(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    with statements(catalog) as seen:
        worker.poll()
    before = list(seen)
    put(catalog, once(2_000))
    adopt(worker)
    worker.poll()
    with statements(catalog) as seen:
        worker.poll()
    assert list(seen) == before


def test_what_bears_nothing_over_needs_no_adoption(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    put(catalog, KEEP, once())
    assert versions_of_tasks(catalog) == [(2, None), (2, None)]
    assert [task.adopt for task in worker.tasks()] == [None, None]


@pytest.mark.parametrize("verb", ["pause", "stop"])
def test_a_job_that_rests_is_another_version_when_it_goes_on(catalog: Catalog, verb: str) -> None:
    job, worker = worked(catalog)
    catalog.write(coordinator.change_job, "visits", verb)
    if verb == "stop":
        worker.leave()
    put(catalog, once(2_000))
    assert state_of(catalog) == {"pause": "paused", "stop": "stopped"}[verb]
    assert versions_of_tasks(catalog) == [(1, 2), (1, 2)]
    catalog.write(coordinator.change_job, "visits", {"pause": "resume", "stop": "restart"}[verb])
    after = worker if verb == "pause" else slot(catalog, join(catalog), job)
    assert reasons(adopt(after)) == [None, None]


def test_several_versions_before_a_task_adopts_are_one_step_from_where_its_stores_stand(catalog: Catalog) -> None:
    _, worker = worked(catalog, windows(5))
    put(catalog, windows(9))
    put(catalog, windows(1))
    put(catalog, windows(7, name="m"), renames={"n": "m"})
    first, second = worker.tasks()
    shortest = AggregateSpec.model_validate(windows(1)).handover().kept_ms
    handover = structs.replace(AggregateSpec.model_validate(windows(5)).handover(), kept_ms=shortest)
    for task in (first, second):
        assert given(task) == {"visits-m": handover}
        assert task.adopt is not None
        assert task.adopt.version == 4
    put(catalog, windows(5, name="m"))  # as it was, but for what copies may have deleted meanwhile
    assert [given(task) for task in worker.tasks()] == [{"visits-m": handover}] * 2


# ---------------------------------------------------------------- stores


def test_a_renamed_store_keeps_its_ids_under_its_new_name(catalog: Catalog) -> None:
    job, worker = worked(catalog)
    kept = store(catalog, "visits-once")
    flow, late = {"records_in": 9, "records_out": 7, "busy_us": 5}, {"late": {"count": 2, "below": {"5": 2}}}
    counters = {
        "operators": {"once": {"x": 1}},
        "dropped": {"once": {"late": 2}},
        "missed_by_ms": {"once": late},
        "flow": {"once": flow, "sink-0": flow},
        "records_in": 10,
    }
    catalog.write(lambda s: s.execute(update(TaskRow).values(counters=counters)))
    put(catalog, once(name="first"), renames={"once": "first"})
    renamed = store(catalog, "visits-first")
    assert (renamed.id, renamed.operator, renamed.changelog_stream_id) == (kept.id, "first", kept.changelog_stream_id)
    assert ends(catalog, "visits-first-changelog") == [10, 10]
    with pytest.raises(UnknownStore):
        catalog.read(stores.store_now, "visits-once")
    for task in tasks(catalog):
        assert task.counters == {
            "operators": {"first": {"x": 1}},
            "dropped": {"first": {"late": 2}},
            "missed_by_ms": {"first": late},
            "flow": {"first": flow, "sink-0": flow},
            "records_in": 10,
        }
    assert [set(task.changelogs) for task in worker.tasks()] == [{"visits-first"}] * 2
    assert catalog.read(job_versions.former_names, job.id, 1, ["first"]) == {"first": "once"}


def test_who_looks_a_store_up_reads_it_by_the_present_version(catalog: Catalog) -> None:
    worked(catalog, windows(5))
    before = _form(catalog.read(stores.store_now, "visits-n"))
    put(catalog, windows(50))
    after = _form(catalog.read(stores.store_now, "visits-n"))
    assert after is not before
    assert _form(catalog.read(stores.store_now, "visits-n")) is after


def test_names_may_be_exchanged(catalog: Catalog) -> None:
    worked(catalog, once(name="a"), once(name="b"))
    a, b = store(catalog, "visits-a"), store(catalog, "visits-b")
    put(catalog, once(name="b"), once(name="a"), renames={"a": "b", "b": "a"})
    assert (store(catalog, "visits-b").id, store(catalog, "visits-a").id) == (a.id, b.id)
    assert store(catalog, "visits-b").changelog_stream_id == a.changelog_stream_id
    assert catalog.read(streams.get_stream, "visits-b-changelog").id == a.changelog_stream_id


def test_a_store_that_begins_anew_has_a_new_id_and_begins_at_the_time_of_its_task(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    former = store(catalog, "visits-once")
    put(catalog, once(), restart=("once",))
    begun = store(catalog, "visits-once")
    assert begun.id != former.id
    assert begun.changelog_stream_id != former.changelog_stream_id
    assert (begun.since_version, begun.is_removed) == (2, False)
    assert ends(catalog, "visits-once-changelog") == [0, 0]
    assert [given(task) for task in worker.tasks()] == [{"visits-once": Handover(begins_at=500)}] * 2
    answer = coordinator.poll_slot(catalog, worker.id, [], known=found(catalog).spec_sha256, known_version=1).answer
    assert answer.stores["visits-once"].id == begun.id  # though the specification is equal


def test_an_added_store_begins_where_its_task_is(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(stream_time=-1)))
    put(catalog, once(), windows(5))
    assert store(catalog, "visits-n").since_version == 2
    assert [given(task) for task in worker.tasks()] == [{"visits-n": Handover(begins_at=500)}, None]


def test_a_removed_store_is_hidden_until_the_job_goes(catalog: Catalog) -> None:
    job, worker = worked(catalog, once(), windows(5))
    written = ends(catalog, "visits-n-changelog")
    put(catalog, once())
    assert store(catalog, "visits-n").is_removed
    with pytest.raises(UnknownStore):
        catalog.read(stores.store_now, "visits-n")
    assert [each.name for each in catalog.read(stores.stores_now)] == ["visits-once"]
    assert [each.name for each in catalog.read(jobs.stores_of, job.id)] == ["visits-once"]
    assert [set(task.changelogs) for task in worker.tasks()] == [{"visits-once"}] * 2
    assert ends(catalog, "visits-n-changelog") == written == [10, 10]
    catalog.write(coordinator.change_job, "visits", "stop")
    worker.leave()
    catalog.write(job_creation.delete_job, "visits")
    assert catalog.read(lambda s: s.scalars(select(StoreRow)).all()) == []
    assert catalog.read(streams.find_stream, "visits-n-changelog") is None


def test_a_removed_store_goes_with_a_reset_or_when_its_name_is_taken(catalog: Catalog) -> None:
    job, worker = worked(catalog, once(), windows(5))
    put(catalog, once())
    former = store(catalog, "visits-n")
    put(catalog, once(), windows(5))
    assert store(catalog, "visits-n").id != former.id
    put(catalog, once())
    catalog.write(coordinator.change_job, "visits", "stop")
    worker.leave()
    catalog.write(coordinator.reset_job, "visits", "earliest")
    assert [each.name for each in catalog.read(lambda s: s.scalars(select(StoreRow)).all())] == ["visits-once"]
    assert catalog.read(streams.find_stream, "visits-n-changelog") is None
    assert versions_of_tasks(catalog) == [(4, None), (4, None)]
    assert catalog.read(jobs.stores_of, job.id)[0].since_version == 4


def back_to(catalog: Catalog, version: int, restart: tuple[str, ...] = ()) -> dict[str, str]:
    """Roll back; returns the verdict of each operator."""

    def write(s: Session) -> dict[str, str]:
        job = job_states.lock_job(s, name="visits")
        spec = JobSpec.parse(job_versions.get_version(s, job, version).spec)
        how: dict[str, Any] = {"renames": {}, "restart": restart}
        found = job_changes.compare(s, job, spec, **how, left=job_changes.left_stores(s, job, version))
        assert found.problems == []
        asked = job_changes.wanted(s, job, spec, found, kind="rollback", who="me", reason="back", **how)
        assert coordinator.change_version(s, job, asked) == []
        return {each.operator: each.verdict for each in found.operators}

    return catalog.write(write)


def test_a_rollback_has_a_removed_store_back_as_it_was_left(catalog: Catalog) -> None:
    job, worker = worked(catalog, once(), windows(5))
    kept = store(catalog, "visits-n")
    put(catalog, once())
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5})
    assert worker.run() == 5
    assert versions_of_tasks(catalog) == [(2, None)] * 2
    assert back_to(catalog, 1) == {"once": "unchanged", "n": "returns"}
    again = store(catalog, "visits-n")
    assert (again.id, again.changelog_stream_id) == (kept.id, kept.changelog_stream_id)
    assert (again.is_removed, again.since_version) == (False, 1)
    left = structs.replace(AggregateSpec.model_validate(windows(5)).handover(), stream_time=500)
    assert [given(task) for task in worker.tasks()] == [{"visits-n": left}] * 2
    assert [set(task.changelogs) for task in worker.tasks()] == [{"visits-n", "visits-once"}] * 2
    put(catalog, once(), windows(1))  # before anybody has taken that over
    shortest = AggregateSpec.model_validate(windows(1)).handover().kept_ms
    assert [given(task) for task in worker.tasks()] == [{"visits-n": structs.replace(left, kept_ms=shortest)}] * 2
    assert reasons(adopt(worker)) == [None, None]
    assert versions_of_tasks(catalog) == [(4, None)] * 2
    put(catalog, once(), windows(1), KEEP)
    assert versions_of_tasks(catalog) == [(5, None)] * 2
    assert catalog.read(job_versions.former_names, job.id, 2, ["n", "once"]) == {"once": "once"}


def test_it_is_found_under_the_names_that_it_had(catalog: Catalog) -> None:
    job, worker = worked(catalog, once(), windows(5))
    kept = store(catalog, "visits-n")
    put(catalog, once(), windows(9, name="m"), renames={"n": "m"})
    put(catalog, once())
    put(catalog, once(2_000))
    assert back_to(catalog, 1)["n"] == "returns"
    assert store(catalog, "visits-n").id == kept.id
    delays = {task.adopt.stores["visits-n"].delay_ms for task in worker.tasks() if task.adopt is not None}
    assert delays == {5}  # nobody had taken the other one over
    stood = [catalog.read(job_versions.former_names, job.id, version, ["n"]) for version in (1, 2, 3, 4, 5)]
    assert stood == [{"n": "n"}, {"n": "m"}, {}, {}, {"n": "n"}]
    put(catalog, once(2_000))
    assert back_to(catalog, 2)["m"] == "returns"
    assert store(catalog, "visits-m").id == kept.id


def test_it_is_as_the_version_left_it_that_its_task_had_taken_over(catalog: Catalog) -> None:
    """What was closed by the first one stays so, though the next one had let it open."""
    _, worker = worked(catalog, once(), windows(5))
    put(catalog, once(), windows(9))
    first = next(task for task in worker.tasks() if task.name == "0_0")
    assert reasons(worker.commit(commit_of(first, adopted=2))) == [None]
    put(catalog, once())
    assert versions_of_tasks(catalog) == [(3, None)] * 2
    back_to(catalog, 1)
    put(catalog, once())
    back_to(catalog, 1)
    delays = {task.name: task.adopt.stores["visits-n"].delay_ms for task in worker.tasks() if task.adopt is not None}
    assert delays == {"0_0": 9, "0_1": 5}


@pytest.mark.parametrize("why", ["other", "restart", "taken"])
def test_one_that_can_not_go_on_begins_empty(catalog: Catalog, why: str) -> None:
    worked(catalog, once(), windows(5))
    session = {**windows(5), "window": {"type": "session", "gap_ms": 10}}
    if why == "other":
        put(catalog, once(), session, restart=("n",))
    put(catalog, once())
    if why == "taken":
        put(catalog, once(), session)
        put(catalog, once())
    left = store(catalog, "visits-n")
    assert back_to(catalog, 1, ("n",) if why == "restart" else ())["n"] == "empty"
    begun = store(catalog, "visits-n")
    assert (begun.id != left.id, begun.since_version) == (True, found(catalog).spec_version)
    assert catalog.read(lambda s: s.get(StoreRow, left.id)) is None


def test_sinks_come_and_go_with_their_records_kept(catalog: Catalog) -> None:
    job, _ = worked(catalog)
    put(catalog, once(), sink=[{"stream": "other"}])
    assert {each.name for each in catalog.read(jobs.streams_of, job.id, "sink")} == {"other"}
    assert ends(catalog, "visits-out") == [10, 10]
    assert ends(catalog, "other") == [0, 0]
    catalog.write(streams.delete_stream, "visits-out")


def test_a_stream_of_somebody_in_the_place_of_a_changelog_hinders_it(catalog: Catalog) -> None:
    worked(catalog)
    make_stream(catalog, "visits-n-changelog")
    before = everything(catalog)
    with pytest.raises(StreamExists):
        put(catalog, once(), windows(5))
    assert everything(catalog) == before


# ---------------------------------------------------------------- refusals leave everything as it was


def test_what_stores_can_not_bear_is_refused(catalog: Catalog) -> None:
    worked(catalog)
    before = everything(catalog)
    with pytest.raises(IncompatibleChange) as refused:
        put(catalog, {**once(), "op": "deduplicate_by_key_value", "id": "value->>'id'"})
    assert [each.pointer for each in refused.value.errors] == ["/operators/0/op"]
    assert everything(catalog) == before


@pytest.mark.parametrize("asked", ["flush", "replay", "stop"])
def test_what_was_asked_for_before_comes_first(catalog: Catalog, asked: str) -> None:
    worked(catalog, keep_dropped=True)
    if asked == "flush":
        catalog.write(job_states.flush_job, "visits")
    elif asked == "stop":
        catalog.write(coordinator.change_job, "visits", "stop")
    else:
        from service.catalog import replays

        post(catalog, catalog.read(streams.get_stream, "visits-dropped"), {0: 1})
        catalog.write(replays.ask_to_replay, "visits", Wanted())
    before = everything(catalog)
    with pytest.raises((IllegalTransition, ReplayUnderWay)):
        put(catalog, once(2_000))
    assert everything(catalog) == before


def test_a_buffer_that_has_to_be_empty_hinders_it_until_it_is(catalog: Catalog) -> None:
    worked(catalog, once(), HOLD)
    held = {"operators": {"hold": {"buffer_records": {"last": 3}, "buffer_bytes": {"last": 40}}}}
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(counters=held)))
    before = everything(catalog)
    [bound] = put(catalog, once())
    assert (bound.store, bound.max_records) == ("visits-hold", 0)
    assert everything(catalog) == before
    small = {"max_bytes": 39, "when_full": "shut_down"}
    [bound] = put(catalog, once(), {**HOLD, "buffer": small})
    assert bound.max_bytes == 39
    assert put(catalog, once(), {**HOLD, "buffer": {**small, "max_bytes": 40}}) == []
    held = {"operators": {"hold": {"buffer_records": {"last": 0}, "buffer_bytes": {"last": 0}}}}
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(counters=held)))
    assert put(catalog, once()) == []


def test_a_job_that_rests_with_something_to_give_is_not_changed(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(has_backlog=True)))
    catalog.write(coordinator.change_job, "visits", "pause")
    before = everything(catalog)
    with pytest.raises(IllegalTransition, match="still to come: `:resume` it, change it while it runs"):
        put(catalog, once(2_000))
    assert everything(catalog) == before
    assert worker.poll().answer.directive == "run"


# ---------------------------------------------------------------- coming to rest


def resting(catalog: Catalog) -> SlotDouble:
    """A job whose task 0_1 owes results, and that is to be another version."""
    _, worker = worked(catalog)
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(has_backlog=True)))
    put(catalog, once(2_000))
    assert state_of(catalog) == "changing"
    return worker


def give(catalog: Catalog) -> None:
    """The results have come."""
    catalog.write(lambda s: s.execute(update(TaskRow).values(has_backlog=False)))


def test_what_is_owed_comes_first_and_meanwhile_nothing_is_read(catalog: Catalog) -> None:
    worker = resting(catalog)
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5})
    outcome = worker.poll()
    assert not outcome.is_ready
    assert [(task.work, task.advance, task.adopt) for task in outcome.answer.tasks] == [([], None, None)] * 2
    assert f"progress:{found(catalog).id}" in outcome.topics
    change = found(catalog).change
    assert change is not None
    assert (change["state"], change["spec"]["operators"][0]["interval_ms"]) == ("pending", 2_000)
    assert found(catalog).spec_version == 1
    give(catalog)
    assert [given(task) for task in worker.tasks()] == [{"visits-once": Handover(kept_ms=1_000)}] * 2
    assert (found(catalog).state, found(catalog).spec_version, found(catalog).change) == ("running", 2, None)
    adopt(worker)
    assert worker.run() == 5


def test_a_round_of_the_coordinator_makes_it_where_nobody_polls(catalog: Catalog) -> None:
    resting(catalog)
    tick(catalog)
    tick(catalog)
    assert state_of(catalog) == "changing"
    give(catalog)
    woken: set[str] = set()
    catalog.on_wake(woken.update)
    tick(catalog)
    assert (state_of(catalog), found(catalog).spec_version) == ("running", 2)
    assert job_topic(found(catalog).id) in woken


@pytest.mark.parametrize(("verb", "state"), [("stop", "draining"), ("resume", "running")])
def test_people_may_give_it_up(catalog: Catalog, verb: str, state: str) -> None:
    worker = resting(catalog)
    catalog.write(coordinator.change_job, "visits", verb, who="you")
    assert (state_of(catalog), found(catalog).change, found(catalog).read_to) == (state, None, None)
    given_up = [line for line in catalog.read(jobs.transitions_of, found(catalog).id) if "given up" in line.reason]
    assert [(line.who, line.reason) for line in given_up] == [("you", f"{verb}; the change to version 2 is given up")]
    give(catalog)
    if verb == "stop":
        assert worker.poll().answer.directive == "leave"
    assert found(catalog).spec_version == 1


def test_a_failure_gives_it_up(catalog: Catalog) -> None:
    worker = resting(catalog)
    task = worker.tasks()[0]
    fault = {"task_id": task.task, "epoch": task.epoch, "error": {"code": "buffer_full", "detail": "full"}}
    catalog.write(coordinator.fail_task, worker.id, **fault)
    assert (state_of(catalog), found(catalog).change) == ("failed", None)


def test_what_changes_a_job_waits_for_it(catalog: Catalog) -> None:
    resting(catalog)
    before = everything(catalog)
    for ask in (
        lambda: put(catalog, once(3_000)),
        lambda: catalog.write(job_states.flush_job, "visits"),
        lambda: catalog.write(coordinator.change_job, "visits", "pause"),
        lambda: catalog.write(coordinator.change_job, "visits", "restart"),
    ):
        with pytest.raises(IllegalTransition, match="`:resume` it to give that up"):
            ask()
    assert everything(catalog) == before


def test_a_buffer_that_is_too_full_in_the_end_ends_it_and_the_job_says_why(catalog: Catalog) -> None:
    _, worker = worked(catalog, once(), HOLD)
    owing = {"has_backlog": True}
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(**owing)))
    put(catalog, once())
    held = {"operators": {"hold": {"buffer_records": {"last": 3}, "buffer_bytes": {"last": 40}}}}
    catalog.write(lambda s: s.execute(update(TaskRow).values(counters=held)))
    give(catalog)
    worker.poll()
    job = found(catalog)
    assert (job.state, job.spec_version) == ("running", 1)
    assert job.change is not None
    assert (job.change["state"], "never come out" in job.change["reason"]) == ("refused", True)
    catalog.write(lambda s: s.execute(update(TaskRow).values(counters={})))
    put(catalog, once())
    assert (found(catalog).spec_version, found(catalog).change) == (2, None)


def test_a_name_that_was_taken_meanwhile_ends_it_with_nothing_changed(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(has_backlog=True)))
    put(catalog, once(), windows(5))
    make_stream(catalog, "visits-n-changelog")
    give(catalog)
    worker.poll()
    job = found(catalog)
    assert (job.state, job.spec_version) == ("running", 1)
    assert job.change is not None
    assert "visits-n-changelog" in job.change["reason"]
    assert [each.name for each in catalog.read(jobs.stores_of, job.id)] == ["visits-once"]
    assert catalog.write(segments.drop_unreferenced) == 0


# ---------------------------------------------------------------- behind a repartition


def across(catalog: Catalog) -> SlotDouble:
    """A job of two sub-topologies; three records of users are unread, and four between its tasks."""
    clicks = make_stream(catalog, partitions=2)
    job = make_job(catalog, operators=[SPREAD, once()])
    post(catalog, clicks, {0: 3})
    worker = slot(catalog, join(catalog), job)
    post(catalog, catalog.read(streams.get_stream, "visits-once-repartition"), {1: 4})
    return worker


def read_all(catalog: Catalog, sub_topology: int) -> None:
    """Its tasks have read what is there, up to the marks of a change."""

    def write(s: Session) -> None:
        marks = s.scalars(select(JobRow)).one().read_to or {}
        for task in s.scalars(select(TaskRow).where(TaskRow.sub_topology == sub_topology)):
            [inputs] = inputs_of_tasks(s, [task.id]).values()
            for at in inputs:
                at.position = marks[at.stream_id][at.partition] if at.stream_id in marks else at.end
            task.positions = packed_positions(inputs)

    catalog.write(write)


def test_what_makes_records_for_others_changes_once_all_that_was_there_is_read(catalog: Catalog) -> None:
    worker = across(catalog)
    clicks = catalog.read(streams.get_stream, "clicks")
    put(catalog, KEEP, SPREAD, once())
    assert (state_of(catalog), found(catalog).read_to) == ("changing", {clicks.id: [3, 0]})
    post(catalog, clicks, {0: 5, 1: 5})
    work = {task.name: [(each.start, each.end) for each in task.work] for task in worker.tasks()}
    assert (work["0_0"], work["0_1"]) == ([(0, 3)], [])  # what came later waits for the next version
    read_all(catalog, 1)
    worker.poll()
    assert state_of(catalog) == "changing"

    def read_to_mark(s: Session) -> None:
        task = s.scalars(select(TaskRow).where(TaskRow.name == "0_0")).one()
        task.positions = (3).to_bytes(8, "little") + task.positions[8:]

    catalog.write(read_to_mark)
    again = {task.name: [(each.start, each.end) for each in task.work] for task in worker.tasks()}
    assert (found(catalog).state, found(catalog).spec_version, found(catalog).read_to) == ("running", 2, None)
    assert (again["0_0"], again["0_1"]) == ([(3, 8)], [(0, 5)])


def test_readers_alone_change_at_once(catalog: Catalog) -> None:
    across(catalog)
    put(catalog, SPREAD, once(2_000))
    assert (found(catalog).spec_version, found(catalog).change) == (2, None)


def test_a_job_that_rests_with_records_between_its_tasks_is_to_read_them_first(catalog: Catalog) -> None:
    across(catalog)
    catalog.write(coordinator.change_job, "visits", "pause")
    before = everything(catalog)
    with pytest.raises(IllegalTransition, match="what others of them wrote: `:resume` it"):
        put(catalog, KEEP, SPREAD, once())
    assert everything(catalog) == before
    read_all(catalog, 1)
    put(catalog, KEEP, SPREAD, once())  # what users posted is for the next version
    assert (state_of(catalog), found(catalog).spec_version) == ("paused", 2)


def test_a_repartition_stream_has_the_name_of_the_operator_that_needs_it(catalog: Catalog) -> None:
    across(catalog)
    between = catalog.read(streams.get_stream, "visits-once-repartition").id
    put(catalog, SPREAD, once(name="first"), renames={"once": "first"})
    assert catalog.read(streams.get_stream, "visits-first-repartition").id == between
    assert catalog.read(streams.find_stream, "visits-once-repartition") is None


# ---------------------------------------------------------------- sources


BOTH = ["clicks", "views"]


def inputs(catalog: Catalog) -> list[list[tuple[str, int, int]]]:
    """By task stream, partition and position of each input."""
    names = {row.id: row.name for row in catalog.read(lambda s: s.scalars(select(StreamRow)).all())}
    read = catalog.read(inputs_of_job, found(catalog).id)
    return [
        [(names.get(at.stream_id, ""), at.partition, at.position) for at in read[task.id]] for task in tasks(catalog)
    ]


@pytest.mark.parametrize(("start", "position"), [("earliest", 0), ("latest", 4), ({"offsets": {"views": {"1": 3}}}, 3)])
def test_a_source_that_is_added_is_read_from_its_start_on_under_numbers_of_its_own(
    catalog: Catalog, start: Any, position: int
) -> None:
    _, worker = worked(catalog)
    post(catalog, make_stream(catalog, name="views", partitions=2), {1: 4})
    put(catalog, once(), source=BOTH, start=start)
    assert inputs(catalog) == [[("clicks", 0, 10), ("views", 0, 0)], [("clicks", 1, 10), ("views", 1, position)]]
    assert found(catalog).max_repartition_bytes is not None  # its inputs are taken in the order of time from now on
    work = {task.name: [(each.input, each.start, each.end) for each in task.work] for task in worker.tasks()}
    assert work == {"0_0": [], "0_1": [(1, position, 4)] if position < 4 else []}


def test_one_that_a_job_without_state_reads_may_have_fewer_partitions(catalog: Catalog) -> None:
    clicks = make_stream(catalog, partitions=2)
    make_job(catalog, operators=[KEEP])
    make_stream(catalog, name="views", partitions=1)
    put(catalog, KEEP, source=BOTH)
    assert clicks.partitions == 2
    assert inputs(catalog) == [[("clicks", 0, 0), ("views", 0, 0)], [("clicks", 1, 0)]]


def test_one_behind_which_tasks_read_each_other_is_read_in_front(catalog: Catalog) -> None:
    across(catalog)
    make_stream(catalog, name="views", partitions=2)
    put(catalog, SPREAD, once(), source=BOTH)
    between = [("visits-once-repartition", 0, 0), ("visits-once-repartition", 1, 0)]
    front = [[("clicks", p, 0), ("views", p, 0)] for p in (0, 1)]
    assert inputs(catalog) == [*front, between, between]


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"source": ["clicks", "visits-once-changelog"]}, "/source/1"),
        ({"source": ["clicks", "nowhere"]}, "/source/1"),
        ({"source": ["clicks", "spread"]}, "/source/1"),
        ({"source": BOTH, "start": {"offsets": {"views": {"0": 9}}}}, "/start/offsets/views/0"),
        ({"source": BOTH, "start": {"offsets": {"0": 0}}}, "/start/offsets"),
    ],
)
def test_what_can_not_be_read_is_not_added(catalog: Catalog, more: dict[str, Any], pointer: str) -> None:
    worked(catalog)
    make_stream(catalog, name="views", partitions=2)
    spread = make_stream(catalog, name="spread", partitions=2)
    custom = update(StreamRow).where(StreamRow.id == spread.id).values(custom_partitioning=True)
    catalog.write(lambda s: s.execute(custom))
    before = everything(catalog)
    with pytest.raises(InvalidSpec) as refused:
        put(catalog, once(), **more)
    assert [each.pointer for each in refused.value.errors] == [pointer]
    assert everything(catalog) == before


def of_both(catalog: Catalog, *operators: Any, **more: Any) -> SlotDouble:
    """A job that has read nothing of what is in two sources."""
    clicks, views = make_stream(catalog, partitions=2), make_stream(catalog, name="views", partitions=2)
    job = make_job(catalog, operators=list(operators or [once()]), source=BOTH, **more)
    post(catalog, clicks, {0: 3, 1: 3})
    post(catalog, views, {1: 4})
    return slot(catalog, join(catalog), job)


def removed_sources(catalog: Catalog) -> Any:
    lines = catalog.read(jobs.transitions_of, found(catalog).id)
    return next((line.details or {}).get("removed_sources") for line in lines if line.kind == "version")


def test_a_source_that_goes_is_read_to_where_it_was_and_the_numbers_of_the_others_stay(catalog: Catalog) -> None:
    worker = of_both(catalog)
    clicks, views = (catalog.read(streams.get_stream, name) for name in BOTH)
    put(catalog, once(), source="views")
    assert (state_of(catalog), found(catalog).read_to) == ("changing", {clicks.id: [3, 3], views.id: [0, 4]})
    post(catalog, clicks, {0: 2})
    post(catalog, views, {0: 5})
    worker.poll()
    assert state_of(catalog) == "changing"
    read_all(catalog, 0)
    work = {task.name: [(each.input, each.start, each.end) for each in task.work] for task in worker.tasks()}
    assert (state_of(catalog), found(catalog).spec_version) == ("running", 2)
    assert inputs(catalog) == [[("", 0, 3), ("views", 0, 0)], [("", 0, 3), ("views", 1, 4)]]
    assert work == {"0_0": [(1, 0, 5)], "0_1": []}
    assert removed_sources(catalog) == {"clicks": {"0": 3, "1": 3}}
    assert [tuple(at)[:3] for at in catalog.read(jobs.positions, found(catalog).id)] == [
        ("views", 0, 0),
        ("views", 1, 4),
    ]
    catalog.write(streams.delete_stream, "clicks")
    assert worker.run() == 5
    assert inputs(catalog)[0] == [("", 0, 3), ("views", 0, 5)]
    assert catalog.read(inputs_of_job, found(catalog).id).keys() == {task.id for task in tasks(catalog)}
    post(catalog, views, {1: 2})
    assert worker.run() == 2  # nothing waits for what is not read any more


def test_a_job_goes_on_from_another_source(catalog: Catalog) -> None:
    _, worker = worked(catalog)
    post(catalog, make_stream(catalog, name="views", partitions=2), {0: 4})
    put(catalog, once(), source="views")
    assert (state_of(catalog), found(catalog).spec_version) == ("running", 2)
    assert inputs(catalog) == [[("", 0, 10), ("views", 0, 0)], [("", 0, 10), ("views", 1, 0)]]
    assert worker.run() == 4
    put(catalog, once(), source="clicks", start={"offsets": removed_sources(catalog)})
    assert inputs(catalog)[0] == [("", 0, 10), ("", 0, 4), ("clicks", 0, 10)]
    assert removed_sources(catalog) == {"views": {"0": 4, "1": 0}}
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 1})
    assert worker.run() == 1


def test_one_with_something_unread_does_not_go_while_the_job_rests(catalog: Catalog) -> None:
    worker = of_both(catalog)
    catalog.write(coordinator.change_job, "visits", "pause")
    before = everything(catalog)
    with pytest.raises(IllegalTransition, match="is still to be read: `:resume` it, change it while it runs"):
        put(catalog, once(), source="clicks")
    assert everything(catalog) == before
    catalog.write(coordinator.change_job, "visits", "resume")
    assert [task.name for task in worker.tasks()] == ["0_0", "0_1"]


def test_sources_in_another_order_are_the_same_inputs(catalog: Catalog) -> None:
    of_both(catalog)
    before = inputs(catalog)
    put(catalog, once(), source=["views", "clicks"])
    assert (found(catalog).spec_version, inputs(catalog)) == (2, before)


def test_what_is_left_of_a_source_outlives_resets_patches_and_copies(catalog: Catalog) -> None:
    worker = of_both(catalog)
    read_all(catalog, 0)
    put(catalog, once(), source="views")
    patched = JobSpec.parse({**found(catalog).spec, "max_batch_records": 7})

    def write(s: Session) -> None:
        job = job_states.lock_job(s, name="visits")
        job_creation.set_spec(s, job, patched, Topology.from_json(job.topology))

    catalog.write(write)
    assert found(catalog).max_repartition_bytes is not None
    catalog.write(coordinator.change_job, "visits", "stop")
    worker.leave()
    catalog.write(coordinator.reset_job, "visits", "earliest")
    assert inputs(catalog) == [[("", 0, 0), ("views", 0, 0)], [("", 0, 0), ("views", 1, 0)]]


@pytest.mark.parametrize(("records", "position"), [(None, 0), ({("views", 1): 2}, 2)])
def test_one_that_is_added_starts_at_a_timestamp_as_of_when_that_is_asked_for(
    catalog: Catalog, records: FirstRecords | None, position: int
) -> None:
    """Where nobody has looked for the record it is as fine as a chunk."""
    _, worker = worked(catalog)
    views = make_stream(catalog, name="views", partitions=2)
    post(catalog, views, {1: 4}, timestamp=100)
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(has_backlog=True)))
    put(catalog, KEEP, once(), source=BOTH, start={"timestamp": 102}, records=records)
    assert state_of(catalog) == "changing"
    post(catalog, views, {0: 2}, timestamp=101)
    give(catalog)
    worker.poll()
    assert inputs(catalog) == [[("clicks", 0, 10), ("views", 0, 0)], [("clicks", 1, 10), ("views", 1, position)]]


# ---------------------------------------------------------------- other tasks


def named(catalog: Catalog) -> dict[str, str]:
    """Task name → its id."""
    return {task.name: task.id for task in tasks(catalog)}


def test_other_keys_in_front_of_a_store_take_a_restart_and_get_tasks_of_their_own(catalog: Catalog) -> None:
    job, worker = worked(catalog, keep_dropped=True)
    before, first, kept = everything(catalog), named(catalog), store(catalog, "visits-once")
    with pytest.raises(IncompatibleChange) as refused:
        put(catalog, SPREAD, once())
    ((pointer, detail),) = [(each.pointer, each.detail) for each in refused.value.errors]
    assert (pointer, '`restart: ["once"]` begins it empty' in detail) == ("/operators/1", True)
    assert everything(catalog) == before
    put(catalog, SPREAD, once(), restart=("once",))
    assert (state_of(catalog), found(catalog).spec_version) == ("running", 2)
    assert list(named(catalog)) == ["0_0", "0_1", "1_0", "1_1"]
    assert {name: named(catalog)[name] for name in first} == first
    between = [("visits-once-repartition", 0, 0), ("visits-once-repartition", 1, 0)]
    assert inputs(catalog) == [[("clicks", 0, 10)], [("clicks", 1, 10)], between, between]
    begun = store(catalog, "visits-once")
    assert (begun.id != kept.id, begun.sub_topology, begun.since_version) == (True, 1, 2)
    assert versions_of_tasks(catalog) == [(2, None), (2, None), (1, 2), (1, 2)]
    given_now = {task.name: given(task) for task in worker.tasks()}
    begins = {"visits-once": Handover(begins_at=500)}
    assert given_now == {"0_0": None, "0_1": None, "1_0": begins, "1_1": begins}
    assert set(owners(catalog, job).values()) == {worker.id}
    assert reasons(adopt(worker, stream_time=500)) == [None, None]
    post(catalog, catalog.read(streams.get_stream, "clicks"), {0: 5})
    post(catalog, catalog.read(streams.get_stream, "visits-once-repartition"), {1: 4})
    work = {task.name: [(each.input, each.start, each.end) for each in task.work] for task in worker.tasks()}
    assert work["0_0"] == [(0, 10, 15)]


def test_one_task_is_as_far_as_all_of_those_before(catalog: Catalog) -> None:
    """What another one has read up to there may have been of any key."""
    _, worker = worked(catalog)
    catalog.write(lambda s: s.execute(update(TaskRow).where(TaskRow.partition == 1).values(stream_time=900)))
    put(catalog, SPREAD, once(), restart=("once",))
    begins = {task.adopt.stores["visits-once"].begins_at for task in worker.tasks() if task.adopt is not None}
    assert begins == {900}


def test_tasks_end_once_what_is_on_its_way_to_them_is_read(catalog: Catalog) -> None:
    worker = across(catalog)
    late = [task for task in worker.tasks() if task.sub_topology == 1]
    between = catalog.read(streams.get_stream, "visits-once-repartition")
    put(catalog, once(), restart=("once",))
    assert state_of(catalog) == "changing"
    read_all(catalog, 0)
    worker.poll()
    assert state_of(catalog) == "changing"
    read_all(catalog, 1)
    assert [task.name for task in worker.tasks()] == ["0_0", "0_1"]
    assert (state_of(catalog), found(catalog).spec_version) == ("running", 2)
    assert catalog.read(streams.find_stream, "visits-once-repartition") is None
    assert reasons(worker.commit(*(commit_of(task) for task in late))) == ["unknown_task"] * 2
    assert store(catalog, "visits-once").sub_topology == 0
    assert inputs(catalog) == [[("clicks", 0, 3)], [("clicks", 1, 0)]]
    related = catalog.read(jobs.streams_of, found(catalog).id, "internal")
    assert [each.name for each in related] == ["visits-once-changelog"]
    assert catalog.read(lambda s: s.get(StreamRow, between.id)) is None


def test_another_count_behind_a_repartition_makes_as_many_tasks(catalog: Catalog) -> None:
    spread = {"op": "repartition", "name": "spread"}
    _, worker = worked(catalog, once(name="a"), {**spread, "partitions": 2}, once(name="b"), keep_dropped=True)
    kept, first = store(catalog, "visits-a"), named(catalog)
    assert ends(catalog, "visits-dropped") == [0, 0]
    put(catalog, once(name="a"), {**spread, "partitions": 4}, once(name="b"), restart=("b",))
    assert list(named(catalog)) == ["0_0", "0_1", "1_0", "1_1", "1_2", "1_3"]
    assert [named(catalog)[name] == first[name] for name in first] == [True, True, False, False]
    assert store(catalog, "visits-a").id == kept.id
    assert ends(catalog, "visits-b-changelog") == [0] * 4
    assert ends(catalog, "visits-dropped") == [0] * 4
    assert ends(catalog, "visits-spread-repartition") == [0, 0]
    put(catalog, once(name="a"), {**spread, "partitions": 1}, once(name="b"), restart=("b",))
    assert list(named(catalog)) == ["0_0", "0_1", "1_0"]
    assert {task.name for task in worker.tasks()} == {"0_0", "0_1", "1_0"}


def test_a_stream_of_dropped_records_that_others_read_keeps_its_partitions(catalog: Catalog) -> None:
    spread = {"op": "repartition", "name": "spread"}
    make_stream(catalog, partitions=2)
    make_job(catalog, operators=[{**spread, "partitions": 2}, once()], keep_dropped=True)
    make_job(catalog, name="other", source="visits-dropped")
    before = everything(catalog)
    with pytest.raises(StreamInUse):
        put(catalog, {**spread, "partitions": 4}, once(), restart=("once",))
    assert everything(catalog) == before


def test_the_tasks_of_another_branch_go_on_under_other_numbers(catalog: Catalog) -> None:
    first, second = ({**SPREAD, "after": "source", "key": f"value->>'{name}'"} for name in ("a", "b"))
    make_stream(catalog, partitions=2)
    job = make_job(catalog, operators=[first, once(name="a"), second, once(name="b")])
    worker = slot(catalog, join(catalog), job)
    ids, kept = named(catalog), store(catalog, "visits-b")
    between = catalog.read(streams.get_stream, "visits-b-repartition")
    put(catalog, second, once(name="b"))
    assert named(catalog) == {name: ids[was] for name, was in zip(ids, ["0_0", "0_1", "2_0", "2_1"], strict=False)}
    assert (store(catalog, "visits-b").id, store(catalog, "visits-b").sub_topology) == (kept.id, 1)
    assert catalog.read(streams.find_stream, "visits-a-changelog") is None
    post(catalog, between, {1: 4})
    assert {task.name: task.sub_topology for task in worker.tasks()} == {"0_0": 0, "0_1": 0, "1_0": 1, "1_1": 1}
    assert versions_of_tasks(catalog) == [(2, None)] * 4
