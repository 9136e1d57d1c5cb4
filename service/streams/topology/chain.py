"""A sub-topology at work: one batch through its operators, from each to those behind it, to its sinks.

It knows how steps connect, and what becomes of what is too much at once (docs/adr/0007); it refuses to know what a
step does, where state is kept and who commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from service.streams import clock, measures
from service.streams.clock import CloseReason
from service.streams.errors import OperatorFailed, OperatorUnavailable
from service.streams.expressions import Expression
from service.streams.inputs import Batch, Origins
from service.streams.layouts.backlog import Backlog, TimeAdvance, noted
from service.streams.layouts.changelog import change, with_change
from service.streams.layouts.reserved import BACKLOG_KEY, TTL_KEY, pack_time, time_at
from service.streams.measures import Reading
from service.streams.operators import AnyOperator, OperatorSpec, StatefulSpec
from service.streams.operators.closing import unsaid
from service.streams.operators.fields import admitted
from service.streams.operators.filter import Filter, FilterSpec
from service.streams.operators.select_key import as_bytes
from service.streams.operators.step import Advancing, OnError, Rest, Stateful, Stateless, Step, evaluate_for
from service.streams.overlay import Overlay
from service.streams.records import TASK_SCHEMA, Dropped, StateReader, StoreSpec, as_records, empty
from service.streams.topology.complaints import complaints
from service.streams.topology.graph import Node, Repartition, Sink, SubTopology, gate_name

_SPECS: TypeAdapter[Any] = TypeAdapter(AnyOperator)
_SOURCE: Final = -1  # the place in front of all operators
_NO_ROWS = empty(TASK_SCHEMA)


class Repartitioned(NamedTuple):
    """Rows (TASK_SCHEMA) for tasks that go on with them, in a stream for so many targets; `keys` (binary, a key a row):
    what says which target.
    """

    stream: str
    targets: int
    rows: pa.RecordBatch
    keys: pa.Array


class Throughput(NamedTuple):
    """What an operator, a sink or a repartition stream took and gave, and how long that took."""

    records_in: int = 0
    records_out: int = 0
    busy_ns: int = 0

    def and_then(self, other: Throughput) -> Throughput:
        """Both together."""
        return Throughput(
            self.records_in + other.records_in, self.records_out + other.records_out, self.busy_ns + other.busy_ns
        )


class Passed(NamedTuple):
    """Rows (TASK_SCHEMA) that an operator took, and what left it then."""

    taken: pa.RecordBatch
    left: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What a batch became.

    `outputs`: per sink its stream and records (RECORD_SCHEMA); `ordinals`: per output the ordinal of the source row
    that caused each record (int64), which `origins` knows. `repartitioned`: what other tasks go on with. `changes`:
    CHANGELOG_SCHEMA by store name, of the stores that moved. `stream_time`: the highest timestamp (ms) of the rows that
    were taken, or the time that was moved to. `measures`: by operator what it measured. `taken`: how many rows of the
    batch, from its first on; the others are to be given again, behind what the operators have still to do, where there
    `is_more` of that. `flow`: by the name of each operator, sink and repartition stream. `passages`: by operator, in
    their order, what passed it; where the chain keeps that.
    """

    origins: Origins
    outputs: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    ordinals: list[npt.NDArray[np.int64]] = field(default_factory=list)
    repartitioned: list[Repartitioned] = field(default_factory=list)
    changes: dict[str, pa.RecordBatch] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    stream_time: int = clock.NOT_STARTED
    measures: dict[str, Reading] = field(default_factory=dict)
    taken: int = 0
    is_more: bool = False
    flow: dict[str, Throughput] = field(default_factory=dict)
    passages: dict[str, Passed] = field(default_factory=dict)

    def count(self, name: str, taken: int, left: int, since_ns: int) -> None:
        """So many records went in and out, since a moment of `perf_counter_ns`."""
        more = Throughput(taken, left, time.perf_counter_ns() - since_ns)
        self.flow[name] = self.flow.get(name, Throughput()).and_then(more)

    def keep(self, operator: str, store: StoreSpec | None, step: Step) -> None:
        """Keep what a step changed, dropped and measured."""
        if store is not None and step.changes is not None:
            self.changes[store.name] = step.changes
        self.dropped.extend(step.dropped)
        if step.measures:
            self.measures[operator] = measures.after(self.measures.get(operator, {}), step.measures)


