"""An example of any shape that an operation takes or answers, made of examples of its members.

Knows what values look like: of one shop whose clicks are counted by visit. Refuses to know shapes; that each example is
what its schema asks for is a test's business.
"""

from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

_ID: Final = "0f8fad5bd9cb469fa165b4e6d0a0b7c1"
_SLOT: Final = "7c9e6679f5b44e2a9c1d3b2a1f0e8d77"
_INSTANCE: Final = "3b241101e2bb4255ab3e7d1f0c5a9b62"
_NODE: Final = "9d3c5a1b7e2f4c6d8a0b1c2d3e4f5a6b"
_POSITION: Final = "eyJzIjoiY2xpY2tzIn0"
_TIME: Final = 1_700_000_000_000
_CREATED: Final = "2023-11-14T22:13:20.000+00:00"
_AGGREGATE: Final[Json] = {
    "op": "aggregate",
    "name": "visits",
    "window": {"type": "session", "gap_ms": 1_800_000},
    "aggregates": {"n": {"fn": "count"}},
}
_SPEC: Final[Json] = {"name": "visits", "source": "clicks", "operators": [_AGGREGATE], "sink": "visits-out"}
_CHUNK_META: Final = [_ID, 0, 3, _TIME, _TIME, 0, 512, 305_419_896]
_CHUNK: Final = ["segments/0f/0f8fad5b.arrow", _ID, 0, 0, 512, 305_419_896, 0, 3, 3]

_POINTS: Final = [_TIME - 60_000, _TIME]
_RATES: Final = [16.5, None]
_LEVELS: Final = [3, None]
_SERIES: Final[Json] = {  # two points, the second of a minute in which nobody looked
    "JobSeriesView": dict.fromkeys(("records_in", "records_out", "dropped", "busy", "batch_ms"), _RATES)
    | dict.fromkeys(("lag", "stream_time", "store_bytes", "store_entries"), _LEVELS)
    | {"totals": {"records_in": 990, "records_out": 990, "dropped": 990}},
    "DropSeriesView": {"reason": "late", "records": _RATES, "total": 990},
    "StreamSeriesView": {"records": _RATES, "bytes": _RATES, "totals": {"records": 990, "bytes": 40_000}},
    "ServiceSeriesView": dict.fromkeys(
        ("appended_records", "appended_bytes", "records_in", "records_out", "dropped", "busy"), _RATES
    )
    | dict.fromkeys(("lag", "store_bytes"), _LEVELS),
}

