"""Idempotency-Keys of ingest: what was answered, to which body, for 24 hours.

It knows that a key belongs to an API key and a stream; it refuses to know what an answer says.
"""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.catalog.engine import is_sqlite, now_ms
from service.catalog.tables import IngestKeyRow, Json

KEPT_MS = 24 * 3_600_000


def find_response(s: Session, *, api_key_id: str, stream_id: str, idempotency_key: str) -> IngestKeyRow | None:
    """The answer to this key in the last 24 hours (`body_sha256`, `response`), if there was one."""
    return s.scalars(
        select(IngestKeyRow).where(
            IngestKeyRow.api_key_id == api_key_id,
            IngestKeyRow.stream_id == stream_id,
            IngestKeyRow.idempotency_key == idempotency_key,
            IngestKeyRow.created_ms > now_ms(s) - KEPT_MS,
        )
    ).one_or_none()


def remember(
    s: Session, *, api_key_id: str, stream_id: str, idempotency_key: str, body_sha256: str, response: Json
) -> bool:
    """Keep the answer, in the transaction that makes it true. False: the key is taken, nothing is kept.

    Where another transaction is keeping the same key, this waits for it: one of two gets False.
    """
    at = now_ms(s)
    key = {"api_key_id": api_key_id, "stream_id": stream_id, "idempotency_key": idempotency_key}
    s.execute(delete(IngestKeyRow).filter_by(**key).where(IngestKeyRow.created_ms <= at - KEPT_MS))
    insert = sqlite.insert if is_sqlite(s) else postgresql.insert
    row = insert(IngestKeyRow).values(**key, body_sha256=body_sha256, response=response, created_ms=at)
    kept = s.scalars(row.on_conflict_do_nothing().returning(IngestKeyRow.idempotency_key))
    return kept.one_or_none() is not None


def purge(s: Session) -> int:
    """Forget what is older than 24 hours. Returns how many."""
    gone = delete(IngestKeyRow).where(IngestKeyRow.created_ms <= now_ms(s) - KEPT_MS)
    return len(s.scalars(gone.returning(IngestKeyRow.idempotency_key)).all())
