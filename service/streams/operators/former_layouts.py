"""What the functions of an operator find in entries that former versions of it wrote.

A function is carried on where all versions since have had it, under the same name and with the same specification; in
groups that are older than that it is missing. It knows layouts as `StoreSpec.layouts` lists them; it refuses to know
how a list of them comes about (`aggregate_layouts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from service.streams.layouts.entries import FIRST_LAYOUT, Column, EntryCodec
from service.streams.layouts.former_entries import Former, InheritingCodec
from service.streams.operators.entry_columns import EntryColumns
from service.streams.operators.functions import FunctionSpec, function_of
from service.streams.operators.missing import columns_for, is_missing, words_of

Layout = Mapping[str, Any]  # its "id", and its "aggregates": the specifications (JSON) of functions by name, in order

LATEST = ("<i8",)  # the highest timestamp folded in: a hidden function of those who have need of it


def entry_columns(types: Sequence[tuple[str, ...]], layout: int, *, has_stamps: bool) -> EntryColumns:
    """The columns of a layout, given those of its functions: behind the first one comes what says which are missing."""
    stamps = [LATEST] if has_stamps else []
    return EntryColumns([*stamps, *types, *([] if layout == FIRST_LAYOUT else [columns_for(len(types))])])


def codec_of(layouts: Sequence[Layout], columns: EntryColumns, *, has_stamps: bool) -> InheritingCodec:
    """The codec of entries in the last one of layouts, which has these columns; it reads all of them."""
    former = {
        layout["id"]: _former(layouts[i:], columns, has_stamps=has_stamps) for i, layout in enumerate(layouts[:-1])
    }
    return InheritingCodec(columns.types, layouts[-1]["id"], former)


def has_objects(layouts: Sequence[Layout]) -> bool:
    """Whether some layout has columns of texts."""
    return any("O" in types for layout in layouts for types in _types(layout))


def _former(layouts: Sequence[Layout], present: EntryColumns, *, has_stamps: bool) -> Former:
    """The first of these layouts, as the last one has it."""
    first, functions = layouts[0], list(layouts[-1]["aggregates"])
    own = entry_columns(_types(first), first["id"], has_stamps=has_stamps)
    places = {name: i for i, name in enumerate(first["aggregates"])}
    carried = [places[name] if _is_carried(name, layouts) else None for name in functions]
    begin = int(has_stamps)

    def converted(columns: Sequence[Column], count: int) -> list[Column]:
        state, nothing = own.by_owner(columns), present.zeros(count)
        words = [] if first["id"] == FIRST_LAYOUT else state[-1]
        missing = [np.full(count, at is None) if at is None or not words else is_missing(words, at) for at in carried]
        found = [nothing[begin + i] if at is None else state[begin + at] for i, at in enumerate(carried)]
        return present.in_order([*state[:begin], *found, words_of(missing)])

    return Former(EntryCodec(own.types, first["id"]), converted)


def _is_carried(name: str, layouts: Sequence[Layout]) -> bool:
    specs = [layout["aggregates"].get(name) for layout in layouts]
    return specs[0] is not None and all(spec == specs[0] for spec in specs)


def _types(layout: Layout) -> list[tuple[str, ...]]:
    # Not checked again: who looks need not have a custom aggregator installed.
    return [function_of(FunctionSpec.model_construct(**spec)).types for spec in layout["aggregates"].values()]
