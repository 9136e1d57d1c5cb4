"""What the operators before one make of the records that reach it: updates of a table or plain records, which window.

It knows which operators change that; it refuses to know what any of them does with a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Upstream:
    """`is_table`: records are updates, null values are tombstones. `window`: the specification of the window that
    they carry (JSON of contract.md), None where it is none or unknown. `is_delayed`: updates are held back, so they
    may come when their window has closed.
    """

    is_table: bool = False
    window: Mapping[str, Any] | None = None
    is_delayed: bool = False

    @property
    def window_type(self) -> str | None:
        """The type of the window."""
        return None if self.window is None else str(self.window["type"])

    @property
    def closing_delay_ms(self) -> int:
        """How far stream time must pass the end of a window before nothing changes it any more."""
        window = self.window or {}
        return int(window.get("grace_ms") or 0) + int(window.get("gap_ms") or 0)

    def then(self, operator: Mapping[str, Any]) -> Upstream:
        """The records that come out of `operator` (its specification as JSON) when these go in."""
        match operator["op"]:
            case "aggregate":
                return Upstream(is_table=True, window=operator.get("window"))
            case "distinct":
                return Upstream(is_table=False, window=operator["window"])
            case "select_key" | "deduplicate" | "deduplicate_by_key" | "deduplicate_by_key_value":
                return PLAIN  # who looks at keys alone lets the first update of several windows through: no table
            case "suppress" if operator.get("time_limit_ms"):
                return replace(self, is_delayed=True)
            case _:
                return self


PLAIN: Final = Upstream()  # records as they come from a stream


def upstreams(operators: Iterable[Mapping[str, Any]]) -> list[Upstream]:
    """For each operator of a chain what reaches it."""
    found, reaching = [], PLAIN
    for operator in operators:
        found.append(reaching)
        reaching = reaching.then(operator)
    return found
