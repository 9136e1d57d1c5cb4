"""One simulation in a process of its own: the bytes of a request to the bytes of an answer, within the kernel's limits.

It knows how much memory, processor and disk a simulation may take, and how its end looks where it takes more. It
refuses to know who asked, and who made this process (`forkserver`).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb
import orjson
import structlog

from service.documents import as_json, as_model
from service.problems import ProblemError, Refusal, refusal_of
from service.simulate.request import SimulateRequest, written_values
from service.simulate.run import simulate
from service.streams.errors import SimulationTooLarge, StreamError

HEAD: Final = struct.Struct("<Q")  # before the request: its length; before the answer: that of its head
PATIENCE_S: Final = 30.0  # for the request, which is whole before it is sent here
_NICE: Final = 5  # ingest and lookups go first


@dataclass(frozen=True, slots=True)
class Limits:
    """What the kernel ends a process at. `memory_bytes` is beside what its parent has loaded."""

    memory_bytes: int = 1 << 30
    cpu_s: int = 30
    file_bytes: int = 512 << 20

    def impose(self) -> None:
        """Bind this process and its threads."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.allow_time()
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))
        # Not RLIMIT_AS: a replica maps 64 GiB of a file that is nearly empty. This counts private memory alone.
        limit = _private_bytes() + self.memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # replicas are four each
        os.nice(_NICE)

    def allow_time(self) -> None:
        """Let time begin now: what this process took before counts no more."""
        allowed = int(time.process_time() + 0.9) + self.cpu_s  # the kernel knows whole seconds
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(
            resource.RLIMIT_CPU, (allowed if most == resource.RLIM_INFINITY else min(allowed, most), most)
        )
        signal.setitimer(signal.ITIMER_REAL, self.wall_s)

    @property
    def wall_s(self) -> int:
        """How long one may take, on a machine that has others to do."""
        return 2 * self.cpu_s

    @property
    def passed(self) -> str:
        """Why a process that gave no answer has ended."""
        memory, disk = self.memory_bytes >> 20, self.file_bytes >> 20
        return f"it took more than {memory} MiB of memory, {self.cpu_s} s of a processor or {disk} MiB of disk"


def serve(connection: socket.socket, folder: Path, limits: Limits) -> None:
    """Answer the one request of a connection; `folder` is for what it keeps meanwhile."""
    limits.impose()
    tempfile.tempdir = str(folder)
    connection.settimeout(PATIENCE_S)
    with connection, connection.makefile("rb") as incoming:
        (length,) = HEAD.unpack(incoming.read(HEAD.size))
        head, body = outcome(incoming.read(length), limits)
        packed = json.dumps(head).encode()
        connection.sendall(HEAD.pack(len(packed)) + packed)
        connection.sendall(body)


def outcome(request: bytes, limits: Limits) -> tuple[dict[str, Any], bytes]:
    """The answer's head (`length`, or a Refusal's members) and body."""
    try:
        body = as_model(as_json(request, opaque="value"), SimulateRequest)  # a record's value is text
        found = simulate(body, orjson.Fragment, written_values(request))
        answer = orjson.dumps(found)
    except (StreamError, ProblemError) as error:
        return refusal_of(error)._asdict(), b""
    except (MemoryError, lmdb.Error, OSError) as error:
        structlog.get_logger().warning("simulation_ended", error=str(error))
        return refusal_of(SimulationTooLarge(limits.passed))._asdict(), b""
    except Exception:  # noqa: BLE001  the border of one simulation
        structlog.get_logger().exception("simulation_failed")
        return Refusal(500, "internal_error", "the simulation failed; why is in the log")._asdict(), b""
    return {"length": len(answer)}, answer


def _private_bytes() -> int:
    """The private memory that this process has: what RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return 1024 * int(line.split()[1])
    raise OSError("the kernel does not say how much memory this process has")
