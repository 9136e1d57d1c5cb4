"""What operators measure is a function of the ordered records: equal to the oracle, however the records are cut."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from service.streams import measures
from service.streams.operators.suppress import Suppress, SuppressSpec
from service.streams.operators.upstream import Upstream
from service.streams.topology.dropped import counted
from tests import naive_suppress as naive
from tests import strategies
from tests.machine import Machine
from tests.property.test_suppress import parts_of, suppressed
from tests.task import Task, batch_of, job


class Measured(naive.Suppress):
    """The oracle with a notebook."""

    def __init__(self, operator, window):
        super().__init__(operator, window)
        self.looks, self.overtime, self.late, self.emitted = [], [], [], 0
        self.has_put = self.has_left = False

    def feed(self, record):
        if record["key"] is not None:
            self.late.append(max(self.obs - record["timestamp"], 0))
            self.has_put = len(record["key"].encode()) <= naive.MAX_KEY_BYTES
        return self._noted(super().feed(record))

    def advance(self, to):
        return self._noted(super().advance(to))

    def evict_while(self, condition):
        if self.has_put:
            self.look()
        self.has_put, out = False, []
        while self.buffer and condition():
            is_due = self.is_head_due()
            time, record = self.buffer.pop(self.head())
            self.has_left = True
            if record["value"] is not None or not self.is_final:
                out.append(record)
                self.overtime += [self.obs - self.wait - self.is_strict - time] if is_due else []
        return out

    def look(self):
        self.looks.append((len(self.buffer), self.bytes()))

    def _noted(self, out):
        if self.has_put:  # nothing tried to make room
            self.look()
        if self.has_left:
            self.look()
        self.has_put = self.has_left = False
        self.emitted += len(out)
        return out

    def reading(self):
        found = {"lateness_ms": spread(self.late), "overtime_ms": spread(self.overtime, lowest=True)}
        for name, place in ("buffer_records", 0), ("buffer_bytes", 1):
            levels = [look[place] for look in self.looks]
            found[name] = {**spread(levels), "last": levels[-1]} if levels else {}
        return {"emitted": self.emitted, **{name: figure for name, figure in found.items() if figure}}


def spread(values, *, lowest=False):
    if not values:
        return {}
    figure = {"count": len(values), "sum": sum(values), "max": max(values)}
    return {**figure, "min": min(values)} if lowest else figure


def together(readings):
    return {"emitted": 0, **reduce(measures.after, readings, {})}


def unstrict(operator):
    """Without a buffer that shuts down: what it measures is not committed."""
    buffer = operator["buffer"]
    return {**operator, "buffer": {} if buffer.get("when_full") == "shut_down" else buffer}


@given(suppressed(), st.integers(0, 60), strategies.batch_sizes)
def test_suppress_measures_what_the_oracle_notes_however_it_is_cut(case, to, sizes):
    operator, window, updates = case
    operator = unstrict(operator)
    oracle = Measured(operator, window)
    spec = SuppressSpec.model_validate(operator)
    machine = Machine(Suppress(spec, "s", Upstream(is_table=True, window=window)))
    readings = []
    for record in updates:
        oracle.feed(record)
    for part in parts_of(updates, sizes):
        machine.feed(*part)
        readings.append(machine.last.measures)
    oracle.advance(to)
    machine.advance(to)
    readings.append(machine.last.measures)
    assert together(readings) == oracle.reading()


COUNT = {"n": {"fn": "count"}}
operators = (
    strategies.deduplications("a")
    | strategies.distincts("a")
    | st.builds(
        lambda window, emit: {"op": "aggregate", "name": "a", "window": window, "aggregates": COUNT, "emit": emit},
        strategies.windows,
        st.sampled_from(["on_update", "on_window_close"]),
    )
)


@given(operators, strategies.records, strategies.batch_sizes)
def test_lateness_drops_and_flow_are_the_same_however_a_chain_is_cut(operator, records, sizes):
    chain = [operator, {"op": "suppress", "name": "s", "until": "time_limit", "time_limit_ms": 3}]
    whole, parts = Task(job(chain), on_error="drop"), Task(job(chain), on_error="drop")
    reference = whole.run(batch_of(records))
    found, dropped, flow, at = {}, {}, {}, 0
    for part in parts_of(records, sizes):
        result = parts.run(batch_of(part, at))
        at += len(part)
        found = measures.after(found, result.measures)
        dropped = measures.after(dropped, counted(result.dropped))
        flow = measures.after(flow, went_through(result))
    assert found == reference.measures
    assert dropped == counted(reference.dropped)
    assert flow == went_through(reference)
    if records:
        assert flow["a"]["in"] == len(records)
        given_on = {name: flow.get(name, {"in": 0, "out": 0}) for name in ("s", "sink-0")}
        assert (given_on["s"]["in"], given_on["sink-0"]["in"]) == (flow["a"]["out"], given_on["s"]["out"])


def went_through(result):
    return {name: {"in": flow.records_in, "out": flow.records_out} for name, flow in result.flow.items()}
