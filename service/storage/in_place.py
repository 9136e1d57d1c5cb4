"""Replicas of other processes on this machine, read where they lie (LMDB allows it).

It knows how to find the best one of a store's partition and when to look again; it refuses to write, to begin a
replica, and to keep one open that has been deleted. It belongs to one thread: readers live as long as one answer.

A replica that was restored anew has another folder; the former one may lie there for a while. Every one that can be
trusted is a state that the store once had, so the one that is furthest is the best, whoever has it open, or nobody.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import lmdb

from service.storage.environments import MAP_BYTES, META_BYTES, boot_id, bytes_of_all_pages
from service.storage.node import node_id_of
from service.storage.replica import FORMAT, IDENTITY, POSITION, ReplicaView, replica_path
from service.streams.errors import ReplicaDamaged

WHOLE_WITHIN_S = 0.002  # a writer takes microseconds; whoever asks stands still for it
LOOK_AGAIN_S = 0.1  # how long a replica that was begun, deleted or found damaged may go unseen
LIST_AGAIN_S = 1.0  # and a node that came to be without a change of the folder it is in
UNUSED_S = 300.0  # after which a replica that nobody asks for is closed
_POSITION = struct.Struct("<q")
MAX_KNOWN = 256  # partitions whose replicas are kept open: each takes files and a map


class ReplicaMissing(Exception):
    """No replica of this partition of the store can be read here."""


@dataclass(slots=True)
class _Length:
    """The length of a data.mdb: proven before LMDB touches a page, for beyond the file's end that is a SIGBUS."""

    folder: Path
    data: int  # a handle of the file
    whole_bytes: int = META_BYTES  # as of transaction `whole_at`
    whole_at: int = -1

    @property
    def is_whole(self) -> bool:
        return os.lseek(self.data, 0, os.SEEK_END) >= self.whole_bytes

    def prove(self) -> None:
        """Raises ReplicaDamaged where the file is shorter than it was; call it before a transaction begins."""
        if os.lseek(self.data, 0, os.SEEK_END) < self.whole_bytes:
            raise ReplicaDamaged(str(self.folder), "its file was cut short")

    def prove_as_of(self, env: lmdb.Environment, transaction: int) -> None:
        """Raises ReplicaDamaged where a page is missing that the transaction may read, unless it was proven so already.

        The writer makes its file whole right after each commit (`environments`): between the two it is waited for.
        """
        if transaction == self.whole_at:
            return
        self.whole_bytes, self.whole_at = bytes_of_all_pages(env), transaction
        until_s = 0.0
        while not self.is_whole:
            until_s = until_s or time.monotonic() + WHOLE_WITHIN_S
            if time.monotonic() > until_s:
                self.prove()
            time.sleep(WHOLE_WITHIN_S / 20)


@dataclass(slots=True)
class _Opened:
    """One life of a replica, open to be read."""

    folder: Path
    file_id: tuple[int, int]
    length: _Length
    env: lmdb.Environment
    entries: lmdb._Database
    meta: lmdb._Database
    node_id: str

    def view(self) -> _View:
        """A consistent view, while its context lasts. Raises ReplicaDamaged."""
        return _View(self)

    def close(self) -> None:
        self.env.close()
        os.close(self.length.data)

    @property
    def position(self) -> int:
        with self.view() as view:
            return view.position

    @property
    def size(self) -> tuple[int, int]:
        """Entries, and bytes on disk."""
        with self.env.begin(db=self.entries) as tx:
            entries = int(tx.stat(self.entries)["entries"])
        return entries, (self.folder / "data.mdb").stat().st_blocks * 512


class _View(ReplicaView):
    """A view of one life of a replica, from its `with` on to the end of that. A class, for the hot route: contexts that
    are generators take twice the time.
    """

    __slots__ = ("_life", "node_id")

    def __init__(self, life: _Opened) -> None:
        self._life, self.node_id = life, life.node_id

    def __enter__(self) -> Self:
        life = self._life
        life.length.prove()
        transaction = life.env.begin(db=life.entries)
        try:
            life.length.prove_as_of(life.env, transaction.id())
            packed = transaction.get(POSITION, db=life.meta)
        except BaseException:
            transaction.abort()
            raise
        super().__init__(transaction, 0 if packed is None else _POSITION.unpack(packed)[0])
        return self

    def __exit__(self, *_: object) -> None:
        self._transaction.abort()


@dataclass(slots=True)
class _Known:
    """What is known of a partition of a store: the lives that are open here, and when they were looked for."""

    lives: dict[Path, _Opened]
    best: _Opened | None = None
    looked_s: float = 0.0

    def close(self) -> None:
        for life in self.lives.values():
            life.close()


