"""The dashboard at `/admin`: its files, and the sessions of people who signed in to it.

Knows files, cookies and what a page may load. Refuses to know what the pages show: they ask the API like anybody else
(`dashboard/`). None of this is in the OpenAPI document: programs have keys.
"""

from __future__ import annotations

import html
import re
import secrets
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from service import origins
from service.api.bodies import answer, read_model
from service.api.moments import moment
from service.auth import (
    KEYS,
    MAY,
    NOBODY,
    Caller,
    cookie_names,
    csrf_token,
    follow,
    identify,
    require_role,
    session_of,
    unauthenticated,
)
from service.catalog import keys, sessions
from service.catalog.engine import wake
from service.catalog.tables import ApiKeyRow
from service.parameters import refuse_unknown_parameters
from service.problems import ProblemError

BUILT: Final = Path(__file__).parents[1] / "dashboard"  # by `make install`, or in the wheel; no part of the sources
WHY_NOT: Final = "why-not.txt"  # there in its place where it could not be built
NONCE: Final = "__NONCE__"  # in the built page, where one of an answer's own belongs
FOR_EVER: Final = "public, max-age=31536000, immutable"  # an asset's name holds a digest of it
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_NO_STORE: Final = {"Cache-Control": "no-store"}
_ASSET: Final = re.compile(r"[\w-][\w.-]*")
_MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_ABSENT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Millrace</title></head>
<body><main><h1>The dashboard is not here</h1><p>{why}</p>
<p>The API is: see <a href="/docs">its pages</a>. <code>make dashboard</code> builds what is missing.</p></main>
</body></html>
"""

router = APIRouter(include_in_schema=False)
EXACT: Final = [Depends(refuse_unknown_parameters)]  # not of the page: what stands in its address is for its scripts

Secret = Annotated[str, Field(min_length=1, max_length=200)]


class SignInRequest(BaseModel):
    """A key, or a code that stands for one, once."""

    model_config = ConfigDict(extra="forbid")

    key: Secret | None = None
    code: Secret | None = None

    @model_validator(mode="after")
    def _is_one(self) -> SignInRequest:
        if (self.key is None) == (self.code is None):
            raise PydanticCustomError("millrace", "give either key or code")
        return self


# ---------------------------------------------------------------- sessions


@router.post("/admin/session", status_code=201, dependencies=EXACT)
async def sign_in(request: Request) -> Response:
    """Begin a session: for a key, or for a code that is used up by that."""
    settings = request.state.settings
    origins.refuse_other_pages(request.headers, settings)  # else a page could have people work under another's name
    wanted = await read_model(request, SignInRequest)
    if settings.auth == "off":
        return answer(_shown(await identify(request), None, None), headers=_NO_STORE)
    caller = await _who(request, wanted)
    refused = request.state.refused_sign_ins
    if caller is None:
        await refused.note(request, 401)
        raise unauthenticated("the key is not valid, or was revoked" if wanted.key else "the code is used up, or over")
    if caller.role not in MAY["reader"]:
        await refused.note(request, 403, key_id=caller.id, key_name=caller.name, role=caller.role)
    require_role(caller, "reader")
    follow(request, caller)
    begin, lasts_ms = sessions.begin_session, settings.session_ms
    secret, ends_ms = await run_in_threadpool(request.state.catalog.write, begin, caller.id, lasts_ms=lasts_ms)
    shown = answer(_shown(caller, secret, ends_ms), 201, headers=_NO_STORE)
    _set_cookie(request, shown, secret, lasts_ms // 1000)
    return shown


@router.get("/admin/session", dependencies=EXACT)
async def get_session(request: Request) -> Response:
    """Who is signed in, until when, and what a write has to show."""
    caller = await identify(request)
    secret = None if request.headers.get("Authorization") else session_of(request)
    if caller is NOBODY or secret is None:
        return answer(_shown(caller, None, None), headers=_NO_STORE)
    ends_ms = await run_in_threadpool(request.state.catalog.read, sessions.end_of_session, keys.digest(secret))
    return answer(_shown(caller, secret, ends_ms), headers=_NO_STORE)


@router.delete("/admin/session", status_code=204, dependencies=EXACT)
async def sign_out(request: Request) -> Response:
    """End the session, everywhere and at once."""
    caller = await identify(request)
    if (secret := session_of(request)) is not None:
        follow(request, caller)
        await run_in_threadpool(request.state.catalog.write, _end, keys.digest(secret))
    done = Response(status_code=204)
    _set_cookie(request, done, "", 0)
    return done


@router.post("/admin/codes", status_code=201, dependencies=EXACT)
async def make_code(request: Request) -> Response:
    """A link with which somebody may sign in once as who asks. A key is needed: sessions do not beget sessions."""
    caller = await identify(request, takes_session=False)
    require_role(caller, "reader")
    home = request.state.settings.public_url or str(request.base_url).rstrip("/")
    if caller is NOBODY:
        return answer({"url": f"{home}/admin"}, 201, headers=_NO_STORE)
    follow(request, caller)
    code = await run_in_threadpool(request.state.catalog.write, sessions.make_code, caller.id)
    return answer({"url": sign_in_link(home, code)}, 201, headers=_NO_STORE)


def sign_in_link(home: str, code: str) -> str:
    """The page's address with a code, behind `#`: what stands there is sent to no server, so it is in no log."""
    return f"{home}/admin#code={code}"


