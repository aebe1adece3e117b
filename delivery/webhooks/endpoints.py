"""SQL of webhook endpoints, and the deletion of all delivery data of an account or conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, insert, select, update

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.database.tables import IS_OPEN, deliveries, destinations, endpoints, routes, streams
from delivery.deliveries.attempt import DeliveryState
from delivery.deliveries.destinations import end_pause

DELETED = "the endpoint no longer exists"
"""Why the deliveries of a deleted endpoint end."""

_UNLOCKED_WAITING = (
    select(deliveries.c.id)
    .where(deliveries.c.destination == bindparam("at"), IS_OPEN, deliveries.c.state != DeliveryState.SENDING)
    .with_for_update(skip_locked=True)
)
_SUPPRESS_WAITING = (
    update(deliveries)
    .where(deliveries.c.id.in_(_UNLOCKED_WAITING))
    .values(state=str(DeliveryState.SUPPRESSED), error=DELETED, updated_at=bindparam("now"))
)
_UNLOCKED_DESTINATION = (
    select(destinations.c.destination)
    .where(destinations.c.destination == bindparam("at"))
    .with_for_update(skip_locked=True)
)
_DELETE_DESTINATION = delete(destinations).where(destinations.c.destination.in_(_UNLOCKED_DESTINATION))

_ORDERED = select(endpoints.c.ordered).where(endpoints.c.id == bindparam("of"))

_TURNS_AT_ONCE = 500
"""Turns whose endpoints one statement deletes."""

RECORD = "record"
"""The origin of an endpoint created by its account; other origins are `agent:<id>` and `turn:<id>`."""


CONVERSATION_DELETED = "its conversation was deleted"
"""Why an endpoint of one conversation is disabled for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A URL that receives events; `secret` and `previous_secret` are encrypted, `events` are patterns.

    `previous_secret` has one or more secrets, separated by spaces, that sign too until `previous_until`.
    `ordered`: an event waits until the one before it is delivered or dead-lettered. `failing_since`: no
    attempt has succeeded since then.
    """

    id: str
    account: str
    name: str | None = None
    origin: str = RECORD
    url: str
    trusted: bool = False
    events: tuple[str, ...]
    conversation: str | None = None
    secret: bytes
    previous_secret: bytes | None = None
    previous_until: datetime | None = None
    disabled_at: datetime | None = None
    disabled_why: str | None = None
    ordered: bool = False
    failing_since: datetime | None = None
    created_at: datetime


def _endpoint(row: Row[Any]) -> Endpoint:
    fields = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name of it
    return Endpoint(**fields | {"events": tuple(json.loads(fields["events"]))})


def _columns(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "url": endpoint.url,
        "events": json.dumps(list(endpoint.events)),
        "conversation": endpoint.conversation,
        "secret": endpoint.secret,
        "previous_secret": endpoint.previous_secret,
        "previous_until": endpoint.previous_until,
        "disabled_at": endpoint.disabled_at,
        "disabled_why": endpoint.disabled_why,
        "ordered": endpoint.ordered,
        "failing_since": endpoint.failing_since,
    }


async def add(connection: Connection, endpoint: Endpoint) -> None:
    """Insert an endpoint; raises IntegrityError if the account has an endpoint of this name."""
    await connection.execute(
        insert(endpoints).values(
            id=endpoint.id,
            account=endpoint.account,
            origin=endpoint.origin,
            trusted=endpoint.trusted,
            created_at=endpoint.created_at,
            **_columns(endpoint),
        )
    )


async def update_endpoint(connection: Connection, endpoint: Endpoint, *, before: Endpoint) -> Endpoint:
    """Update all fields of an endpoint except account, origin and trust, and return it.

    One that is enabled again or has another URL starts over, without its earlier failures; then what waits
    for the end of a pause is due.
    """
    is_enabled_again = before.disabled_at is not None and endpoint.disabled_at is None
    if is_enabled_again or before.url != endpoint.url:
        endpoint = replace(endpoint, failing_since=None)
    await connection.execute(
        update(endpoints).where(endpoints.c.id == endpoint.id).values(_columns(endpoint))
    )
    if endpoint.failing_since is None:
        await end_pause(connection, endpoint.id)
    return endpoint


async def get(
    connection: Connection, account: str, id_or_name: str, *, locked: bool = False
) -> Endpoint | None:
    """Return an endpoint of an account or its agents by id, else by name, or None; `locked` to change it."""
    query = (
        select(endpoints)
        .where(
            endpoints.c.account == account,
            (endpoints.c.origin == RECORD) | endpoints.c.origin.startswith("agent:"),
            (endpoints.c.id == id_or_name) | (endpoints.c.name == id_or_name),
        )
        .order_by(endpoints.c.id != id_or_name)
        .limit(1)
    )
    rows = await connection.execute(query.with_for_update() if locked else query)
    row = rows.one_or_none()
    return _endpoint(row) if row else None


async def get_by_origin(connection: Connection, account: str, origin: str) -> Endpoint | None:
    """Return the endpoint of an agent or a turn, or None."""
    rows = await connection.execute(
        select(endpoints)
        .where(endpoints.c.account == account, endpoints.c.origin == origin)
        .order_by(endpoints.c.id)
        .limit(1)
    )
    row = rows.one_or_none()
    return _endpoint(row) if row else None


async def get_by_id(connection: Connection, endpoint_id: str) -> Endpoint | None:
    """Return an endpoint of any account and origin; for workers, never for an id from a request."""
    row = (await connection.execute(select(endpoints).where(endpoints.c.id == endpoint_id))).one_or_none()
    return _endpoint(row) if row else None


async def record_failure(connection: Connection, endpoint_id: str, *, now: datetime) -> datetime:
    """Store that an attempt failed; return since when none has succeeded."""
    await connection.execute(
        update(endpoints)
        .where(endpoints.c.id == endpoint_id, endpoints.c.failing_since.is_(None))
        .values(failing_since=now)
    )
    found = await connection.execute(select(endpoints.c.failing_since).where(endpoints.c.id == endpoint_id))
    return found.scalar_one_or_none() or now


async def record_success(connection: Connection, endpoint_id: str) -> None:
    """Store that an attempt succeeded."""
    await connection.execute(
        update(endpoints)
        .where(endpoints.c.id == endpoint_id, endpoints.c.failing_since.is_not(None))
        .values(failing_since=None)
    )


async def is_ordered(connection: Connection, endpoint_id: str) -> bool:
    """Return whether an endpoint receives its events one after the other."""
    rows = await connection.execute(_ORDERED, {"of": endpoint_id})
    return bool(rows.scalar_one_or_none())


async def list_for_account(
    connection: Connection, account: str, *, after: str, limit: int
) -> Sequence[Endpoint]:
    """Return the endpoints that an account has created, oldest first."""
    rows = await connection.execute(
        select(endpoints)
        .where(endpoints.c.account == account, endpoints.c.origin == RECORD, endpoints.c.id > after)
        .order_by(endpoints.c.id)
        .limit(limit)
    )
    return [_endpoint(row) for row in rows]


async def count(connection: Connection, account: str) -> int:
    """Return how many endpoints an account has created."""
    own = select(func.count()).where(endpoints.c.account == account, endpoints.c.origin == RECORD)
    return int((await connection.execute(own)).scalar_one())


async def list_all(connection: Connection, *, after: str, limit: int) -> Sequence[Endpoint]:
    """Return endpoints of all accounts and origins, for encrypting their secrets again."""
    rows = await connection.execute(
        select(endpoints).where(endpoints.c.id > after).order_by(endpoints.c.id).limit(limit)
    )
    return [_endpoint(row) for row in rows]


async def delete_endpoint(connection: Connection, account: str, endpoint_id: str) -> bool:
    """Delete an endpoint; False when the account has none of this id."""
    return await _delete(connection, endpoints.c.account == account, endpoints.c.id == endpoint_id) > 0


async def delete_by_origin(connection: Connection, account: str, origin: str) -> None:
    """Delete the endpoints of an agent or a turn."""
    await _delete(connection, endpoints.c.account == account, endpoints.c.origin == origin)


async def _delete(connection: Connection, *which: ColumnElement[bool]) -> int:
    """Delete endpoints with their pauses, and suppress what waits for them; returns how many there were.

    It waits for no worker: what one has locked is in progress, and ends when the endpoint is not found.
    """
    found = await connection.execute(delete(endpoints).where(*which).returning(endpoints.c.id))
    gone = found.scalars().all()
    for endpoint in gone:
        await connection.execute(_SUPPRESS_WAITING, {"at": endpoint, "now": utc_now()})
        await connection.execute(_DELETE_DESTINATION, {"at": endpoint})
    return len(gone)


async def delete_account(connection: Connection, account: str) -> None:
    """Delete an account's deliveries, routes, endpoints and outboxes; see `delete_conversation`."""
    for table in (deliveries, routes, endpoints, streams, deliveries):
        await connection.execute(delete(table).where(table.c.account == account))


async def delete_conversation(
    connection: Connection, account: str, conversation: str, *, turns: Sequence[str]
) -> None:
    """Delete a conversation's deliveries, routes and outbox, and the endpoints of its turns.

    Endpoints that get the events of this conversation alone are disabled: there will be no more.
    Transactions that record outcomes lock deliveries and then the stream: so does the deletion. Those that
    create deliveries lock the stream before; what they have created is deleted after it. The stream is
    locked late, because every event of the conversation waits for it.
    """
    for table in (deliveries, routes):
        await connection.execute(delete(table).where(table.c.conversation == conversation))
    for first in range(0, len(turns), _TURNS_AT_ONCE):
        origins = [f"turn:{turn}" for turn in turns[first : first + _TURNS_AT_ONCE]]
        await _delete(connection, endpoints.c.origin.in_(origins))
    await connection.execute(
        update(endpoints)
        .where(endpoints.c.account == account, endpoints.c.conversation == conversation)
        .values(
            disabled_at=func.coalesce(endpoints.c.disabled_at, utc_now()), disabled_why=CONVERSATION_DELETED
        )
    )
    for table in (streams, deliveries):
        await connection.execute(delete(table).where(table.c.conversation == conversation))
