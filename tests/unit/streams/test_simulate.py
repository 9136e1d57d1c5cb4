"""`simulate` answers as the contract says; that its outputs are right is shown by tests/conformance."""

import pytest
from pydantic import ValidationError

from service.simulate import SimulateRequest, simulate
from service.streams.errors import ExpressionFailed, InvalidRecords, InvalidSpec

ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 10}
PAIR = {"op": "deduplicate_by_key_value", "name": "pair", "id": "value->>'id'", "interval_ms": 10}


def record(key, timestamp, value=None, **fields):
    return {"key": key, "value": value, "timestamp": timestamp, **fields}


def answer(operators, records, **fields):
    job = {"operators": operators, **fields.pop("job", {})}
    return simulate(SimulateRequest.model_validate({"job": job, "records": records, **fields}))


def test_the_answer_has_outputs_stores_dropped_and_stream_time():
    assert answer([ONCE], [record("a", 1, {"v": 1}), record("a", 2), record(None, 5)]) == {
        "outputs": [
            {"stream": "out", "partition": 0, "key": "a", "value": {"v": 1}, "timestamp": 1, "window": None},
            {"stream": "out", "partition": 0, "key": None, "value": None, "timestamp": 5, "window": None},
        ],
        "stores": {"x-once": [{"key": "a", "value": None, "window": None, "timestamp": 1}]},
        "dropped": [{"operator": "once", "reason": "duplicate", "key": "a", "timestamp": 2}],
        "stream_time": {"0_0": 5},
    }


def test_no_records_give_an_empty_answer():
    assert answer([ONCE], []) == {"outputs": [], "stores": {"x-once": []}, "dropped": [], "stream_time": {}}


def test_stores_hide_what_stream_time_has_expired():
    assert answer([ONCE], [record("a", 1), record("b", 12)])["stores"]["x-once"] == [
        {"key": "b", "value": None, "window": None, "timestamp": 12}
    ]


def test_stores_show_key_and_id_of_pairs_and_neither_of_hashed_ones():
    items = answer([PAIR], [record("a", 1, {"id": "i"}), record("a", 1, {"id": "i" * 500})])["stores"]["x-pair"]
    assert [(item["key"], item["value"]) for item in items] == [("a", {"id": "i"}), (None, None)]


@pytest.mark.parametrize("batch_records", [None, 1, 2])
def test_partitions_are_tasks_of_their_own_and_outputs_keep_the_order_of_arrival(batch_records):
    records = [record("a", 1, partition=1), record("a", 2), record("a", 3, partition=1), record("b", 4, partition=1)]
    found = answer([ONCE], records, batch_records=batch_records, job={"name": "j"})
    assert [(out["key"], out["timestamp"]) for out in found["outputs"]] == [("a", 1), ("a", 2), ("b", 4)]
    assert found["stream_time"] == {"0_0": 2, "0_1": 4}
    assert [item["timestamp"] for item in found["stores"]["j-once"]] == [2, 1, 4]


def test_null_keys_go_to_the_partition_of_their_task():
    outputs = answer([], [record(None, 1, partition=2), record(None, 1)])["outputs"]
    assert [out["partition"] for out in outputs] == [2, 0]


def test_outputs_of_several_sinks_are_in_the_order_of_their_causes():
    sinks = [{"stream": "a", "where": "timestamp > 1"}, {"stream": "b"}]
    outputs = answer([], [record("k", 1), record("k", 2)], job={"sink": sinks})["outputs"]
    assert [(out["stream"], out["timestamp"]) for out in outputs] == [("b", 1), ("a", 2), ("b", 2)]


def test_integers_pass_exactly():
    value = {"n": 2**63 - 1, "m": 2**53 + 1, "big": 10**30}
    assert answer([], [record("a", 1, value)])["outputs"][0]["value"] == value


def test_problems_of_the_job_are_pointed_at_below_job():
    with pytest.raises(InvalidSpec) as caught:
        answer([ONCE, {"op": "filter"}], [], job={"sink": 3})
    assert [problem.pointer for problem in caught.value.errors] == ["/job/operators/1/where", "/job/sink"]


def test_problems_that_only_the_topology_shows_are_below_job_too():
    moved = [{"op": "select_key", "key": "value->>'id'"}, ONCE]
    with pytest.raises(InvalidSpec) as caught:
        answer(moved, [record("a", 1, partition=1)])
    assert [problem.pointer for problem in caught.value.errors] == ["/job/operators/1"]


def test_a_record_of_another_stream_is_refused():
    with pytest.raises(InvalidRecords) as caught:
        answer([], [record("a", 1, stream="in"), record("a", 1, stream="nope")])
    assert [problem.pointer for problem in caught.value.errors] == ["/records/1/stream"]


@pytest.mark.parametrize("field", ["key", "value"])
def test_text_that_is_not_unicode_is_refused(field):
    with pytest.raises(InvalidRecords) as caught:
        answer([], [record("a", 1), {**record("a", 1), field: "\ud800"}])
    assert [problem.pointer for problem in caught.value.errors] == [f"/records/1/{field}"]


def test_a_failing_expression_is_told_with_the_position_of_its_record():
    strict = {"op": "filter", "name": "strict", "where": "(value->>'v')::bigint > 0"}
    with pytest.raises(ExpressionFailed) as failed:
        answer([strict], [record("a", 1, {"v": 1}), record("a", 1, {"v": "x"})])
    assert (failed.value.operator, failed.value.offset) == ("strict", 1)


@pytest.mark.parametrize("bad", [{"timestamp": -1}, {"timestamp": "1"}, {"partition": True}, {"key": 7}, {"more": 1}])
def test_records_are_taken_as_they_are(bad):
    with pytest.raises(ValidationError):
        SimulateRequest.model_validate({"job": {}, "records": [{**record("a", 1), **bad}]})


def test_advance_to_closes_nothing_for_deduplicate():
    assert answer([ONCE], [record("a", 1)], advance_to=1000)["stores"]["x-once"][0]["key"] == "a"
