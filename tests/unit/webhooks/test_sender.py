"""One attempt to deliver: what is made of answers, and of none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from service.webhooks import sender
from service.webhooks.sender import Attempt, AttemptOutcome, WebhookSender

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def attempt(talk: Talk) -> Attempt:
    """At a server that talks so."""

    async def run() -> Attempt:
        talks: list[asyncio.Task[None]] = []

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talks.append(asyncio.ensure_future(talk(reader, writer)))
            await talks[-1]

        server = await asyncio.start_server(once, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            async with WebhookSender(may_be_private=True) as posting:
                found = await posting.post(f"http://127.0.0.1:{port}/", {}, b"{}")
            await asyncio.gather(*talks)
        return found

    return asyncio.run(run())


def answering(head: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(head + b"Content-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    return talk


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, AttemptOutcome.DONE),
        (204, AttemptOutcome.DONE),
        (301, AttemptOutcome.LATER),
        (400, AttemptOutcome.DEAD),
        (404, AttemptOutcome.DEAD),
        (408, AttemptOutcome.LATER),
        (410, AttemptOutcome.DEAD),
        (429, AttemptOutcome.LATER),
        (500, AttemptOutcome.LATER),
        (503, AttemptOutcome.LATER),
    ],
)
def test_an_answer_is_judged_by_its_status(status: int, outcome: AttemptOutcome) -> None:
    head = f"HTTP/1.1 {status} So\r\nLocation: http://example.org/\r\n".encode()
    assert attempt(answering(head)) == Attempt(outcome, f"answered {status}", status)


@pytest.mark.parametrize(
    ("status", "said", "after_s"),
    [(503, "7", 7), (429, "0120", 120), (429, "-7", 0), (503, "Wed, 21 Oct 2026 07:28:00 GMT", 0), (503, "9" * 11, 0)],
)
def test_a_target_may_ask_to_be_left_alone_for_a_while(status: int, said: str, after_s: int) -> None:
    head = f"HTTP/1.1 {status} So\r\nRETRY-After: {said}\r\n".encode()
    assert attempt(answering(head)) == Attempt(AttemptOutcome.LATER, f"answered {status}", status, after_s)


def test_what_is_no_http_is_a_failure() -> None:
    assert attempt(answering(b"nonsense\r\n")).outcome is AttemptOutcome.LATER


def test_whatever_an_attempt_meets_it_is_a_failure_of_that_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reset(*_: object) -> tuple[int, int]:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'")  # as anyio, where it is reset at once

    async def run() -> Attempt:
        async with WebhookSender(may_be_private=True) as posting:
            return await posting.post("http://127.0.0.1:9/", {}, b"{}")

    monkeypatch.setattr(WebhookSender, "_answered", reset)
    found = "AttributeError: 'NoneType' object has no attribute 'getpeername'"
    assert asyncio.run(run()) == Attempt(AttemptOutcome.LATER, found)


def test_a_target_that_says_nothing_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "TIMEOUT_S", 1.0)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    assert attempt(silent) == Attempt(AttemptOutcome.LATER, "no answer within 1 s")


def test_an_answer_without_end_is_not_read_to_it() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        try:
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
        except ConnectionError:
            writer.close()

    assert attempt(endless).outcome is AttemptOutcome.DONE
