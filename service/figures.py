"""What tasks and their operators measured, under the names that people see in `/metrics` and `…/jobs/{job}/metrics`.

It knows names (KIP-328's, where it has one), kinds and meanings, and makes averages and rates of sums. It refuses to
know where figures come from (`service.streams.measures`, the catalog, the stores) and how they are written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from service.catalog.overview import OperatorStore
from service.streams.measures import Reading

Samples = dict[str, float]  # by name; a count or a sum is a whole number

TOTAL = "_total"
LATE = ("late", "closed_idle")  # reasons to drop a record whose window has closed
EXPIRED = "expired"  # the reason of a store that does not keep the window any more


class Family(NamedTuple):
    """Samples that belong together: `<name>_total` of a counter, `<name>_count` and `<name>_sum` of a summary."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    meaning: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        endings = {"counter": (TOTAL,), "gauge": ("",), "summary": ("_count", "_sum")}
        return tuple(self.name + ending for ending in endings[self.kind])


class Size(NamedTuple):
    """How much a store, or one partition of it, holds."""

    entries: int
    bytes: int


LATENESS, EMIT = "record_lateness_ms", "suppression_emit"
OVERTIME = "intermediate_result_suppression_overtime_ms"
BUFFER_BYTES, BUFFER_COUNT = "suppression_buffer_size_bytes", "suppression_buffer_count"

OPERATOR_FAMILIES = (
    Family(LATENESS, "summary", "Stream time of the operator less the timestamp of each record that it took"),
    Family(f"{LATENESS}_avg", "gauge", "How late records were, on average"),
    Family(f"{LATENESS}_max", "gauge", "How late the latest record was"),
    Family("late_record_drop", "counter", "Records dropped for a window that had closed, once per window"),
    Family("expired_window_record_drop", "counter", "Records dropped for a window that the store had expired"),
    Family(BUFFER_BYTES, "gauge", "Bytes in the buffer of suppress"),
    Family(f"{BUFFER_BYTES}_samples", "summary", "Bytes in the buffer, at each change of it"),
    Family(f"{BUFFER_BYTES}_avg", "gauge", "Bytes in the buffer, on average over its changes"),
    Family(f"{BUFFER_BYTES}_max", "gauge", "Bytes in the buffer when it was largest"),
    Family(BUFFER_COUNT, "gauge", "Records in the buffer of suppress"),
    Family(f"{BUFFER_COUNT}_samples", "summary", "Records in the buffer, at each change of it"),
    Family(f"{BUFFER_COUNT}_avg", "gauge", "Records in the buffer, on average over its changes"),
    Family(f"{BUFFER_COUNT}_max", "gauge", "Records in the buffer when it was fullest"),
    Family(EMIT, "counter", "Records that suppress let go"),
    Family(OVERTIME, "summary", "How far stream time had passed the moment when a record could leave, as it left"),
    Family(f"{OVERTIME}_min", "gauge", "The least overtime of a record that left"),
    Family(f"{OVERTIME}_avg", "gauge", "Overtime of records that left, on average"),
    Family("store_entries", "gauge", "Keys in the store, those of indexes and of expired entries included"),
    Family("store_bytes", "gauge", "Bytes that the store takes where lookups read it"),
)
TASK_FAMILIES = (
    Family("task_lag_records", "gauge", "Records that the task has not read yet"),
    Family("batch_seconds", "summary", "Seconds to run a batch through its operators and encode what came out"),
    Family("batch_seconds_max", "gauge", "Seconds that the slowest batch took"),
)
DROPPED = Family("dropped_records", "counter", "Records that operators did not let through, by reason")
ADVANCES = Family("task_advances", "counter", "Times that stream time was moved without a record, by reason")


def of_operator(
    store: OperatorStore, reading: Mapping[str, Any], dropped: Mapping[str, int], size: Size | None
) -> Samples:
    """What an operator with state measured. What has no value yet is left out, but for counters and current values."""
    found = _spread(LATENESS, reading.get("lateness_ms"), "max")
    if store.has_windows:
        found["late_record_drop_total"] = sum(dropped.get(reason, 0) for reason in LATE)
        found["expired_window_record_drop_total"] = dropped.get(EXPIRED, 0)
    if store.kind == "suppress":
        found |= _buffer(BUFFER_BYTES, reading.get("buffer_bytes"))
        found |= _buffer(BUFFER_COUNT, reading.get("buffer_records"))
        found[EMIT + TOTAL] = reading.get("emitted", 0)
        found |= _spread(OVERTIME, reading.get("overtime_ms"), "min")
    if size is not None:
        found |= {"store_entries": size.entries, "store_bytes": size.bytes}
    return found


def of_task(counters: Mapping[str, Any], lag: int) -> Samples:
    """What a task, or a job with all of its tasks, counted beside its operators."""
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


def _buffer(name: str, reading: Reading | None) -> Samples:
    if not reading:
        return {name: 0}
    return {name: reading["last"], **_spread(name, reading, "max", of=f"{name}_samples")}


def _spread(name: str, reading: Reading | None, extreme: str, of: str = "") -> Samples:
    """Count and sum under the name `of`, or the same name; average and one extreme."""
    if not reading:
        return {}
    return {
        f"{of or name}_count": reading["count"],
        f"{of or name}_sum": reading["sum"],
        f"{name}_avg": reading["sum"] / reading["count"],
        f"{name}_{extreme}": reading[extreme],
    }
