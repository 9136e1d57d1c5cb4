"""The janitor of a node: replicas that nobody will open again are deleted where they lie.

It knows which folders are lives of replicas, who of a node's processes sweeps, and how often. It refuses to know which
stores there are: it asks.

    at once         what is of a store that is not there any more; what an earlier build left in folders of instances
    after a while   what nobody has written to: former lives, copies that moved away, what another catalog left here

Whatever a process has open stays.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from service.storage import environments
from service.storage.in_place import lineage_of
from service.storage.node import node_id_of

EVERY_S: Final = 3600.0
LOOK_EVERY_S: Final = 60.0  # how often each process looks whether a sweep is due
SLICE_S: Final = 0.2  # of a turn of a slot
UNUSED_S: Final = 7 * 86_400.0
ASKED_AT_ONCE: Final = 1000

AskStores = Callable[[list[str]], Collection[str]]  # store ids that were found -> those that are stores still


class Janitor:
    """The sweeps of one node by one process; `lineage`: of the catalog that is asked."""

    def __init__(self, folder: Path, lineage: str, ask: AskStores) -> None:
        self._folder, self._lineage, self._ask = folder, lineage, ask
        self._not_before_s = 0.0

    def look(self) -> int:
        """Sweep for a moment, if it is due and nobody else does; how many replicas were deleted.

        What is asked may raise. A sweep that is not over goes on with the next look.
        """
        now_s = time.monotonic()
        if now_s < self._not_before_s:
            return 0
        self._not_before_s = now_s + LOOK_EVERY_S
        lock = _lock(self._folder / "janitor.lock")
        if lock is None:
            return 0
        try:
            if time.time() - os.fstat(lock).st_mtime < EVERY_S:
                return 0
            swept = self._sweep(now_s + SLICE_S)
            if time.monotonic() < now_s + SLICE_S:
                os.utime(lock)
            else:
                self._not_before_s = now_s
            return swept
        finally:
            os.close(lock)

    def _sweep(self, until_s: float) -> int:
        """Sweep until that moment (monotonic)."""
        swept = 0
        for life in list(_former_lives(self._folder)):
            swept += _remove(life, lambda: True)
            if time.monotonic() >= until_s:
                return swept
        lives = list(_lives(self._folder))
        there = self._those_that_are({_store_of(life) for life in lives})
        for life in lives:
            if _is_unused(life):
                swept += _remove(life, lambda: True)
            elif _store_of(life) not in there:
                swept += _remove(life, partial(self._is_ours, life))
            if time.monotonic() >= until_s:
                return swept
        return swept

    def _those_that_are(self, found: Collection[str]) -> set[str]:
        stores, there = sorted(found), set[str]()
        for first in range(0, len(stores), ASKED_AT_ONCE):
            there.update(self._ask(stores[first : first + ASKED_AT_ONCE]))
        return there

    def _is_ours(self, life: Path) -> bool:
        """Whether it is of the catalog that knows all of its stores, or of nobody; what is of another one may be in use
        there.
        """
        return lineage_of(life) in (self._lineage, None)


def _lock(file: Path) -> int | None:
    """The lock of the one who sweeps, whose file says when that was last over; None: somebody has it."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    if os.fstat(lock).st_size == 0:
        os.write(lock, b"the time of this file is that of the last sweep\n")
        os.utime(lock, (0, 0))
    return lock


def _lives(node: Path) -> Iterator[Path]:
    """`<node>/<store>/<partition>/<life>`."""
    return (lock.parent for lock in node.glob("*/*/*/lock") if _is_life(lock.parent))


def _former_lives(node: Path) -> Iterator[Path]:
    """`<node>/<instance>/<store>/<partition>/<life>`; a node in this one is no instance."""
    for lock in node.glob("*/*/*/*/lock"):
        if _is_life(lock.parent) and node_id_of(lock.parents[3]) is None:
            yield lock.parent


def _is_life(folder: Path) -> bool:
    return folder.name.isdigit() and folder.parent.name.isdigit()


def _store_of(life: Path) -> str:
    return life.parents[1].name


def _is_unused(life: Path) -> bool:
    try:
        return (life / "data.mdb").stat().st_mtime < time.time() - UNUSED_S
    except FileNotFoundError:
        return False  # it has just been begun


def _remove(life: Path, is_over: Callable[[], bool]) -> bool:
    """Delete a life, and the folders above it that are empty then."""
    if not environments.remove_life(life, is_over):
        return False
    with suppress(OSError):  # something else is in there
        life.parent.rmdir()
        life.parents[1].rmdir()
    return True
