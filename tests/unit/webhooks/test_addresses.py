"""Which addresses webhooks may reach."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import pytest

from service.webhooks.addresses import AddressRefused, CheckedBackend, is_public

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822", "2002:5db8:d822::1"]
PRIVATE = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::1",
    "fc00::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_all_others_are_not_however_they_are_written(address: str) -> None:
    assert not is_public(ip_address(address))


def test_a_name_is_judged_by_what_it_stands_for() -> None:
    with pytest.raises(AddressRefused, match="localhost is"):
        asyncio.run(CheckedBackend(may_be_private=False).connect_tcp("localhost", 9))
