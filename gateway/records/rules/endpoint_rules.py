"""Check the URLs of account records: endpoints of channels, and webhooks.

This is an early answer for the account. The guarded client decides when it connects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NewType

from pydantic import BaseModel

from egress.policy import EgressPolicy, EgressRefused, EgressScope
from egress.urls import EndpointUrl
from gateway.records.errors import InvalidRecord
from sandbox.config import ConfigProblem

REMEDY = (
    "an endpoint other than the platform's own belongs into the operator's configuration, "
    "or must be an address within DOVECOTE_EGRESS_ALLOW"
)
NEVER_CALLED = (
    "the operator can allow networks by DOVECOTE_EGRESS_ALLOW; otherwise name a public address, "
    "https at port 443 or http at port 80"
)

CallableUrl = NewType("CallableUrl", str)
"""The URL of a webhook that the policy does not refuse by the URL alone."""

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


def callable_url(url: str, policy: EgressPolicy, pointer: str) -> CallableUrl:
    """Return the URL of a webhook; raises InvalidRecord for one that could never be called."""
    try:
        parsed, scope = policy.check_url(url)
        if parsed.raw_host == "localhost" or (parsed.raw_host or "").endswith(".localhost"):
            policy.check_host("127.0.0.1", scope)
    except EgressRefused as error:
        detail = f"{url} would never be called: {error}; {NEVER_CALLED}"
        raise InvalidRecord([ConfigProblem(pointer=pointer, detail=detail)]) from None
    return CallableUrl(url)


def disallowed_urls(
    urls: Iterable[tuple[str, str]], policy: EgressPolicy, below: str
) -> Iterator[ConfigProblem]:
    """Yield a problem for every URL, given with its pointer, to which no connection would be allowed."""
    for pointer, url in urls:
        try:
            callable_url(url, policy, below + pointer)
        except InvalidRecord as error:
            yield from error.problems


def _is_allowed(value: EndpointUrl, policy: EgressPolicy) -> bool:
    host = value.origin.host.strip("[]")
    try:
        policy.check_host("127.0.0.1" if host == "localhost" else host, EgressScope.ALLOWED)
    except EgressRefused:
        return False
    return True
