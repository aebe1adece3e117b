"""M8: no closed address is reached, in any form that a URL can have, from any source."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import aiohttp
import pytest

from delivery.webhooks.egress import Egress
from egress.policy import EgressPolicy, EgressRefused

ROOT = Path(__file__).parents[3]
CLOSED = re.split(
    r"\s+",
    """0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 127.0.0.1 127.0.0.53
    127.255.255.254 168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255
    192.0.0.1 192.0.0.192 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.0.1 192.168.255.255
    192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255 ::1 :: fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 2001:db8::1 2002:7f00:1::1
    100::1 64:ff9b::7f00:1 64:ff9b:1::7f00:1 3fff::1 5f00::1""",
)
"""Private, local, reserved and metadata addresses: 46 of them, and 192.88.99.0/24 among them."""


def _octets(address: IPv4Address) -> list[int]:
    return list(address.packed)


def _of_4(address: IPv4Address) -> list[str]:
    a, b, c, d = _octets(address)
    whole = int(address)
    return [
        f"{a}.{b}.{c}.{d}",
        f"{a}.{b}.{c}.{d}.",
        f"{a}.{b}.{c << 8 | d}",
        f"{a}.{b << 16 | c << 8 | d}",
        str(whole),
        hex(whole),
        f"0{whole:o}",
        f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"[::ffff:{address}]",
        f"[0:0:0:0:0:ffff:{a << 8 | b:x}:{c << 8 | d:x}]",
        "".join(f"%{ord(letter):02x}" for letter in str(address)),
    ]


def _of_6(address: IPv6Address) -> list[str]:
    short, whole = str(address), address.exploded
    plain = [short, whole, short.upper(), whole.upper(), f"{short}%25lo", f"{short}%lo"]
    quoted = [f"[{one}]" for one in plain]
    return [
        *quoted,
        f"user@[{short}]",
        f"[{short}]:80",
        f"[{short}].",
        f"%5B{short}%5D",
        f"[v1.{short}]",
        f"[{short}]:443",
    ]


def forms(text: str) -> list[str]:
    """Return twelve spellings of an address as the host of a URL."""
    address = ip_address(text)
    return _of_4(address) if isinstance(address, IPv4Address) else _of_6(address)


def test_m8_the_table_is_as_large_as_it_says() -> None:
    """46 addresses in 12 forms each."""
    assert len(set(CLOSED)) == 46
    assert {len(forms(text)) for text in CLOSED} == {12}


@pytest.mark.parametrize("text", CLOSED)
async def test_m8_no_form_of_a_closed_address_is_called(text: str) -> None:
    """Each form is refused: at once, or when the connection would have been made."""
    async with Egress(EgressPolicy.parse("198.51.100.77/32"), total_seconds=10) as egress:
        for host in forms(text):
            for url in (f"http://{host}/", f"https://{host}/"):
                with pytest.raises((EgressRefused, aiohttp.ClientError)) as caught:
                    await egress.post(url, headers={}, body=b"{}")
                assert not isinstance(caught.value, aiohttp.ClientResponseError)
