"""One file per operator: its specification and its state machine. This list is all that Millrace can run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.streams.operators.deduplicate import (
    Deduplicate,
    DeduplicateByKeySpec,
    DeduplicateByKeyValueSpec,
    DeduplicateSpec,
)
from service.streams.operators.filter import Filter, FilterSpec
from service.streams.operators.map_values import MapValues, MapValuesSpec
from service.streams.operators.select_key import SelectKey, SelectKeySpec
from service.streams.operators.step import OnError, Operator

OperatorSpec = Annotated[
    FilterSpec | MapValuesSpec | SelectKeySpec | DeduplicateByKeySpec | DeduplicateByKeyValueSpec | DeduplicateSpec,
    Field(discriminator="op"),
]
StatefulSpec = DeduplicateByKeySpec | DeduplicateByKeyValueSpec | DeduplicateSpec
AVAILABLE = (
    "filter",
    "map_values",
    "select_key",
    "deduplicate_by_key",
    "deduplicate_by_key_value",
    "deduplicate",
)
PLANNED = ("repartition", "merge", "branch", "distinct", "aggregate", "suppress")


def operator_of(spec: OperatorSpec, name: str, on_error: OnError) -> Operator:
    """The state machine that runs a specification; `name` is what its errors and dropped records carry."""
    match spec:
        case FilterSpec():
            return Filter(spec, name, on_error)
        case MapValuesSpec():
            return MapValues(spec, name, on_error)
        case SelectKeySpec():
            return SelectKey(spec, name, on_error)
        case _:
            return Deduplicate(spec, name, on_error)
