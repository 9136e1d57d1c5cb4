"""A node: a folder of replicas with an id of its own, which outlives the processes and the instances that use it.

It knows the file that names the folder, and that all who use it at once agree on the name. It refuses to know what else
lies in the folder (`replica`) and whether its id is in use elsewhere: the catalog knows that, and refuses the id.

    <folder>/node.json   the id, and the host and the place at which the folder was last used
    <folder>/lock        flock'ed: shared by everyone who keeps replicas here, exclusive by who makes an id

The place is the machine's boot, the device and the inode: no two folders that are there at one time share it. A copy
of a folder brings its id along, and so does a volume that was cloned; the folder that joins second is to `renew` it.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import Final, Self

import msgspec

from service import backoff
from service.protocol import NodeRef
from service.storage.environments import boot_id, write_durably

SETTLE_S: Final = 10.0  # how long others may take to agree on a name: they write one small file
PAUSE_S: Final = 0.02
_FILE: Final = "node.json"
_node_ref = msgspec.json.Decoder(NodeRef)


class NodeInUse(OSError):
    """A folder is in use at another place, so it is on a file system that hosts share."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is in use from another host: each host needs a replica folder of its own")


class NodeFolder:
    """The use of a folder as a node, until it is closed; a context manager. `host`: the name of this host.

    Raises NodeInUse, OSError.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._folder, self._host = folder, host
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.ref = self._settled(None)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def renew(self) -> None:
        """Be another node: the present id is in use elsewhere. All who use the folder and are to renew that id agree on
        the next one. Raises NodeInUse, OSError.
        """
        self.ref = self._settled(self.ref.id)

    def close(self) -> None:
        """Use the folder no longer."""
        os.close(self._lock)

    def _settled(self, refused: str | None) -> NodeRef:
        """The name of the folder, with the lock held that keeps it."""
        until_s = time.monotonic() + SETTLE_S
        place = _place_of(self._folder)
        while True:
            if self._has_locked(fcntl.LOCK_EX):
                self._name(place, refused)
                fcntl.flock(self._lock, fcntl.LOCK_SH)  # for a moment there is no lock: it is read again
                named = _read(self._folder)
            elif self._has_locked(fcntl.LOCK_SH):
                named = _read(self._folder)
            else:
                named = None  # somebody is about to name it
            if named is not None and named.place == place and named.id != refused:
                return named
            if time.monotonic() > until_s:
                raise NodeInUse(self._folder)
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # whoever waits with a shared lock keeps everyone from naming it
            time.sleep(backoff.up_to(PAUSE_S))

    def _has_locked(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _name(self, place: str, refused: str | None) -> None:
        """Name the folder where it has no name, is at another place or is to have another name."""
        found = _read(self._folder)
        if found is not None and found.place == place and found.id != refused:
            return
        kept = None if found is None or found.id == refused else found.id
        named = NodeRef(kept or uuid.uuid4().hex, self._host, place)
        write_durably(self._folder / f"{_FILE}.new", msgspec.json.encode(named).decode())
        (self._folder / f"{_FILE}.new").rename(self._folder / _FILE)


def node_id_of(folder: Path) -> str | None:
    """The id of the node that a folder is; None where it is none."""
    found = _read(folder)
    return None if found is None else found.id


def _read(folder: Path) -> NodeRef | None:
    try:
        return _node_ref.decode((folder / _FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def _place_of(folder: Path) -> str:
    found = folder.stat()
    return f"{boot_id()}:{found.st_dev}:{found.st_ino}"
