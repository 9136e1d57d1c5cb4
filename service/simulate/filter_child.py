"""A filter in a process of its own: one condition over batch after batch, each within the limits of a simulation.

It knows frames: the condition's text first, then batches of records as Arrow IPC streams; the answer to these is a byte
a record, 1 where the condition is true. It refuses to know who asks, and who made this process (`forkserver`).
"""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import structlog

from service.simulate.child import HEAD, Limits
from service.streams.errors import ExpressionFailed
from service.streams.expressions import Expression, evaluate_lenient


def serve(connection: socket.socket, _: Path, limits: Limits) -> None:
    """Answer the frames of a connection until it ends."""
    limits.impose()
    with connection, connection.makefile("rb") as incoming:
        condition = {"where": Expression((_frame(incoming) or b"").decode())}
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0)  # who asks nothing is not slow
            frame = _frame(incoming)
            if frame is None:
                return
            limits.allow_time()
            head, body = outcome(condition, frame, limits)
            packed = json.dumps(head).encode()
            connection.sendall(HEAD.pack(len(packed)) + packed)
            connection.sendall(body)


def outcome(condition: dict[str, Expression], frame: bytes, limits: Limits) -> tuple[dict[str, Any], bytes]:
    """The answer's head (`length`, and of how many records the condition `failed`; or why there is none) and body."""
    try:
        with pa.ipc.open_stream(frame) as batches:
            records = pa.concat_batches(list(batches))
        found, failed = evaluate_lenient(condition, records)
    except ExpressionFailed as error:  # what no record is to blame for
        return {"detail": error.detail}, b""
    except MemoryError as error:  # Arrow's is one too
        structlog.get_logger().warning("filter_ended", error=str(error))
        return {"detail": limits.passed}, b""
    chosen = found.column("where").fill_null(False).cast(pa.uint8()).to_numpy().tobytes()
    return {"length": len(chosen), "failed": int(failed.sum())}, chosen


def _frame(incoming: BinaryIO) -> bytes | None:
    """The next one; None where whoever asks is gone."""
    head = incoming.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    return incoming.read(length)
