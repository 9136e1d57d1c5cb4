"""What the tests of replicas share: a store, batches of its changelog, and everything that a replica holds."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from service.storage.replica import Replica
from service.streams.layouts import identities, reserved
from service.streams.layouts.changelog import sorted_changelog
from service.streams.records import StoreSpec

INTERVAL_MS = 100
STORE = StoreSpec("job-dedup", "dedup", "key_value", "job-dedup-changelog", "deduplicate", "identities", INTERVAL_MS)

Entries = Mapping[bytes, int | None]  # store key -> timestamp, None = deleted


def open_replica(
    path: Path,
    *,
    store_id: str = "store",
    lineage: str = "lineage",
    end: int | None = None,
    store: StoreSpec = STORE,
    is_lasting: bool = True,
) -> Replica:
    return Replica.open(path, store, store_id, lineage, end, is_lasting=is_lasting)


def key(number: int) -> bytes:
    return b"\x00key-%05d" % number


def value(timestamp: int, offset: int = 0) -> bytes:
    packed: bytes = identities.pack_entries(np.array([timestamp]), np.array([offset]))[0].as_py()
    return packed


def changes(entries: Entries, obs: int | None = None) -> pa.RecordBatch:
    names = sorted(entries)
    values = [None if entries[name] is None else value(entries[name] or 0) for name in names]
    return sorted_changelog((pa.array(names, pa.binary()), pa.array(values, pa.binary())), obs)


def filled(path: Path, keys: int = 100) -> Replica:
    """One at position 10."""
    replica = open_replica(path)
    replica.apply(0, 10, changes({key(n): n for n in range(keys)}))
    return replica


def held_keys(replica: Replica) -> list[bytes]:
    """Keys on disk, the expired ones that are not deleted yet included."""
    with replica._environment.transaction(write=False) as tx:
        return [bytes(name) for name, _ in tx.cursor() if name != reserved.OBS_KEY]


def content(replica: Replica) -> dict[str, list[tuple[bytes, bytes]]]:
    """All that is on disk, position and lists of what will expire included."""
    environment = replica._environment
    databases = {"entries": environment.entries, "expiry": environment.expiry, "meta": environment.meta}
    with environment.transaction(write=False) as tx:
        return {name: [(bytes(k), bytes(v)) for k, v in tx.cursor(db=db)] for name, db in databases.items()}
