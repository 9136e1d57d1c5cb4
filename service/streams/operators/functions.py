"""What is computed of a group: count, sum, min, max, mean, first, last, collect, or an aggregator that is installed.

It knows each function's state, how events change it (`kernels.fold`, or a loop here for what is no number) and the
JSON of its result. It refuses to know windows: a slot is a group, an event says which record goes into which.

Null inputs, of SQL or of JSON, are skipped by all but count. Integers are exact, a sum that passes 64 bits is an error;
doubles are doubles, added in the order of events; decimals are exact.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

from service.streams.errors import AggregateFailed, AggregateTooLarge, AggregatorFailed, IntegerOverflow
from service.streams.kernels import fold
from service.streams.layouts.entries import Column
from service.streams.operators import json_form
from service.streams.operators.fields import ExpressionText, Spec, admitted, kind_name, problem
from service.streams.operators.installed_aggregators import (
    Aggregator,
    NotAnAggregator,
    aggregator_named,
    installed,
)
from service.streams.operators.step import TooMany

MAX_AGGREGATE_BYTES: Final = 1 << 20
MAX_SAID: Final = 1 << 26  # characters of the results of one batch: they are in memory some five times
NUMBER_CHARS: Final = 24  # of a number, as it is said
FUNCTIONS: Final = {
    "count": "How many records there are, whatever they hold.",
    "sum": "The sum of numbers: exact for integers (64 bits) and decimals, in doubles for doubles.",
    "min": "The least value.",
    "max": "The greatest value.",
    "mean": "The mean of numbers, as a double; that of integers and decimals is divided once, at the end.",
    "first": "The value of the first record that has one, in processing order.",
    "last": "The value of the last record that has one, in processing order.",
    "collect": "All values in a list, in processing order; up to 1 MiB of JSON.",
}
FunctionName = Literal["count", "sum", "min", "max", "mean", "first", "last", "collect", "custom"]
Int32s = npt.NDArray[np.int32]


_IS_CUSTOM: Final[JsonDict] = {"properties": {"fn": {"const": "custom"}}}
_IS_COUNT: Final[JsonDict] = {"properties": {"fn": {"const": "count"}}}


class FunctionSpec(Spec):
    """`{"fn", "of"?}`, or `{"fn": "custom", "aggregator", "of"?}`"""

    model_config = ConfigDict(
        json_schema_extra={
            "if": _IS_CUSTOM,
            "then": {"required": ["aggregator"], "properties": {"aggregator": {"type": "string"}}},
            "else": {
                "properties": {"aggregator": {"type": "null"}},
                "if": _IS_COUNT,
                "then": {"properties": {"of": {"type": "null"}}},
                "else": {"required": ["of"], "properties": {"of": {"type": "string"}}},
            },
        }
    )
    fn: FunctionName
    aggregator: Annotated[str | None, Field(validate_default=True)] = None
    of: Annotated[ExpressionText | None, Field(validate_default=True)] = None

    @field_validator("aggregator")
    @classmethod
    def _is_installed(cls, name: str | None, info: ValidationInfo) -> str | None:
        fn = info.data.get("fn")
        if fn == "custom":
            _check_installed(name)
        elif fn is not None and name is not None:
            raise problem(f"belongs to custom, not to {fn}")
        return name

    @field_validator("of")
    @classmethod
    def _suits(cls, of: str | None, info: ValidationInfo) -> str | None:
        fn = info.data.get("fn")
        if fn == "count" and of is not None:
            raise problem("count counts records, whatever they hold: leave it out, or filter before")
        if fn in _NEEDS_INPUT and of is None:
            raise problem(f"is required: {fn} of what?")
        if fn is not None and of is not None:
            _check_type(fn, admitted(of).type_of())
        return of


def _check_installed(name: str | None) -> None:
    known = ", ".join(installed()) or "none"
    if name is None:
        raise problem(f"is required: the name of an installed aggregator; installed: {known}")
    try:
        aggregator_named(name)
    except KeyError:
        raise problem(f"{name!r} is not installed; installed: {known}") from None
    except NotAnAggregator as error:
        raise problem(str(error)) from error


def _check_type(fn: str, kind: pa.DataType) -> None:
    if json_form.writer(kind) is None:
        raise problem(f"gives {kind_name(kind)}, which has no form in JSON; write (…)::varchar for its text")
    if pa.types.is_null(kind):
        raise problem("is always null")
    if fn in {"sum", "mean"} and not _is_number(kind):
        raise problem(f"{fn} needs numbers, this gives {kind_name(kind)}; cast it, to bigint or double")
    if fn in {"min", "max"} and isinstance(kind, pa.JsonType):
        raise problem(f"{fn} needs values that have an order, this gives JSON; write ->> and cast it")


class Inputs(NamedTuple):
    """What the records of a batch give to a function: a value each (an array or a list), and which are not null.

    `keys` are the keys of the records, for those who want to know.
    """

    values: Any
    valid: npt.NDArray[np.bool_]
    keys: pa.Array


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order, as `kernels.fold` has them. `rows`: the record that each belongs to, where some are left out."""

    kinds: npt.NDArray[np.int8]
    slots: Int32s
    others: Int32s
    outs: Int32s
    rows: Int32s | None = None

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(index, kind, slot, other, out) of each."""
        columns = (self.kinds.tolist(), self.slots.tolist(), self.others.tolist(), self.outs.tolist())
        return zip(range(len(self.kinds)), *columns, strict=True)

    @property
    def arrays(self) -> tuple[npt.NDArray[np.int8], Int32s, Int32s, Int32s]:
        """As the kernels take them."""
        return self.kinds, self.slots, self.others, self.outs

    @property
    def records(self) -> Int32s:
        """The record that each belongs to: its own, or that of the next event that takes one in. Where none follows (a
        late record may only copy a window), that of the last one.
        """
        if self.rows is not None:
            return self.rows
        takes_in = np.flatnonzero(self.kinds <= fold.JOIN)
        if not len(takes_in):
            return np.zeros(len(self.kinds), np.int32)
        nexts = np.searchsorted(takes_in, np.arange(len(self.kinds)))
        found: Int32s = self.others[takes_in[np.minimum(nexts, len(takes_in) - 1)]]
        return found

    def row_of(self, event: int) -> int:
        """The record that one belongs to."""
        return int(self.records[event])

    def only(self, kept: npt.NDArray[np.bool_]) -> Events:
        """Some of them."""
        return Events(self.kinds[kept], self.slots[kept], self.others[kept], self.outs[kept], self.records[kept])


class Failure(Exception):
    """An aggregate failed at an event; the operator knows the record and adds its names."""

    def __init__(self, kind: type[AggregateFailed], event: int, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.event, self.detail = kind, event, detail


class OutOfRange(Exception):
    """The value of a record does not fit 64 bits with a sign."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class Function(Protocol):
    """One aggregate of an operator.

    `types` are those of its columns, as in `entries`; while it is at work a text column ("O") holds any objects.
    """

    types: tuple[str, ...]

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        """The input of each of `rows` (TASK_SCHEMA): `column`, results of its expression, or the rows themselves."""

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        """Let the events change the state, and copy what they ask for. Raises Failure."""

    def loaded(self, stored: Sequence[Column]) -> list[Column]:
        """State from columns as they are stored: texts (bytes or None) become objects."""

    def stored(self, state: Sequence[Column]) -> list[Column]:
        """The inverse of `loaded`."""

    def results(self, state: Sequence[Column]) -> list[Column]:
        """The columns that `fold` copies out, of a state at rest."""

    def texts(self, out: Sequence[Column]) -> pa.Array:
        """The JSON (utf8, null where there is none) of columns that `fold` copied out."""

    def text(self, row: Sequence[Any]) -> str:
        """The same, `null` where there is none, of one row; ten times faster for one, slower for many."""


