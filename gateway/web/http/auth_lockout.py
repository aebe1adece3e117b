"""The address of a client, and a lockout of addresses after too many failed authentications."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

_MAX_TRACKED = 10_000
Network = IPv4Network | IPv6Network


def normalize_address(address: str) -> str:
    """Return one spelling of an address: mapped IPv4 as IPv4, IPv6 as its /64; other text as it is."""
    parsed = _parse(address)
    if parsed is None:
        return address
    if isinstance(parsed, IPv6Address) and not parsed.is_loopback:
        return str(ip_network(f"{parsed}/64", strict=False))
    return str(parsed)


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the client's address: the nearest one in X-Forwarded-For that is not a trusted proxy.

    An entry of the header is used only if the peer that added it is in `trusted`.
    """
    chain = [part.strip() for line in forwarded_for for part in line.split(",") if part.strip()]
    current = peer
    while chain and is_within(current, trusted):
        current = _without_port(chain.pop())
    return normalize_address(current)


def is_within(address: str, networks: Sequence[Network]) -> bool:
    """Return whether an address is in one of the networks; False for text that is no address."""
    parsed = _parse(address)
    return parsed is not None and any(parsed in network for network in networks)


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return parsed.ipv4_mapped or parsed if isinstance(parsed, IPv6Address) else parsed


def _without_port(entry: str) -> str:
    """Return an entry of X-Forwarded-For without its port; some proxies write `192.0.2.1:4711`."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    host, _, port = entry.partition(":")
    return host if port.isdigit() and "." in host else entry


class FailureLockout:
    """Locks an address out after too many failures, until the window ends.

    A key that authenticated from that address before still works, so that one wrong script does not lock
    other clients of the address out. A client that guesses keys learns nothing from this.
    """

    def __init__(
        self, *, failures: int = 30, window: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_failures = failures
        self._window = window
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._succeeded: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def locked_for(self, address: str) -> float:
        """Return the seconds until the address may try again; 0 when it is not locked."""
        since, count = self._failures.get(address, (0.0, 0))
        left = since + self._window - self._clock()
        return left if count >= self._max_failures and left > 0 else 0.0

    def record_failure(self, address: str) -> None:
        """Count a failed authentication of an address."""
        since, count = self._failures.pop(address, (self._clock(), 0))
        if since + self._window <= self._clock():
            since, count = self._clock(), 0
        self._failures[address] = (since, count + 1)
        while len(self._failures) > _MAX_TRACKED:
            self._failures.popitem(last=False)

    def record_success(self, address: str, digest: bytes) -> None:
        """Record that a key authenticated from an address."""
        self._succeeded[address, digest] = None
        while len(self._succeeded) > _MAX_TRACKED:
            self._succeeded.popitem(last=False)

    def has_succeeded(self, address: str, digest: bytes) -> bool:
        """Return whether a key authenticated from an address before."""
        return (address, digest) in self._succeeded
