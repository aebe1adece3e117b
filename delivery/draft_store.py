"""SQL of drafts: what of a message shows in a chat while the message is still being said."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Update, delete, select, update

from delivery.database import Connection, insert_or
from delivery.tables import drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Where a draft shows (None: perhaps nowhere), and until when its writer may be at it."""

    platform_id: str | None
    busy_until: datetime | None


async def take_up(
    connection: Connection, message: str, target: str, *, now: datetime, busy_until: datetime
) -> Shown | None:
    """Announce a call for a draft; None when the final text has claimed it and no call may follow."""
    taken = await connection.execute(
        insert_or(drafts, connection.dialect.name)
        .values(message=message, target=target, busy_until=busy_until, created_at=now)
        .on_conflict_do_update(
            index_elements=["message", "target"],
            set_={"busy_until": busy_until},
            where=drafts.c.claimed_at.is_(None),
        )
        .returning(drafts.c.platform_id)
    )
    row = taken.first()
    return None if row is None else Shown(platform_id=row[0], busy_until=busy_until)


async def keep(connection: Connection, message: str, target: str, platform_id: str) -> None:
    """Remember under which id a draft shows."""
    await connection.execute(_one(message, target).values(platform_id=platform_id))


async def rest(connection: Connection, message: str, target: str) -> None:
    """Say that no call for a draft is under way."""
    await connection.execute(_one(message, target).values(busy_until=None))


async def find(connection: Connection, message: str, target: str) -> Shown | None:
    """Return a draft, or None when there never was one."""
    found = await connection.execute(
        select(drafts.c.platform_id, drafts.c.busy_until).where(
            drafts.c.message == message, drafts.c.target == target
        )
    )
    row = found.first()
    return None if row is None else Shown(platform_id=row[0], busy_until=row[1])


async def claim(connection: Connection, message: str, target: str, *, now: datetime) -> str | None:
    """Take a draft over for the final text, for good; return where it shows."""
    claimed = await connection.execute(
        _one(message, target).values(claimed_at=now).returning(drafts.c.platform_id)
    )
    found: str | None = claimed.scalar_one_or_none()
    return found


async def forget(connection: Connection, *, before: datetime) -> int:
    """Drop drafts older than any delivery that could still claim them."""
    return (await connection.execute(delete(drafts).where(drafts.c.created_at < before))).rowcount


def _one(message: str, target: str) -> Update:
    return update(drafts).where(drafts.c.message == message, drafts.c.target == target)
