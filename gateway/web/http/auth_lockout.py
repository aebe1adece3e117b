"""Failed authentications, counted by address whatever form it is written in."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

_MAX_TRACKED = 10_000
Network = IPv4Network | IPv6Network


def normalize_address(address: str) -> str:
    """Return one spelling for one peer: mapped IPv4 as IPv4, IPv6 as its /64."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        if not parsed.is_loopback:
            return str(ip_network(f"{parsed}/64", strict=False))
    return str(parsed)


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return who asks: the nearest address of X-Forwarded-For that is no proxy of ours.

    The header is believed only as far as the peers that wrote it are configured.
    """
    chain = [part.strip() for line in forwarded_for for part in line.split(",") if part.strip()]
    current = normalize_address(peer)
    while chain and _within(current, trusted):
        current = normalize_address(chain.pop())
    return current


def _within(address: str, networks: Sequence[Network]) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


class FailureLockout:
    """Locks an address out after too many failures, for the rest of the window.

    A key that has opened the door from that address before still does, so that one wrong script does not
    lock its neighbours out; a guesser learns nothing from it.
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
        """Return the seconds until the address may try again, 0 when it may now."""
        since, count = self._failures.get(address, (0.0, 0))
        left = since + self._window - self._clock()
        return left if count >= self._max_failures and left > 0 else 0.0

    def record_failure(self, address: str) -> None:
        """Count a failure."""
        since, count = self._failures.pop(address, (self._clock(), 0))
        if since + self._window <= self._clock():
            since, count = self._clock(), 0
        self._failures[address] = (since, count + 1)
        while len(self._failures) > _MAX_TRACKED:
            self._failures.popitem(last=False)

    def record_success(self, address: str, digest: bytes) -> None:
        """Remember that this key opened the door from here."""
        self._succeeded[address, digest] = None
        while len(self._succeeded) > _MAX_TRACKED:
            self._succeeded.popitem(last=False)

    def has_succeeded(self, address: str, digest: bytes) -> bool:
        """Say whether this key has opened the door from here before."""
        return (address, digest) in self._succeeded
