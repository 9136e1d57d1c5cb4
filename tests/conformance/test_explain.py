"""What `:explain` says of each record: equal to its naive twin, on every record of the cases and of the web log."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.simulate.explained_job import JobRerun, explain_all
from service.simulate.explanation import Rerun, SeveralInputs, TaskAgain, TaskToExplain, in_one
from service.simulate.taken import TakenRecords
from service.streams.partitioner import partition_of_key
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


ONCE_EACH = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 30}
SESSIONS = {"op": "aggregate", "name": "agg", "window": {"type": "session", "gap_ms": 5}, "aggregates": COUNT}


class Again:
    """A job over records, run again for one key (None: for all records)."""

    def __init__(self, operators: list[Record], records: list[Record], folder: Path, **asked: Any) -> None:
        self._opened = ExitStack()
        count = len(records)
        asked = {"begin": 0, "position": count, **asked}
        task = TaskToExplain(job(operators).to_json(), 0, "in", 0, "fail", **asked)
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
    return [{**each, "cause": bare(each["cause"])} for each in found]


def bare(cause: Record | None) -> Record | None:
    """A cause as the twin has it, which knows one input."""
    if cause is None:
        return None
    where = (None, None) if cause["offset"] is None else ("in", 0)
    assert (cause["stream"], cause["partition"]) == where
    return {name: cause[name] for name in ("offset", "timestamp", "reason")}


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
    closed = bare(window["closed"])
    return {name: window[name] for name in ("start", "end")} | {"updates": updates, "closed": closed}


@pytest.mark.parametrize("case", given.each(load("deduplicate")))
def test_why_a_record_is_a_duplicate(case, tmp_path):
    [operator] = case["job"]["operators"]
    found = fates([operator], case["records"], tmp_path)
    assert found == naive_explain.deduplicate(operator, case["records"])
    outputs = [record for record, fate in zip(case["records"], found, strict=True) if fate["verdict"] == "in"]
    assert [{"window": None, **record} for record in outputs] == case["outputs"]


@pytest.mark.parametrize("case", given.each([*load("session"), *load("tumbling"), *load("hopping")]))
def test_why_a_record_is_late_and_what_closed_its_windows(case, tmp_path):
    operators, records = case["job"]["operators"], case["records"]
    found = fates(operators, records, tmp_path / "all")
    assert found == naive_explain.Windows(operators[0], records).verdicts
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
    assert found == naive_explain.Windows(operator, records, advances).verdicts
    assert {fate["reason"] for fate in found} == {None, "late", "closed_idle"}
    assert check_windows([operator], records, tmp_path, advances=advances)


def test_why_requests_of_a_web_log_are_not_the_first(tmp_path):
    records = web_log.requests()
    found = fates([ONCE], records, tmp_path)
    assert found == naive_explain.deduplicate(ONCE, records)
    goes_on = [record for record, fate in zip(records, found, strict=True) if fate["verdict"] == "in"]
    assert goes_on == naive.deduplicate(records, naive.identity_of(ONCE), HOUR_MS)


@pytest.mark.parametrize("window", [VISITS, HOURS], ids=["session", "tumbling"])
def test_why_visits_of_a_web_log_ended(window, tmp_path):
    """Each final that suppress lets go says by which request, and what closed its window is that request."""
    records = web_log.requests()
    operators = [{"op": "aggregate", "name": "agg", "window": window, "aggregates": COUNT}, FINAL]
    twin = naive_explain.Windows(operators[0], records)
    assert fates(operators, records, tmp_path / "all") == twin.verdicts
    own = [record for record in records if record["key"] == "66.249.73.135"]
    assert len(own) > 400
    with Again(operators, records, tmp_path / "one", key=b"66.249.73.135") as run:
        assert len(run.fates(EVERY)) == len(own)
        for at in sorted({record["timestamp"] for record in own}):
            found = run.windows(at)
            assert [shown(each) for each in found] == twin.windows("66.249.73.135", at)
            for each in found:
                closed = bare(each["closed"])
                finals = [] if closed is None else [("final", "stream_time", closed["offset"])]
                assert [(final["operator"], final["reason"], final["offset"]) for final in each["finals"]] == finals


class Apart:
    """Records as several inputs have them, and a task that takes what is there of each now and then. `commits`: how
    far each input was read behind each; `taken`: (input, offset) of the records, in the order in which it took them.
    """

    def __init__(self, records: list[Record], count: int, drawn: random.Random) -> None:
        self.inputs: list[list[Record]] = [[] for _ in range(count)]
        for record in records:
            drawn.choice(self.inputs).append(record)
        self.commits = [[0] * count]
        self.taken: list[tuple[int, int]] = []
        self.orders: list[list[int]] = []
        frontiers, last = [-1] * count, (-1, -1)
        while self.commits[-1] != [len(each) for each in self.inputs]:
            start, found = self.commits[-1], []
            ends = [
                min(at + drawn.choice([0, 0, 1, 3, 20]), len(own)) for at, own in zip(start, self.inputs, strict=True)
            ]
            for number, own in enumerate(self.inputs):
                for offset in range(start[number], ends[number]):
                    frontiers[number] = max(frontiers[number], own[offset]["timestamp"])
                    found.append((frontiers[number], number, offset))
            found.sort()
            if found and found[0][:2] < last:
                self.orders.append(start)
            last = found[-1][:2] if found else last
            self.taken += [(number, offset) for _, number, offset in found]
            self.commits.append(ends)

    @property
    def records(self) -> list[Record]:
        return [self.inputs[number][offset] for number, offset in self.taken]

    def run_again(self, operators: list[Record], asked: int, folder: Path, opened: ExitStack, **more: Any) -> Rerun:
        """What is asked is about one of the inputs; `advances` are (commit, reason)."""
        tables = [
            pa.Table.from_batches([rows.rename_columns([*rows.schema.names[:-1], "offset"])])
            for rows in (batch_of(each).rows for each in self.inputs)
        ]
        taken = TakenRecords(tables, [*self.orders, self.commits[-1]])
        several = SeveralInputs(
            inputs=[("in", number) for number in range(len(self.inputs))],
            asked=asked,
            begin=self.commits[0],
            position=self.commits[-1],
            orders=self.orders,
            advances=[(self.commits[at], reason) for at, reason in more.pop("advances", ())],
            known_to=None,
        )
        task = TaskToExplain(job(operators).to_json(), 0, "in", 0, "fail", several=several, **more)
        run = Rerun(in_one(task, several, taken), folder, opened, taken)
        for batch in taken.batches():
            run.feed(batch)
        return run

    def placed(self, cause: Record | None) -> Record | None:
        """A cause of the twin, whose offsets are places in the order in which the records were taken."""
        if cause is None or cause["offset"] is None:
            return None if cause is None else {**cause, "stream": None, "partition": None}
        number, offset = self.taken[cause["offset"]]
        return {**cause, "stream": "in", "partition": number, "offset": offset}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("operator", [ONCE_EACH, SESSIONS], ids=["deduplicate", "session"])
def test_records_of_several_inputs_in_the_order_in_which_they_were_taken(operator, seed, tmp_path):
    """Also where an input wakes late: it is taken behind what has a later time, and may be late because of that."""
    drawn = random.Random(seed)
    records, at = [], 0
    for _ in range(300):
        at = max(0, at + drawn.choice([-9, -4, 0, 1, 2, 5, 17]))
        records.append({"key": drawn.choice("abc"), "value": {"id": drawn.choice("xyz")}, "timestamp": at})
    apart = Apart(records, 3, drawn)
    assert len(apart.orders) > 10
    if operator is SESSIONS:
        places = sorted(drawn.sample(range(len(apart.commits)), 5))
        advances = [(place, drawn.choice(["idle", "flush"])) for place in places]
        twin_advances = [(sum(apart.commits[place]), reason) for place, reason in advances]
        twin = naive_explain.Windows(operator, apart.records, twin_advances).verdicts
    else:
        advances, twin = [], naive_explain.deduplicate(operator, apart.records)
    for asked in range(3):
        with ExitStack() as opened:
            run = apart.run_again([operator], asked, tmp_path / str(asked), opened, advances=advances)
            found = run.fates(EVERY)
        expected = [
            {"offset": offset, "timestamp": record["timestamp"], **fate, "cause": apart.placed(fate["cause"])}
            for (number, offset), record, fate in zip(apart.taken, apart.records, twin, strict=True)
            if number == asked
        ]
        assert found == expected
        assert {fate["verdict"] for fate in found} == {"in", "out"}


ANYWHERE = {"op": "deduplicate", "name": "once", "id": "value->>'id'", "interval_ms": 30}
BY_USER = {"op": "select_key", "name": "by_user", "key": "value->>'user'"}
TENS = {"op": "aggregate", "name": "agg", "window": {"type": "tumbling", "size_ms": 12}, "aggregates": COUNT}


class Across:
    """A job over three partitions with one repartition, whose tasks behind it take what is there now and then.
    `commits`: up to where a target had read what each partition had; `places`: how many records for it that were.
    """

    def __init__(self, operators: list[Record], seed: int) -> None:
        self.drawn = drawn = random.Random(seed)
        self.topology = job(operators, partitions={"in": 3})
        self.by = "id" if operators[-1] is ANYWHERE else "user"
        self.writers: list[list[Record]] = [[], [], []]
        at = 0
        for _ in range(240):
            at = max(0, at + drawn.choice([-9, -4, 0, 1, 2, 5, 17]))
            value = {"id": drawn.choice("vwxyz"), "user": drawn.choice("abcde")}
            drawn.choice(self.writers).append({"key": drawn.choice("kl"), "value": value, "timestamp": at})
        self.ends = [len(each) for each in self.writers]
        self.rounds, reached = [], [0, 0, 0]
        while reached != self.ends:
            reached = [min(at + drawn.choice([0, 1, 5, 20]), end) for at, end in zip(reached, self.ends, strict=True)]
            self.rounds.append(reached)

    def target_of(self, record: Record) -> int:
        return partition_of_key(record["value"][self.by].encode(), 3)

    def taken(self, target: int) -> list[list[tuple[int, int]]]:
        return naive_explain.taken_behind(self.writers, self.rounds, self.target_of, target)

    def record(self, place: tuple[int, int]) -> Record:
        return self.writers[place[0]][place[1]]

    def again(self, target: int, advances: list[tuple[int, str]]) -> TaskAgain:
        """The history of a task behind the repartition, as its commits say it. `advances`: (round, reason)."""
        counts, orders, last, places = [0, 0, 0], [], (-1, -1), [(0, 0, 0)]
        for taken in self.taken(target):
            ends = [
                (max(each["timestamp"] for each in self.writers[writer][: offset + 1]), writer)
                for writer, offset in taken
            ]
            if ends and ends[0] < last:
                orders.append(tuple(counts))
            last = ends[-1] if ends else last
            for writer, _ in taken:
                counts[writer] += 1
            places.append(tuple(counts))
        stream = self.topology.sub_topologies[1].sources[0]
        inputs = [(stream, writer) for writer in range(3)]
        moved = [(places[place], reason) for place, reason in advances]
        return TaskAgain(1, target, inputs, (0, 0, 0), places[-1], orders, moved, last=last)

    def question(self, partition: int, advances: list[tuple[int, str]] = [], **asked: Any) -> TaskToExplain:  # noqa: B006
        tasks = [TaskAgain(0, p, [("in", p)], (0,), (end,)) for p, end in enumerate(self.ends)]
        tasks += [self.again(target, advances) for target in range(3)]
        return TaskToExplain(self.topology.to_json(), 0, "in", partition, "fail", tasks=tasks, **asked)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for number, own in enumerate(self.writers):
            rows = batch_of(own).rows
            rows = rows.rename_columns([*rows.schema.names[:-1], "offset"])
            yield rows.replace_schema_metadata({"task": str(number), "input": "0"})

    def cause(self, cause: Record | None, taken: list[tuple[int, int]]) -> Record | None:
        """A cause of the twin, whose offsets are places in what a task took."""
        if cause is None or cause["offset"] is None:
            return None if cause is None else {**cause, "stream": None, "partition": None}
        writer, offset = taken[cause["offset"]]
        return {**cause, "stream": "in", "partition": writer, "offset": offset}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "operators", [[ANYWHERE], [BY_USER, TENS, FINAL], [BY_USER, SESSIONS]], ids=["deduplicate", "tumbling", "session"]
)
def test_records_behind_a_repartition_in_the_order_in_which_they_were_taken(operators, seed, tmp_path):
    """Who is to blame is named as it lies in the source; also of what came late, and what closed without a record."""
    across = Across(operators, seed)
    rounds = sorted(across.drawn.sample(range(len(across.rounds)), 3))
    advances = [] if operators[-1] is ANYWHERE else [(at, across.drawn.choice(["idle", "flush"])) for at in rounds]
    assert any(across.again(target, []).orders for target in range(3))
    expected: dict[tuple[int, int], Record] = {}
    for target in range(3):
        parts = across.taken(target)
        taken = [place for part in parts for place in part]
        records = [across.record(place) for place in taken]
        if operators[-1] is ANYWHERE:
            verdicts = naive_explain.deduplicate(ANYWHERE, records)
        else:
            records = [{**each, "key": each["value"]["user"]} for each in records]
            moved = [(sum(map(len, parts[:at])), reason) for at, reason in advances]
            twin = naive_explain.Windows(operators[1], records, moved)
            verdicts = twin.verdicts
            check_windows_behind(across, advances, twin, taken, tmp_path / f"windows{target}")
        for place, each in zip(taken, verdicts, strict=True):
            expected[place] = {**each, "cause": across.cause(each["cause"], taken)}
    for partition in range(3):
        with ExitStack() as opened:
            question = across.question(partition, advances)
            rerun = JobRerun(question, across.batches(), tmp_path / str(partition), opened)
            rerun.run()
            found = rerun.first.fates(EVERY)
        assert len(found) == across.ends[partition]
        for offset, each in enumerate(found):
            place = {"offset": offset, "timestamp": across.record((partition, offset))["timestamp"]}
            assert each == place | expected[partition, offset], (partition, offset)
    assert {each["verdict"] for each in expected.values()} == {"in", "out"}


def check_windows_behind(
    across: Across,
    advances: list[tuple[int, str]],
    twin: naive_explain.Windows,
    taken: list[tuple[int, int]],
    folder: Path,
) -> None:
    """The windows of some records, whose updates and ends are named as they lie in the source."""
    for number in across.drawn.sample(range(len(taken)), 3) if taken else ():
        partition, offset = taken[number]
        record = across.record(taken[number])
        question = across.question(partition, advances, offset=offset, key=record["key"].encode())
        found = explain_all(question, across.batches(), folder / str(number))
        windows = [
            {
                "start": window["start"],
                "end": window["end"],
                "updates": [(each["partition"], each["offset"]) for each in window["updates"]],
                "closed": window["closed"],
            }
            for window in found["windows"]
            if window["updates"]
        ]
        assert windows == [
            window
            | {
                "updates": [taken[at] for at in window["updates"]],
                "closed": across.cause(window["closed"], taken),
            }
            for window in twin.windows(record["value"]["user"], record["timestamp"])
        ]
