"""Named places where a test may kill this process: SIGKILL, no clean-up, as a machine would.

It knows a folder of tokens: a file with the name of a fault point kills the first process that passes that
point, once (the token is taken away first). A number in the file is how many passes to let through before.
It refuses to know what any point means. It reads the environment itself (`MILLRACE_FAULTS` names the folder;
unset = nothing ever happens), because it has to work in every process of ours, also in Spark's workers.

Points: segment.before_write, segment.after_write, commit.before, commit.after, order.noted,
replay.middle, ingest.before_publish, ingest.after_publish, flush.before_stage, flush.in_stage, change.before,
change.after, rebalance.decided.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path


def fault_point(name: str) -> None:
    """Die here if a token says so; cost without the variable: under a microsecond."""
    folder = os.environ.get("MILLRACE_FAULTS")
    if folder:
        _spend(Path(folder) / name)


def _spend(token: Path) -> None:
    try:
        handle = token.open("r+")
    except FileNotFoundError:
        return
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # several processes pass at once: exactly one dies of a token
        if os.fstat(handle.fileno()).st_nlink == 0:
            return
        passes_left = int(handle.read().strip() or 0)
        if passes_left > 0:
            handle.seek(0)
            handle.write(f"{passes_left - 1:<20}")
            return
        token.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