@dataclass(frozen=True, slots=True)
class _Place:
    """An operator, its store (None: it keeps nothing), and the place of the one that it gets its rows from."""

    name: str
    parent: int
    operator: Stateless | Stateful
    store: StoreSpec | None

    def process(self, rows: pa.RecordBatch, states: Mapping[str, StateReader], origins: Origins) -> Step:
        """What the operator makes of rows."""
        if not rows.num_rows:
            return Step(rows)
        if self.store is None:
            return self.operator.process(rows)  # type: ignore[call-arg]
        return self.operator.process(rows, states[self.store.name], origins)  # type: ignore[call-arg]


class Chain:
    """The operators of one sub-topology. Holds no state between batches. `keeps_passages`: its results have all that
    passed each operator.
    """

    def __init__(self, sub_topology: SubTopology, on_error: OnError, *, keeps_passages: bool = False) -> None:
        self._keeps_passages = keeps_passages
        self.dropped, self._keeps_failed_alone = sub_topology.dropped, sub_topology.keeps_failed_alone
        self._places = [
            _Place(node.name, _SOURCE if node.parent is None else node.parent, _operator(node, on_error), node.store)
            for node in sub_topology.nodes
        ]
        says_why = sub_topology.repartitions or any(isinstance(place.operator, Advancing) for place in self._places)
        self._is_to_unsay = sub_topology.reads_user_streams and bool(says_why)
        self._sinks = [
            _Ending(gate_name(sink, i), sink.stream, sink.parent, _gate(i, sink, on_error))
            for i, sink in enumerate(sub_topology.sinks)
        ]
        self._repartitions = [_Routed.of(each, on_error) for each in sub_topology.repartitions]

    @property
    def names(self) -> set[str]:
        """Of its operators, the conditions of sinks and what finds targets of repartition streams among them."""
        gates = (sink.name for sink in self._sinks if sink.gate is not None)
        routed = (each.to.name for each in self._repartitions if each.by)
        return {*(place.name for place in self._places), *gates, *routed}

    def run(self, batch: Batch, states: Mapping[str, StateReader], operator: str | None = None) -> ChainResult:
        """A batch against the state as of its first row, or the first rows of it, at least one.

        It goes in at the source; or, as it is, at an operator: those before it, and beside it, do not see it.

        Where an operator can not take all, the rows that it takes whole are led along the chain, and no others: then
        nothing waits anywhere. What is too much of a single row waits in the operator's store. Nothing is to be run
        before that is done (`has_backlog`). Raises OperatorFailed, which names the operator and the record.
        """
        source = self._admitted(batch.rows) if operator is None else batch.rows
        place = next((i for i, each in enumerate(self._places) if each.name == operator), None)
        while True:
            passing = self._pass(states, batch.origins, source)
            with _located(batch.origins):
                if operator is None:
                    passing.lead(0)
                else:
                    passing.enter(place)
                if passing.fits is None:
                    return self._delivered(passing, operator if place is None else None)
            source = source.slice(0, passing.fits)

    def has_backlog(self, states: Mapping[str, StateReader]) -> bool:
        """Whether an operator has still something to do of what it was given; until it has not, nothing else is run."""
        return self._last_backlog(states) is not None

    def go_on(self, states: Mapping[str, StateReader], origins: Origins) -> ChainResult:
        """Do a part of what is still to be done: of the last operator that has a backlog, so that none grows.

        `origins`: of no rows (`Origins.none`), but of the task's inputs. Raises OperatorFailed.
        """
        passing, place = self._pass(states, origins), self._last_backlog(states)
        if place is not None:
            with _located(origins):
                passing.go_on(place)
                passing.lead(place + 1)
        with _located(origins):
            return self._delivered(passing)

    def to_keep(self, dropped: Sequence[Dropped]) -> list[Dropped]:
        """What of that goes into the stream of dropped records."""
        if self.dropped is None:
            return []
        return [each for each in dropped if each.errors is not None or not self._keeps_failed_alone]

    def horizon(self, states: Mapping[str, StateReader]) -> int | None:
        """The lowest stream time that closes everything that is open in the stores; None when nothing is."""
        found = [
            place.operator.horizon(states[place.store.name])
            for place in self._places
            if place.store is not None and isinstance(place.operator, Advancing)
        ]
        return max((time for time in found if time is not None), default=None)

    def close(self, states: Mapping[str, StateReader], reason: CloseReason, origins: Origins) -> ChainResult:
        """Move the stream time of each operator, in order, to the lowest time that closes all that is open in it, once
        it has what those before it let go: what one needs closed closes nothing in another.

        The result's stream time is the highest of these. Otherwise as `advance`.
        """
        return self._moved(TimeAdvance(None, reason), states, origins)

    def advance(self, to: int, states: Mapping[str, StateReader], reason: CloseReason, origins: Origins) -> ChainResult:
        """Move the stream time of every operator to `to`, in order: each first gets what those before it let go.

        Operators that do not wait for time (deduplicate) do not take part. Where one is not through, those behind it
        wait until it is: there time is moved when the chain goes on. Raises OperatorFailed.
        """
        return self._moved(TimeAdvance(to, reason), states, origins)

    def _moved(self, advance: TimeAdvance, states: Mapping[str, StateReader], origins: Origins) -> ChainResult:
        passing = self._pass(states, origins, advance=advance)
        with _located(origins):
            passing.lead(0)
            return self._delivered(passing)

    def _pass(
        self,
        states: Mapping[str, StateReader],
        origins: Origins,
        source: pa.RecordBatch = _NO_ROWS,
        advance: TimeAdvance | None = None,
    ) -> _Pass:
        return _Pass(self._places, states, origins, source, advance, keeps_passages=self._keeps_passages)

    def _last_backlog(self, states: Mapping[str, StateReader]) -> int | None:
        """The place of the last operator with a backlog; those that get its rows have none then."""
        for i in range(len(self._places) - 1, -1, -1):
            store = self._places[i].store
            if store is not None and states[store.name].get(BACKLOG_KEY) is not None:
                return i
        return None

    def _admitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Records from outside: where operators say why results came out, nobody else has said so."""
        if not self._is_to_unsay:
            return rows
        at = TASK_SCHEMA.get_field_index("headers")
        return rows.set_column(at, TASK_SCHEMA.field(at), unsaid(rows.column(at)))

    def _delivered(self, passing: _Pass, only: str | None = None) -> ChainResult:
        """What came through, in sinks and repartition streams; `only`: the source goes to the one that is called so."""
        result = passing.result
        for sink in self._sinks:
            since_ns = time.perf_counter_ns()
            rows = passing.forward.get(sink.place, _NO_ROWS)
            if only is not None and sink.gate is not None and sink.name == only:
                rows = passing.source
            taken = rows.num_rows
            if sink.gate is not None and taken:
                step = sink.gate.process(rows)
                result.dropped.extend(step.dropped)
                if self._keeps_passages:
                    result.passages[sink.name] = Passed(rows, step.forward)
                rows = step.forward
            result.outputs.append((sink.stream, as_records(rows)))
            result.ordinals.append(rows.column("ordinal").to_numpy())
            if taken:
                result.count(sink.name, taken, rows.num_rows, since_ns)
        for each in self._repartitions:
            since_ns = time.perf_counter_ns()
            rows = passing.source if only == each.to.name else passing.forward.get(each.parent, _NO_ROWS)
            if rows.num_rows:
                repartitioned, dropped = each.route(rows)
                if self._keeps_passages and each.by:
                    result.passages[each.to.name] = Passed(rows, repartitioned.rows)
                result.repartitioned.append(repartitioned)
                result.dropped.extend(dropped)
                result.count(each.to.name, rows.num_rows, repartitioned.rows.num_rows, since_ns)
        return replace(result, taken=passing.source.num_rows, stream_time=passing.time, is_more=self._is_more(passing))

    def _is_more(self, passing: _Pass) -> bool:
        """Whether an operator has still something to do: what the pass left there, or what waits beside its way."""
        return any(
            passing.left[i] if i in passing.left else passing.has_backlog(i)
            for i, place in enumerate(self._places)
            if place.store is not None
        )


class _Pass:
    """Rows on their way along the operators, and what comes of it.

    `forward`: by place what its operator gave to those behind it. `source`: the rows that all of this comes from; none
    where no batch is run. `left`: by place whether its operator has still something to do. `fits`: set where the way
    ends as an operator can not take all: so many source rows it can. `advance`: time moves on along the way, behind the
    rows.
    """

    def __init__(
        self,
        places: list[_Place],
        states: Mapping[str, StateReader],
        origins: Origins,
        source: pa.RecordBatch,
        advance: TimeAdvance | None = None,
        *,
        keeps_passages: bool = False,
    ) -> None:
        self._places, self._states, self._origins = places, states, origins
        self._keeps_passages = keeps_passages
        self.source, self.forward = source, {_SOURCE: source}
        self.left: dict[int, bool] = {}
        self.fits: int | None = None
        self.result = ChainResult(origins)
        self._advance, self._moved = advance, set() if advance is None else {_SOURCE}
        self._reached = clock.NOT_STARTED
        self._since_ns = 0  # when the operator began that the rows are at

    @property
    def time(self) -> int:
        """How far this moves the task's stream time."""
        return int(self.source.column("timestamp").to_numpy().max(initial=self._reached))

    def lead(self, first: int) -> None:
        """Through the operators from a place on, as far as they get something."""
        for i in range(first, len(self._places)):
            parent = self._places[i].parent
            if parent in self.forward and self.fits is None:
                self._take(i, self.forward[parent], self._advance if parent in self._moved else None)

    def enter(self, i: int | None) -> None:
        """The source through one operator and those behind it, no others; None: through none."""
        self.forward = {}
        if i is not None:
            self._take(i, self.source, None)
            self.lead(i + 1)

    def go_on(self, i: int) -> None:
        """Through one operator, with what it has still to do."""
        self._since_ns = time.perf_counter_ns()
        place, state = self._places[i], self._state(i)
        left = Backlog.of(state, self._origins.skipped)
        self.forward = {}
        if left is None:
            return
        if left.cause is not None and isinstance(place.operator, Advancing):
            step = place.operator.advance(clock.NOT_STARTED, state, "stream_time", left.cause)
            self._keep(i, _NO_ROWS, step, replace(left, cause=left.cause if step.rest else None))
        elif left.rows.num_rows or left.advance is None:
            step = place.process(left.rows, self._states, self._origins)
            self._keep(i, _taken(left.rows, step), step, _backlog(step.rest, left.advance))
        else:
            self._advance = left.advance
            self._take(i, _NO_ROWS, left.advance)

    def _take(self, i: int, rows: pa.RecordBatch, advance: TimeAdvance | None) -> None:
        """Through one operator, with rows, and then time that moves on."""
        self._since_ns = time.perf_counter_ns()
        place = self._places[i]
        step = place.process(rows, self._states, self._origins)
        rest, taken = step.rest, _taken(rows, step)
        if rest is not None and self.source.num_rows:
            rest = self._cut(i, rest)
        if self.fits is not None:
            return
        if advance is None:
            self._keep(i, taken, step, _backlog(rest))
        elif rest is not None:
            self._keep(i, taken, step, _backlog(rest, advance))
        else:
            step = self._advanced(i, step, advance)
            if step.rest is None:
                self._moved.add(i)
            self._keep(i, taken, step, _backlog(None, advance if step.rest else None))

    def _cut(self, i: int, rest: Rest) -> Rest | None:
        """Where an operator leaves a rest: what of that has to wait, if the way does not end there."""
        before = int(np.searchsorted(self.source.column("ordinal").to_numpy(), rest.first_ordinal))
        if i == 0 and before and rest.cause is None and _SOURCE in self.forward:
            self.source = self.forward[_SOURCE] = self.source.slice(0, before)  # nobody has had more than that
            return None
        if self.source.num_rows > 1:
            self.fits = max(before, 1)
        return rest

    def _advanced(self, i: int, step: Step, advance: TimeAdvance) -> Step:
        """A step, and behind it time that moves on; its rest says that this is not through."""
        operator = self._places[i].operator
        if not isinstance(operator, Advancing):
            return step
        overlay = Overlay(self._state(i), step.changes)
        to = operator.horizon(overlay) if advance.to is None else advance.to
        if to is None:
            return step
        self._reached = max(self._reached, to)
        then = operator.advance(to, overlay, advance.reason)
        forward = pa.concat_batches([step.forward, then.forward])
        measured = measures.after(step.measures, then.measures)
        return Step(forward, overlay.merged(then.changes), step.dropped + then.dropped, measured, then.rest)

    def _keep(self, i: int, taken: pa.RecordBatch, step: Step, left: Backlog) -> None:
        """What a step made of the rows that it took, and what is still to be done by its operator."""
        place = self._places[i]
        if place.store is not None:
            changes = noted(left, self._origins, self._state(i), step.changes)
            step = replace(step, changes=_with_ttl(changes, self._state(i), place.store))
            self.left[i] = not left.is_empty
        self.result.keep(place.name, place.store, step)
        if taken.num_rows or step.forward.num_rows or self._advance is not None:
            self.result.count(place.name, taken.num_rows, step.forward.num_rows, self._since_ns)
        if self._keeps_passages:
            self.result.passages[place.name] = Passed(taken, step.forward)
        self.forward[i] = step.forward

    def has_backlog(self, i: int) -> bool:
        """Whether its operator had something to do before this."""
        return self._state(i).get(BACKLOG_KEY) is not None

    def _state(self, i: int) -> StateReader:
        store = self._places[i].store
        if store is None:
            raise TypeError(f"{self._places[i].name} keeps no state")
        return self._states[store.name]


