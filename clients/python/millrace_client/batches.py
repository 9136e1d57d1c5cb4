"""Records gathered into posts: how many go together, and what one post is.

Knows no clock, no lock and no connection: the two producers do.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millrace_client.errors import FailedBatch
from millrace_client.exchanges import Exchange, Request, Retries, answered, path_of
from millrace_client.records import Appended, appended_of


@dataclass(frozen=True, slots=True)
class Limits:
    """A post has up to `max_records` and `max_bytes` (a larger record goes alone) and waits up to `linger_s` for more;
    up to `buffer_bytes` wait in all, then `send` does. A post is tried until it is `delivery_s` old.
    """

    max_records: int = 1_000
    max_bytes: int = 1 << 20
    linger_s: float = 0.01
    buffer_bytes: int = 32 << 20
    delivery_s: float = 120.0

    def has_room(self, waiting_bytes: int, record: bytes) -> bool:
        """Whether a record may wait with so many bytes; with none any may."""
        return not waiting_bytes or waiting_bytes + len(record) <= self.buffer_bytes


@dataclass(eq=False, slots=True)
class Batch:
    """Records of one post, as JSON; its key makes that any number of attempts append it once."""

    limits: Limits
    records: list[bytes] = field(default_factory=list)
    size: int = 0
    idempotency_key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def takes(self, record: bytes) -> bool:
        """Whether there is room for one more."""
        return not self.records or (not self.is_full and self.size + len(record) <= self.limits.max_bytes)

    def add(self, record: bytes) -> None:
        """One more."""
        self.records.append(record)
        self.size += len(record)

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self.limits.max_records or self.size >= self.limits.max_bytes

    def post(self, stream: str, retries: Retries, age_s: float) -> Exchange[Appended]:
        """Append it, `age_s` after it began. Raises ApiError, NoAnswer."""
        request = Request(
            "POST",
            path_of("streams", stream) + "/records",
            headers={"Content-Type": "application/json", "Idempotency-Key": self.idempotency_key},
            content=b'{"records":[' + b",".join(self.records) + b"]}",
            is_repeatable=True,
        )
        answer = yield from answered(request, replace(retries, limit_s=self.limits.delivery_s - age_s))
        return appended_of(answer.json())

    def failed(self, error: BaseException) -> FailedBatch:
        """It, as its sender gets it back."""
        records: Sequence[Mapping[str, Any]] = [json.loads(record) for record in self.records]
        return FailedBatch(records, self.idempotency_key, error)
