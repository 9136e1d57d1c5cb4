"""`on_error: dead_letter`: a record at which an operator fails is kept with its error, and the job goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving import Serving

pytestmark = pytest.mark.services

Json = dict[str, Any]

TOTAL = {
    "op": "aggregate",
    "name": "total",
    "aggregates": {"sum": {"fn": "sum", "of": "(value->>'v')::bigint"}},
}
ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 1_000}


def run(service: Serving, name: str, values: list[Json], **more: Any) -> tuple[Json, list[Json], list[Json]]:
    """A job over these values: how it stands then, what came out, what it kept of what it dropped."""
    http = service.client("writer")
    http.post("/v1/streams", json={"name": f"{name}-in"}).raise_for_status()
    records = [{"key": "k", "value": value, "timestamp": i} for i, value in enumerate(values)]
    http.post(f"/v1/streams/{name}-in/records", json={"records": records}).raise_for_status()
    job = {"name": name, "source": f"{name}-in", "sink": f"{name}-out", "operators": [ONCE, TOTAL]}
    http.post("/v1/jobs", json=job | {"on_error": "dead_letter", "commit_interval_ms": 0} | more).raise_for_status()
    wait = {"wait": "caught_up", "timeout_ms": 60_000}
    found = http.get(f"/v1/jobs/{name}", params=wait).raise_for_status().json()
    read = [http.get(f"/v1/streams/{name}-{of}/records", params={"partition": 0}) for of in ("out", "dropped")]
    out, dropped = (answer.raise_for_status().json()["records"] for answer in read)
    return found, out, dropped


VALUES = [
    {"id": 1, "v": 2**63 - 1},
    {"id": 2, "v": "many"},
    {"id": 3, "v": 1},
    {"id": 1, "v": 5},
    {"id": 4, "v": -1},
]


def test_what_fails_is_kept_with_its_error_and_the_job_goes_on(working: Serving) -> None:
    found, out, dropped = run(working, "dead", VALUES)
    assert (found["state"], found["caught_up"], found["error"]) == ("running", True, None)
    assert [record["value"]["sum"] for record in out] == [2**63 - 1, 2**63 - 2]
    assert [(record["value"]["v"], record["timestamp"]) for record in dropped] == [("many", 1), (1, 2)]
    said = [record["headers"] for record in dropped]
    assert [(each["millrace-operator"], each["millrace-reason"], each["millrace-offset"]) for each in said] == [
        ("total", "expression_failed", "1"),
        ("total", "integer_overflow", "2"),
    ]
    assert "Could not convert string 'many'" in said[0]["millrace-error"]
    assert "passes 64 bits" in said[1]["millrace-error"]
    counts = working.client("reader").get("/v1/jobs/dead/dropped").json()
    assert counts["stream"] == "dead-dropped"
    assert {(each["operator"], each["reason"]): each["records"] for each in counts["items"]} == {
        ("once", "duplicate"): 1,
        ("total", "expression_failed"): 1,
        ("total", "integer_overflow"): 1,
    }


def test_with_keep_dropped_what_is_no_failure_is_kept_too_without_an_error(working: Serving) -> None:
    _, _, dropped = run(working, "kept", VALUES, keep_dropped=True, max_batch_records=1)
    reasons = [(each["headers"]["millrace-reason"], "millrace-error" in each["headers"]) for each in dropped]
    assert reasons == [("expression_failed", True), ("integer_overflow", True), ("duplicate", False)]


def test_simulate_says_what_the_job_failed_at(working: Serving) -> None:
    records = [{"key": "k", "value": value, "timestamp": i} for i, value in enumerate(VALUES)]
    body = {"job": {"operators": [ONCE, TOTAL], "on_error": "dead_letter"}, "records": records}
    answer = working.client("reader").post("/v1/jobs:simulate", json=body).raise_for_status().json()
    assert [output["value"]["sum"] for output in answer["outputs"]] == [2**63 - 1, 2**63 - 2]
    failed = {each["reason"]: each.get("error") for each in answer["dropped"]}
    assert failed["duplicate"] is None
    assert "Could not convert string 'many'" in failed["expression_failed"]
    assert "passes 64 bits" in failed["integer_overflow"]
