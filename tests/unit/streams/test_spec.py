"""What is wrong with a specification: precise pointers, plain words, no coercion."""

import json

import pytest

from service.streams.errors import InvalidSpec
from service.streams.topology.spec import JobSpec

ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 10}
JOB = {"name": "visits", "source": "clicks", "operators": [ONCE], "sink": "out"}


def problems(body):
    with pytest.raises(InvalidSpec) as caught:
        JobSpec.parse(body)
    return {problem.pointer: problem.detail for problem in caught.value.errors}


def pointers(**fields):
    return list(problems({**JOB, **fields}))


def operator(**fields):
    return list(problems({**JOB, "operators": [ONCE | {"name": "other"}, {**ONCE, **fields}]}))


def test_defaults_are_those_of_the_contract():
    assert JobSpec.parse({"name": "a", "source": "b"}).to_json() == {
        "name": "a",
        "source": "b",
        "start": "earliest",
        "operators": [],
        "sink": None,
        "standby_replicas": 0,
        "acceptable_recovery_lag": 10000,
        "max_warmup_replicas": 2,
        "max_task_idle_ms": 0,
        "max_repartition_bytes": 256 << 20,
        "parallelism": None,
        "max_batch_records": 500000,
        "commit_interval_ms": 100,
        "idle_close_after_ms": None,
        "keep_dropped": False,
        "trust_partitions": False,
        "on_error": "fail",
    }


FULL = {
    "name": "v_1",
    "source": ["clicks.v1"],
    "start": {"offsets": {"0": 5, "12": 0}},
    "operators": [
        {"op": "filter", "where": "(value->>'n')::bigint >= 3"},
        {"op": "map_values", "name": "m", "select": {"a": "key", "b": "value->'x'"}},
        {"op": "select_key", "key": "value->>'id'"},
        ONCE,
        {"op": "deduplicate_by_key_value", "name": "two", "id": "value->>'id'", "interval_ms": 0},
        {"op": "deduplicate", "name": "three", "id": "timestamp", "interval_ms": 2**63 - 1},
    ],
    "sink": [{"stream": "a", "where": "key IS NULL"}, {"stream": "b"}],
    "standby_replicas": 0,
    "acceptable_recovery_lag": 0,
    "max_warmup_replicas": 1,
    "max_task_idle_ms": 0,
    "parallelism": 3,
    "max_batch_records": 1,
    "commit_interval_ms": 0,
    "idle_close_after_ms": 1000,
    "keep_dropped": True,
    "on_error": "drop",
}


def test_a_full_specification_survives_json():
    spec = JobSpec.parse(FULL)
    assert JobSpec.parse(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.sources == ["clicks.v1"]
    assert [sink.stream for sink in spec.sinks] == ["a", "b"]


def test_a_body_that_is_no_object_is_said_so():
    assert problems([]) == {"": "must be an object"}


def test_every_problem_is_found_at_once():
    found = problems({"source": 3, "operators": [{"op": "filter"}], "on_error": "panic", "extra": 1})
    assert found == {
        "/name": "is required",
        "/source": "must be a string, or a list of strings",
        "/operators/0/where": "is required",
        "/on_error": "must be one of 'fail', 'drop' or 'dead_letter'",
        "/extra": "is not a known field",
    }


@pytest.mark.parametrize("name", ["", "A", "1a", "-a", "a b", "a/b", "a:b", "a" * 65, "a\n", "é", 7, None])
def test_job_names_follow_their_rule(name):
    assert pointers(name=name) == ["/name"]


@pytest.mark.parametrize("name", ["", "A", "a/b", "a" * 129, "a\n", "_a"])
def test_stream_names_follow_their_rule(name):
    assert pointers(source=name) == ["/source"]
    assert pointers(source=["ok", name]) == ["/source/1"]
    assert pointers(sink=name) == ["/sink"]
    assert pointers(sink=[{"stream": "ok"}, {"stream": name}]) == ["/sink/1/stream"]


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("standby_replicas", [-1, 101, "1", True, 1.0, None, 2**63]),
        ("acceptable_recovery_lag", [-1, "1", True, None, 2**63]),
        ("max_warmup_replicas", [0, "1", True]),
        ("strategy", ["rack", "", 1, True, ["sticky"]]),
        ("max_task_idle_ms", [-1, 0.5, 2**63]),
        ("parallelism", [0, "2", True]),
        ("max_batch_records", [0, 10_000_001, "5"]),
        ("commit_interval_ms", [-1, None, False]),
        ("idle_close_after_ms", [0, -1, "x"]),
        ("keep_dropped", [1, "true", None]),
        ("on_error", ["skip", None, 1]),
        ("start", ["now", 3, None, {}, {"timestamp": -1}, {"timestamp": "1"}]),
        ("operators", [None, {}, "x", [ONCE] * 65]),
        ("source", [None, 3, [], [1], {}, ["a"] * 33]),
        ("sink", [3, [], [{"where": "true"}], ["out"], {}]),
    ],
)
def test_values_are_taken_as_they_are_and_within_bounds(field, bad):
    for value in bad:
        assert all(pointer.startswith(f"/{field}") for pointer in pointers(**{field: value}))


def test_starting_points_are_pointed_into():
    assert pointers(start={"timestamp": "1"}) == ["/start/timestamp"]
    assert pointers(start={"offsets": {"0": -1}}) == ["/start/offsets/0"]
    assert pointers(start={"offsets": {"x/y": 1}}) == ["/start/offsets/x~1y"]
    assert pointers(start={"offsets": {}, "timestamp": 1}) == ["/start/timestamp"]


