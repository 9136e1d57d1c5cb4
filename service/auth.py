"""Authentication and roles: a bearer key has one of four.

Knows roles and the SHA-256 of a key. Refuses to know keys themselves: one is shown when it is made, never again.
`reader < writer < admin`; `instance` stands apart (it may join, work and commit, nothing else).
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import structlog
from cachetools import TLRUCache
from fastapi import Depends
from fastapi.security import HTTPBearer
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Scope

from service.catalog import keys
from service.catalog.engine import EVERYTHING, Catalog
from service.parameters import refuse_unknown_parameters
from service.problems import ProblemError

ROLES = ("reader", "writer", "admin", "instance")
MAY: dict[str, frozenset[str]] = {
    "reader": frozenset({"reader", "writer", "admin"}),
    "writer": frozenset({"writer", "admin"}),
    "admin": frozenset({"admin"}),
    "instance": frozenset({"instance", "admin"}),
}
CACHED_KEYS = 1024
KEYS = "keys"  # the topic woken when a key is revoked


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
    """The keys the catalog holds, remembered for `ttl_ms`; a revocation in this process is seen at once.

    All who show a key at the same time wait for one look at the catalog, and nobody does for a key that is in use: it
    is looked up again behind their backs. Belongs to the event loop, but for `forget` and `hear`.
    """

    def __init__(self, catalog: Catalog, *, ttl_ms: int) -> None:
        self._catalog = catalog
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
        row = await run_in_threadpool(self._catalog.read, keys.find_key, sha256=sha256)
        return None if row is None else Caller(row.id, row.name, row.role)

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
        found = await identify(request)
        if found.role not in MAY[role]:
            raise ProblemError(403, "forbidden", f"this needs the role {role}; the key has the role {found.role}")
        refuse_unknown_parameters(request)  # not before: what a route has is for those who may use it
        return found

    return caller


async def identify(request: Request) -> Caller:
    """The caller of a request; 401 when it shows no key, or one that is not valid."""
    if request.state.settings.auth == "off":
        return NOBODY
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise _unauthenticated("this needs the header Authorization: Bearer KEY", "")
    caller: Caller | None = await request.state.keys.caller(secret.strip())
    if caller is None:
        raise _unauthenticated("the key is not valid, or was revoked", ', error="invalid_token"')
    return caller


def is_known(scope: Scope, role: str) -> bool:
    """Whether it is at hand that the caller of a request has a role; where it is not, the way to the routes tells."""
    return SameCaller(scope["headers"], scope["state"], role).is_known()


class SameCaller:
    """The caller of requests with the same fields, each judged by itself: the key's digest alone is computed once."""

    __slots__ = ("_is_open", "_keys", "_may", "_sha256")

    def __init__(self, fields: Iterable[tuple[bytes, bytes]], state: Mapping[str, Any], role: str) -> None:
        self._is_open = state["settings"].auth == "off"
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


def _unauthenticated(detail: str, error: str) -> ProblemError:
    return ProblemError(401, "unauthenticated", detail, headers={"WWW-Authenticate": f'Bearer realm="millrace"{error}'})


Reader = Annotated[Caller, Depends(_require("reader"))]
Writer = Annotated[Caller, Depends(_require("writer"))]
Admin = Annotated[Caller, Depends(_require("admin"))]
Instance = Annotated[Caller, Depends(_require("instance"))]
