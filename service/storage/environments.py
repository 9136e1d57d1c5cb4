"""Which LMDB file may be trusted, and who in the world has it open.

It knows locks, lineages of a file across crashes, and LMDB's own rules: a process opens an environment once,
after it forked, through the one registry here. It refuses to know what is stored.

    <base>/<restore number>/   one life of a replica; a later life has a higher number
        lock                   flock'ed while a process has this life open; another process starts a life of its own
        open                   the machine's boot id, while it is open: pages are not synced at each write, so after a
                               machine restart a file that was not closed is worth nothing. Or: that it is not to last
        data.mdb, lock.mdb     LMDB

LMDB reads through a map: to touch a page that a truncated file lacks is a SIGBUS, which no process survives. So the
file's length is proven before each transaction (0.6 us; ADR 10), and made whole after each that writes, for LMDB itself
never writes pages that a transaction took and gave back.

Slots of one node are several processes that share its folder and hand tasks over to each other: so the lock is on each
replica, not on the folder (`node`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import lmdb

from service.streams.errors import ReplicaDamaged

MAP_BYTES = 64 << 30  # address space of a sparse map, not disk
_FOR_NOBODY_ELSE = "not lasting"  # in place of a boot id: who finds it begins a new life
META_BYTES = 2 * os.sysconf("SC_PAGE_SIZE")  # LMDB's two meta pages, without which it can not be asked anything
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.PanicError,
    lmdb.IncompatibleError,
)


@dataclass(slots=True)
class Environment:
    """One open LMDB environment with the three databases of a replica; shared inside the process."""

    base: Path
    folder: Path
    lock: int
    data: int  # a handle of data.mdb
    whole_bytes: int  # less than that, and pages are missing
    pid: int
    env: lmdb.Environment
    entries: lmdb._Database
    expiry: lmdb._Database
    meta: lmdb._Database
    is_lasting: bool
    holders: int = 1
    is_open: bool = True

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[lmdb.Transaction]:
        """A transaction on `entries`. Raises ReplicaDamaged, after which the next open starts a new life."""
        if self.pid != os.getpid():
            raise RuntimeError(f"Replica {self.folder} was opened before this process forked")
        if self.is_open:  # else LMDB says that it is closed
            self.prove()
        try:
            with self.env.begin(write=write, db=self.entries) as transaction:
                yield transaction
        except _DAMAGE as error:
            write_durably(self.folder / "open", "damaged")
            raise ReplicaDamaged(str(self.folder), str(error)) from error
        if write:
            self.whole_bytes = _fill_up(self.env, self.data)

    def prove(self) -> None:
        """Raises ReplicaDamaged where the file was cut short, after which the next open starts a new life."""
        if not self.is_whole:
            write_durably(self.folder / "open", "damaged")
            raise ReplicaDamaged(str(self.folder), "its file was cut short")

    @property
    def is_whole(self) -> bool:
        return os.lseek(self.data, 0, os.SEEK_END) >= self.whole_bytes


IsWanted = Callable[[Environment], bool]

_held: dict[Path, Environment] = {}
_inherited: list[Environment] = []  # of the process that forked this one: never used, never closed
_guard = threading.RLock()


def acquire(base: Path, is_wanted: IsWanted, *, is_lasting: bool = True) -> Environment:
    """The environment at `base`, shared where this process has it open already.

    A life of it that can not be trusted, or that `is_wanted` turns down, is deleted and a new one begun. One that is
    not `is_lasting` is worth nothing to who comes later: nothing of it is synced.
    """
    with _guard:
        _set_inherited_aside()
        held = _held.get(base)
        if held is not None:
            if _is_trusted(held, is_wanted):
                held.holders += 1
                return held
            _close(held)
        environment = _reopen(base, is_wanted) if is_lasting else None
        environment = environment or _create(base, is_lasting=is_lasting)
        _held[base] = environment
        return environment


def is_open_elsewhere(base: Path) -> bool:
    """Whether another process has the newest life at `base` open: a former owner may be about to give it up."""
    with _guard:
        _set_inherited_aside()
        lives = _lives(base)
        if base in _held or not lives:
            return False
        lock = _lock(lives[0])
        if lock is not None:
            os.close(lock)
        return lock is None


def release(environment: Environment) -> None:
    """Give it back; the last holder closes it cleanly, so that it outlives a machine restart if it is to last."""
    if not environment.is_open or environment.pid != os.getpid():
        return
    if environment.is_lasting and environment.is_whole:  # LMDB looks at its pages to sync them
        environment.env.sync(True)  # may take seconds, so not under the guard
    with _guard:
        environment.holders -= 1
        if environment.is_open and environment.holders == 0:
            if environment.is_lasting and environment.is_whole:
                environment.env.sync(True)
                _note_clean_close(environment.folder)
            _close(environment)


def remove_life(folder: Path, is_over: Callable[[], bool]) -> bool:
    """Delete a life that nobody has open, if it `is_over`; whether that was so.

    To be asked only of what is over most likely: whoever opens it meanwhile begins a new life.
    """
    lock = _lock(folder)
    if lock is None:
        return False
    if is_over():
        _remove(folder, lock)
        return True
    os.close(lock)
    return False


@cache
def boot_id() -> str:
    """The same as long as the machine is up; where that is not known, never the same twice."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return f"unknown-{uuid.uuid4()}"


