"""Create and change webhook endpoints of accounts, agents and turns; secrets are encrypted and rotated."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy.exc import IntegrityError

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.events.event import new_id
from delivery.webhooks import endpoints as store
from delivery.webhooks.endpoints import RECORD, Endpoint
from delivery.webhooks.signing import new_secret
from gateway.accounts.vault import AssociatedData, DecryptionFailed, Vault, associated_data
from gateway.records.agent import AgentHook
from gateway.records.errors import RecordNameTaken, RecordNotFound, WebhookDisabled, WebhookOfAgent
from gateway.records.fields import MASK
from gateway.records.rules.endpoint_rules import CallableUrl
from gateway.store.accounts import accounts

log = structlog.get_logger(__name__)

ROTATION_OVERLAP = timedelta(hours=24)
"""How long the secrets before are used for further signatures after a rotation."""

MAX_PREVIOUS = 5
"""Secrets before the present one that sign; a rotation beyond that drops the oldest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointWithSecret:
    """An endpoint with its generated secret, returned only once (None: the owner supplied it)."""

    endpoint: Endpoint
    secret: str | None


def secret_associated_data(endpoint: str, field: str = "secret") -> AssociatedData:
    """Return the context that binds an endpoint's secret (or `previous_secret`) to its field."""
    return associated_data("endpoints", endpoint, field)


def active_secrets(vault: Vault, endpoint: Endpoint, *, now: datetime | None = None) -> tuple[str, ...]:
    """Return the secrets that sign now, the newest first."""
    present = vault.decrypt(secret_associated_data(endpoint.id), endpoint.secret)
    return (present, *_previous_secrets(vault, endpoint, now=now or utc_now()))


def _previous_secrets(vault: Vault, endpoint: Endpoint, *, now: datetime) -> list[str]:
    """Return the secrets before the present one that still sign, the newest first; raises DecryptionFailed.

    They are stored as one text, separated by spaces, which no secret contains.
    """
    until = endpoint.previous_until
    if endpoint.previous_secret is None or until is None or until <= now:
        return []
    place = secret_associated_data(endpoint.id, "previous_secret")
    return vault.decrypt(place, endpoint.previous_secret).split()


async def create(
    connection: Connection,
    vault: Vault,
    account: str,
    *,
    url: CallableUrl,
    events: Sequence[str],
    origin: str = RECORD,
    name: str | None = None,
    conversation: str | None = None,
    secret: str | None = None,
    trusted: bool = False,
    ordered: bool = False,
) -> EndpointWithSecret:
    """Create an endpoint; generates a secret unless one is given. Raises RowDeleted without the account."""
    await accounts.lock_against_deletion(connection, account)
    text = secret or new_secret()
    endpoint_id = new_id("whk")
    endpoint = Endpoint(
        id=endpoint_id,
        account=account,
        name=name,
        origin=origin,
        url=url,
        trusted=trusted,
        ordered=ordered,
        events=tuple(events),
        conversation=conversation,
        secret=vault.encrypt(secret_associated_data(endpoint_id), text).encode(),
        created_at=utc_now(),
    )
    try:
        await store.add(connection, endpoint)
    except IntegrityError as error:
        raise RecordNameTaken(f"there is already a webhook named {name!r}") from error
    return EndpointWithSecret(endpoint=endpoint, secret=None if secret else text)


async def create_for_turn(
    connection: Connection, vault: Vault, account: str, turn: str, *, url: CallableUrl, secret: str | None
) -> EndpointWithSecret:
    """Create the endpoint a turn names; the turn's route selects it, whatever the event."""
    return await create(
        connection, vault, account, url=url, events=("agent.finished",), origin=f"turn:{turn}", secret=secret
    )


def with_rotated_secret(
    vault: Vault, endpoint: Endpoint, text: str, *, now: datetime | None = None
) -> Endpoint:
    """Return the endpoint with a new secret; those that sign now also sign for a day more.

    So a receiver that has the secret before two rotations has a day too. One that cannot be decrypted ends.
    """
    now = now or utc_now()
    present = _present_secret(vault, endpoint)
    try:
        earlier = _previous_secrets(vault, endpoint, now=now)
    except DecryptionFailed:
        earlier = []
    previous = " ".join(([present] if present else []) + earlier[: MAX_PREVIOUS - 1])
    previous_place = secret_associated_data(endpoint.id, "previous_secret")
    return replace(
        endpoint,
        secret=vault.encrypt(secret_associated_data(endpoint.id), text).encode(),
        previous_secret=vault.encrypt(previous_place, previous).encode() if previous else None,
        previous_until=now + ROTATION_OVERLAP if previous else None,
    )


