"""Answers in one write: everything that is written arrives, in order, and small answers in one piece."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
import uvloop

from service.one_write import OneWrite

HEAD = [(b"content-type", b"text/plain")]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """/small: an answer of two messages; /many: a hundred chunks, every third after the loop came round."""
    if scope["path"] == "/small":
        await send({"type": "http.response.start", "status": 200, "headers": [*HEAD, (b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"small"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": HEAD})
    for n in range(100):
        await send({"type": "http.response.body", "body": b"%03d" % n * 1_000, "more_body": True})
        if n % 3 == 0:
            await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


def read_all(address: tuple[str, int], path: str) -> list[bytes]:
    """Pieces as they come: this thread wakes as soon as there is one."""
    with socket.create_connection(address) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
        return list(iter(lambda: client.recv(1 << 20), b""))


async def asked(path: str) -> tuple[list[bytes], bytes]:
    """What a client reads, piece by piece, of an answer after which the service closes the connection."""
    config = uvicorn.Config(app, http=OneWrite, loop="uvloop", log_config=None, lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            pieces = await asyncio.to_thread(read_all, listener.getsockname(), path)
        finally:
            await server.shutdown(sockets=[listener])
    return pieces, b"".join(pieces)


def test_head_and_body_of_a_small_answer_come_in_one_piece() -> None:
    pieces, answer = uvloop.run(asked("/small"))
    assert len(pieces) == 1
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nsmall")


def test_a_long_answer_comes_whole_and_in_order() -> None:
    _, answer = uvloop.run(asked("/many"))
    body = answer.split(b"\r\n\r\n", 1)[1]
    assert body == b"".join(b"bb8\r\n" + b"%03d" % n * 1_000 + b"\r\n" for n in range(100)) + b"0\r\n\r\n"
