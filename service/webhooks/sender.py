"""One attempt to deliver a message: a POST, and what is made of its answer.

It knows HTTP, bounds of time and size. It refuses to know what comes after a failure (`service.webhooks.pusher`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple, Self

import httpcore
import structlog

from service.webhooks.addresses import CheckedBackend

TIMEOUT_S: Final = 10.0  # of an attempt, from the look-up of the name to the end of the answer
MAX_ANSWER_BYTES: Final = 64 << 10
MAX_DIGITS: Final = 10  # of seconds that make sense
LATER: Final = frozenset({408, 425, 429})  # of the 4xx those that say: the same again, but not now
FAILURES: Final = (
    OSError,
    TimeoutError,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
)


class AttemptOutcome(Enum):
    """What an attempt means for its message."""

    DONE = "delivered"
    DEAD = "dead"
    LATER = "failed"


class Attempt(NamedTuple):
    """An outcome, in words too; of the answer, if there was one, its `status` and the pause that it asks for."""

    outcome: AttemptOutcome
    detail: str
    status: int | None = None
    after_s: int = 0


class WebhookSender:
    """Connections to the targets of webhooks, of one process."""

    def __init__(self, *, may_be_private: bool) -> None:
        self._backend = CheckedBackend(may_be_private=may_be_private)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if "_pool" in vars(self):
            await self._pool.aclose()

    @cached_property
    def _pool(self) -> httpcore.AsyncConnectionPool:
        """Made with the first attempt: the certificates that it trusts take 20 ms to load."""
        return httpcore.AsyncConnectionPool(
            ssl_context=httpcore.default_ssl_context(),
            network_backend=self._backend,
            max_connections=100,
            keepalive_expiry=15,
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        """An attempt. A redirect is none of ours to follow: it counts as a failure."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return _judged(*await self._answered(url, headers, body))
        except FAILURES as error:
            silence = f"no answer within {TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else type(error).__name__
            return Attempt(AttemptOutcome.LATER, str(error) or silence)
        except Exception as error:  # noqa: BLE001  the border of one attempt: one reset at once is an AttributeError
            structlog.get_logger().exception("attempt_broke")  # without the URL, which may hold a secret
            return Attempt(AttemptOutcome.LATER, f"{type(error).__name__}: {error}")

    async def _answered(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, int]:
        """The status, and `Retry-After` (s; 0: it does not say, or as a date)."""
        fields = {"Content-Type": "application/json", "User-Agent": "millrace", "Accept": "*/*", **headers}
        left = MAX_ANSWER_BYTES
        async with self._pool.stream("POST", url, headers=list(fields.items()), content=body) as answer:
            async for piece in answer.aiter_stream():
                left -= len(piece)
                if left < 0:
                    break
            after = {name.lower(): value for name, value in answer.headers}.get(b"retry-after", b"")
            return answer.status, int(after) if after.isdigit() and len(after) < MAX_DIGITS else 0


def _judged(status: int, after_s: int) -> Attempt:
    detail = f"answered {status}"
    if 200 <= status < 300:
        return Attempt(AttemptOutcome.DONE, detail, status)
    if 400 <= status < 500 and status not in LATER:
        return Attempt(AttemptOutcome.DEAD, detail, status)
    return Attempt(AttemptOutcome.LATER, detail, status, after_s)
