"""API keys over HTTP, for admins: make (the secret is shown this once), list, revoke."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import LOCATION, answer, read_model
from service.api.document import router_of, takes
from service.api.models import Cursor, Limit, PageView, short_page
from service.api.moments import Moment
from service.audit import entry_of
from service.auth import KEYS, Admin
from service.catalog import keys
from service.catalog.engine import wake
from service.catalog.tables import ApiKeyRow
from service.problems import declared

router = router_of("tokens")

NO_NUL = r"^[^\x00]*$"  # no database takes U+0000


class TokenRequest(BaseModel):
    """A key to make."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["reader", "writer", "admin", "instance"]
    name: Annotated[str, Field(max_length=200, pattern=NO_NUL)] = ""


class TokenView(BaseModel):
    """A key as it is listed: never its secret."""

    id: str
    name: str
    role: str
    created_at: Moment
    revoked_at: Moment | None
    last_used_at: Moment | None


class NewTokenView(TokenView):
    """A key as it is made."""

    key: Annotated[str, Field(description="The secret, shown this once.")]


@router.post(
    "/v1/tokens",
    status_code=201,
    responses={201: {"model": NewTokenView, "headers": LOCATION}, **declared(400, 401, 403, 413, 415, 422)},
    openapi_extra=takes(TokenRequest, {"role": "writer", "name": "shop-frontend"}),
)
async def create_token(request: Request, _: Admin) -> Response:
    """Make a key."""
    wanted = await read_model(request, TokenRequest)
    row, secret = await run_in_threadpool(request.state.catalog.write, _create, request, wanted)
    return answer({**_shown(row), "key": secret}, 201, headers={"Location": f"/v1/tokens/{row.id}"})


@router.get("/v1/tokens", responses={200: {"model": PageView[TokenView]}, **declared(401, 403, 422)})
def list_tokens(request: Request, _: Admin, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List keys, oldest first; those of running instances of `millrace up` are left out."""
    listed = [_shown(row) for row in request.state.catalog.read(keys.list_keys)]
    return answer(short_page(listed, lambda key: str(key["id"]), limit=limit, cursor=cursor))


@router.delete("/v1/tokens/{token:name}", status_code=204, responses=declared(401, 403, 404))
def revoke_token(request: Request, token: str, _: Admin) -> Response:
    """Revoke a key; it stays in the list."""
    request.state.catalog.write(_revoke, token)
    return Response(status_code=204)


def _create(s: Session, request: Request, wanted: TokenRequest) -> tuple[ApiKeyRow, str]:
    row, secret = keys.create_key(s, wanted.name or wanted.role, wanted.role)
    if (entry := entry_of(request)) is not None:
        entry.name_resource(f"tokens/{row.id}")
    return row, secret


def _revoke(s: Session, key_id: str) -> None:
    keys.revoke_key(s, key_id)
    wake(s, KEYS)


def _shown(row: ApiKeyRow) -> dict[str, str | None]:
    return {
        "id": row.id,
        "name": row.name,
        "role": row.role,
        "created_at": row.created_at.isoformat(),
        "revoked_at": row.revoked_at.isoformat() if row.revoked_at else None,
        "last_used_at": row.last_used_at.isoformat() if row.last_used_at else None,
    }