def function_of(spec: FunctionSpec) -> Function:
    """The function of a specification."""
    if spec.fn == "count":
        return CountOfRecords()
    if spec.fn == "custom":
        return Custom(spec.aggregator or "", is_given=spec.of is not None)
    kind = admitted(spec.of or "").type_of()
    if spec.fn == "collect":
        return Collect()
    if spec.fn in {"first", "last"}:
        return Pick(kind, is_last=spec.fn == "last") if _is_fixed(kind) else PickText(is_last=spec.fn == "last")
    if pa.types.is_decimal(kind):
        return Decimals(spec.fn, kind.scale)
    if spec.fn == "sum":
        return SumOfIntegers() if pa.types.is_integer(kind) else SumOfDoubles(is_mean=False)
    if spec.fn == "mean":
        return MeanOfIntegers() if pa.types.is_integer(kind) else SumOfDoubles(is_mean=True)
    return Extreme(kind, is_max=spec.fn == "max") if _is_fixed(kind) else ExtremeText(is_max=spec.fn == "max")


class _Numeric:
    """What functions have in common whose state is numbers: they are stored, and copied out, as they are."""

    def loaded(self, stored: Sequence[Column]) -> list[Column]:
        return list(stored)

    def stored(self, state: Sequence[Column]) -> list[Column]:
        return list(state)

    def results(self, state: Sequence[Column]) -> list[Column]:
        return list(state)

    def texts(self, out: Sequence[Column]) -> pa.Array:
        raise NotImplementedError

    def text(self, row: Sequence[Any]) -> str:
        return self.texts([np.array([value]) for value in row])[0].as_py() or "null"


