"""Targets with TLS: they are reached at the address that was looked up, and have to be who the URL says."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from service.webhooks.sender import Attempt, AttemptOutcome, WebhookSender

NAME = "hooks.example"
PINNED = "127.0.0.2"  # what the name stands for when it is first looked up; another one since


class Visit(NamedTuple):
    """A request as its target saw it: the address that it came to, the name in SNI, the header Host."""

    address: str
    server_name: str | None
    host: str


class SecureTarget:
    """Takes what is posted on all addresses of this machine, with a certificate of a name."""

    def __init__(self, certificate: trustme.LeafCert) -> None:
        self.visits: list[Visit] = []
        self.server_names: list[str | None] = []
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(self._context)
        self._context.sni_callback = lambda _, name, __: self.server_names.append(name)

    async def attempt(self) -> Attempt:
        """To post to it."""
        server = await asyncio.start_server(self._answer, "0.0.0.0", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        async with server, WebhookSender(may_be_private=True) as sender:
            return await sender.post(f"https://{NAME}:{self.port}/hook", {}, b"{}")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"{}")).decode()
        [host] = [line.partition(": ")[2] for line in head.splitlines() if line.lower().startswith("host:")]
        self.visits.append(Visit(writer.get_extra_info("sockname")[0], self.server_names[-1], host))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator has the service trust an authority of their own."""
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))


@pytest.fixture(autouse=True)
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were looked up; the second time a name stands for another address."""
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *more: Any, **options: Any) -> Any:
        if host != NAME:
            return look_up(host, port, *more, **options)
        asked.append(host)
        address = PINNED if len(asked) == 1 else "127.0.0.3"
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.usefixtures("trusted")
def test_the_address_is_pinned_and_the_name_is_that_of_the_url(authority: trustme.CA, looked_up: list[str]) -> None:
    target = SecureTarget(authority.issue_cert(NAME))
    assert asyncio.run(target.attempt()) == Attempt(AttemptOutcome.DONE, "answered 204", 204)
    assert target.visits == [Visit(PINNED, NAME, f"{NAME}:{target.port}")]
    assert looked_up == [NAME]


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("other", ["other.example", f"sub.{NAME}", PINNED])
def test_a_certificate_of_another_name_is_refused(authority: trustme.CA, other: str) -> None:
    """That of the address that is connected to, too."""
    target = SecureTarget(authority.issue_cert(other))
    attempt = asyncio.run(target.attempt())
    assert (attempt.outcome, target.server_names, target.visits) == (AttemptOutcome.LATER, [NAME], [])
    assert "certificate is not valid for 'hooks.example'" in attempt.detail


def test_a_certificate_of_an_unknown_authority_is_refused(authority: trustme.CA) -> None:
    target = SecureTarget(authority.issue_cert(NAME))
    attempt = asyncio.run(target.attempt())
    assert (attempt.outcome, target.visits) == (AttemptOutcome.LATER, [])
    assert "unable to get local issuer certificate" in attempt.detail
