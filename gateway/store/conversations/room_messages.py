"""SQL of what people said in rooms without addressing the bot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Executable, Select, and_, bindparam, delete, func, or_, select, update

from delivery.database.batched_deletes import delete_batch
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, insert_on_conflict
from gateway.store.room_tables import room_messages
from gateway.store.tables import conversations

MAX_ROWS = 500
"""Rows of one room that are kept, of people and of bots each."""

BOT = "bot"
"""The kind of a message of another bot, which is kept for its thread or the one below it alone."""

ROOM_MESSAGE_AGE = timedelta(days=7)
"""How long a row is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMessage:
    """Something said in a room.

    `kind` is `message`, `bot` for a message of another bot, or `edited` or `deleted` for a change of one.
    """

    thread: str
    platform_id: str
    kind: str
    author: str
    name: str
    text: str
    sent_at: datetime
    files: Sequence[Mapping[str, Any]] | None = None


_COLUMNS = [room_messages.c[name] for name in RoomMessage.__dataclass_fields__]
_OLDEST_KEPT = (
    select(room_messages.c.position)
    .where(room_messages.c.room == bindparam("of"), (room_messages.c.kind == BOT) == bindparam("by_bot"))
    .order_by(room_messages.c.position.desc())
    .limit(1)
    .offset(MAX_ROWS - 1)
    .scalar_subquery()
)
_DELETE_OVERFLOW = delete(room_messages).where(
    room_messages.c.room == bindparam("of"),
    (room_messages.c.kind == BOT) == bindparam("by_bot"),
    room_messages.c.position < _OLDEST_KEPT,
)


async def move(connection: Connection, *, old: str, new: str, keeps_messages: bool) -> None:
    """Move what was said in a room to its new id; both are values of `Address.destination`.

    Without `keeps_messages` other messages have the platform's ids there, so these are forgotten.
    """
    values = {"room": new} if keeps_messages else {"room": new, "platform_id": ""}
    await connection.execute(update(room_messages).where(room_messages.c.room == old).values(**values))


def _unseen(place: ColumnElement[bool]) -> Select[Any]:
    """Return the newest messages of a place in a room after the position that a conversation has seen."""
    seen = (
        select(conversations.c.room_position)
        .where(conversations.c.id == bindparam("whose"))
        .scalar_subquery()
    )
    return (
        select(room_messages.c.position, *_COLUMNS)
        .where(
            room_messages.c.room == bindparam("of"),
            room_messages.c.position > func.coalesce(seen, 0),
            room_messages.c.created_at >= bindparam("since"),
            place,
        )
        .order_by(room_messages.c.position.desc())
        .limit(bindparam("most"))
    )


_UNSEEN_BEFORE_THREAD = _unseen(
    and_(
        or_(room_messages.c.thread == "", room_messages.c.thread == room_messages.c.platform_id),
        room_messages.c.kind != BOT,
    )
)
_IN_THREAD = or_(
    room_messages.c.thread == bindparam("in_thread"),
    func.substr(room_messages.c.thread, 1, bindparam("prefix_size")) == bindparam("prefix"),
)
_UNSEEN_IN_THREAD = _unseen(or_(_IN_THREAD, room_messages.c.platform_id == bindparam("in_thread")))
_DELETE_THREAD = delete(room_messages).where(room_messages.c.room == bindparam("of"), _IN_THREAD)


@cache
def _insert(dialect: str) -> Executable:
    return insert_on_conflict(room_messages, dialect).on_conflict_do_nothing()


async def add(connection: Connection, account: str, room: str, event_key: str, message: RoomMessage) -> None:
    """Keep a message of a room, once for each event, and delete the room's oldest beyond `MAX_ROWS`."""
    await connection.execute(
        _insert(connection.dialect.name),
        {
            "account": account,
            "room": room,
            "event_key": event_key[:300],
            "created_at": utc_now(),
            **asdict(message),
        },
    )
    await connection.execute(_DELETE_OVERFLOW, {"of": room, "by_bot": message.kind == BOT})