async def _who(request: Request, wanted: SignInRequest) -> Caller | None:
    """Whose key or code it is; nothing is written for one that is not valid."""
    state = request.state
    if wanted.code is None:
        caller: Caller | None = await state.keys.caller(wanted.key)
        return caller
    if not await run_in_threadpool(state.catalog.read, sessions.is_code, wanted.code):
        return None
    key: ApiKeyRow | None = await run_in_threadpool(state.catalog.write, sessions.redeem_code, wanted.code)
    return None if key is None else Caller(key.id, key.name, key.role)


def _end(s: Session, sha256: str) -> None:
    sessions.end_session(s, sha256)
    wake(s, KEYS)


def _shown(caller: Caller, secret: str | None, ends_ms: int | None) -> dict[str, Any]:
    return {
        "name": caller.name,
        "role": caller.role,
        "is_open": caller is NOBODY,
        "ends_at": None if ends_ms is None else moment(ends_ms),
        "csrf_token": None if secret is None else csrf_token(secret),
    }


def _set_cookie(request: Request, shown: Response, secret: str, lasts_s: int) -> None:
    is_secure = origins.is_encrypted(request.headers, request.state.settings)
    with_tls, plain = cookie_names(request.state.catalog)
    name = with_tls if is_secure else plain
    shown.set_cookie(name, secret, max_age=lasts_s, path="/", secure=is_secure, httponly=True, samesite="strict")


# ---------------------------------------------------------------- files


@router.get("/admin/assets/{name}", dependencies=EXACT)
def get_asset(request: Request, name: str) -> Response:
    """A file of the dashboard, which never changes under its name; compressed where that is taken."""
    file = BUILT / "assets" / name
    if not _ASSET.fullmatch(name) or name.endswith(".gz") or not file.is_file():
        raise ProblemError(404, "no_such_route", f"nothing is served at {request.url.path}")
    headers = {**HEADERS, "Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
    packed = file.with_name(f"{name}.gz")
    if "gzip" in request.headers.get("Accept-Encoding", "") and packed.is_file():
        headers["Content-Encoding"] = "gzip"
        file = packed
    return FileResponse(file, media_type=_MEDIA_TYPES.get(Path(name).suffix), headers=headers)


@router.get("/admin")
@router.get("/admin/{_path:path}")
def get_page() -> Response:
    """The dashboard's page, which is the same at each of its addresses; where it was not built, why."""
    nonce = secrets.token_urlsafe(16)
    headers = {**HEADERS, **_NO_STORE, "Content-Security-Policy": _policy(nonce)}
    built, reason = BUILT / "index.html", BUILT / WHY_NOT
    if built.exists():
        return HTMLResponse(built.read_text().replace(NONCE, nonce), headers=headers)
    why = reason.read_text().strip() if reason.exists() else "this package was built without it"
    return HTMLResponse(_ABSENT.format(why=html.escape(why)), 503, headers=headers)


def _policy(nonce: str) -> str:
    """What the page may do: its own scripts and files, styles of its own making, requests to this service alone."""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
