"""A store as it will be once changes to it are committed and replayed: what the next verb of the same commit reads.

It knows keys and their order; it refuses to know what they hold.
"""

from __future__ import annotations

import heapq
from operator import itemgetter

import pyarrow as pa

from service.streams.records import CHANGELOG_SCHEMA, StateReader


class Overlay:
    """A StateReader over `state` and changes to it (CHANGELOG_SCHEMA)."""

    def __init__(self, state: StateReader, changes: pa.RecordBatch | None) -> None:
        self._state = state
        self._changes = _as_dict(changes)

    def get(self, key: bytes) -> bytes | None:
        """The value, None where there is none."""
        return self._changes[key] if key in self._changes else self._state.get(key)

    def get_many(self, keys: list[bytes], default: bytes) -> list[bytes]:
        """Values in the order of `keys`."""
        found = self._state.get_many(keys, default)
        for i, key in enumerate(keys):
            if key in self._changes:
                changed = self._changes[key]
                found[i] = default if changed is None else changed
        return found

    def scan(
        self, start: bytes, end: bytes, limit: int | None = None, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Entries with start <= key < end in the order of their keys, or from the last one down."""
        changed = sorted((key for key in self._changes if start <= key < end), reverse=reverse)
        room = None if limit is None else limit + len(changed)  # as many as may be hidden by deletes
        kept = [entry for entry in self._state.scan(start, end, room, reverse=reverse) if entry[0] not in self._changes]
        written = [(key, value) for key in changed if (value := self._changes[key]) is not None]
        return list(heapq.merge(kept, written, key=itemgetter(0), reverse=reverse))[:limit]

    def merged(self, then: pa.RecordBatch | None) -> pa.RecordBatch | None:
        """These changes and those that follow them as one, for the store below; what is only here is not deleted."""
        if not self._changes:
            return then
        both = {**self._changes, **_as_dict(then)}
        kept = [key for key in sorted(both) if both[key] is not None or self._state.get(key) is not None]
        if not kept:
            return None
        columns = [pa.array(kept, pa.binary()), pa.array([both[key] for key in kept], pa.binary())]
        return pa.RecordBatch.from_arrays(columns, schema=CHANGELOG_SCHEMA)


def _as_dict(changes: pa.RecordBatch | None) -> dict[bytes, bytes | None]:
    if changes is None:
        return {}
    return dict(zip(changes.column("key").to_pylist(), changes.column("value").to_pylist(), strict=True))
