"""`simulate` answers as the contract says; that its outputs are right is shown by tests/conformance."""

import pytest
from pydantic import ValidationError

from service.simulate import SimulateRequest, bounds, simulate
from service.simulate.request import compiled
from service.simulate.run import place_of
from service.storage.replica import Replica
from service.streams.errors import ExpressionFailed, InvalidRecords, InvalidSpec, OperatorFailed, SimulationTooLarge
from service.streams.topology.chain import Chain

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
        answer(moved, [record("a", 1, partition=1)], job={"name": "x", "sink": "x-once-repartition"})
    assert [problem.pointer for problem in caught.value.errors] == ["/job/sink"]


def test_records_meet_by_their_new_key_in_the_order_of_time():
    moved = [{"op": "select_key", "key": "value->>'id'"}, {**PAIR, "op": "deduplicate_by_key", "id": None}]
    del moved[1]["id"]
    late = [record("a", 30, {"id": "i"}, partition=0), record("b", 25, {"id": "i"}, partition=1)]
    found = answer(moved, [*late, record("c", 99, {"id": "j"}, partition=2)])
    assert [(each["key"], each["timestamp"]) for each in found["outputs"]] == [("i", 25), ("j", 99)]
    assert [(each["operator"], each["timestamp"]) for each in found["dropped"]] == [("pair", 30)]
    assert {name[0] for name in found["stream_time"]} == {"0", "1"}


def test_the_global_deduplicate_keeps_keys_and_lets_null_ids_pass():
    everywhere = {"op": "deduplicate", "name": "once", "id": "value->>'id'", "interval_ms": 10}
    records = [record(str(p), 5 + p, {"id": "i"}, partition=p) for p in range(3)] + [
        record("n", 1, {}, partition=2)
    ] * 2
    found = answer([everywhere], records)
    assert [(each["key"], each["timestamp"]) for each in found["outputs"]] == [("0", 5), ("n", 1), ("n", 1)]


def test_several_sources_are_taken_in_the_order_of_time():
    count = {
        "op": "aggregate",
        "name": "n",
        "aggregates": {"n": {"fn": "count"}, "last": {"fn": "last", "of": "value"}},
    }
    records = [record("a", 5, 1, stream="left"), record("a", 3, 2, stream="right"), record("a", 6, 3, stream="right")]
    found = answer([count], records, job={"source": ["left", "right"]})
    assert [each["value"] for each in sorted(found["outputs"], key=lambda each: each["value"]["n"])] == [
        {"n": 1, "last": 2},
        {"n": 2, "last": 1},
        {"n": 3, "last": 3},
    ]


def test_a_failure_behind_a_repartition_points_to_the_record_that_caused_it():
    strict = {"op": "filter", "name": "strict", "where": "(value->>'v')::bigint > 0"}
    moved = [{"op": "repartition", "name": "again"}, strict]
    with pytest.raises(OperatorFailed) as failed:
        answer(moved, [record("a", 1, {"v": 1}), record("b", 1, {"v": "x"}, partition=1)])
    assert [problem.pointer for problem in failed.value.errors] == ["/records/1"]


def test_time_moves_on_behind_a_repartition_once_what_is_before_it_is_through():
    window = {"type": "tumbling", "size_ms": 10}
    counts = {"window": window, "aggregates": {"n": {"fn": "count"}}, "emit": "on_window_close"}
    chain = [
        {"op": "aggregate", "name": "first", **counts},
        {"op": "select_key", "key": "'all'"},
        {"op": "aggregate", "name": "second", **counts},
    ]
    records = [record(key, 3, partition=p) for p, key in enumerate("abc")]
    found = answer(chain, records, advance_to=1000)
    assert [(each["key"], each["value"]) for each in found["outputs"]] == [("all", {"n": 3})]


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


