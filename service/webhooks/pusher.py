"""The pusher: pulls from each subscription that has a target, posts what it is given, and acknowledges what was taken.

It knows turns, retries and dead records. It refuses to know which partitions it has: it is a consumer like any other,
and pushers of several processes share them by leases, so a partition has one pusher, and its records go in order. A
target that does not take a record holds up its partition, and no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import uuid4

import structlog
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service import backoff, prometheus
from service.catalog import subscriptions
from service.catalog.engine import PUSHES, Catalog
from service.catalog.subscriptions import PullWish, Push
from service.notify import Hub
from service.reads.subscriptions import Deliveries, Delivery
from service.streams.errors import LeaseLost, StreamError, Unknown
from service.webhooks.messages import Message, Source, messages_of
from service.webhooks.sender import Attempt, AttemptOutcome, WebhookSender
from service.webhooks.signing import key_of, signed_headers

LEASE_MS: Final = 30_000  # more than a turn and an attempt take
TURN_S: Final = 5.0  # after which what was done is acknowledged
WAIT_S: Final = 10.0  # for records, and to look again
AT_ONCE: Final = 100  # records of a pull
FIRST_S: Final = 1.0  # of the back-off, doubled with each attempt
MOST_S: Final = 300.0
LOOK_AGAIN_S: Final = 30.0  # for subscriptions whose making was not heard of
EXPECTED: Final = (SQLAlchemyError, OSError, StreamError)

Bury = Callable[[Source, Message, Attempt], None]


class _Turn(NamedTuple):
    """How far a turn in a partition came, and at what it ended: None, where nothing failed."""

    position: int | None
    failed: Attempt | None


@dataclass
class _Blocked:
    """A partition whose next record was not taken."""

    attempts: int
    until_s: float
    since_ms: int


class Pusher:
    """Pushes of one process. `secret_of` opens what the catalog has sealed; `bury` keeps a record that was refused."""

    name: Final = "pusher"

    def __init__(
        self,
        catalog: Catalog,
        hub: Hub,
        deliveries: Deliveries,
        *,
        may_be_private: bool,
        secret_of: Callable[[str], str],
        bury: Bury,
    ) -> None:
        self._catalog, self._hub, self._deliveries = catalog, hub, deliveries
        self._may_be_private, self._secret_of, self._bury = may_be_private, secret_of, bury
        self._consumer = f"pusher-{uuid4().hex}"
        self._tasks: dict[Push, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled, or the hub closes: a task for each subscription that has a target."""
        async with WebhookSender(may_be_private=self._may_be_private) as sender, asyncio.TaskGroup() as group:
            while not self._hub.is_closed:
                seen = self._hub.seen
                try:
                    found = set(await run_in_threadpool(self._catalog.read, subscriptions.pushes))
                except EXPECTED as error:
                    structlog.get_logger().warning("pushes_not_read", error=str(error))
                    found = set(self._tasks)
                for push in set(self._tasks) - found:
                    self._tasks.pop(push).cancel()
                for push in found:
                    if push not in self._tasks or self._tasks[push].done():
                        self._tasks[push] = group.create_task(_Pushing(self, push, sender).run(), name=push.name)
                await self._hub.wait([PUSHES], seen, LOOK_AGAIN_S)


class _Pushing:
    """One subscription, in one process."""

    def __init__(self, pusher: Pusher, push: Push, sender: WebhookSender) -> None:
        self._pusher, self._push, self._sender = pusher, push, sender
        self._source = Source(push.id, push.stream, push.name)
        self._blocked: dict[int, _Blocked] = {}

    async def run(self) -> None:
        """Turn after turn, until the subscription is gone."""
        while not self._pusher._hub.is_closed:
            try:
                await self._turn()
            except Unknown:
                return
            except LeaseLost:  # the process stood still for too long: somebody else has it now
                self._blocked.clear()
            except (*EXPECTED, ValueError) as error:  # ValueError: the secret can not be opened
                structlog.get_logger().warning("push_failed", subscription=self._push.id, error=str(error))
                await self._rest()
            except Exception:  # noqa: BLE001  the border of one subscription: a fault of ours ends no other
                prometheus.LOOP_FAILURES.labels(self._pusher.name).inc()
                structlog.get_logger().exception("push_broke", subscription=self._push.id)
                await self._rest()

    async def _rest(self) -> None:
        hub = self._pusher._hub
        await hub.wait([], hub.seen, backoff.up_to(2 * FIRST_S))

    async def _turn(self) -> None:
        now_s = time.monotonic()
        resting = {at: each.until_s for at, each in self._blocked.items() if each.until_s > now_s}
        wish = PullWish(self._pusher._consumer, LEASE_MS, AT_ONCE, excluding=frozenset(resting), is_push=True)
        until_s = min([now_s + WAIT_S, *resting.values()])
        delivery = await self._pusher._deliveries.pull(self._push.stream, self._push.name, wish, until_s)
        turns = await self._post(delivery)
        self._blocked = {at: each for at, each in self._blocked.items() if at in delivery.held}
        for partition, turn in turns.items():
            self._settle(partition, turn)
        await run_in_threadpool(self._note, turns)

    async def _post(self, delivery: Delivery) -> dict[int, _Turn]:
        key = key_of(self._pusher._secret_of(self._push.sealed_secret))
        messages = messages_of(self._source, delivery)
        turns = await asyncio.gather(*(self._post_in_order(key, each) for each in messages.values()))
        return dict(zip(messages, turns, strict=True))

    async def _post_in_order(self, key: bytes, messages: Iterator[Message]) -> _Turn:
        """As many as a turn takes, up to the first that is not taken."""
        position, until_s = None, time.monotonic() + TURN_S
        for message in messages:
            headers = signed_headers(key, message.id, int(time.time()), message.body)
            attempt = await self._sender.post(self._push.url, headers, message.body)
            prometheus.WEBHOOKS.labels(attempt.outcome.value).inc()
            if attempt.outcome is AttemptOutcome.LATER:
                return _Turn(position, attempt)
            if attempt.outcome is AttemptOutcome.DEAD:
                await run_in_threadpool(self._pusher._bury, self._source, message, attempt)
            position = message.position
            if time.monotonic() > until_s:
                break
        return _Turn(position, None)

    def _settle(self, partition: int, turn: _Turn) -> None:
        known = self._blocked.pop(partition, None)
        if turn.failed is None:
            return
        is_next = turn.position is not None or known is None  # it is another record that was not taken
        attempts = 1 if is_next or known is None else known.attempts + 1
        since_ms = time.time_ns() // 1_000_000 if is_next or known is None else known.since_ms
        pause_s = backoff.doubled(FIRST_S, MOST_S, attempts)
        pause_s = max(pause_s / 2 + backoff.up_to(pause_s / 2), min(turn.failed.after_s, MOST_S))
        self._blocked[partition] = _Blocked(attempts, time.monotonic() + pause_s, since_ms)

    def _note(self, turns: Mapping[int, _Turn]) -> None:
        """Acknowledge what was taken, keep the lease, and say what was not."""
        failures = {
            partition: None
            if turn.failed is None
            else {
                "attempts": self._blocked[partition].attempts,
                "since_ms": self._blocked[partition].since_ms,
                "detail": turn.failed.detail,
            }
            for partition, turn in turns.items()
        }
        positions = [(at, turn.position) for at, turn in turns.items() if turn.position is not None]
        self._pusher._catalog.write(
            subscriptions.acknowledge_push, self._push, self._pusher._consumer, positions, failures
        )
