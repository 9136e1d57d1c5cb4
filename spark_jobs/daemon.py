"""The parent of an executor's Python workers: it imports what slots need once, then forks them.

It knows what is heavy (numba's kernels, DuckDB, Arrow) and that a process must have one thread when it forks. It
refuses to know what a slot does. Spark starts it once per executor, as `spark.python.daemon.module`.

Measured: imports 1.6 s once; a worker forked from it runs its slot 10 ms later and shares the pages of all this.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from service.storage.private import keep_private

# Each of these libraries starts threads when it is imported, and a forked child would have their locks, not them.
_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_ONE_ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # Arrow's own gives memory back within milliseconds
_HEAVY = (
    "duckdb",
    "lmdb",
    "numba",
    "pyarrow.compute",
    "pyarrow.fs",
    "pyspark.worker",
    "spark_jobs.slot",
    "urllib3",
)
EXECUTOR = "MILLRACE_EXECUTOR"  # the variable in which a slot finds the id of its executor
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class ThreadsBeforeFork(Exception):
    """An import started threads; a fork would copy their locks in whatever state they are."""


def load() -> None:
    """Import everything, compile nothing: kernels come from the cache that `make install` filled."""
    os.environ.update(_ONE_THREAD | _ONE_ALLOCATOR)
    _forget_archives()
    for name in _HEAVY:
        importlib.import_module(name)
    from service.streams import kernels
    from spark_jobs import memory

    kernels.warm()
    memory.hold()
    memory.hand_back()  # 8 MB that imports needed for a moment, times the number of slots
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    if threads > 1:
        raise ThreadsBeforeFork(f"{threads} threads run in the worker daemon")


def _forget_archives() -> None:
    """Take Spark's zip files and jars from the path: our environment has pyspark, and each worker would read
    their directories again (15 MB and 0.1 s a slot).
    """
    archives = [entry for entry in sys.path if entry.endswith((".zip", ".jar"))]
    for entry in archives:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)


def executor_of(command: Sequence[str]) -> str:
    """The id of an executor, of the command that its JVM was started with; "" where that is no executor's."""
    named = [after for option, after in itertools.pairwise(command) if option == "--executor-id"]
    return named[0] if named else ""


def _parents_command() -> list[str]:
    """Spark tells its Python workers all but the executor that they are in: read where Linux has it."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
    except (OSError, UnicodeDecodeError):
        return []


def die_with_parent() -> None:
    """Ask the kernel for a SIGKILL when the process that forked this one ends, whatever ended it."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Become Spark's own daemon, with everything loaded."""
    load()
    os.environ[EXECUTOR] = executor_of(_parents_command())
    keep_private()
    os.register_at_fork(after_in_child=die_with_parent)
    gc.freeze()  # the collector would write to, and so copy, every page the workers share
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
