"""A sub-topology at work: one batch through its operators, in order, to its sinks.

It knows how steps connect; it refuses to know what a step does, where state is kept and who commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from service.streams import clock, measures
from service.streams.errors import OperatorUnavailable
from service.streams.measures import Reading
from service.streams.operators import OperatorSpec, operator_of
from service.streams.operators.closing import CloseReason, unsaid
from service.streams.operators.filter import Filter, FilterSpec
from service.streams.operators.step import Advancing, Closing, Draining, OnError, Operator, Step, TooMuchAtOnce
from service.streams.overlay import Overlay
from service.streams.records import TASK_SCHEMA, Dropped, StateReader, StoreSpec, as_records, empty
from service.streams.topology.advance import Advance, noted
from service.streams.topology.complaints import complaints
from service.streams.topology.graph import Node, Sink, SubTopology

_SPECS: TypeAdapter[Any] = TypeAdapter(OperatorSpec)


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What a batch became.

    `outputs`: per sink its stream and records (RECORD_SCHEMA); `offsets`: per output the source offset that
    caused each record (int64). `changes`: CHANGELOG_SCHEMA by store name, of the stores that moved.
    `stream_time`: the highest timestamp of the batch. `measures`: by operator what it measured. `until`: the source
    offset before which the batch was cut, as it comes to more than is to be held at once: records from there on are
    to be given again; None: it was taken whole.
    """

    outputs: list[tuple[str, pa.RecordBatch]]
    offsets: list[npt.NDArray[np.int64]]
    changes: dict[str, pa.RecordBatch]
    dropped: list[Dropped]
    stream_time: int
    measures: dict[str, Reading] = field(default_factory=dict)
    until: int | None = None

    def taken(self, batch: pa.RecordBatch) -> int:
        """How many records of the batch, from its first on, came to this."""
        return batch.num_rows if self.until is None else _before(batch, self.until)

    def keep(self, operator: str, store: StoreSpec | None, step: Step) -> None:
        """Keep what a step changed, dropped and measured."""
        if store is not None and step.changes is not None:
            self.changes[store.name] = step.changes
        self.dropped.extend(step.dropped)
        if step.measures:
            self.measures[operator] = measures.after(self.measures.get(operator, {}), step.measures)


class _Halted(Exception):
    """The operator at `place` did nothing: it is too much at once, and there is a way to do less."""

    def __init__(self, place: int, operator: Closing, store: StoreSpec, error: TooMuchAtOnce, at: int | None) -> None:
        super().__init__(str(error))
        self.place, self.operator, self.store, self.error = place, operator, store, error
        self.at = at  # the source offset to cut at; None: it can close a part, as nothing comes before