async def is_known(connection: Connection, room: str) -> bool:
    """Return whether messages of a room are kept."""
    found = await connection.execute(
        select(room_messages.c.position).where(room_messages.c.room == room).limit(1)
    )
    return found.first() is not None


async def has_author(connection: Connection, room: str, author: str) -> bool:
    """Return whether a message of a person is kept; the rows of changes do not say whose they are."""
    of_person = room_messages.c.kind == "message", room_messages.c.author == author
    found = await connection.execute(
        select(room_messages.c.position).where(room_messages.c.room == room, *of_person).limit(1)
    )
    return found.first() is not None


async def list_unseen(
    connection: Connection,
    room: str,
    thread: str,
    *,
    opens_thread: bool,
    conversation: str,
    since: datetime,
    limit: int,
) -> list[tuple[int, RoomMessage]]:
    """Return the newest messages of a thread that a conversation has not got, oldest first, with positions.

    The message that opened the thread is one of them, and so are those of threads inside of it. A message
    that `opens_thread` itself follows the messages that opened other threads and those outside of any.
    """
    given = {"of": room, "whose": conversation, "since": since, "most": limit}
    if opens_thread:
        rows = await connection.execute(_UNSEEN_BEFORE_THREAD, given)
    else:
        rows = await connection.execute(_UNSEEN_IN_THREAD, {**given, **_within(thread)})
    found = [dict(row) for row in rows.mappings()]
    return [(one.pop("position"), RoomMessage(**one)) for one in reversed(found)]


async def find(connection: Connection, room: str, platform_id: str) -> tuple[int, RoomMessage] | None:
    """Return a kept message, and no change of one, by its platform's id, with its position."""
    rows = await connection.execute(
        select(room_messages.c.position, *_COLUMNS)
        .where(
            room_messages.c.room == room,
            room_messages.c.platform_id == platform_id,
            room_messages.c.kind.in_(("message", BOT)),
        )
        .limit(1)
    )
    row = rows.mappings().first()
    if row is None:
        return None
    values = dict(row)
    return values.pop("position"), RoomMessage(**values)


async def set_text(connection: Connection, position: int, text: str) -> None:
    """Replace the text of a kept message."""
    await connection.execute(
        update(room_messages).where(room_messages.c.position == position).values(text=text)
    )


async def remove(connection: Connection, position: int) -> None:
    """Delete one kept message."""
    await connection.execute(delete(room_messages).where(room_messages.c.position == position))


async def delete_thread(connection: Connection, room: str, thread: str) -> None:
    """Delete all that is kept of a thread, and of threads inside of it."""
    await connection.execute(_DELETE_THREAD, {"of": room, **_within(thread)})


def _within(thread: str) -> dict[str, Any]:
    """Return the parameters of a thread and those inside of it, whose ids begin with its own and a slash."""
    return {"in_thread": thread, "prefix": f"{thread}/", "prefix_size": len(thread) + 1}


async def delete_before(connection: Connection, *, before: datetime) -> int:
    """Delete some messages that are older; return how many."""
    return await delete_batch(connection, room_messages, room_messages.c.created_at < before)


async def get_newest(connection: Connection, room: str) -> int | None:
    """Return the position of the newest message of a room that is kept."""
    newest = select(func.max(room_messages.c.position)).where(room_messages.c.room == room)
    position: int | None = (await connection.execute(newest)).scalar_one()
    return position


async def get_seen(connection: Connection, conversation: str) -> int | None:
    """Return the position up to which a conversation has got its room's messages; None before any context."""
    found = await connection.execute(
        select(conversations.c.room_position).where(conversations.c.id == conversation)
    )
    return found.scalar_one_or_none()


async def set_seen(connection: Connection, conversation: str, position: int) -> None:
    """Record that a conversation has got its room's messages up to a position."""
    await connection.execute(
        update(conversations).where(conversations.c.id == conversation).values(room_position=position)
    )


async def count(connection: Connection, room: str) -> int:
    """Return how many messages of a room are kept."""
    counted = await connection.execute(
        select(func.count()).select_from(room_messages).where(room_messages.c.room == room)
    )
    return int(counted.scalar_one())
