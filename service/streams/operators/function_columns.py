"""The functions of one operator together: their state as columns, folded, stored, and shown as JSON.

It knows all functions of an operator at once, so that those who gather records into windows know none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams.errors import IntegerOverflow
from service.streams.expressions import Expression
from service.streams.kernels import fold
from service.streams.layouts.entries import Column, EntryCodec
from service.streams.operators import functions, json_form
from service.streams.operators.fields import admitted
from service.streams.operators.functions import (
    NUMBER_CHARS,
    Events,
    Failure,
    FunctionSpec,
    Inputs,
    Objects,
    OutOfRange,
    function_of,
)
from service.streams.operators.step import TooMany

State = list[list[Column]]  # by function, its columns by slot
_NAMES_AND_NUMBERS = 4  # so many times less memory do they take than texts do, which are objects
LATEST = ("<i8",)  # the highest timestamp folded in: a hidden function of those who have need of it


class FunctionColumns:
    """The functions of an operator, by name and in order. `has_stamps`: its entries begin with a timestamp."""

    def __init__(self, operator: str, specs: Mapping[str, FunctionSpec], *, has_stamps: bool) -> None:
        self._operator, self._has_stamps = operator, has_stamps
        self._names = list(specs)
        self.functions = self._functions = [function_of(spec) for spec in specs.values()]
        self.expressions: dict[str, Expression] = {
            name: admitted(spec.of) for name, spec in specs.items() if spec.of is not None
        }
        stamps = [LATEST] if has_stamps else []
        self._types = [*stamps, *(function.types for function in self._functions)]
        flat = [(i, j) for i, types in enumerate(self._types) for j, _ in enumerate(types)]
        self._flat = sorted(flat, key=lambda at: self._types[at[0]][at[1]] == "O")
        self.has_objects = any("O" in types for types in self._types)
        objects = [function for function in self._functions if isinstance(function, Objects)]
        for function in objects:
            function.share = len(objects)
        self._row_chars = sum(len(name) for name in specs) + NUMBER_CHARS * (len(specs) - len(objects))
        self.codec = EntryCodec([self._types[i][j] for i, j in self._flat])

    def inputs(self, results: pa.RecordBatch, rows: pa.RecordBatch) -> list[Inputs]:
        """What each function takes of the records; `results` are those of `expressions`. Raises IntegerOverflow."""
        given = dict(zip(results.schema.names, results.columns, strict=True))
        found = []
        for name, function in zip(self._names, self._functions, strict=True):
            try:
                found.append(function.inputs(given.get(name), rows))
            except OutOfRange as error:
                raise self._located(IntegerOverflow, name, rows, error.row, "the value passes 64 bits") from error
        return found

    def state(self, stored: Sequence[Column]) -> State:
        """State from columns in the order of `codec`."""
        state = [[np.empty(0)] * len(types) for types in self._types]
        for (i, j), column in zip(self._flat, stored, strict=True):
            state[i][j] = column
        begin = int(self._has_stamps)
        return state[:begin] + [f.loaded(own) for f, own in zip(self._functions, state[begin:], strict=True)]

    def stored(self, state: State) -> list[Column]:
        """The inverse of `state`."""
        begin = int(self._has_stamps)
        ready = state[:begin] + [f.stored(own) for f, own in zip(self._functions, state[begin:], strict=True)]
        return [ready[i][j] for i, j in self._flat]

    def fold(self, events: Events, inputs: list[Inputs], rows: pa.RecordBatch, state: State, count: int) -> State:
        """Let the events change the state; returns the `count` results that they ask for.

        Raises AggregateTooLarge, IntegerOverflow and AggregatorFailed, with the record; TooMany.
        """
        self._check_room(rows.num_rows, count)
        out = [[np.full(count, None) if kind == "O" else np.zeros(count, kind) for kind in t] for t in self._types]
        begin = int(self._has_stamps)
        if self._has_stamps:
            fold.latest(*events.arrays, rows.column("timestamp").to_numpy(), state[0][0], out[0][0])
        for name, function, given, own, results in zip(
            self._names, self._functions, inputs, state[begin:], out[begin:], strict=True
        ):
            try:
                function.fold(events, given, own, results)
            except Failure as error:
                row = events.row_of(error.event)
                raise self._located(error.kind, name, rows, row, error.detail) from error
        return out

    def _check_room(self, records: int, count: int) -> None:
        """What names and numbers take. Raises TooMany."""
        size, first = count * self._row_chars, 0
        if size > functions.MAX_SAID * _NAMES_AND_NUMBERS:
            first = max(records * functions.MAX_SAID * _NAMES_AND_NUMBERS // size, 1)
        if 0 < first < records:
            raise TooMany(first)

    def results(self, state: State) -> State:
        """What `fold` would give for a state at rest."""
        begin = int(self._has_stamps)
        return state[:begin] + [f.results(own) for f, own in zip(self._functions, state[begin:], strict=True)]

    def values(self, results: State) -> pa.Array:
        """Results as JSON object texts (utf8)."""
        own = results[int(self._has_stamps) :]
        texts = [function.texts(out) for function, out in zip(self._functions, own, strict=True)]
        return json_form.fields(list(zip(self._names, texts, strict=True)))

    def _located(self, kind: Any, name: str, rows: pa.RecordBatch, row: int, detail: str) -> Exception:
        key = rows.column("key")[row].as_py().decode("utf-8", "replace")
        error: Exception = kind(self._operator, name, key, row, rows.column("ordinal")[row].as_py(), detail)
        return error


def taken(state: State, slots: npt.NDArray[Any]) -> State:
    """The state of some slots, copied (objects are shared)."""
    return [[column[slots] for column in columns] for columns in state]