def _present_secret(vault: Vault, endpoint: Endpoint) -> str | None:
    """Return the secret, or None if it cannot be decrypted."""
    try:
        return vault.decrypt(secret_associated_data(endpoint.id), endpoint.secret)
    except DecryptionFailed as error:
        log.warning("secret.decryption_failed", table="endpoints", row=endpoint.id, error=str(error))
        return None


def _has_secret(vault: Vault, endpoint: Endpoint, text: str) -> bool:
    """Return whether the endpoint signs with this secret now."""
    present = _present_secret(vault, endpoint)
    return present is not None and hmac.compare_digest(present.encode(), text.encode())


async def rotate(
    connection: Connection, vault: Vault, account: str, id_or_name: str, *, secret: str | None = None
) -> EndpointWithSecret:
    """Give an endpoint record a new secret, which is returned only once; raises RecordNotFound.

    A chosen `secret` is not returned; the one that the endpoint has already changes nothing.
    """
    endpoint = await get(connection, account, id_or_name, locked=True)
    if secret is not None and _has_secret(vault, endpoint, secret):
        return EndpointWithSecret(endpoint=endpoint, secret=None)
    text = secret or new_secret()
    changed = with_rotated_secret(vault, endpoint, text)
    changed = await store.update_endpoint(connection, changed, before=endpoint)
    return EndpointWithSecret(endpoint=changed, secret=None if secret else text)


async def get(connection: Connection, account: str, id_or_name: str, *, locked: bool = False) -> Endpoint:
    """Return an endpoint of the account or of an agent, `locked` to change it; raises RecordNotFound."""
    endpoint = await store.get(connection, account, id_or_name, locked=locked)
    if endpoint is None:
        raise RecordNotFound("there is no such webhook in this account")
    return endpoint


async def get_enabled(connection: Connection, account: str, id_or_name: str) -> Endpoint:
    """Return an endpoint that gets events; raises RecordNotFound, WebhookDisabled."""
    endpoint = await get(connection, account, id_or_name)
    if endpoint.disabled_at is not None:
        raise WebhookDisabled
    return endpoint


def ensure_own(endpoint: Endpoint) -> None:
    """Raise WebhookOfAgent for the endpoint of an agent, which has the URL and events of its config."""
    if endpoint.origin != RECORD:
        raise WebhookOfAgent


async def sync_agent_webhook(
    connection: Connection,
    vault: Vault,
    account: str,
    agent: str,
    hook: AgentHook | None,
    *,
    check: Callable[[str], CallableUrl],
    is_given: bool = False,
) -> str | None:
    """Create, change or delete the agent's endpoint to match its config; returns a generated secret.

    A new URL is checked by `check`. A disabled endpoint is enabled if it changes, or if the request names it
    (`is_given`).
    """
    if hook is None:
        await delete_agent_webhook(connection, account, agent)
        return None
    origin = f"agent:{agent}"
    present = await store.get_by_origin(connection, account, origin)
    given = hook.secret.get_secret_value() if hook.secret else None
    given = None if given == MASK else given
    if present is None:
        created = await create(
            connection, vault, account, url=check(hook.url), events=hook.events, origin=origin, secret=given
        )
        return created.secret
    if present.url != hook.url:
        check(hook.url)
    changed = replace(present, url=hook.url, events=hook.events)
    if given is not None and not _has_secret(vault, present, given):
        changed = with_rotated_secret(vault, changed, given)
    if is_given or changed != present:
        changed = replace(changed, disabled_at=None, disabled_why=None)
    await store.update_endpoint(connection, changed, before=present)
    return None


async def delete_agent_webhook(connection: Connection, account: str, agent: str) -> None:
    """Delete the agent's endpoint, if it has one."""
    await store.delete_by_origin(connection, account, f"agent:{agent}")
