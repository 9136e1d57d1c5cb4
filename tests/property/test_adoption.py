"""Versions of an operator over one state, and stream time set back over it: equal to the oracle, whatever changes when,
and whatever replicas forget.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.operators import into_sessions
from service.streams.operators.adoption import Handover, adopt
from service.streams.operators.aggregate import Aggregate
from tests import naive_adoption, naive_suppress, strategies
from tests.task import DictState, Task, batch_of, cut, held, job, outputs, parts

Record = dict[str, Any]
SET_BACK_TO = st.integers(0, 60)
KINDS = ["tumbling", "hopping", "sliding", "session"]


@pytest.fixture(autouse=True)
def few_hot() -> Any:
    """Sessions that are packed, and such as are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(into_sessions, "MOST_HOT", 2)
        yield


@st.composite
def windowed(draw: st.DrawFn, kinds: list[str]) -> Record:
    """An aggregate or a distinct over windows."""
    kind = draw(st.sampled_from([*kinds, "distinct"]))
    operator = draw(strategies.distincts("agg") if kind == "distinct" else strategies.aggregations(kinds=(kind,)))
    return changed(draw, operator)


def changed(draw: st.DrawFn, operator: Record) -> Record:
    """Another version of an operator: everything that may change over a state, raised or lowered."""
    if operator["op"].startswith("deduplicate"):
        return {**operator, "interval_ms": draw(strategies.intervals)}
    window = {
        **operator["window"],
        "grace_ms": draw(st.sampled_from([0, 1, 4, 20])),
        "retention_ms": draw(st.sampled_from([0, 3, 40, 10_000])),
    }
    if window["type"] == "session":
        window["gap_ms"] = draw(st.sampled_from([1, 2, 5, 10]))
    return {**operator, "window": window}


def handed_over(operator: Record, task: Task) -> Handover:
    """What the version that ran last leaves to the next."""
    (store,) = task.topology.stores()
    delay_ms = None if "window" not in operator else naive_suppress.closing_delay(operator["window"])
    return Handover(delay_ms=delay_ms, kept_ms=store.interval_ms)


class Versions:
    """A task whose operator changes. `at_once`: how many windows close in one step (None: all)."""

    def __init__(self, operator: Record, at_once: int | None = None, *, forget: bool = True) -> None:
        self.operator, self.at_once, self.forget = operator, at_once, forget
        self.task = self._task()

    def _task(self) -> Task:
        task = Task(job([self.operator]), forget=self.forget)
        for place in task.chain._places:
            if self.at_once is not None and isinstance(place.operator, Aggregate):
                place.operator.at_once = self.at_once
        return task

    def restore(self) -> None:
        """Another replica takes over: it has replayed the changelog from the beginning, under the present version."""
        former, self.task = self.task, self._task()
        for changes in former.changelog:
            self.task.replay(changes)

    def adopt(self, operator: Record, set_back_to: int | None, *, restores_before: bool) -> None:
        """The next version, over the state as it is, and perhaps from a lower stream time on."""
        handover, former, self.operator = handed_over(self.operator, self.task), self.task, operator
        handover = msgspec.structs.replace(handover, stream_time=set_back_to)
        self.task = self._task()
        self.task.states, self.task.changelog = former.states, former.changelog
        if restores_before:
            self.restore()
        for name, state in self.task.states.items():
            changes = adopt(state, handover)
            if changes is not None:
                self.task.replay({name: changes})

    def feed(self, records: list[Record], sizes: list[int], at: int) -> tuple[list[Record], Counter[Any]]:
        """What comes out, and reason and offset of what is dropped, those of records without a key aside."""
        out, lost = [], Counter[Any]()
        for batch in [batch_of(records, at)] if not sizes else cut(records, sizes):
            for result in parts(self.task, batch):
                out += outputs(result)
                lost.update(
                    (each.reason.replace("closed_idle", "late"), time)
                    for each in result.dropped
                    for time in each.rows.column("timestamp").to_pylist()
                )
        return out, lost

    def flush(self) -> list[Record]:
        """What comes out when everything is closed."""
        return [out for result in self.task.close() for out in outputs(result)]


