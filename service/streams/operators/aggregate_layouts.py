"""The layouts that the entries of an aggregate's store have had: a new one whenever a version changed its functions.

It knows when a store needs another layout; it refuses to know how entries of a former one are read (`former_layouts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from service.streams.layouts.entries import FIRST_LAYOUT
from service.streams.operators.functions import FunctionSpec

MAX_LAYOUTS: Final = 255  # ids are one byte, and 0 is none


class TooManyLayouts(Exception):
    """A store has had all layouts that it can have."""

    def __init__(self) -> None:
        super().__init__(f"its aggregates have changed {MAX_LAYOUTS - 1} times, which is as often as a store bears")


def next_layouts(
    former: list[dict[str, Any]] | None, old: Mapping[str, FunctionSpec], new: Mapping[str, FunctionSpec]
) -> list[dict[str, Any]] | None:
    """`StoreSpec.layouts` of a store that has `former` under the functions `old`, once they are `new`. Raises
    TooManyLayouts.

    Other functions, or the same in another order, are another layout, even where an earlier one had just these: a
    function that was away has not seen what came meanwhile.
    """
    before, after = _written(old), _written(new)
    if list(before.items()) == list(after.items()):
        return former
    layouts = former or [{"id": FIRST_LAYOUT, "aggregates": before}]
    if layouts[-1]["id"] >= MAX_LAYOUTS:
        raise TooManyLayouts
    return [*layouts, {"id": layouts[-1]["id"] + 1, "aggregates": after}]


def _written(functions: Mapping[str, FunctionSpec]) -> dict[str, Any]:
    return {name: function.model_dump(mode="json", exclude_none=True) for name, function in functions.items()}
