"""Webhook endpoints as accounts, agents and turns bring them: sealed secrets, rotation with overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy.exc import IntegrityError

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.events.event import new_id
from delivery.webhooks import endpoints as store
from delivery.webhooks.endpoints import RECORD, Endpoint
from delivery.webhooks.signing import new_secret
from gateway.accounts.vault import AssociatedData, Vault, associated_data
from gateway.records.agent import AgentHook
from gateway.records.errors import RecordNameTaken, RecordNotFound
from gateway.records.fields import MASK

ROTATION_OVERLAP = timedelta(hours=24)
"""How long the previous secret still signs after a rotation, beside the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointWithSecret:
    """An endpoint with the secret its owner is told once (None: the owner gave it)."""

    endpoint: Endpoint
    secret: str | None


def secret_associated_data(endpoint: str, field: str = "secret") -> AssociatedData:
    """Name where an endpoint's secret (or `previous_secret`) stands."""
    return associated_data("endpoints", endpoint, field)


def active_secrets(vault: Vault, endpoint: Endpoint, *, now: datetime | None = None) -> tuple[str, ...]:
    """Return the secrets that sign now, the newest first."""
    found = [vault.decrypt(secret_associated_data(endpoint.id), endpoint.secret)]
    until = endpoint.previous_until
    if endpoint.previous_secret is not None and until is not None and until > (now or utc_now()):
        found.append(
            vault.decrypt(secret_associated_data(endpoint.id, "previous_secret"), endpoint.previous_secret)
        )
    return tuple(found)


async def create(
    connection: Connection,
    vault: Vault,
    account: str,
    *,
    url: str,
    events: Sequence[str],
    origin: str = RECORD,
    name: str | None = None,
    conversation: str | None = None,
    secret: str | None = None,
    trusted: bool = False,
    ordered: bool = False,
) -> EndpointWithSecret:
    """Make an endpoint; without a secret of the owner's it gets one, which is told once."""
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
    connection: Connection, vault: Vault, account: str, turn: str, *, url: str, secret: str | None
) -> EndpointWithSecret:
    """Make the endpoint a turn names; the turn's route leads to it, whatever the event."""
    return await create(
        connection, vault, account, url=url, events=("agent.finished",), origin=f"turn:{turn}", secret=secret
    )


def with_rotated_secret(
    vault: Vault, endpoint: Endpoint, text: str, *, now: datetime | None = None
) -> Endpoint:
    """Return the endpoint with a new secret; the present one goes on signing for a day."""
    present = vault.decrypt(secret_associated_data(endpoint.id), endpoint.secret)
    return replace(
        endpoint,
        secret=vault.encrypt(secret_associated_data(endpoint.id), text).encode(),
        previous_secret=vault.encrypt(
            secret_associated_data(endpoint.id, "previous_secret"), present
        ).encode(),
        previous_until=(now or utc_now()) + ROTATION_OVERLAP,
    )


async def rotate(connection: Connection, vault: Vault, account: str, id_or_name: str) -> EndpointWithSecret:
    """Give an endpoint record a new secret, told once; raises Missing."""
    endpoint = await get(connection, account, id_or_name)
    text = new_secret()
    changed = with_rotated_secret(vault, endpoint, text)
    await store.update_endpoint(connection, changed)
    return EndpointWithSecret(endpoint=changed, secret=text)


async def get(connection: Connection, account: str, id_or_name: str) -> Endpoint:
    """Return an endpoint record of the account; raises Missing."""
    endpoint = await store.get(connection, account, id_or_name)
    if endpoint is None:
        raise RecordNotFound("there is no such webhook in this account")
    return endpoint


async def sync_agent_webhook(
    connection: Connection, vault: Vault, account: str, agent: str, hook: AgentHook | None
) -> str | None:
    """Make the agent's endpoint what its config says; returns a secret that must be told."""
    origin = f"agent:{agent}"
    present = await store.get_by_origin(connection, account, origin)
    if hook is None:
        await store.delete_by_origin(connection, account, origin)
        return None
    given = hook.secret.get_secret_value() if hook.secret else None
    given = None if given == MASK else given
    if present is None:
        told = await create(
            connection, vault, account, url=hook.url, events=hook.events, origin=origin, secret=given
        )
        return told.secret
    if given is not None and active_secrets(vault, present)[0] != given:
        present = with_rotated_secret(vault, present, given)
    await store.update_endpoint(
        connection, replace(present, url=hook.url, events=hook.events, disabled_at=None, disabled_why=None)
    )
    return None
