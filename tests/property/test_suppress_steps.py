"""What leaves suppress at once is let go in steps; in which, and what comes in between, changes nothing of it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.streams.operators.suppress import Suppress, SuppressSpec
from service.streams.operators.upstream import Upstream
from tests import naive_suppress as naive
from tests import strategies
from tests.machine import Machine
from tests.property.test_suppress import parts_of, suppressed

Record = dict[str, Any]
STEPS = st.integers(1, 300)  # bytes that may leave in one step: from one entry to several


class Stepping(Machine):
    """A suppress that lets few bytes go at once (None: any number); keeps what comes out, with cause and headers."""

    def __init__(self, operator: Record, window: Record | None, at_once: int | None) -> None:
        spec = SuppressSpec.model_validate({**operator, "buffer": {}})
        super().__init__(Suppress(spec, "s", Upstream(is_table=True, window=window), at_once))
        self.out: list[Record] = []
        self.gone: list[tuple[str, int]] = []

    def take(self, *records: Record) -> None:
        self._keep(self.feed(*records))
        while self.rest is not None:
            self._keep(self.go_on())

    def flush(self, to: int) -> None:
        self._keep(self.advance(to, "flush"))
        while self.rest is not None:
            self._keep(self.advance(to, "flush"))

    def _keep(self, records: list[Record]) -> None:
        found = zip(records, self.causes(), self.column("headers"), strict=True)
        self.out += [{**record, "offset": offset, "headers": headers} for record, offset, headers in found]
        self.gone += self.dropped()


@given(suppressed(), strategies.batch_sizes, STEPS)
def test_steps_of_any_size_give_the_output_of_one(case: Any, sizes: list[int], at_once: int) -> None:
    operator, window, updates = case
    whole, steps = Stepping(operator, window, None), Stepping(operator, window, at_once)
    whole.take(*updates)
    for part in parts_of(updates, sizes):
        steps.take(*part)
    assert steps.out == whole.out
    assert sorted(steps.gone) == sorted(whole.gone)
    assert steps.state == whole.state


@given(suppressed(), strategies.batch_sizes, STEPS, st.integers(0, 60))
def test_time_that_is_moved_by_hand_moves_in_steps_too(case: Any, sizes: list[int], at_once: int, to: int) -> None:
    operator, window, updates = case
    oracle = naive.Suppress({**operator, "buffer": {}}, window)
    whole, steps = Stepping(operator, window, None), Stepping(operator, window, at_once)
    half = len(updates) // 2
    for machine in (whole, steps):
        for part in parts_of(updates[:half], sizes):
            machine.take(*part)
        machine.flush(to)
        for part in parts_of(updates[half:], sizes):
            machine.take(*part)
    assert steps.out == whole.out
    assert steps.state == whole.state
    reference = [each for record in updates[:half] for each in oracle.feed(record)] + oracle.advance(to)
    reference += [each for record in updates[half:] for each in oracle.feed(record)]
    assert (
        [{name: out[name] for name in reference[0]} for out in steps.out] == reference if reference else not steps.out
    )
