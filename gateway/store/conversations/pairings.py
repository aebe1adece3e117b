"""SQL of pairings: people who may talk to a bot because an operator approved them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, or_, select, update

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.channel_tables import pairings
from gateway.store.tables import account_of_record

CODE_TTL = timedelta(hours=1)
_LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """A paired person, or one whose pairing waits for approval; only that person may see the code."""

    person: str
    name: str
    address: Address | None
    paired_at: datetime | None
    expires_at: datetime | None
    created_at: datetime


async def is_paired(connection: Connection, channel: str, person: str) -> bool:
    """Return whether an operator has approved this person."""
    found = await connection.execute(
        select(pairings.c.paired_at).where(pairings.c.channel == channel, pairings.c.person == person)
    )
    return found.scalar_one_or_none() is not None


def _is_valid(now: datetime) -> ColumnElement[bool]:
    """Return whether a code is valid; one that ends later than any can is of a clock that was fast."""
    return pairings.c.expires_at.between(now, now + CODE_TTL)


async def issue_code(connection: Connection, address: Address, person: str, *, name: str) -> tuple[str, bool]:
    """Return the pairing code of a person at this address, and whether it is new. A code is valid an hour."""
    now, channel = utc_now(), address.channel
    found = await connection.execute(
        select(pairings.c.code, pairings.c.expires_at).where(
            pairings.c.channel == channel, pairings.c.person == person
        )
    )
    row = found.first()
    if row is not None and row.code and row.expires_at and now < row.expires_at <= now + CODE_TTL:
        return row.code, False
    code = "".join(secrets.choice(_LETTERS) for _ in range(8))
    values = {
        "code": code,
        "name": name[:200],
        "address": address.encode(),
        "expires_at": now + CODE_TTL,
        "created_at": now,
    }
    await connection.execute(
        insert_on_conflict(pairings, connection.dialect.name)
        .values(channel=channel, person=person, account=account_of_record(channel), **values)
        .on_conflict_do_update(index_elements=["channel", "person"], set_=values)
    )
    return code, True


async def pair(connection: Connection, channel: str, code: str) -> Pairing | None:
    """Approve the person with this code and use the code up; None for a wrong or expired code."""
    now = utc_now()
    paired = await connection.execute(
        update(pairings)
        .where(
            pairings.c.channel == channel,
            pairings.c.code == code.strip().upper(),
            _is_valid(now),
        )
        .values(paired_at=now, code=None, expires_at=None)
        .returning(*pairings.c)
    )
    row = paired.first()
    return None if row is None else _pairing(row)


async def move_room(connection: Connection, *, old: Address, room: str) -> None:
    """Let the people who are paired in a room be paired under its new id."""
    for person in await _list_paired_in(connection, old):
        moved = f"{person.removesuffix(old.room)}{room}"
        if await is_paired(connection, old.channel, moved):
            continue
        await delete_pairing(connection, old.channel, moved)
        await connection.execute(
            update(pairings)
            .where(pairings.c.channel == old.channel, pairings.c.person == person)
            .values(person=moved)
        )


async def _list_paired_in(connection: Connection, room: Address) -> Sequence[str]:
    found = await connection.execute(
        select(pairings.c.person).where(
            pairings.c.channel == room.channel,
            pairings.c.paired_at.is_not(None),
            pairings.c.person.endswith(f"@{room.room}", autoescape=True),
        )
    )
    return found.scalars().all()


async def list_for_channel(
    connection: Connection, channel: str, *, after: str, limit: int
) -> Sequence[Pairing]:
    """Return approved and waiting people by person, after `after`."""
    waits = and_(pairings.c.code.is_not(None), _is_valid(utc_now()))
    found = await connection.execute(
        select(pairings)
        .where(
            pairings.c.channel == channel,
            pairings.c.person > after,
            or_(pairings.c.paired_at.is_not(None), waits),
        )
        .order_by(pairings.c.person)
        .limit(limit)
    )
    return [_pairing(row) for row in found]


async def delete_pairing(connection: Connection, channel: str, person: str) -> bool:
    """Revoke a pairing or delete a request; returns False when there is none."""
    done = await connection.execute(
        delete(pairings).where(pairings.c.channel == channel, pairings.c.person == person)
    )
    return done.rowcount > 0


async def delete_for_channel(connection: Connection, channel: str) -> None:
    """Delete all pairings of a channel."""
    await connection.execute(delete(pairings).where(pairings.c.channel == channel))


async def delete_expired(connection: Connection, *, before: datetime) -> None:
    """Delete requests whose code expired before `before`."""
    await connection.execute(
        delete(pairings).where(pairings.c.paired_at.is_(None), pairings.c.expires_at < before)
    )


def _pairing(row: Row[Any]) -> Pairing:
    return Pairing(
        person=row.person,
        name=row.name,
        address=Address.decode(row.address) if row.address else None,
        paired_at=row.paired_at,
        expires_at=row.expires_at,
        created_at=row.created_at,
    )
