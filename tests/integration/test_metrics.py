"""What a running job shows of itself: `/metrics` as Prometheus reads it, `…/jobs/{job}/metrics` as JSON."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from service.catalog.engine import Catalog
from service.lookups import InRedis, Lookups, reader
from service.metric_families import Size
from service.notify import Hub
from service.storage.view import TIMEOUT_S, Views
from tests import openapi_documents
from tests.forkserver import ForkServer
from tests.serving import Serving, serving
from tests.sparkless import instance

Json = dict[str, Any]

JOB = {
    "name": "visits",
    "source": "clicks",
    "operators": [
        {
            "op": "aggregate",
            "name": "sessions",
            "window": {"type": "session", "gap_ms": 1_000, "grace_ms": 500},
            "aggregates": {"n": {"fn": "count"}},
        },
        {"op": "suppress", "name": "final", "until": "window_closes"},
    ],
    "commit_interval_ms": 0,
}
FIRST = [("a", 1_000), ("b", 1_200), (None, 9_000), ("a", 1_100), ("b", 6_000)]  # b at 6,000 closes both sessions
SECOND = [("a", 2_000), ("c", 5_500)]  # a at 2,000 is late


def post(service: httpx.Client, records: list[tuple[str | None, int]]) -> None:
    body = {"records": [{"key": key, "timestamp": time, "value": None, "partition": 0} for key, time in records]}
    service.post("/v1/streams/clicks/records", json=body).raise_for_status()
    wait = {"wait": "caught_up", "timeout_ms": 60_000}
    assert service.get("/v1/jobs/visits", params=wait).raise_for_status().json()["caught_up"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes, forks: ForkServer) -> Iterator[Serving]:
    """A job that has read FIRST and then SECOND in partition 0; partition 1 is empty."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db") as running:
        http = running.client("writer")
        http.post("/v1/streams", json={"name": "clicks", "partitions": 2}).raise_for_status()
        http.post("/v1/jobs", json={**JOB, "trust_partitions": True}).raise_for_status()
        with instance(running, forks, folder / "replicas"):
            post(http, FIRST)
            post(http, SECOND)
            yield running


@pytest.fixture(scope="module")
def samples(service: Serving) -> dict[tuple[str, str | None, str | None], float]:
    """The samples of task 0_0 by name, operator and reason."""
    families = text_string_to_metric_families(service.client("reader").get("/metrics").raise_for_status().text)
    return {
        (sample.name, sample.labels.get("operator"), sample.labels.get("reason")): sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("job") == "visits" and sample.labels.get("task") == "0_0"
    }


SESSIONS = {
    "record_lateness_ms_count": 6,  # all but the record without a key
    "record_lateness_ms_sum": 100 + 4_000 + 500,
    "record_lateness_ms_max": 4_000,
    "late_record_drop_total": 1,
    "expired_window_record_drop_total": 0,
    "before_version_record_drop_total": 0,
}
# Reaches suppress: [1000, 1000] of a; [1200, 1200] of b; the tombstone of a's and [1000, 1100]; [6000, 6000] of b,
# at which what ended at 1000 (a tombstone), 1100 and 1200 leaves; [5500, 5500] of c, which stays.
FINAL = {
    "record_lateness_ms_count": 6,
    "record_lateness_ms_sum": 200 + 100 + 500,
    "record_lateness_ms_max": 500,
    "suppression_emit_total": 2,
    "suppression_buffer_count": 2,
    "suppression_buffer_count_max": 4,
    "suppression_buffer_count_samples_count": 7,
    "suppression_buffer_count_samples_sum": 1 + 2 + 2 + 3 + 4 + 1 + 2,
    "intermediate_result_suppression_overtime_ms_min": 6_000 - 1_501 - 1_200,
    "intermediate_result_suppression_overtime_ms_avg": 6_000 - 1_501 - 1_150,
}


