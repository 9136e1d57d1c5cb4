"""Polls of slots that have nothing to do: answers that still hold, and leases that are kept together.

An idle slot asks the same again and again: what it was answered holds until something wakes what it waits for, so
nothing is read for it; and its lease is renewed with those of all others that asked, in one statement. Only a question
renews: while a poll waits its slot may have died (`waiting_polls`).

It knows questions, topics and moments. It refuses to know what a poll looks at (`polls`) and how long a request waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from service.catalog.engine import Catalog
from service.coordinator.leases import renew_slots
from service.coordinator.polls import PollOutcome

HOLDS_S: Final = 15.0  # after which it is looked at again, woken or not
FORGOTTEN_S: Final = 60.0  # a slot that has not asked for so long has left

HasWoken = Callable[[Iterable[str], int], bool]  # topics, and the number of the wake-up before the look


@dataclass(slots=True)
class _Answered:
    """What was asked, what was answered, as of which wake-up (`seen`) and until when that holds."""

    asked: Any
    outcome: PollOutcome
    seen: int
    until_s: float


class QuietPolls:
    """The idle slots of one API process. `kept` and `keep` belong to one thread, `renew` to any."""

    def __init__(self, catalog: Catalog, has_woken: HasWoken) -> None:
        self._catalog, self._has_woken = catalog, has_woken
        self._answered: dict[str, _Answered] = {}
        self._asked_s: dict[str, float] = {}  # slots whose lease is to be renewed, since when
        self._guard = threading.Lock()

    def kept(self, slot: str, asked: Any, *, renews: bool = True) -> PollOutcome | None:
        """What a slot that asks the same again was answered; None: look. Its lease is renewed soon if it `renews`."""
        found, now_s = self._answered.get(slot), time.monotonic()
        if found is None or found.asked != asked or now_s >= found.until_s:
            return None
        if self._has_woken(found.outcome.topics, found.seen):
            return None
        if renews:
            with self._guard:
                self._asked_s[slot] = now_s
        return found.outcome

    def keep(self, slot: str, asked: Any, outcome: PollOutcome, seen: int) -> None:
        """Note what a look that began after wake-up `seen` found."""
        if outcome.is_ready:
            self._answered.pop(slot, None)
            return
        again_ms = outcome.look_again_ms
        holds_s = HOLDS_S if again_ms is None else min(HOLDS_S, again_ms / 1000)
        self._answered[slot] = _Answered(asked, outcome, seen, time.monotonic() + holds_s)

    def renew(self) -> None:
        """Renew the leases of those that were answered without a look, from when they asked; what was answered to one
        that is not alive any more holds no longer.
        """
        with self._guard:
            asked_s, self._asked_s = self._asked_s, {}
        now_s = time.monotonic()
        for slot in [slot for slot, each in self._answered.items() if now_s > each.until_s + FORGOTTEN_S]:
            self._answered.pop(slot, None)
        if asked_s:
            age_ms = round(1000 * (now_s - min(asked_s.values())))
            for slot in asked_s.keys() - self._catalog.write(renew_slots, list(asked_s), age_ms):
                self._answered.pop(slot, None)