def _with_ttl(changes: pa.RecordBatch | None, state: StateReader, store: StoreSpec) -> pa.RecordBatch | None:
    """Changes to a store (CHANGELOG_SCHEMA), and with the first ones of a version how long its entries live."""
    ttl_ms = store.interval_ms
    if changes is None or ttl_ms is None or time_at(TTL_KEY, state) == ttl_ms:
        return changes
    return with_change(changes, change(TTL_KEY, pack_time(ttl_ms)))


def _taken(rows: pa.RecordBatch, step: Step) -> pa.RecordBatch:
    """What a step took of the rows that it was given."""
    return rows if step.rest is None else rows.slice(0, rows.num_rows - step.rest.rows.num_rows)


def _backlog(rest: Rest | None, advance: TimeAdvance | None = None) -> Backlog:
    """What waits in a store: what an operator left, then time."""
    return Backlog(_NO_ROWS, None, advance) if rest is None else Backlog(rest.rows, rest.cause, advance)


@contextmanager
def _located(origins: Origins) -> Iterator[None]:
    """An operator that fails says at which record."""
    try:
        yield
    except OperatorFailed as error:
        origin = None if error.ordinal is None else origins.origin(error.ordinal)
        if origin is not None:
            error.located(origin.input.stream_id, origin.input.partition, origin.offset)
        raise