# By schema and name, or by name; an ellipsis: made of its members, whatever stands under its name.
VALUES: Final[dict[str, Any]] = {
    "acceptable_recovery_lag": 10_000,
    "adopt": None,
    "adopted": None,
    "advance": None,
    "applied": {_ID: 42},
    "assignor": "high_availability",
    "at": _CREATED,
    "at_end": True,
    "at_ms": _TIME,
    "by": None,
    "bytes": 4_096,
    "change": None,
    "changelog": "visits-visits-changelog",
    "changelogs": {"visits-visits": 42},
    "closed_to": None,
    "closes_at": _TIME + 1_800_000,
    "code": "expression_failed",
    "commit_id": _ID,
    "consumer": "billing-1",
    "cores": 4,
    "created_at": _CREATED,
    "database": "sqlite",
    "detail": "the operator keeps its store",
    "details": {"version": 2},
    "directive": "run",
    "doc": "How many records there are.",
    "dropped": {"visits": {"late": 2}},
    "end": 42,
    "end_offset": 42,
    "entries": 7,
    "epoch": 3,
    "error": None,
    "executor": "1",
    "executors": ["1"],
    "fields": {"id": "string", "amount": "double?"},
    "first": 10,
    "former": None,
    "from_node": _NODE,
    "from_state": "starting",
    "generation": 5,
    "headers": {},
    "host": "worker-1",
    "id": _ID,
    "incarnation": "18f2c3",
    "instance": _INSTANCE,
    "instance_id": _INSTANCE,
    "interval_ms": None,
    "is_final": False,
    "job": "visits",
    "joined_at": _CREATED,
    "key": "u1",
    "keys": ["u1"],
    "kind": "aggregate",
    "known": "",
    "lag": 3,
    "lag_records": 3,
    "lag_s": 0.5,
    "last": 19,
    "layouts": None,
    "lease_ms": 10_000,
    "lease_until": _CREATED,
    "heard_at": _CREATED,
    "worked_at": _CREATED,
    "leaves_by": None,
    "lineage": _ID,
    "max_bytes": None,
    "max_future_ms": 3_600_000,
    "max_records": None,
    "min": 1,
    "name": "visits",
    "next": None,
    "node": _NODE,
    "offset": 41,
    "op": "aggregate",
    "operator": "visits",
    "origin": None,
    "package": "millrace",
    "parent": None,
    "partition": 0,
    "place": "18f2c3",
    "pointer": "/sink",
    "position": 39,
    "problem": None,
    "pulled_at": _CREATED,
    "rack_tags": [],
    "reason": "running",
    "records": 42,
    "redis_url": None,
    "replay": None,
    "replayed": None,
    "restart": [],
    "retention_ms": 604_800_000,
    "revoked_at": None,
    "last_used_at": _CREATED,
    "lost_at": _CREATED,
    "role": "active",
    "segments": [_ID],
    "served_by": "worker-1",
    "shortage": None,
    "since": _CREATED,
    "size_ms": 60_000,
    "slot": _SLOT,
    "sources": ["clicks"],
    "spark": {"version": "4.3.0"},
    "spec": _SPEC,
    "spec_sha256": "",
    "start": 0,
    "start_offset": 0,
    "storage_uri": "file:///var/lib/millrace/segments",
    "store": "visits-visits",
    "stores": ["visits-visits"],
    "stream": "clicks",
    "stream_id": _ID,
    "stream_time": _TIME,
    "sub_log": None,
    "tags": {"zone": "a"},
    "task": "0_0",
    "tasks": ["0_0"],
    "timestamp": _TIME,
    "to_node": _NODE,
    "to_state": "running",
    "took_ms": 120,
    "upstreams": [],
    "value": {"n": 3},
    "version": 2,
    "was": _TIME,
    "where": None,
    "who": "admin",
    "window": {"start": _TIME, "end": _TIME + 60_000},
    "AssignmentCaseView.stateful": ["0_0"],
    "FailRequest.error": ...,
    "HeartbeatRequest.shortage": "",
    "JobMetricsView.tasks": ...,
    "NodeView.instances": [_INSTANCE],
    "OperatorNodeView.store": ...,
    "PollAnswer.tasks": ...,
    "PollRequest.tasks": ...,
    "RecordPage.records": ...,
    "SlotRequest.node": ...,
    "TaskCommit.segments": ...,
    "TimeResetView.tasks": ...,
    "AggregatorView.kind": "built_in",
    "AggregatorView.name": "count",
    "AggregatorView.version": "0.1.0",
    "AppendedView.accepted": 10,
    "AppendedView.position": _POSITION,
    "AppendedView.warnings": None,
    "AsOfView.position": _POSITION,
    "AssignedTask.skips": [],
    "AuditEntryView.at": _CREATED,
    "AuditEntryView.change": {"name": "visits", "source": "clicks"},
    "AuditEntryView.id": 7,
    "AuditEntryView.key_id": _ID,
    "AuditEntryView.method": "POST",
    "AuditEntryView.path": "/v1/jobs",
    "AuditEntryView.request_id": _ID,
    "AuditEntryView.resource": "jobs/visits",
    "AuditEntryView.role": "writer",
    "AuditEntryView.status": 201,
    "AuditEntryView.what": "create_job",
    "AssignmentAnswerView.active": {_NODE: ["0_0"]},
    "AssignmentAnswerView.standby": {_NODE: []},
    "AssignmentNodeView.active": ["0_0"],
    "AssignmentNodeView.lags": {},
    "BoxView.counted_as": "visits",
    "BoxView.lines": ["visits", "aggregate: session window", "store visits-visits"],
    "BoxView.name": "visits",
    "BoxView.role": "operator",
    "Counters.advances": {},
    "Counters.dropped": {},
    "Counters.flow": {},
    "Counters.missed_by_ms": {},
    "Counters.operators": {},
    "CreatedJobView.tasks": ...,
    "CreatedJobView.copies": None,
    "CreatedJobView.reason": "created",
    "CreatedJobView.state": "starting",
    "CreatedJobView.warnings": None,
    "FailRequest.task": _ID,
    "GroupInfosView.members": [{"slot": _SLOT, "subscription": "AAAABAAAAAQ=", "assignment": "AAAABA=="}],
    "GroupView.assignment": {"0_0": _SLOT},
    "GroupView.moving": {},
    "GroupView.standby": {},
    "GroupView.state": "running",
    "GroupView.warm_up": {},
    "HeartbeatRequest.jobs": {_ID: 2},
    "HeldCopy.task": _ID,
    "HeldTask.task": _ID,
    "InfoView.name": "millrace",
    "InfoView.version": "0.1.0",
    "InstanceView.lost_executors": [],
    "InstanceView.name": "one",
    "DroppedCountView.missed": {
        "records": 2,
        "max_ms": 700,
        "average_ms": 415.0,
        "below": [{"ms": 200, "records": 1}, {"ms": 1000, "records": 1}],
    },
    "JobMetricsView.flow": {"visits": {"records_in": 4, "records_out": 4, "busy_seconds": 0.002}},
    "CountersView.flow": {"visits": {"records_in": 4, "records_out": 4, "busy_seconds": 0.002}},
    "JobMetricsView.operators": {"visits": {"store_entries": 7}},
    "CountersView.operators": {"visits": {"store_entries": 7}},
    "JobView.tasks": ...,
    "JobView.copies": {"missing_standbys": 0, "most_behind": {"task": "0_0", "node": _NODE, "lag_records": 3}},
    "JobView.reason": "every task has an owner",
    "JobView.state": "running",
    "JobErrorView.detail": "Operator 'visits' failed on source offset 41: Could not convert string 'x' to INT64",
    "JobTaskView.advanced": None,
    "JoinRequest.name": "one",
    "JoinedSlot.job": {"id": _ID, "name": "visits", "spec": _SPEC, "topology": {"job": "visits", "sub_topologies": []}},
    "JoinedSlot.stores": {"visits-visits": {"id": _ID, "changelog": _ID}},
    "JoinedSlot.streams": {"clicks": {"id": _ID, "partitions": 4}},
    "KeptRange.range": {"input": 1, "start": 0, "end": 3, "chunks": [_CHUNK]},
    "ExplanationView.by_ms": None,
    "ExplanationView.cause": None,
    "ExplanationView.reason": None,
    "ExplanationView.record": {"partition": 0, "offset": 41, "timestamp": _TIME},
    "ExplanationView.records": ...,
    "ExplanationView.why": None,
    "ExplainedWindowView.closed": None,
    "ExplainedWindowView.end": _TIME,
    "ExplainedWindowView.finals": [],
    "ExplainedWindowView.start": _TIME,
    "RecordFateView.by_ms": None,
    "RecordFateView.cause": None,
    "RecordFateView.reason": None,
    "LiveStores.stores": [_ID],
    "NewTokenView.key": "mr_example_secret",
    "NewTokenView.role": "writer",
    "OperatorVerdictView.verdict": "keeps",
    "OwnerInstanceView.name": "one",
    "Paths.paths": {_ID: "segments/0f/0f8fad5b.arrow"},
    "PollAnswer.copies": [],
    "PollAnswer.job": None,
    "PollAnswer.stores": {},
    "PollAnswer.streams": {},
    "ProblemItemView.detail": "another job writes this stream",
    "ReadinessView.parts": {"database": "ok", "storage": "ok", "loops": "ok", "instances": "ok", "intake": "ok"},
    "RebalanceView.moved": {"0_0": {"from": None, "to": _SLOT}},
    "RebalanceCaseView.moved": {"0_0": {"from": None, "to": _SLOT}},
    "RebalanceView.reason": "a slot joined",
    "RebalanceCaseView.reason": "a slot joined",
    "PulledView.records": ...,
    "RecordPage.next": _POSITION,
    "RecordView.value": {"id": "e-1", "amount": 12.5},
    "RecordView.window": None,
    "SimulationView.dropped": [],
    "SimulationView.stores": {
        "visits-visits": [
            {"key": "u1", "window": {"start": _TIME, "end": _TIME}, "value": {"n": 3}, "timestamp": _TIME}
        ]
    },
    "SimulationView.stream_time": {"0_0": _TIME},
    "SlotRequest.job": _ID,
    "StoreRef.changelog": _ID,
    "StoresRequest.stores": [_ID],
    "StoreView.position": _POSITION,
    "StreamView.failing_pushes": [],
    "StreamView.kind": "user",
    "StreamView.name": "clicks",
    "SubscriptionView.name": "billing",
    "SubscriptionView.push": None,
    "SubscriptionView.start": "earliest",
    "PushRequest.secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "PushRequest.url": "https://shop.example/hook",
    **{f"{view}.{name}": value for view, members in _SERIES.items() for name, value in members.items()},
    **{f"{view}.at_ms": _POINTS for view in ("JobSeriesView", "StreamSeriesView", "ServiceSeriesView")},
    "HeldView.when_full": "spill_to_disk",
    "InputTimeView.role": "reading",
    "InputTimeView.read_to": _TIME,
    "InputTimeView.last_timestamp": _TIME,
    "JobTimeView.now": _TIME,
    "JobTimeView.is_flushing": False,
    "AheadView.since_ms": _TIME,
    "EndingView.stream_time": _TIME,
    "EndingView.end": _TIME,
    "OpenView.last_stream_time": _TIME,
    "OpenView.open_from": _TIME,
    "OperatorOpenView.behind": [],
    "OperatorOpenView.unknown": None,
    "TaskClockView.advanced": None,
    "JobHourView.dropped": 2,
    "OverviewView.streams": ...,
    "SubTopologyView.dropped": None,
    "SubTopologyView.id": 0,
    "OperatorNodeView.spec": _AGGREGATE,
    "TaskError.detail": "Operator 'visits' failed on source offset 41: Could not convert string 'x' to INT64",
    "TaskCommit.task": _ID,
    "TimeResetView.stream_time": _TIME,
    "TokenView.name": "shop-frontend",
    "NewTokenView.name": "shop-frontend",
    "TokenView.role": "writer",
    "PartitionContentView.oldest_at": _CREATED,
    "PartitionContentView.grew_at": _CREATED,
    "StreamReaderView.error": None,
    "StreamReaderView.kind": "job",
    "StreamReaderView.lag_ms": None,
    "StreamReaderView.state": "running",
    "StreamWriterView.state": "running",
    "TransitionView.kind": "state",
    "TransitionView.details": None,
    "UpstreamView.window": None,
    "Verdict.published": [{"stream_id": _ID, "partition": 0, "first_offset": 39, "end_offset": 42}],
    "Verdict.reason": None,
    "Verdict.task": _ID,
    "JobVersionSpecView.kind": "put",
    "JobVersionView.kind": "put",
    "WantedJobs.version": "5",
    "WrittenSegment.chunks": [_CHUNK_META],
    "ChunkRange.chunks": [_CHUNK],
    "InputRange.chunks": [_CHUNK],
    "WindowView.start": _TIME,
    "WindowView.end": _TIME + 60_000,
    "AssignedTask.task": _ID,
    "FollowedTask.task": _ID,
}
_KEYS: Final = {"tasks": "0_0"}  # under which name the one value of a dictionary stands
_BY_TYPE: Final[dict[str, Any]] = {"boolean": False, "integer": 1, "number": 1.5, "null": None}