class CountOfRecords(_Numeric):
    """How many records."""

    types: tuple[str, ...] = ("<i8",)

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        return Inputs(None, np.empty(0, np.bool_), rows.column("key"))

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        fold.count(*events.arrays, *state, *out)

    def texts(self, out: Sequence[Column]) -> pa.Array:
        return json_form.texts(pa.array(out[0]))

    def text(self, row: Sequence[Any]) -> str:
        return str(row[0])


class SumOfIntegers(_Numeric):
    """Exact, within 64 bits."""

    types: tuple[str, ...] = ("<i8", "?")

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        return _integers(column, rows)

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        event = fold.add_integers(*events.arrays, inputs.values, inputs.valid, *state, *out)
        if event != fold.NO_OVERFLOW:
            raise Failure(IntegerOverflow, event, "the sum passes 64 bits; cast to double or decimal")

    def texts(self, out: Sequence[Column]) -> pa.Array:
        return json_form.texts(pa.array(out[0], mask=~out[1]))

    def text(self, row: Sequence[Any]) -> str:
        return str(row[0]) if row[1] else "null"


class SumOfDoubles(_Numeric):
    """Sum or mean, in doubles."""

    types: tuple[str, ...] = ("<f8", "<i8")

    def __init__(self, *, is_mean: bool) -> None:
        self._is_mean = is_mean

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        return _doubles(column, rows)

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        fold.add_doubles(*events.arrays, inputs.values, inputs.valid, *state, *out)

    def texts(self, out: Sequence[Column]) -> pa.Array:
        totals, counts = out
        results = totals / np.maximum(counts, 1) if self._is_mean else totals
        return json_form.texts(pa.array(results, mask=counts == 0))

    def text(self, row: Sequence[Any]) -> str:
        total, count = row
        if count == 0:
            return "null"
        return json_form.double(total / count if self._is_mean else total)


class MeanOfIntegers(_Numeric):
    """The exact sum, divided once: the double nearest to the mean, whatever the order."""

    types: tuple[str, ...] = ("<i8", "<i8", "<i8")

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        return _integers(column, rows)

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        fold.add_wide(*events.arrays, inputs.values, inputs.valid, *state, *out)

    def texts(self, out: Sequence[Column]) -> pa.Array:
        low, high, counts = out
        means = low / np.maximum(counts, 1)
        for row in np.flatnonzero((high != low >> 63) | (np.abs(low) > 1 << 53) | (low == np.iinfo(np.int64).min)):
            total = (int(high[row]) << 64) | (int(low[row]) & (1 << 64) - 1)
            means[row] = total / max(int(counts[row]), 1)
        return json_form.texts(pa.array(means, mask=counts == 0))

    def text(self, row: Sequence[Any]) -> str:
        low, high, count = row
        return json_form.double(((high << 64) | (low & (1 << 64) - 1)) / count) if count else "null"


