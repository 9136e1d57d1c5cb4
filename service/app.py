"""`create_app()`: what lives as long as the service, the border of each request, and the routers.

Knows how the parts are put together. Refuses to know what any of them does.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypedDict

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from service import coordinator, problems
from service.api import (
    aggregators,
    appends,
    audits,
    dashboard,
    document,
    events,
    explanations,
    exports,
    groups,
    health,
    instances,
    job_copies,
    job_creation,
    job_metrics,
    job_resets,
    job_times,
    job_verbs,
    job_versions,
    jobs,
    lookups,
    overview,
    reads,
    replays,
    series,
    simulations,
    stores,
    stream_usage,
    streams,
    subscriptions,
    tails,
    time_resets,
    tokens,
)
from service.api.key_pages import KeyPages
from service.api.post_bodies import PostBodies
from service.api.quick_lookups import QuickLookups, RepeatedLookups, is_like_a_lookup
from service.api.quick_posts import QuickPosts
from service.api.quick_slots import QuickSlots
from service.audit import RefusedSignIns
from service.auth import KeyRing
from service.border import RequestBorder
from service.catalog import sessions
from service.catalog.engine import Catalog
from service.collector import Collector
from service.connections import QuickGet
from service.ingest import AppendBuffer
from service.live import LiveAnswers
from service.lookups import InRedis, Lookups, OnDisk, sweep_views
from service.loops import Loop, Loops
from service.notify import Hub
from service.reads.subscriptions import Deliveries
from service.reads.tails import Tails
from service.sampler import ROUNDS, Sampler
from service.sealing import Sealer
from service.settings import Settings
from service.simulate.filters import RecordFilters
from service.simulate.processes import BoundedProcesses, Simulations
from service.storage.in_place import ReplicasInPlace
from service.storage.segments import Storage, open_storage
from service.storage.view import Views
from service.streams import partitioner
from service.webhooks.dead import DeadRecords
from service.webhooks.pusher import Pusher

LEASE_ROUNDS: Final = 5  # rounds a lease in which those of idle slots are renewed


class State(TypedDict):
    """The parts of the service, on `request.state`."""

    settings: Settings
    catalog: Catalog
    storage: Storage
    storage_check: health.StorageCheck
    hub: Hub
    ingest: AppendBuffer
    post_bodies: PostBodies
    keys: KeyRing
    sessions: KeyRing
    refused_sign_ins: RefusedSignIns
    loops: Loops
    lookups: Lookups
    key_pages: KeyPages
    processes: BoundedProcesses
    simulations: Simulations
    filters: RecordFilters
    quiet_polls: coordinator.QuietPolls
    waiting_polls: coordinator.WaitingPolls
    tails: Tails
    live: LiveAnswers
    deliveries: Deliveries
    sealer: Sealer


class Service(FastAPI):
    """The framework behind our own border: what the border or a quick answer settles never enters its layers, which
    cost a plain lookup a fifth of its time.
    """

    def __init__(self, settings: Settings, **how: Any) -> None:
        super().__init__(**how)
        self.state.is_draining = False
        self.add_exception_handler(Exception, _leave_to_the_border)
        self._border = RequestBorder(QuickLookups(QuickPosts(QuickSlots(super().__call__))), settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._border(scope, receive, send)

    async def ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the service asks of itself: it is at no border, and in no log."""
        await super().__call__(scope, receive, send)

    def quick_gets(
        self, target: bytes, fields: Sequence[tuple[bytes, bytes]], state: Mapping[str, Any]
    ) -> QuickGet | None:
        """Who answers GETs with the fields of this one ahead of ASGI (`service.connections`)."""
        return RepeatedLookups(fields, state, self._is_draining) if is_like_a_lookup(target, fields) else None

    def _is_draining(self) -> bool:
        return bool(self.state.is_draining)


async def _leave_to_the_border(_: Request, error: Exception) -> Response:
    """Else the framework would answer a fault first, and in its own words."""
    raise error


