"""How far an operator has closed its windows: no step back, whatever its delay becomes.

It knows that this is stream time less the delay, but where the version before had closed further, or had not yet closed
as far (`adoption`): that a store remembers for as long as it is so. It refuses to know windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from service.streams.layouts.changelog import Part, change
from service.streams.layouts.reserved import CLOSED_KEY, pack_time, time_at
from service.streams.records import StateReader

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClosedTo:
    """`stored`: what the store remembers, None where it is stream time less the delay. All in ms of stream time; what
    ends before (tumbling and hopping windows: or then) is closed.
    """

    delay_ms: int
    before: int
    stored: int | None

    @classmethod
    def of(cls, delay_ms: int, before: int, state: StateReader) -> Self:
        """Of an operator with this delay at stream time `before`."""
        return cls(delay_ms, before, time_at(CLOSED_KEY, state))

    @property
    def was(self) -> int:
        """What was closed when the step began, and all that was to be emitted then came out."""
        return self.before - self.delay_ms if self.stored is None else self.stored

    def at(self, time: int) -> int:
        """What is closed at a stream time."""
        return time - self.delay_ms if self.stored is None else max(self.stored, time - self.delay_ms)

    def at_each(self, running: Int64s) -> Int64s:
        """The same for each of many."""
        closes: Int64s = running - self.delay_ms
        return closes if self.stored is None else np.maximum(closes, self.stored)

    def at_each_by(self, by_records: Int64s, running: Int64s) -> Int64s:
        """What would be closed if stream time were `by_records` and not `running`. What the version before had closed
        would be: how that came is not known any more.
        """
        closes: Int64s = by_records - self.delay_ms
        if self.stored is None:
            return closes
        return np.where(running - self.delay_ms < self.stored, self.stored, closes)

    def changes(self, time: int, closed: int) -> list[Part]:
        """What the store has to learn when stream time is `time`, and so much closed."""
        remembered = None if closed == time - self.delay_ms else closed
        if remembered == self.stored:
            return []
        return [change(CLOSED_KEY, None if remembered is None else pack_time(remembered))]
