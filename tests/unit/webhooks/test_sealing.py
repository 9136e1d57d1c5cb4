"""Secrets at rest."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from service.sealing import NotSealedHere, Sealer, key_of_file


def test_what_is_sealed_is_opened_by_whoever_has_the_key(tmp_path: Path) -> None:
    path = tmp_path / "secret-key"
    sealed = Sealer(None, path).seal("a secret")
    assert "secret" not in sealed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Sealer(None, path).open(sealed) == "a secret"
    assert Sealer(key_of_file(path), tmp_path / "nothing").open(sealed) == "a secret"
    assert [each.name for each in tmp_path.iterdir()] == ["secret-key"]


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    sealed = Sealer(None, tmp_path / "one").seal("a secret")
    with pytest.raises(NotSealedHere, match="MILLRACE_SECRET_KEY"):
        Sealer(None, tmp_path / "two").open(sealed)