class ReplicasInPlace:
    """The one registry of a process: an environment is opened once.

    `root` is a node, or has nodes in it: several of one machine, which one API serves from.
    """

    def __init__(self, root: Path) -> None:
        self._nodes = _Nodes(root)
        self._known: dict[tuple[str, int, str], _Known] = {}
        self._tidied_s = time.monotonic()

    def reader(self, store_id: str, partition: int, lineage: str) -> _View:
        """A context of a consistent view of a partition; `node_id` says whose replica it is.

        Raises ReplicaMissing, ReplicaDamaged.
        """
        return self._best(store_id, partition, lineage).view()

    @contextmanager
    def glance(self, store_id: str, partition: int, lineage: str) -> Iterator[tuple[ReplicaView, tuple[int, int]]]:
        """For who looks at everything now and again: a view of a partition, its entries (those of indexes and expired
        ones included) and its bytes on disk. Raises ReplicaMissing, ReplicaDamaged.

        One that is not open is closed again: what others look into is not closed in its favour.
        """
        passing = _Known({})
        try:
            if (store_id, partition, lineage) in self._known:
                best = self._best(store_id, partition, lineage)
            else:
                self._look(passing, store_id, partition, lineage)
                best = _best_of(passing, store_id, partition)
            with best.view() as view:
                yield view, best.size
        finally:
            passing.close()

    def close(self) -> None:
        """Close all."""
        for known in self._known.values():
            known.close()
        self._known.clear()

    def _best(self, store_id: str, partition: int, lineage: str) -> _Opened:
        name = (store_id, partition, lineage)
        known, now_s = self._known.get(name), time.monotonic()
        if known is not None and known.best is not None and now_s - known.looked_s <= LOOK_AGAIN_S:
            return known.best
        known = self._known[name] = self._known.pop(name, _Known({}))
        known.looked_s = now_s
        self._look(known, store_id, partition, lineage)
        self._close_unused(now_s)
        return _best_of(known, store_id, partition)

    def _close_unused(self, now_s: float) -> None:
        while len(self._known) > MAX_KNOWN:
            self._known.pop(next(iter(self._known))).close()  # the one that was looked for longest ago
        if now_s - self._tidied_s > UNUSED_S:
            self._tidied_s = now_s
            for key in [key for key, known in self._known.items() if now_s - known.looked_s > UNUSED_S]:
                self._known.pop(key).close()

    def _look(self, known: _Known, store_id: str, partition: int, lineage: str) -> None:
        """Open what is new, close what is gone, choose the furthest."""
        there = {
            folder: (file_id, node_id)
            for node, node_id in self._nodes.found().items()
            for folder, file_id in _lives(replica_path(node, store_id, partition))
        }
        for folder, life in list(known.lives.items()):
            is_there = there.get(folder) == (life.file_id, life.node_id)
            if not is_there or not life.length.is_whole or not _is_trusted(folder):
                known.lives.pop(folder).close()
        for folder, (file_id, node_id) in there.items():
            if folder not in known.lives and _is_trusted(folder):
                opened = _open(folder, file_id, node_id, store_id, lineage)
                if opened is not None:
                    known.lives[folder] = opened
        known.best = max(known.lives.values(), key=lambda life: life.position, default=None)


def _best_of(known: _Known, store_id: str, partition: int) -> _Opened:
    if known.best is None:
        raise ReplicaMissing(f"{store_id}/{partition}")
    return known.best


class _Nodes:
    """The nodes at `root` and right below it, listed anew now and again: most of what lies there are stores."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._found: dict[Path, str] = {}
        self._changed_ns: int | None = None
        self._listed_s = 0.0

    def found(self) -> dict[Path, str]:
        """Folder → id of the node."""
        now_s, changed_ns = time.monotonic(), _changed_ns(self._root)
        if changed_ns != self._changed_ns or now_s - self._listed_s > LIST_AGAIN_S:
            self._changed_ns, self._listed_s = changed_ns, now_s
            folders = [] if changed_ns is None else [self._root, *self._root.iterdir()]
            ids = {folder: node_id_of(folder) for folder in folders}
            self._found = {folder: node_id for folder, node_id in ids.items() if node_id is not None}
        return self._found


def _changed_ns(folder: Path) -> int | None:
    """When something was last made or removed in it; None: it is not there."""
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _lives(base: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Every life of a replica, with the id of its file."""
    try:
        folders = list(base.iterdir())
    except FileNotFoundError:
        return
    for folder in folders:
        try:
            found = (folder / "data.mdb").stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield folder, (found.st_dev, found.st_ino)


def _is_trusted(folder: Path) -> bool:
    """Closed cleanly, or open since this machine was started; another mark says damage, or a crash of the machine."""
    try:
        return (folder / "open").read_text() == boot_id()
    except FileNotFoundError:
        return True


def lineage_of(folder: Path) -> str | None:
    """The lineage of a life that nobody has open; None where it can not be read."""
    with ExitStack() as opened, suppress(lmdb.Error, FileNotFoundError, ReplicaDamaged, json.JSONDecodeError):
        length = _Length(folder, os.open(folder / "data.mdb", os.O_RDONLY | os.O_CLOEXEC))
        opened.callback(os.close, length.data)
        length.prove()
        env = lmdb.open(str(folder), map_size=MAP_BYTES, max_dbs=3, readonly=True, create=False, readahead=False)
        opened.callback(env.close)
        length.prove_as_of(env, env.info()["last_txnid"])
        with env.begin(db=env.open_db(b"meta", create=False)) as tx:
            lineage: str | None = json.loads(tx.get(IDENTITY) or b"{}").get("lineage")
            return lineage
    return None


def _open(folder: Path, file_id: tuple[int, int], node_id: str, store_id: str, lineage: str) -> _Opened | None:
    """None: it is of another lineage, cut short, or not made yet."""
    with ExitStack() as opened, suppress(lmdb.Error, FileNotFoundError, ReplicaDamaged):
        length = _Length(folder, os.open(folder / "data.mdb", os.O_RDONLY | os.O_CLOEXEC))
        opened.callback(os.close, length.data)
        length.prove()
        env = lmdb.open(str(folder), map_size=MAP_BYTES, max_dbs=3, readonly=True, create=False, readahead=False)
        opened.callback(env.close)
        length.prove_as_of(env, env.info()["last_txnid"])
        entries, meta = (env.open_db(name, create=False) for name in (b"entries", b"meta"))
        with env.begin(db=meta) as tx:
            identity = json.loads(tx.get(IDENTITY) or b"{}")
        if identity == {"format": FORMAT, "store": store_id, "lineage": lineage}:
            opened.pop_all()
            return _Opened(folder, file_id, length, env, entries, meta, node_id)
    return None
