"""An explanation that begins in the middle of a history: where it says something, it is what the whole one says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from service.simulate.explanation import TaskToExplain, explain
from tests.task import batch_of, job

Record = dict[str, Any]
COUNT = {"n": {"fn": "count"}, "s": {"fn": "sum", "of": "(value->>'n')::bigint"}}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}}
SOME = {"op": "filter", "name": "some", "where": "(value->>'n')::bigint <> 1"}
CLOSES = {"emit": "on_window_close"}


def aggregate(**window: Any) -> Record:
    return {"op": "aggregate", "name": "agg", "window": window, "aggregates": COUNT}


TUMBLING = aggregate(type="tumbling", size_ms=7, grace_ms=3)
HOPPING = aggregate(type="hopping", size_ms=9, advance_ms=4, grace_ms=2)
SESSIONS = aggregate(type="session", gap_ms=3, grace_ms=2)
BY_KEY = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 6}
BY_VALUE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'n'", "interval_ms": 9}
CHAINS = {
    "tumbling": [TUMBLING, FINAL],
    "tumbling at its close": [SOME, TUMBLING | CLOSES],
    "hopping": [SOME, HOPPING],
    "hopping finals": [HOPPING, FINAL],
    "session": [SESSIONS],
    "session finals": [SOME, SESSIONS, FINAL],
    "session at its close": [SESSIONS | CLOSES],
    "key": [SOME, BY_KEY],
    "key and value": [BY_VALUE],
}


def sent(answer: Record) -> Record:
    found: Record = orjson.loads(orjson.dumps(answer))
    return found


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Record], list[tuple[int, str]]]:
    steps = st.sampled_from([-9, -4, -1, 0, 1, 1, 2, 2, 3, 5, 8, 30])
    records, at = [], 20
    for step in draw(st.lists(steps, min_size=20, max_size=70)):
        at = max(0, at + step)
        key = draw(st.sampled_from(["a", "a", "b", "c", None]))
        records.append({"key": key, "value": {"n": draw(st.integers(0, 3))}, "timestamp": at})
    places = draw(st.lists(st.integers(0, len(records)), max_size=3))
    return records, [(place, draw(st.sampled_from(["idle", "flush"]))) for place in sorted(places)]


@pytest.mark.parametrize("chain", CHAINS)
@given(history=histories(), data=st.data())
def test_what_is_said_from_the_middle_is_said_from_the_beginning(
    chain: str, history: tuple[list[Record], list[tuple[int, str]]], data: st.DataObject
) -> None:
    records, advances = history
    begin = data.draw(st.integers(1, len(records) - 1), "begin")
    before = max(record["timestamp"] for record in records[:begin])
    asked: Record
    if data.draw(st.booleans(), "is it one record"):
        offset = data.draw(st.integers(begin, len(records) - 1), "offset")
        key = records[offset]["key"]
        asked = {"offset": offset, "key": None if key is None else key.encode()}
    else:
        asked = {"key": data.draw(st.sampled_from([b"a", b"b", b"c"]), "key")}
    skips = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=2), "skips")
    topology = job(CHAINS[chain]).to_json()
    told = {"position": len(records), "advances": advances, "skips": skips, **asked}
    task = TaskToExplain(topology, 0, "in", 0, "fail", **told)
    rows = batch_of(records).rows
    rows = rows.rename_columns([*rows.schema.names[:-1], "offset"])
    with tempfile.TemporaryDirectory() as folder:
        from_middle = TaskToExplain(topology, 0, "in", 0, "fail", begin=begin, before=before, **told)
        found = sent(explain(from_middle, [rows.slice(begin)], Path(folder, "middle")))
        if found["reason"] == "unsettled":
            event("begins too late")
            return
        event("is told")
        whole = sent(explain(task, [rows], Path(folder, "whole")))
    since = found.pop("known_from")
    assert whole.pop("known_from") == 0
    assert begin <= since <= found["record"]["offset"]
    kept = [each for each in whole["records"] if each["offset"] >= since]
    assert found == whole | {"records": kept, "matched": len(kept)}
