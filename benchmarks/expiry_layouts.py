"""ADR 9: a window store as one tree with lists of what expires, or as one database a segment of time (KIP-94).

    python -m benchmarks.expiry_layouts [--entries N]

Both hold the same windows, key by key and hour by hour; each figure is the median of five runs in turn.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median

import lmdb

SEGMENTS = 24  # hours that are kept
LIST_KEYS = 1024
LOOKUPS = 2_000
VALUE = bytes(24)


def place(key: int, hour: int) -> bytes:
    """The store key of a window."""
    return b"w%012d" % key + struct.pack(">q", hour)


class OneTree:
    """All windows in one tree; beside it, for each hour, lists of the keys that expire with it."""

    def __init__(self, folder: Path) -> None:
        self.env = lmdb.open(str(folder), map_size=1 << 33, max_dbs=2, sync=False)
        self.entries, self.lists = self.env.open_db(b"entries"), self.env.open_db(b"lists")

    def insert(self, hour: int, keys: list[bytes]) -> None:
        with self.env.begin(write=True) as tx:
            tx.cursor(self.entries).putmulti([(key, VALUE) for key in keys])
            for at in range(0, len(keys), LIST_KEYS):
                name = struct.pack(">qI", hour, at)
                tx.put(name, b"".join(key.ljust(32) for key in keys[at : at + LIST_KEYS]), db=self.lists)

    def fetch(self, key: int) -> int:
        """The windows of a key."""
        with self.env.begin(db=self.entries) as tx:
            return _count(tx.cursor(), key)

    def expire(self, hour: int) -> None:
        with self.env.begin(write=True) as tx:
            cursor = tx.cursor(self.lists)
            while cursor.first() and struct.unpack_from(">q", cursor.key())[0] <= hour:
                packed = cursor.value()
                for at in range(0, len(packed), 32):
                    tx.delete(packed[at : at + 32].rstrip(b" "), db=self.entries)
                cursor.delete()


class Segmented:
    """A database for each hour: what expires goes as a whole, and a key is looked for in each."""

    def __init__(self, folder: Path) -> None:
        self.env = lmdb.open(str(folder), map_size=1 << 33, max_dbs=SEGMENTS + 2, sync=False)
        self.hours: dict[int, lmdb._Database] = {}

    def insert(self, hour: int, keys: list[bytes]) -> None:
        self.hours[hour] = self.env.open_db(b"%d" % hour)
        with self.env.begin(write=True) as tx:
            tx.cursor(self.hours[hour]).putmulti([(key, VALUE) for key in keys])

    def fetch(self, key: int) -> int:
        """The windows of a key."""
        with self.env.begin() as tx:
            return sum(_count(tx.cursor(segment), key) for segment in self.hours.values())

    def expire(self, hour: int) -> None:
        with self.env.begin(write=True) as tx:
            tx.drop(self.hours.pop(hour))


def _count(cursor: lmdb.Cursor, key: int) -> int:
    start, found = b"w%012d" % key, 0
    is_there = cursor.set_range(start)
    while is_there and cursor.key().startswith(start):
        found += 1
        is_there = cursor.next()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_200_000)
    entries = parser.parse_args().entries
    found: dict[str, list[tuple[float, float, float]]] = {"one tree and lists": [], "a database a segment": []}
    for run in range(5):
        for name, kind in (("one tree and lists", OneTree), ("a database a segment", Segmented)):
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(_measured(kind(Path(folder)), entries // SEGMENTS, Random(run)))
    print("| layout | insert, µs an entry | windows of a key, µs | expire an hour, µs an entry |\n|---|---|---|---|")
    for name, runs in found.items():
        print(f"| {name} | " + " | ".join(f"{median(column):.2f}" for column in zip(*runs, strict=True)) + " |")


def _measured(store: OneTree | Segmented, an_hour: int, random: Random) -> tuple[float, float, float]:
    keys = an_hour * 4  # of which each hour has a quarter

    def hours() -> Iterator[tuple[int, list[bytes]]]:
        for hour in range(SEGMENTS):
            yield hour, [place(key, hour) for key in sorted(random.sample(range(keys), an_hour))]

    given = list(hours())
    insert_s = _timed(lambda: [store.insert(hour, of_hour) for hour, of_hour in given])
    fetch_s = _timed(lambda: [store.fetch(random.randrange(keys)) for _ in range(LOOKUPS)])
    expire_s = _timed(lambda: store.expire(0))
    store.env.close()
    return insert_s / an_hour / SEGMENTS * 1e6, fetch_s / LOOKUPS * 1e6, expire_s / an_hour * 1e6


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
