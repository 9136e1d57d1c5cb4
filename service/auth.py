"""Authentication and roles: a bearer key has one of four; a browser's session stands for the key that began it.

Knows roles, and the SHA-256 of keys and sessions. Refuses to know keys themselves: one is shown when it is made, never
again. `reader < writer < admin`; `instance` stands apart (it may join, work and commit, nothing else).
"""

import asyncio
import hmac
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import structlog
from cachetools import TLRUCache
from fastapi import Depends
from fastapi.security import HTTPBearer
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from service import audit, origins
from service.catalog import keys
from service.catalog.engine import EVERYTHING, Catalog
from service.catalog.tables import ApiKeyRow
from service.parameters import refuse_unknown_parameters
from service.problems import ProblemError
from service.streams.errors import CatalogUnavailable

ROLES = ("reader", "writer", "admin", "instance")
MAY: dict[str, frozenset[str]] = {
    "reader": frozenset({"reader", "writer", "admin"}),
    "writer": frozenset({"writer", "admin"}),
    "admin": frozenset({"admin"}),
    "instance": frozenset({"instance", "admin"}),
}
CHANGING: Final = frozenset({"writer", "admin"})  # who needs one of these to ask for something changes something
CACHED_KEYS = 1024
ASKING = "millrace.caller"  # in the scope of a request that the service makes of itself: for whom
KEYS = "keys"  # the topic woken when a key is revoked, or a session is ended
CSRF_HEADER: Final = "X-CSRF-Token"


@dataclass(frozen=True)
class Caller:
    """The key behind a request: its id (the scope of idempotency keys), name and role."""

    id: str
    name: str
    role: str


NOBODY = Caller("", "anonymous", "admin")  # authentication is off: whoever reaches loopback may do anything


class _RememberedKey(NamedTuple):
    caller: Caller
    until_s: float  # by the monotonic clock, from the moment in which the catalog was asked


def _cache() -> TLRUCache[str, _RememberedKey]:
    """Keys by digest until each one's time is over; of too many the one that was used least recently goes."""
    return TLRUCache(CACHED_KEYS, ttu=lambda _, known, __: known.until_s, timer=time.monotonic)


class KeyRing:
    """The keys the catalog holds, by the digest of what is shown for one (`find`): the key itself, or a session.
    They are remembered for `ttl_ms`; a revocation in this process is seen at once.

    All who show a key at the same time wait for one look at the catalog, and nobody does for a key that is in use: it
    is looked up again behind their backs. Belongs to the event loop, but for `forget` and `hear`.
    """

    def __init__(
        self, catalog: Catalog, *, ttl_ms: int, find: Callable[[Session, str], ApiKeyRow | None] = keys.find_key
    ) -> None:
        self._catalog = catalog
        self._find_key = find
        self._ttl_s = ttl_ms / 1000
        self._known = _cache()
        self._asking: dict[str, asyncio.Task[Caller | None]] = {}
        self._lock = threading.Lock()

    def at_hand(self, secret: str) -> Caller | None:
        """Whose key this is, if that is remembered."""
        return self.of_digest(keys.digest(secret))

    def of_digest(self, sha256: str) -> Caller | None:
        """Whose key has this digest, if that is remembered."""
        try:
            known = self._known[sha256]  # `get` looks twice
        except KeyError:
            return None
        if known.until_s - time.monotonic() < self._ttl_s / 2:
            self._ask(sha256)
        return known.caller

    async def caller(self, secret: str) -> Caller | None:
        """Whose key this is; None when there is no such key, or no longer."""
        return self.at_hand(secret) or await asyncio.shield(self._ask(keys.digest(secret)))

    def forget(self) -> None:
        """Ask the catalog again for every key: one was revoked. What it was asked before that counts for nothing."""
        with self._lock:
            self._known, self._asking = _cache(), {}

    def _ask(self, sha256: str) -> asyncio.Task[Caller | None]:
        task = self._asking.get(sha256)
        if task is None:
            task = self._asking[sha256] = asyncio.create_task(self._find(sha256))
            until_s = time.monotonic() + self._ttl_s
            task.add_done_callback(lambda done: self._keep(sha256, done, until_s))
        return task

    async def _find(self, sha256: str) -> Caller | None:
        row = await run_in_threadpool(self._catalog.read, self._find_key, sha256)
        if row is None:
            return None
        if keys.is_use_due(row):
            await run_in_threadpool(self._note_use, row.id)
        return Caller(row.id, row.name, row.role)

    def _note_use(self, key_id: str) -> None:
        """Nobody is kept out because it can not be noted."""
        try:
            self._catalog.write(keys.note_use, key_id)
        except CatalogUnavailable as error:
            structlog.get_logger().warning("key_use_not_noted", key=key_id, error=str(error))

    def _keep(self, sha256: str, done: asyncio.Task[Caller | None], until_s: float) -> None:
        """Remember an answer, unless something was revoked since it was asked for."""
        failed = done.cancelled() or done.exception() is not None  # who waits for it has the reason
        with self._lock:
            if self._asking.get(sha256) is not done:
                return
            del self._asking[sha256]
            caller = None if failed else done.result()
            if caller is not None:
                self._known[sha256] = _RememberedKey(caller, until_s)
            elif not failed:
                self._known.pop(sha256, None)

    def hear(self, topics: Iterable[str]) -> None:
        """A wake-up: forget when it is about keys, or may have been."""
        if not {KEYS, EVERYTHING}.isdisjoint(topics):
            self.forget()


