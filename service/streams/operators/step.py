"""What one operator makes of one batch, and how an operator meets its expressions.

It knows the shape that all operators share; it refuses to know what any of them means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams.clock import CloseReason
from service.streams.errors import ExpressionFailed
from service.streams.expressions import Expression, evaluate, evaluate_lenient, explain
from service.streams.inputs import NO_CAUSE, Origins
from service.streams.measures import Reading
from service.streams.records import Dropped, StateReader

OnError = Literal["fail", "drop", "dead_letter"]


@dataclass(frozen=True, slots=True)
class Rest:
    """What an operator did not take of what it was given, as it is too much at once.

    `cause`: the ordinal of a row that was taken but in part: what leaves the operator at its stream time because of
    that row has not left yet. None: no row is in part. `rows` (TASK_SCHEMA): what comes after that.
    """

    rows: pa.RecordBatch
    cause: int | None = None

    @property
    def first_ordinal(self) -> int:
        """That of the first row that was not taken whole."""
        return int(self.rows.column("ordinal")[0].as_py()) if self.cause is None else self.cause


@dataclass(frozen=True, slots=True)
class Step:
    """`forward`: TASK_SCHEMA. `changes`: CHANGELOG_SCHEMA sorted by key, or None when the store did not move.

    `measures`: what the operator measured (`service.streams.measures`). `rest`: what is left to do, None when nothing
    is.
    """

    forward: pa.RecordBatch
    changes: pa.RecordBatch | None = None
    dropped: list[Dropped] = field(default_factory=list)
    measures: Reading = field(default_factory=dict)
    rest: Rest | None = None


class TooMany(Exception):
    """The rows at hand make more events, or more to say, than is to be held at once; the `first` do not. 0: it is too
    much with the first one already.
    """

    def __init__(self, first: int) -> None:
        super().__init__(f"no more than {first} records")
        self.first = first


class Stateless(Protocol):
    """A function of each row alone."""

    def process(self, rows: pa.RecordBatch) -> Step:
        """What comes of rows (TASK_SCHEMA). Raises ExpressionFailed."""


class Stateful(Protocol):
    """A deterministic function of (state, ordered rows): how these are cut into batches changes nothing."""

    def process(self, rows: pa.RecordBatch, state: StateReader, origins: Origins) -> Step:
        """What comes of rows (TASK_SCHEMA), or of the first of them: those that are too much at once are the rest.

        `origins` are those of the batch; who stores where a row comes from asks them. Raises OperatorFailed.
        """


@runtime_checkable
class Advancing(Stateful, Protocol):
    """An operator whose results also depend on how far time has come, without a record (semantics.md, Idle close)."""

    def advance(self, to: int, state: StateReader, reason: CloseReason, cause: int = NO_CAUSE) -> Step:
        """What comes out when stream time is moved to `to`, at least, because of the row `cause`; where that is too
        much at once, the first part of it: then there is a rest, and the same is to be asked again.
        """

    def horizon(self, state: StateReader) -> int | None:
        """The lowest stream time that closes all that is open in its store; None when nothing is, or never will be."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The rows whose expressions worked (TASK_SCHEMA), the results beside them, and the rows that failed."""

    rows: pa.RecordBatch
    results: pa.RecordBatch
    dropped: list[Dropped]


def evaluate_for(
    operator: str, expressions: Mapping[str, Expression], batch: pa.RecordBatch, on_error: OnError
) -> Evaluated:
    """Run an operator's expressions. A failing row raises ExpressionFailed with its ordinal, or is dropped; what took
    too long or grew too large raises in any case.
    """
    with _located(operator, batch):
        if on_error == "fail":
            return Evaluated(batch, evaluate(expressions, batch), [])
        results, failed = evaluate_lenient(expressions, batch)
        return _without_failed(operator, expressions, batch, results, failed, on_error)


@contextmanager
def _located(operator: str, batch: pa.RecordBatch) -> Iterator[None]:
    """Where an expression fails, say of which operator and at which record."""
    try:
        yield
    except ExpressionFailed as error:
        ordinal = batch.column("ordinal")[error.row].as_py()
        raise ExpressionFailed(operator, error.row, error.detail, ordinal) from error


def evaluate_updates(
    operator: str, expressions: Mapping[str, Expression], batch: pa.RecordBatch, on_error: OnError
) -> Evaluated:
    """`evaluate_for` of updates of a table (TASK_SCHEMA): tombstones are not evaluated, their results are null."""
    values = batch.column("value")
    if not values.null_count:
        return evaluate_for(operator, expressions, batch, on_error)
    live = np.flatnonzero(values.is_valid())
    failed = np.zeros(len(values), np.bool_)
    updates = batch.take(pa.array(live))
    if on_error == "fail":
        results = evaluate_for(operator, expressions, updates, on_error).results
    else:
        with _located(operator, updates):
            results, failed[live] = evaluate_lenient(expressions, updates)
    places = np.full(len(values), -1)
    places[live] = np.arange(len(live))
    every = results.take(pa.array(places, mask=places < 0))
    return _without_failed(operator, expressions, batch, every, failed, on_error)


def _without_failed(
    operator: str,
    expressions: Mapping[str, Expression],
    batch: pa.RecordBatch,
    results: pa.RecordBatch,
    failed: npt.NDArray[np.bool_],
    on_error: OnError,
) -> Evaluated:
    if not failed.any():
        return Evaluated(batch, results, [])
    worked, rows = pa.array(~failed), batch.filter(pa.array(failed))
    errors = explain(expressions, rows) if on_error == "dead_letter" else None
    dropped = Dropped(operator, ExpressionFailed.code, rows, errors)
    return Evaluated(batch.filter(worked), results.filter(worked), [dropped])
