"""What an entry takes in the Redis view: run with `python -m benchmarks.view_memory`, which prints a Markdown table.

Operators run by hand over keys of ten bytes, their changelogs are replayed into a Redis of its own, and its
`used_memory` is divided by what a lookup finds. Nothing is estimated; fragmentation of the process comes on top.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from service.storage import view
from tests.services import redis_server
from tests.stores import Engine, Job, at

KEYS = 20_000
COUNT: dict[str, Any] = {"aggregates": {"n": {"fn": "count"}, "v": {"fn": "sum", "of": "(value->>'v')::bigint"}}}
DAY_MS = 24 * 3_600_000


@dataclass(frozen=True)
class Shape:
    """An operator, and at which times each key comes, one batch a time."""

    name: str
    operator: dict[str, Any]
    times: tuple[int, ...]


def _aggregate(**window: Any) -> dict[str, Any]:
    found = {"op": "aggregate", "name": "a", **COUNT}
    return found if not window else {**found, "window": {"retention_ms": DAY_MS, **window}}


SHAPES = [
    Shape("deduplicate_by_key: a key", {"op": "deduplicate_by_key", "name": "a", "interval_ms": DAY_MS}, (0,)),
    Shape("aggregate without window: a key", _aggregate(), (0,)),
    Shape("session, one a key", _aggregate(type="session", gap_ms=10), (0,)),
    Shape("session, ten a key", _aggregate(type="session", gap_ms=10), tuple(range(0, 1_000, 100))),
    Shape("tumbling window, one a key", _aggregate(type="tumbling", size_ms=100), (0,)),
    Shape("tumbling window, ten a key", _aggregate(type="tumbling", size_ms=100), tuple(range(0, 1_000, 100))),
]


def bytes_of(shape: Shape, client: redis.Redis, folder: Path) -> tuple[float, int]:
    """Bytes an entry that a lookup finds, and how many there are."""
    client.flushall()
    before = client.info("memory")["used_memory"]
    engine = Engine(None, client)
    with engine.opened:
        job = Job(engine, folder, [shape.operator])
        for time in shape.times:
            job.feed([record for n in range(KEYS) for record in at(f"user-{n:05}", time)])
        found = sum(len(page.items) for page in job.stores["x-a"].pages(limit=10_000))
    return (client.info("memory")["used_memory"] - before) / found, found


def rows() -> Iterator[tuple[str, float, int]]:
    """Each shape, its bytes an entry, its entries."""
    with redis_server() as url, view.connect(url) as client, tempfile.TemporaryDirectory() as folder:
        for i, shape in enumerate(SHAPES):
            yield shape.name, *bytes_of(shape, client, Path(folder) / str(i))


def main() -> int:
    print("| an entry of | bytes in Redis | measured over |\n|---|---|---|")
    for name, size, count in rows():
        print(f"| {name} | {size:.0f} | {count:,} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
