"""What a fuzzer needs to get past the door: a service with something of everything in it, and its OpenAPI document
with suggestions that lead there.

Knows which names and texts stand for what in requests, and what may be broken: those that change something are led to
spare things only. Knows no check: those are schemathesis' own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import schemathesis
from hypothesis import strategies as st

from service.payloads import ARROW, NDJSON
from tests import openapi_documents
from tests.forkserver import ForkServer
from tests.serving import Serving, serving
from tests.sparkless import instance

Json = dict[str, Any]
Known = dict[str, list[Any]]

LEASE_MS = 3_600_000  # the instance that filled the stores is gone when they are looked into, and nobody is to notice
PATIENCE_MS = 20
WAITS = {"timeout_ms", "wait_ms"}
COUNT = {"n": {"fn": "count"}, "total": {"fn": "sum", "of": "(value->>'amount')::bigint"}}
OPERATORS: dict[str, Json] = {
    "visits": {"op": "aggregate", "name": "s", "window": {"type": "session", "gap_ms": 1_000}, "aggregates": COUNT},
    "minutes": {"op": "aggregate", "name": "s", "window": {"type": "tumbling", "size_ms": 1_000}, "aggregates": COUNT},
    "totals": {"op": "aggregate", "name": "s", "aggregates": COUNT},
    "once": {"op": "deduplicate_by_key", "name": "s", "interval_ms": 3_600_000},
}
STORES = {"visits-s": "sessions", "minutes-s": "windows", "totals-s": "keys", "once-s": "keys"}
ERROR = {"code": "expression_failed", "detail": "", "operator": "s", "stream": None, "partition": 0, "offset": 0}
BODIES = {  # what an example of a body without one of its own says
    "JoinRequest": ("name", "incarnation", "host", "cores"),
    "HeartbeatRequest": ("incarnation",),
    "LeaveRequest": ("incarnation",),
    "LostExecutors": ("incarnation", "executors"),
    "SlotRequest": ("slot", "job", "index"),
    "PollRequest": ("tasks",),
    "SegmentsRequest": ("segments",),
    "CommitRequest": ("commits",),
    "FailRequest": ("task", "epoch", "error"),
    "SkipRequest": ("partition", "offset"),
    "ReplayRequest": ("operator", "reason"),
    "ResetRequest": (),
    "BatchRequest": ("keys",),
    "ChangeRequest": ("name", "source", "operators"),
    "RollbackRequest": ("version",),
    "PlanRequest": (),
    "SubscriptionRequest": ("name",),
    "PullRequest": ("consumer",),
    "AcknowledgeRequest": ("consumer", "positions"),
}
EXPRESSIONS = [
    "true",
    "key",
    "key like 'k%'",
    "timestamp > 5",
    "window_start",
    "value->'id'",
    "value->>'id'",
    "(value->>'amount')::bigint",
    "(value->>'amount')::double > 1e308",
    "1/0",
    "random()",
    "value->>'",
]
NEEDED = {("explain_record", "key")}  # by an example that is to be accepted, though they may be left out
EXTREMES = [0, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64]


@dataclass
class World:
    """A service, and what is there to be named: by the name of a parameter, or of a member of a body.

    `lasting` is for those who look. Those who change what they name, or end it, get what others do not need:
    `changing` by a pattern of their operation (`post /v1/jobs/{job}:stop`), `changing_bodies` by the title of a body.
    """

    service: Serving
    lasting: Known
    changing: dict[str, Known]
    changing_bodies: dict[str, Known]

    def document(self) -> Json:
        """Its OpenAPI document, with suggestions, and an example for each operation that has its answer.

        Without the `default` answers: they would allow any status.
        """
        document = openapi_documents.for_people()
        of_workers = openapi_documents.for_workers()
        document["paths"] |= of_workers["paths"]
        document["components"]["schemas"] |= of_workers["components"]["schemas"]
        for title, schema in document["components"]["schemas"].items():
            known = self._known_in(title)
            for name, member in schema.get("properties", {}).items():
                schema["properties"][name] = _suggesting(member, known.get(name))
        for path, item in document["paths"].items():
            for method, operation in item.items():
                del operation["responses"]["default"]
                self._suggest_parameters(operation, self._known_to(f"{method} {path}"))
                for media_type, body in operation.get("requestBody", {}).get("content", {}).items():
                    self._suggest_body(body, media_type)
        return document

    def _suggest_parameters(self, operation: Json, known: Known) -> None:
        for parameter in operation.get("parameters", ()):
            found = known.get(parameter["name"])
            is_needed = parameter["name"] == "If-Match" or (operation["operationId"], parameter["name"]) in NEEDED
            if found and (parameter["required"] or is_needed):
                parameter["example"] = found[0]
            parameter["schema"] = _suggesting(parameter["schema"], found)

    def _suggest_body(self, body: Json, media_type: str) -> None:
        title = body["schema"].get("$ref", "").rpartition("/")[2]
        if media_type in (NDJSON, ARROW):
            body.pop("example", None)  # they are to be bytes
        elif title in BODIES:
            known = self._known_in(title)
            body["example"] = {name: known[name][0] for name in BODIES[title]}

    def _known_in(self, body: str) -> Known:
        return self.lasting | self.changing_bodies.get(body, {})

    def _known_to(self, operation: str) -> Known:
        stores = sorted(STORES, key=lambda store: STORES[store] not in operation)
        changed = next((known for pattern, known in self.changing.items() if re.search(pattern, operation)), {})
        return self.lasting | {"store": stores} | changed


@contextmanager
def world(folder: Path, database_url: str, forks: ForkServer) -> Iterator[World]:
    """A stream with records, a job of each type of store with entries; spare and doomed streams, jobs and instances."""
    with serving(folder, database_url, lease_ms=LEASE_MS) as service:
        http = service.client()
        _ask(http, "/v1/streams", {"name": "clicks", "partitions": 2})
        for name, operator in OPERATORS.items():
            _ask(http, "/v1/jobs", {"name": name, "source": "clicks", "sink": "results", "operators": [operator]})
        records = [{"key": f"k{i % 7}", "value": {"amount": i, "id": f"e{i}"}, "timestamp": i * 300} for i in range(50)]
        position = _ask(http, "/v1/streams/clicks/records", {"records": records})["position"]
        with instance(service, forks, folder / "replicas"):
            for store, kind in STORES.items():
                path = f"/v1/stores/{store}/{kind}?min_position={position}&timeout_ms=60000"
                http.get(path).raise_for_status()
        yield _with_spares(service, http, position)


def impatient(case: schemathesis.Case) -> None:
    """Wait for no answer longer than a moment, though that is allowed: requests are many."""
    declared = {str(each["name"]): each["schema"] for each in case.operation.definition.raw.get("parameters", ())}
    if "timeout_ms" in declared and isinstance(case.query, dict):
        case.query.setdefault("timeout_ms", PATIENCE_MS)
    if case.path.endswith(":poll") and isinstance(case.body, dict):
        case.body.setdefault("timeout_ms", PATIENCE_MS)
    for part in case.query, case.body:
        for name in WAITS & set(part if isinstance(part, dict) else ()):
            most = 2**65 if part is case.body else _maximum(declared.get(name, {}))
            if str(part[name]).isdigit() and PATIENCE_MS < int(part[name]) <= most:
                part[name] = PATIENCE_MS


def _maximum(schema: Json) -> int:
    """The largest number that is allowed; 0: none is."""
    return max([schema.get("maximum", 0), *(_maximum(each) for each in schema.get("anyOf", ()))])


# ---------------------------------------------------------------- what is suggested


def _with_spares(service: Serving, http: httpx.Client, position: str) -> World:
    names = ("spare", "doomed", "joining", "failing", "failed")
    spare, doomed, joining, failing, failed = (_busy_member(http, name) for name in names)
    slot = f"/v1/instances/{failed['instance'][0]}/slots/{failed['slot'][0]}"
    body = {"task": failed["task"][0], "epoch": failed["epoch"][0], "error": ERROR}
    http.post(f"{slot}:fail", json=body).raise_for_status()
    for name in "passing", "stopped", "resting", "over", "again", "changing":
        _ask(http, "/v1/jobs", {"name": name, "source": "clicks", "operators": [OPERATORS["once"]]})
        if name != "passing":
            http.post(f"/v1/jobs/{name}:stop").raise_for_status()
    keeping = {"name": "keeping", "source": "clicks", "operators": [OPERATORS["once"]], "keep_dropped": True}
    _ask(http, "/v1/jobs", keeping)
    for name in "resting", "unused":
        _ask(http, "/v1/streams", {"name": name})
    for stream, name in ("clicks", "s"), ("spare", "s"), ("resting", "doomed"):
        _ask(http, f"/v1/streams/{stream}/subscriptions", {"name": name, "start": "earliest"})
    token = _ask(http, "/v1/tokens", {"role": "reader"})["id"]
    changing: dict[str, Known] = {
        "/versions/": {"version": [1]},
        "^get ": {},
        ":fail$": failing,
        ":skip$": failed,
        ":replay$": {"job": ["keeping"]},
        ":stop$": {"job": ["passing"]},
        ":restart$": {"job": ["stopped"]},
        ":reset$|:reset-time$": {"job": ["again"]},
        "^put |:rollback$": {"job": ["changing"], "If-Match": [http.get("/v1/jobs/changing").headers["ETag"], "*"]},
        ":copy$": {"job": ["again"]},
        "^patch /v1/jobs": {"job": ["resting"], "If-Match": [http.get("/v1/jobs/resting").headers["ETag"], "*"]},
        "^patch ": {"stream": ["resting"], "If-Match": [http.get("/v1/streams/resting").headers["ETag"], "*"]},
        "^delete .*/subscriptions/": {"stream": ["resting"], "subscription": ["doomed"]},
        "^delete ": {"stream": ["unused", "clicks", "visits-s-changelog"], "job": ["over", "spare"], "token": [token]},
        "/slots$": joining,
        ":leave$|:drain$": doomed,
        "": spare,
    }
    bodies: dict[str, Known] = {
        "FailRequest": failing,
        "SlotRequest": {"job": joining["job_id"], "slot": [uuid4().hex]},
        "JoinRequest": {"name": ["doomed"]},
        "ChangeRequest": {"name": ["changing"], "source": ["clicks"], "operators": [[OPERATORS["once"]], []]},
        "RollbackRequest": {"version": [1]},
        "CopyRequest": {"name": ["copied"], "sink": [None, "copied", "clicks"]},
        "ReplayRequest": {"operator": ["s"], "reason": [["late"], ["duplicate"]]},
        "AcknowledgeRequest": {"positions": [[{"partition": 0, "position": 0}], []]},
    }
    return World(service, _lasting(http, spare, position), changing, bodies)


def _lasting(http: httpx.Client, spare: Known, position: str) -> Known:
    streams = ["clicks", "spare", "results", "visits-s-changelog"]
    return {
        **spare,
        "version": [0],
        "job": [*OPERATORS, "spare", "failed"],
        "stream": streams,
        "stream_id": [http.get(f"/v1/streams/{name}").json()["id"] for name in streams],
        "subscription": ["s"],
        "consumer": ["a", "b"],
        "pull_id": ["1", None],
        "push": [None],  # nothing is posted to anybody
        "incarnation": ["1"],
        "host": ["here"],
        "cores": [1],
        "index": [0],
        "partition": [0],
        "offset": [0],
        "from": [0],
        "tasks": [[]],
        "error": [ERROR],
        "commits": [[_commit_of(spare)]],
        "segments": [[uuid4().hex]],
        "executors": [["7"], []],
        "generation": [1],
        "input": [0],
        "key": ["k1", "", "azE=", *EXPRESSIONS],
        "from_key": ["k1"],
        "to_key": ["k3"],
        "keys": [["k1", "k2"], ["", "k1", "k1"]],
        "min_position": [position],
        "topics": ["/v1/jobs", "/v1/streams/clicks,/v1/jobs/none", "/readyz,"],
        "cursor": [http.get("/v1/stores/visits-s/sessions?limit=1").json()["next"], "clicks", "visits-s"],
        "name": ["s", "visits", "spare", "clicks"],
        "source": ["clicks", "spare", ["clicks"]],
        "sink": ["out", "results", "visits-s-changelog", "clicks", [{"stream": "out", "where": "true"}]],
        "select": [{"a": text} for text in EXPRESSIONS],
        **dict.fromkeys(("where", "id", "of"), EXPRESSIONS),
    }


def _commit_of(member: Known) -> Json:
    names = ("task", "epoch", "positions")
    return {"commit_id": uuid4().hex, "version": 0, "segments": []} | {name: member[name][0] for name in names}


def _busy_member(http: httpx.Client, name: str) -> Known:
    """A stream, a job over it and an instance of this name that has a slot, which has work to do."""
    _ask(http, "/v1/streams", {"name": name, "partitions": 1})
    operators = [OPERATORS["visits"]]
    job = _ask(http, "/v1/jobs", {"name": name, "source": name, "operators": operators, "sink": f"{name}-out"})["id"]
    member = {"name": name, "incarnation": "1", "host": "here", "cores": 2}
    slots = f"/v1/instances/{_ask(http, '/v1/instances:join', member)['instance_id']}/slots"
    slot = uuid4().hex
    _ask(http, slots, {"slot": slot, "job": job, "index": 0})
    _ask(http, f"/v1/streams/{name}/records", {"records": [{"key": "a", "value": 1}] * 3})
    [task] = _ask(http, f"{slots}/{slot}:poll", {"timeout_ms": 1_000})["tasks"]
    return {
        "stream": [name],
        "job": [name],
        "job_id": [job],
        "instance": [slots.split("/")[3]],
        "slot": [slot],
        "task": [task["task"]],
        "epoch": [task["epoch"]],
        "positions": [[{"input": 0, "from": 0, "to": 1}]],
    }


def _ask(http: httpx.Client, path: str, body: Json) -> Json:
    found: Json = http.post(path, json=body).raise_for_status().json()
    return found


def _suggesting(schema: Json, known: list[Any] | None) -> Json:
    """The schema, which leads to what is known every other time; integers to the ends of what they may be.

    Each type by itself: schemathesis takes no list of them in a choice.
    """
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    choices = [schema | {"type": kind} for kind in kinds] if len(kinds) > 1 else [schema]
    if "integer" in kinds:
        low, high = schema.get("minimum", -(2**65)), schema.get("maximum", 2**65)
        choices.append({"enum": [extreme for extreme in EXTREMES if low <= extreme <= high]})
    plain = {"anyOf": choices} if len(choices) > 1 else schema
    return {"anyOf": [{"enum": known}, plain]} if known else plain


# ---------------------------------------------------------------- bodies that are no JSON

_TEXTS = st.sampled_from(["k1", "1", "{}", '{"amount":1}', "[", ""]) | st.text(max_size=5)


@st.composite
def _arrow_bodies(draw: st.DrawFn) -> bytes:
    """An IPC stream of some columns, of types that are right or nearly so; broken now and then."""
    count = draw(st.integers(0, 3))
    integers = st.integers(-1, 5) | st.sampled_from([2**31, 2**53, 2**62])
    kinds = {"key": pa.binary(), "value": pa.utf8(), "timestamp": pa.int64(), "partition": pa.int32(), "x": pa.date64()}
    columns = {}
    for name in draw(st.lists(st.sampled_from(sorted(kinds)), unique=True)):
        kind = draw(st.sampled_from([kinds[name], kinds[name], *kinds.values()]))
        values = _TEXTS if kind in (pa.binary(), pa.utf8()) else integers
        given = draw(st.lists(values | st.none(), min_size=count, max_size=count))
        columns[name] = pa.array(given, pa.int64() if values is integers else kind).cast(kind, safe=False)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema({name: each.type for name, each in columns.items()})) as writer:
        if columns:
            writer.write_table(pa.table(columns))
    body = bytearray(sink.getvalue())
    if draw(st.integers(0, 3)) == 0:
        body[draw(st.integers(0, len(body) - 1))] ^= draw(st.integers(1, 255))
    return bytes(body)


def _lines(lines: list[str]) -> bytes:
    return "\n".join(lines).encode()


_RECORD_LINES = st.sampled_from(['{"key":"k1","value":{"amount":1}}', '{"value":null,"timestamp":5}', "{}", "[]", ""])

schemathesis.openapi.media_type(NDJSON, st.lists(_RECORD_LINES | st.text(max_size=20), max_size=4).map(_lines))
schemathesis.openapi.media_type(ARROW, st.binary(max_size=64) | _arrow_bodies())
