"""A replica of a store: LMDB on the local disk, written only by replaying the store's committed changelog.

It knows how changes become entries and when an entry's time is over; it refuses to know what an entry means to
its operator, who committed it and why. Running, catching up and restoring are the same call: `apply`.

entries   store key -> value, as in the changelog, the operator's stream time (OBS_KEY) among them
expiry    (stream time after which all of a slice of keys are absent, to_offset, slice) -> those keys, packed
meta      position: the changelog offset up to which entries are replayed; identity: of which store
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa

from service.faults import fault_point
from service.storage import environments
from service.storage.environments import Environment
from service.storage.segments import Storage
from service.streams.codec import NEVER, OBS_KEY, expires_after, unpack_obs
from service.streams.records import CHANGELOG_SCHEMA, Chunk, StoreSpec

_FORMAT = 1
_POSITION = b"position"
_IDENTITY = b"identity"
_EXPIRY_SLICE_KEYS = 1024  # what one apply looks at, at least, where time has passed
_ABSENT = b""


def replica_path(root: Path, instance_id: str, store_id: str, partition: int) -> Path:
    """Where an instance keeps the replica of one task's store: ids only, so a re-created job meets nothing old."""
    return root / instance_id / store_id / str(partition)


class StoreView:
    """One consistent view of a replica (StateReader); valid inside `Replica.reader`, meant to live under a second."""

    def __init__(self, transaction: lmdb.Transaction, position: int) -> None:
        self._transaction = transaction
        self._get: Callable[..., Any] = transaction.get
        self.position = position

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._get(key)
        return value

    def get_many(self, keys: list[bytes], default: bytes) -> list[bytes]:
        """Values in the order of `keys`; sorted keys are read faster. (This loop beats getmulti and a dict 2:1.)"""
        get = self._get
        return [get(key, default) for key in keys]

    def scan(
        self, start: bytes, end: bytes, limit: int | None = None, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Entries with start <= key < end in the order of their keys, or from the last one down."""
        with self._transaction.cursor() as cursor:
            if reverse:
                is_there = cursor.prev() if cursor.set_range(end) else cursor.last()
                within = itertools.takewhile(lambda entry: entry[0] >= start, cursor.iterprev() if is_there else ())
            else:
                is_there = cursor.set_range(start)
                within = itertools.takewhile(lambda entry: entry[0] < end, cursor.iternext() if is_there else ())
            return list(itertools.islice(within, limit))


class Replica:
    """An open replica. Used by one thread at a time."""

    def __init__(self, environment: Environment, store: StoreSpec) -> None:
        self._environment = environment
        self._store = store
        self._is_open = True

    @classmethod
    def open(cls, path: Path, store: StoreSpec, store_id: str, lineage: str, end: int | None = None) -> Replica:
        """Open the replica at `path`, or begin an empty one at position 0.

        What is there is thrown away when it is of another store or lineage, ahead of `end` (the end of its
        changelog), unreadable, or from before a machine restart without a clean close.
        """
        identity = json.dumps({"format": _FORMAT, "store": store_id, "lineage": lineage}).encode()

        def is_wanted(environment: Environment) -> bool:
            with environment.transaction(write=False) as tx:
                is_same = tx.get(_IDENTITY, db=environment.meta) == identity
                return is_same and (end is None or _position(tx, environment) <= end)

        environment = environments.acquire(path, is_wanted)
        with environment.transaction(write=True) as tx:
            tx.put(_IDENTITY, identity, db=environment.meta)
        return cls(environment, store)

    def close(self) -> None:
        """Close cleanly: what is here is worth keeping even if the machine restarts. Syncs, so it may take seconds."""
        if self._is_open:
            self._is_open = False
            environments.release(self._environment)

    @property
    def path(self) -> Path:
        return self._environment.folder

    @property
    def position(self) -> int:
        """The changelog offset up to which this replica is replayed."""
        with self._environment.transaction(write=False) as tx:
            return _position(tx, self._environment)

    @property
    def entries(self) -> int:
        """Entries on disk, expired ones that wait to be deleted included."""
        with self._environment.transaction(write=False) as tx:
            return int(tx.stat(self._environment.entries)["entries"]) - (tx.get(OBS_KEY) is not None)

    @property
    def disk_bytes(self) -> int:
        """Bytes that its file takes on disk."""
        return (self._environment.folder / "data.mdb").stat().st_blocks * 512

    @contextmanager
    def reader(self) -> Iterator[StoreView]:
        """A consistent view. Keep it short: pages that it can see are not reused."""
        with self._environment.transaction(write=False) as tx:
            yield StoreView(tx, _position(tx, self._environment))

    def apply(self, from_offset: int, to_offset: int, changes: pa.RecordBatch) -> bool:
        """Replay changelog [from_offset, to_offset) (CHANGELOG_SCHEMA, sorted by key, each key once).

        All of it in one transaction with the position. False, and nothing changed, unless the replica stands
        exactly at `from_offset`.
        """
        if to_offset <= from_offset:
            raise ValueError(f"An empty changelog range: [{from_offset}, {to_offset})")
        with self._environment.transaction(write=True) as tx:
            if _position(tx, self._environment) != from_offset:
                return False
            self._write(tx, changes)
            fault_point("replay.middle")
            self._note_expiry(tx, to_offset, changes)
            self._expire(tx, _EXPIRY_SLICE_KEYS + 2 * changes.num_rows)
            tx.put(_POSITION, struct.pack("<q", to_offset), db=self._environment.meta)
        return True

    def _write(self, tx: lmdb.Transaction, changes: pa.RecordBatch) -> None:
        deletes = changes.column("value").null_count
        kept = changes.filter(changes.column("value").is_valid()) if deletes else changes
        with tx.cursor() as cursor:
            cursor.putmulti(zip(_as_list(kept.column("key")), _as_list(kept.column("value")), strict=True))
        if deletes:
            for key in _as_list(changes.filter(changes.column("value").is_null()).column("key")):
                tx.delete(key)

    def _note_expiry(self, tx: lmdb.Transaction, to_offset: int, changes: pa.RecordBatch) -> None:
        """Remember which keys to look at once stream time has passed them.

        Slices go along the key order: their deletes touch neighbouring pages, and one entry far in the future
        keeps back no more than its slice.
        """
        after = expires_after(self._store, changes)
        is_mortal = after != NEVER
        after, keys = after[is_mortal], changes.column("key").filter(pa.array(is_mortal))
        for start in range(0, len(keys), _EXPIRY_SLICE_KEYS):
            stop = start + _EXPIRY_SLICE_KEYS
            list_key = _list_key(int(after[start:stop].max()), to_offset, start)
            tx.put(list_key, _pack_keys(keys[start:stop]), db=self._environment.expiry)

    def _expire(self, tx: lmdb.Transaction, budget_keys: int) -> None:
        """Delete what stream time has passed. The budget is twice what came in, so a backlog always shrinks."""
        packed_obs = tx.get(OBS_KEY)
        if packed_obs is None:
            return
        obs = unpack_obs(bytes(packed_obs))
        with tx.cursor(db=self._environment.expiry) as lists:
            while budget_keys > 0 and lists.first() and _expires_after_of(bytes(lists.key())) < obs:
                keys = _unpack_keys(bytes(lists.value()))
                lists.delete()
                self._delete_expired(tx, keys, obs)
                budget_keys -= len(keys)

    def _delete_expired(self, tx: lmdb.Transaction, keys: list[bytes], obs: int) -> None:
        """The entry itself is asked: one that was overwritten since has a later list of its own."""
        get = tx.get
        values = pa.array([get(key, _ABSENT) for key in keys], pa.binary())
        entries = pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), values], schema=CHANGELOG_SCHEMA)
        for row in np.flatnonzero(expires_after(self._store, entries) < obs).tolist():
            tx.delete(keys[row])


def replay(replica: Replica, storage: Storage, chunks: Iterable[Chunk], since: int) -> int:
    """Bring `replica` forward over the chunks of its changelog that the catalog gave for the offset `since`.

    Offsets that no chunk holds carry no changes; chunks that it has already are skipped. Returns its new position.
    Raises ValueError when it stands before `since`: what lies between would be lost.
    """
    position = replica.position
    if position < since:
        raise ValueError(f"Replica {replica.path} stands at {position}, before the chunks from {since} on")
    for chunk in chunks:
        end = chunk.first_offset + chunk.records
        while position < end:
            changes = storage.read_chunk(chunk)
            replica.apply(position, end, changes.slice(max(0, position - chunk.first_offset)))
            position = replica.position  # where the range was refused: another thread of ours moved it on
    return position


def _position(tx: lmdb.Transaction, environment: Environment) -> int:
    packed = tx.get(_POSITION, db=environment.meta)
    return 0 if packed is None else int(struct.unpack("<q", packed)[0])


def _as_list(column: pa.Array) -> list[bytes]:
    values: list[bytes] = column.to_numpy(zero_copy_only=False).tolist()  # half the cost of to_pylist
    return values


def _list_key(after: int, to_offset: int, start: int) -> bytes:
    """Ordered by time, negative times too; unique, as no range is applied twice."""
    return struct.pack(">QQI", after + (1 << 63), to_offset, start)


def _expires_after_of(list_key: bytes) -> int:
    return int(struct.unpack_from(">Q", list_key)[0]) - (1 << 63)


def _pack_keys(keys: pa.Array) -> bytes:
    """n, n + 1 ends (uint32 little-endian), then the keys' bytes."""
    _, ends_buffer, data = keys.buffers()
    ends = np.frombuffer(ends_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    body = b"" if data is None else data[ends[0] : ends[-1]].to_pybytes()
    return b"".join([struct.pack("<I", len(keys)), (ends - ends[0]).astype("<i4").tobytes(), body])


def _unpack_keys(packed: bytes) -> list[bytes]:
    count = struct.unpack_from("<I", packed)[0]
    buffer = pa.py_buffer(packed)
    body = 4 + 4 * (count + 1)
    return _as_list(pa.Array.from_buffers(pa.binary(), count, [None, buffer[4:body], buffer[body:]]))
