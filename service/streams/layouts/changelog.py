"""Changes to a store as one batch (CHANGELOG_SCHEMA): sorted by key, each key at most once.

It knows their order; it refuses to know what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from service.streams.layouts.reserved import OBS_KEY, pack_time
from service.streams.records import CHANGELOG_SCHEMA

Part = tuple[pa.Array, pa.Array]  # store keys and values (both binary, a null value deletes)


def change(key: bytes, value: bytes | None) -> Part:
    """A single change."""
    return pa.array([key], pa.binary()), pa.array([value], pa.binary())


def with_change(changes: pa.RecordBatch, single: Part) -> pa.RecordBatch:
    """Changes (CHANGELOG_SCHEMA) and a single one, of a key that is not among them, in its place."""
    at = pc.sum(pc.less(changes.column("key"), single[0][0])).as_py() or 0
    one = pa.RecordBatch.from_arrays([*single], schema=CHANGELOG_SCHEMA)
    return pa.concat_batches([changes.slice(0, at), one, changes.slice(at)])


def sorted_changelog(part: Part, obs: int | None) -> pa.RecordBatch:
    """Changes that are sorted and lie before all reserved keys, then stream time (ms) where it moved."""
    keys, values = part
    if obs is not None:
        keys = pa.concat_arrays([keys, pa.array([OBS_KEY], pa.binary())])
        values = pa.concat_arrays([values, pa.array([pack_time(obs)], pa.binary())])
    return pa.RecordBatch.from_arrays([keys, values], schema=CHANGELOG_SCHEMA)


def changelog_of(parts: Sequence[Part], obs: int | None) -> pa.RecordBatch | None:
    """Changes in any order, and stream time (ms) where it moved; None when there are none.

    No key may occur twice. Parts that are in order already, as entries of ordered stores are, cost nothing to sort.
    """
    if obs is not None:
        parts = [*parts, change(OBS_KEY, pack_time(obs))]
    parts = sorted((part for part in parts if len(part[0])), key=lambda part: part[0][0].as_py())
    if not parts:
        return None
    keys, values = (pa.concat_arrays([part[i] for part in parts]) for i in (0, 1))
    if pc.all(pc.less(keys[:-1], keys[1:])).as_py() is not False:
        return pa.RecordBatch.from_arrays([keys, values], schema=CHANGELOG_SCHEMA)
    order = pc.array_sort_indices(keys)
    return pa.RecordBatch.from_arrays([keys.take(order), values.take(order)], schema=CHANGELOG_SCHEMA)
