"""A token kills the process that passes its point: once, and after as many passes as it says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

PASS_THREE_TIMES = (
    "from service.faults import fault_point\nfor n in range(3): fault_point('here'); print(n, flush=True)"
)


def run(folder: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "MILLRACE_FAULTS"}
    if folder is not None:
        environment["MILLRACE_FAULTS"] = str(folder)
    return subprocess.run(
        [sys.executable, "-c", PASS_THREE_TIMES], env=environment, capture_output=True, text=True, check=False
    )


def test_without_the_variable_nothing_happens() -> None:
    assert run(None).returncode == 0


def test_without_a_token_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    assert run(tmp_path).returncode == 0
    assert (tmp_path / "elsewhere").exists()


def test_a_token_kills_once(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    killed = run(tmp_path)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert not (tmp_path / "here").exists()
    assert run(tmp_path).returncode == 0


def test_a_number_lets_that_many_passes_through_first(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("2")
    killed = run(tmp_path)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "0\n1\n")


def test_passes_are_counted_over_processes(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("10")
    assert [run(tmp_path).returncode for _ in range(3)] == [0, 0, 0]
    assert run(tmp_path).returncode == -signal.SIGKILL
