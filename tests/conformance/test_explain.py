"""What `:explain` says of each record: equal to its naive twin, on every record of the cases and of the web log."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from service.simulate.explanation import Rerun, TaskToExplain
from tests import naive, naive_explain, web_log
from tests.conformance import given
from tests.conformance.given import load
from tests.task import batch_of, job

Record = dict[str, Any]
EVERY = 1 << 30
HOUR_MS = 3_600_000
ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'path'", "interval_ms": HOUR_MS}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}}
COUNT = {"n": {"fn": "count"}}
VISITS = {"type": "session", "gap_ms": 600_000}
HOURS = {"type": "tumbling", "size_ms": HOUR_MS}


class Again:
    """A job over records, run again for one key (None: for all records)."""

    def __init__(self, operators: list[Record], records: list[Record], folder: Path, **asked: Any) -> None:
        self._opened = ExitStack()
        count = len(records)
        asked = {"begin": 0, "position": count, **asked}
        task = TaskToExplain(job(operators).to_json(), 0, 0, "fail", **asked)
        self.run = Rerun(task, folder, self._opened)
        rows = batch_of(records).rows
        size = 97 if task.key is None else count  # how it is cut changes nothing
        for at in range(0, count, size):
            part = rows.slice(at, size)
            self.run.feed(part.rename_columns([*part.schema.names[:-1], "offset"]))

    def __enter__(self) -> Rerun:
        return self.run

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def fates(operators: list[Record], records: list[Record], folder: Path, **asked: Any) -> list[Record]:
    with Again(operators, records, folder, **asked) as run:
        found = run.fates(EVERY)
    assert [each.pop("offset") for each in found] == list(range(len(records)))
    assert [each.pop("timestamp") for each in found] == [record["timestamp"] for record in records]
    return found


def check_windows(operators: list[Record], records: list[Record], folder: Path, **asked: Any) -> int:
    """The windows of the times of records, by key, of a large case by the most frequent ones; how many were closed."""
    twin = naive_explain.Windows(operators[0], records, asked.get("advances", ()))
    closed = 0
    frequent = Counter(record["key"] for record in records if record["key"] is not None).most_common()
    for key, _ in frequent[: len(frequent) if len(records) <= given.LARGE else 3]:
        own = [record for record in records if record["key"] == key]
        with Again(operators, records, folder / key.encode().hex(), key=key.encode(), **asked) as run:
            assert len(run.fates(EVERY)) == len(own)
            for at in sorted({record["timestamp"] for record in own}):
                found = [shown(window) for window in run.windows(at)]
                expected = twin.windows(key, at)
                assert [window for window in found if window["updates"]] == expected
                closed += sum(window["closed"] is not None for window in expected)
    return closed


def shown(window: Record) -> Record:
    """A window as the twin has it."""
    assert window["operator"] == "agg"
    assert window["updated"] == len(window["updates"])
    updates = [update["offset"] for update in window["updates"]]
    return {name: window[name] for name in ("start", "end", "closed")} | {"updates": updates}


@pytest.mark.parametrize("case", given.each(load("deduplicate")))
def test_why_a_record_is_a_duplicate(case, tmp_path):
    [operator] = case["job"]["operators"]
    found = fates([operator], case["records"], tmp_path)
    assert found == naive_explain.deduplicate(operator, case["records"])
    outputs = [record for record, told in zip(case["records"], found, strict=True) if told["verdict"] == "in"]
    assert [{"window": None, **record} for record in outputs] == case["outputs"]


@pytest.mark.parametrize("case", given.each([*load("session"), *load("tumbling"), *load("hopping")]))
def test_why_a_record_is_late_and_what_closed_its_windows(case, tmp_path):
    operators, records = case["job"]["operators"], case["records"]
    found = fates(operators, records, tmp_path / "all")
    assert found == naive_explain.Windows(operators[0], records).told
    check_windows(operators, records, tmp_path)


@pytest.mark.parametrize("family", ["session", "tumbling"])
@pytest.mark.parametrize("emit", [{}, {"emit": "on_window_close"}])
def test_advances_of_time_close_windows_too(family, emit, tmp_path):
    """Closed idle or by a flush, at random places: records behind them say by whom, and by how much."""
    drawn = random.Random(7)
    window = {"session": {"gap_ms": 5}, "tumbling": {"size_ms": 12}}[family] | {"type": family, "grace_ms": 3}
    operator = {"op": "aggregate", "name": "agg", "window": window, "aggregates": COUNT, **emit}
    records, at = [], 0
    for _ in range(400):
        at = max(0, at + drawn.choice([-9, -4, 0, 1, 2, 5, 17]))
        records.append({"key": drawn.choice("abc"), "value": {"v": 1}, "timestamp": at})
    places = sorted(drawn.sample(range(400), 30))
    advances = [(place, drawn.choice(["idle", "flush"])) for place in places]
    found = fates([operator], records, tmp_path / "all", advances=advances)
    assert found == naive_explain.Windows(operator, records, advances).told
    assert {told["reason"] for told in found} == {None, "late", "closed_idle"}
    assert check_windows([operator], records, tmp_path, advances=advances)


def test_why_requests_of_a_web_log_are_not_the_first(tmp_path):
    records = web_log.requests()
    found = fates([ONCE], records, tmp_path)
    assert found == naive_explain.deduplicate(ONCE, records)
    goes_on = [record for record, told in zip(records, found, strict=True) if told["verdict"] == "in"]
    assert goes_on == naive.deduplicate(records, naive.identity_of(ONCE), HOUR_MS)


@pytest.mark.parametrize("window", [VISITS, HOURS], ids=["session", "tumbling"])
def test_why_visits_of_a_web_log_ended(window, tmp_path):
    """Each final that suppress lets go says by which request, and what closed its window is that request."""
    records = web_log.requests()
    operators = [{"op": "aggregate", "name": "agg", "window": window, "aggregates": COUNT}, FINAL]
    twin = naive_explain.Windows(operators[0], records)
    assert fates(operators, records, tmp_path / "all") == twin.told
    own = [record for record in records if record["key"] == "66.249.73.135"]
    assert len(own) > 400
    with Again(operators, records, tmp_path / "one", key=b"66.249.73.135") as run:
        assert len(run.fates(EVERY)) == len(own)
        for at in sorted({record["timestamp"] for record in own}):
            found = run.windows(at)
            assert [shown(each) for each in found] == twin.windows("66.249.73.135", at)
            for each in found:
                closed = each["closed"]
                finals = [] if closed is None else [("final", "stream_time", closed["offset"])]
                assert [(final["operator"], final["reason"], final["offset"]) for final in each["finals"]] == finals
