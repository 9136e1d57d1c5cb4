"""suppress behind windows whose grace changes: what is held leaves once, by the present delay, and is final."""

from service.streams.operators.adoption import Handover, adopt
from tests.task import Task, batch_of, job, outputs


def operators(grace_ms):
    window = {"type": "tumbling", "size_ms": 10, "grace_ms": grace_ms}
    return [
        {"op": "aggregate", "name": "agg", "window": window, "aggregates": {"n": {"fn": "count"}}},
        {"op": "suppress", "name": "final", "until": "window_closes"},
    ]


def changed(former, grace_ms, delay_ms):
    task = Task(job(operators(grace_ms)))
    task.states = former.states
    changes = adopt(task.states["t-agg"], Handover(delay_ms=delay_ms))
    assert changes is not None
    task.replay({"t-agg": changes})
    return task


def fed(task, *times):
    result = task.run(batch_of([{"key": "a", "value": {}, "timestamp": time} for time in times]))
    reasons = [each.reason for each in result.dropped for _ in range(each.rows.num_rows)]
    return [(each["window"]["start"], each["value"]["n"]) for each in outputs(result)], reasons


def test_a_longer_grace_holds_the_open_ones_for_longer_and_opens_none_again():
    task = Task(job(operators(0)))
    assert fed(task, 3, 12, 20) == ([(0, 1), (10, 1)], [])
    task = changed(task, 100, 0)
    assert fed(task, 4, 13) == ([], ["late", "late"])
    assert fed(task, 129) == ([], [])
    assert fed(task, 21, 130) == ([(20, 2)], [])


def test_a_shorter_grace_lets_go_at_the_next_record_what_lies_between_and_once():
    task = Task(job(operators(100)))
    assert fed(task, 3, 3, 12, 40) == ([], [])
    task = changed(task, 0, 100)
    assert fed(task, 41) == ([(0, 2), (10, 1)], [])
    assert fed(task, 4, 60) == ([(40, 2)], ["late"])
