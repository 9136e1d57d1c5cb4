"""Where the columns of functions lie in an entry: numbers first, else in order.

It knows the types of columns, and who has how many; it refuses to know what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.streams.layouts.entries import Column

State = list[list[Column]]  # by owner (a function, or what is hidden beside them), its columns


class EntryColumns:
    """The columns of owners, given the types of each (as in `entries`)."""

    def __init__(self, types: Sequence[tuple[str, ...]]) -> None:
        self._types = list(types)
        flat = [(i, j) for i, own in enumerate(types) for j, _ in enumerate(own)]
        self._flat = sorted(flat, key=lambda at: types[at[0]][at[1]] == "O")
        self.types = [types[i][j] for i, j in self._flat]
        self.has_objects = "O" in self.types

    def by_owner(self, columns: Sequence[Column]) -> State:
        """Columns as they lie in an entry, by owner."""
        state = [[np.empty(0)] * len(own) for own in self._types]
        for (i, j), column in zip(self._flat, columns, strict=True):
            state[i][j] = column
        return state

    def in_order(self, state: State) -> list[Column]:
        """The inverse of `by_owner`."""
        return [state[i][j] for i, j in self._flat]

    def zeros(self, count: int) -> State:
        """Columns of nothing: 0, false, None."""
        return [[np.full(count, None) if kind == "O" else np.zeros(count, kind) for kind in own] for own in self._types]
