"""Which records of a batch are duplicates: one pass, state by dense id (KIP-655, semantics.md, Deduplicate)."""

from __future__ import annotations

import numba as nb
import numpy as np

ABSENT = np.int64(np.iinfo(np.int64).min)  # the stored timestamp that means "no entry"
_INT32S = nb.types.Array(nb.int32, 1, "C", readonly=True)
_INT64S = nb.types.Array(nb.int64, 1, "C", readonly=True)


@nb.njit(
    nb.void(
        _INT32S,
        _INT64S,
        _INT64S,
        _INT64S,
        nb.int64,
        nb.int64,
        nb.int64[::1],
        nb.int64[::1],
        nb.bool_[::1],
        nb.bool_[::1],
        nb.int64[::1],
        nb.int64[::1],
    ),
    cache=True,
)
def deduplicate(  # type: ignore[no-untyped-def]
    ids, timestamps, running, words, interval, floor, stamps, origins, changed, forward, causes, missed
):
    """For each record: ids[i] < 0 has no identity; running[i] is stream time including it; words[i] is its origin.
    Nothing is stored for longer than `interval`, nor below `floor`.

    Reads and writes stamps, origins (the stored timestamp and origin of each id, ABSENT = none) and sets
    changed[id] where they moved and forward[i] where the record goes on; where it does not, causes[i] is the origin of
    the record that it repeats, and missed[i] by how many ms it is within the interval. Times are never negative, so no
    subtraction overflows.
    """
    for i in range(len(ids)):
        one = ids[i]
        forward[i] = True
        if one < 0:
            continue
        timestamp, oldest = timestamps[i], max(running[i] - interval, floor)
        stored = stamps[one]
        if stored != ABSENT and stored >= oldest and abs(timestamp - stored) <= interval:
            forward[i] = False
            causes[i], missed[i] = origins[one], interval - abs(timestamp - stored)
        elif timestamp >= oldest:
            stamps[one] = timestamp
            origins[one] = words[i]
            changed[one] = True
