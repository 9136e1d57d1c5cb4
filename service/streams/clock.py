"""Stream time: the one judge of how far an operator has come.

It knows timestamps of records; it refuses to know a wall clock. Times are int64 milliseconds.
An operator's `obs` is the highest timestamp of the records that reached it (semantics.md, Time).
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

CloseReason = Literal["stream_time", "idle", "flush"]  # why time moved so far that something closes
NOT_STARTED: Final = -1  # stream time before the first record
END_OF_TIME: Final = 2**63 - 1


def observe(obs: int, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Stream time as each record sees it, itself included: the running maximum, starting from `obs`."""
    running = np.maximum.accumulate(timestamps)
    return np.maximum(running, obs, out=running)


def saturated(*parts_ms: int) -> int:
    """Their sum, at most the end of time."""
    total = sum(parts_ms)
    return total if total < END_OF_TIME else END_OF_TIME


def latest(obs: int, running: npt.NDArray[np.int64]) -> int:
    """Stream time after the records whose running time is `running`; `obs` when there were none."""
    return int(running[-1]) if len(running) else obs
