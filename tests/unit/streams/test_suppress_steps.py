"""More leaves suppress at once than may be in memory: it leaves in steps, and what comes meanwhile waits its turn."""

import json

import pytest

from service.streams.layouts.backlog import Backlog
from service.streams.layouts.reserved import BACKLOG_KEY
from service.streams.operators.suppress import BufferSpec, Suppress, SuppressSpec
from service.streams.operators.upstream import Upstream
from tests.machine import Machine
from tests.task import Task, batch_of, causes, dropped, job, outputs, parts

MEBIBYTE = 1 << 20
TUMBLING = {"type": "tumbling", "size_ms": 10, "grace_ms": 0}


class Single(Machine):
    """A suppress from which one entry leaves in a step."""

    def __init__(self, window=None):
        until = {"until": "window_closes"} if window else {"until": "time_limit", "time_limit_ms": 10}
        spec = SuppressSpec.model_validate({"op": "suppress", "name": "s", **until})
        super().__init__(Suppress(spec, "s", Upstream(is_table=True, window=window), at_once=1))

    def reasons(self):
        return [json.loads(headers)["millrace-closed-by"] for headers in self.column("headers")]

    def drained(self):
        found = []
        while self.rest is not None:
            found.append(self.go_on())
        return found


def update(key, timestamp, window=None):
    return {"key": key, "value": {"n": timestamp}, "timestamp": timestamp, "window": window}


def keys(records):
    return [record["key"] for record in records]


def filled(window=None):
    machine = Single(window)
    assert machine.feed(*(update(key, 0, window and {"start": 0, "end": 10}) for key in "abcd")) == []
    return machine


def test_one_leaves_in_each_step_in_order_and_then_nothing_is_left_to_do():
    machine = filled()
    assert keys(machine.feed(update("z", 10))) == ["a"]
    assert [keys(each) for each in machine.drained()] == [
        ["b"],
        ["c"],
        ["d"],
        [],
    ]  # the last finds that it was the last
    assert machine.feed() == []


def test_the_row_at_which_more_has_to_leave_is_the_last_one_taken():
    machine = filled()
    assert keys(machine.feed(update("z", 10), update("a", 11), update("b", 11))) == ["a"]
    assert (machine.rest.cause, machine.rest.rows.column("key").to_pylist()) == (0, [b"a", b"b"])
    found = [out for step in machine.drained() for out in step]
    # b, c and d of the first time; the new a and b wait for their own
    assert [(out["key"], out["timestamp"]) for out in found] == [("b", 0), ("c", 0), ("d", 0)]
    assert keys(machine.feed(update("later", 21))) == ["z"]


def test_an_update_that_waits_does_not_touch_what_leaves_before_it():
    machine = filled()
    machine.feed(update("z", 10), update("d", 10))
    found = [out for step in machine.drained() for out in step]
    assert [(out["key"], out["timestamp"]) for out in found] == [("b", 0), ("c", 0), ("d", 0)]
    assert keys(machine.feed(update("later", 20))) == ["d"]
    assert machine.column("timestamp") == [10]


def test_what_leaves_later_says_why_and_names_the_record_that_caused_it():
    machine = filled(TUMBLING)
    machine.feed(update("z", 10, {"start": 10, "end": 20}))
    assert (machine.reasons(), machine.causes()) == (["stream_time"], [4])
    machine.go_on()
    assert (machine.reasons(), machine.causes()) == (["stream_time"], [4])


@pytest.mark.parametrize("reason", ["idle", "flush"])
def test_time_that_is_moved_is_not_through_before_all_has_left(reason):
    machine = filled(TUMBLING)
    found = []
    for _ in range(4):
        machine.advance(10, reason)
        found.append((machine.reasons(), machine.causes(), machine.rest is None))
    assert found == [([reason], [-1], False)] * 3 + [([reason], [-1], True)]


def test_a_record_that_waits_is_dropped_once():
    machine = filled()
    machine.feed(update("z", 10), {**update("", 10), "key": None}, {**update("", 10), "key": "k" * 401})
    found = machine.dropped()
    while machine.rest is not None:
        machine.go_on()
        found += machine.dropped()
    assert found == [("null_key", 5), ("key_too_long", 6)]