CLOSING = {
    "op": "aggregate",
    "name": "visits",
    "window": {"type": "tumbling", "size_ms": 10},
    "aggregates": {"n": {"fn": "count"}},
    "emit": "on_window_close",
}
LATER = {"op": "suppress", "name": "later", "until": "time_limit", "time_limit_ms": 1000}


@pytest.mark.parametrize(
    ("to", "keys", "stream_time"), [(9, "", 9), (10, "ab", 1002), (1002, "ab", 1002), (5000, "ab", 5000)]
)
def test_an_advance_that_closes_all_closes_also_what_it_lets_go_as_a_flush_does(to, keys, stream_time):
    found = answer([CLOSING, LATER], [record("a", 1), record("b", 2)], advance_to=to)
    assert [output["key"] for output in found["outputs"]] == [*keys]
    assert found["stream_time"] == {"0_0": stream_time}


def test_an_advance_that_leaves_open_what_a_record_had_let_go_goes_no_further():
    found = answer([CLOSING, LATER], [record("a", 1), record("b", 12)], advance_to=20)
    assert (found["outputs"], found["stream_time"]) == ([], {"0_0": 20})


# ---------------------------------------------------------------- how much one may give

COUNT = {"n": {"fn": "count"}}
ALL = {"all": {"fn": "collect", "of": "value->>'v'"}}
HOPS = {"type": "hopping", "size_ms": 1000, "advance_ms": 1}


def aggregate(window, aggregates=COUNT, **fields):
    return {"op": "aggregate", "name": "agg", "window": window, "aggregates": aggregates, **fields}


def too_large(operators, records, **fields):
    with pytest.raises(SimulationTooLarge) as caught:
        answer(operators, records, **fields)
    assert [problem.pointer for problem in caught.value.errors] == ["/records"]
    return str(caught.value)


def test_more_outputs_than_an_answer_takes_are_refused_before_all_are_made(monkeypatch):
    fed = []
    run = Chain.run

    def counted(chain, batch, states):
        fed.append(batch.rows.num_rows)
        return run(chain, batch, states)

    monkeypatch.setattr(Chain, "run", counted)
    records = [record("k", 10_000 + i) for i in range(1000)]
    assert "more than 100000 items" in too_large([aggregate(HOPS)], records)
    assert sum(fed) <= 200


def test_outputs_that_grow_with_what_is_collected_are_refused_by_their_bytes(monkeypatch):
    monkeypatch.setattr(bounds, "MAX_BYTES", 1 << 20)
    records = [record("k", i, {"v": "x" * 1000}) for i in range(1000)]
    assert "more than 1048576 bytes" in too_large([aggregate(None, ALL)], records)


def test_what_stores_hold_counts_too(monkeypatch):
    monkeypatch.setattr(bounds, "MAX_ITEMS", 150)
    records = [record(f"k{i}", 1) for i in range(100)]
    assert "entries of stores" in too_large([ONCE], records)
    assert len(answer([ONCE], records[:70])["outputs"]) == 70


def test_stores_that_grow_without_outputs_are_refused_while_it_runs(monkeypatch):
    monkeypatch.setattr(bounds, "_MAX_STORED", 5_000)
    records = [record(f"k{i}", 10_000) for i in range(1000)]
    assert "more than 5000 keys" in too_large([aggregate(HOPS, emit="on_window_close")], records)


def test_stores_of_all_partitions_count_together(monkeypatch):
    monkeypatch.setattr(bounds, "_MAX_STORED", 5_000)
    records = [record(f"k{i}", 10_000, partition=i) for i in range(10)]
    assert "more than 5000 keys" in too_large([aggregate(HOPS, emit="on_window_close")], records)
    monkeypatch.setattr(bounds, "_MAX_DISK", 1)
    assert "bytes on disk" in too_large([ONCE], records)