def install_admin(s: Session, *, secret: str) -> None:
    """Make the bootstrap key valid and end the one before it; one that was revoked since stays revoked."""
    if keys.replace_bootstrap_key(s, secret=secret).revoked_at is not None:
        structlog.get_logger().warning("bootstrap_key_is_revoked", hint="set another one")


_scheme = HTTPBearer(
    scheme_name="key", description="A key made by `millrace token create` or `POST /v1/tokens`.", auto_error=False
)


def _require(role: str) -> Callable[..., Awaitable[Caller]]:
    async def caller(request: Request, _: Annotated[object, Depends(_scheme)]) -> Caller:
        found = await identify(request, takes_session=role != "instance")
        require_role(found, role)
        refuse_unknown_parameters(request)  # not before: what a route has is for those who may use it
        if role in CHANGING:
            follow(request, found)
        return found

    return caller


def require_role(caller: Caller, role: str) -> None:
    """Raises ProblemError 403 where a caller may not do what the role may."""
    if caller.role not in MAY[role]:
        raise ProblemError(403, "forbidden", f"this needs the role {role}; the key has the role {caller.role}")


def follow(request: Request, caller: Caller) -> None:
    """Have what the request changes stand in the audit, with the caller's key."""
    audit.follow(request, key_id=caller.id, key_name=caller.name, role=caller.role)


async def identify(request: Request, *, takes_session: bool = True) -> Caller:
    """The caller of a request; 401 when it shows no key and no session, or one that is not valid; 403 where a page of
    somebody else's has a browser ask for those who are known by their browser, or by nothing.
    """
    settings = request.state.settings
    if (asking := request.scope.get(ASKING)) is not None:
        return asking  # type: ignore[no-any-return]
    if settings.auth == "off":
        _refuse_strange_pages(request.headers, settings)
        return NOBODY
    header = request.headers.get("Authorization", "")
    if not header and takes_session and (session := session_of(request)):
        return await _caller_of_session(request, session)
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise unauthenticated("this needs the header Authorization: Bearer KEY", "")
    caller: Caller | None = await request.state.keys.caller(secret.strip())
    if caller is None:
        raise unauthenticated("the key is not valid, or was revoked")
    return caller


async def is_still_known(request: Request) -> bool:
    """Whether a request that goes on for long is of somebody still; a catalog that does not answer ends none."""
    try:
        await identify(request)
    except CatalogUnavailable:
        return True
    except ProblemError:
        return False
    return True


