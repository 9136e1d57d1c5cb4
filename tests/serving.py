"""The real API for tests: uvicorn on a free loopback port, in a thread of this process, on a migrated catalog.

Knows how to start and stop it, and has a key of each role. There is no instance: tests speak the slot protocol.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop
from fastapi import FastAPI

from service import embedded
from service.app import create_app
from service.auth import ROLES
from service.catalog import keys
from service.catalog.engine import Catalog
from service.notify import Hub
from service.settings import Settings


@dataclass
class Serving:
    """A service that runs; `catalog` is another process's view of its catalog."""

    url: str
    settings: Settings
    catalog: Catalog
    secrets: dict[str, str]
    app: FastAPI
    opened: ExitStack = field(default_factory=ExitStack)

    @property
    def hub(self) -> Hub:
        """Where the service's long polls sleep."""
        hub: Hub = self.app.state.hub
        return hub

    def client(self, role: str | None = "admin", **headers: str) -> httpx.Client:
        """A client with the key of a role, or without one; closed with the service."""
        if role is not None:
            headers = {"Authorization": f"Bearer {self.secrets[role]}", **headers}
        # Waits of up to 60 s are asked for; there is no TLS, whose certificates would take each client 50 ms to load.
        return self.opened.enter_context(httpx.Client(base_url=self.url, headers=headers, timeout=90, verify=False))


@contextmanager
def serving(folder: Path, database_url: str, **settings: Any) -> Iterator[Serving]:
    """Serve until the block ends; `settings` override the defaults."""
    # Tests run as many slots as they need, not all; a lease that is short is what some are about, not what all bear.
    settings = {"initial_rebalance_delay_ms": 0, "lease_ms": 10_000} | settings
    chosen = Settings(data_dir=folder, database_url=database_url, **settings)
    catalog = Catalog(database_url)
    secrets = {role: catalog.write(keys.create_key, role, role)[1] for role in ROLES}
    listener = embedded.listen("127.0.0.1", 0)
    loop = uvloop.new_event_loop()
    app = create_app(chosen)
    server = embedded.Server(app, chosen)
    is_up = threading.Event()

    async def run() -> None:
        served = asyncio.ensure_future(server.serve(sockets=[listener]))
        await server.is_up.wait()
        is_up.set()
        await served

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), name="serving")
    thread.start()
    try:
        assert is_up.wait(30)
        assert server.started
        with ExitStack() as opened:
            yield Serving(embedded.url_of(listener), chosen, catalog, secrets, app, opened)
    finally:
        app.state.hub.close()  # as `millrace api` ends: who waits or follows gets an end to it
        server.should_exit = True
        _wait_for_end(thread, loop)
        loop.close()
        catalog.close()
        listener.close()


def _wait_for_end(thread: threading.Thread, loop: asyncio.AbstractEventLoop) -> None:
    """Raises TimeoutError where it takes longer than any end may, with what it is waiting for."""
    thread.join(30)
    if thread.is_alive():
        seen = io.StringIO()
        for task in asyncio.all_tasks(loop):
            task.print_stack(file=seen)
        for frame in sys._current_frames().values():
            seen.writelines(traceback.format_stack(frame))
        raise TimeoutError(f"the service does not end:\n{seen.getvalue()}")
