"""What operators measure while they run, and how two readings become one.

It knows numbers by their names; it refuses to know what is measured, and who asks.

A reading is nested JSON, its leaves whole numbers from 0 up. The name of a leaf says how two of them merge:

    min, max    the lower, the higher
    last        the later one of one task; of several tasks the sum
    any other   the sum

So a reading of a task is the same however its input was cut into batches. Sums stop at the end of int64, which keeps
that so (saturating addition is associative) and every number in the range that JSON readers take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Reading = dict[str, Any]
Int64s = npt.NDArray[np.int64]

MOST: Final = int(np.iinfo(np.int64).max)


def after(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Reading:
    """What a task measured, and then measured on."""
    return _merged(earlier, later, is_one_task=True)


def beside(one: Mapping[str, Any], other: Mapping[str, Any]) -> Reading:
    """What two tasks measured."""
    return _merged(one, other, is_one_task=False)


def spread(values: Int64s) -> Reading:
    """Count, sum and max of values from 0 up; nothing of no values."""
    if not len(values):
        return {}
    highest = int(values.max())
    fits = highest <= MOST // len(values)
    total = int(values.sum()) if fits else min(MOST, sum(values.tolist()))
    return {"count": len(values), "sum": total, "max": highest}


def lateness(running: Int64s, timestamps: Int64s) -> Reading:
    """How far records are behind stream time, in ms, each seen with its own timestamp in it, as KIP-328 has it."""
    found = spread(running - timestamps)
    return {"lateness_ms": found} if found else {}


def _merged(left: Mapping[str, Any], right: Mapping[str, Any], *, is_one_task: bool) -> Reading:
    both = dict(left)
    for name, value in right.items():
        if isinstance(value, Mapping):
            both[name] = _merged(both.get(name, {}), value, is_one_task=is_one_task)
        else:
            both[name] = _merged_leaf(name, both[name], value, is_one_task) if name in both else value
    return both


def _merged_leaf(name: str, left: int, right: int, is_one_task: bool) -> int:
    if name == "last" and is_one_task:
        return right
    if name == "min":
        return min(left, right)
    if name == "max":
        return max(left, right)
    return min(MOST, left + right)
