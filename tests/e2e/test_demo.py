"""`make demo`, with fewer records: it must check its own result and end well."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.services, pytest.mark.timeout(180)]


def test_the_demo_finds_its_result_equal_to_a_naive_count() -> None:
    command = [sys.executable, "-m", "benchmarks.demo", "--records", "20000"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "leaves 18,000: equal" in ended.stdout
    assert "2,000" in ended.stdout
