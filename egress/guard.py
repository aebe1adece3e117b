"""What a client needs to check its connections: the policy, and who named the address."""

from __future__ import annotations

from dataclasses import dataclass, field

from egress.policy import EgressPolicy, EgressScope


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressGuard:
    """Checks each connection of one client.

    Scope PUBLIC is for addresses that an account names, and for all that a server at such an address links
    to. Scope TRUSTED is for addresses of the operator's own configuration.
    """

    policy: EgressPolicy = field(default_factory=EgressPolicy)
    scope: EgressScope = EgressScope.PUBLIC

    @property
    def is_trusted(self) -> bool:
        """Return whether every address is allowed."""
        return self.scope is EgressScope.TRUSTED

    def check(self, host: str, port: int) -> None:
        """Raise EgressRefused unless a connection to this address is allowed."""
        self.policy.check_connection(host, port, self.scope)


TRUSTED = EgressGuard(scope=EgressScope.TRUSTED)
"""The guard of clients whose addresses the operator's configuration names."""
