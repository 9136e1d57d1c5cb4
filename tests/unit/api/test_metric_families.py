"""The names under which people see what was measured: averages and rates of sums, and a page that knows them all."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service import prometheus
from service.catalog.inputs import Lag
from service.catalog.totals import CatalogTotals, OperatorStore, TaskTotals
from service.metric_families import (
    ADVANCES,
    DROPPED,
    FLOW_FAMILIES,
    OPERATOR_FAMILIES,
    TASK_FAMILIES,
    Size,
    of_operator,
    of_task,
    with_rates,
)

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
SUPPRESS = OperatorStore("j", "final", 0, "s1", "key_value", "suppress")
SESSIONS = OperatorStore("j", "visits", 0, "s2", "session", "aggregate")
TOTALS = OperatorStore("j", "totals", 0, "s3", "key_value", "aggregate")
FAMILIES = (*OPERATOR_FAMILIES, *TASK_FAMILIES, *FLOW_FAMILIES, DROPPED, ADVANCES)

LATENESS = {"lateness_ms": {"count": 4, "sum": 10, "max": 7}}
BUFFER = {
    "buffer_records": {"count": 2, "sum": 5, "max": 3, "last": 2},
    "buffer_bytes": {"count": 2, "sum": 50, "max": 30, "last": 20},
    "emitted": 6,
    "overtime_ms": {"count": 4, "sum": 6, "min": 1, "max": 3},
}


def test_lateness_has_an_average_a_maximum_and_what_they_are_made_of() -> None:
    assert of_operator(TOTALS, LATENESS, {}, None) == {
        "record_lateness_ms_count": 4,
        "record_lateness_ms_sum": 10,
        "record_lateness_ms_avg": 2.5,
        "record_lateness_ms_max": 7,
    }


def test_an_operator_with_windows_counts_late_drops_of_both_reasons() -> None:
    found = of_operator(SESSIONS, {}, {"late": 3, "closed_idle": 2, "before_version": 4, "null_key": 9}, Size(5, 4096))
    assert found == {
        "late_record_drop_total": 5,
        "expired_window_record_drop_total": 0,
        "before_version_record_drop_total": 4,
        "store_entries": 5,
        "store_bytes": 4096,
    }


def test_suppress_tells_its_buffer_what_it_let_go_and_by_how_much_over_time() -> None:
    assert of_operator(SUPPRESS, BUFFER, {}, None) == {
        "suppression_buffer_size_bytes": 20,
        "suppression_buffer_size_bytes_samples_count": 2,
        "suppression_buffer_size_bytes_samples_sum": 50,
        "suppression_buffer_size_bytes_avg": 25,
        "suppression_buffer_size_bytes_max": 30,
        "suppression_buffer_count": 2,
        "suppression_buffer_count_samples_count": 2,
        "suppression_buffer_count_samples_sum": 5,
        "suppression_buffer_count_avg": 2.5,
        "suppression_buffer_count_max": 3,
        "suppression_emit_total": 6,
        "intermediate_result_suppression_overtime_ms_count": 4,
        "intermediate_result_suppression_overtime_ms_sum": 6,
        "intermediate_result_suppression_overtime_ms_min": 1,
        "intermediate_result_suppression_overtime_ms_avg": 1.5,
    }


def test_a_suppress_that_has_done_nothing_holds_nothing_and_has_no_averages() -> None:
    assert of_operator(SUPPRESS, {}, {}, None) == {
        "suppression_buffer_size_bytes": 0,
        "suppression_buffer_count": 0,
        "suppression_emit_total": 0,
    }


def test_batch_times_are_seconds() -> None:
    found = of_task({"batch_us": {"count": 2, "sum": 3_000_000, "max": 2_500_000}}, 7)
    assert found == {
        "task_lag_records": 7,
        "batch_seconds_count": 2,
        "batch_seconds_sum": 3.0,
        "batch_seconds_max": 2.5,
    }


def test_a_rate_is_the_total_by_the_seconds() -> None:
    assert with_rates({"x_total": 6, "y": 1}, 4.0) == {"x_total": 6, "x_rate": 1.5, "y": 1}


def exposed(*tasks: TaskTotals) -> str:
    figures = CatalogTotals(
        jobs={},
        rebalances={},
        live_instances=0,
        live_slots=0,
        jobs_without_cores=0,
        tasks=tasks,
        stores=[SESSIONS, SUPPRESS],
    )
    return prometheus.exposition(figures, {("s1", 0): Size(1, 2), ("s2", 0): Size(3, 4)}).decode()


FULL = {
    "operators": {"visits": LATENESS, "final": {**LATENESS, **BUFFER}},
    "dropped": {"visits": {"late": 1, "null_key": 2}},
    "flow": {
        "visits": {"records_in": 4, "records_out": 3, "busy_us": 2_500_000},
        "sink-0": {"records_in": 3, "records_out": 2, "busy_us": 0},
    },
    "advances": {"idle": 1},
    "batch_us": {"count": 1, "sum": 1, "max": 1},
}


def test_every_family_is_exposed_with_job_task_and_operator() -> None:
    found = {
        family.name: family
        for family in text_string_to_metric_families(exposed(TaskTotals("j", "0_0", 0, 0, FULL, Lag(3, 0))))
    }
    for family in FAMILIES:
        exposed_one = found["millrace_" + family.name]
        assert (exposed_one.type, exposed_one.documentation) == (family.kind, family.meaning)
        assert {sample.name for sample in exposed_one.samples} == {"millrace_" + name for name in family.samples}
        labels = {"job", "task"} | (set() if family in (*TASK_FAMILIES, ADVANCES) else {"operator"})
        labels |= {"reason"} if family in (DROPPED, ADVANCES) else set()
        assert all(set(sample.labels) == labels for sample in exposed_one.samples)


def test_what_goes_through_is_said_of_operators_and_sinks() -> None:
    text = exposed(TaskTotals("j", "0_0", 0, 0, FULL, Lag(3, 0)))
    assert 'millrace_operator_records_in_total{job="j",operator="visits",task="0_0"} 4.0' in text
    assert 'millrace_operator_records_out_total{job="j",operator="sink-0",task="0_0"} 2.0' in text
    assert 'millrace_operator_busy_seconds_total{job="j",operator="visits",task="0_0"} 2.5' in text


def test_figures_of_tasks_stay_apart() -> None:
    text = exposed(TaskTotals("j", "0_0", 0, 0, FULL, Lag(3, 0)), TaskTotals("j", "0_1", 0, 1, {}, Lag(0, 0)))
    assert 'millrace_task_lag_records{job="j",task="0_0"} 3.0' in text
    assert 'millrace_task_lag_records{job="j",task="0_1"} 0.0' in text
    assert 'millrace_suppression_buffer_count{job="j",operator="final",task="0_0"} 2.0' in text
    assert 'millrace_suppression_buffer_count{job="j",operator="final",task="0_1"} 0.0' in text
    assert 'millrace_store_entries{job="j",operator="visits",task="0_0"} 3.0' in text
    assert 'millrace_store_entries{job="j",operator="visits",task="0_1"}' not in text


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_the_page_on_metrics_has_it(name: str) -> None:
    written = re.findall(r"`millrace_([a-z_]+)`", PAGE.read_text())
    assert any(name == each or name + "_total" == each for each in written)


def test_the_page_on_metrics_names_nothing_else() -> None:
    samples = {name for each in FAMILIES for name in (each.name, *each.samples)}
    own = {family.name for family in text_string_to_metric_families(exposed())}
    known = {"millrace_" + name for name in samples} | own | {name + "_total" for name in own}
    assert {f"millrace_{name}" for name in re.findall(r"`millrace_([a-z_]+)`", PAGE.read_text())} <= known
