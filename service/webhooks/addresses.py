"""Where webhooks may go: a name is resolved once, its addresses are judged, and the connection goes to one of them.

It knows addresses and sockets. It refuses to know HTTP: Host, SNI and the certificate are those of the name, for who
connects here believes to be connected to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

import httpcore

from service.webhooks.names import NameLookups

Address = IPv4Address | IPv6Address
SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]

_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


class AddressRefused(OSError):
    """A name stands for an address that webhooks must not reach."""

    def __init__(self, host: str, address: Address) -> None:
        super().__init__(f"{host} is {address}, which is no public address")


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet; one that IPv4 addresses are written into is what these are."""
    if isinstance(address, IPv6Address):
        within = list(_within(address))
        if within:
            return all(is_public(each) for each in within)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_private_literal(host: str) -> bool:
    """Whether a host is written as an address, and that is none of the internet."""
    try:
        return not is_public(ip_address(host))
    except ValueError:
        return False


def _within(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that a packet to this one may end at: mapped, 6to4, Teredo, NAT64."""
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if any(address in network for network in _NAT64):
        yield IPv4Address(int(address) & 0xFFFFFFFF)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connections to public addresses alone, or to any."""

    def __init__(self, *, may_be_private: bool) -> None:
        self._may_be_private = may_be_private
        self._sockets = httpcore.AnyIOBackend()
        self._names = NameLookups()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        address = str(await self._address(host))
        return await self._sockets.connect_tcp(address, port, timeout, local_address, socket_options)

    async def _address(self, host: str) -> Address:
        addresses = [ip_address(each) for each in await self._names.addresses(host)]
        for address in addresses:
            if not self._may_be_private and not is_public(address):
                raise AddressRefused(host, address)
        return addresses[0]
