"""Check which endpoints a channel of an account record may name: the platform's own, or allowed ones.

This is an early answer for the account. The adapter's guarded client decides when it connects.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from egress.policy import EgressPolicy, EgressRefused, EgressScope
from egress.urls import EndpointUrl
from sandbox.config import ConfigProblem

REMEDY = (
    "an endpoint other than the platform's own belongs into the operator's configuration, "
    "or must be an address within DOVECOTE_EGRESS_ALLOW"
)
GATEWAY_FIELDS = frozenset({"webhook_url"})
"""Fields to which nothing connects: the gateway tells the platform its own address."""


def disallowed_endpoints(settings: BaseModel, policy: EgressPolicy, below: str) -> Iterator[ConfigProblem]:
    """Yield a problem for every endpoint that is neither the adapter's default nor an allowed address."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if name in GATEWAY_FIELDS or value == field.default or not _is_endpoint(value):
            continue
        if not isinstance(value, EndpointUrl) or not _is_allowed(value, policy):
            yield ConfigProblem(pointer=f"{below}/{name}", detail=f"{value} is refused: {REMEDY}")


def _is_endpoint(value: object) -> bool:
    """Return whether a value is a URL; a plugin that does not use the type is not trusted with one."""
    return isinstance(value, str) and "://" in value


def _is_allowed(value: EndpointUrl, policy: EgressPolicy) -> bool:
    host = value.origin.host.strip("[]")
    try:
        policy.check_host("127.0.0.1" if host == "localhost" else host, EgressScope.ALLOWED)
    except EgressRefused:
        return False
    return True
