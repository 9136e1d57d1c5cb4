"""Cores shared between jobs: how many slots of which job each instance runs, a pure function.

It knows instances with their cores, jobs with what they can use, and what was shared before. It refuses to know which
task runs in which slot (`assignor`) and how a slot gives its core up.

In this order: every job has a slot before any has a second one, and so on, as long as it can use them; a job is spread
evenly over instances; instances that run more slots than they have cores are equally crowded; what was shared stays.
Each step that changes something makes it better by this order, and without such a step nothing changes: so who is
asked again answers the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

Shares = Mapping[tuple[str, str], int]  # (job, instance) → slots


class InstanceCores(NamedTuple):
    """An instance: `cores`, and the slots of all jobs that it runs at most."""

    id: str
    cores: int
    room: int


class Claim(NamedTuple):
    """A job that wants to run: the slots that it can use, and how many of them on one instance (None: its cores)."""

    id: str
    most: int
    on_each: int | None = None


def share_out(places: Sequence[InstanceCores], claims: Sequence[Claim], held: Shares) -> dict[tuple[str, str], int]:
    """How many slots of each job on each instance (>= 1; none: no entry), where there were `held`; 0 there: a job was
    on an instance once, and finds its copies again. The order of `claims` and `places` settles what is equal otherwise:
    who comes first gets more, and keeps it.
    """
    table = _Table(places, claims, held)
    table.fit()
    while table.level() | table.spread() | table.thin_out():
        pass
    return {key: slots for key, slots in sorted(table.slots.items()) if slots}


class _Table:
    """Shares while they are changed, one slot at a time."""

    def __init__(self, places: Sequence[InstanceCores], claims: Sequence[Claim], held: Shares) -> None:
        self.places, self.claims, self.known = places, claims, held.keys()
        self.slots = Counter(
            {
                (job.id, at.id): min(held[job.id, at.id], slots_on(at.cores, job.on_each, job.most))
                for job, at in product(claims, places)
                if (job.id, at.id) in held
            }
        )
        self.loads: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        for (job_id, place_id), slots in self.slots.items():
            self.loads[place_id] += slots
            self.totals[job_id] += slots

    def fit(self) -> None:
        """Take away what is too much: of an instance from who has most, of a job where it has most."""
        for at in self.places:
            while self.loads[at.id] > at.room:
                there = [job for job in reversed(self.claims) if self.slots[job.id, at.id]]
                self._add(max(there, key=lambda job: self.totals[job.id]), at, -1)
        for job in self.claims:
            while self.totals[job.id] > job.most:
                self._add(job, max(reversed(self.places), key=lambda at: self.slots[job.id, at.id]), -1)

    def level(self) -> bool:
        """Give slots to those that have least, free ones or of who has two more; was there any?"""
        wanting, is_changed = list(self.claims), False
        while wanting := [job for job in wanting if self.totals[job.id] < job.most]:
            job = min(wanting, key=lambda each: self.totals[each.id])
            if (at := self._free(job)) is not None:
                self._add(job, at, 1)
            elif (taken := self._to_take(job)) is not None:
                self._add(taken[0], taken[1], -1)
                self._add(job, taken[1], 1)
            else:
                wanting.remove(job)
                continue
            is_changed = True
        return is_changed

    def spread(self) -> bool:
        """Bring a job from where it has most to where it has least, in exchange where there is no room."""
        is_changed = False
        for job in self.claims:
            while (step := next(self._spreading(job), None)) is not None:
                source, target, other = step
                self._move(job, source, target)
                if other is not None:
                    self._move(other, target, source)
                is_changed = True
        return is_changed

    def thin_out(self) -> bool:
        """Move slots from crowded instances to others; was there any?"""
        is_changed = False
        while (step := next(self._thinning(), None)) is not None:
            self._move(*step)
            is_changed = True
        return is_changed

    # ------------------------------------------------------------ steps

    def _free(self, job: Claim) -> InstanceCores | None:
        """Where a slot more of the job fits best: where it has least, has been before, most cores are free."""

        def order(at: InstanceCores) -> tuple[int, bool, float]:
            return self.slots[job.id, at.id], (job.id, at.id) not in self.known, self.loads[at.id] / at.cores

        free = [at for at in self.places if self.loads[at.id] < at.room and self._may_grow(job, at)]
        return min(free, key=order, default=None)

    def _to_take(self, job: Claim) -> tuple[Claim, InstanceCores] | None:
        """Whose slot the job may have, and where: of those that have most, where they have most and it has least."""
        richer = [each for each in reversed(self.claims) if self.totals[each.id] >= self.totals[job.id] + 2]
        open_ = [at for at in self.places if self._may_grow(job, at)]
        takable = [(each, at) for each, at in product(richer, open_) if self.slots[each.id, at.id]]
        return max(takable, key=lambda step: self._gain(job, *step), default=None)

    def _gain(self, job: Claim, other: Claim, at: InstanceCores) -> tuple[int, int]:
        return self.totals[other.id], self.slots[other.id, at.id] - self.slots[job.id, at.id]

    def _spreading(self, job: Claim) -> Iterator[tuple[InstanceCores, InstanceCores, Claim | None]]:
        by_slots = sorted(self.places, key=lambda at: self.slots[job.id, at.id])
        for source, target in product(reversed(by_slots), by_slots):
            if self.slots[job.id, source.id] < self.slots[job.id, target.id] + 2 or not self._may_grow(job, target):
                continue
            if self.loads[target.id] < target.room:
                yield source, target, None
                continue
            for other in self.claims:
                is_even = self.slots[other.id, target.id] > self.slots[other.id, source.id]
                if other != job and is_even and self._may_grow(other, source):
                    yield source, target, other

    def _thinning(self) -> Iterator[tuple[Claim, InstanceCores, InstanceCores]]:
        by_load = sorted((at for at in self.places if at.cores), key=lambda at: self.loads[at.id] / at.cores)
        for source, target in product(reversed(by_load), by_load):
            is_better = (self.loads[source.id] - 1) // source.cores > self.loads[target.id] // target.cores
            if not is_better or self.loads[target.id] >= target.room:
                continue
            for job in reversed(self.claims):
                is_even = self.slots[job.id, source.id] > self.slots[job.id, target.id]
                if is_even and self._may_grow(job, target):
                    yield job, source, target

    def _may_grow(self, job: Claim, at: InstanceCores) -> bool:
        return self.slots[job.id, at.id] < slots_on(at.cores, job.on_each, job.most)

    def _move(self, job: Claim, source: InstanceCores, target: InstanceCores) -> None:
        self._add(job, source, -1)
        self._add(job, target, 1)

    def _add(self, job: Claim, at: InstanceCores, slots: int) -> None:
        self.slots[job.id, at.id] += slots
        self.loads[at.id] += slots
        self.totals[job.id] += slots


def slots_on(cores: int, on_each: int | None, most: int) -> int:
    """Slots of a job on an instance with so many cores, where it has that to itself."""
    return min(on_each or cores, most) if cores else 0
