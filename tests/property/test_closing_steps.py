"""What closes at once is let go in steps, and where the steps end changes nothing: results, their order and causes,
what is dropped, and what the stores hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.inputs import Batch
from service.streams.operators import functions, grouping
from service.streams.operators.aggregate import Aggregate
from service.streams.operators.suppress import Suppress
from service.streams.topology.chain import ChainResult
from tests import naive, strategies
from tests.property.test_finals import BETWEEN, windows
from tests.task import Record, Task, batch_of, causes, cut, dropped, held, job, parts, shown

COUNT = {"n": {"fn": "count"}}
HOLD = {"op": "suppress", "name": "hold", "until": "time_limit", "time_limit_ms": 5}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes"}


@st.composite
def bursts(draw: st.DrawFn) -> list[Record]:
    """Records of several keys within a few times, then a jump that closes what they opened, and again."""
    each = st.fixed_dictionaries(
        {
            "key": st.sampled_from([*"abcdef", None]),
            "value": st.sampled_from([{"id": "g"}, {"id": "h"}, {}]),
            "timestamp": st.integers(0, 5),
        }
    )
    found, now = [], 0
    for burst in draw(st.lists(st.lists(each, min_size=3, max_size=9), min_size=2, max_size=5)):
        found += [{**record, "timestamp": now + record["timestamp"]} for record in burst]
        now += draw(st.sampled_from([4, 9, 40, 1000]))
    return found


@st.composite
def chains(draw: st.DrawFn) -> list[Record]:
    """Operators of which one or two let results go when time has come so far."""

    def aggregate(name: str, emit: str) -> Record:
        return {"op": "aggregate", "name": name, "window": draw(windows), "aggregates": COUNT, "emit": emit}

    closing = aggregate("closing", "on_window_close")
    between = draw(st.lists(st.sampled_from(BETWEEN), max_size=1))
    return draw(
        st.sampled_from(
            [
                [closing],
                [HOLD, closing],
                [closing, *between, HOLD],
                [aggregate("running", "on_update"), *between, FINAL],
                [closing, {"op": "select_key", "name": "again", "key": "key"}, aggregate("behind", "on_window_close")],
                [aggregate("running", "on_update"), {"op": "select_key", "key": "key"}, closing],
            ]
        )
    )


@dataclass
class Stepping:
    """A task as a slot runs it, whose operators let at most so much go at once (None: as much as ever)."""

    operators: list[Record]
    at_once: int | None = None
    out: list[Record] = field(default_factory=list)
    dropped: list[tuple[str, str, int]] = field(default_factory=list)
    runs: int = 0

    def __post_init__(self) -> None:
        self.task = Task(job(self.operators))
        if self.at_once is not None:
            for place in self.task.chain._places:
                if isinstance(place.operator, Aggregate | Suppress):
                    place.operator.at_once = self.at_once

    def feed(self, batch: Batch) -> None:
        for result in parts(self.task, batch) if batch.rows.num_rows else []:
            self._keep(result)

    def flush(self) -> None:
        for result in self.task.close():
            self._keep(result)

    def advance(self, to: int) -> None:
        """Once: what it does not come to at once it goes on with by itself."""
        for result in [self.task.advance(to), *self.task.drain()]:
            self._keep(result)

    def _keep(self, result: ChainResult) -> None:
        self.runs += 1
        records = result.outputs[0][1]
        found = zip(shown(records), causes(result), records.column("headers").to_pylist(), strict=True)
        self.out += [{**record, "offset": offset, "headers": headers} for record, offset, headers in found]
        self.dropped += dropped(result)


def times(task: Task) -> dict[str, dict[bytes, bytes]]:
    """What operators remember about themselves: how far time has come."""
    return {
        name: {key: value for key, value in state.items() if key.startswith(b"\x02")}
        for name, state in task.states.items()
    }


@given(chains(), bursts(), st.integers(1, 4))
def test_time_that_is_moved_by_hand_comes_all_the_way(
    operators: list[Record], records: list[Record], at_once: int
) -> None:
    whole, steps = Stepping(operators), Stepping(operators, at_once)
    for machine in (whole, steps):
        machine.feed(batch_of(records))
        machine.advance(100_000)
    assert steps.out == whole.out
    assert sorted(steps.dropped) == sorted(whole.dropped)
    assert held(steps.task) == held(whole.task)
    assert times(steps.task) == times(whole.task)


@st.composite
def closing(draw: st.DrawFn) -> list[Record]:
    """Operators that hold something open, with windows of several lengths, each behind plain records."""
    kinds = st.sampled_from(["closing", "running", "distinct", "hold", "final"])
    found: list[Record] = []
    for i, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=3))):
        found += [{"op": "select_key", "name": f"plain{i}", "key": "key"}] if found else []
        if kind == "distinct":
            found.append(draw(strategies.distincts(f"op{i}")))
        elif kind == "hold":
            found.append({**HOLD, "name": f"op{i}"})
        else:
            emit = "on_window_close" if kind == "closing" else "on_update"
            found.append(
                {"op": "aggregate", "name": f"op{i}", "window": draw(windows), "aggregates": COUNT, "emit": emit}
            )
            found += [{**FINAL, "name": f"final{i}"}] if kind == "final" else []
    return found


@given(closing(), bursts(), st.integers(0, 12), st.none() | st.integers(1, 4))
def test_a_flush_closes_each_operator_as_far_as_it_needs_as_the_oracle_does(
    operators: list[Record], records: list[Record], flushed: int, at_once: int | None
) -> None:
    machine, oracle = Stepping(operators, at_once), naive.Closing(operators)
    expected = [out for record in records[:flushed] for out in oracle.feed(record)] + oracle.flush()
    expected += [out for record in records[flushed:] for out in oracle.feed(record)] + oracle.flush()
    machine.feed(batch_of(records[:flushed]))
    machine.flush()
    machine.feed(batch_of(records[flushed:], flushed))
    machine.flush()
    assert [{name: each[name] for name in ("key", "value", "timestamp", "window")} for each in machine.out] == expected


@given(chains(), bursts(), st.integers(1, 30))
def test_a_batch_of_too_many_events_is_cut_and_comes_to_the_same(
    operators: list[Record], records: list[Record], most: int
) -> None:
    whole, parts = Stepping(operators), Stepping(operators)
    for machine, events in (whole, grouping.MAX_EVENTS), (parts, most):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grouping, "MAX_EVENTS", events)
            machine.feed(batch_of(records))
            machine.flush()
    assert parts.out == whole.out
    assert sorted(parts.dropped) == sorted(whole.dropped)
    assert held(parts.task) == held(whole.task)


TEXTS = pytest.mark.parametrize("function", [{"fn": "collect", "of": "value"}, {"fn": "last", "of": "value->>'id'"}])


@TEXTS
@given(records=bursts(), most=st.integers(1, 200))
def test_a_batch_with_too_much_to_say_comes_to_the_same(function: Record, records: list[Record], most: int) -> None:
    whole, parts = said(function, records, functions.MAX_SAID), said(function, records, most)
    assert parts.out == whole.out
    assert held(parts.task) == held(whole.task)


@TEXTS
def test_a_batch_with_too_much_to_say_is_cut(function: Record) -> None:
    """Ten texts of a thousand characters, where a result may have five thousand in all."""
    records = [{"key": f"k{i}", "value": {"id": "g" * 1_000}, "timestamp": i} for i in range(10)]
    assert said(function, records, functions.MAX_SAID).runs == 1
    assert 1 < said(function, records, 5_000).runs < len(records)


def said(function: Record, records: list[Record], most: int) -> Stepping:
    """One batch through an aggregate whose results may have `most` characters at once."""
    machine = Stepping([{"op": "aggregate", "name": "all", "aggregates": {"all": function}}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "MAX_SAID", most)
        machine.feed(batch_of(records))
    return machine


@given(chains(), bursts(), strategies.batch_sizes, st.integers(1, 4), st.integers(0, 12))
def test_steps_of_any_size_come_to_the_same_as_one(
    operators: list[Record], records: list[Record], sizes: list[int], at_once: int, flushed: int
) -> None:
    whole, steps = Stepping(operators), Stepping(operators, at_once)
    whole_batches, step_batches = [batch_of(records[:flushed])], cut(records[:flushed], sizes)
    for machine, batches in (whole, whole_batches), (steps, step_batches):
        for batch in batches:
            machine.feed(batch)
        machine.flush()
        machine.feed(batch_of(records[flushed:], flushed))
        machine.flush()
    assert steps.out == whole.out
    assert sorted(steps.dropped) == sorted(whole.dropped)
    assert held(steps.task) == held(whole.task)
    assert times(steps.task) == times(whole.task)
