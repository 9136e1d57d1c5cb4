"""More leaves suppress at once than may be in memory: it leaves in steps, and what comes meanwhile waits its turn."""

import json

import pytest

from service.streams import buffers
from service.streams.operators.suppress import BufferSpec, Suppress, SuppressSpec
from service.streams.operators.upstream import Upstream
from tests.machine import Machine
from tests.task import Task, batch_of, job, outputs

MEBIBYTE = 1 << 20
TUMBLING = {"type": "tumbling", "size_ms": 10, "grace_ms": 0}


class Single(Machine):
    """A suppress from which one entry leaves in a step."""

    def __init__(self, window=None):
        until = {"until": "window_closes"} if window else {"until": "time_limit", "time_limit_ms": 10}
        spec = SuppressSpec.model_validate({"op": "suppress", "name": "s", **until})
        super().__init__(Suppress(spec, "s", Upstream(is_table=True, window=window), at_once=1))

    def has_backlog(self):
        return self.operator.has_backlog(self.state)

    def backlog(self):
        return buffers.Backlog.unpack(self.state[buffers.BACKLOG_KEY])

    def reasons(self):
        return [json.loads(headers)["millrace-closed-by"] for headers in self.column("headers")]


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
    steps = []
    while machine.has_backlog():
        steps.append(keys(machine.feed()))
    assert steps == [["b"], ["c"], ["d"], []]  # the last finds that it was the last
    assert buffers.BACKLOG_KEY not in machine.state
    assert machine.feed() == []


def test_what_comes_meanwhile_waits_and_keeps_its_order():
    machine = filled()
    assert keys(machine.feed(update("z", 10), update("a", 11), update("b", 11))) == ["a"]
    assert keys(machine.feed(update("c", 21))) == ["b"]
    assert machine.backlog().rows.column("key").to_pylist() == [b"a", b"b", b"c"]
    found = []
    while machine.has_backlog():
        found += machine.feed()
    # c and d of the first time, then what was due at the last update: z, and the new a and b; c went on with them
    assert [(out["key"], out["timestamp"]) for out in found] == [("c", 0), ("d", 0), ("z", 10), ("a", 11), ("b", 11)]


def test_an_update_that_waits_does_not_touch_what_leaves_before_it():
    machine = filled()
    machine.feed(update("z", 10), update("d", 10))
    found = []
    while machine.has_backlog():
        found += machine.feed()
    assert [(out["key"], out["timestamp"]) for out in found] == [("b", 0), ("c", 0), ("d", 0)]
    assert keys(machine.feed(update("later", 20))) == ["d"]
    assert machine.column("timestamp") == [10]


def test_what_leaves_later_says_why_and_names_the_record_that_caused_it():
    machine = filled(TUMBLING)
    machine.feed(update("z", 10, {"start": 10, "end": 20}))
    assert (machine.reasons(), machine.column("offset")) == (["stream_time"], [4])
    machine.feed()
    assert (machine.reasons(), machine.column("offset")) == (["stream_time"], [4])


@pytest.mark.parametrize("reason", ["idle", "flush"])
def test_what_leaves_later_keeps_the_reason_for_which_time_was_moved(reason):
    machine = filled(TUMBLING)
    machine.advance(10, reason)
    assert machine.reasons() == [reason]
    assert machine.advance(10, reason) == []  # first what is to leave already
    machine.feed(update("z", 10, {"start": 10, "end": 20}))
    assert (machine.reasons(), machine.column("offset")) == ([reason], [-1])


def test_a_record_that_waits_is_dropped_once():
    machine = filled()
    machine.feed(update("z", 10), {**update("", 10), "key": None}, {**update("", 10), "key": "k" * 401})
    dropped = machine.dropped()
    while machine.has_backlog():
        machine.feed()
        dropped += machine.dropped()
    assert dropped == [("null_key", 5), ("key_too_long", 6)]


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


def test_a_chain_goes_on_with_its_last_backlog_first_so_that_none_grows():
    suppress = {"op": "suppress", "until": "time_limit", "time_limit_ms": 10}
    task = Task(job([{**suppress, "name": "first"}, {**suppress, "name": "second"}]))
    for _, _, operator in task.chain._nodes:
        operator.at_once = 1
    whole = Task(job([{**suppress, "name": "first"}, {**suppress, "name": "second"}]))
    stored = [update(f"{i:02}", i % 10) for i in range(30)]
    later = [update("x", 60), update("y", 70), update("z", 90)]
    expected = [out for part in (stored, later) for out in outputs(whole.run(batch_of(part)))]
    found = [out for part in (stored, later) for out in outputs(task.run(batch_of(part)))]
    waiting = []
    while task.chain.has_backlog(task.states):
        found += outputs(task.run(batch_of([])))
        held = task.states["t-second"].get(buffers.BACKLOG_KEY)
        waiting.append(0 if held is None else buffers.Backlog.unpack(held).rows.num_rows)
    assert found == expected
    assert len(expected) > 10
    assert max(waiting) <= 1
