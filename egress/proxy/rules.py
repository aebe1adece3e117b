"""The hosts and networks that one sandbox may reach, and the sentences with which others are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

from egress.addresses import IpNetwork, is_local, is_public, is_within, parse_networks
from egress.guard import EgressGuard
from egress.policy import EgressRefused
from egress.urls import normal_host

MAX_HOST_LENGTH = 253
WEB_PORTS = frozenset({80, 443})
_WILDCARD = "*."


def parse_domain(text: str) -> str:
    """Return a domain of a record in its normal form; raises ValueError with what is wrong.

    `*.example.org` stands for every name below example.org, and not for example.org itself.
    """
    wildcard, name = (_WILDCARD, text[2:]) if text.startswith(_WILDCARD) else ("", text)
    if not name or len(name) > MAX_HOST_LENGTH or set(name) & set("*/:@ "):
        raise ValueError("must be a host such as example.org or *.example.org, without scheme, port and path")
    host = normal_host(name)
    if is_address(host):
        raise ValueError("is an address: list it in allowCidrs")
    if wildcard and "." not in host:
        raise ValueError("is too wide: a wildcard needs two labels behind it, such as *.example.org")
    return wildcard + host


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, with or without brackets."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRules:
    """What one sandbox may reach.

    Hosts are reached at ports 80 and 443 by their names; networks are reached by addresses, at any port.
    Private addresses are refused unless they are in `networks` and the operator lists them in `private`.
    `anywhere` allows every public host and address, at any port.
    """

    hosts: frozenset[str] = frozenset()
    parents: frozenset[str] = frozenset()
    networks: tuple[IpNetwork, ...] = ()
    private: tuple[IpNetwork, ...] = ()
    anywhere: bool = False

    @classmethod
    def parse(
        cls, domains: Sequence[str], cidrs: Sequence[str], *, private: tuple[IpNetwork, ...] = ()
    ) -> Self:
        """Return the rules of a record's lists; raises ValueError for an invalid entry."""
        names = [parse_domain(one) for one in domains]
        return cls(
            hosts=frozenset(one for one in names if not one.startswith(_WILDCARD)),
            parents=frozenset(one[2:] for one in names if one.startswith(_WILDCARD)),
            networks=parse_networks(list(cidrs)),
            private=private,
        )

    def allows_name(self, host: str) -> bool:
        """Return whether a name in its normal form is listed."""
        if self.anywhere or host in self.hosts:
            return True
        labels = host.split(".")
        return any(".".join(labels[place:]) in self.parents for place in range(1, len(labels)))

    def covers(self, earlier: EgressRules) -> bool:
        """Return whether everything that earlier rules allow is still allowed."""
        return (
            self.anywhere >= earlier.anywhere
            and all(self.allows_name(host) for host in earlier.hosts)
            and all(parent in self.parents or self.allows_name(parent) for parent in earlier.parents)
            and self.covers_networks(earlier)
        )

    def covers_networks(self, earlier: EgressRules) -> bool:
        """Return whether every address that earlier rules allow is still allowed."""
        if self.anywhere:
            return not earlier.networks or not earlier.private
        return all(_is_inside(network, self.networks) for network in earlier.networks) and all(
            _is_inside(network, self.private) for network in earlier.private
        )

    def check_host(self, host: str, port: int) -> None:
        """Raise EgressRefused unless a host may be looked up and connected to; names are not resolved."""
        if is_address(host):
            self.check_address(host.strip("[]"), port, is_named=False)
        elif not self.allows_name(host):
            raise EgressRefused(
                f"This sandbox may not reach {host}. To allow it, add {host!r} to network.allowDomains of "
                "the sandbox record."
            )
        elif port not in WEB_PORTS and not self.anywhere:
            raise EgressRefused(
                f"This sandbox may not reach port {port} of {host}: hosts of network.allowDomains are "
                "reached at ports 80 and 443. To allow other ports, list the address in network.allowCidrs."
            )

    def check_address(self, address: str, port: int, *, is_named: bool) -> None:
        """Raise EgressRefused unless an address may be connected to; `is_named`: by a listed host."""
        found = ip_address(address)
        is_listed = is_within(found, self.networks)
        if (not is_public(found) or is_local(found)) and not (is_listed and is_within(found, self.private)):
            raise EgressRefused(
                f"This sandbox may not reach {address}: the address is private, local or reserved. The "
                "operator can allow it in sandbox.allow.private_networks, and the sandbox record must "
                "list it in network.allowCidrs."
            )
        if not is_listed and not self.anywhere and not (is_named and port in WEB_PORTS):
            raise EgressRefused(
                f"This sandbox may not reach {address} at port {port}. To allow it, add the address to "
                "network.allowCidrs of the sandbox record, or its name to network.allowDomains."
            )


def _is_inside(network: IpNetwork, networks: Sequence[IpNetwork]) -> bool:
    """Return whether one of the networks contains a network."""
    first, last = network[0], network[-1]
    return any(first in one and last in one for one in networks if one.version == network.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesGuard(EgressGuard):
    """Checks the connections of a client by a sandbox's present rules; the host itself is checked before."""

    get_rules: Callable[[], EgressRules]

    def check(self, host: str, port: int) -> None:
        """Raise EgressRefused unless a connection to this address is allowed."""
        self.get_rules().check_address(host, port, is_named=True)
