"""A stranger who reaches the ports of Spark's processes and does not know their secret; and what anybody may look at.

The stranger speaks the wire protocol of Spark's RPC, file and block servers, as any process that reaches a port could.
"""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psutil

from tests.attached import Attached, are_gone

# Types of messages and of block messages: org.apache.spark.network.protocol.Message, BlockTransferMessage.
RPC_REQUEST, OPEN_BLOCKS = 3, 0
ANSWER_BYTES = 4096


def text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


BLOCKS = (
    struct.pack(">b", OPEN_BLOCKS) + text("app") + text("driver") + struct.pack(">i", 1) + text("broadcast_1_piece0")
)
REQUESTS = {"a block": BLOCKS, "an object for the JVM to deserialize": b"\xac\xed\x00\x05sr"}
REFUSAL = b"AuthRpcHandler.doAuthChallenge"  # where the stack trace of the answer begins


def answer_of(address: tuple[str, int], body: bytes) -> bytes:
    """What a stranger's request is answered; nothing where nobody speaks this protocol."""
    message = struct.pack(">qi", 7, len(body)) + body
    with socket.create_connection(address, timeout=5) as stranger, suppress(TimeoutError, ConnectionError):
        stranger.sendall(struct.pack(">qb", 9 + len(message), RPC_REQUEST) + message)
        (length,) = struct.unpack(">q", stranger.recv(8, socket.MSG_WAITALL).ljust(8, b"\0"))
        return stranger.recv(min(length, ANSWER_BYTES), socket.MSG_WAITALL) if length else b""
    return b""


def addresses_of(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    """Where they listen."""
    found = [at.laddr for one in processes for at in one.net_connections("inet") if at.status == psutil.CONN_LISTEN]
    return sorted({(at.ip.removeprefix("::ffff:"), at.port) for at in found})


def told_to_strangers(processes: list[psutil.Process]) -> list[str]:
    """Every answer to a stranger; who is refused for not knowing the secret is told `REFUSAL`."""
    asked = [(address, request) for address in addresses_of(processes) for request in REQUESTS.values()]
    with ThreadPoolExecutor(len(asked)) as strangers:  # who speaks another protocol is waited for in vain
        found = list(strangers.map(lambda each: answer_of(*each), asked))
    spoken = [answer for answer in found if answer and not answer.startswith(b" 400 Bad Request")]  # by a web server
    return ["refused" if REFUSAL in answer else answer[:200].decode(errors="replace") for answer in spoken]


def shown_by_ps(processes: list[psutil.Process]) -> str:
    return "\n".join(" ".join(one.cmdline()) for one in processes if not are_gone([one]))


def spark_pages(instance: Attached) -> str:
    """What the driver's UI, which asks nobody who they are, shows of the settings."""
    spark = instance.wait_until_live()["spark"]
    answer = httpx.get(f"{spark['ui']}/api/v1/applications/{spark['app_id']}/environment", timeout=60)
    assert answer.status_code == 200
    assert "spark.authenticate" in answer.text
    return answer.text
