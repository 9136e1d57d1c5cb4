"""What one operator makes of one batch, and how an operator meets its expressions.

It knows the shape that all operators share; it refuses to know what any of them means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams.errors import ExpressionFailed
from service.streams.expressions import Expression, evaluate, evaluate_lenient
from service.streams.measures import Reading
from service.streams.operators.closing import CloseReason
from service.streams.records import Dropped, StateReader

OnError = Literal["fail", "drop"]
NO_CAUSE: Final = -1  # the source offset of what no record caused


@dataclass(frozen=True, slots=True)
class Step:
    """`forward`: TASK_SCHEMA. `changes`: CHANGELOG_SCHEMA sorted by key, or None when the store did not move.

    `measures`: what the operator measured (`service.streams.measures`). `is_through`: False where time was to be moved
    and only came a part of the way, as more closes than one step lets go.
    """

    forward: pa.RecordBatch
    changes: pa.RecordBatch | None = None
    dropped: list[Dropped] = field(default_factory=list)
    measures: Reading = field(default_factory=dict)
    is_through: bool = True


class TooMany(Exception):
    """The records of a batch make too many events to have them at once, or too much to say; the `first` do not."""

    def __init__(self, first: int) -> None:
        super().__init__(f"no more than {first} records")
        self.first = first


class TooMuchAtOnce(Exception):
    """From some record on it is more than is to be held at once. Nothing is done of its batch.

    `offset`: its source offset; `previous`: that of the last record before it which has another one, or the same where
    none has, None where there is no record before it; `to`: the stream time to which it moves its operator.
    """

    def __init__(self, offset: int, previous: int | None, to: int) -> None:
        super().__init__(f"the record at {offset} moves stream time to {to}")
        self.offset, self.previous, self.to = offset, previous, to


class Operator(Protocol):
    """A deterministic function of (state, ordered records): how they are cut into batches changes nothing."""

    def process(self, batch: pa.RecordBatch, state: StateReader | None = None) -> Step: ...


@runtime_checkable
class Advancing(Operator, Protocol):
    """An operator whose results also depend on how far time has come, without a record (semantics.md, Idle close)."""

    def advance(self, to: int, state: StateReader, reason: CloseReason) -> Step:
        """What comes out when stream time is moved to `to`, at least; offsets are NO_CAUSE, as no record causes it.

        Where the step is not through, the same is to be asked again before anything else.
        """

    def horizon(self, state: StateReader) -> int | None:
        """The lowest stream time that closes all that is open in its store; None when nothing is, or never will be."""


@runtime_checkable
class Closing(Advancing, Protocol):
    """An operator that does much in parts: its `process` raises TooMuchAtOnce."""

    def process_whole(self, batch: pa.RecordBatch, state: StateReader) -> Step:
        """`process`, however much it is."""

    def close(self, to: int, state: StateReader, reason: CloseReason, *, cause: int) -> Step:
        """What closes first on the way to a stream time, because of the record at a source offset: it comes behind."""


@runtime_checkable
class Draining(Operator, Protocol):
    """An operator that may have more to say than fits into one step: it goes on with the next batch, also if empty."""

    def has_backlog(self, state: StateReader) -> bool:
        """Whether it has."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The rows whose expressions worked (TASK_SCHEMA), the results beside them, and the rows that failed."""

    rows: pa.RecordBatch
    results: pa.RecordBatch
    dropped: list[Dropped]


def evaluate_for(
    operator: str, expressions: Mapping[str, Expression], batch: pa.RecordBatch, on_error: OnError
) -> Evaluated:
    """Run an operator's expressions. A failing row raises ExpressionFailed with its offset, or is dropped; what took
    too long or grew too large raises in any case.
    """
    with _located(operator, batch):
        if on_error == "drop":
            return _evaluate_or_drop(operator, expressions, batch)
        return Evaluated(batch, evaluate(expressions, batch), [])


@contextmanager
def _located(operator: str, batch: pa.RecordBatch) -> Iterator[None]:
    """Where an expression fails, say of which operator and at which record."""
    try:
        yield
    except ExpressionFailed as error:
        cause = batch.column("offset")[error.row].as_py()
        raise ExpressionFailed(operator, error.row, error.detail, None if cause == NO_CAUSE else cause) from error


def evaluate_updates(
    operator: str, expressions: Mapping[str, Expression], batch: pa.RecordBatch, on_error: OnError
) -> Evaluated:
    """The same for updates of a table: tombstones are not looked at, their results are null."""
    values = batch.column("value")
    if not values.null_count:
        return evaluate_for(operator, expressions, batch, on_error)
    live = np.flatnonzero(values.is_valid())
    failed = np.zeros(len(values), np.bool_)
    updates = batch.take(pa.array(live))
    if on_error == "drop":
        with _located(operator, updates):
            results, failed[live] = evaluate_lenient(expressions, updates)
    else:
        results = evaluate_for(operator, expressions, updates, on_error).results
    places = np.full(len(values), -1)
    places[live] = np.arange(len(live))
    return _without_failed(operator, batch, results.take(pa.array(places, mask=places < 0)), failed)


def _evaluate_or_drop(operator: str, expressions: Mapping[str, Expression], batch: pa.RecordBatch) -> Evaluated:
    results, failed = evaluate_lenient(expressions, batch)
    return _without_failed(operator, batch, results, failed)


def _without_failed(
    operator: str, batch: pa.RecordBatch, results: pa.RecordBatch, failed: npt.NDArray[np.bool_]
) -> Evaluated:
    if not failed.any():
        return Evaluated(batch, results, [])
    worked = pa.array(~failed)
    dropped = Dropped(operator, "expression_failed", batch.filter(pa.array(failed)))
    return Evaluated(batch.filter(worked), results.filter(worked), [dropped])
