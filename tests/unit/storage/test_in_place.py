"""Replicas read where they lie: the furthest that can be trusted, found again when it moves, never one that is gone.

LMDB wants each environment opened once a process, so writers here close before anybody reads; a test with a writer in
another process is in the integration tests.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.storage import in_place
from service.storage.in_place import ReplicaMissing, ReplicasInPlace
from service.storage.node import NodeFolder
from service.storage.replica import Replica, replica_path
from service.streams.errors import ReplicaDamaged
from tests.unit.storage.replicas import STORE, changes, key, value


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicasInPlace]:
    monkeypatch.setattr(in_place, "LOOK_AGAIN_S", 0.0)
    opened = ReplicasInPlace(tmp_path)
    yield opened
    opened.close()


def node(root: Path, name: str) -> str:
    """The id of the node in the folder of this name, which is made."""
    with NodeFolder(root / name, "here") as made:
        return made.ref.id


def write(root: Path, name: str, upto: int, *, lineage: str = "lineage", stamp: int = 5) -> Path:
    """A replica on a node, replayed up to a position and closed; the folder of this life."""
    node(root, name)
    replica = Replica.open(replica_path(root / name, "store", 0), STORE, "store", lineage)
    replica.apply(replica.position, upto, changes({key(1): stamp}))
    folder = replica.path
    replica.close()
    return folder


def found(replicas: ReplicasInPlace, lineage: str = "lineage") -> tuple[int, bytes | None, str]:
    with replicas.reader("store", 0, lineage) as view:
        return view.position, view.get(key(1)), view.node_id


def test_a_replica_that_is_not_there_is_missing(replicas: ReplicasInPlace, tmp_path: Path) -> None:
    with pytest.raises(ReplicaMissing):
        found(replicas)
    write(tmp_path, "one", 3, lineage="another")
    with pytest.raises(ReplicaMissing):
        found(replicas)
    assert found(replicas, "another")[0] == 3


def four_partitions(root: Path) -> None:
    """Partition n is replayed up to n + 1."""
    node(root, "one")
    for partition in range(4):
        replica = Replica.open(replica_path(root / "one", "store", partition), STORE, "store", "lineage")
        replica.apply(0, partition + 1, changes({key(1): partition}))
        replica.close()


def mapped(root: Path) -> set[str]:
    """The replicas that this process has open."""
    return set(re.findall(rf"{root}\S*data\.mdb", Path("/proc/self/maps").read_text()))


def test_only_so_many_are_kept_open(replicas: ReplicasInPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "MAX_KNOWN", 2)
    four_partitions(tmp_path)
    for _ in range(2):
        for partition in range(4):
            with replicas.reader("store", partition, "lineage") as view:
                assert view.position == partition + 1
            assert len(mapped(tmp_path)) <= 2


def test_a_glance_at_all_of_them_leaves_open_what_is_in_use(
    replicas: ReplicasInPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "MAX_KNOWN", 2)
    four_partitions(tmp_path)
    for partition in range(2):
        with replicas.reader("store", partition, "lineage"):
            pass
    in_use, opened = mapped(tmp_path), [known.best for known in replicas._known.values()]
    for partition in range(4):
        with replicas.glance("store", partition, "lineage") as (view, (entries, size)):
            assert (view.position, entries) == (partition + 1, 1)
            assert size > 0
    assert mapped(tmp_path) == in_use
    assert [known.best for known in replicas._known.values()] == opened
    with pytest.raises(ReplicaMissing), replicas.glance("store", 9, "lineage"):
        pass


def test_a_glance_sees_how_far_one_has_come_that_is_open(replicas: ReplicasInPlace, tmp_path: Path) -> None:
    write(tmp_path, "one", 3)
    assert found(replicas)[0] == 3
    write(tmp_path, "two", 9)
    with replicas.glance("store", 0, "lineage") as (view, _):
        assert view.position == 9


def test_the_furthest_of_several_is_read(replicas: ReplicasInPlace, tmp_path: Path) -> None:
    write(tmp_path, "one", 3, stamp=1)
    assert found(replicas) == (3, value(1), node(tmp_path, "one"))
    write(tmp_path, "two", 9, stamp=2)
    assert found(replicas) == (9, value(2), node(tmp_path, "two"))
    write(tmp_path, "three", 4, stamp=3)
    assert found(replicas) == (9, value(2), node(tmp_path, "two"))
    with replicas.glance("store", 0, "lineage") as (_, (entries, _)):
        assert entries == 1


def test_a_folder_that_is_a_node_itself_is_read_beside_those_in_it(replicas: ReplicasInPlace, tmp_path: Path) -> None:
    write(tmp_path, ".", 4, stamp=1)
    assert found(replicas) == (4, value(1), node(tmp_path, "."))
    write(tmp_path, "one", 9, stamp=2)
    assert found(replicas) == (9, value(2), node(tmp_path, "one"))
    write(tmp_path, ".", 10, stamp=3)
    assert found(replicas) == (10, value(3), node(tmp_path, "."))


def test_what_lies_in_a_folder_that_is_no_node_is_not_read(replicas: ReplicasInPlace, tmp_path: Path) -> None:
    write(tmp_path, "one", 3)
    (tmp_path / "one" / "node.json").unlink()
    with pytest.raises(ReplicaMissing):
        found(replicas)


def test_one_that_is_deleted_is_not_read_any_more(replicas: ReplicasInPlace, tmp_path: Path) -> None:
    write(tmp_path, "one", 3, stamp=1)
    gone = write(tmp_path, "two", 9, stamp=2)
    assert found(replicas)[2] == node(tmp_path, "two")
    shutil.rmtree(gone)
    assert found(replicas) == (3, value(1), node(tmp_path, "one"))
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(ReplicaMissing):
        found(replicas)


def test_a_new_life_in_the_same_place_is_another_replica(replicas: ReplicasInPlace, tmp_path: Path) -> None:
    first = write(tmp_path, "one", 9, stamp=1)
    assert found(replicas)[0] == 9
    shutil.rmtree(first)
    write(tmp_path, "one", 2, stamp=7)
    assert found(replicas) == (2, value(7), node(tmp_path, "one"))


@pytest.mark.parametrize("mark", ["damaged", "another boot"])
def test_one_that_can_not_be_trusted_is_not_read(replicas: ReplicasInPlace, tmp_path: Path, mark: str) -> None:
    folder = write(tmp_path, "one", 3)
    assert found(replicas)[0] == 3
    (folder / "open").write_text(mark)
    with pytest.raises(ReplicaMissing):
        found(replicas)


@pytest.mark.parametrize("kept_bytes", [0, 4096, 8192, 12_288])
@pytest.mark.parametrize("look_again_s", [0.0, 600.0])
def test_one_that_is_cut_short_while_it_is_read_is_damage_and_no_signal(
    replicas: ReplicasInPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int, look_again_s: float
) -> None:
    """To touch a page that is not there would be a SIGBUS: it ends the process that takes ingest, too."""
    monkeypatch.setattr(in_place, "LOOK_AGAIN_S", look_again_s)
    folder = write(tmp_path, "one", 3)
    assert found(replicas)[0] == 3
    os.truncate(folder / "data.mdb", kept_bytes)
    with pytest.raises(ReplicaMissing if look_again_s == 0 else ReplicaDamaged):
        found(replicas)
    monkeypatch.setattr(in_place, "LOOK_AGAIN_S", 0.0)
    with pytest.raises(ReplicaMissing):
        found(replicas)
    write(tmp_path, "one", 5)
    assert found(replicas)[0] == 5


def test_a_file_that_its_writer_makes_whole_is_waited_for(
    replicas: ReplicasInPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path, "one", 3) / "data.mdb"
    whole = data.stat().st_size + 4096
    monkeypatch.setattr(in_place, "bytes_of_all_pages", lambda _: whole)
    monkeypatch.setattr(in_place, "WHOLE_WITHIN_S", 60.0)
    writer = threading.Timer(0.1, os.truncate, (data, whole))
    writer.start()
    assert found(replicas)[0] == 3
    writer.join()


def test_what_is_no_replica_is_passed_over(replicas: ReplicasInPlace, tmp_path: Path) -> None:
    node(tmp_path, "one")
    base = replica_path(tmp_path / "one", "store", 0)
    (base / "0").mkdir(parents=True)
    (base / "1").mkdir()
    (base / "1" / "data.mdb").write_bytes(b"no environment")
    (base / "a file").write_text("")
    with pytest.raises(ReplicaMissing):
        found(replicas)
    write(tmp_path, "two", 3)
    assert found(replicas)[2] == node(tmp_path, "two")


def test_replicas_that_nobody_asks_for_are_closed(
    replicas: ReplicasInPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "one", 3)
    found(replicas)
    monkeypatch.setattr(in_place, "UNUSED_S", -1.0)
    with pytest.raises(ReplicaMissing), replicas.reader("other", 0, "lineage"):
        pass
    assert replicas._known == {}
