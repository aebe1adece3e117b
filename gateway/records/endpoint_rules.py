"""Which endpoints a channel of an account record may name: the platform's own, or what the operator allows.

Adapters connect by their vendors' SDKs, which know nothing of the guarded door out. So a name that could
resolve to anything is refused here, before it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, SecretStr
from yarl import URL

from delivery.webhooks.egress import EgressRefused, Reach, Rules
from sandbox.config import Problem

REMEDY = (
    "an endpoint other than the platform's own belongs into the operator's configuration, "
    "or must be an address within DOVECOTE_EGRESS_ALLOW"
)


def foreign_endpoints(settings: BaseModel, rules: Rules, below: str) -> Iterator[Problem]:
    """Yield a problem for every endpoint that is neither the adapter's default nor an allowed address."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, SecretStr) or not _is_endpoint(str(value)):
            continue
        if name != "webhook_url" and value != field.default and not _is_allowed(str(value), rules):
            yield Problem(pointer=f"{below}/{name}", detail=f"{value} is refused: {REMEDY}")


def _is_endpoint(value: str) -> bool:
    return value.startswith(("http://", "https://", "ws://", "wss://"))


def _is_allowed(value: str, rules: Rules) -> bool:
    host = URL(value).host or ""
    try:
        rules.judge("127.0.0.1" if host == "localhost" else host, Reach.ALLOWED)
    except EgressRefused:
        return False
    return True