def test_of_stores_only_those_of_the_task_that_ran_are_looked_at(monkeypatch):
    looks = []
    entries = Replica.entries.fget
    monkeypatch.setattr(Replica, "entries", property(lambda replica: looks.append(replica) or entries(replica)))
    records = [record(str(i), i, partition=i % 40) for i in range(80)]
    answer([ONCE], records)
    assert len(looks) == 40
    assert len(set(looks)) == 40


def test_windows_of_windows_are_refused_before_anything_runs():
    operators = [aggregate(HOPS), {**aggregate(HOPS), "name": "again"}]
    assert "falls into 1000000 windows" in too_large(operators, [record("k", 10_000)])


def test_a_batch_whose_cut_matters_is_counted_beforehand():
    records = [record("k", 10_000 + i) for i in range(1000)]
    net = aggregate(HOPS, updates="last_per_batch")
    assert "smaller batch_records" in too_large([net], records)
    outputs = answer([net], records[:10], batch_records=5)["outputs"]
    assert len(outputs) == 2 * (1000 + 4)  # the windows of five records that come one after the other, twice


def test_a_simulation_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(bounds, "MAX_SECONDS", -1.0)
    assert "longer than -1 s" in too_large([ONCE], [record("a", 1)])


def test_many_partitions_with_many_stores_are_refused():
    many = [{**ONCE, "name": f"once_{i}"} for i in range(3)]
    assert "keep 600 stores, at most 512" in too_large(many, [record("a", 1, partition=p) for p in range(200)])


@pytest.mark.parametrize("operator", [aggregate(HOPS), aggregate({"type": "sliding", "time_difference_ms": 50}, ALL)])
def test_how_records_are_fed_changes_nothing(monkeypatch, operator):
    records = [record(f"k{i % 3}", 7_000 + 13 * i, {"v": str(i)}) for i in range(60)]
    expected = answer([operator], records)
    monkeypatch.setattr(bounds, "_FED_RECORDS", 7)
    assert answer([operator], records) == expected


def test_values_are_shown_as_the_caller_wants_them():
    body = SimulateRequest.model_validate({"job": {"operators": []}, "records": [record("a", 1, {"v": 1})]})
    assert simulate(body, str)["outputs"][0]["value"] == '{"v":1}'


def test_where_an_operator_failed_is_a_pointer_into_the_request():
    strict = {"op": "filter", "name": "strict", "where": "(value->>'v')::bigint > 0"}
    with pytest.raises(OperatorFailed) as failed:
        answer([strict], [record("a", 1, {"v": 1}), record("a", 1, {"v": "x"})])
    assert [problem.pointer for problem in failed.value.errors] == ["/records/1"]


def test_a_failure_that_no_record_caused_points_to_its_operator():
    full = {"op": "suppress", "name": "full", "until": "time_limit", "time_limit_ms": 5, "buffer": {"max_bytes": 8}}
    full["buffer"]["when_full"] = "shut_down"
    error = OperatorFailed("full", None, "no")
    spec, _ = compiled(SimulateRequest(job={"operators": [ONCE, full]}))
    assert place_of(error, spec) == "/job/operators/1"


def test_each_branch_of_a_tree_gives_what_it_gives_alone():
    rekeyed = {"op": "select_key", "key": "value->>'id'"}
    everywhere = {"op": "deduplicate_by_key", "name": "everywhere", "interval_ms": 10}
    records = [record(f"k{i % 5}", 3 * i, {"id": f"i{i % 7}"}, partition=i % 3) for i in range(40)]
    sinks = [{"stream": "a", "after": "once"}, {"stream": "b"}, {"stream": "c", "after": "source"}]
    tree = answer([ONCE, {**rekeyed, "after": "source"}, everywhere], records, job={"sink": sinks})["outputs"]
    alone = {"a": [ONCE], "b": [rekeyed, everywhere], "c": []}
    for stream, operators in alone.items():
        expected = answer(operators, records, job={"sink": stream})["outputs"]
        assert [each for each in tree if each["stream"] == stream] == expected
        assert expected
