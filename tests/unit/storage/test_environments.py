"""Which replica files are trusted, which are thrown away, and who may have one open."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import lmdb
import pytest

from service.storage import environments
from service.storage.replica import replica_path
from service.streams.errors import ReplicaDamaged
from tests.unit.storage.replicas import changes, filled, held_keys, key, open_replica


def position_after_reopening(path: Path, **how: object) -> int:
    replica = open_replica(path, **how)  # type: ignore[arg-type]
    position = replica.position
    replica.close()
    return position


@contextmanager
def other_process(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `script` with `replica` = a filled one at the path given first, until it is killed."""
    prelude = "import os, sys\nfrom service.storage import environments\nfrom tests.unit.storage.replicas import *\n"
    command = [sys.executable, "-c", prelude + dedent(script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# ---------------------------------------------------------------- kept or thrown away


def test_closed_cleanly_it_is_kept(tmp_path: Path) -> None:
    filled(tmp_path).close()
    assert position_after_reopening(tmp_path, end=10) == 10


def test_closed_cleanly_it_outlives_a_machine_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path).close()
    monkeypatch.setattr(environments, "boot_id", lambda: "after the restart")
    assert position_after_reopening(tmp_path) == 10


def test_one_that_is_not_to_last_is_for_its_holder_alone_and_synced_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: pytest.fail("synced"))
    replica = open_replica(tmp_path, is_lasting=False)
    assert replica.apply(0, 10, changes({key(1): 1}))
    assert replica.position == 10
    replica.close()
    monkeypatch.undo()
    assert position_after_reopening(tmp_path) == 0


def test_killed_it_is_kept_while_the_machine_is_up(tmp_path: Path) -> None:
    with other_process("filled(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()", tmp_path) as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert position_after_reopening(tmp_path) == 10


def test_killed_it_is_thrown_away_after_a_machine_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with other_process("filled(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()", tmp_path) as process:
        assert line(process) == "ready"
    monkeypatch.setattr(environments, "boot_id", lambda: "after the restart")
    assert position_after_reopening(tmp_path) == 0


def test_ahead_of_its_changelog_it_is_thrown_away(tmp_path: Path) -> None:
    filled(tmp_path).close()
    assert position_after_reopening(tmp_path, end=9) == 0


@pytest.mark.parametrize("other", [{"store_id": "another"}, {"lineage": "restored from a backup"}])
def test_of_another_store_or_lineage_it_is_thrown_away(tmp_path: Path, other: dict[str, str]) -> None:
    filled(tmp_path).close()
    assert position_after_reopening(tmp_path, **other) == 0


@pytest.mark.parametrize("kept_bytes", [0, 100, 4096, 8192, 12_288])
def test_a_torn_file_is_thrown_away(tmp_path: Path, kept_bytes: int) -> None:
    filled(tmp_path).close()
    os.truncate(tmp_path / "0" / "data.mdb", kept_bytes)
    assert position_after_reopening(tmp_path) == 0


@pytest.mark.parametrize("kept_bytes", [0, 4096, 8192, 12_288])
def test_a_torn_file_that_a_killed_process_had_open_is_thrown_away_too(tmp_path: Path, kept_bytes: int) -> None:
    """It was filled up with zeros, as if LMDB had not written its last pages."""
    with other_process("filled(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()", tmp_path) as process:
        assert line(process) == "ready"
    os.truncate(tmp_path / "0" / "data.mdb", kept_bytes)
    assert position_after_reopening(tmp_path) == 0


@pytest.mark.parametrize("kept_bytes", [0, 4096, 8192, 12_288])
def test_a_file_that_is_cut_short_while_it_is_open_is_damage_and_no_signal(tmp_path: Path, kept_bytes: int) -> None:
    """To touch a page that is not there would be a SIGBUS: it ends this process."""
    replica = filled(tmp_path)
    os.truncate(tmp_path / "0" / "data.mdb", kept_bytes)
    for use in (lambda: replica.position, lambda: replica.apply(10, 11, changes({key(1): 1}))):
        with pytest.raises(ReplicaDamaged, match="cut short"):
            use()
    replica.close()
    assert position_after_reopening(tmp_path) == 0


def test_a_file_is_whole_after_each_commit(tmp_path: Path) -> None:
    """LMDB does not write pages that a transaction took and gave back; nobody shall take that for damage."""
    replica = open_replica(tmp_path)
    for n in range(40):
        replica.apply(n, n + 1, changes({key(k): n * 90 for k in range(n * 50, n * 50 + 500)}, obs=n * 90))
        environment = next(iter(environments._held.values()))
        assert (replica.path / "data.mdb").stat().st_size >= environments.bytes_of_all_pages(environment.env)
    replica.close()


def test_a_file_of_something_else_is_thrown_away(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / "0" / "data.mdb").write_bytes(b"this is no LMDB file" * 1_000)
    assert position_after_reopening(tmp_path) == 0


