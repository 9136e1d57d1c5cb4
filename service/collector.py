"""The collector: the only place that deletes segments.

It knows the order that makes deleting safe: what nobody needs is first said to be dropped, in the catalog; a file
goes `delete_delay` later, when every reader that still held its name is done; and only then is the name forgotten.
A crash in between repeats a step that does no harm twice, and so do two collectors at once. It refuses to know why
a record is no longer needed: `service.catalog.segments` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import structlog

from service.catalog import audit, ingest_keys, repartitions, segments
from service.catalog.engine import Catalog
from service.storage.segments import Storage


class Collector:
    """Runs in rounds; each step is a short transaction of its own, repeated until there is nothing left to do."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        delete_delay_ms: int = 3_600_000,
        pending_ttl_ms: int = 3_600_000,
        audit_retention_ms: int = 7_776_000_000,
        audit_entries: int = 100_000,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._delete_delay_ms = delete_delay_ms
        self._pending_ttl_ms = pending_ttl_ms
        self._audit = {"retention_ms": audit_retention_ms, "entries": audit_entries}

    def run_once(self) -> Counter[str]:
        """One round. Returns how many chunks, segments, files, keys and entries each step took away."""
        write = self._catalog.write
        steps: dict[str, Callable[[], int]] = {
            "chunks_truncated": lambda: write(segments.truncate_by_retention),
            "chunks_passed": lambda: write(repartitions.truncate_passed),
            "unreferenced_dropped": lambda: write(segments.drop_unreferenced),
            "stale_pending_dropped": lambda: write(segments.drop_stale_pending, self._pending_ttl_ms),
            "files_deleted": self._delete_files,
            "ingest_keys_purged": lambda: write(ingest_keys.purge),
            "audit_swept": lambda: write(audit.sweep, **self._audit),
        }
        done: Counter[str] = Counter()
        for name, step in steps.items():
            while count := step():
                done[name] += count
        return done

    def _delete_files(self) -> int:
        """Delete dropped files whose delay is over; one that can not be deleted stays dropped for the next round."""
        deletable = self._catalog.read(segments.deletable, self._delete_delay_ms)
        deleted = [segment_id for segment_id, path in deletable if self._delete(path)]
        return self._catalog.write(segments.forget, deleted) if deleted else 0

    def _delete(self, path: str) -> bool:
        try:
            self._storage.delete(path)
        except OSError as error:
            structlog.get_logger().warning("segment_not_deleted", path=path, error=str(error))
            return False
        return True
