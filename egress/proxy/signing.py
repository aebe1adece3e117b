"""What the proxy adds to requests of a sandbox, so that the secret itself never enters the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from egress.policy import EgressRefused
from egress.proxy.rules import EgressRules


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRequest:
    """A request of a sandbox to a host for which there is a credential."""

    host: str
    method: str
    path: str


class SigningFailed(Exception):
    """There is a credential for the host, and no header can be made of it now; the text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHeaders:
    """The headers that a credential adds; they replace those of the same names.

    `on_refused` is called if the host answers 401, so that later requests get others, if there are any.
    """

    headers: Mapping[str, str] = field(repr=False)
    on_refused: Callable[[], None] = field(default=lambda: None, repr=False)


class RequestSigner(Protocol):
    """The credentials that one sandbox may use; it is asked for each request."""

    async def has_credential(self, host: str) -> bool:
        """Return whether the sandbox may use a credential for this host."""
        ...

    async def explain(self, host: str) -> str:
        """Return why a credential for this host is not used, in a sentence with the remedy; else nothing."""
        ...

    async def sign(self, request: OutgoingRequest) -> SignedHeaders | None:
        """Return the headers for a request, or None without a credential; raises SigningFailed."""
        ...


class NoCredentials:
    """A sandbox that may use no credential."""

    async def has_credential(self, host: str) -> bool:
        """Return False."""
        del host
        return False

    async def explain(self, host: str) -> str:
        """Return nothing."""
        del host
        return ""

    async def sign(self, request: OutgoingRequest) -> SignedHeaders | None:
        """Return None."""
        del request
        return None


async def check_host(rules: EgressRules, signer: RequestSigner, host: str, port: int) -> None:
    """Raise EgressRefused unless the rules allow a host; an unused credential is named as the reason."""
    try:
        rules.check_host(host, port)
    except EgressRefused as error:
        raise EgressRefused(await signer.explain(host) or error.why) from error
