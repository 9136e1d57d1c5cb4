"""The hub: no wake-up is missed, from whatever thread and however early it comes."""

import asyncio
import threading
import time

import pytest

from service import notify
from service.notify import Hub


def test_a_waiter_wakes_when_its_topic_is_woken_from_another_thread() -> None:
    async def scenario() -> bool:
        hub = Hub()
        waiting = asyncio.create_task(hub.wait(["stream:a"], hub.seen, 5))
        await asyncio.sleep(0)
        threading.Thread(target=hub.wake, args=(["stream:a"],)).start()
        return await waiting

    assert asyncio.run(scenario())


def test_a_wake_up_between_looking_and_waiting_is_not_missed() -> None:
    async def scenario() -> bool:
        hub = Hub()
        seen = hub.seen
        hub.wake(["jobs"])
        return await hub.wait(["jobs"], seen, 5)

    assert asyncio.run(scenario())


def test_an_older_wake_up_is_not_news() -> None:
    async def scenario() -> bool:
        hub = Hub()
        hub.wake(["jobs"])
        return await hub.wait(["jobs"], hub.seen, 0.01)

    assert not asyncio.run(scenario())


def test_another_topic_wakes_nobody() -> None:
    async def scenario() -> bool:
        hub = Hub()
        waiting = asyncio.create_task(hub.wait(["job:1"], hub.seen, 0.05))
        await asyncio.sleep(0)
        hub.wake(["job:2"])
        return await waiting

    assert not asyncio.run(scenario())


def test_the_topic_of_everything_wakes_everybody() -> None:
    async def scenario() -> list[bool]:
        hub = Hub()
        seen = hub.seen
        waiting = [asyncio.create_task(hub.wait([topic], seen, 5)) for topic in ("job:1", "job:2")]
        await asyncio.sleep(0)
        hub.wake(["*"])
        return [*await asyncio.gather(*waiting), await hub.wait(["job:3"], seen, 5)]

    assert asyncio.run(scenario()) == [True, True, True]


def test_one_of_several_topics_is_enough_and_the_others_are_left_clean() -> None:
    async def scenario() -> tuple[bool, int]:
        hub = Hub()
        waiting = asyncio.create_task(hub.wait(["a", "b"], hub.seen, 5))
        await asyncio.sleep(0)
        hub.wake(["b"])
        return await waiting, len(hub._waiters)

    assert asyncio.run(scenario()) == (True, 0)


def test_closing_lets_every_waiter_go_and_every_later_one_pass() -> None:
    async def scenario() -> tuple[bool, bool, float]:
        hub = Hub()
        waiting = asyncio.create_task(hub.wait(["a"], hub.seen, 30))
        await asyncio.sleep(0)
        began = time.monotonic()
        hub.close()
        return await waiting, await hub.wait(["a"], hub.seen, 30), time.monotonic() - began

    woken, later, seconds = asyncio.run(scenario())
    assert (woken, later) == (False, False)
    assert seconds < 5


def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    async def scenario() -> int:
        hub = Hub()
        waiting = asyncio.create_task(hub.wait(["a"], hub.seen, 30))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        hub.wake(["a"])
        return len(hub._waiters)

    assert asyncio.run(scenario()) == 0


def test_only_so_many_topics_are_remembered_and_what_is_forgotten_may_have_been_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "MAX_TOPICS", 10)
    hub = Hub()
    for n in range(1, 101):
        hub.wake([f"job:{n}"])
        assert len(hub._last) <= 10
        assert hub.has_woken([f"job:{n}"], n - 1)
        assert not hub.has_woken(["never woken"], n)
    assert hub.has_woken(["job:1"], 0)
    assert hub.has_woken(["job:50"], 49)
    assert not hub.has_woken(["job:99"], 99)
    assert not hub.has_woken(["job:50"], 99)
    assert not asyncio.run(hub.wait(["job:50"], hub.seen, 0.01))
