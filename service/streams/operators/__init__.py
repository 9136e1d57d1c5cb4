"""One file per operator: its specification and its state machine. This list is all that Millrace can run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.streams.operators.aggregate import Aggregate, AggregateSpec
from service.streams.operators.deduplicate import (
    Deduplicate,
    DeduplicateByKeySpec,
    DeduplicateByKeyValueSpec,
    DeduplicateSpec,
)
from service.streams.operators.distinct import Distinct, DistinctSpec
from service.streams.operators.filter import Filter, FilterSpec
from service.streams.operators.map_values import MapValues, MapValuesSpec
from service.streams.operators.select_key import SelectKey, SelectKeySpec
from service.streams.operators.step import OnError, Stateful, Stateless
from service.streams.operators.suppress import Suppress, SuppressSpec
from service.streams.operators.upstream import PLAIN, Upstream

OperatorSpec = Annotated[
    FilterSpec
    | MapValuesSpec
    | SelectKeySpec
    | DeduplicateByKeySpec
    | DeduplicateByKeyValueSpec
    | DeduplicateSpec
    | DistinctSpec
    | AggregateSpec
    | SuppressSpec,
    Field(discriminator="op"),
]
StatefulSpec = (
    DeduplicateByKeySpec | DeduplicateByKeyValueSpec | DeduplicateSpec | DistinctSpec | AggregateSpec | SuppressSpec
)
AVAILABLE = (
    "filter",
    "map_values",
    "select_key",
    "deduplicate_by_key",
    "deduplicate_by_key_value",
    "deduplicate",
    "distinct",
    "aggregate",
    "suppress",
)
PLANNED = ("repartition", "merge", "branch")


def operator_of(spec: OperatorSpec, name: str, on_error: OnError, upstream: Upstream = PLAIN) -> Stateless | Stateful:
    """The state machine that runs a specification on what `upstream` makes of the records that reach it.

    `name` is what its errors and dropped records carry.
    """
    match spec:
        case FilterSpec():
            return Filter(spec, name, on_error, upstream)
        case MapValuesSpec():
            return MapValues(spec, name, on_error, upstream)
        case SelectKeySpec():
            return SelectKey(spec, name, on_error)
        case DistinctSpec():
            return Distinct(spec, name)
        case AggregateSpec():
            return Aggregate(spec, name, on_error)
        case SuppressSpec():
            return Suppress(spec, name, upstream)
        case _:
            return Deduplicate(spec, name, on_error)
