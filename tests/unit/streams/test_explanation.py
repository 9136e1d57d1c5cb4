"""What `:explain` says of single records in jobs of every shape; that it is right of many is tests/conformance's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from service.simulate import explain_child, explanation
from service.simulate.child import Limits
from service.simulate.explained_job import explain_all
from service.simulate.explanation import TaskAgain, TaskToExplain, explain
from service.streams.operators import aggregate
from tests.task import batch_of, job

COUNT = {"n": {"fn": "count"}}
ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 10}
HOPS = {"type": "hopping", "size_ms": 10, "advance_ms": 5}
LARGE = {"op": "filter", "name": "large", "where": "(value->>'n')::bigint > 1"}


def to_explain(operators: list[dict[str, Any]], count: int, **asked: Any) -> TaskToExplain:
    spec = {name: asked.pop(name) for name in ("sink",) if name in asked}
    on_error = asked.pop("on_error", "fail")
    topology = job(operators, on_error=on_error, **spec).to_json()
    return TaskToExplain(topology, 0, "in", 0, on_error, **{"begin": 0, "position": count, "key": b"k", **asked})


def rows(*records: tuple[int, Any]) -> pa.RecordBatch:
    """Timestamps and values of records of one key."""
    found = batch_of([{"key": "k", "value": value, "timestamp": at} for at, value in records]).rows
    return found.rename_columns([*found.schema.names[:-1], "offset"])


def said(folder: Path, operators: list[dict[str, Any]], *records: tuple[int, Any], **asked: Any) -> dict[str, Any]:
    return explain(to_explain(operators, len(records), **asked), [rows(*records)], folder)


def verdict(found: dict[str, Any]) -> tuple[Any, ...]:
    return found["verdict"], found["operator"], found["reason"], found["by_ms"]


def test_of_several_branches_one_is_enough(tmp_path):
    chains = [LARGE, {**ONCE, "after": "source"}]
    sinks = [{"stream": "a", "after": "large"}, {"stream": "b", "after": "once"}]
    assert verdict(said(tmp_path / "a", chains, (1, {"n": 1}), sink=sinks)) == ("in", None, None, None)
    found = said(tmp_path / "b", chains, (1, {"n": 1}), (2, {"n": 1}), sink=sinks)
    assert verdict(found) == ("out", "large", "filtered", None)


def test_the_condition_of_a_sink_lets_records_go_too(tmp_path):
    sinks = [{"stream": "a", "where": "(value->>'n')::bigint > 1"}]
    assert verdict(said(tmp_path, [ONCE], (1, {"n": 1}), sink=sinks)) == ("out", "sink-0", "filtered", None)


def test_of_several_windows_one_is_enough_and_the_last_says_how_late_it_is(tmp_path):
    operators = [{"op": "aggregate", "name": "hops", "window": HOPS, "aggregates": COUNT, "emit": "on_window_close"}]
    found = said(tmp_path / "in", operators, (17, None), (11, None))
    assert verdict(found) == ("in", "hops", None, None)
    assert [(window["start"], len(window["updates"])) for window in found["windows"]] == [(5, 0), (10, 2)]
    found = said(tmp_path / "out", operators, (27, None), (11, None))
    assert verdict(found) == ("out", "hops", "late", 7)
    assert found["cause"] == {"stream": "in", "partition": 0, "offset": 0, "timestamp": 27, "reason": "record"}


def test_of_sliding_windows_some_of_which_had_closed_nobody_knows(tmp_path):
    sliding = {"type": "sliding", "time_difference_ms": 10, "grace_ms": 0}
    operators = [{"op": "aggregate", "name": "s", "window": sliding, "aggregates": COUNT, "emit": "on_window_close"}]
    found = said(tmp_path / "some", operators, (12, {}), (20, {}), (15, {}))
    assert verdict(found) == ("unknown", "s", "sliding", None)
    every = [{**operators[0], "emit": "on_update"}]
    assert verdict(said(tmp_path / "each", every, (12, {}), (20, {}), (15, {})))[:2] == ("in", "s")
    assert verdict(said(tmp_path / "none", every, (12, {}), (40, {}), (15, {}))) == ("out", "s", "late", 15)


def test_a_record_that_fails_says_so_and_one_that_was_skipped(tmp_path):
    assert verdict(said(tmp_path / "a", [LARGE], (1, {"n": "x"}), on_error="drop")) == (
        "out",
        "large",
        "expression_failed",
        None,
    )
    found = said(tmp_path / "b", [ONCE], (1, {}), (2, {}), skips=[0])
    assert [(each["verdict"], each["reason"]) for each in found["records"]] == [("out", "skipped"), ("in", None)]


def test_a_final_that_the_condition_of_a_sink_lets_go_left_its_window_all_the_same(tmp_path):
    tumbling = {"op": "aggregate", "name": "n", "window": {"type": "tumbling", "size_ms": 10}, "aggregates": COUNT}
    final = {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}}
    sinks = [{"stream": "a", "where": "(value->>'n')::bigint > 0"}]
    [window] = said(tmp_path, [tumbling, final], (1, {}), (12, {}), sink=sinks, timestamp=1)["windows"]
    assert [each["operator"] for each in window["finals"]] == ["final"]


def test_a_record_whose_target_can_not_be_found_ends_there(tmp_path):
    """The expression of a repartition fails on it; and of two ways one is enough."""
    by_id = {"op": "deduplicate", "name": "once", "id": "(value->>'id')::bigint", "interval_ms": 10}
    topology = job([by_id], on_error="drop", partitions={"in": 2}).to_json()
    task = TaskToExplain(topology, 0, "in", 0, "drop", position=2, key=b"k")
    found = explain(task, [rows((1, {"id": 1}), (2, {"id": "x"}))], tmp_path / "a")
    assert verdict(found) == ("out", "once-repartition", "expression_failed", None)
    assert found["path"] == [{"operator": "once-repartition", "outcome": "dropped", "reason": "expression_failed"}]
    assert [(each["verdict"], each["reason"]) for each in found["records"]] == [
        ("unknown", "repartitioned"),
        ("out", "expression_failed"),
    ]


def test_a_buffer_has_what_came_for_it(tmp_path):
    hold = {"op": "suppress", "name": "hold", "until": "time_limit", "time_limit_ms": 100, "buffer": {}}
    assert verdict(said(tmp_path, [hold], (1, {}))) == ("in", "hold", None, None)


def test_of_many_windows_and_outputs_some_are_shown_and_the_answer_says_so(tmp_path):
    hops = HOPS | {"size_ms": 1_010, "advance_ms": 10, "grace_ms": 0}
    operators = [{"op": "aggregate", "name": "hops", "window": hops, "aggregates": COUNT}]
    found = said(tmp_path, operators, (5_000, None))
    assert (len(found["windows"]), len(found["outputs"]), found["cut"]) == (100, 100, ["outputs", "windows"])


def test_what_waited_in_front_of_a_repartition_leaves_its_readers_unknown(tmp_path, monkeypatch):
    """A record closes more than one commit lets go: where the rest came in between others depends on commits."""
    monkeypatch.setattr(aggregate, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(explanation, "_FED_RECORDS", 1)
    tens = {
        "op": "aggregate",
        "name": "tens",
        "window": {"type": "tumbling", "size_ms": 10, "grace_ms": 50},
        "aggregates": COUNT,
    }
    tens |= {"emit": "on_window_close"}
    twice = {"op": "deduplicate", "name": "twice", "id": "value->>'n'", "interval_ms": 10}
    topology = job([tens, twice], partitions={"in": 2}).to_json()
    [log] = topology["sub_topologies"][1]["sources"]
    tasks = [TaskAgain(0, p, [("in", p)], (0,), (4 * (1 - p),)) for p in range(2)]
    tasks += [TaskAgain(1, p, [(log, w) for w in range(2)], (0, 0), (0, 0)) for p in range(2)]
    task = TaskToExplain(topology, 0, "in", 0, "fail", key=b"k", tasks=tasks)
    records = rows(*((at, {}) for at in (1, 11, 21, 199)))
    found = explain_all(task, [records.replace_schema_metadata({"task": "0", "input": "0"})], tmp_path)
    assert (found["verdict"], found["reason"]) == ("unknown", "several_inputs")
    assert "of task 0_0 than one commit takes" in found["why"]


def test_what_came_behind_a_change_is_unknown(tmp_path):
    found = said(tmp_path, [ONCE], (1, {}), (2, {}), known_to=1, ended_by="replay")
    assert (found["verdict"], found["reason"]) == ("unknown", "replayed")
    assert found["why"]
    assert [each["verdict"] for each in found["records"]] == ["in", "unknown"]


def test_too_many_records_are_refused_behind_the_last_frame(tmp_path, monkeypatch):
    monkeypatch.setattr(explanation, "MAX_FOLLOWED", 1)
    sink = pa.BufferOutputStream()
    batch = rows((1, {}), (2, {}))
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    left = iter([msgspec.json.encode(to_explain([ONCE], 2)), sink.getvalue().to_pybytes(), b"further"])
    head, body = explain_child.outcome(left, tmp_path, Limits())
    assert (head["status"], head["code"], body) == (422, "explanation_too_large", b"")
    assert list(left) == []


def test_an_answer_is_json_behind_its_length(tmp_path):
    head, body = explain_child.outcome(iter([msgspec.json.encode(to_explain([ONCE], 0))]), tmp_path, Limits())
    assert head == {"length": len(body)}
    assert json.loads(body)["reason"] == "no_record"
