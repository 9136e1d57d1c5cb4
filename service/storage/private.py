"""Folders and files for their owner alone.

It knows modes and owners. It refuses to know what lies in a folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_ROOT = 0


class NotOurs(OSError):
    """Somebody else owns a folder, so what lies in it may be anything."""

    def __init__(self, folder: Path, owner: int) -> None:
        super().__init__(f"{folder} belongs to another user (uid {owner}): name another folder")


def keep_private() -> None:
    """From now on what this process and its children make is for their user alone (umask 077)."""
    os.umask(0o077)


def private_folder(folder: Path) -> None:
    """Make a folder for its owner alone, or take the one that is there. Raises NotOurs, OSError.

    One of ours is closed to others, unless it is shared by design (sticky, as /tmp); one of root's is taken as it is: a
    volume that was mounted for us.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), _ROOT):
        raise NotOurs(folder, found.st_uid)
    is_open = bool(found.st_mode & 0o077) and not found.st_mode & stat.S_ISVTX
    if is_open and found.st_uid == os.geteuid():
        folder.chmod(0o700)
