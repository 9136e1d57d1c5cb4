"""The parent of the workers, in a process of its own: it must be able to fork safely."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import os, sys
from spark_jobs import daemon
daemon.load()
print(len(os.listdir("/proc/self/task")), "spark_jobs.slot" in sys.modules, flush=True)
os._exit(0)  # DuckDB complains at an orderly exit
"""


def test_everything_is_loaded_and_no_thread_was_started() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1", "True"]
