"""Polls that wait, and the word of their instance, which keeps their leases meanwhile.

A slot that has nothing to do asks, and waits for an answer. That it lives while it waits its driver sees: the process
of a slot touches a file (`spark_jobs.pulse`), and heartbeats say how long ago. Of slots whose poll waits here such a
sign of life renews the lease, in the same write as that of the instance, as of the moment of the sign; so a process
that is stopped or dead loses its lease as one that asks no more. A slot that nobody vouches for is answered early
enough to keep its lease by asking again: on a node whose files its driver does not see, and where heartbeats go to
another API process.

It knows moments. It refuses to know what a poll looks at (`polls`) and what it is answered (`quiet_polls`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

# Parts of a lease. How long a poll may wait: the next one renews a lease of which a fourth may be gone; since its
# instance has vouched for it: the next heartbeat comes after 0.4 of a lease; how old a sign of life may be.
PATIENCE: Final = 0.4
VOUCHED: Final = 0.6
YOUNG: Final = 0.3


@dataclass(slots=True, eq=False)
class WaitingPoll:
    """One poll of one slot: when it came, and when an instance vouched for its slot last (s, monotonic)."""

    lease_s: float
    asked_s: float
    vouched_s: float = -math.inf

    @property
    def is_vouched_for(self) -> bool:
        """Whether its lease needs no renewal by the question itself."""
        return self.asked_s < self.vouched_s + VOUCHED * self.lease_s

    @property
    def until_s(self) -> float:
        """At the latest it is answered."""
        return max(self.asked_s + PATIENCE * self.lease_s, self.vouched_s + VOUCHED * self.lease_s)


class WaitingPolls:
    """Those of one API process; it belongs to the thread of its event loop."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_s = lease_ms / 1000
        self._waiting: dict[tuple[str, str], WaitingPoll] = {}
        self._vouched: dict[str, tuple[float, frozenset[str]]] = {}  # by instance: when last, and for which slots

    @contextmanager
    def wait(self, instance_id: str, slot_id: str) -> Iterator[WaitingPoll]:
        """While a poll of the slot waits. Where two do, the connection of the former was lost: the later one counts."""
        place, poll = (instance_id, slot_id), WaitingPoll(self._lease_s, time.monotonic())
        at_s, slots = self._vouched.get(instance_id, (-math.inf, frozenset()))
        if slot_id in slots:
            poll.vouched_s = at_s
        self._waiting[place] = poll
        try:
            yield poll
        finally:
            if self._waiting.get(place) is poll:
                del self._waiting[place]

    def living(self, instance_id: str, pulses: Mapping[str, int]) -> dict[str, int]:
        """Of slots that gave a sign of life so many ms ago, those whose poll waits here and whose sign is young."""
        return {
            slot: age_ms
            for slot, age_ms in pulses.items()
            if age_ms <= 1000 * YOUNG * self._lease_s and (instance_id, slot) in self._waiting
        }

    def vouch(self, instance_id: str, slot_ids: Collection[str], at_s: float) -> None:
        """Leases of these slots, no others, were renewed by what their instance said at that time (s, monotonic)."""
        self._vouched.pop(instance_id, None)
        if slot_ids:
            self._vouched[instance_id] = (at_s, frozenset(slot_ids))
        for slot_id in slot_ids:
            if (poll := self._waiting.get((instance_id, slot_id))) is not None:
                poll.vouched_s = max(poll.vouched_s, at_s)
