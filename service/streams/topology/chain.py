"""A sub-topology at work: one batch through its operators, in order, to its sinks.

It knows how steps connect; it refuses to know what a step does, where state is kept and who commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from service.streams import clock, measures
from service.streams.errors import OperatorUnavailable
from service.streams.measures import Reading
from service.streams.operators import OperatorSpec, operator_of
from service.streams.operators.closing import CloseReason
from service.streams.operators.filter import Filter, FilterSpec
from service.streams.operators.step import Advancing, Draining, OnError, Operator, Step
from service.streams.overlay import Overlay
from service.streams.records import TASK_SCHEMA, Dropped, StateReader, StoreSpec, as_records, empty
from service.streams.topology.complaints import complaints
from service.streams.topology.graph import Node, Sink, SubTopology

_SPECS: TypeAdapter[Any] = TypeAdapter(OperatorSpec)


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What a batch became.

    `outputs`: per sink its stream and records (RECORD_SCHEMA); `offsets`: per output the source offset that
    caused each record (int64). `changes`: CHANGELOG_SCHEMA by store name, of the stores that moved.
    `stream_time`: the highest timestamp of the batch. `measures`: by operator what it measured.
    """

    outputs: list[tuple[str, pa.RecordBatch]]
    offsets: list[npt.NDArray[np.int64]]
    changes: dict[str, pa.RecordBatch]
    dropped: list[Dropped]
    stream_time: int
    measures: dict[str, Reading] = field(default_factory=dict)

    def note(self, operator: str, step: Step) -> None:
        """Keep what a step dropped and measured."""
        self.dropped.extend(step.dropped)
        if step.measures:
            self.measures[operator] = measures.after(self.measures.get(operator, {}), step.measures)


class Chain:
    """The operators of one sub-topology. Holds no state between batches."""

    def __init__(self, sub_topology: SubTopology, on_error: OnError) -> None:
        self.dropped = sub_topology.dropped
        self._nodes = [(node.name, node.store, _operator(node, on_error)) for node in sub_topology.nodes]
        self._sinks = [(sink.stream, _gate(i, sink, on_error)) for i, sink in enumerate(sub_topology.sinks)]

    def run(self, batch: pa.RecordBatch, states: Mapping[str, StateReader]) -> ChainResult:
        """One batch (TASK_SCHEMA, in source order) against the state as of its first record.

        An empty one lets the last operator that has a backlog go on: so none piles up behind another. Raises
        ExpressionFailed naming operator and source offset, unless the job drops failing records.
        """
        stream_time = int(batch.column("timestamp").to_numpy().max(initial=clock.NOT_STARTED))
        result = ChainResult([], [], {}, [], stream_time)
        first = 0 if batch.num_rows else self._last_backlog(states)
        for i, (name, store, operator) in enumerate(self._nodes[first:]):
            if i and not batch.num_rows:
                break
            step = operator.process(batch, states[store.name] if store else None)
            if store and step.changes is not None:
                result.changes[store.name] = step.changes
            result.note(name, step)
            batch = step.forward
        return self._delivered(batch, result)

    def has_backlog(self, states: Mapping[str, StateReader]) -> bool:
        """Whether an operator has more to say of what it was given; until it has, nothing else should be given."""
        return self._last_backlog(states) < len(self._nodes)

    def _last_backlog(self, states: Mapping[str, StateReader]) -> int:
        """The place of the last operator with a backlog; past the end where none has one."""
        places = range(len(self._nodes) - 1, -1, -1)
        return next((i for i in places if _has_backlog(*self._nodes[i][1:], states)), len(self._nodes))

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

        Offsets of outputs are NO_CAUSE. Operators that do not wait for time (deduplicate) do not take part.
        """
        batch, result = empty(TASK_SCHEMA), ChainResult([], [], {}, [], to)
        for name, store, operator in self._nodes:
            state = states[store.name] if store else None
            step = operator.process(batch, state) if batch.num_rows else Step(batch)
            changes, batch = step.changes, step.forward
            result.note(name, step)
            if state is not None and isinstance(operator, Advancing):
                overlay = Overlay(state, changes)
                then = operator.advance(to, overlay, reason)
                changes, batch = overlay.merged(then.changes), pa.concat_batches([batch, then.forward])
                result.note(name, then)
            if store and changes is not None:
                result.changes[store.name] = changes
        return self._delivered(batch, result)

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


def _gate(position: int, sink: Sink, on_error: OnError) -> Filter | None:
    if sink.where is None:
        return None
    return Filter(FilterSpec(op="filter", where=sink.where), f"sink-{position}", on_error)
