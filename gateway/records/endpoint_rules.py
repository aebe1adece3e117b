"""Check which endpoints a channel of an account record may name: the platform's own, or allowed ones.

Adapters connect through vendors' SDKs, which do not use the guarded egress client. A host name that could
resolve to a private address is therefore refused before the record is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, SecretStr
from yarl import URL

from delivery.webhooks.egress import EgressPolicy, EgressRefused, EgressScope
from sandbox.config import ConfigProblem

REMEDY = (
    "an endpoint other than the platform's own belongs into the operator's configuration, "
    "or must be an address within DOVECOTE_EGRESS_ALLOW"
)


def disallowed_endpoints(settings: BaseModel, policy: EgressPolicy, below: str) -> Iterator[ConfigProblem]:
    """Yield a problem for every endpoint that is neither the adapter's default nor an allowed address."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, SecretStr) or not _is_endpoint(str(value)):
            continue
        if name != "webhook_url" and value != field.default and not _is_allowed(str(value), policy):
            yield ConfigProblem(pointer=f"{below}/{name}", detail=f"{value} is refused: {REMEDY}")


def _is_endpoint(value: str) -> bool:
    return value.startswith(("http://", "https://", "ws://", "wss://"))


def _is_allowed(value: str, policy: EgressPolicy) -> bool:
    host = URL(value).host or ""
    try:
        policy.check_host("127.0.0.1" if host == "localhost" else host, EgressScope.ALLOWED)
    except EgressRefused:
        return False
    return True