def test_pages_that_lmdb_never_wrote_are_no_damage(tmp_path: Path) -> None:
    """A transaction that takes pages and gives them back leaves a file shorter than LMDB's own count."""
    replica = open_replica(tmp_path)
    for n in range(40):
        replica.apply(n, n + 1, changes({key(k): n * 90 for k in range(n * 50, n * 50 + 500)}, obs=n * 90))
        replica.close()
        replica = open_replica(tmp_path, end=n + 1)
        assert replica.position == n + 1
    replica.close()


def test_a_new_life_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    filled(tmp_path).close()
    replica = open_replica(tmp_path, lineage="new")
    assert (replica.position, held_keys(replica)) == (0, [])
    assert [path.name for path in tmp_path.iterdir()] == [replica.path.name]
    replica.close()


def test_damage_met_while_running_is_said_and_ends_that_life(tmp_path: Path) -> None:
    replica = filled(tmp_path)
    with pytest.raises(ReplicaDamaged, match=str(tmp_path)), replica.reader():
        raise lmdb.CorruptedError("a page of something else")
    replica.close()
    assert position_after_reopening(tmp_path) == 0


# ---------------------------------------------------------------- who has it open


def test_a_process_opens_an_environment_once(tmp_path: Path) -> None:
    first, second = filled(tmp_path), open_replica(tmp_path)
    assert first.path == second.path
    assert second.apply(10, 11, changes({key(1): 1}))
    assert not first.apply(10, 11, changes({key(1): 2}))
    first.close()
    assert second.position == 11
    second.close()
    second.close()
    assert position_after_reopening(tmp_path) == 11


def test_thrown_away_while_it_is_open_in_this_process_too(tmp_path: Path) -> None:
    first = filled(tmp_path)
    second = open_replica(tmp_path, end=5)
    assert second.position == 0
    with pytest.raises(lmdb.Error):
        first.apply(10, 11, changes({}))
    first.close()
    assert second.apply(0, 1, changes({}))
    second.close()


def test_while_another_process_has_it_open_a_fresh_one_is_begun(tmp_path: Path) -> None:
    script = "replica = filled(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()"
    with other_process(script, tmp_path) as process:
        assert line(process) == "ready"
        replica = open_replica(tmp_path)
        assert replica.position == 0
        assert replica.path == tmp_path / "1"
        replica.close()
    assert (tmp_path / "0").exists()


def test_who_takes_a_task_over_can_wait_for_the_former_owner(tmp_path: Path) -> None:
    assert not environments.is_open_elsewhere(tmp_path)
    script = """
        replica = filled(Path(sys.argv[1]))
        print('open', flush=True)
        sys.stdin.readline()
        replica.close()
        print('closed', flush=True)
        sys.stdin.read()
    """
    with other_process(script, tmp_path) as process:
        assert line(process) == "open"
        assert environments.is_open_elsewhere(tmp_path)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert line(process) == "closed"
        assert not environments.is_open_elsewhere(tmp_path)
        replica = open_replica(tmp_path)
        assert not environments.is_open_elsewhere(tmp_path)
        replica.close()


def test_a_task_that_is_handed_over_finds_the_replica_warm(tmp_path: Path) -> None:
    script = "filled(Path(sys.argv[1])).close(); print('closed', flush=True); sys.stdin.read()"
    with other_process(script, tmp_path) as process:
        assert line(process) == "closed"
        assert position_after_reopening(tmp_path) == 10


def test_opened_before_a_fork_it_is_unusable_in_the_child_which_opens_its_own(tmp_path: Path) -> None:
    script = """
        replica = filled(Path(sys.argv[1]))
        if os.fork() == 0:
            try:
                replica.position
            except RuntimeError as error:
                print(str(error).split()[-4:], flush=True)
            own = open_replica(Path(sys.argv[1]))
            print(own.path.name, own.position, flush=True)
            own.close()
            os._exit(0)
        os.wait()
        print(replica.apply(10, 11, changes({})), flush=True)
        replica.close()
    """
    with other_process(script, tmp_path) as process:
        assert line(process) == "['before', 'this', 'process', 'forked']"
        assert line(process) == "1 0"
        assert line(process) == "True"
        assert process.wait() == 0


def test_paths_carry_ids_only(tmp_path: Path) -> None:
    assert replica_path(tmp_path, "s", 3) == tmp_path / "s" / "3"


def test_the_boot_id_is_the_same_until_the_machine_restarts() -> None:
    assert environments.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# ---------------------------------------------------------------- deleted


def test_a_life_is_deleted_if_it_is_over_and_nobody_has_it_open(tmp_path: Path) -> None:
    filled(tmp_path).close()
    life = tmp_path / "0"
    assert not environments.remove_life(life, lambda: False)
    opened = open_replica(tmp_path)
    assert not environments.remove_life(life, lambda: True)
    assert opened.position == 10
    opened.close()
    assert environments.remove_life(life, lambda: True)
    assert not environments.remove_life(life, lambda: True)
    assert not life.exists()
