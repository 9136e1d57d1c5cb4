"""The whole way of a record, in over HTTP and out again, across a restart: on SQLite through Spark, on Postgres through
the same slots without it, for they see nothing of a database.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.running import Running
from tests.conftest import DATABASES, database
from tests.driving import (
    ONCE_AN_HOUR,
    all_records,
    caught_up,
    contents,
    deduplicate,
    expected,
    in_state,
    make_stream,
    post,
    some_records,
)
from tests.forkserver import ForkServer
from tests.sparkless import SparklessRunning

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=DATABASES)
def running(
    request: pytest.FixtureRequest, running: Running, tmp_path_factory: pytest.TempPathFactory, forks: ForkServer
) -> Iterator[Running]:
    """A service on each of the databases: the shared one, then one of ours. A test here starts it again, as it was."""
    if request.param == "sqlite":
        yield running
        return
    folder = tmp_path_factory.mktemp("databases")
    with (
        database(request, folder) as url,
        SparklessRunning(folder / "data", forks, {"MILLRACE_DATABASE_URL": url}) as on_postgres,
    ):
        yield on_postgres


def test_a_job_goes_on_after_stop_and_restart_as_if_nothing_had_been(running: Running) -> None:
    records = some_records(4_000)
    make_stream(running, "clicks", 4)
    running.call("POST", "/v1/jobs", json=deduplicate("once", "clicks", "clicks-once", max_batch_records=300))
    post(running, "clicks", records[:2_000])
    caught_up(running, "once")
    running.call("POST", "/v1/jobs/once:stop")
    in_state(running, "once", "stopped")
    post(running, "clicks", records[2_000:3_000])
    running.call("POST", "/v1/jobs/once:restart")
    caught_up(running, "once")
    assert running.stop() == 0
    running.start()
    post(running, "clicks", records[3_000:])
    caught_up(running, "once")
    assert contents(running, "clicks-once", 4) == expected(records, 4, **ONCE_AN_HOUR)


def test_a_paused_job_takes_nothing_and_resumes_where_it_was(running: Running) -> None:
    records = some_records(600)
    make_stream(running, "paused", 4)
    running.call("POST", "/v1/jobs", json=deduplicate("pausing", "paused", "paused-once"))
    post(running, "paused", records[:300])
    before = caught_up(running, "pausing")["positions"]
    running.call("POST", "/v1/jobs/pausing:pause")
    post(running, "paused", records[300:])
    paused = running.call("GET", "/v1/jobs/pausing?wait=caught_up&timeout_ms=500")
    assert paused["state"] == "paused"
    assert [at["position"] for at in paused["positions"]] == [at["position"] for at in before]
    running.call("POST", "/v1/jobs/pausing:resume")
    caught_up(running, "pausing")
    assert contents(running, "paused-once", 4) == expected(records, 4, **ONCE_AN_HOUR)


def test_a_poisoned_record_fails_its_job_alone_and_can_be_skipped(running: Running) -> None:
    good = [{"key": "k", "value": {"n": n}, "timestamp": 1_000 + n, "partition": 0} for n in range(5)]
    poison = {"key": "k", "value": {"n": "many"}, "timestamp": 1_005, "partition": 0}
    where = [{"op": "filter", "name": "positive", "where": "(value->>'n')::bigint >= 0"}]
    make_stream(running, "numbers", 1)
    running.call("POST", "/v1/jobs", json={"name": "strict", "source": "numbers", "operators": where, "sink": "a"})
    lenient = {"name": "lenient", "source": "numbers", "operators": where, "sink": "b"}
    lenient |= {"on_error": "drop", "keep_dropped": True}
    running.call("POST", "/v1/jobs", json=lenient)
    post(running, "numbers", [*good, poison, *good])
    failed = in_state(running, "strict", "failed")
    assert (failed["error"]["partition"], failed["error"]["offset"]) == (0, 5)
    assert failed["error"]["operator"] == "positive"
    assert len(contents(running, "a", 1)[0]) == 5  # those before it
    assert caught_up(running, "lenient")["state"] == "running"
    (kept,) = all_records(running, "lenient-dropped", 0)
    assert (kept["value"], kept["headers"]["millrace-reason"]) == ({"n": "many"}, "expression_failed")
    running.call("POST", "/v1/jobs/strict:skip", json={"partition": 0, "offset": 5})
    running.call("POST", "/v1/jobs/strict:restart")
    assert caught_up(running, "strict")["state"] == "running"
    assert contents(running, "a", 1) == contents(running, "b", 1)
    assert len(contents(running, "a", 1)[0]) == 10
