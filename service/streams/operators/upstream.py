"""What the operators before one make of the records that reach it: updates of a table or plain records, which window.

It refuses to know which operator changes that (each declares it), and what any of them does with a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Upstream:
    """`is_table`: records are updates, null values are tombstones. `window`: the specification of the window that
    they carry (JSON of contract.md), None where it is none or unknown. `is_delayed`: updates are held back, so they
    may come when their window has closed. `is_final`: each key and window comes once at most, so nothing that went on
    ever needs to be taken back.
    """

    is_table: bool = False
    window: Mapping[str, Any] | None = None
    is_delayed: bool = False
    is_final: bool = False

    @property
    def window_type(self) -> str | None:
        """The type of the window."""
        return None if self.window is None else str(self.window["type"])

    @property
    def closing_delay_ms(self) -> int:
        """How far stream time must pass the end of a window before nothing changes it any more."""
        window = self.window or {}
        return int(window.get("grace_ms") or 0) + int(window.get("gap_ms") or 0)


PLAIN: Final = Upstream()  # records as they come from a stream
