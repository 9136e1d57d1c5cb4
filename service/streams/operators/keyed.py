"""Records as an operator with an ordered store takes them: null keys out, stream time beside each, long keys apart.

It knows what a key must be to be stored (semantics.md, Null and Time); it refuses to know what is stored under it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams import clock, codec, store_keys
from service.streams.records import Dropped, StateReader


def stream_time(state: StateReader) -> int:
    """An operator's stream time as its store has it."""
    packed = state.get(codec.OBS_KEY)
    return codec.unpack_obs(packed) if packed else clock.NOT_STARTED


@dataclass(frozen=True, slots=True)
class Keyed:
    """`rows`: the records with a key (TASK_SCHEMA), each of which moves stream time; `keys`: theirs, null where they
    are too long to be stored; `running`: stream time as each of them sees it; `before`, `now`: as the batch found it
    and leaves it.
    """

    rows: pa.RecordBatch
    keys: pa.Array
    running: npt.NDArray[np.int64]
    before: int
    now: int
    dropped: list[Dropped]

    @classmethod
    def of(cls, operator: str, batch: pa.RecordBatch, state: StateReader) -> Self:
        """A batch, seen by an operator with this store."""
        before, dropped = stream_time(state), []
        keys = batch.column("key")
        if keys.null_count:
            dropped.append(Dropped(operator, "null_key", batch.filter(keys.is_null())))
            batch = batch.filter(keys.is_valid())
            keys = batch.column("key")
        is_storable = store_keys.is_storable(keys)
        if not pc.all(is_storable).as_py():
            dropped.append(Dropped(operator, "key_too_long", batch.filter(pc.invert(is_storable))))
            keys = pc.if_else(is_storable, keys, None)
        running = clock.observe(before, batch.column("timestamp").to_numpy())
        return cls(batch, keys, running, before, clock.latest(before, running), dropped)