class Chain:
    """The operators of one sub-topology. Holds no state between batches."""

    def __init__(self, sub_topology: SubTopology, on_error: OnError) -> None:
        self.dropped = sub_topology.dropped
        self._nodes = [(node.name, node.store, _operator(node, on_error)) for node in sub_topology.nodes]
        self._closes = any(isinstance(operator, Advancing) for _, _, operator in self._nodes)
        self._sinks = [(sink.stream, _gate(i, sink, on_error)) for i, sink in enumerate(sub_topology.sinks)]

    def run(self, batch: pa.RecordBatch, states: Mapping[str, StateReader]) -> ChainResult:
        """One batch (TASK_SCHEMA, in source order) against the state as of its first record.

        An empty one lets the last operator that has a backlog go on: so none piles up behind another. Where none has,
        but time was on its way along the chain, it goes on. Raises ExpressionFailed naming operator and source
        offset, unless the job drops failing records.
        """
        first = 0 if batch.num_rows else self._last_backlog(states)
        if first == len(self._nodes) and (waiting := self._waiting(states)) is not None:
            return self._advance(*waiting, states)
        stream_time = int(batch.column("timestamp").to_numpy().max(initial=clock.NOT_STARTED))
        result, forward = ChainResult([], [], {}, [], stream_time), self._admitted(batch)
        try:
            if first < len(self._nodes):
                forward = self._process(first, forward, states, result, batch)
            forward = self._follow(first + 1, forward, states, result, batch)
        except _Halted as halted:
            return self._cut(halted, batch, states)
        return self._delivered(forward, result)

    def _admitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Records from outside: where operators say why results came out, nobody else has said so."""
        if not self._closes:
            return batch
        at = TASK_SCHEMA.get_field_index("headers")
        return batch.set_column(at, TASK_SCHEMA.field(at), unsaid(batch.column(at)))

    def _follow(
        self,
        first: int,
        forward: pa.RecordBatch,
        states: Mapping[str, StateReader],
        result: ChainResult,
        source: pa.RecordBatch,
    ) -> pa.RecordBatch:
        """The operators from a place on, as long as there is something to give to the next one."""
        for place in range(first, len(self._nodes)):
            if forward.num_rows:
                forward = self._process(place, forward, states, result, source)
        return forward

    def _process(
        self,
        place: int,
        batch: pa.RecordBatch,
        states: Mapping[str, StateReader],
        result: ChainResult,
        source: pa.RecordBatch,
    ) -> pa.RecordBatch:
        """One operator's step; what it says goes on. `source`: the records that all of it comes from, if these can be
        cut. Raises _Halted.
        """
        name, store, operator = self._nodes[place]
        state = states[store.name] if store else None
        try:
            step = operator.process(batch, state)
        except TooMuchAtOnce as error:
            if store is None or state is None or not isinstance(operator, Closing):
                raise
            at = _cut_at(error, source)
            if error.previous is None or at is not None:
                raise _Halted(place, operator, store, error, at) from error
            step = operator.process_whole(batch, state)
        result.keep(name, store, step)
        return step.forward

    def _cut(self, halted: _Halted, batch: pa.RecordBatch, states: Mapping[str, StateReader]) -> ChainResult:
        """The records before the one with which it is too much; where none are, a part of what that one closes."""
        if halted.at is None:
            return self._close(halted, states, int(batch.column("offset")[0].as_py()) if batch.num_rows else None)
        before = self.run(batch.slice(0, _before(batch, halted.at)), states)
        return before if before.until is not None else replace(before, until=halted.at)

    def _close(self, halted: _Halted, states: Mapping[str, StateReader], until: int | None) -> ChainResult:
        """A part of what a record closes, and no more than that: it comes again."""
        result = ChainResult([], [], {}, [], clock.NOT_STARTED, until=until)
        step = halted.operator.close(
            halted.error.to, states[halted.store.name], "stream_time", cause=halted.error.offset
        )
        result.keep(halted.store.operator, halted.store, step)
        try:
            forward = self._follow(halted.place + 1, step.forward, states, result, empty(TASK_SCHEMA))
        except _Halted as behind:
            return self._close(behind, states, until)
        return self._delivered(forward, result)

    def has_backlog(self, states: Mapping[str, StateReader]) -> bool:
        """Whether an operator has more to say of what it was given; until it has, nothing else should be given."""
        return self._last_backlog(states) < len(self._nodes) or self._waiting(states) is not None

    def _last_backlog(self, states: Mapping[str, StateReader]) -> int:
        """The place of the last operator with a backlog; past the end where none has one."""
        places = range(len(self._nodes) - 1, -1, -1)
        return next((i for i in places if _has_backlog(*self._nodes[i][1:], states)), len(self._nodes))

    def _waiting(self, states: Mapping[str, StateReader]) -> tuple[int, Advance] | None:
        """The place where time that is moved by hand waits, and how far it is to be moved."""
        for place, (_, store, _) in enumerate(self._nodes):
            if store is not None and (advance := Advance.of(states[store.name])) is not None:
                return place, advance
        return None

    def horizon(self, states: Mapping[str, StateReader]) -> int | None:
        """The lowest stream time that closes everything that is open in the stores; None when nothing is."""
        found = [
            operator.horizon(states[store.name])
            for _, store, operator in self._nodes
            if store is not None and isinstance(operator, Advancing)
        ]
        return max((time for time in found if time is not None), default=None)

    def advance(self, to: int, states: Mapping[str, StateReader], reason: CloseReason) -> ChainResult:
        """Move the stream time of every operator to `to`, in order: each first gets what those before it let go.

        Offsets of outputs are NO_CAUSE. Operators that do not wait for time (deduplicate) do not take part. Where one
        is not through, those behind it wait until it is: there time is moved by later runs, with an empty batch.
        """
        return self._advance(0, Advance(to, reason), states)

    def _advance(self, first: int, advance: Advance, states: Mapping[str, StateReader]) -> ChainResult:
        forward, result, is_moving = empty(TASK_SCHEMA), ChainResult([], [], {}, [], advance.to), True
        try:
            for place in range(first, len(self._nodes)):
                name, store, operator = self._nodes[place]
                if forward.num_rows:
                    forward = self._process(place, forward, states, result, empty(TASK_SCHEMA))
                if is_moving and store is not None and isinstance(operator, Advancing):
                    overlay = Overlay(states[store.name], result.changes.pop(store.name, None))
                    step = operator.advance(advance.to, overlay, advance.reason)
                    is_moving = step.is_through
                    changes = overlay.merged(step.changes)
                    changes = noted(None if is_moving else advance, states[store.name], changes)
                    result.keep(name, store, replace(step, changes=changes))
                    forward = pa.concat_batches([forward, step.forward])
        except _Halted as halted:
            return self._from_here_again(first, advance, self._close(halted, states, None), states)
        return self._delivered(forward, result)

    def _from_here_again(
        self, first: int, advance: Advance, result: ChainResult, states: Mapping[str, StateReader]
    ) -> ChainResult:
        """Nothing was advanced, as what is behind has to let something go first: note that it is to be."""
        for _, store, operator in self._nodes[first:]:
            if store is not None and isinstance(operator, Advancing):
                changes = noted(advance, states[store.name], result.changes.get(store.name))
                if changes is not None:
                    result.changes[store.name] = changes
                break
        return result

    def _delivered(self, batch: pa.RecordBatch, result: ChainResult) -> ChainResult:
        for stream, gate in self._sinks:
            self._deliver(batch, stream, gate, result)
        return result

    @staticmethod
    def _deliver(batch: pa.RecordBatch, stream: str, gate: Filter | None, result: ChainResult) -> None:
        if gate is not None and batch.num_rows:
            step = gate.process(batch)
            result.dropped.extend(step.dropped)
            batch = step.forward
        result.outputs.append((stream, as_records(batch)))
        result.offsets.append(batch.column("offset").to_numpy())


def _operator(node: Node, on_error: OnError) -> Operator:
    """Raises OperatorUnavailable: what was valid where the job was made need not be so here."""
    try:
        spec = _SPECS.validate_python(node.spec)
    except ValidationError as error:
        raise OperatorUnavailable(
            node.name, "; ".join(problem.detail for problem in complaints(error, node.spec))
        ) from error
    return operator_of(spec, node.name, on_error, node.upstream)


def _has_backlog(store: StoreSpec | None, operator: Operator, states: Mapping[str, StateReader]) -> bool:
    return isinstance(operator, Draining) and store is not None and operator.has_backlog(states[store.name])


def _before(batch: pa.RecordBatch, offset: int) -> int:
    """How many records come before a source offset."""
    return int(np.searchsorted(batch.column("offset").to_numpy(), offset))


def _cut_at(error: TooMuchAtOnce, source: pa.RecordBatch) -> int | None:
    """The source offset to cut a batch at: before the record with which it is too much; or else behind it, so that at
    least no other is added; None where neither is a part of the batch.
    """
    if error.previous is None:
        return None
    before, through = _before(source, error.offset), _before(source, error.offset + 1)
    if before and error.previous != error.offset:
        return error.offset
    return error.offset + 1 if 0 < through < source.num_rows else None


def _gate(position: int, sink: Sink, on_error: OnError) -> Filter | None:
    if sink.where is None:
        return None
    return Filter(FilterSpec(op="filter", where=sink.where), f"sink-{position}", on_error)
