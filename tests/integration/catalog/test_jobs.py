"""Jobs: made whole or not at all, moved by one table of transitions, deleted with what is theirs."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from service import coordinator
from service.catalog import job_creation, job_states, jobs, segments, streams
from service.catalog.engine import JOBS, Catalog
from service.catalog.tables import JobRow
from service.streams.errors import (
    IllegalTransition,
    InternalStream,
    InvalidSpec,
    JobExists,
    StreamInUse,
    UnknownJob,
    UnknownPartition,
    UnknownStream,
)
from service.streams.topology import graph
from tests.integration.catalog.world import (
    ends,
    join,
    make_job,
    make_stream,
    post,
    slot,
    spec_of,
    state_of,
    submit,
)


def starts(catalog: Catalog, job: JobRow) -> list[int]:
    return [at.position for at in catalog.read(jobs.positions, job.id)]


def test_a_job_comes_with_its_sink_store_changelog_and_tasks(catalog: Catalog) -> None:
    make_stream(catalog)
    job = make_job(catalog)
    assert [store.name for store in catalog.read(jobs.stores_of, job.id)] == ["visits-once"]
    assert [at.name for at in catalog.read(jobs.streams_of, job.id, "sink")] == ["visits-out"]
    changelog = catalog.read(streams.get_stream, "visits-once-changelog")
    assert (changelog.kind, changelog.job_id, changelog.partitions) == ("changelog", job.id, 4)
    tasks = catalog.read(jobs.tasks_of, job.id)
    assert [task["task"] for task in tasks] == ["0_0", "0_1", "0_2", "0_3"]
    assert tasks[2]["positions"] == [{"stream": "clicks", "partition": 2, "position": 0, "end": 0, "lag": 0}]
    assert state_of(catalog) == "starting"


def test_an_equal_body_is_the_same_job_and_another_is_refused(catalog: Catalog) -> None:
    make_stream(catalog)
    job, is_new = submit(catalog, spec_of())
    assert is_new
    again, is_new = submit(catalog, spec_of(max_batch_records=500_000))
    assert (again.id, is_new) == (job.id, False)
    with pytest.raises(JobExists):
        submit(catalog, spec_of(max_batch_records=1))


def test_a_body_that_an_older_version_stored_without_later_fields_is_still_equal(catalog: Catalog) -> None:
    make_stream(catalog)
    job, _ = submit(catalog, spec_of())
    later = {"max_repartition_bytes", "trust_partitions", "max_task_idle_ms"}

    def as_stored_then(s: Session) -> None:
        row = s.get_one(JobRow, job.id)
        row.spec = {name: value for name, value in row.spec.items() if name not in later}
        row.spec["operators"] = [{"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}]
        row.spec_sha256 = "of that"

    catalog.write(as_stored_then)
    known, is_new = submit(catalog, spec_of())
    assert (known.id, known.etag, is_new) == (job.id, job.etag, False)
    with pytest.raises(JobExists):
        submit(catalog, spec_of(trust_partitions=True))
    same = spec_of()
    catalog.write(
        lambda s: job_creation.set_spec(s, s.get_one(JobRow, job.id), same, graph.compile(same, {"clicks": 4}))
    )
    assert catalog.read(jobs.get_job, "visits").etag == job.etag


def test_a_new_job_wakes_the_instances(catalog: Catalog) -> None:
    make_stream(catalog)
    woken: set[str] = set()
    catalog.on_wake(woken.update)
    make_job(catalog)
    assert JOBS in woken


def test_a_job_keeps_the_order_of_fields_in_its_spec(catalog: Catalog) -> None:
    make_stream(catalog)
    make_job(catalog, operators=[{"op": "map_values", "select": {"z": "1", "a": "2"}}])
    stored = catalog.read(jobs.get_job, "visits").spec
    assert list(stored["operators"][0]["select"]) == ["z", "a"]


def test_a_sink_that_exists_is_used_and_an_internal_one_refused(catalog: Catalog) -> None:
    make_stream(catalog)
    out = make_stream(catalog, "visits-out", partitions=2)
    assert catalog.read(jobs.streams_of, make_job(catalog).id, "sink")[0].id == out.id
    with pytest.raises(InternalStream):
        make_job(catalog, "other", sink="visits-once-changelog")


def test_a_job_that_can_not_be_made_leaves_nothing(catalog: Catalog) -> None:
    make_stream(catalog)
    make_stream(catalog, "visits-once-changelog")
    with pytest.raises(Exception, match="already exists"):
        make_job(catalog)
    with pytest.raises(UnknownJob):
        catalog.read(jobs.get_job, "visits")
    assert [at.name for at in catalog.read(streams.list_streams)] == ["clicks", "visits-once-changelog"]
    with pytest.raises(UnknownStream):
        make_job(catalog, source="nowhere")


# ---------------------------------------------------------------- where it starts


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 0]),
        ("latest", [30, 10]),
        ({"offsets": {"0": 7}}, [7, 0]),
        ({"timestamp": 0}, [0, 0]),
        ({"timestamp": 105}, [10, 10]),
        ({"timestamp": 110}, [20, 10]),
        ({"timestamp": 300}, [30, 10]),
    ],
)
def test_where_a_job_starts(catalog: Catalog, start: object, expected: list[int]) -> None:
    """A start at a timestamp is as fine as a chunk: the first that holds it or a later one."""
    clicks = make_stream(catalog, partitions=2)
    post(catalog, clicks, {0: 10, 1: 10}, timestamp=0)
    post(catalog, clicks, {0: 10}, timestamp=100)
    post(catalog, clicks, {0: 10}, timestamp=200)
    assert starts(catalog, make_job(catalog, start=start)) == expected


def test_a_start_may_be_given_by_partition(catalog: Catalog) -> None:
    clicks = make_stream(catalog, partitions=2)
    post(catalog, clicks, {0: 10, 1: 10})
    job, _ = submit(catalog, spec_of(start={"timestamp": 4}), records={("clicks", 1): 4})
    assert starts(catalog, job) == [0, 4]


def test_an_offset_that_is_not_there_is_named(catalog: Catalog) -> None:
    post(catalog, make_stream(catalog, partitions=1), {0: 10})
    with pytest.raises(InvalidSpec) as refused:
        make_job(catalog, start={"offsets": {"0": 11}})
    assert refused.value.errors[0].pointer == "/start/offsets/0"


# ---------------------------------------------------------------- from state to state

ASKED = ["pause", "resume", "stop", "restart"]
ALLOWED = {
    "starting": {"pause", "stop"},
    "running": {"pause", "stop"},
    "paused": {"resume", "stop"},
    "draining": set(),
    "stopped": {"restart"},
    "failed": {"stop", "restart"},
}


def bring(catalog: Catalog, job: JobRow, state: str) -> None:
    if state != "starting" and state != "stopped":
        slot(catalog, join(catalog), job)
    if state in {"paused", "draining", "stopped"}:
        verb = "pause" if state == "paused" else "stop"
        catalog.write(coordinator.change_job, "visits", verb)
    if state == "failed":
        catalog.write(lambda s: job_states.fail_job(s, job_states.lock_job(s, name="visits"), {"detail": "why"}))
    assert state_of(catalog) == state


@pytest.mark.parametrize("verb", ASKED)
@pytest.mark.parametrize("state", list(ALLOWED))
def test_what_may_be_asked_of_a_job(catalog: Catalog, state: str, verb: str) -> None:
    make_stream(catalog)
    bring(catalog, make_job(catalog), state)
    if verb in ALLOWED[state]:
        catalog.write(coordinator.change_job, "visits", verb, who="me")
        return
    with pytest.raises(IllegalTransition) as refused:
        catalog.write(coordinator.change_job, "visits", verb)
    assert refused.value.state == state
    assert state_of(catalog) == state


def test_every_transition_is_kept_with_its_reason(catalog: Catalog) -> None:
    make_stream(catalog)
    job = make_job(catalog)
    slot(catalog, join(catalog), job)
    catalog.write(coordinator.change_job, "visits", "pause", who="me", reason="lunch")
    found = [(row.from_state, row.to_state, row.reason, row.who) for row in catalog.read(jobs.transitions_of, job.id)]
    assert found == [
        ("running", "paused", "lunch", "me"),
        ("starting", "running", "every task has an owner", ""),
        (None, "starting", "created", ""),
    ]


# ---------------------------------------------------------------- skipping


def failed(catalog: Catalog) -> None:
    post(catalog, make_stream(catalog, partitions=1), {0: 10})
    bring(catalog, make_job(catalog), "failed")


def test_only_a_failed_job_skips(catalog: Catalog) -> None:
    post(catalog, make_stream(catalog, partitions=1), {0: 10})
    make_job(catalog)
    with pytest.raises(IllegalTransition):
        catalog.write(job_states.skip_record, "visits", partition=0, offset=3)


def test_a_skip_may_be_repeated(catalog: Catalog) -> None:
    failed(catalog)
    for who in ("me", "you"):
        catalog.write(job_states.skip_record, "visits", partition=0, offset=3, stream="clicks", who=who)
    job = catalog.read(jobs.get_job, "visits")
    skips = [(row.who, row.details) for row in catalog.read(jobs.transitions_of, job.id) if row.kind == "skip"]
    assert skips == [("me", {"stream": "clicks", "partition": 0, "offset": 3})]


@pytest.mark.parametrize(("offset", "partition", "error"), [(10, 0, InvalidSpec), (0, 1, UnknownPartition)])
def test_what_is_not_there_is_not_skipped(
    catalog: Catalog, offset: int, partition: int, error: type[Exception]
) -> None:
    failed(catalog)
    with pytest.raises(error):
        catalog.write(job_states.skip_record, "visits", partition=partition, offset=offset)


# ---------------------------------------------------------------- deleting


def test_deleting_takes_stores_and_internal_streams_and_leaves_sinks(catalog: Catalog) -> None:
    clicks = make_stream(catalog)
    job = make_job(catalog)
    post(catalog, clicks, dict.fromkeys(range(4), 10))
    worker = slot(catalog, join(catalog), job)
    worker.run()
    with pytest.raises(IllegalTransition):
        catalog.write(job_creation.delete_job, "visits")
    with pytest.raises(StreamInUse):
        catalog.write(streams.delete_stream, "clicks")
    catalog.write(coordinator.change_job, "visits", "stop")
    worker.leave()
    catalog.write(job_creation.delete_job, "visits")
    assert [at.name for at in catalog.read(streams.list_streams)] == ["clicks", "visits-out"]
    assert ends(catalog, "visits-out") == [10, 10, 10, 10]
    assert catalog.write(segments.drop_unreferenced) == 0
    catalog.write(streams.delete_stream, "visits-out")
    assert catalog.write(segments.drop_unreferenced) == 4


def test_a_job_whose_dropped_records_another_reads_is_not_deleted(catalog: Catalog) -> None:
    make_stream(catalog, partitions=1)
    make_job(catalog, keep_dropped=True)
    make_job(catalog, "letters", source="visits-dropped")
    catalog.write(coordinator.change_job, "visits", "stop")
    with pytest.raises(StreamInUse, match="'visits-dropped' is in use by letters"):
        catalog.write(job_creation.delete_job, "visits")
    assert state_of(catalog) == "stopped"
    catalog.write(coordinator.change_job, "letters", "stop")
    catalog.write(job_creation.delete_job, "letters")
    catalog.write(job_creation.delete_job, "visits")


def test_a_job_made_again_has_new_ids(catalog: Catalog) -> None:
    make_stream(catalog)
    ids = set()
    for _ in range(2):
        job = make_job(catalog)
        store = catalog.read(jobs.stores_of, job.id)[0]
        ids |= {job.id, store.id, store.changelog_stream_id}
        catalog.write(coordinator.change_job, "visits", "stop")
        catalog.write(job_creation.delete_job, "visits")
    assert len(ids) == 6
