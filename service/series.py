"""Figures over time: a sample is all figures at a moment, a history is samples in order, a series a figure on a grid.

It knows how samples are packed, which ones a history keeps, and what lies between two of them. It refuses to know what
is measured: a figure is a whole number under a name, of an owner. Pure.

A *counter* is kept as its total, so a rate is exact over any range, whatever was sampled in between. One that is lower
than before began anew: there is no rate across that. One that a sample does not have is 0 there: it counts what had not
happened yet. A *level* that a sample does not have, or that is UNKNOWN, is not known there.

A sample is packed against another one, its base: the differences of their values, byte by byte of all, compressed.
What did not change takes nearly nothing, so 50 jobs and 200 streams are 1 to 2 kB a sample. The base stands alone and
says which figures there are; where that changes, and each hour, a new base begins.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

UNKNOWN: Final = -1
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
FINE_KEPT_MS: Final = HOUR_MS + MINUTE_MS
COARSE_KEPT_MS: Final = 25 * HOUR_MS + 2 * MINUTE_MS  # the last hour is compared with the same hour of the day before

Figures = Mapping[str, Mapping[str, int]]  # name → owner → value


class Layout:
    """Which figures a sample has, in the order of its values: names in order, and of each its owners in order."""

    def __init__(self, owners: Mapping[str, Sequence[str]]) -> None:
        self.owners = owners
        self._begins: dict[str, int] = {}
        size = 0
        for name, of in owners.items():
            self._begins[name] = size
            size += len(of)
        self.size = size

    @classmethod
    def of(cls, figures: Figures) -> Layout:
        return cls({name: sorted(figures[name]) for name in sorted(figures) if figures[name]})

    def names(self) -> Iterable[str]:
        return self.owners

    def place(self, name: str, owner: str) -> int | None:
        """Where the value is; None: nowhere."""
        if name not in self.owners:
            return None
        found = self._places[name].get(owner)
        return None if found is None else self._begins[name] + found

    def span(self, name: str) -> slice:
        """Where the values of all owners are."""
        begin = self._begins.get(name, 0)
        return slice(begin, begin + len(self.owners.get(name, ())))

    @cached_property
    def _places(self) -> dict[str, dict[str, int]]:
        return {name: {owner: at for at, owner in enumerate(of)} for name, of in self.owners.items()}


class FigureSample(NamedTuple):
    """All figures `at_ms`; `values` in the order of `layout`."""

    at_ms: int
    layout: Layout
    values: Int64s

    def get(self, name: str, owner: str) -> int | None:
        """One of them; None: it has none, or it is not known."""
        place = self.layout.place(name, owner)
        value = UNKNOWN if place is None else int(self.values[place])
        return None if value == UNKNOWN else value

    def total(self, name: str, owner: str) -> int:
        """A counter: 0 where it is not there."""
        return self.get(name, owner) or 0

    def owners(self, name: str) -> dict[str, int]:
        """A figure of all owners that have it."""
        values = self.values[self.layout.span(name)].tolist()
        return dict(zip(self.layout.owners.get(name, ()), values, strict=True))


def sample_of(at_ms: int, figures: Figures) -> FigureSample:
    """These figures as a sample."""
    layout = Layout.of(figures)
    values = [figures[name][owner] for name, owners in layout.owners.items() for owner in owners]
    return FigureSample(at_ms, layout, np.array(values, np.int64))


# ---------------------------------------------------------------- packed


def pack_base(sample: FigureSample) -> bytes:
    """A sample that stands alone."""
    return zlib.compress(msgspec.msgpack.encode([sample.layout.owners, sample.values.tolist()]))


def unpack_base(at_ms: int, content: bytes) -> FigureSample:
    """The sample that was packed so."""
    owners, values = msgspec.msgpack.decode(zlib.decompress(content))
    return FigureSample(at_ms, Layout(owners), np.array(values, np.int64))


def pack(sample: FigureSample, base: FigureSample) -> bytes:
    """A sample with the layout of `base`, packed against it."""
    with np.errstate(over="ignore"):
        delta = sample.values - base.values
    return zlib.compress(delta.view(np.uint8).reshape(-1, 8).T.tobytes())


def unpack(at_ms: int, content: bytes, base: FigureSample) -> FigureSample:
    """The sample that was packed so."""
    delta = np.frombuffer(zlib.decompress(content), np.uint8).reshape(8, -1).T.copy().view(np.int64).ravel()
    with np.errstate(over="ignore"):
        return FigureSample(at_ms, base.layout, base.values + delta)


# ---------------------------------------------------------------- from one look to the next


def period_of(at_ms: int, every_ms: int) -> int:
    """The period of sampling that a moment lies in, by its begin."""
    return at_ms - at_ms % every_ms


def is_first_of(period_ms: int, last_ms: int | None, span_ms: int) -> bool:
    """Whether a period lies in another span (minute, hour) than the one before it."""
    return last_ms is None or period_ms // span_ms != last_ms // span_ms


# ---------------------------------------------------------------- a history


class Grid(NamedTuple):
    """Moments `from_ms + step_ms`, … up to `until_ms`, all whole steps."""

    from_ms: int
    until_ms: int
    step_ms: int

    @classmethod
    def over(cls, from_ms: int, until_ms: int, step_ms: int) -> Grid:
        """That of a range, whose begin goes down to a whole step."""
        return cls(from_ms - from_ms % step_ms, until_ms - until_ms % step_ms, step_ms)

    @property
    def edges(self) -> Int64s:
        """Its begin, and its moments."""
        return np.arange(self.from_ms, self.until_ms + 1, self.step_ms, dtype=np.int64)

    @property
    def moments(self) -> list[int]:
        """Its moments."""
        found: list[int] = self.edges[1:].tolist()
        return found


@dataclass(frozen=True)
class History:
    """Samples in order, each with the begin of its period."""

    periods_ms: Sequence[int]
    samples: Sequence[FigureSample]

    def since(self, moment_ms: int) -> History:
        """The same from the last sample on that is of that moment or before it."""
        begin = max(0, int(np.searchsorted(np.array(self.periods_ms, np.int64), moment_ms, "right")) - 1)
        return History(self.periods_ms[begin:], self.samples[begin:])

    def levels(self, name: str, owner: str, grid: Grid) -> list[int | None]:
        """A level at each moment of a grid: of the last sample since the moment before."""
        return [None if sample is None else sample.get(name, owner) for sample in self._on(grid)[1:]]

    def rates(self, name: str, owner: str, grid: Grid) -> list[float | None]:
        """What a counter rose by, a second, from moment to moment of a grid; None where nobody looked, or where it
        began anew.
        """
        found: list[float | None] = []
        for before, after in pairwise(self._on(grid)):
            if before is None or after is None:
                found.append(None)
                continue
            rise = after.total(name, owner) - before.total(name, owner)
            found.append(None if rise < 0 else _a_second(rise, before, after))
        return found

    def summed_rates(self, name: str, grid: Grid) -> list[float | None]:
        """The same of all owners together. One that began anew, or is gone, counts for nothing at that moment."""
        found: list[float | None] = []
        for before, after in pairwise(self._on(grid)):
            if before is None or after is None:
                found.append(None)
            else:
                found.append(_a_second(summed_rise(before, after, name), before, after))
        return found

    def summed_levels(self, name: str, grid: Grid) -> list[int | None]:
        """A level of all owners together, of those of which it is known."""
        on = self._on(grid)[1:]
        return [None if sample is None else _known_sum(sample.values[sample.layout.span(name)]) for sample in on]

    def rise(self, name: str, owner: str) -> int:
        """What a counter rose by over the whole history; where it began anew it counts from 0 again."""
        values = [sample.total(name, owner) for sample in self.samples]
        return sum(later - before if later >= before else later for before, later in pairwise(values))

    def names(self, prefix: str, owner: str) -> list[str]:
        """The figures of an owner whose names begin so, in order."""
        layouts = {id(sample.layout): sample.layout for sample in self.samples}.values()
        found = {name for layout in layouts for name in layout.names() if name.startswith(prefix)}
        return sorted(name for name in found if any(layout.place(name, owner) is not None for layout in layouts))

    def _on(self, grid: Grid) -> list[FigureSample | None]:
        """At each edge of a grid the last sample since the edge before."""
        edges = grid.edges
        places = np.searchsorted(np.array(self.periods_ms, np.int64), edges, "right") - 1
        found: list[FigureSample | None] = []
        for edge, place in zip(edges.tolist(), places.tolist(), strict=True):
            is_near = place >= 0 and self.periods_ms[place] > edge - grid.step_ms
            found.append(self.samples[place] if is_near else None)
        return found


def rises(before: FigureSample, after: FigureSample, name: str) -> dict[str, int]:
    """What a counter rose by between two samples, of each owner that has it; 0 where it began anew."""
    earlier = before.owners(name) if name in before.layout.owners else {}
    return {owner: max(0, value - earlier.get(owner, 0)) for owner, value in after.owners(name).items()}


def summed_rise(before: FigureSample, after: FigureSample, name: str) -> int:
    """The same of all owners together."""
    if before.layout is not after.layout:
        return sum(rises(before, after, name).values())
    span = after.layout.span(name)
    return int(np.maximum(after.values[span] - before.values[span], 0).sum())


def _a_second(rise: int, before: FigureSample, after: FigureSample) -> float:
    return rise * 1000 / (after.at_ms - before.at_ms)


def _known_sum(values: Int64s) -> int | None:
    known: Any = values[values != UNKNOWN]
    return int(known.sum()) if len(known) else None