@pytest.mark.parametrize(
    ("buffer", "at_once"),
    [
        ({}, 64 * MEBIBYTE),
        ({"max_bytes": 1000, "when_full": "spill_to_disk"}, 4 * MEBIBYTE),
        ({"max_bytes": 10 * MEBIBYTE, "when_full": "spill_to_disk"}, 10 * MEBIBYTE),
        ({"max_bytes": 1 << 40, "when_full": "spill_to_disk"}, 64 * MEBIBYTE),
        ({"max_records": 5, "when_full": "spill_to_disk"}, 64 * MEBIBYTE),
        ({"max_bytes": 1 << 40, "when_full": "shut_down"}, 2**63 - 1),
        ({"max_records": 5}, 2**63 - 1),
    ],
)
def test_as_much_leaves_at_once_as_may_be_in_memory(buffer, at_once):
    """What is bounded and does not spill is no larger than its bounds."""
    assert BufferSpec.model_validate(buffer).at_once == at_once


# ---------------------------------------------------------------- in a chain

LIMITED = {"op": "suppress", "until": "time_limit", "time_limit_ms": 10}
COLLECTED = {"op": "aggregate", "name": "sum", "aggregates": {"n": {"fn": "count"}}}


def stepping(*operators, at_once=1):
    """A task whose suppress operators let one entry go at once (None: all), filled with four."""
    task = Task(job(list(operators)))
    for place in task.chain._places:
        if at_once is not None and isinstance(place.operator, Suppress):
            place.operator.at_once = at_once
    task.run(batch_of([update(key, 0) for key in "abcd"]))
    return task


def test_a_batch_is_taken_up_to_the_record_with_which_too_much_leaves():
    task = stepping({**LIMITED, "name": "s"})
    batch = batch_of([update("x", 1), update("z", 10), update("y", 11)], 4)
    results = parts(task, batch)
    assert [(result.taken, keys(outputs(result)), causes(result)) for result in results] == [
        (1, [], []),
        (1, ["a"], [5]),
        (0, ["b"], [5]),
        (0, ["c"], [5]),
        (0, ["d"], [5]),
        (0, [], []),
        (1, ["x"], [6]),
        (0, [], []),
    ]
    assert BACKLOG_KEY not in task.states["t-s"]


def test_what_waits_is_in_the_store_with_its_origin_and_nothing_of_the_batch_is():
    task = stepping({**LIMITED, "name": "s"})
    task.run(batch_of([update("z", 10)], 4))
    left = Backlog.of(task.states["t-s"])
    assert (left.rows.num_rows, left.cause, left.advance) == (0, -2 - 4, None)


def test_time_that_is_moved_waits_at_the_operator_that_is_not_through():
    task = stepping({**LIMITED, "name": "first"}, {**LIMITED, "name": "second"})
    results = [task.advance(10), *task.drain()]
    reference = stepping({**LIMITED, "name": "first"}, {**LIMITED, "name": "second"}, at_once=None)
    assert [out for result in results for out in outputs(result)] == outputs(reference.advance(10))
    assert [dropped(result) for result in results] == [[]] * len(results)
    assert task.states == reference.states


def test_a_chain_goes_on_with_its_last_backlog_first_so_that_none_grows():
    chain = [{**LIMITED, "name": "first"}, {**LIMITED, "name": "second"}]
    task, whole = stepping(*chain), stepping(*chain, at_once=None)
    stored = [update(f"{i:02}", i % 10) for i in range(30)]
    later = [update("x", 60), update("y", 70), update("z", 90)]
    found, expected, waiting = [], [], []
    for at, part in (4, stored), (34, later):
        expected += outputs(whole.run(batch_of(part, at)))
        batch = batch_of(part, at)
        while batch.rows.num_rows:
            result = task.run(batch)
            found += outputs(result)
            while task.chain.has_backlog(task.states):
                left = Backlog.of(task.states["t-second"])
                waiting.append(0 if left is None else left.rows.num_rows)
                result_of_rest = task.chain.go_on(task.states, result.origins)
                task.replay(result_of_rest.changes)
                found += outputs(result_of_rest)
            batch = batch.rest(result.taken)
    assert found == expected
    assert len(expected) > 10
    assert max(waiting) <= 1
