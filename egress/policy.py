"""Decide which addresses may be connected to, and refuse the others.

A name is never judged: it may resolve to another address a moment later. The guarded clients of this package
ask the policy about the address of each connection, when the connection is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from ipaddress import ip_address

from yarl import URL

from egress.addresses import IpAddress, IpNetwork, is_local, is_public, is_within, parse_networks

URL_LIMIT = 2048
_PUBLIC_PORTS = frozenset({("https", 443), ("http", 80)})


class EgressRefused(OSError):
    """The policy does not allow this connection, because of its scheme, port, address or origin."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class EgressScope(Enum):
    """The addresses to which a client may connect."""

    PUBLIC = auto()
    """Public addresses at the usual ports, and allowed networks at any port."""
    ALLOWED = auto()
    """Allowed networks only."""
    TRUSTED = auto()
    """Every address: the operator's own configuration names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """The allowed targets: public addresses at the usual ports, and the networks `allow` at any port."""

    allow: tuple[IpNetwork, ...] = ()
    ports: frozenset[tuple[str, int]] = field(default=_PUBLIC_PORTS)

    @classmethod
    def parse(cls, networks: str) -> EgressPolicy:
        """Return a policy from comma-separated CIDRs; raises ValueError with the first invalid one."""
        return cls(allow=parse_networks(networks.split(",")))

    def check_url(self, url: str, *, trusted: bool = False) -> tuple[URL, EgressScope]:
        """Return the parsed URL and its scope; raises EgressRefused if the URL alone is not allowed.

        Names are not resolved here, so a call to an accepted URL may still be refused.
        """
        parsed = _parse(url)
        if trusted:
            return parsed, EgressScope.TRUSTED
        if parsed.user is not None or parsed.password is not None:
            raise EgressRefused("the URL must not contain a user name or password")
        scope = EgressScope.PUBLIC if (parsed.scheme, parsed.port) in self.ports else EgressScope.ALLOWED
        if scope is EgressScope.ALLOWED and not self.allow:
            raise EgressRefused("only https at port 443 and http at port 80 are allowed")
        if _address(parsed.raw_host or "") is not None:
            self.check_host(parsed.raw_host or "", scope)
        return parsed, scope

    def check_connection(self, host: str, port: int, scope: EgressScope) -> None:
        """Raise EgressRefused unless a connection to this address and port is within `scope`."""
        usual = any(port == known for _scheme, known in self.ports)
        narrowed = EgressScope.ALLOWED if scope is EgressScope.PUBLIC and not usual else scope
        self.check_host(host, narrowed)

    def check_host(self, host: str, scope: EgressScope) -> None:
        """Raise EgressRefused unless a connection to the address `host` is within `scope`."""
        if scope is EgressScope.TRUSTED:
            return
        address = _address(host)
        if address is None:
            raise EgressRefused("the connection's host is not an IP address")
        if is_within(address, self.allow):
            return
        if scope is EgressScope.ALLOWED:
            raise EgressRefused("only https at port 443 and http at port 80 are allowed at this address")
        # One text for every address, so that a name with several addresses is still reported as refused.
        if not is_public(address) or is_local(address):
            raise EgressRefused("the address is private, local, reserved or this machine's own")


@lru_cache(maxsize=1024)
def _parse(url: str) -> URL:
    if len(url) > URL_LIMIT or not url.isprintable():
        raise EgressRefused(f"the URL is longer than {URL_LIMIT} characters or contains control characters")
    try:
        parsed = URL(url)
        usable = parsed.scheme in {"http", "https"} and parsed.host and parsed.port
    except ValueError:
        raise EgressRefused("the URL cannot be parsed") from None
    if not usable:
        raise EgressRefused("the URL must have the scheme http or https, and a host")
    return parsed


@lru_cache(maxsize=1024)
def _address(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def refusal(error: BaseException) -> EgressRefused | None:
    """Return the policy's refusal behind a client's error, or None."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, EgressRefused):
            return seen
        inner = getattr(seen, "os_error", None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__ or seen.__context__
    return None
