"""Health, readiness, version, and Prometheus' figures."""

import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal

import structlog
from fastapi import Depends
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service import prometheus
from service.api.bodies import answer
from service.api.document import router_of
from service.auth import Reader
from service.catalog import totals
from service.lookups import ping_views
from service.parameters import refuse_unknown_parameters
from service.problems import declared
from service.storage.segments import Storage
from service.streams.errors import StreamError

STORAGE_KNOWN_S = 2.0  # `/readyz` asks nobody for a key: it may not be a way to keep the storage busy

METRICS_EXAMPLE = 'millrace_job_records_in_total{job="visits"} 42.0\n'
OPEN = [Depends(refuse_unknown_parameters)]  # elsewhere, that is settled with the key

router = router_of("operations")


class HealthView(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class ReadinessView(BaseModel):
    """Each part that the service needs: `ok`, or what is wrong with it."""

    status: Literal["ready", "not_ready"]
    parts: dict[str, str]


class InfoView(BaseModel):
    """Version, catalog and authentication of this process."""

    name: str
    version: str
    lineage: str
    database: str
    auth: Literal["on", "off"]


class StorageCheck:
    """Whether the storage can be written and has room, as it was found a moment ago. Safe to share between threads."""

    def __init__(self, storage: Storage, min_free_bytes: int) -> None:
        self._storage, self._min_free_bytes = storage, min_free_bytes
        self._found, self._until_s = "", 0.0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        """`ok`, or what is wrong."""
        with self._lock:
            if time.monotonic() >= self._until_s:
                self._found = self._look()
                self._until_s = time.monotonic() + STORAGE_KNOWN_S
            return self._found

    def _look(self) -> str:
        found = _probe("the storage", self._storage.check)
        free = self._storage.free_bytes() if found == "ok" else None
        if free is None or free >= self._min_free_bytes:
            return found
        return f"nearly full: {free} bytes are free, MILLRACE_MIN_FREE_BYTES is {self._min_free_bytes}"


@router.get("/healthz", responses={200: {"model": HealthView}, **declared(422)}, dependencies=OPEN)
async def healthz() -> Response:
    """Whether the process answers."""
    return answer({"status": "ok"})


@router.get(
    "/readyz",
    responses={200: {"model": ReadinessView}, 503: {"model": ReadinessView}, **declared(422)},
    dependencies=OPEN,
)
def readyz(request: Request) -> Response:
    """Whether jobs can run: database, storage (can be written, has room), Redis if it is set, the service's own loops,
    a live instance that has cores.
    """
    state = request.state
    parts = {
        "database": _probe("the database", lambda: state.catalog.read(totals.live_instances)),
        "storage": state.storage_check(),
        "loops": f"ended: {', '.join(state.loops.ended)}" if state.loops.ended else "ok",
        "instances": "not known",
        "intake": "draining" if getattr(request.app.state, "is_draining", False) else "ok",
    }
    if (redis_url := state.settings.redis_url) is not None:
        parts["redis"] = _probe("Redis", lambda: ping_views(redis_url))
    if parts["database"] == "ok":
        parts["instances"] = state.catalog.read(totals.instances_standing)
    is_ready = all(part == "ok" for part in parts.values())
    return answer({"status": "ready" if is_ready else "not_ready", "parts": parts}, 200 if is_ready else 503)


@router.get("/info", responses={200: {"model": InfoView}, **declared(401, 403)})
def info(request: Request, _: Reader) -> Response:
    """Version, catalog and lineage."""
    state = request.state
    return answer(
        {
            "name": "millrace",
            "version": version("millrace"),
            "lineage": state.catalog.lineage,
            "database": state.catalog.url.get_backend_name(),
            "auth": state.settings.auth,
        }
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus' text format",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": METRICS_EXAMPLE}},
        },
        **declared(401, 403, 503),
    },
)
async def prometheus_metrics(request: Request, _: Reader) -> Response:
    """Requests of this process; jobs, tasks and operators as the catalog has them; sizes of stores that can be read."""
    figures = await run_in_threadpool(request.state.catalog.read, totals.catalog_totals)
    sizes = await request.state.lookups.reader.sizes(totals.store_partitions(figures.tasks, figures.stores))
    text = await run_in_threadpool(prometheus.exposition, figures, sizes)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _probe(name: str, part: Callable[[], Any]) -> str:
    """`ok`, or that it does not answer; why (hosts, users, paths) is in the log, for this page needs no key."""
    try:
        part()
    except (SQLAlchemyError, OSError, StreamError) as error:
        structlog.get_logger().warning("not_ready", part=name, error=str(error) or type(error).__name__)
        return f"{name} does not answer; why is in the log"
    return "ok"
