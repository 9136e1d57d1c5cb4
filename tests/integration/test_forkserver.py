"""Programs that tests fork: as `python -m` would run them, but for what they find imported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forkserver import Forked, ForkServer

LOOK = """
import json, os
handles = sorted(map(int, os.listdir('/proc/self/fd')))[:-1]  # the last one lists them
print(json.dumps([dict(os.environ), os.getcwd(), handles, len(os.listdir('/proc/self/task'))]))
"""


def timeit(forks: ForkServer, folder: Path, code: str, *options: str) -> Forked:
    """A child that runs some code; its output and errors are in files of these names."""
    command = [sys.executable, "-m", "timeit", "-n1", "-r1", *options, code]
    with (folder / "output").open("w") as output, (folder / "errors").open("w") as errors:
        return forks.popen(command, env={"GIVEN": "1"}, cwd=folder, stdout=output, stderr=errors)


def test_a_program_has_an_environment_a_folder_and_streams_of_its_own(forks: ForkServer, tmp_path: Path) -> None:
    child = timeit(forks, tmp_path, LOOK)
    assert child.wait(60) == child.poll() == 0
    shown, loops = (tmp_path / "output").read_text().splitlines()
    assert json.loads(shown) == [{"GIVEN": "1"}, str(tmp_path), [0, 1, 2], 1]
    assert loops.startswith("1 loop")


@pytest.mark.parametrize(
    ("code", "options", "expected"), [("1/0", (), 1), ("import os; os._exit(7)", (), 7), ("", ("--none",), 2)]
)
def test_its_exit_code_is_seen(
    forks: ForkServer, tmp_path: Path, code: str, options: tuple[str, ...], expected: int
) -> None:
    child = timeit(forks, tmp_path, code, *options)
    assert child.wait(60) == expected
    assert ("ZeroDivisionError" in (tmp_path / "errors").read_text()) == (expected == 1)


def test_it_can_be_killed(forks: ForkServer, tmp_path: Path) -> None:
    child = timeit(forks, tmp_path, "import signal; signal.pause()")
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    child.kill()
    assert child.wait(60) == -signal.SIGKILL
    child.kill()  # whoever has its number now is nobody's business


def test_children_end_with_their_parent(tmp_path: Path) -> None:
    with ForkServer() as forks:
        child = timeit(forks, tmp_path, "import signal; signal.pause()")
        assert child.poll() is None
    assert child.wait(60) == -signal.SIGKILL
