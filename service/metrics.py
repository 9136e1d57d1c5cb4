"""What the service counts, for Prometheus.

Knows names, labels and buckets. Refuses to know when something happens: those who do it count it here.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.catalog.overview import Figures

disable_created_metrics()  # type: ignore[no-untyped-call]  # they are a line of start times for each counter
REGISTRY = CollectorRegistry()

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


def exposition(figures: Figures) -> bytes:
    """This process's counts and the catalog's figures, as Prometheus reads them."""
    catalog = CollectorRegistry()
    catalog.register(_CatalogFigures(figures))
    return generate_latest(REGISTRY) + generate_latest(catalog)


class _CatalogFigures(Collector):
    """Figures that every process of the service tells alike, for they are the catalog's."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        yield _family(GaugeMetricFamily("millrace_jobs", "Jobs by state", labels=["state"]), figures.jobs)
        yield _family(
            GaugeMetricFamily("millrace_job_lag_records", "Records from positions to ends", labels=["job"]), figures.lag
        )
        yield _family(
            CounterMetricFamily("millrace_job_rebalances", "Rebalances of a job", labels=["job"]), figures.rebalances
        )
        yield _family(
            CounterMetricFamily("millrace_job_records_in", "Records taken in, committed", labels=["job"]),
            figures.records_in,
        )
        yield _family(
            CounterMetricFamily("millrace_job_records_out", "Records given out, committed", labels=["job"]),
            figures.records_out,
        )
        yield _family(
            CounterMetricFamily("millrace_job_dropped", "Records dropped", labels=["job", "operator", "reason"]),
            figures.dropped,
        )
        yield GaugeMetricFamily("millrace_live_instances", "Instances with a lease", figures.live_instances)
        yield GaugeMetricFamily("millrace_live_slots", "Slots with a lease", figures.live_slots)


Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


def _family(family: Family, values: Mapping[str, int] | Mapping[tuple[str, str, str], int]) -> Family:
    for labels, value in values.items():
        family.add_metric([labels] if isinstance(labels, str) else list(labels), value)
    return family
