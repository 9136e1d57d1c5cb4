"""Replica folders with an id of their own: kept, shared, copied, cloned."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from service.protocol import NodeRef
from service.storage import node
from service.storage.environments import boot_id
from service.storage.node import NodeFolder, NodeInUse, node_id_of


def named(folder: Path, host: str = "here") -> NodeRef:
    with NodeFolder(folder, host) as found:
        return found.ref


def rename(folder: Path, **changes: str) -> NodeRef:
    """Let the file of a folder say something else."""
    kept = msgspec.structs.replace(msgspec.json.decode((folder / "node.json").read_bytes(), type=NodeRef), **changes)
    (folder / "node.json").write_bytes(msgspec.json.encode(kept))
    return kept


def test_a_folder_keeps_its_id(tmp_path: Path) -> None:
    first = named(tmp_path / "replicas")
    found = (tmp_path / "replicas").stat()
    assert first == NodeRef(first.id, "here", f"{boot_id()}:{found.st_dev}:{found.st_ino}")
    assert named(tmp_path / "replicas") == first
    assert node_id_of(tmp_path / "replicas") == first.id
    assert named(tmp_path / "others").id != first.id


def test_all_who_use_a_folder_at_once_say_the_same_of_it(tmp_path: Path) -> None:
    """Containers of one host have names of their own, and are on one host all the same."""
    with NodeFolder(tmp_path, "one") as first, NodeFolder(tmp_path, "another") as second:
        assert first.ref == second.ref


def test_no_folder_is_no_node(tmp_path: Path) -> None:
    assert node_id_of(tmp_path) is None
    assert node_id_of(tmp_path / "nowhere") is None
    (tmp_path / "file").write_text("")
    assert node_id_of(tmp_path / "file") is None


@pytest.mark.parametrize("content", ["", "no JSON", "{}", '{"id":"a b","host":"h","place":"p"}'])
def test_a_file_that_says_no_id_is_written_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "node.json").write_text(content)
    assert named(tmp_path) == named(tmp_path)


def test_after_a_restart_of_the_machine_it_is_the_same_node_at_another_place(tmp_path: Path) -> None:
    before = named(tmp_path)
    rename(tmp_path, place="a boot before:1:2", host="a former name")
    assert named(tmp_path) == before


def test_a_copy_of_a_folder_has_its_id_at_another_place_until_it_is_renewed(tmp_path: Path) -> None:
    with NodeFolder(tmp_path / "first", "here") as first:
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
        with NodeFolder(tmp_path / "copy", "here") as copy:
            assert copy.ref.id == first.ref.id
            assert copy.ref.place != first.ref.place
            copy.renew()
            assert copy.ref.id != first.ref.id
            assert node_id_of(tmp_path / "copy") == copy.ref.id
        assert named(tmp_path / "first") == first.ref


def test_all_who_renew_an_id_at_once_agree_on_the_next_one(tmp_path: Path) -> None:
    with ExitStack() as opened, ThreadPoolExecutor(6) as threads:
        users = [opened.enter_context(NodeFolder(tmp_path, "here")) for _ in range(6)]
        before = users[0].ref
        list(threads.map(NodeFolder.renew, users))
        (after,) = {user.ref for user in users}
        assert after.id != before.id
        assert named(tmp_path) == after


def test_a_folder_that_is_in_use_at_another_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that two hosts share: LMDB can not be there."""
    monkeypatch.setattr(node, "SETTLE_S", 0.05)
    with NodeFolder(tmp_path, "here"):
        rename(tmp_path, place="another boot:1:2")
        with pytest.raises(NodeInUse, match="another host"):
            NodeFolder(tmp_path, "here")
    assert named(tmp_path).place.startswith(boot_id())


def test_its_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        named(tmp_path / "replicas")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "replicas").iterdir()} == {0}
