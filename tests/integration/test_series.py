"""Series over HTTP: rates and levels of jobs, streams and all together, from samples; and which ranges are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from service.api import overview
from service.catalog import job_states
from service.catalog.engine import Catalog, now_ms
from service.catalog.tables import JobVersionRow
from tests.histories import remember
from tests.serving import Serving, serving

Json = dict[str, Any]

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
ONCE: Json = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    """A job and its stream, which nobody runs; ten minutes of samples, a day ago, are all there is."""
    folder = tmp_path_factory.mktemp("series")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", sample_every_ms=60_000) as running:
        http = running.client("writer")
        http.post("/v1/streams", json={"name": "clicks", "partitions": 1}).raise_for_status()
        spec = {"name": "visits", "source": "clicks", "sink": "visits-out", "operators": [ONCE]}
        http.post("/v1/jobs", json=spec).raise_for_status()
        yield running


@pytest.fixture(scope="module")
def begin_ms(service: Serving) -> int:
    """When it began: the first of the samples. The job read 60 records a minute, was reset in between, and the service
    was down for a minute.
    """
    http = service.client("reader")
    job, stream = http.get("/v1/jobs/visits").json()["id"], http.get("/v1/streams/clicks").json()["id"]
    now = service.catalog.read(now_ms)
    begin = now - now % (2 * MINUTE_MS) - 20 * HOUR_MS
    samples = {}
    for minute, read in enumerate([100, 160, 220, 30, 90, None, 210]):
        if read is not None:
            samples[begin + minute * MINUTE_MS] = {
                "records_in": {job: read, "another": 6 * minute},
                "records_out": {job: read // 2},
                "dropped": {job: read // 2},
                "dropped/once/duplicate": {job: read // 2},
                "batches": {job: minute},
                "busy_us": {job: 3_000_000 * minute},
                "lag": {job: 10 - minute, "another": 1},
                "stream_time": {job: begin},
                "store_bytes": {job: -1, "another": 4_096},
                "store_entries": {job: read},
                "appended_records": {stream: 1_000 * minute},
                "appended_bytes": {stream: 60_000 * minute},
            }
    remember(service.catalog, samples)
    return begin


def series(service: Serving, path: str, begin_ms: int, minutes: int = 6, **more: Any) -> Json:
    asked = {"from_ms": begin_ms, "until_ms": begin_ms + minutes * MINUTE_MS} | more
    found: Json = service.client("reader").get(f"/v1{path}", params=asked).raise_for_status().json()
    return found


def test_a_job_over_time_with_gaps_where_it_was_reset_and_where_nobody_looked(service: Serving, begin_ms: int) -> None:
    found = series(service, "/jobs/visits/series", begin_ms)
    assert (found["from_ms"], found["step_ms"]) == (begin_ms, MINUTE_MS)
    assert found["at_ms"] == [begin_ms + minute * MINUTE_MS for minute in range(1, 7)]
    assert found["records_in"] == [1.0, 1.0, None, 1.0, None, None]
    assert found["records_out"] == [0.5, 0.5, None, 0.5, None, None]
    assert found["dropped_by"] == [
        {"operator": "once", "reason": "duplicate", "records": [0.5, 0.5, None, 0.5, None, None], "total": 60 + 15 + 90}
    ]
    assert found["busy"] == [0.05, 0.05, 0.05, 0.05, None, None]
    assert found["batch_ms"] == [3_000.0, 3_000.0, 3_000.0, 3_000.0, None, None]
    assert found["lag"] == [9, 8, 7, 6, None, 4]
    assert found["stream_time"] == [begin_ms] * 4 + [None, begin_ms]
    assert found["store_bytes"] == [None] * 6
    assert found["store_entries"] == [160, 220, 30, 90, None, 210]
    assert found["totals"] == {"records_in": 120 + 30 + 180, "records_out": 60 + 15 + 90, "dropped": 60 + 15 + 90}


def test_a_stream_and_all_together(service: Serving, begin_ms: int) -> None:
    found = series(service, "/streams/clicks/series", begin_ms)
    assert found["records"] == [1_000 / 60] * 4 + [None, None]
    assert found["bytes"] == [1_000.0] * 4 + [None, None]
    assert found["totals"] == {"records": 6_000, "bytes": 360_000}
    whole = series(service, "/series", begin_ms)
    assert whole["records_in"] == [1.1, 1.1, 0.1, 1.1, None, None]  # what was reset counts for nothing then
    assert whole["appended_records"] == [1_000 / 60] * 4 + [None, None]
    assert (whole["lag"], whole["store_bytes"]) == ([10, 9, 8, 7, None, 5], [4_096] * 4 + [None, 4_096])


def test_a_longer_step_says_the_same_of_longer_times(service: Serving, begin_ms: int) -> None:
    found = series(service, "/jobs/visits/series", begin_ms, step_ms=2 * MINUTE_MS)
    assert found["at_ms"] == [begin_ms + minute * MINUTE_MS for minute in (2, 4, 6)]
    assert found["records_in"] == [1.0, None, 1.0]
    assert found["totals"]["records_in"] == 120 + 30 + 180


def test_what_is_longer_ago_than_an_hour_is_there_by_the_minute(service: Serving, begin_ms: int) -> None:
    assert series(service, "/series", begin_ms, step_ms=10_000)["step_ms"] == MINUTE_MS
    http = service.client("reader")
    assert http.get("/v1/series", params={"step_ms": 10_000}).json()["step_ms"] == 10_000
    latest = http.get("/v1/jobs/visits/series").json()
    assert latest["step_ms"] == MINUTE_MS  # as often as figures are noted here: the points between would be empty
    assert len(latest["at_ms"]) in (60, 61)
    day = http.get("/v1/jobs/visits/series", params={"span_ms": 24 * HOUR_MS}).json()
    assert len(day["at_ms"]) in (1_440, 1_441)
    assert begin_ms + MINUTE_MS in day["at_ms"]


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({"from_ms": 5, "until_ms": 5}, "?from_ms"),
        ({"from_ms": -1}, "?from_ms"),
        ({"from_ms": 2**53}, "?from_ms"),
        ({"from_ms": 2**53 - 1}, "?from_ms"),
        ({"until_ms": "soon"}, "?until_ms"),
        ({"step_ms": 9_999}, "?step_ms"),
        ({"step_ms": 86_400_001}, "?step_ms"),
        ({"from_ms": 0}, "?from_ms"),
        ({"from_ms": 0, "step_ms": 60_000}, "?step_ms"),
        ({"from_ms": 5, "span_ms": 60_000}, "?span_ms"),
        ({"span_ms": 9_999}, "?span_ms"),
        ({"span_ms": 172_800_000}, "?span_ms"),
        ({"step": 60_000}, "?step"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/series", "/v1/jobs/visits/series", "/v1/streams/clicks/series"])
def test_a_range_that_is_none_is_refused_with_a_pointer(service: Serving, path: str, asked: Json, pointer: str) -> None:
    refused = service.client("reader").get(path, params=asked)
    assert refused.status_code == 422
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]


def test_of_what_is_not_there_nothing_is_told(service: Serving) -> None:
    http: httpx.Client = service.client("reader")
    for path, code in (("jobs/nobody", "unknown_job"), ("streams/nowhere", "unknown_stream")):
        answer = http.get(f"/v1/{path}/series")
        assert (answer.status_code, answer.json()["code"]) == (404, code)
    assert service.client(None).get("/v1/series").status_code == 401


# ---------------------------------------------------------------- the overview: all of them now, and a day ago


@pytest.fixture(scope="module")
def now_ms_(service: Serving, begin_ms: int) -> int:
    """The last sample: the job reads 10 a second where it read 5 a second at that time yesterday."""
    http = service.client("reader")
    job, stream = http.get("/v1/jobs/visits").json()["id"], http.get("/v1/streams/clicks").json()["id"]
    now = service.catalog.read(now_ms)
    now += 20_000 - now % 10_000  # nobody else takes one until then
    ago = {25 * HOUR_MS + MINUTE_MS: 0, 24 * HOUR_MS + MINUTE_MS: 18_000, HOUR_MS + MINUTE_MS: 20_000}
    ago |= {2 * MINUTE_MS: 55_400, 0: 56_600}
    remember(
        service.catalog,
        {
            now - before: {
                "records_in": {job: read, "gone": 1},
                "records_out": {job: read // 2},
                "dropped": {job: read // 4},
                "dropped/late/late": {job: read // 4},
                "busy_us": {job: read * 1_000},
                "lag": {job: 7 if before > HOUR_MS else 3},
                "store_bytes": {job: 4_096},
                "behind_ms": {job: now - MINUTE_MS if before == 0 else -1},
                "dropping_ms": {job: -1},
                "appended_records": {stream: 2 * read},
                "appended_bytes": {stream: 20 * read},
                "published_ms": {stream: now - before},
                "usual_pause_ms": {stream: 30_000},
            }
            for before, read in ago.items()
        },
    )
    return now


def test_the_overview_says_of_all_what_they_do_since_when_and_what_they_did_a_day_ago(
    service: Serving, now_ms_: int
) -> None:
    found = service.client("reader").get("/v1/overview").raise_for_status().json()
    then = now_ms_ - 24 * HOUR_MS - MINUTE_MS
    assert (found["at_ms"], found["compared_with_ms"]) == (now_ms_, then)
    [job] = found["jobs"]
    assert job["job"] == "visits"
    assert (job["records_in_rate"], job["records_out_rate"], job["dropped_rate"]) == (10.0, 5.0, 2.5)
    assert job["busy"] == pytest.approx(0.01)
    assert (job["behind_since_ms"], job["dropping_since_ms"], job["ahead_since_ms"]) == (
        now_ms_ - MINUTE_MS,
        None,
        None,
    )
    drops = [{"operator": "late", "reason": "late", "records": 36_600 // 4}]
    hour = {"records_in": 36_600, "records_out": 18_300, "dropped": 36_600 // 4, "dropped_by": drops, "lag": 3}
    assert job["last_hour"] == hour | {"store_bytes": 4_096}
    drops = [{"operator": "late", "reason": "late", "records": 4_500}]
    before = {"records_in": 18_000, "records_out": 9_000, "dropped": 4_500, "dropped_by": drops, "lag": 7}
    assert job["before"] == before | {"store_bytes": 4_096}
    changes = {"is_new": True, "failures": 0, "failed_ms": None, "starts": 0, "former_version": None, "rebalances": 0}
    assert job["changes"] == changes
    streams = {each["stream"]: each for each in found["streams"]}
    assert streams["clicks"] == {
        "stream": "clicks",
        "records_rate": 20.0,
        "bytes_rate": 200.0,
        "published_ms": now_ms_,
        "usual_pause_ms": 30_000,
        "last_hour": 73_200,
        "before": 36_000,
    }


def test_the_overview_counts_what_became_of_jobs(service: Serving, now_ms_: int) -> None:
    http = service.client("writer")
    job = http.get("/v1/jobs/visits").json()
    change = {"commit_interval_ms": 40}
    http.patch("/v1/jobs/visits", json=change, headers=tag(http)).raise_for_status()
    service.catalog.write(lambda s: s.execute(update(JobVersionRow).where(JobVersionRow.version == 1).values(at_ms=0)))
    service.catalog.write(fail, job["id"])
    http.post("/v1/jobs/visits:restart").raise_for_status()
    [found] = http.get("/v1/overview").json()["jobs"]
    changes = found["changes"]
    assert {name: changes[name] for name in ("failures", "starts", "former_version")} == {
        "failures": 1,
        "starts": 1,
        "former_version": 1,
    }
    assert changes["failed_ms"] is not None


def tag(http: httpx.Client) -> dict[str, str]:
    return {"If-Match": http.get("/v1/jobs/visits").headers["ETag"]}


def fail(s: Session, job_id: str) -> None:
    error = {"code": "expression_failed", "detail": "no number"}
    job_states.fail_job(s, job_states.lock_job(s, job_id=job_id), error)


def test_before_the_first_sample_there_is_nothing_to_compare(catalog: Catalog) -> None:
    assert catalog.read(overview._look) is None