class NoExampleError(LookupError):
    """A text of which nothing here says what it looks like."""


def example_of(schema: Json, components: Mapping[str, Json], owner: str = "", name: str = "") -> Any:
    """A value of this schema, which is that of a member of `owner` with this name. Raises NoExampleError."""
    known = next((VALUES[key] for key in (f"{owner}.{name}", name) if key in VALUES), ...)
    if known is not ...:
        return known
    if "$ref" in schema:
        component = schema["$ref"].rpartition("/")[2]
        return example_of(components[component], components, component)
    for keyword in ("const", "enum", "default", "examples"):
        if keyword in schema:
            return schema[keyword][0] if keyword in {"enum", "examples"} else schema[keyword]
    options = schema.get("oneOf") or schema.get("anyOf")
    if options:
        return example_of(options[0], components, owner)
    return _of_type(schema, components, owner, name)


def _of_type(schema: Json, components: Mapping[str, Json], owner: str, name: str) -> Any:
    kinds = schema.get("type", "null")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "array":
        return [example_of(schema["items"], components, owner)]
    if kind == "object":
        return _object(schema, components, owner, name)
    if kind == "string":
        raise NoExampleError(f"{owner}.{name}")
    return _BY_TYPE[kind]


def _object(schema: Json, components: Mapping[str, Json], owner: str, name: str) -> Json:
    members = schema.get("properties")
    if members is None:
        value = example_of(schema["additionalProperties"], components, owner)
        return {_KEYS.get(name, "visits"): value}
    return {each: example_of(member, components, owner, each) for each, member in members.items()}
