"""Answers that leave in one write: uvicorn writes the head of an answer and its body one after the other, and a system
call each, with a wake-up of who reads, is a tenth of what a small answer costs.

It knows transports; it refuses to know what is written.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class OneWrite(HttpToolsProtocol):
    """uvicorn's protocol over a transport that joins what is written in one go."""

    def connection_made(self, transport: Any) -> None:
        """Begin, on the transport as it is to be used."""
        self._joining = _Joining(transport, self.loop)
        super().connection_made(self._joining)  # type: ignore[arg-type]

    def write_whole(self, data: bytes) -> None:
        """Write what nothing follows, at once."""
        self._joining.write_whole(data)


class _Joining:
    """A transport that holds a write back until the next one, or until the loop comes round."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, together with what was held back; or hold it back."""
        if self._held is None:
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            held, self._held = self._held, None
            self._transport.writelines((held, data))

    def write_whole(self, data: bytes) -> None:
        """Write behind what was held back."""
        if self._held is not None:
            self._flush()
        self._transport.write(data)

    def close(self) -> None:
        """Close, once all is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self._transport.is_closing():
            self._transport.write(held)
