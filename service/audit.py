"""What of the requests is worth an entry in the audit, and how it gets there: in the transaction of the change.

A request that is followed has a catalog whose first `write` adds the entry (`AuditedCatalog`), so no operation has to
think of it, what is refused or only tried out (`dry_run`) leaves none, and none is of a change that is not there.
Knows requests, operations and what of a body may be kept. Refuses to know what an operation does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

import orjson
import structlog
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from service.catalog import audit
from service.catalog.engine import Catalog
from service.catalog.tables import Json
from service.streams.errors import CatalogUnavailable

P = ParamSpec("P")
R = TypeVar("R")

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Writes of who may write that are no change of how the service is set up, or that come with every record.
UNFOLLOWED: Final = frozenset({"append_records", "pull_records", "acknowledge_records"})
SIGN_IN: Final = "sign_in"
SESSIONS: Final = "sessions"

MAX_TEXT: Final = 200  # of a text of an outline
MAX_ITEMS: Final = 50
MAX_DEPTH: Final = 8
MAX_OUTLINE_BYTES: Final = 4_096
MAX_RESOURCE: Final = 600
_HIDDEN: Final = frozenset({"secret", "password", "key", "code", "token", "headers", "authorization"})
REFUSED_A_MINUTE: Final = 10


class AuditEntry:
    """The entry of one request: made when it is known who asks, added with the first write."""

    def __init__(self, request: Request, *, key_id: str, key_name: str, role: str) -> None:
        route = request.scope["route"]
        self._catalog: Catalog = request.state.catalog
        self._who = {"key_id": key_id, "key_name": key_name, "role": role}
        self._promised: int = route.status_code or 200
        self._where = {
            "operation": route.name,
            "method": request.method,
            "path": request.url.path[:MAX_RESOURCE],
            "request_id": request.scope["request_id"],
        }
        self._is_creation = self._promised == 201
        self._place = _place_of(route, request.path_params)
        self._resource = self._place
        self._change: Json | None = None
        self._id: int | None = None

    @property
    def is_written(self) -> bool:
        """Whether it is in the catalog."""
        return self._id is not None

    def keep_body(self, content: object) -> None:
        """What was sent: an outline of it is kept; what makes something is called by that thing's name."""
        if isinstance(content, dict):
            self._change = outline(content)
            name = content.get("name")
            if self._is_creation and isinstance(name, str):
                self._resource = f"{self._place.partition('/')[0] if self._is_verb else self._place}/{name}"

    @property
    def _is_verb(self) -> bool:
        return ":" in str(self._where["path"]).rpartition("/")[2]

    def name_resource(self, resource: str) -> None:
        """Of what is only known once it is made."""
        self._resource = resource

    def add(self, s: Session) -> int:
        """Into the transaction that makes the change."""
        return audit.add_entry(
            s,
            **self._who,
            **self._where,
            resource=self._resource[:MAX_RESOURCE],
            status=self._promised,
            change=self._change,
        )

    def note_added(self, entry_id: int) -> None:
        """The transaction is committed."""
        self._id = entry_id

    async def settle(self, status: int) -> None:
        """The request is answered so. Where the catalog can not be told, what the operation promises stands."""
        if self._id is None or status == self._promised:
            return
        try:
            await run_in_threadpool(self._catalog.write, audit.settle_entry, self._id, status)
        except CatalogUnavailable as error:
            structlog.get_logger().warning("audit_not_settled", entry=self._id, status=status, error=str(error))


class AuditedCatalog:
    """A catalog whose first write adds an entry, in the same transaction."""

    def __init__(self, catalog: Catalog, entry: AuditEntry) -> None:
        self._catalog = catalog
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def write(self, work: Callable[Concatenate[Session, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work(session, ...)` in one transaction with the entry."""
        if self._entry.is_written:
            return self._catalog.write(work, *args, **kwargs)

        def both(s: Session) -> tuple[R, int]:
            return work(s, *args, **kwargs), self._entry.add(s)

        result, entry_id = self._catalog.write(both)
        self._entry.note_added(entry_id)
        return result


def follow(request: Request, *, key_id: str, key_name: str, role: str) -> None:
    """Have what a request changes stand in the audit, if it is a request of that kind."""
    route = request.scope["route"]
    if request.method in SAFE or route.name in UNFOLLOWED:
        return
    entry = AuditEntry(request, key_id=key_id, key_name=key_name, role=role)
    request.scope["audit"] = entry
    request.state.catalog = AuditedCatalog(request.state.catalog, entry)


def entry_of(request: Request) -> AuditEntry | None:
    """The entry of a request that is followed."""
    entry: AuditEntry | None = request.scope.get("audit")
    return entry


class RefusedSignIns:
    """Those who did not get in: a few a minute have entries, of the others it is said how many there were. Whoever has
    no key can so cost a write every six seconds.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._noted_s: deque[float] = deque(maxlen=REFUSED_A_MINUTE)
        self._left_out = 0

    async def note(
        self, request: Request, status: int, *, key_id: str = "", key_name: str = "", role: str = ""
    ) -> None:
        """One more; whose key it was, where it is one that may not sign in."""
        with self._lock:
            now_s = time.monotonic()
            if len(self._noted_s) == REFUSED_A_MINUTE and now_s - self._noted_s[0] < 60:
                self._left_out += 1
                return
            self._noted_s.append(now_s)
            left_out, self._left_out = self._left_out, 0
        await run_in_threadpool(
            self._catalog.write,
            audit.add_entry,
            key_id=key_id,
            key_name=key_name,
            role=role,
            operation=SIGN_IN,
            method=request.method,
            path=request.url.path,
            resource=SESSIONS,
            status=status,
            request_id=request.scope["request_id"],
            change={"left_out": left_out} if left_out else None,
        )


def outline(content: Mapping[str, Any]) -> Json:
    """What of a body is kept: no secrets, of texts and lists their beginnings; of too much the rest."""
    found = {name: _outlined(name, value, 1) for name, value in list(content.items())[:MAX_ITEMS]}
    if len(orjson.dumps(found)) <= MAX_OUTLINE_BYTES:
        return found
    short = {name: "…" if isinstance(value, dict | list) else value for name, value in found.items()}
    return short if len(orjson.dumps(short)) <= MAX_OUTLINE_BYTES else {"…": f"{len(content)} members"}


def _outlined(name: str, value: object, depth: int) -> Any:
    if name.lower() in _HIDDEN and isinstance(value, str | dict):
        return "…"
    if name == "url" and isinstance(value, str):
        return _only_host(value)
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…"
    if isinstance(value, dict | list) and depth == MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(each)[:MAX_TEXT]: _outlined(each, of, depth + 1) for each, of in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, list):
        more = ["…"] if len(value) > MAX_ITEMS else []
        return [_outlined("", each, depth + 1) for each in value[:MAX_ITEMS]] + more
    return value


def _only_host(url: str) -> str:
    """The paths of webhooks are secrets as often as not."""
    try:
        found = urlsplit(url)
        return f"{found.scheme}://{found.hostname}/…"[:MAX_TEXT]
    except ValueError:
        return "…"


def _place_of(route: APIRoute, params: Mapping[str, Any]) -> str:
    """What a path is about: `jobs/NAME` of each of a job's verbs, `streams` of what makes one."""
    if not route.path_format.startswith("/v1/"):
        return SESSIONS
    template = route.path_format.removeprefix("/v1/")
    parameter_ends = template.rfind("}") + 1
    place = template.partition(":")[0] if ":" in template[parameter_ends:] else template
    if parameter_ends and (route.status_code or 200) != 201:
        place = template[:parameter_ends]
    return place.format(**params)
