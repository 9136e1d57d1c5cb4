"""What names stand for: the system's resolver, asked without waiting for longer than an attempt can.

It knows threads, and that a name is looked up once at a time. It refuses to know which addresses may be reached
(`service.webhooks.addresses`).

A look-up can not be interrupted, and takes half a minute where no server answers. The event loop's own share four
threads, so that four such names would hold up the targets of all others; and a loop that closes waits for them, so
that SIGTERM took as long as the resolver.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from threading import Thread
from typing import Final

PATIENCE_S: Final = 8.0  # the system's resolver asks its second server after 5 s


class NameLookups:
    """Look-ups of one process: a thread each, which nobody waits for at the end. Belongs to the event loop."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """What a host stands for, at least one. Who asks while a look-up runs waits for that one. Raises OSError."""
        running = self._running.get(host) or self._begin(host)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.shield(running)
        except TimeoutError as error:
            raise TimeoutError(f"{host} was not resolved within {PATIENCE_S:g} s") from error

    def _begin(self, host: str) -> asyncio.Future[list[str]]:
        found: Future[list[str]] = Future()
        try:
            Thread(target=_look_up, args=(host, found), name=f"look-up of {host}", daemon=True).start()
        except RuntimeError as error:  # no more threads may be started
            raise OSError(f"{host} can not be looked up: {error}") from error
        running = self._running[host] = asyncio.wrap_future(found)
        running.add_done_callback(lambda done: self._end(host, done))
        return running

    def _end(self, host: str, done: asyncio.Future[list[str]]) -> None:
        """The next one asks anew; that an error was seen is said, for there may be nobody left who waits for it."""
        del self._running[host]
        done.exception()


def _look_up(host: str, found: Future[list[str]]) -> None:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        found.set_exception(error)
    except ValueError as error:  # UnicodeError, of a name that can not be written in DNS
        found.set_exception(OSError(f"{host}: {error}"))
    else:
        found.set_result([str(address[0]).partition("%")[0] for *_, address in answers])
