"""What lies on a node and is of use to nobody is deleted; the rest, and what somebody has open, stays."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.storage import janitor
from service.storage.janitor import Janitor
from service.storage.node import NodeFolder
from service.storage.replica import Replica, replica_path
from tests.unit.storage.replicas import STORE, changes, key


class Asked:
    """A catalog with some stores."""

    def __init__(self, *stores: str) -> None:
        self.stores, self.asked = stores, list[list[str]]()

    def __call__(self, found: list[str]) -> Sequence[str]:
        self.asked.append(found)
        return [store for store in found if store in self.stores]


def replica(node: Path, store: str, *, lineage: str = "ours", is_open: bool = False, age_s: float = 0.0) -> Path:
    """A replica; the folder of its life."""
    made = Replica.open(replica_path(node, store, 0), STORE, store, lineage)
    made.apply(0, 1, changes({key(1): 1}))
    if not is_open:
        made.close()
    then_s = time.time() - age_s
    os.utime(made.path / "data.mdb", (then_s, then_s))
    return made.path


def swept(node: Path, asked: Asked) -> int:
    return Janitor(node, "ours", asked).look()


def is_due_again(node: Path) -> None:
    os.utime(node / "janitor.lock", (0, 0))


def test_replicas_of_stores_that_are_not_there_any_more_are_deleted(tmp_path: Path) -> None:
    kept, gone = replica(tmp_path, "kept"), replica(tmp_path, "gone")
    asked = Asked("kept")
    assert swept(tmp_path, asked) == 1
    assert asked.asked == [["gone", "kept"]]
    assert kept.is_dir()
    assert not gone.parents[1].exists()


def test_what_somebody_has_open_stays(tmp_path: Path) -> None:
    opened = replica(tmp_path, "gone", is_open=True, age_s=janitor.UNUSED_S + 60)
    assert swept(tmp_path, Asked()) == 0
    assert opened.is_dir()


def test_what_another_catalog_left_here_goes_when_it_was_not_used_for_long(tmp_path: Path) -> None:
    """Two services may share a folder: none knows the stores of the other."""
    recent = replica(tmp_path, "theirs", lineage="theirs")
    old = replica(tmp_path, "older", lineage="theirs", age_s=janitor.UNUSED_S + 60)
    assert swept(tmp_path, Asked()) == 1
    assert (recent.is_dir(), old.exists()) == (True, False)


def test_a_former_life_goes_when_it_was_not_used_for_long(tmp_path: Path) -> None:
    old, recent = replica(tmp_path, "kept", age_s=janitor.UNUSED_S + 60), replica(tmp_path, "used")
    assert swept(tmp_path, Asked("kept", "used")) == 1
    assert (old.exists(), recent.exists()) == (False, True)


def test_one_that_can_not_be_read_is_deleted_with_its_store(tmp_path: Path) -> None:
    damaged = replica(tmp_path, "gone")
    (damaged / "data.mdb").write_bytes(b"nothing of LMDB's")
    empty = replica(tmp_path, "never_begun")
    (empty / "data.mdb").unlink()
    assert swept(tmp_path, Asked()) == 2
    assert not damaged.exists()


def test_what_an_earlier_build_left_in_the_folders_of_instances_is_deleted(tmp_path: Path) -> None:
    """Whatever is there still: nothing reads it."""
    former = replica(tmp_path / "instance", "kept")
    (tmp_path / "instance" / "pulses").mkdir()
    assert swept(tmp_path, Asked("kept")) == 1
    assert not former.exists()
    assert (tmp_path / "instance" / "pulses").is_dir()


def test_a_node_in_the_folder_of_another_is_left_to_its_own_janitor(tmp_path: Path) -> None:
    NodeFolder(tmp_path / "other", "here").close()
    theirs = replica(tmp_path / "other", "gone")
    assert swept(tmp_path, Asked()) == 0
    assert theirs.is_dir()


def test_files_that_are_no_replica_stay(tmp_path: Path) -> None:
    (tmp_path / "notes" / "of" / "7").mkdir(parents=True)
    (tmp_path / "notes" / "of" / "7" / "lock").write_text("")
    assert swept(tmp_path, Asked()) == 0
    assert (tmp_path / "notes" / "of" / "7" / "lock").is_file()


def test_it_sweeps_once_an_hour_whoever_does_it(tmp_path: Path) -> None:
    asked = Asked()
    assert swept(tmp_path, asked) == 0
    replica(tmp_path, "gone")
    assert swept(tmp_path, asked) == 0
    is_due_again(tmp_path)
    assert swept(tmp_path, asked) == 1


def test_one_process_sweeps_at_a_time(tmp_path: Path) -> None:
    replica(tmp_path, "gone")
    second = Janitor(tmp_path, "ours", Asked())

    class AskingAnother(Asked):
        def __call__(self, found: list[str]) -> Sequence[str]:
            assert second.look() == 0
            return super().__call__(found)

    assert swept(tmp_path, AskingAnother()) == 1


def test_a_process_looks_now_and_then(tmp_path: Path) -> None:
    asked = Asked()
    one = Janitor(tmp_path, "ours", asked)
    one.look()
    is_due_again(tmp_path)
    one.look()
    assert len(asked.asked) <= 1


def test_much_to_sweep_goes_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        replica(tmp_path, f"gone-{number}")
    monkeypatch.setattr(janitor, "SLICE_S", 0.0)
    one = Janitor(tmp_path, "ours", Asked())
    assert [one.look() for _ in range(3)] == [1, 1, 1]


def test_where_nobody_answers_nothing_is_deleted_and_it_is_tried_again(tmp_path: Path) -> None:
    gone = replica(tmp_path, "gone")

    def unreachable(found: list[str]) -> list[str]:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        Janitor(tmp_path, "ours", unreachable).look()
    assert gone.is_dir()
    assert swept(tmp_path, Asked()) == 1