def check(versions: Versions, oracle: Any, records: list[Record], sizes: list[int]) -> None:
    """The same of the same records; to the last horizon."""
    if hasattr(oracle, "dropped"):
        oracle.dropped.clear()
    expected = [out for record in records for out in oracle.feed(record)]
    out, lost = versions.feed(records, sizes, 0)
    assert out == expected
    if hasattr(oracle, "dropped"):
        assert lost == Counter((reason.replace("closed_idle", "late"), time) for reason, time in oracle.dropped)
    if hasattr(oracle, "horizon"):
        assert versions.task.chain.horizon(versions.task.states) == oracle.horizon()
    if hasattr(oracle, "visible"):
        (found,) = held(versions.task).values()
        assert {(key, *window) for key, window, _, _ in found} == oracle.visible()


def run(operator: Record, records: list[Record], sizes: list[int], data: st.DataObject, at_once: int | None) -> None:
    forget = data.draw(st.booleans(), label="forgets at once")
    versions, oracle = Versions(operator, at_once, forget=forget), naive_adoption.machine_of(operator)
    count = data.draw(st.integers(1, 3), label="changes")
    cuts = sorted(data.draw(st.integers(0, len(records)), label="cut") for _ in range(count))
    for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
        if begin or end == len(records) or versions.task.changelog:
            operator = changed(data.draw, operator)
            set_back_to = data.draw(st.none() | SET_BACK_TO, label="set back to")
            versions.adopt(operator, set_back_to, restores_before=data.draw(st.booleans(), label="restored before"))
            oracle.adopt(operator, set_back_to)
        if data.draw(st.booleans(), label="restored after"):
            versions.restore()
        check(versions, oracle, records[begin:end], sizes)
        if hasattr(oracle, "horizon") and data.draw(st.integers(0, 5), label="flush") == 0:
            to = oracle.horizon()
            assert versions.flush() == ([] if to is None else oracle.advance(to))


@given(strategies.deduplications("agg"), strategies.record_lists(), strategies.batch_sizes, st.data())
def test_versions_of_deduplicate_equal_the_oracle(
    operator: Record, records: list[Record], sizes: list[int], data: st.DataObject
) -> None:
    run(operator, records, sizes, data, None)


@given(windowed(KINDS), strategies.arrivals(), strategies.batch_sizes, st.data(), st.none() | st.integers(1, 3))
def test_versions_of_windows_equal_the_oracle(
    operator: Record, records: list[Record], sizes: list[int], data: st.DataObject, at_once: int | None
) -> None:
    run(operator, records, sizes, data, at_once)


TUMBLING = {"type": "tumbling", "size_ms": 10, "grace_ms": 0}
COUNT = {"op": "aggregate", "name": "agg", "aggregates": {"n": {"fn": "count"}}}


@pytest.mark.parametrize(
    ("longer", "shorter"),
    [
        (
            {**COUNT, "window": {**TUMBLING, "retention_ms": 20}},
            {**COUNT, "window": {**TUMBLING, "retention_ms": 0}},
        ),
        (
            {"op": "deduplicate_by_key", "name": "agg", "interval_ms": 20},
            {"op": "deduplicate_by_key", "name": "agg", "interval_ms": 5},
        ),
    ],
    ids=["windows", "deduplicate"],
)
def test_a_copy_that_restores_after_time_was_set_back_has_what_the_others_have(longer: Record, shorter: Record) -> None:
    """Also where less is kept now than when time was set back."""
    versions = Versions(longer)
    records = [{"key": "a", "value": {"v": 1}, "timestamp": 15}, {"key": "b", "value": {"v": 1}, "timestamp": 30}]
    versions.feed(records, [], 0)
    versions.adopt(shorter, 0, restores_before=False)
    found = held(versions.task)
    assert found
    versions.forget = True
    versions.restore()
    assert held(versions.task) == found


@given(
    windowed(KINDS).filter(lambda operator: operator["op"] == "aggregate"),
    st.integers(0, 60),
    strategies.arrivals(),
    strategies.batch_sizes,
)
def test_a_store_that_begins_anew_takes_no_record_of_earlier_windows(
    operator: Record, begins_at: int, records: list[Record], sizes: list[int]
) -> None:
    versions, oracle = Versions(operator), naive_adoption.Aggregate(operator)
    (name,) = versions.task.states
    changes = adopt(DictState(), Handover(begins_at=begins_at))
    assert changes is not None
    versions.task.replay({name: changes})
    oracle.begin(begins_at)
    if oracle.type != "sliding":
        check(versions, oracle, records, sizes)
        return
    expected = [out for record in records for out in oracle.feed(record)]
    out, lost = versions.feed(records, sizes, 0)
    assert out == expected
    assert all(
        time < begins_at + operator["window"]["time_difference_ms"]
        for reason, time in lost
        if reason == "before_version"
    )
