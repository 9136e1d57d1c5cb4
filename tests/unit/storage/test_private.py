"""Folders for their owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from service.storage import private

SOMEBODY = 54321


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_new_folder_is_its_owners_alone(tmp_path: Path) -> None:
    private.private_folder(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o700


def test_one_that_was_open_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    private.private_folder(tmp_path)
    assert mode(tmp_path) == 0o700


def test_one_that_is_shared_by_design_stays_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    private.private_folder(tmp_path)
    assert mode(tmp_path) == 0o1777


def test_somebody_elses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    if os.geteuid() == 0:  # what root owns is taken
        os.chown(folder, SOMEBODY, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    with pytest.raises(private.NotOurs, match="another user"):
        private.private_folder(folder)