@pytest.mark.parametrize(("operator", "name"), [*(("sessions", n) for n in SESSIONS), *(("final", n) for n in FINAL)])
def test_a_figure_of_an_operator_is_exact_and_the_same_in_both_places(
    service: Serving, samples: dict[Any, float], operator: str, name: str
) -> None:
    expected = {"sessions": SESSIONS, "final": FINAL}[operator][name]
    assert samples[f"millrace_{name}", operator, None] == expected
    body = service.client("reader").get("/v1/jobs/visits/metrics").json()
    assert body["operators"][operator][name] == expected
    assert body["tasks"]["0_0"]["operators"][operator][name] == expected


def test_drops_are_told_by_reason_and_suppress_has_none(samples: dict[Any, float]) -> None:
    dropped = {key[1:]: value for key, value in samples.items() if key[0] == "millrace_dropped_records_total"}
    assert dropped == {("sessions", "late"): 1, ("sessions", "null_key"): 1}


def test_stores_are_as_large_as_lookups_say(service: Serving, samples: dict[Any, float]) -> None:
    for operator in ("sessions", "final"):
        store = service.client("reader").get(f"/v1/stores/visits-{operator}").json()
        assert samples["millrace_store_entries", operator, None] == store["partitions"][0]["entries"] > 0
        assert samples["millrace_store_bytes", operator, None] == store["partitions"][0]["bytes"] > 0
        body = service.client("reader").get("/v1/jobs/visits/metrics").json()["operators"][operator]
        assert (body["store_entries"], body["store_bytes"]) == (store["entries"], store["bytes"])


def test_batches_and_lag_are_told_by_task(service: Serving, samples: dict[Any, float]) -> None:
    body = service.client("reader").get("/v1/jobs/visits/metrics").json()
    assert (
        samples["millrace_task_lag_records", None, None] == body["lag"] == body["tasks"]["0_1"]["task_lag_records"] == 0
    )
    count = samples["millrace_batch_seconds_count", None, None]
    assert 2 <= count == body["batch_seconds_count"] <= len(FIRST + SECOND)
    assert 0 < samples["millrace_batch_seconds_max", None, None] <= samples["millrace_batch_seconds_sum", None, None]


def test_the_json_has_rates_since_the_job_was_made(service: Serving) -> None:
    body = service.client("reader").get("/v1/jobs/visits/metrics").json()
    assert body["since"] == service.client("reader").get("/v1/jobs/visits").json()["created_at"]
    assert body["records_in"] == len(FIRST + SECOND)
    seconds = body["records_in"] / body["records_in_rate"]
    assert 0 < seconds < 600
    assert body["operators"]["sessions"]["late_record_drop_rate"] == pytest.approx(1 / seconds)
    assert body["operators"]["final"]["suppression_emit_rate"] == pytest.approx(2 / seconds)


def test_stores_that_can_not_be_read_in_time_are_left_out(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SIZES_S", 0.2)

    async def ask(url: str) -> dict[tuple[str, int], Size]:
        source = InRedis(Views(url))
        found = await Lookups(catalog, Hub(), source).reader.sizes([("store", 0), ("store", 1)])
        await source.close()
        return found

    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert asyncio.run(ask(f"redis://127.0.0.1:{silent.getsockname()[1]}")) == {}
        assert time.monotonic() - began < TIMEOUT_S


def test_the_answer_is_what_openapi_says(service: Serving) -> None:
    http = service.client("reader")
    document = openapi_documents.for_people()
    declared = document["paths"]["/v1/jobs/{job}/metrics"]["get"]["responses"]["200"]["content"]["application/json"]
    schema = {**declared["schema"], "components": document["components"]}
    body = http.get("/v1/jobs/visits/metrics").json()
    assert [fault.message for fault in Draft202012Validator(schema).iter_errors(body)] == []
    assert set(body["operators"]["final"]) <= set(
        document["components"]["schemas"]["OperatorMetricsView"]["properties"]
    )
