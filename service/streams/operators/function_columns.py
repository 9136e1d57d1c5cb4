"""The functions of one operator together: their state as columns, folded, stored, and shown as JSON.

It knows all functions of an operator at once, so that those who gather records into windows know none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from service.streams.errors import IntegerOverflow
from service.streams.expressions import Expression
from service.streams.kernels import fold
from service.streams.layouts.entries import FIRST_LAYOUT, Column, EntryCodec
from service.streams.operators import former_layouts, functions, json_form, missing
from service.streams.operators.entry_columns import State
from service.streams.operators.fields import admitted
from service.streams.operators.former_layouts import Layout
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

_NAMES_AND_NUMBERS = 4  # so many times less memory do they take than texts do, which are objects


class FunctionColumns:
    """The functions of an operator, by name and in order. `has_stamps`: its entries begin with a timestamp. `layouts`:
    those that its entries have had, as in `StoreSpec`.
    """

    def __init__(
        self,
        operator: str,
        specs: Mapping[str, FunctionSpec],
        *,
        has_stamps: bool,
        layouts: Sequence[Layout] | None = None,
    ) -> None:
        self._operator, self._has_stamps = operator, has_stamps
        self._names = list(specs)
        self.functions = self._functions = [function_of(spec) for spec in specs.values()]
        self.expressions: dict[str, Expression] = {
            name: admitted(spec.of) for name, spec in specs.items() if spec.of is not None
        }
        layout = FIRST_LAYOUT if layouts is None else layouts[-1]["id"]
        types = [function.types for function in self._functions]
        self._columns = former_layouts.entry_columns(types, layout, has_stamps=has_stamps)
        self._own = slice(int(has_stamps), int(has_stamps) + len(types))
        self._may_miss = layout != FIRST_LAYOUT  # the last of the columns say which are missing
        self.has_objects = "O" in self._columns.types
        objects = [function for function in self._functions if isinstance(function, Objects)]
        for function in objects:
            function.share = len(objects)
        self._row_chars = sum(len(name) for name in specs) + NUMBER_CHARS * (len(specs) - len(objects))
        self.codec = EntryCodec(self._columns.types)
        if layouts is not None:
            self.codec = former_layouts.codec_of(layouts, self._columns, has_stamps=has_stamps)
            self.has_objects = former_layouts.has_objects(layouts)

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
        state = self._columns.by_owner(stored)
        state[self._own] = [f.loaded(own) for f, own in zip(self._functions, state[self._own], strict=True)]
        return state

    def stored(self, state: State) -> list[Column]:
        """The inverse of `state`."""
        ready = list(state)
        ready[self._own] = [f.stored(own) for f, own in zip(self._functions, state[self._own], strict=True)]
        for i in self._missing(state):
            at = self._own.start + i
            ready[at] = missing.emptied(ready[at], missing.is_missing(state[-1], i))
        return self._columns.in_order(ready)

    def fold(self, events: Events, inputs: list[Inputs], rows: pa.RecordBatch, state: State, count: int) -> State:
        """Let the events change the state; returns the `count` results that they ask for.

        Raises AggregateTooLarge, IntegerOverflow and AggregatorFailed, with the record; TooMany.
        """
        self._check_room(rows.num_rows, count)
        out = self._columns.zeros(count)
        if self._has_stamps:
            fold.latest(*events.arrays, rows.column("timestamp").to_numpy(), state[0][0], out[0][0])
        are_missing = self._missing(state)
        folded = missing.Folded(events, state[-1], out[-1]) if are_missing else None
        for i, (name, function, given, own, results) in enumerate(
            zip(self._names, self._functions, inputs, state[self._own], out[self._own], strict=True)
        ):
            its = folded.events_of(i) if folded is not None and i in are_missing else events
            try:
                function.fold(its, given, own, results)
            except Failure as error:
                row = its.row_of(error.event)
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
        found = list(state)
        found[self._own] = [f.results(own) for f, own in zip(self._functions, state[self._own], strict=True)]
        return found

    def values(self, results: State) -> pa.Array:
        """Results as JSON object texts (utf8)."""
        texts = [function.texts(out) for function, out in zip(self._functions, results[self._own], strict=True)]
        for i in self._missing(results):
            texts[i] = missing.nulled(texts[i], missing.is_missing(results[-1], i))
        return json_form.fields(list(zip(self._names, texts, strict=True)))

    def _missing(self, state: State) -> list[int]:
        """The functions that are missing in some group."""
        return missing.anywhere(state[-1], len(self._functions)) if self._may_miss else []

    def _located(self, kind: Any, name: str, rows: pa.RecordBatch, row: int, detail: str) -> Exception:
        key = rows.column("key")[row].as_py().decode("utf-8", "replace")
        error: Exception = kind(self._operator, name, key, row, rows.column("ordinal")[row].as_py(), detail)
        return error


def taken(state: State, slots: npt.NDArray[Any]) -> State:
    """The state of some slots, copied (objects are shared)."""
    return [[column[slots] for column in columns] for columns in state]
