"""Metrics of tasks and their operators, under the names of `/metrics` and `…/jobs/{job}/metrics`.

It knows those of tasks and stores, and rates; operators declare theirs (`service.streams.samples`). It refuses to know
where figures come from (`service.streams.measures`, the catalog, the stores) and how they are written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from service.catalog.totals import OperatorStore
from service.streams.operators import SPECS, StatefulSpec
from service.streams.samples import TOTAL, Measure, SampleFamily, Samples


class Size(NamedTuple):
    """The size of a store, or of one partition of it."""

    entries: int
    bytes: int


MEASURES: Final[dict[str, tuple[Measure, ...]]] = {
    spec.kind: spec.measures for spec in SPECS.values() if issubclass(spec, StatefulSpec)
}
_SIZES = (
    SampleFamily("store_entries", "gauge", "Keys in the store, those of indexes and of expired entries included"),
    SampleFamily("store_bytes", "gauge", "Bytes that the store takes where lookups read it"),
)
OPERATOR_FAMILIES = (
    tuple({family: None for measures in MEASURES.values() for each in measures for family in each.families}) + _SIZES
)
TASK_FAMILIES = (
    SampleFamily("task_lag_records", "gauge", "Records that the task has not read yet"),
    SampleFamily("batch_seconds", "summary", "Seconds to run a batch through its operators and encode its outputs"),
    SampleFamily("batch_seconds_max", "gauge", "Seconds that the slowest batch took"),
)
FLOW_FAMILIES = (
    SampleFamily("operator_records_in", "counter", "Records that the operator, sink or repartition stream was given"),
    SampleFamily("operator_records_out", "counter", "Records that it gave on"),
    SampleFamily("operator_busy_seconds", "counter", "Seconds that it took over them, of batches that were committed"),
)
DROPPED = SampleFamily("dropped_records", "counter", "Records that operators did not let through, by reason")
ADVANCES = SampleFamily("task_advances", "counter", "Times that stream time was moved without a record, by reason")


def of_operator(
    store: OperatorStore, reading: Mapping[str, Any], dropped: Mapping[str, int], size: Size | None
) -> Samples:
    """Samples of an operator with state. Those without a value are left out, but for counters and current values."""
    found: Samples = {}
    for measure in MEASURES.get(store.kind, ()):
        found |= measure.samples(reading, dropped, store.type)
    if size is not None:
        found |= {"store_entries": size.entries, "store_bytes": size.bytes}
    return found


def of_flow(flow: Mapping[str, int]) -> Samples:
    """Samples of an operator, a sink or a repartition stream of a task: what went through it, how long that took."""
    names = [family.name + TOTAL for family in FLOW_FAMILIES]
    return dict(zip(names, (flow["records_in"], flow["records_out"], flow["busy_us"] / 1e6), strict=True))


def of_task(counters: Mapping[str, Any], lag: int) -> Samples:
    """Samples of a task, or of a job with all of its tasks, beside those of operators."""
    found: Samples = {"task_lag_records": lag}
    if batches := counters.get("batch_us"):
        found["batch_seconds_count"] = batches["count"]
        found["batch_seconds_sum"] = batches["sum"] / 1e6
        found["batch_seconds_max"] = batches["max"] / 1e6
    return found


def with_rates(samples: Samples, seconds: float) -> Samples:
    """The same, and beside each `_total` a `_rate`: per second of `seconds`."""
    totals = {name: value for name, value in samples.items() if name.endswith(TOTAL)}
    return samples | {name.removesuffix(TOTAL) + "_rate": value / seconds for name, value in totals.items()}