def _set_inherited_aside() -> None:
    for environment in [held for held in _held.values() if held.pid != os.getpid()]:
        del _held[environment.base]
        _inherited.append(environment)
        os.close(environment.lock)  # or the parent's lock would live as long as this process
        os.close(environment.data)


def _reopen(base: Path, is_wanted: IsWanted) -> Environment | None:
    """The newest life that is free and can be trusted; all other free ones are deleted."""
    chosen: Environment | None = None
    for folder in _lives(base):
        lock = _lock(folder)
        if lock is None:
            continue
        if chosen is None:
            chosen = _open_trusted(base, folder, lock, is_wanted)
            if chosen is not None:
                continue
        _remove(folder, lock)
    return chosen


def _open_trusted(base: Path, folder: Path, lock: int, is_wanted: IsWanted) -> Environment | None:
    marker = _read(folder / "open")
    if marker not in (None, boot_id()):
        return None
    try:
        environment = _open(base, folder, lock, is_lasting=True)
    except (lmdb.Error, ReplicaDamaged):
        return None
    if _is_trusted(environment, is_wanted):
        return environment
    environment.env.close()
    os.close(environment.data)
    return None


def _is_trusted(environment: Environment, is_wanted: IsWanted) -> bool:
    if _read(environment.folder / "open") != boot_id():
        return False
    try:
        return is_wanted(environment)
    except ReplicaDamaged:
        return False


def bytes_of_all_pages(env: lmdb.Environment) -> int:
    """The length that a file has which lacks no page."""
    pages: int = env.info()["last_pgno"] + 1
    return pages * int(env.stat()["psize"])


def _fill_up(env: lmdb.Environment, data: int) -> int:
    """Add the pages at the end that LMDB has taken and never written; the length that is whole."""
    whole = bytes_of_all_pages(env)
    if os.lseek(data, 0, os.SEEK_END) < whole:
        os.ftruncate(data, whole)
    return whole


def _note_clean_close(folder: Path) -> None:
    if _read(folder / "open") == boot_id():
        (folder / "open").unlink()
        _sync_folder(folder)


def _create(base: Path, *, is_lasting: bool) -> Environment:
    """Begin a new life, numbered after all that are there, also after those that others have open."""
    while True:
        lives = _lives(base)
        folder = base / str(int(lives[0].name) + 1 if lives else 0)
        try:
            folder.mkdir(parents=True)
        except (FileExistsError, FileNotFoundError):
            continue  # another process was faster, or swept the empty folders away
        (folder / "lock").touch(exist_ok=False)
        lock = _lock(folder)
        if lock is not None:
            return _open(base, folder, lock, is_lasting=is_lasting)


def _open(base: Path, folder: Path, lock: int, *, is_lasting: bool) -> Environment:
    """Open LMDB at `folder`, marked as open before anything is written. Raises lmdb.Error and ReplicaDamaged."""
    data = folder / "data.mdb"
    if data.exists() and data.stat().st_size < META_BYTES:
        raise ReplicaDamaged(str(folder), "its file is torn")
    if is_lasting:
        write_durably(folder / "open", boot_id())
    else:
        (folder / "open").write_text(_FOR_NOBODY_ELSE)
    env = lmdb.open(
        str(folder),
        mode=0o600,
        map_size=MAP_BYTES,
        max_dbs=3,
        sync=False,  # what a power cut loses is restored from the changelog; writemap was measured slower
        meminit=False,
        readahead=False,
    )
    handle = os.open(data, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _with_databases(base, folder, lock, handle, env, is_lasting=is_lasting)
    except (lmdb.Error, ReplicaDamaged):
        env.close()
        os.close(handle)
        raise


def _with_databases(
    base: Path, folder: Path, lock: int, data: int, env: lmdb.Environment, *, is_lasting: bool
) -> Environment:
    if os.lseek(data, 0, os.SEEK_END) < bytes_of_all_pages(env):
        raise ReplicaDamaged(str(folder), "its file is torn")
    env.reader_check()  # readers of processes that were killed would keep old pages for ever
    entries, expiry, meta = (env.open_db(name) for name in (b"entries", b"expiry", b"meta"))
    whole_bytes = _fill_up(env, data)
    return Environment(base, folder, lock, data, whole_bytes, os.getpid(), env, entries, expiry, meta, is_lasting)


def _lives(base: Path) -> list[Path]:
    """Newest first."""
    if not base.is_dir():
        return []
    return sorted((path for path in base.iterdir() if path.name.isdigit()), key=lambda path: -int(path.name))


def _lock(folder: Path) -> int | None:
    """Lock a life without waiting; None when another process has it, or has just removed it."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    if os.fstat(handle).st_nlink == 0:
        os.close(handle)
        return None
    return handle


def _close(environment: Environment) -> None:
    environment.is_open = False
    environment.env.close()
    os.close(environment.data)
    os.close(environment.lock)
    _held.pop(environment.base, None)


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder)
    os.close(lock)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def write_durably(path: Path, text: str) -> None:
    """Write a small file so that it outlives a crash of the machine."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
