"""What semantics.md and contract.md refuse, over HTTP: through each door, with the pointer to what is wrong.

The finer points of each operator are in `tests/unit/streams`; here is what a person meets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import Serving, serving

Json = dict[str, Any]

COUNT = {"n": {"fn": "count"}}
V = "(value->>'v')::bigint"
TUMBLING = {"type": "tumbling", "size_ms": 10}
SESSION = {"type": "session", "gap_ms": 10}
TABLE: Json = {"op": "aggregate", "name": "agg", "aggregates": COUNT}
WINDOWED: Json = TABLE | {"window": TUMBLING}
CLOSES: Json = {"op": "suppress", "name": "s", "until": "window_closes"}
LIMIT: Json = {"op": "suppress", "name": "s", "until": "time_limit", "time_limit_ms": 5}
ONCE: Json = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 5}
DISTINCT: Json = {"op": "distinct", "name": "d", "window": TUMBLING}
INTERNAL = ["visits-agg-changelog", "visits-dropped"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db") as running:
        yield running


@pytest.fixture(scope="module")
def api(service: Serving) -> httpx.Client:
    """A stream `clicks` and a job `visits` over it, which has two internal streams."""
    http = service.client("writer")
    http.post("/v1/streams", json={"name": "clicks", "partitions": 1}).raise_for_status()
    http.post("/v1/jobs", json=job(WINDOWED, name="visits", keep_dropped=True)).raise_for_status()
    return http


def job(*operators: Json, **fields: Any) -> Json:
    return {"name": "refused", "source": "clicks", "operators": list(operators), **fields}


def pointers(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 422, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert all(error["detail"] for error in answer.json()["errors"])
    return [error["pointer"] for error in answer.json()["errors"]]


def fn(**spec: Any) -> Json:
    return TABLE | {"aggregates": {"x": spec}}


def window(**fields: Any) -> Json:
    return TABLE | {"window": fields}


def buffer(operator: Json, **fields: Any) -> list[Json]:
    return [WINDOWED, operator | {"buffer": fields}]


OPERATORS: list[tuple[list[Json], str]] = [
    # suppress until windows close: after a windowed aggregate on every path, with strict buffers
    ([CLOSES], "/operators/0/until"),
    ([TABLE, CLOSES], "/operators/1/until"),
    ([DISTINCT, CLOSES], "/operators/1/until"),
    ([ONCE, CLOSES], "/operators/1/until"),
    ([WINDOWED, {"op": "select_key", "key": "key"}, CLOSES], "/operators/2/until"),
    ([WINDOWED, TABLE | {"name": "again"}, CLOSES], "/operators/2/until"),
    (buffer(CLOSES, max_records=5), "/operators/1/buffer"),
    (buffer(CLOSES, max_bytes=5), "/operators/1/buffer"),
    (buffer(CLOSES, max_records=5, when_full="emit_early"), "/operators/1/buffer"),
    (buffer(CLOSES, when_full="emit_early"), "/operators/1/buffer"),
    ([WINDOWED, CLOSES | {"time_limit_ms": 5}], "/operators/1/time_limit_ms"),
    # suppress until a time limit
    ([WINDOWED, LIMIT | {"time_limit_ms": None}], "/operators/1/time_limit_ms"),
    ([WINDOWED, LIMIT | {"time_limit_ms": -1}], "/operators/1/time_limit_ms"),
    ([WINDOWED, LIMIT | {"until": "later"}], "/operators/1/until"),
    (buffer(LIMIT, max_records=-1), "/operators/1/buffer/max_records"),
    (buffer(LIMIT, max_bytes=1.5), "/operators/1/buffer/max_bytes"),
    (buffer(LIMIT, when_full="burst"), "/operators/1/buffer/when_full"),
    (buffer(LIMIT, size=1), "/operators/1/buffer/size"),
    # windows: sizes, grace and retention are whole, positive and of 64 bits; hops leave no gap and overlap a bit
    ([window(type="tumbling")], "/operators/0/window/size_ms"),
    ([window(type="tumbling", size_ms=0)], "/operators/0/window/size_ms"),
    ([window(type="tumbling", size_ms=2**63)], "/operators/0/window/size_ms"),
    ([window(type="tumbling", size_ms=5, advance_ms=5)], "/operators/0/window/advance_ms"),
    ([window(type="tumbling", size_ms=5, grace_ms=-1)], "/operators/0/window/grace_ms"),
    ([window(type="tumbling", size_ms=5, grace_ms=2**63)], "/operators/0/window/grace_ms"),
    ([window(type="tumbling", size_ms=5, retention_ms=-1)], "/operators/0/window/retention_ms"),
    ([window(type="tumbling", size_ms=5, retention_ms="1d")], "/operators/0/window/retention_ms"),
    ([window(type="hopping", size_ms=5)], "/operators/0/window/advance_ms"),
    ([window(type="hopping", size_ms=5, advance_ms=6)], "/operators/0/window/advance_ms"),
    ([window(type="hopping", size_ms=5_000, advance_ms=4)], "/operators/0/window/advance_ms"),
    ([window(type="sliding")], "/operators/0/window/time_difference_ms"),
    ([window(type="sliding", time_difference_ms=0)], "/operators/0/window/time_difference_ms"),
    ([window(type="sliding", time_difference_ms=5, size_ms=5)], "/operators/0/window/size_ms"),
    ([window(type="session", gap_ms=0)], "/operators/0/window/gap_ms"),
    ([window(type="session", gap_ms=True)], "/operators/0/window/gap_ms"),
    ([window(type="unlimited")], "/operators/0/window/type"),
    ([window(size_ms=5)], "/operators/0/window/type"),
    # aggregates
    ([TABLE | {"aggregates": {}}], "/operators/0/aggregates"),
    ([fn(fn="count", of="key")], "/operators/0/aggregates/x/of"),
    ([fn(fn="sum")], "/operators/0/aggregates/x/of"),
    ([fn(fn="collect")], "/operators/0/aggregates/x/of"),
    ([fn(fn="sum", of="value->>'v'")], "/operators/0/aggregates/x/of"),
    ([fn(fn="mean", of="true")], "/operators/0/aggregates/x/of"),
    ([fn(fn="max", of="value->'v'")], "/operators/0/aggregates/x/of"),
    ([fn(fn="sum", of="random()")], "/operators/0/aggregates/x/of"),
    ([fn(fn="median", of=V)], "/operators/0/aggregates/x/fn"),
    ([fn(fn="custom", aggregator="nobody", of=V)], "/operators/0/aggregates/x/aggregator"),
    ([fn(fn="sum", of=V, aggregator="nobody")], "/operators/0/aggregates/x/aggregator"),
    ([TABLE | {"emit": "on_window_close"}], "/operators/0/emit"),
    ([WINDOWED | {"updates": "none"}], "/operators/0/updates"),
    # distinct: tumbling and session windows
    ([DISTINCT | {"window": None}], "/operators/0/window"),
    ([DISTINCT | {"window": {"type": "sliding", "time_difference_ms": 5}}], "/operators/0/window/type"),
    ([DISTINCT | {"window": {"type": "hopping", "size_ms": 5, "advance_ms": 5}}], "/operators/0/window/type"),
    # deduplicate
    ([ONCE | {"interval_ms": -1}], "/operators/0/interval_ms"),
    ([ONCE | {"id": "key"}], "/operators/0/id"),
    ([{"op": "deduplicate", "name": "g", "interval_ms": 5}], "/operators/0/id"),
    ([{"op": "deduplicate", "name": "g", "id": "value->'id'", "interval_ms": 5}], "/operators/0/id"),
    # expressions
    ([{"op": "filter", "where": "key"}], "/operators/0/where"),
    ([{"op": "filter", "where": "now() > 5"}], "/operators/0/where"),
    ([{"op": "map_values", "select": {"a/b": "(select 1)"}}], "/operators/0/select/a~1b"),
    ([{"op": "select_key", "key": "value"}], "/operators/0/key"),
    # names
    ([ONCE, ONCE], "/operators/1/name"),
    ([{"op": "filter", "name": "once", "where": "true"}, ONCE], "/operators/1/name"),
    ([ONCE | {"name": "o" * 65}], "/operators/0/name"),
    ([ONCE | {"name": None}], "/operators/0/name"),
    # operators
    ([{"op": "merge"}], "/operators/0/op"),
    ([{"op": "explode"}], "/operators/0/op"),
    ([{"name": "x"}], "/operators/0/op"),
    ([ONCE | {"ttl_ms": 5}], "/operators/0/ttl_ms"),
]


@pytest.mark.parametrize(("operators", "pointer"), OPERATORS)
def test_an_operator_is_refused_with_one_pointer_through_every_door(
    api: httpx.Client, operators: list[Json], pointer: str
) -> None:
    assert pointers(api.post("/v1/jobs", json=job(*operators))) == [pointer]
    assert pointers(api.post("/v1/jobs:validate", json=job(*operators))) == [pointer]
    assert pointers(api.post("/v1/jobs:simulate", json={"job": {"operators": operators}})) == [f"/job{pointer}"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"name": "n" * 65}, "/name"),
        ({"name": "With-Capitals"}, "/name"),
        ({"source": "nobody"}, "/source"),
        ({"source": []}, "/source"),
        ({"source": ["clicks", "clicks"]}, "/source/1"),
        ({"source": "visits-agg-changelog"}, "/source"),
        ({"sink": "clicks"}, "/sink"),
        ({"sink": "S"}, "/sink"),
        ({"sink": []}, "/sink"),
        ({"sink": [{"stream": "a"}, {"stream": "a"}]}, "/sink/1/stream"),
        ({"sink": [{"stream": "a", "where": "key"}]}, "/sink/0/where"),
        ({"start": "tomorrow"}, "/start"),
        ({"start": {"timestamp": -1}}, "/start/timestamp"),
        ({"start": {"offsets": {"1": 0}}}, "/start/offsets/1"),
        ({"start": {"offsets": {"0": -1}}}, "/start/offsets/0"),
        ({"start": {"offsets": {"0": 5}}}, "/start/offsets/0"),
        ({"sink": "refused-once-changelog"}, "/sink"),
        ({"sink": [{"stream": "a"}, {"stream": "refused-once-changelog"}]}, "/sink/1/stream"),
        ({"sink": "refused-dropped", "keep_dropped": True}, "/sink"),
        ({"sink": "refused-dropped", "on_error": "dead_letter"}, "/sink"),
        ({"standby_replicas": 101}, "/standby_replicas"),
        ({"parallelism": 0}, "/parallelism"),
        ({"max_batch_records": 0}, "/max_batch_records"),
        ({"commit_interval_ms": -1}, "/commit_interval_ms"),
        ({"idle_close_after_ms": 0}, "/idle_close_after_ms"),
        ({"on_error": "ignore"}, "/on_error"),
        ({"keep_dropped": "yes"}, "/keep_dropped"),
        ({"retries": 5}, "/retries"),
    ],
)
def test_a_field_of_a_job_is_refused_with_its_pointer(api: httpx.Client, fields: Json, pointer: str) -> None:
    assert pointers(api.post("/v1/jobs", json=job(ONCE) | fields)) == [pointer]
    assert pointers(api.post("/v1/jobs:validate", json=job(ONCE) | fields)) == [pointer]


def test_a_name_that_another_job_has_is_refused_by_validating_too_and_an_equal_job_is_not(api: httpx.Client) -> None:
    there = api.get("/v1/jobs/visits").json()["spec"]
    assert api.post("/v1/jobs:validate", json=there).status_code == 200
    answer = api.post("/v1/jobs:validate", json=there | {"max_batch_records": 7})
    assert (answer.status_code, answer.json()["code"]) == (409, "job_exists")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/name"]


def test_a_job_is_told_that_its_sink_is_its_own(api: httpx.Client) -> None:
    answer = api.post("/v1/jobs", json=job(ONCE, sink="refused-once-changelog"))
    assert "the sink is the job's own changelog" in answer.json()["detail"]


# ---------------------------------------------------------------- what only records show


@pytest.mark.parametrize(
    ("operator", "values", "code", "detail"),
    [
        (fn(fn="collect", of="value->>'v'"), ["x" * 700_000] * 2, "aggregate_too_large", "at most 1048576 are kept"),
        (fn(fn="sum", of=V), [2**63 - 1, 1], "integer_overflow", "passes 64 bits"),
        ({"op": "filter", "name": "agg", "where": f"{V} > 0"}, [1, "poison"], "expression_failed", "poison"),
        (
            LIMIT | {"name": "agg", "buffer": {"max_bytes": 8, "when_full": "shut_down"}},
            [1, 22],
            "buffer_full",
            "1 records (at most any number) and 9 bytes (at most 8)",
        ),
    ],
)
def test_a_record_that_an_operator_can_not_take_is_told_with_operator_and_offset(
    api: httpx.Client, operator: Json, values: list[Any], code: str, detail: str
) -> None:
    records = [{"key": "k", "value": {"v": value}, "timestamp": 5} for value in values]
    answer = api.post("/v1/jobs:simulate", json={"job": {"operators": [operator]}, "records": records})
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert "'agg'" in answer.json()["detail"]
    assert "source offset 1" in answer.json()["detail"]
    assert detail in answer.json()["detail"]
    assert pointers(answer) == ["/records/1"]
    figures = {name: answer.json().get(name) for name in ("records", "max_records", "bytes", "max_bytes")}
    assert list(figures.values()) == ([1, None, 9, 8] if code == "buffer_full" else [None] * 4)


# ---------------------------------------------------------------- names, and what they belong to


@pytest.mark.parametrize("name", INTERNAL)
def test_internal_streams_can_be_read_and_never_changed(api: httpx.Client, name: str) -> None:
    found = api.get(f"/v1/streams/{name}")
    assert found.status_code == 200
    assert api.get(f"/v1/streams/{name}/records").status_code == 200
    changes = [
        api.post(f"/v1/streams/{name}/records", json={"records": [{"key": "k"}]}),
        api.patch(f"/v1/streams/{name}", json={"retention_ms": 1}, headers={"If-Match": found.headers["ETag"]}),
        api.delete(f"/v1/streams/{name}"),
        api.post("/v1/jobs", json=job(ONCE, sink=name)),
        api.post("/v1/jobs", json=job(ONCE, sink=[{"stream": name}])),
        api.post("/v1/jobs:validate", json=job(ONCE, sink=name)),
        api.post("/v1/jobs:validate", json=job(ONCE, sink=[{"stream": name}])),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in changes] == [(403, "internal_stream")] * 7
    pointers = [[error["pointer"] for error in answer.json()["errors"]] for answer in changes[3:]]
    assert pointers == [["/sink"], ["/sink/0/stream"]] * 2


@pytest.mark.parametrize("name", ["taken-once-changelog", "taken-dropped"])
def test_a_job_whose_internal_stream_is_there_already_is_409_and_leaves_nothing(api: httpx.Client, name: str) -> None:
    api.post("/v1/streams", json={"name": name}).raise_for_status()
    for path in "/v1/jobs", "/v1/jobs:validate":
        answer = api.post(path, json=job(ONCE, name="taken", keep_dropped=True))
        assert (answer.status_code, answer.json()["code"]) == (409, "stream_exists")
        [error] = answer.json()["errors"]
        assert error["pointer"] == "/name"
        assert name in error["detail"]
        assert "delete it, or name the job otherwise" in error["detail"]
    assert api.get("/v1/jobs/taken").status_code == 404
    api.delete(f"/v1/streams/{name}").raise_for_status()


def test_the_longest_names_give_internal_streams_that_can_be_read_and_listed(api: httpx.Client) -> None:
    operator = "o" * 64
    body = job(ONCE | {"name": operator}, name="j" * 64, keep_dropped=True)
    api.post("/v1/jobs", json=body).raise_for_status()
    changelog = f"{body['name']}-{operator}-changelog"
    assert len(changelog) > 128
    assert api.get(f"/v1/streams/{changelog}").json()["kind"] == "changelog"
    assert api.get(f"/v1/streams/{changelog}/records").json()["records"] == []
    assert api.get(f"/v1/stores/{body['name']}-{operator}").json()["operator"] == operator
    cursor, names = None, []
    while cursor is not None or not names:
        page = api.get("/v1/streams", params={"limit": 1} | ({"cursor": cursor} if cursor else {})).json()
        names += [stream["name"] for stream in page["items"]]
        cursor = page["next"]
    assert changelog in names
    assert pointers(api.post("/v1/streams", json={"name": changelog})) == ["/name"]


# ---------------------------------------------------------------- what no database takes


@pytest.fixture
def on_database(tmp_path: Path, database_url: str) -> Iterator[httpx.Client]:
    with serving(tmp_path, database_url) as running:
        yield running.client("admin")


def test_names_with_a_nul_and_integers_beyond_64_bits_are_refused_by_the_service_not_the_database(
    on_database: httpx.Client,
) -> None:
    http = on_database
    for path in ("/v1/jobs/a%00", "/v1/streams/a%00", "/v1/stores/a%00", "/v1/instances/%00", "/v1/groups/%00"):
        assert http.get(path).status_code == 404, path
    assert http.delete("/v1/tokens/%00").status_code == 404
    for path in ("jobs", "instances", "tokens", "streams", "stores", "aggregators"):
        refused = http.get(f"/v1/{path}", params={"cursor": "a\0"})
        assert (pointers(refused), refused.json()["code"]) == (["?cursor"], "invalid_cursor"), path
    assert pointers(http.post("/v1/tokens", json={"role": "reader", "name": "a\0"})) == ["/name"]
    member = {"name": "i", "incarnation": "1", "host": "h", "cores": 1}
    for change, pointer in [
        ({"host": "h\0"}, "/host"),
        ({"cores": 2**31}, "/cores"),
        ({"cores": 2**64}, "/cores"),
        ({"spark": {"app_id": 2**64}}, "/spark"),
    ]:
        assert pointers(http.post("/v1/instances:join", json=member | change)) == [pointer]
    slot = "/v1/instances/i/slots"
    assert pointers(http.post(slot, json={"slot": "s", "job": "j", "index": 2**31})) == ["/index"]
    for where, pointer in [
        ({"partition": 2**31}, "?partition"),
        ({"from": 2**63}, "?from"),
        ({"stream_id": "\0"}, "?stream_id"),
    ]:
        query = {"stream_id": "s", "partition": 0, "from": 0} | where
        assert pointers(http.get(f"{slot}/s/chunks", params=query)) == [pointer]
    error = {"code": "x", "detail": "x", "offset": 2**64}
    assert pointers(http.post(f"{slot}/s:fail", json={"task": "t", "epoch": 1, "error": error})) == ["/error/offset"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"task": "a\0"}, "/commits/0/task"),
        ({"epoch": 2**63}, "/commits/0/epoch"),
        ({"version": -(2**63) - 1}, "/commits/0/version"),
        ({"stream_time": 2**63}, "/commits/0/stream_time"),
        ({"applied": {"s": 2**63}}, "/commits/0/applied"),
        ({"positions": [{"input": 2**31, "from": 0, "to": 1}]}, "/commits/0/positions/0/input"),
        ({"positions": [{"input": 0, "from": 0, "to": 2**63}]}, "/commits/0/positions/0/to"),
    ],
)
def test_a_commit_says_only_what_the_catalog_holds(service: Serving, change: Json, pointer: str) -> None:
    commit = {"commit_id": "c", "task": "t", "epoch": 1, "version": 0, "positions": [], "segment": None} | change
    body = json.dumps({"commits": [commit]})
    headers = {"Content-Type": "application/json"}
    answer = service.client("instance").post("/v1/instances/i/slots/s:commit", content=body, headers=headers)
    assert pointers(answer) == [pointer]