async def _caller_of_session(request: Request, session: str) -> Caller:
    caller: Caller | None = await request.state.sessions.caller(session)
    if caller is None:
        raise unauthenticated("the session has ended")
    origins.refuse_other_sites(request.headers)
    if request.method not in audit.SAFE:
        _refuse_forged(request, session)
    return caller


def _refuse_forged(request: Request, session: str) -> None:
    """Every browser says of a write which page it is of; and only a page that could read the token has it."""
    if "Origin" not in request.headers:
        raise ProblemError(403, "cross_site_request", "this needs the header Origin, where a session asks")
    origins.refuse_other_pages(request.headers, request.state.settings)
    if not hmac.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), csrf_token(session).encode()):
        raise ProblemError(403, "cross_site_request", f"this needs the header {CSRF_HEADER} with the session's token")


def csrf_token(session: str) -> str:
    """What a page has to show with each write of a session; the session itself no page can read."""
    return hmac.digest(session.encode(), b"csrf", "sha256").hex()


def cookie_names(catalog: Catalog) -> tuple[str, str]:
    """The session's cookie where people come over TLS, and where they do not. Cookies do not tell ports apart: each
    catalog has names of its own.
    """
    name = f"millrace-{catalog.lineage[:12]}"
    return f"__Host-{name}", name


def session_of(request: Request) -> str | None:
    """The session that a request shows. Under a public URL with TLS only a cookie that no other host can have set."""
    state = request.state
    with_tls, plain = cookie_names(state.catalog)
    is_tls_known = (state.settings.public_url or "").startswith("https://")
    return request.cookies.get(with_tls) or (None if is_tls_known else request.cookies.get(plain))


def _refuse_strange_pages(fields: Headers, settings: Any) -> None:
    """Without authentication a browser on this machine is all that a page needs."""
    if not origins.is_own_host(fields, settings):
        raise ProblemError(403, "cross_site_request", f"the service is not called {fields['host']!r}")
    origins.refuse_other_pages(fields, settings)


def is_known(scope: Scope, role: str) -> bool:
    """Whether it is at hand that the caller of a request has a role; where it is not, the way to the routes tells."""
    return SameCaller(scope["headers"], scope["state"], role).is_known()


class SameCaller:
    """The caller of requests with the same fields, each judged by itself: the key's digest alone is computed once."""

    __slots__ = ("_is_open", "_keys", "_may", "_sha256")

    def __init__(self, fields: Iterable[tuple[bytes, bytes]], state: Mapping[str, Any], role: str) -> None:
        self._is_open = _is_open(fields, state["settings"])
        self._keys: KeyRing = state["keys"]
        self._may = MAY[role]
        header = next((value for name, value in fields if name == b"authorization"), b"")
        scheme, _, secret = header.decode("latin-1").partition(" ")
        self._sha256 = keys.digest(secret.strip()) if scheme.lower() == "bearer" else None

    def is_known(self) -> bool:
        """Whether it is at hand that the caller has the role."""
        if self._is_open:
            return True
        caller = None if self._sha256 is None else self._keys.of_digest(self._sha256)
        return caller is not None and caller.role in self._may


def _is_open(fields: Iterable[tuple[bytes, bytes]], settings: Any) -> bool:
    """Whether whoever sent these fields may do anything."""
    if settings.auth == "on":
        return False
    headers = Headers(raw=list(fields))
    return origins.is_own_host(headers, settings) and origins.is_own_page(headers, settings)


def unauthenticated(detail: str, error: str = ', error="invalid_token"') -> ProblemError:
    """A refusal (401) with the challenge that goes with it."""
    return ProblemError(401, "unauthenticated", detail, headers={"WWW-Authenticate": f'Bearer realm="millrace"{error}'})


Reader = Annotated[Caller, Depends(_require("reader"))]
Writer = Annotated[Caller, Depends(_require("writer"))]
Admin = Annotated[Caller, Depends(_require("admin"))]
Instance = Annotated[Caller, Depends(_require("instance"))]
