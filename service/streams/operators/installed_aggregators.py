"""Aggregators that are installed beside Millrace: Python entry points of the group `millrace.aggregators`.

It knows how to find one by its name; it refuses to take code from anywhere else, over HTTP least of all. An entry
point names an object (or a class that makes one without arguments) with the three parts of KIP-94:

    initializer() -> aggregate                      what an empty group holds
    aggregator(key, value, aggregate) -> aggregate  with one more record
    merger(key, one, other) -> aggregate            of two sessions that became one; may be left out elsewhere

`key` is text, `value` decoded JSON. An aggregate must be JSON too: it is stored, and comes out, as that. All three
must be functions of their arguments alone, or a replay would not give the same bytes; they may change the aggregate
that they are given.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol, cast

GROUP: Final = "millrace.aggregators"


class Aggregator(Protocol):
    """What an entry point provides."""

    def initializer(self) -> Any: ...

    def aggregator(self, key: str, value: Any, aggregate: Any) -> Any: ...

    def merger(self, key: str, one: Any, other: Any) -> Any: ...


class NotAnAggregator(Exception):
    """The entry point can not be loaded, or lacks a part; the message says which."""


@dataclass(frozen=True, slots=True)
class Installed:
    """An aggregator as it is listed: where it comes from (`package.module:object`, and the distribution with its
    version), its docstring, whether it merges sessions, and what is wrong with it if it can not be used.
    """

    name: str
    origin: str
    package: str | None
    version: str | None
    doc: str
    has_merger: bool
    problem: str | None


def installed() -> dict[str, str]:
    """The names of the aggregators that are installed, and where each comes from (`package.module:object`)."""
    return {name: point.value for name, point in sorted(_entry_points().items())}


def described() -> list[Installed]:
    """All that are installed, by name; each is loaded for it."""
    return [_described(name, point) for name, point in sorted(_entry_points().items())]


def _described(name: str, point: EntryPoint) -> Installed:
    doc, merges, problem = "", False, None
    try:
        found = aggregator_named(name)
        doc, merges = inspect.getdoc(found) or "", has_merger(found)
    except NotAnAggregator as error:
        problem = str(error)
    package, version = (None, None) if point.dist is None else (point.dist.name, point.dist.version)
    return Installed(name, point.value, package, version, doc, merges, problem)


@cache
def aggregator_named(name: str) -> Aggregator:
    """The aggregator of that name. Raises KeyError and NotAnAggregator."""
    point = _entry_points()[name]
    try:
        loaded = point.load()
        found = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise NotAnAggregator(f"{point.value} can not be loaded: {type(error).__name__}: {error}") from error
    missing = [part for part in ("initializer", "aggregator") if not callable(getattr(found, part, None))]
    if missing:
        raise NotAnAggregator(f"{point.value} has no {' and no '.join(missing)}")
    return cast(Aggregator, found)


def has_merger(aggregator: Aggregator) -> bool:
    """Whether it can be used over sessions."""
    return callable(getattr(aggregator, "merger", None))


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
