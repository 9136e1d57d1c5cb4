"""Every operation of the API, called once through whatever client asks: a small life of a service.

Knows the order in which they are possible and what they need of each other. Refuses to know how a client is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

PATIENCE_MS = 60_000
COUNTS = {"op": "aggregate", "name": "n", "aggregates": {"n": {"fn": "count"}}}
OF_WINDOWS = {"type": "tumbling", "size_ms": 1_000}
OF_SESSIONS = {"type": "session", "gap_ms": 1_000}
SETTLED = {"wait": "running", "timeout_ms": PATIENCE_MS}
STOPPED = {"wait": "stopped", "timeout_ms": PATIENCE_MS}
NO_NUMBER = {"op": "filter", "where": "(value->>'n')::bigint > 1"}


class Answered(NamedTuple):
    """A status, the JSON of the answer if it was any, and its ETag."""

    status: int
    data: Any
    tag: str


class Asks(Protocol):
    """Calls an operation by its id."""

    def __call__(
        self,
        operation: str,
        *,
        path: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> Answered: ...


def call_all(ask: Asks, prefix: str) -> None:
    """Each once at least; streams and jobs are called `prefix`-something. The service has an instance that works, and
    one that is gone.
    """
    clicks, counted = f"{prefix}-clicks", f"{prefix}-counted"
    _look_around(ask)
    _with_streams(ask, clicks)
    _with_subscriptions(ask, clicks)
    position = _with_jobs(ask, prefix, clicks, counted)
    _with_stores(ask, prefix, position)
    _with_groups(ask, f"{prefix}-keys")
    _change_a_job(ask, prefix)
    _mend_a_job(ask, prefix, clicks)
    _with_tokens(ask)


def _look_around(ask: Asks) -> None:
    for operation in (
        "healthz",
        "readyz",
        "info",
        "prometheus_metrics",
        "list_aggregators",
        "get_series",
        "get_overview",
    ):
        ask(operation)
    ask("follow_topics", query={"topics": "/v1/jobs,/readyz", "timeout_ms": 0})
    instances = ask("list_instances", query={"limit": 100}).data["items"]
    ask("get_instance", path={"instance": instances[0]["id"]})
    [gone, *_] = [each for each in instances if each["state"] == "gone"]
    ask("drain_instance", path={"instance": gone["id"]})


def _with_streams(ask: Asks, clicks: str) -> None:
    ask("create_stream", body={"name": clicks, "partitions": 2})
    ask("list_streams", query={"limit": 1})
    ask("get_stream_series", path={"stream": clicks}, query={"step_ms": 60_000})
    at = {"stream": clicks}
    seen = ask("get_stream", path=at)
    ask("update_stream", path=at, headers={"If-Match": seen.tag}, body={"retention_ms": 86_400_000_000})
    records = [{"key": f"k{n}", "value": {"n": n}, "timestamp": 5_000 + n} for n in range(3)]
    ask("append_records", path=at, headers={"Idempotency-Key": "first"}, body={"records": records})
    page = ask("read_records", path=at, query={"limit": 2, "wait_ms": 1_000}).data
    assert len(page["records"]) == 2
    assert not page["at_end"]
    assert ask("read_records", path=at, query={"reverse": True, "key": "k1"}).data["records"][0]["key"] == "k1"
    ask("list_stream_usage", query={"limit": 1})
    assert sum(each["records"] for each in ask("get_stream_usage", path=at).data["partitions"]) == 3
    ask("export_records", path=at, query={"limit": 2})
    ask("tail_stream", path=at, query={"from": "earliest", "timeout_ms": 0})
    ask("create_stream", body={"name": f"{clicks}-doomed"})
    ask("delete_stream", path={"stream": f"{clicks}-doomed"})


def _with_subscriptions(ask: Asks, clicks: str) -> None:
    at = {"stream": clicks, "subscription": "billing"}
    ask("create_subscription", path={"stream": clicks}, body={"name": "billing", "start": "earliest"})
    ask("list_subscriptions", path={"stream": clicks}, query={"limit": 1})
    ask("get_subscription", path=at)
    pulled = ask("pull_records", path=at, body={"consumer": "one", "max": 10}).data
    assert len(pulled["records"]) == 3
    ask("acknowledge_records", path=at, body={"consumer": "one", "positions": pulled["positions"]})
    ask("delete_subscription", path=at)


def _with_jobs(ask: Asks, prefix: str, clicks: str, counted: str) -> str:
    """A job of each type of store, caught up; how far they have read."""
    spec = {"name": f"{prefix}-keys", "source": clicks, "operators": [COUNTS], "sink": counted, "keep_dropped": True}
    assert ask("validate_job", body=spec).data["topology"]
    simulated = ask(
        "simulate_job", body={"job": {"operators": [COUNTS]}, "records": [{"key": "k", "value": 1, "timestamp": 1}]}
    )
    assert simulated.data["outputs"][0]["value"] == {"n": 1}
    for name, window in ((f"{prefix}-windows", OF_WINDOWS), (f"{prefix}-sessions", OF_SESSIONS)):
        operators = [{**COUNTS, "window": window}]
        ask("create_job", query=SETTLED, body={"name": name, "source": clicks, "operators": operators})
    ask("create_job", query=SETTLED, body=spec)
    at = {"job": spec["name"]}
    ask("get_job", path=at, query={"wait": "caught_up", "timeout_ms": PATIENCE_MS})
    ask("list_jobs", query={"state": "running", "limit": 1})
    for operation in (
        "get_job_metrics",
        "get_job_time",
        "list_tasks",
        "get_topology",
        "list_dropped",
        "list_job_errors",
        "get_job_series",
    ):
        ask(operation, path=at)
    for operation in ("list_job_history", "list_job_versions"):
        ask(operation, path=at, query={"limit": 1})
    ask("get_job_version", path={**at, "version": 1})
    said = ask("explain_record", path=at, query={"key": "k0"}).data
    assert (said["verdict"], said["operator"], said["known_from"]) == ("in", "n", 0)
    posted = ask(
        "append_records",
        path={"stream": clicks},
        body={"records": [{"key": "k0", "value": {"n": 9}, "timestamp": 6_000}]},
    )
    return str(posted.data["position"])


def _with_stores(ask: Asks, prefix: str, position: str) -> None:
    ask("list_stores", query={"limit": 1})
    fresh = {"min_position": position, "timeout_ms": PATIENCE_MS}
    for kind in ("keys", "windows", "sessions"):
        at = {"store": f"{prefix}-{kind}-n"}
        ask("get_store", path=at)
        whole = ask(f"find_{kind}", path=at, query=fresh)
        assert {entry["key"] for entry in whole.data["items"]} == {"k0", "k1", "k2"}
        of_key = "find_key" if kind == "keys" else f"find_{kind}_of_key"
        assert ask(of_key, path={**at, "key": "k0"}, query={"limit": 1}).data["items"][0]["key"] == "k0"
    at = {"store": f"{prefix}-keys-n"}
    ask("get_owner", path=at, query={"key": "k0"})
    assert len(ask("look_up_keys", path=at, body={"keys": ["k0", "nobody"]}).data["items"]) == 1


def _with_groups(ask: Asks, job: str) -> None:
    at = {"job": job}
    generation = ask("get_group", path=at).data["generation"]
    ask("list_rebalances", path=at, query={"limit": 1})
    ask("get_rebalance", path={**at, "generation": generation})
    ask("plan_group", path=at, body={"add": [{"node": "further", "slots": 2}]})


def _change_a_job(ask: Asks, prefix: str) -> None:
    at = {"job": f"{prefix}-keys"}
    for operation in ("pause_job", "resume_job"):
        ask(operation, path=at)
    ask("flush_job", path=at, query={"wait": "caught_up", "timeout_ms": PATIENCE_MS})
    tag = ask("get_job", path=at).tag
    ask("change_job", path=at, headers={"If-Match": tag}, body={"commit_interval_ms": 50})
    ask("stop_job", path=at, query=STOPPED)
    spec = ask("get_job", path=at)
    changed = {**spec.data["spec"], "commit_interval_ms": 70}
    ask("put_job", path=at, query={"dry_run": True}, headers={"If-Match": spec.tag}, body=changed)
    ask("put_job", path=at, headers={"If-Match": spec.tag}, body=changed)
    tag = ask("get_job", path=at).tag
    ask("roll_back_job", path=at, headers={"If-Match": tag}, body={"version": 1})
    ask("copy_job", path=at, body={"name": f"{prefix}-copy", "sink": None, "start_paused": True})
    ask("replay_dropped", path=at, body={"reason": ["late"]})
    ask("restart_job", path=at, query={"wait": "caught_up", "timeout_ms": PATIENCE_MS})
    ask("stop_job", path=at, query=STOPPED)
    ask("reset_job_time", path=at, query={"dry_run": True}, body={"stream_time": 1})
    ask("reset_job", path=at, body={"start": "latest"})
    ask("delete_job", path=at)


def _mend_a_job(ask: Asks, prefix: str, clicks: str) -> None:
    """One that fails on a record goes on behind it."""
    at = {"job": f"{prefix}-failing"}
    ask("append_records", path={"stream": clicks}, body={"records": [{"value": {"n": "one"}, "partition": 0}]})
    ask("create_job", body={"name": at["job"], "source": clicks, "operators": [NO_NUMBER]})
    failed = ask("get_job", path=at, query={"wait": "caught_up", "timeout_ms": PATIENCE_MS}).data
    assert failed["error"]["code"] == "expression_failed"
    place = {"partition": failed["error"]["partition"], "offset": failed["error"]["offset"]}
    ask("skip_record", path=at, body=place)
    ask("restart_job", path=at, query={"wait": "caught_up", "timeout_ms": PATIENCE_MS})


def _with_tokens(ask: Asks) -> None:
    token = ask("create_token", body={"role": "reader", "name": "called"}).data["id"]
    ask("list_tokens", query={"limit": 1})
    ask("revoke_token", path={"token": token})
    audited = ask("list_audit", query={"what": "revoke_token", "from": 0, "limit": 1}).data["items"]
    assert [each["resource"] for each in audited] == [f"tokens/{token}"]
