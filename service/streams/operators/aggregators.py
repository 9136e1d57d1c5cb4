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


def installed() -> dict[str, str]:
    """The names of the aggregators that are installed, and where each comes from (`package.module:object`)."""
    return {name: point.value for name, point in sorted(_entry_points().items())}


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
