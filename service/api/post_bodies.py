"""Bodies of posts of records on their way in: each byte has its place in the append buffer before it is kept.

Knows who holds how much. Refuses to know what a body means, and how long it may take (`service.connections`).

A place is taken when a byte is there, not when it is announced: four sockets that announced 64 MiB each, and sent
nothing, used to hold the whole buffer. And each key has a share of its own, so that whoever sends much, and slowly, is
in nobody's way but their own.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from service.ingest import AppendBuffer
from service.streams.errors import BufferFull


class PostBodies:
    """Reads bodies. Belongs to the event loop."""

    def __init__(self, buffer: AppendBuffer, *, key_bytes: int) -> None:
        self._buffer = buffer
        self._key_bytes = key_bytes
        self._held: Counter[str] = Counter()  # bytes by key id

    @asynccontextmanager
    async def read(self, request: Request, key_id: str) -> AsyncIterator[bytes]:
        """A body, which holds its place until the block ends. Raises BufferFull as soon as there is no room for what
        came, in all or among the key's; one body that is alone always has room.
        """
        held = 0
        parts: list[bytes] = []
        with self._buffer.room() as room:
            try:
                async for part in request.stream():
                    more = len(part)
                    if self._held[key_id] > held and self._held[key_id] + more > self._key_bytes:
                        raise BufferFull(1)
                    room.at_least(held + more)
                    held += more
                    self._held[key_id] += more
                    parts.append(part)
                yield b"".join(parts)
            finally:
                self._held[key_id] -= held
                if not self._held[key_id]:
                    del self._held[key_id]
