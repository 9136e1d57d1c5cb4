"""An explanation in a process of its own, within the limits of a simulation.

It knows frames: the task first (JSON), then its records as Arrow IPC streams, then an empty one; the answer is JSON. It
refuses to know who asks, and who made this process (`forkserver`).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import lmdb
import msgspec
import orjson
import pyarrow as pa
import structlog

from service.problems import Refusal, refusal_of
from service.simulate.child import HEAD, PATIENCE_S, Limits
from service.simulate.explained_job import explain_all
from service.simulate.explanation import TaskToExplain, explain
from service.streams.errors import ExplanationTooLarge, StreamError

_task = msgspec.json.Decoder(TaskToExplain)


def serve(connection: socket.socket, folder: Path, limits: Limits) -> None:
    """Answer the one question of a connection; `folder` is for what it keeps meanwhile."""
    limits.impose()
    connection.settimeout(PATIENCE_S)
    with connection, connection.makefile("rb") as incoming:
        head, body = outcome(_frames(incoming), folder, limits)
        packed = json.dumps(head).encode()
        connection.sendall(HEAD.pack(len(packed)) + packed)
        connection.sendall(body)


def outcome(frames: Iterator[bytes], folder: Path, limits: Limits) -> tuple[dict[str, Any], bytes]:
    """The answer's head (`length`, or a Refusal's members) and body, once all frames are read."""
    try:
        task = _task.decode(next(frames))
        run = explain_all if task.tasks else explain
        answer = orjson.dumps(run(task, _batches(frames), folder))
    except StreamError as error:
        head = refusal_of(error)._asdict()
    except (MemoryError, lmdb.Error, OSError) as error:
        structlog.get_logger().warning("explanation_ended", error=str(error))
        head = refusal_of(ExplanationTooLarge(limits.passed))._asdict()
    except Exception:  # noqa: BLE001  the border of one explanation
        structlog.get_logger().exception("explanation_failed")
        head = Refusal(500, "internal_error", "the explanation failed; why is in the log")._asdict()
    else:
        return {"length": len(answer)}, answer
    for _ in frames:
        pass  # whoever sends them reads the answer behind the last one
    return head, b""


def _frames(incoming: BinaryIO) -> Iterator[bytes]:
    """Up to the empty one, or the end of whoever asks."""
    while len(head := incoming.read(HEAD.size)) == HEAD.size:
        (length,) = HEAD.unpack(head)
        if not length:
            return
        yield incoming.read(length)


def _batches(frames: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
    for frame in frames:
        with pa.ipc.open_stream(frame) as batches:
            yield from batches
