"""Classify IP addresses as public or not; every outgoing connection to a user's URL is checked by it.

The tables are the IANA special-purpose registries (RFC 6890 and its updates). They are written out because
the standard library's `is_global` accepts several of them, and differs between Python versions.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import pairwise
from pathlib import Path

_IPV4_ADDRESSES, _IPV6_ADDRESSES = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

_CLOSED_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; a cloud's metadata at 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a cloud's wire server, public by number only
        "169.254.0.0/16",  # link-local; most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata at 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # automatic multicast tunnelling
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)

PUBLIC_V6 = IPv6Network("2000::/3")
"""The part of IPv6 that is assigned to the internet."""

_CLOSED_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: hides an IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The third group of 32 bits of addresses that embed an IPv4 address (RFC 5214, section 6.1)."""


def is_public(address: IpAddress) -> bool:
    """Return whether an address, or the IPv4 address embedded in it, is on the public internet."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _CLOSED_V4)
    embedded = embedded_ipv4(address)
    if embedded is not None:
        return is_public(embedded)
    return (
        address.scope_id is None
        and address in PUBLIC_V6
        and address.is_global
        and not any(address in network for network in _CLOSED_V6)
        and (int(address) >> 32) & 0xFFFF_FFFF not in ISATAP
    )


def closed_networks() -> tuple[IpNetwork, ...]:
    """Return networks without public addresses; IPv6 addresses outside `PUBLIC_V6` are not public either."""
    return (*_CLOSED_V4, *_CLOSED_V6)


def embedded_ipv4(address: IpAddress) -> IPv4Address | None:
    """Return the IPv4 address to which an IPv4-mapped or NAT64 address connects, else None."""
    if isinstance(address, IPv6Address) and (address.ipv4_mapped is not None or address in _NAT64):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


def is_local(address: IpAddress) -> bool:
    """Return whether an address is one of this machine's own: a route to it has the same source address.

    Connecting a datagram socket asks the kernel for a route and sends nothing.
    """
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False


def machine_addresses() -> tuple[IpAddress, ...]:
    """Return the addresses of this machine's interfaces, in this process's network namespace."""
    found: dict[IpAddress, None] = {}
    with suppress(OSError):
        lines = _IPV4_ADDRESSES.read_text(encoding="ascii").splitlines()
        for entry, kind in pairwise(lines):
            if kind.strip() == "/32 host LOCAL":
                found[IPv4Address(entry.rpartition(" ")[2])] = None
    with suppress(OSError):
        for line in _IPV6_ADDRESSES.read_text(encoding="ascii").splitlines():
            found[IPv6Address(int(line.split()[0], 16))] = None
    return tuple(found)


def parse_networks(texts: tuple[str, ...] | list[str]) -> tuple[IpNetwork, ...]:
    """Return networks from CIDR texts; raises ValueError with the first invalid one."""
    return tuple(ip_network(text.strip()) for text in texts if text.strip())


def is_within(address: IpAddress, networks: tuple[IpNetwork, ...]) -> bool:
    """Return whether an address, or the IPv4 address embedded in it, is in one of the networks."""
    candidates = (address, embedded_ipv4(address))
    return any(
        one is not None and one.version == network.version and one in network
        for one in candidates
        for network in networks
    )
