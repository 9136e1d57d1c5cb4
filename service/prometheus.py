"""Counters of the service and figures of the catalog, as Prometheus reads them.

Knows names, labels and buckets. Refuses to know when something happens: those who do it count it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.catalog.totals import CatalogTotals, OperatorStore, TaskTotals
from service.metric_families import (
    ADVANCES,
    DROPPED,
    FLOW_FAMILIES,
    OPERATOR_FAMILIES,
    TASK_FAMILIES,
    Size,
    of_flow,
    of_operator,
    of_task,
)
from service.streams.samples import TOTAL, SampleFamily, Samples

disable_created_metrics()  # type: ignore[no-untyped-call]  # they are a line of start times for each counter
REGISTRY = CollectorRegistry()
PREFIX = "millrace_"

REQUESTS = Counter("millrace_http_requests", "Requests answered", ["method", "route", "status"], registry=REGISTRY)
REQUEST_SECONDS = Histogram(
    "millrace_http_request_seconds",
    "Seconds to answer, waiting included",
    ["method", "route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
INGESTED_RECORDS = Counter("millrace_ingested_records", "Records acknowledged to producers", registry=REGISTRY)
INGESTED_BYTES = Counter("millrace_ingested_bytes", "Decoded bytes of posts of records", registry=REGISTRY)
INGEST_BUFFERED_BYTES = Gauge(
    "millrace_ingest_buffered_bytes", "Bytes of posts of records that are not answered yet", registry=REGISTRY
)
COMMITS = Counter("millrace_commits", "Commits of tasks by outcome", ["status"], registry=REGISTRY)
TAILS = Gauge("millrace_tails", "Readers that follow a stream", registry=REGISTRY)
TAIL_OVERRUNS = Counter("millrace_tail_overruns", "Tails that were ended because they were too slow", registry=REGISTRY)
EVENT_STREAMS = Gauge("millrace_event_streams", "Streams of events that somebody follows", registry=REGISTRY)
EVENT_TOPICS = Gauge("millrace_event_topics", "Different topics that they follow together", registry=REGISTRY)
EVENT_LOOKS = Counter("millrace_event_looks", "Times that a topic was asked for", registry=REGISTRY)
EVENT_BYTES = Counter("millrace_event_bytes", "Bytes of events sent", registry=REGISTRY)
SUBSCRIPTION_PULLS = Counter(
    "millrace_subscription_pulls", "Pulls of subscriptions by outcome", ["outcome"], registry=REGISTRY
)
SUBSCRIPTION_EXPIRED_LEASES = Counter(
    "millrace_subscription_expired_leases", "Leases of consumers that ran out", registry=REGISTRY
)
TAIL_FILTERS = Gauge(
    "millrace_tail_filters", "Processes that conditions of tails and searches run in", registry=REGISTRY
)
TAIL_FILTER_FAILURES = Counter(
    "millrace_tail_filter_failures", "Records for which the condition of a tail or a search failed", registry=REGISTRY
)
WEBHOOKS = Counter("millrace_webhooks", "Attempts to post a record to a target", ["outcome"], registry=REGISTRY)
LOOP_FAILURES = Counter(
    "millrace_loop_failures", "Rounds of a background loop that failed", ["loop"], registry=REGISTRY
)


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    """A request was answered."""
    requests, duration = _of_request(method, route, status)
    requests.inc()
    duration.observe(seconds)


@cache
def _of_request(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return REQUESTS.labels(method, route, status), REQUEST_SECONDS.labels(method, route)


def exposition(totals: CatalogTotals, sizes: Mapping[tuple[str, int], Size]) -> bytes:
    """This process's counts and the catalog's figures, as Prometheus reads them.

    `sizes`: by store id and partition, of those that are known.
    """
    catalog = CollectorRegistry()
    catalog.register(_CatalogCollector(totals))
    catalog.register(_TaskCollector(totals, sizes))
    return generate_latest(REGISTRY) + generate_latest(catalog)


class _CatalogCollector(Collector):
    """Totals of the catalog: the same from every process of the service."""

    def __init__(self, totals: CatalogTotals) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        totals = self._totals
        yield _family(GaugeMetricFamily("millrace_jobs", "Jobs by state", labels=["state"]), totals.jobs)
        yield _family(
            GaugeMetricFamily("millrace_job_lag_records", "Records from positions to ends", labels=["job"]), totals.lag
        )
        yield _family(
            GaugeMetricFamily("millrace_job_repartition_bytes", "Bytes in repartition streams", labels=["job"]),
            totals.repartition_bytes,
        )
        yield _family(
            GaugeMetricFamily(
                "millrace_job_repartition_lag_records", "Records unread in repartition streams", labels=["job"]
            ),
            totals.repartition_lag,
        )
        yield _family(
            GaugeMetricFamily("millrace_job_version", "The version of a job", labels=["job"]), totals.versions
        )
        copies = GaugeMetricFamily(
            "millrace_copy_lag_records",
            "Records that a standby or a warm-up has still to replay",
            labels=["job", "task", "node", "role"],
        )
        for copy in totals.copies:
            copies.add_metric(copy[:-1], copy.lag)
        yield copies
        yield from self._subscriptions()
        yield _family(
            CounterMetricFamily("millrace_job_rebalances", "Rebalances of a job", labels=["job"]), totals.rebalances
        )
        yield _family(
            CounterMetricFamily("millrace_job_records_in", "Records taken in, committed", labels=["job"]),
            totals.records_in,
        )
        yield _family(
            CounterMetricFamily("millrace_job_records_out", "Records given out, committed", labels=["job"]),
            totals.records_out,
        )
        yield GaugeMetricFamily("millrace_live_instances", "Instances with a lease", totals.live_instances)
        yield GaugeMetricFamily("millrace_live_slots", "Slots with a lease", totals.live_slots)
        yield GaugeMetricFamily(
            "millrace_jobs_without_cores", "Jobs that want to run and have no core", totals.jobs_without_cores
        )

    def _subscriptions(self) -> Iterator[Metric]:
        labels = ["stream", "subscription"]
        records = GaugeMetricFamily(
            "millrace_subscription_lag_records", "Records that a subscription has not acknowledged", labels=labels
        )
        age = GaugeMetricFamily(
            "millrace_subscription_lag_ms", "Age of the oldest record that is not acknowledged", labels=labels
        )
        for lag in self._totals.subscriptions:
            records.add_metric([lag.stream, lag.subscription], lag.records)
            if lag.ms is not None:
                age.add_metric([lag.stream, lag.subscription], lag.ms)
        yield records
        yield age


class _TaskCollector(Collector):
    """Metrics of tasks and operators: the families of `service.metric_families`, by job, task and operator."""

    def __init__(self, totals: CatalogTotals, sizes: Mapping[tuple[str, int], Size]) -> None:
        self._tasks = totals.tasks
        self._sizes = sizes
        self._stores: dict[tuple[str, int], list[OperatorStore]] = {}
        for store in totals.stores:
            self._stores.setdefault((store.job, store.sub_topology), []).append(store)

    def collect(self) -> Iterator[Metric]:
        yield from _metrics(
            TASK_FAMILIES, [(_labels(task), of_task(task.counters, task.lag.records)) for task in self._tasks]
        )
        yield from _metrics(OPERATOR_FAMILIES, list(self._of_operators()))
        yield from _metrics(FLOW_FAMILIES, list(self._flow()))
        yield from _metrics([DROPPED], list(self._dropped()))
        yield from _metrics([ADVANCES], list(self._advances()))

    def _of_operators(self) -> Iterator[Labelled]:
        for task in self._tasks:
            for store in self._stores.get((task.job, task.sub_topology), []):
                reading = task.counters.get("operators", {}).get(store.operator, {})
                dropped = task.counters.get("dropped", {}).get(store.operator, {})
                size = self._sizes.get((store.id, task.partition))
                yield _labels(task, operator=store.operator), of_operator(store, reading, dropped, size)

    def _flow(self) -> Iterator[Labelled]:
        for task in self._tasks:
            for name, flow in task.counters.get("flow", {}).items():
                yield _labels(task, operator=name), of_flow(flow)

    def _dropped(self) -> Iterator[Labelled]:
        for task in self._tasks:
            for operator, reasons in task.counters.get("dropped", {}).items():
                for reason, records in reasons.items():
                    yield _labels(task, operator=operator, reason=reason), {DROPPED.name + TOTAL: records}

    def _advances(self) -> Iterator[Labelled]:
        for task in self._tasks:
            for reason, times in task.counters.get("advances", {}).items():
                yield _labels(task, reason=reason), {ADVANCES.name + TOTAL: times}


Labelled = tuple[dict[str, str], Samples]


def _labels(task: TaskTotals, **more: str) -> dict[str, str]:
    return {"job": task.job, "task": task.task, **more}


def _metrics(families: Iterable[SampleFamily], rows: Sequence[Labelled]) -> Iterator[Metric]:
    for family in families:
        metric = Metric(PREFIX + family.name, family.meaning, family.kind)
        for labels, samples in rows:
            for name in family.samples:
                if name in samples:
                    metric.add_sample(PREFIX + name, labels, samples[name])
        yield metric


Labels = TypeVar("Labels", GaugeMetricFamily, CounterMetricFamily)


def _family(family: Labels, values: Mapping[str, int]) -> Labels:
    for label, value in values.items():
        family.add_metric([label], value)
    return family
