"""Names are looked up beside the event loop: one that nobody answers for holds up neither others nor an end."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from service.webhooks import names
from service.webhooks.names import NameLookups

MORE_THAN_A_POOL = 70  # names: event loops have 4 or up to 64 threads for all
ADDRESS = "93.184.216.34"


class Resolver:
    """In the system's place. `silent` names are answered once `answers` is set; `unknown` ones are refused."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = Event()

    def getaddrinfo(self, host: str, port: int | None, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("silent"):
            assert self.answers.wait(60)
        if host.startswith("unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (ADDRESS, port or 0))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    standing_in = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", standing_in.getaddrinfo)
    yield standing_in
    standing_in.answers.set()


def test_names_that_nobody_answers_for_hold_up_no_other(resolver: Resolver) -> None:
    async def run() -> list[str]:
        lookups = NameLookups()
        silent = [asyncio.ensure_future(lookups.addresses(f"silent-{n}")) for n in range(MORE_THAN_A_POOL)]
        await asyncio.sleep(0)  # they begin
        found = await lookups.addresses("shop.example")
        resolver.answers.set()
        assert await asyncio.gather(*silent) == MORE_THAN_A_POOL * [[ADDRESS]]
        return found

    assert asyncio.run(run()) == [ADDRESS]


def test_a_look_up_that_outlasts_its_attempt_is_there_for_the_next(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        lookups = NameLookups()
        monkeypatch.setattr(names, "PATIENCE_S", 0.01)
        with pytest.raises(TimeoutError, match=r"silent was not resolved within 0\.01 s"):
            await lookups.addresses("silent")
        monkeypatch.setattr(names, "PATIENCE_S", 60)
        waiting = asyncio.ensure_future(lookups.addresses("silent"))
        await asyncio.sleep(0)
        resolver.answers.set()
        assert await waiting == [ADDRESS]
        assert resolver.asked == ["silent"]
        assert await lookups.addresses("silent") == [ADDRESS]
        assert resolver.asked == ["silent", "silent"]  # what a name stands for may have changed

    asyncio.run(run())


def test_a_name_that_is_not_there_is_an_error_for_all_who_wait(
    resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        lookups = NameLookups()
        asked = [lookups.addresses("unknown") for _ in range(2)]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(outcome, OSError)
            assert "not known" in str(outcome)

    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(run())
    assert resolver.asked == ["unknown"]
    assert not caplog.records


@pytest.mark.parametrize("host", [f"{64 * 'a'}.example", "shop..example"])
def test_a_name_that_can_not_be_written_is_an_error_too(host: str) -> None:
    with pytest.raises(OSError, match=host.replace(".", r"\.")):
        asyncio.run(NameLookups().addresses(host))


def test_without_another_thread_the_next_attempt_asks_anew(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        lookups = NameLookups()
        with monkeypatch.context() as full:
            full.setattr(names.Thread, "start", refused)
            with pytest.raises(OSError, match="shop can not be looked up: can't start new thread"):
                await lookups.addresses("shop")
        assert await lookups.addresses("shop") == [ADDRESS]

    asyncio.run(run())


PROGRAM = """
import asyncio, socket, threading, uvloop
from service.webhooks.names import NameLookups
socket.getaddrinfo = lambda *_, **__: threading.Event().wait()

async def main():
    asked = asyncio.ensure_future(NameLookups().addresses("silent"))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)

uvloop.run(main())
print("ended")
"""


def test_a_process_ends_while_a_name_is_looked_up() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
