"""The parent of the workers, in a process of its own: it must be able to fork safely."""

from __future__ import annotations

import subprocess
import sys

from spark_jobs.daemon import executor_of

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


def test_an_executor_is_named_by_the_command_of_its_jvm() -> None:
    standalone = ["java", "-Xmx512M", "x.CoarseGrainedExecutorBackend", "--executor-id", "17", "--cores", "4", ""]
    assert executor_of(standalone) == "17"
    assert executor_of(["java", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]) == ""
    assert executor_of([]) == ""
