"""Simulations, as the API asks for them: each in a process of its own, so many at once, the others wait for their turn.

It knows the fork server's life and the frames of a request and an answer. It refuses to know what is simulated. Nothing
that a process takes, or dies of, is the API's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import astuple
from typing import Any, Final, Self

from starlette.concurrency import run_in_threadpool

from service.problems import ProblemError, Refusal, refusal_of
from service.simulate.child import HEAD, Limits
from service.simulate.forkserver import EXPLANATION, READY, SIMULATION
from service.streams.errors import ExplanationTooLarge, SimulationTooLarge

AT_ONCE: Final = 2
WAIT_S: Final = 10.0
_START_S: Final = 120.0
_END_S: Final = 5.0
# The fork server has one thread, and knows no key: libraries would start threads when they are imported.
_ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


class ForkServer:
    """A fork server that runs."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process, self._control = process, control

    @classmethod
    def start(cls, limits: Limits) -> Self:
        """Start one; returns when it is ready. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        with theirs:
            handle = theirs.fileno()
            command = [sys.executable, "-m", "service.simulate.forkserver", *map(str, (handle, *astuple(limits)))]
            process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                command, env=environment | _ENVIRONMENT, pass_fds=[handle], stdin=subprocess.DEVNULL, stdout=sys.stderr
            )
        started = cls(process, ours)
        ours.settimeout(_START_S)
        with contextlib.suppress(OSError):
            if ours.recv(1) == READY:
                return started
        started.stop()
        raise OSError("simulations can not be run: their process did not start; why is in the log")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, kind: bytes) -> socket.socket:
        """The connection to a new child. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [kind], [theirs.fileno()])
        ours.setblocking(False)
        return ours

    def stop(self) -> None:
        """End it and all that it runs."""
        self._control.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class BoundedProcesses:
    """The processes of one service that others' texts run in, and their parent. Belongs to the event loop."""

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008  a frozen value
        self.limits = limits
        self._starting = asyncio.Lock()
        self._server: ForkServer | None = None

    async def parent(self) -> ForkServer:
        """Their parent, started where it does not run. Raises OSError."""
        async with self._starting:
            if self._server is None or not self._server.is_alive:
                await self.close()
                self._server = await run_in_threadpool(ForkServer.start, self.limits)
            return self._server

    async def close(self) -> None:
        """End all of them."""
        if self._server is not None:
            await run_in_threadpool(self._server.stop)


class Simulations:
    """The simulations of one service. Belongs to the event loop."""

    def __init__(self, processes: BoundedProcesses) -> None:
        self._processes = processes
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def run(self, request: bytes) -> bytes | Refusal:
        """Simulate what a body asks for: the body of the answer, or why there is none. Raises ProblemError (429)."""
        await self._processes.parent()  # its start is nobody's turn
        async with self._turn():
            parent = await self._processes.parent()
            with parent.begin(SIMULATION) as connection:
                answer = await _ask(connection, request)
            if answer is not None:
                return answer
            if not parent.is_alive:
                raise RuntimeError("The parent of simulations ended; its log says why")
            return refusal_of(SimulationTooLarge(self._processes.limits.passed))

    async def explain(self, frames: AsyncIterator[bytes]) -> bytes | Refusal:
        """Explain what the first frame asks of the records in the others (`explain_child`). Otherwise as `run`."""
        await self._processes.parent()
        async with self._turn():
            parent = await self._processes.parent()
            with parent.begin(EXPLANATION) as connection:
                answer = await _ask_in_frames(connection, frames)
            if answer is not None:
                return answer
            if not parent.is_alive:
                raise RuntimeError("The parent of simulations ended; its log says why")
            return refusal_of(ExplanationTooLarge(self._processes.limits.passed))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._turns.acquire()
        except TimeoutError as error:
            detail = f"{AT_ONCE} simulations are running: try again"
            raise ProblemError(429, "simulations_busy", detail, headers={"Retry-After": "5"}) from error
        try:
            yield
        finally:
            self._turns.release()


async def _ask(connection: socket.socket, request: bytes) -> bytes | Refusal | None:
    """None: it ended without an answer."""
    with contextlib.suppress(ConnectionError):  # it may have ended already
        head, body = await exchange(connection, request)
        # its end: the process is gone, and what it kept
        await asyncio.get_running_loop().sock_recv(connection, 1)
        return body if "length" in head else Refusal(**head)
    return None


async def _ask_in_frames(connection: socket.socket, frames: AsyncIterator[bytes]) -> bytes | Refusal | None:
    """None: it ended without an answer."""
    with contextlib.suppress(ConnectionError):
        async for frame in frames:
            await send_frame(connection, frame)
        head, body = await exchange(connection, b"")
        await asyncio.get_running_loop().sock_recv(connection, 1)
        return body if "length" in head else Refusal(**head)
    return None


async def send_frame(connection: socket.socket, frame: bytes) -> None:
    """Hand a child what it reads next. Raises ConnectionError."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, HEAD.pack(len(frame)))
    await loop.sock_sendall(connection, frame)


async def exchange(connection: socket.socket, frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Hand a child a frame: its answer's head and body. Raises ConnectionError: it ended without."""
    await send_frame(connection, frame)
    (head_bytes,) = HEAD.unpack(await _received(connection, HEAD.size))
    head: dict[str, Any] = json.loads(await _received(connection, head_bytes))
    return head, await _received(connection, head.get("length", 0))


async def _received(connection: socket.socket, length: int) -> bytes:
    """So many bytes, in one piece. Raises ConnectionError."""
    loop, whole = asyncio.get_running_loop(), bytearray(length)
    at = 0
    while at < length:
        count = await loop.sock_recv_into(connection, memoryview(whole)[at:])
        if count == 0:
            raise ConnectionResetError("it ended before its answer did")
        at += count
    return bytes(whole)
