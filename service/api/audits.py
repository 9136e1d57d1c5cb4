"""Who did what when, over HTTP, for admins.

Knows the shapes of the request and its answer. Refuses to know what is noted, and when (`service.audit`).
"""

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import answer
from service.api.document import router_of
from service.api.models import Cursor, Limit, PageView, first_row, rows_page
from service.api.moments import Moment, moment
from service.auth import Admin
from service.catalog import audit
from service.catalog.tables import AuditRow
from service.problems import declared, refused

router = router_of("tokens")

LIST = "audit"
NO_NUL = r"^[^\x00]*$"  # no database takes U+0000

Ms = Annotated[int, Query(ge=0, lt=2**63)]
Text = Annotated[str, Query(min_length=1, max_length=600, pattern=NO_NUL)]


class AuditEntryView(BaseModel):
    """A change, and who made it."""

    id: int
    at: Moment
    key_id: str
    who: str
    role: str
    what: str
    method: str
    path: str
    resource: str
    status: int
    request_id: str
    change: dict[str, Any] | None


@router.get("/v1/audit", responses={200: {"model": PageView[AuditEntryView]}, **declared(401, 403, 422)})
def list_audit(
    request: Request,
    _: Admin,
    who: Annotated[Text | None, Query(description="The name or the id of a key.")] = None,
    what: Annotated[Text | None, Query(description="The id of an operation.")] = None,
    resource: Annotated[Text | None, Query(description="What was changed, or what that belongs to.")] = None,
    from_ms: Annotated[Ms | None, Query(alias="from", description="From when on, in ms since 1970, included.")] = None,
    until_ms: Annotated[
        Ms | None, Query(alias="until", description="Until when, in ms since 1970; not included.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List who changed what, latest first: each change of streams, subscriptions, jobs and keys, and each sign-in."""
    if from_ms is not None and until_ms is not None and from_ms > until_ms:
        raise refused("invalid_request", "?from", "lies after until")
    which = {"who": who, "what": what, "resource": resource, "from_ms": from_ms, "until_ms": until_ms}
    return answer(request.state.catalog.read(_entries, which, limit, cursor))


def _entries(s: Session, which: dict[str, Any], limit: int, cursor: str | None) -> dict[str, Any]:
    rows = audit.list_entries(s, **which, limit=limit + 1, before=first_row(LIST, cursor))
    return rows_page(LIST, rows, _shown, limit=limit)


def _shown(row: AuditRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "at": moment(row.at_ms),
        "key_id": row.key_id,
        "who": row.key_name,
        "role": row.role,
        "what": row.operation,
        "method": row.method,
        "path": row.path,
        "resource": row.resource,
        "status": row.status,
        "request_id": row.request_id,
        "change": row.change,
    }