@pytest.mark.parametrize("interval_ms", [-1, "10", True, 1.5, None, 2**63, 2**70])
def test_intervals_are_non_negative_64_bit_integers(interval_ms):
    assert operator(interval_ms=interval_ms) == ["/operators/1/interval_ms"]


def test_unknown_and_missing_operators_are_told_apart():
    found = problems({**JOB, "operators": [{"op": "window"}, {"op": "branch", "name": "n"}, {}, 7]})
    assert list(found) == ["/operators/0/op", "/operators/1/op", "/operators/2/op", "/operators/3"]
    assert "is not an operator" in found["/operators/0/op"]
    assert "with `after`" in found["/operators/1/op"]
    assert found["/operators/2/op"].startswith("is required: one of aggregate, ")
    assert found["/operators/3"] == "must be an object"


def test_fields_of_an_operator_are_its_own():
    assert operator(id="key") == ["/operators/1/id"]
    assert operator(name="Not-ok") == ["/operators/1/name"]


def test_stateful_operators_have_a_name_and_no_two_share_one():
    assert problems({**JOB, "operators": [{"op": "deduplicate_by_key", "interval_ms": 1}]}) == {
        "/operators/0/name": "is required"
    }
    twice = problems({**JOB, "operators": [ONCE, {"op": "filter", "where": "true"}, ONCE]})
    assert twice == {"/operators/2/name": "'once' is already the name of operator 0"}


def test_streams_are_named_once_and_a_job_does_not_feed_itself():
    assert pointers(source=["a", "a"]) == ["/source/1"]
    assert pointers(sink=[{"stream": "a"}, {"stream": "a"}]) == ["/sink/1/stream"]
    assert pointers(sink="clicks") == ["/sink"]
    assert pointers(sink=[{"stream": "a"}, {"stream": "clicks"}]) == ["/sink/1/stream"]


def test_expressions_are_admitted_where_they_stand():
    filters = [{"op": "filter", "where": where} for where in ["true", "value->>'v'", "1 +", "", 7]]
    found = problems({**JOB, "operators": filters})
    assert list(found) == [f"/operators/{i}/where" for i in (1, 2, 3, 4)]
    assert found["/operators/1/where"] == "must be a condition (true or false), this gives text"


def test_conditions_of_sinks_are_admitted_too():
    assert pointers(sink=[{"stream": "a", "where": "key"}]) == ["/sink/0/where"]


def test_fields_of_a_selection_are_pointed_at_also_with_odd_names():
    select = {"ok": "key", "a/b~c": "nope(", "": "key"}
    found = problems({**JOB, "operators": [{"op": "map_values", "select": select}]})
    assert list(found) == ["/operators/0/select/a~1b~0c", "/operators/0/select/"]
    assert list(problems({**JOB, "operators": [{"op": "map_values", "select": {}}]})) == ["/operators/0/select"]


@pytest.mark.parametrize("key", ["value->'id'", "value", "(value->>'x')::double", "NULL"])
def test_keys_and_identities_have_one_obvious_text(key):
    found = problems({**JOB, "operators": [{"op": "select_key", "key": key}, {**ONCE, "op": "deduplicate", "id": key}]})
    assert list(found) == ["/operators/0/key", "/operators/1/id"]
    assert "must give text, an integer or a boolean" in found["/operators/0/key"]


@pytest.mark.parametrize(
    ("fields", "pointer", "way_out"),
    [
        ({"operators": [{"op": "branch"}]}, "/operators/0/op", "with `after`"),
        ({"operators": [{"op": "merge"}]}, "/operators/0/op", "give `source` a list"),
        ({"operators": [{"op": "join"}]}, "/operators/0/op", "give `source` a list"),
        ({"operators": [{"op": "group_by"}]}, "/operators/0/op", "`select_key` in front"),
        ({"operators": [{**ONCE, "where": "true"}]}, "/operators/0/where", "put a `filter` in front"),
        ({"operators": [{**ONCE, "partitions": 8}]}, "/operators/0/partitions", "put a `repartition` in front"),
        ({"operators": [{"op": "repartition", "name": "r", "key": "key"}]}, "/operators/0/key", "put a `select_key`"),
        ({"sink": [{"stream": "out", "key": "key"}]}, "/sink/0/key", "put a `select_key`"),
        ({"sink": {"stream": "out"}}, "/sink", "a list of objects"),
        ({"source": {"stream": "in"}}, "/source", "a list of strings"),
        ({"start": {"clicks": "latest"}}, "/start", '{"offsets": {"0": 17}}'),
        ({"start": "newest"}, "/start", '"earliest", "latest"'),
    ],
)
def test_what_can_not_be_done_so_says_how_else(fields, pointer, way_out):
    found = problems({**JOB, **fields})
    assert list(found) == [pointer]
    assert way_out in found[pointer]


def test_after_source_is_refused_where_an_operator_of_that_name_is_meant_as_well():
    operators = [{"op": "filter", "name": "source", "where": "true"}, ONCE]
    assert JobSpec.parse({**JOB, "operators": operators}).parents() == [None, 0, 1]
    operators[1] = {**ONCE, "after": "source"}
    found = problems({**JOB, "operators": operators, "sink": [{"stream": "out", "after": "source"}]})
    assert list(found) == ["/operators/1/after", "/sink/0/after"]
    assert "rename" in found["/sink/0/after"]
