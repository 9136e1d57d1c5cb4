"""Under which names people see what operators measure: readings become samples.

It knows names, their kinds and meanings, and makes averages of sums; each operator declares which of these it has. It
refuses to know where readings come from (`measures`, the catalog) and how samples are written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

Samples = dict[str, float]  # by name; a count or a sum is a whole number

TOTAL: Final = "_total"


class SampleFamily(NamedTuple):
    """Samples that belong together: `<name>_total` of a counter, `<name>_count` and `<name>_sum` of a summary."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    meaning: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        endings = {"counter": (TOTAL,), "gauge": ("",), "summary": ("_count", "_sum")}
        return tuple(self.name + ending for ending in endings[self.kind])


class Measure(Protocol):
    """Something that an operator measures: what of its readings, and under which names."""

    @property
    def families(self) -> tuple[SampleFamily, ...]:
        """The names, in the order in which they are shown."""

    def samples(self, reading: Mapping[str, Any], dropped: Mapping[str, int], store_type: str) -> Samples:
        """By name, of a reading and of records dropped by reason. What has no value yet is left out, but for counters
        and current values.
        """


@dataclass(frozen=True, slots=True)
class Spread:
    """Count, sum, average and one extreme of the values under `reading`."""

    reading: str
    name: str
    meaning: str
    average: str
    extreme: Literal["min", "max"]
    extreme_meaning: str

    @property
    def families(self) -> tuple[SampleFamily, ...]:
        least_or_most = SampleFamily(f"{self.name}_{self.extreme}", "gauge", self.extreme_meaning)
        average = SampleFamily(f"{self.name}_avg", "gauge", self.average)
        first, second = (least_or_most, average) if self.extreme == "min" else (average, least_or_most)
        return SampleFamily(self.name, "summary", self.meaning), first, second

    def samples(self, reading: Mapping[str, Any], dropped: Mapping[str, int], store_type: str) -> Samples:
        return _spread_samples(self.name, self.name, reading.get(self.reading), self.extreme)


@dataclass(frozen=True, slots=True)
class Level:
    """How much there is of something now, and over its changes: their average and the most."""

    reading: str
    name: str
    meaning: str
    changes: str
    average: str
    most: str

    @property
    def families(self) -> tuple[SampleFamily, ...]:
        return (
            SampleFamily(self.name, "gauge", self.meaning),
            SampleFamily(f"{self.name}_samples", "summary", self.changes),
            SampleFamily(f"{self.name}_avg", "gauge", self.average),
            SampleFamily(f"{self.name}_max", "gauge", self.most),
        )

    def samples(self, reading: Mapping[str, Any], dropped: Mapping[str, int], store_type: str) -> Samples:
        found = reading.get(self.reading)
        if not found:
            return {self.name: 0}
        return {self.name: found["last"], **_spread_samples(self.name, f"{self.name}_samples", found, "max")}


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number under `reading` that adds up."""

    reading: str
    name: str
    meaning: str

    @property
    def families(self) -> tuple[SampleFamily, ...]:
        return (SampleFamily(self.name, "counter", self.meaning),)

    def samples(self, reading: Mapping[str, Any], dropped: Mapping[str, int], store_type: str) -> Samples:
        return {self.name + TOTAL: reading.get(self.reading, 0)}


@dataclass(frozen=True, slots=True)
class Drops:
    """Records that were dropped for one of the `reasons`, by operators whose stores have windows."""

    reasons: tuple[str, ...]
    name: str
    meaning: str

    @property
    def families(self) -> tuple[SampleFamily, ...]:
        return (SampleFamily(self.name, "counter", self.meaning),)

    def samples(self, reading: Mapping[str, Any], dropped: Mapping[str, int], store_type: str) -> Samples:
        if store_type == "key_value":
            return {}
        return {self.name + TOTAL: sum(dropped.get(reason, 0) for reason in self.reasons)}


LATENESS: Final = Spread(
    reading="lateness_ms",
    name="record_lateness_ms",
    meaning="Stream time of the operator less the timestamp of each record that it took",
    average="How late records were, on average",
    extreme="max",
    extreme_meaning="How late the latest record was",
)
WINDOW_DROPS: Final = (
    Drops(("late", "closed_idle"), "late_record_drop", "Records dropped for a window that had closed, once per window"),
    Drops(("expired",), "expired_window_record_drop", "Records dropped for a window that the store had expired"),
    Drops(
        ("before_version",),
        "before_version_record_drop",
        "Records dropped for a window that begins before the store did, once per window",
    ),
)


def _spread_samples(name: str, summary: str, reading: Mapping[str, Any] | None, extreme: str) -> Samples:
    if not reading:
        return {}
    return {
        f"{summary}_count": reading["count"],
        f"{summary}_sum": reading["sum"],
        f"{name}_avg": reading["sum"] / reading["count"],
        f"{name}_{extreme}": reading[extreme],
    }
