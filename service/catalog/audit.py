"""Who did what when: entries of the audit, which are only added, and swept when they are old or too many.

It knows rows; it refuses to know which requests are worth an entry (`service.audit`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import CursorResult, delete, func, or_, select, update
from sqlalchemy.orm import Session

from service.catalog.engine import now_ms
from service.catalog.tables import AuditRow, Json


def add_entry(
    s: Session,
    *,
    key_id: str,
    key_name: str,
    role: str,
    operation: str,
    method: str,
    path: str,
    resource: str,
    status: int,
    request_id: str,
    change: Json | None,
) -> int:
    """Add an entry, in the transaction of what it tells; returns its id."""
    row = AuditRow(key_id=key_id, key_name=key_name, role=role, operation=operation, method=method, path=path)
    row.at_ms, row.resource, row.status, row.request_id, row.change = now_ms(s), resource, status, request_id, change
    s.add(row)
    s.flush()
    return row.id


def settle_entry(s: Session, entry_id: int, status: int) -> None:
    """Say how the request was answered, where that is not what its operation promises."""
    s.execute(update(AuditRow).where(AuditRow.id == entry_id).values(status=status))


def list_entries(
    s: Session,
    *,
    who: str | None = None,
    what: str | None = None,
    resource: str | None = None,
    from_ms: int | None = None,
    until_ms: int | None = None,
    limit: int = 100,
    before: int | None = None,
) -> Sequence[AuditRow]:
    """Entries, latest first. `who`: the name or id of a key; `resource`: it, or what belongs to it; `from_ms` is
    included, `until_ms` is not; `before` the entry of this id.
    """
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    if who is not None:
        query = query.where(or_(AuditRow.key_name == who, AuditRow.key_id == who))
    if what is not None:
        query = query.where(AuditRow.operation == what)
    if resource is not None:
        below = AuditRow.resource.startswith(f"{resource}/", autoescape=True)
        query = query.where(or_(AuditRow.resource == resource, below))
    if from_ms is not None:
        query = query.where(AuditRow.at_ms >= from_ms)
    if until_ms is not None:
        query = query.where(AuditRow.at_ms < until_ms)
    return s.scalars(query if before is None else query.where(AuditRow.id < before)).all()


def sweep(s: Session, *, retention_ms: int, entries: int) -> int:
    """Forget what is older, and the oldest of more entries than these; returns how many went."""
    latest = s.scalars(select(func.max(AuditRow.id))).one()
    if latest is None:
        return 0
    is_over = or_(AuditRow.at_ms < now_ms(s) - retention_ms, AuditRow.id <= latest - entries)
    swept = s.execute(delete(AuditRow).where(is_over))
    return swept.rowcount if isinstance(swept, CursorResult) else 0