def _operator(node: Node, on_error: OnError) -> Stateless | Stateful:
    """Raises OperatorUnavailable: what was valid where the job was made need not be so here."""
    try:
        spec: OperatorSpec = _SPECS.validate_python(node.spec)
    except ValidationError as error:
        details = "; ".join(problem.detail for problem in complaints(error))
        raise OperatorUnavailable(node.name, details) from error
    if isinstance(spec, StatefulSpec) and node.store is not None:
        return spec.runner_over(node.store, node.name, on_error, node.upstream)
    return spec.runner(node.name, on_error, node.upstream)


class _Ending(NamedTuple):
    """A sink at work. `gate`: its condition."""

    name: str
    stream: str
    parent: int | None
    gate: Filter | None

    @property
    def place(self) -> int:
        return _SOURCE if self.parent is None else self.parent


@dataclass(frozen=True, slots=True)
class _Routed:
    """A repartition stream at work. `by`: what says which target a row is for; empty: its key."""

    to: Repartition
    by: Mapping[str, Expression]
    on_error: OnError

    @classmethod
    def of(cls, to: Repartition, on_error: OnError) -> _Routed:
        """Raises InvalidExpression."""
        return cls(to, {} if to.by is None else {"by": admitted(to.by)}, on_error)

    @property
    def parent(self) -> int:
        return _SOURCE if self.to.parent is None else self.to.parent

    def route(self, rows: pa.RecordBatch) -> tuple[Repartitioned, list[Dropped]]:
        """Rows with the keys that find their targets. Raises ExpressionFailed."""
        if not self.by:
            return Repartitioned(self.to.stream, self.to.targets, rows, rows.column("key")), []
        done = evaluate_for(self.to.name, self.by, rows, self.on_error)
        keys = as_bytes(done.results.column("by"))
        return Repartitioned(self.to.stream, self.to.targets, done.rows, keys), done.dropped


def _gate(place: int, sink: Sink, on_error: OnError) -> Filter | None:
    if sink.where is None:
        return None
    return Filter(FilterSpec(op="filter", where=sink.where), gate_name(sink, place), on_error, sink.upstream)