def create_app(settings: Settings) -> Service:
    """The service as an ASGI application; nothing is opened before it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        state = await run_in_threadpool(_open, settings)
        app.state.hub = state["hub"]
        state["ingest"].start()
        state["loops"].start()
        # 0.5 s of CPU for numba and its kernel, which neither the start nor the first records should wait for
        loading = asyncio.create_task(run_in_threadpool(partitioner.murmur2, bytes(partitioner.SHORT + 1)))
        try:
            yield state
        finally:
            await loading
            state["hub"].close()
            await state["loops"].stop()
            await state["processes"].close()
            await state["lookups"].reader.close()
            await run_in_threadpool(state["ingest"].stop)
            await run_in_threadpool(state["catalog"].close)

    app = Service(
        settings,
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # it would look for itself in every request
    )
    for part in (
        stores,
        lookups,
        streams,
        stream_usage,
        appends,
        reads,
        exports,
        tails,
        events,
        subscriptions,
        job_copies,
        job_creation,
        simulations,
        explanations,
        jobs,
        job_verbs,
        job_resets,
        time_resets,
        job_versions,
        replays,
        job_metrics,
        series,
        job_times,
        overview,
        aggregators,
        groups,
        instances,
        tokens,
        audits,
        health,
        dashboard,
    ):
        # As they are: `include_router` would make each anew with the first request, which took it 0.1 s of CPU.
        app.router.routes.extend(part.router.routes)
    app.router.routes.extend(instances.workers.routes)
    problems.install(app)
    document.install(app)
    return app


def _open(settings: Settings) -> State:
    catalog = Catalog(settings.database_url)
    storage = open_storage(settings.storage_uri)
    hub = Hub()
    keys = KeyRing(catalog, ttl_ms=settings.key_cache_ms)
    catalog.on_wake(hub.wake)
    signed_in = KeyRing(catalog, ttl_ms=settings.key_cache_ms, find=sessions.find_key_of_session)
    catalog.on_wake(keys.hear)
    catalog.on_wake(signed_in.hear)
    catalog.listen()
    collector = Collector(
        catalog,
        storage,
        delete_delay_ms=settings.delete_delay_ms,
        pending_ttl_ms=settings.pending_ttl_ms,
        audit_retention_ms=settings.audit_retention_ms,
        audit_entries=settings.audit_entries,
    )
    quiet_polls = coordinator.QuietPolls(catalog, hub.has_woken)
    ticks = coordinator.Ticks(
        catalog,
        every_ms=settings.tick_ms,
        lease_ms=settings.lease_ms,
        initial_delay_ms=settings.initial_rebalance_delay_ms,
    )
    every_s = settings.collect_every_ms / 1000
    loops = [
        Loop("leases", settings.lease_ms / LEASE_ROUNDS / 1000, quiet_polls.renew),
        Loop("coordinator", settings.tick_ms / 1000, ticks.run_once),
        Loop("collector", every_s, collector.run_once),
    ]
    lookups = Lookups(catalog, hub, _source(settings))
    sampler = Sampler(catalog, lookups.reader.sizes, settings.sample_every_ms)
    loops.append(Loop("samples", settings.sample_every_ms / ROUNDS / 1000, sampler.run_once))
    if (redis_url := settings.redis_url) is not None:
        loops.append(Loop("views", every_s, lambda: sweep_views(redis_url, catalog)))
    ingest = AppendBuffer(
        catalog, storage, group_bytes=settings.ingest_group_bytes, buffer_bytes=settings.ingest_buffer_bytes
    )
    processes = BoundedProcesses()
    live = LiveAnswers(hub, settings.max_event_streams)
    catalog.on_wake(live.hear)
    filters = RecordFilters(processes, settings.max_tail_filters)
    deliveries = Deliveries(catalog, storage, hub)
    key = settings.secret_key.get_secret_value() if settings.secret_key else None
    sealer = Sealer(key, settings.data_dir / "secret-key")
    pusher = Pusher(
        catalog,
        hub,
        deliveries,
        may_be_private=settings.webhook_private_addresses == "on",
        secret_of=sealer.open,
        bury=DeadRecords(catalog, ingest).keep,
    )
    return State(
        settings=settings,
        catalog=catalog,
        storage=storage,
        storage_check=health.StorageCheck(storage, settings.min_free_bytes),
        hub=hub,
        ingest=ingest,
        post_bodies=PostBodies(ingest, key_bytes=settings.ingest_key_bytes),
        keys=keys,
        sessions=signed_in,
        refused_sign_ins=RefusedSignIns(catalog),
        loops=Loops([*loops, pusher]),
        lookups=lookups,
        key_pages=KeyPages(),
        processes=processes,
        simulations=Simulations(processes),
        filters=filters,
        quiet_polls=quiet_polls,
        waiting_polls=coordinator.WaitingPolls(settings.lease_ms),
        tails=Tails(catalog, storage, hub, filters.shared),
        live=live,
        deliveries=deliveries,
        sealer=sealer,
    )


def _source(settings: Settings) -> OnDisk | InRedis:
    """The source of lookups: the view, where there is one."""
    if settings.redis_url is not None:
        return InRedis(Views(settings.redis_url))
    return OnDisk(ReplicasInPlace(settings.replica_dir or settings.data_dir / "replicas"))