class _Fixed(_Numeric):
    """State of one value of a type that fits 8 bytes, and whether there is one."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._is_double = pa.types.is_floating(kind)
        self.types: tuple[str, ...] = ("<f8" if self._is_double else "<i8", "?")

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        return _doubles(column, rows) if self._is_double else _integers(column, rows)

    def texts(self, out: Sequence[Column]) -> pa.Array:
        found = pa.array(out[0], mask=~out[1])
        if pa.types.is_date(self._kind):
            found = found.cast(pa.int32())
        return json_form.texts(found.cast(self._kind))

    def text(self, row: Sequence[Any]) -> str:
        if not row[1]:
            return "null"
        if pa.types.is_int64(self._kind):
            return str(row[0])
        return json_form.double(row[0]) if pa.types.is_float64(self._kind) else super().text(row)


class Extreme(_Fixed):
    """The least or the greatest."""

    def __init__(self, kind: pa.DataType, *, is_max: bool) -> None:
        super().__init__(kind)
        self._is_max = is_max

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        fold.extreme(*events.arrays, self._is_max, inputs.values, inputs.valid, *state, *out)


class Pick(_Fixed):
    """The first or the last."""

    def __init__(self, kind: pa.DataType, *, is_last: bool) -> None:
        super().__init__(kind)
        self._is_last = is_last

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        fold.pick(*events.arrays, self._is_last, inputs.values, inputs.valid, *state, *out)


class _Room:
    """What the results of one function may still take in a batch."""

    def __init__(self, events: Events, characters: int) -> None:
        self._events, self._left = events, characters

    def taken_by(self, text: str | None, event: int) -> str | None:
        """The text. Raises TooMany where it is too much, unless it is all of the first record."""
        self._left -= len(text or "")
        if self._left < 0 and (row := self._events.row_of(event)):
            raise TooMany(row)
        return text


class Objects:
    """What functions have in common whose state is one object a slot (None = nothing yet): a loop over events."""

    types: tuple[str, ...] = ("O",)
    share = 1  # how many functions share what a batch may say

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        objects, results, room = state[0], out[0], _Room(events, MAX_SAID // self.share)
        for event, kind, slot, other, place in events:
            if kind == fold.COPY:
                objects[slot] = self._copied(objects[other])
            elif kind == fold.MERGE:
                if objects[other] is not None:
                    objects[slot] = self._merged(objects[slot], objects[other])
            elif inputs.valid[other]:
                objects[slot] = self._added(objects[slot], inputs.values[other])
            if objects[slot] is not None:
                _check_size(self._size(objects[slot]), event)
            if place >= 0:
                results[place] = room.taken_by(self._text(objects[slot]), event)

    def loaded(self, stored: Sequence[Column]) -> list[Column]:
        return [_objects(None if text is None else self._read(text) for text in stored[0])]

    def stored(self, state: Sequence[Column]) -> list[Column]:
        return [_objects(None if found is None else self._written(found) for found in state[0])]

    def results(self, state: Sequence[Column]) -> list[Column]:
        return [_objects(self._text(found) for found in state[0])]

    def texts(self, out: Sequence[Column]) -> pa.Array:
        return pa.array(out[0], pa.utf8())

    def text(self, row: Sequence[Any]) -> str:
        return row[0] or "null"

    def _copied(self, found: Any) -> Any:
        return found

    def _merged(self, one: Any, other: Any) -> Any:
        """`one` and then `other`; `one` is None where there was nothing."""
        raise NotImplementedError

    def _added(self, found: Any, value: Any) -> Any:
        return self._merged(found, value)

    def _size(self, found: Any) -> int:
        """Bytes of its JSON."""
        return _utf8_length(found)

    def _text(self, found: Any) -> str | None:
        """Its JSON."""
        raise NotImplementedError

    def _read(self, text: bytes) -> Any:
        return text.decode()

    def _written(self, found: Any) -> bytes:
        text: str = found
        return text.encode()


class PickText(Objects):
    """The first or the last of values that do not fit 8 bytes. Its object is their JSON."""

    def __init__(self, *, is_last: bool) -> None:
        self._is_last = is_last

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        return _json_texts(column, rows)

    def _merged(self, one: str | None, other: str) -> str:
        return other if one is None or self._is_last else one

    def _text(self, found: str | None) -> str | None:
        return found


class ExtremeText(Objects):
    """The least or the greatest text, by code points (which is by the bytes of UTF-8)."""

    def __init__(self, *, is_max: bool) -> None:
        self._is_max = is_max

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        given = _given(column)
        return Inputs(given.cast(pa.utf8()).to_pylist(), _valid(given), rows.column("key"))

    def _merged(self, one: str | None, other: str) -> str:
        if one is None:
            return other
        return max(one, other) if self._is_max else min(one, other)

    def _text(self, found: str | None) -> str | None:
        return None if found is None else json.dumps(found, ensure_ascii=False)


class Decimals(Objects):
    """sum, min, max or mean of decimals, exact. Its object is (unscaled value, how many); the mean is a double."""

    def __init__(self, fn: str, scale: int) -> None:
        self._fn, self._scale = fn, scale

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        given = _given(column)
        found = [None if each is None else (int(each.scaleb(self._scale)), 1) for each in given.to_pylist()]
        return Inputs(found, _valid(given), rows.column("key"))

    def _merged(self, one: tuple[int, int] | None, other: tuple[int, int]) -> tuple[int, int]:
        if one is None:
            return other
        if self._fn in {"sum", "mean"}:
            return one[0] + other[0], one[1] + other[1]
        return max(one, other, key=_unscaled) if self._fn == "max" else min(one, other, key=_unscaled)

    def _size(self, found: tuple[int, int]) -> int:
        return found[0].bit_length() // 3 + 3

    def _text(self, found: tuple[int, int] | None) -> str | None:
        if found is None:
            return None
        if self._fn == "mean":
            return json.dumps(found[0] / (found[1] * 10**self._scale))
        digits = str(abs(found[0])).rjust(self._scale + 1, "0")
        point = len(digits) - self._scale
        sign = "-" if found[0] < 0 else ""
        return sign + digits[:point] + ("." + digits[point:] if self._scale else "")

    def _read(self, text: bytes) -> tuple[int, int]:
        total, count = text.split(b"/")
        return int(total), int(count)

    def _written(self, found: tuple[int, int]) -> bytes:
        return b"%d/%d" % found


class Collect(Objects):
    """All values in the order of events, as a list."""

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        return _json_texts(column, rows)

    def _added(self, found: _Collected | None, value: str) -> _Collected:
        found = found or _Collected([], 1)
        found.parts.append(value)
        found.size += _utf8_length(value) + 1
        return found

    def _merged(self, one: _Collected | None, other: _Collected) -> _Collected:
        if one is None:
            return _Collected(list(other.parts), other.size)
        one.parts += other.parts
        one.size += other.size - 1
        return one

    def _copied(self, found: _Collected | None) -> Any:
        return found and _Collected(list(found.parts), found.size)

    def _size(self, found: _Collected) -> int:
        return found.size

    def _text(self, found: _Collected | None) -> str:
        return "[" + ",".join(found.parts if found else ()) + "]"

    def _read(self, text: bytes) -> _Collected:
        return _Collected([text.decode()], len(text) + 2)

    def _written(self, found: _Collected) -> bytes:
        return ",".join(found.parts).encode()


@dataclass(slots=True)
class _Collected:
    """The JSON of values, in pieces of one or more; `size` is that of the whole list in bytes."""

    parts: list[str]
    size: int


class Custom(Objects):
    """An installed aggregator. Its object is (aggregate,). Without `of` it gets whole values, null ones too.

    To show what it stored it need not be installed.
    """

    def __init__(self, name: str, *, is_given: bool) -> None:
        self._name, self._is_given = name, is_given

    def inputs(self, column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
        if not self._is_given:
            values = [None if text is None else json.loads(text) for text in rows.column("value").to_pylist()]
            return Inputs(values, np.ones(len(values), np.bool_), rows.column("key"))
        given = _given(column)
        if pa.types.is_floating(given.type):  # NaN and infinities are themselves here
            return Inputs(given.to_pylist(), _valid(given), rows.column("key"))
        texts = _json_texts(column, rows)
        return texts._replace(values=[json.loads(text) for text in texts.values])

    def fold(self, events: Events, inputs: Inputs, state: Sequence[Column], out: Sequence[Column]) -> None:
        mine = aggregator_named(self._name)
        keys, room = (
            [key.decode("utf-8", "surrogateescape") for key in inputs.keys.to_pylist()],
            _Room(events, MAX_SAID // self.share),
        )
        for (event, kind, slot, other, place), row in zip(events, events.records.tolist(), strict=True):
            key = keys[row]
            try:
                text = self._step(mine, key, kind, slot, other, inputs, state[0])
            except Exception as error:
                raise Failure(AggregatorFailed, event, f"{type(error).__name__}: {error}") from error
            _check_size(_utf8_length(text), event)
            if place >= 0:
                out[0][place] = room.taken_by(text, event)

    def _step(
        self, mine: Aggregator, key: str, kind: int, slot: int, other: int, inputs: Inputs, objects: Column
    ) -> str:
        """One event; returns the JSON of the aggregate."""
        if kind == fold.COPY:
            objects[slot] = copy.deepcopy(objects[other])
            return self._text(objects[slot])
        (found,) = objects[slot] or (mine.initializer(),)
        if kind in (fold.JOIN, fold.MERGE):
            found = mine.merger(key, mine.initializer(), found)
        if kind == fold.MERGE:
            found = mine.merger(key, found, objects[other][0])
        elif inputs.valid[other]:
            found = mine.aggregator(key, inputs.values[other], found)
        objects[slot] = (found,)
        return self._text(objects[slot])

    def results(self, state: Sequence[Column]) -> list[Column]:
        return [_objects(None if found is None else self._text(found) for found in state[0])]

    def _text(self, found: tuple[Any]) -> str:
        return json.dumps(found[0], ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    def _read(self, text: bytes) -> tuple[Any]:
        return (json.loads(text),)

    def _written(self, found: tuple[Any]) -> bytes:
        return self._text(found).encode()


def _check_size(size: int, event: int) -> None:
    if size > MAX_AGGREGATE_BYTES:
        detail = f"its value takes {size} bytes of JSON, at most {MAX_AGGREGATE_BYTES} are kept"
        raise Failure(AggregateTooLarge, event, detail)


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _unscaled(decimal: tuple[int, int]) -> int:
    return decimal[0]


def _objects(found: Iterable[Any]) -> Column:
    """An array of objects; tuples and lists stay what they are."""
    items = list(found)
    column = np.full(len(items), None)
    for i, item in enumerate(items):
        column[i] = item
    return column


def _given(column: pa.Array | None) -> pa.Array:
    if column is None:
        raise TypeError("Only count and custom go without an expression")
    return column


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _integers(column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
    """Integers, booleans, dates and timestamps as int64. Raises Failure for a uint64 that is none."""
    given = _given(column)
    if pa.types.is_date(given.type):
        given = given.cast(pa.int32())
    valid = _valid(given)
    if (
        pa.types.is_uint64(given.type)
        and (too_large := pc.greater(given, pa.scalar(2**63 - 1, pa.uint64()))).true_count
    ):
        row = int(np.argmax(too_large.fill_null(False).to_numpy(zero_copy_only=False)))
        raise OutOfRange(row)
    return Inputs(given.cast(pa.int64()).fill_null(0).to_numpy(), valid, rows.column("key"))


def _doubles(column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
    given = _given(column)
    return Inputs(given.cast(pa.float64()).fill_null(0.0).to_numpy(), _valid(given), rows.column("key"))


def _json_texts(column: pa.Array | None, rows: pa.RecordBatch) -> Inputs:
    """The JSON of values; a null of JSON is one of SQL."""
    given = _given(column)
    texts, valid = json_form.texts(given).fill_null("null"), _valid(given)
    if isinstance(given.type, pa.JsonType):
        is_null = pc.equal(pc.utf8_trim_whitespace(texts), "null")
        valid = valid & ~is_null.to_numpy(zero_copy_only=False)
    return Inputs(texts.to_pylist(), valid, rows.column("key"))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_fixed(kind: pa.DataType) -> bool:
    """Whether its values fit 8 bytes."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)
    return any(test(kind) for test in tests)


_NEEDS_INPUT = {"sum", "min", "max", "mean", "first", "last", "collect"}
