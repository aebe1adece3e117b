"""SQL of conversations and of the inbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Executable, bindparam, delete, exists, func, or_, select, update

from channels.message import Address
from delivery.database.batched_deletes import delete_batch
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, RowDeleted, insert_on_conflict
from delivery.database.tables import destinations
from delivery.deliveries.destinations import soon, waits_for_long
from delivery.events.event import ID_LETTERS
from gateway.store.conversations.files import WAITS_FOR_ANSWER
from gateway.store.room_tables import room_messages
from gateway.store.tables import IS_OPEN, conversations, files, inbox, messages, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One ordered thread of talk."""

    id: str
    account: str
    agent: str
    name: str | None = None
    title: str | None = None
    channel: str | None = None
    address: str | None = None
    queue_mode: str | None = None
    queue_limit: int | None = None
    model: str | None = None
    handover_by: str | None = None
    handover_at: datetime | None = None
    carried_context: Mapping[str, Any] | None = None
    direct: bool | None = None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatThread:
    """A chat thread with its open conversation, as a new message finds it.

    `is_idle`: no turn is open; `is_silent`: the chat is marked as dead, or something waits for long to be
    sent there; `has_unseen`: its room has messages that the conversation has not got.
    """

    conversation: Conversation
    is_idle: bool
    is_silent: bool
    has_unseen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedConversation:
    """A conversation's fence, None if it was deleted; `has_files`: files may wait for its next answer."""

    fence: int | None = None
    has_files: bool = False


COLUMNS = (
    conversations.c.id,
    conversations.c.account,
    conversations.c.agent,
    conversations.c.name,
    conversations.c.title,
    conversations.c.channel,
    conversations.c.address,
    conversations.c.queue_mode,
    conversations.c.queue_limit,
    conversations.c.model,
    conversations.c.handover_by,
    conversations.c.handover_at,
    conversations.c.carried_context,
    conversations.c.direct,
    conversations.c.created_at,
)


# Statements of the hot path are built once: building one takes longer than executing it.
_BY_ADDRESS = select(*COLUMNS).where(
    conversations.c.account == bindparam("whose"), conversations.c.address_key == bindparam("at")
)
_THREAD = _BY_ADDRESS.add_columns(
    exists().where(turns.c.conversation == conversations.c.id, IS_OPEN).label("has_turns"),
    or_(
        exists().where(
            destinations.c.destination == bindparam("in_room"), destinations.c.dead_at.is_not(None)
        ),
        waits_for_long("in_room"),
    ).label("is_silent"),
    exists()
    .where(
        room_messages.c.room == bindparam("in_room"),
        room_messages.c.position > func.coalesce(conversations.c.room_position, 0),
    )
    .label("has_unseen"),
)
_BY_ID = select(*COLUMNS).where(conversations.c.id == bindparam("of"))
_BY_ID_OF_ACCOUNT = _BY_ID.where(conversations.c.account == bindparam("whose"))
_BY_NAME = select(*COLUMNS).where(
    conversations.c.account == bindparam("whose"), conversations.c.name == bindparam("of")
)
_RECORDED_EVENT = select(inbox.c.message, inbox.c.turn).where(
    inbox.c.account == bindparam("whose"),
    inbox.c.source == bindparam("from"),
    inbox.c.event_key == bindparam("key"),
)
_RAISE_FENCE = (
    update(conversations)
    .where(conversations.c.id == bindparam("of"))
    .values(fence=conversations.c.fence + 1)
    .returning(conversations.c.fence)
)
_HAS_FILES = exists().where(files.c.conversation == conversations.c.id, WAITS_FOR_ANSWER)
_CURRENT_FENCE = (
    select(conversations.c.fence, _HAS_FILES)
    .where(conversations.c.id == bindparam("of"))
    .with_for_update(read=True)
)


class ConversationExists(Exception):
    """The account has a conversation of this name, or an open one of this chat thread."""


async def insert_conversation(
    connection: Connection, conversation: Conversation, *, address_key: str | None = None
) -> None:
    """Insert a conversation; with `address_key` it is the open one of that chat thread.

    Raises ConversationExists, also if another transaction has inserted it at the same moment.
    """
    inserted = await connection.execute(
        insert_on_conflict(conversations, connection.dialect.name)
        .values(
            id=conversation.id,
            account=conversation.account,
            agent=conversation.agent,
            name=conversation.name,
            channel=conversation.channel,
            address_key=address_key,
            address=conversation.address,
            direct=conversation.direct,
            fence=0,
            created_at=conversation.created_at,
        )
        .on_conflict_do_nothing()
        .returning(conversations.c.id)
    )
    if inserted.first() is None:
        raise ConversationExists(f"there is a conversation {conversation.name or address_key!r} already")


def to_id(name_or_id: str) -> str:
    """Return an id in OpenAI's spelling (`conv_…`) as ours, and every other id or name as it is."""
    rest = name_or_id.removeprefix("conv_")
    is_id = rest != name_or_id and rest.isalnum() and len(rest) == ID_LETTERS
    return f"cnv_{rest}" if is_id else name_or_id


async def get(
    connection: Connection, account: str, name_or_id: str, *, locked: bool = False
) -> Conversation | None:
    """Return an account's conversation by its id or its own name, `locked` to change it."""
    name_or_id = to_id(name_or_id)
    query = _BY_ID_OF_ACCOUNT if name_or_id.startswith("cnv_") else _BY_NAME
    given = {"whose": account, "of": name_or_id}
    rows = await connection.execute(query.with_for_update() if locked else query, given)
    row = rows.mappings().first()
    return Conversation(**row) if row else None


async def get_by_address(connection: Connection, account: str, address_key: str) -> Conversation | None:
    """Return the open conversation of a chat thread."""
    row = (await connection.execute(_BY_ADDRESS, {"whose": account, "at": address_key})).mappings().first()
    return Conversation(**row) if row else None


async def get_thread(
    connection: Connection, account: str, address_key: str, *, destination: str
) -> ChatThread | None:
    """Return a chat thread with its open conversation; `destination` is its chat."""
    given = {"whose": account, "at": address_key, "in_room": destination, "soon": soon()}
    row = (await connection.execute(_THREAD, given)).mappings().first()
    if row is None:
        return None
    found = dict(row)
    facts = {"is_idle": not found.pop("has_turns")}
    facts |= {name: bool(found.pop(name)) for name in ("is_silent", "has_unseen")}
    return ChatThread(conversation=Conversation(**found), **facts)


async def get_by_id(connection: Connection, conversation: str) -> Conversation | None:
    """Return a conversation whosever it is; for the gateway's own workers."""
    row = (await connection.execute(_BY_ID, {"of": conversation})).mappings().first()
    return Conversation(**row) if row else None


async def change_agent(connection: Connection, conversation: str, agent: str) -> bool:
    """Change a conversation's agent unless the conversation has messages already."""
    said = select(messages.c.id).where(messages.c.conversation == conversation).exists()
    changed = await connection.execute(
        update(conversations)
        .where(conversations.c.id == conversation, ~said)
        .values(agent=agent)
        .returning(conversations.c.id)
    )
    return changed.first() is not None


async def set_direct(connection: Connection, conversation: str, *, direct: bool) -> None:
    """Record whether a chat has one person beside the bot."""
    await connection.execute(
        update(conversations).where(conversations.c.id == conversation).values(direct=direct)
    )


async def set_queue(
    connection: Connection, conversation: str, *, mode: str | None, limit: int | None
) -> None:
    """Set the queue mode of a conversation; None: use the agent's."""
    await connection.execute(
        update(conversations)
        .where(conversations.c.id == conversation)
        .values(queue_mode=mode, queue_limit=limit)
    )


async def set_model(connection: Connection, conversation: str, model: str | None) -> None:
    """Set the model of a conversation's later turns; None: use the agent's."""
    await connection.execute(
        update(conversations).where(conversations.c.id == conversation).values(model=model)
    )


async def set_title(connection: Connection, conversation: str, title: str | None) -> None:
    """Set what people see as the name of a conversation."""
    await connection.execute(
        update(conversations).where(conversations.c.id == conversation).values(title=title)
    )


async def detach_address(connection: Connection, conversation: str) -> None:
    """Free the chat thread for the next conversation (`/new`)."""
    await connection.execute(
        update(conversations).where(conversations.c.id == conversation).values(address_key=None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAddress:
    """The address of a conversation's chat thread; without `address_key` it is not the open one there."""

    id: str
    address: str
    address_key: str | None


async def list_in_room(connection: Connection, account: str, *, channel: str, room: str) -> list[ChatAddress]:
    """Return the addresses of a room's conversations, in all of its threads; ended ones too."""
    columns = (conversations.c.id, conversations.c.address, conversations.c.address_key)
    within = (conversations.c.account == account, conversations.c.channel == channel)
    names_it = conversations.c.address.contains(json.dumps(room), autoescape=True)
    rows = await connection.execute(select(*columns).where(*within, names_it))
    found = [ChatAddress(**row) for row in rows.mappings()]
    return [one for one in found if Address.decode(one.address).room == room]


async def list_rooms(connection: Connection, account: str, *, channel: str, prefix: str) -> set[str]:
    """Return the rooms whose ids begin with a prefix and that have conversations; ended ones too."""
    within = (conversations.c.account == account, conversations.c.channel == channel)
    names_it = conversations.c.address.contains(json.dumps(prefix)[:-1], autoescape=True)
    found = await connection.execute(select(conversations.c.address).where(*within, names_it).distinct())
    return {room for room in (Address.decode(one).room for one in found.scalars()) if room.startswith(prefix)}


async def change_address(
    connection: Connection, conversation: str, *, address: str, address_key: str | None
) -> None:
    """Give a conversation the new address of its chat thread."""
    await connection.execute(
        update(conversations)
        .where(conversations.c.id == conversation)
        .values(address=address, address_key=address_key)
    )


async def raise_fence(connection: Connection, conversation: str) -> int:
    """Raise the fence, so that writes of earlier lease holders fail; returns the new fence.

    Raises RowDeleted.
    """
    row = (await connection.execute(_RAISE_FENCE, {"of": conversation})).one_or_none()
    if row is None:
        raise RowDeleted(conversation)
    return int(row[0])


@cache
def _insert_event(dialect: str) -> Executable:
    return insert_on_conflict(inbox, dialect).on_conflict_do_nothing().returning(inbox.c.event_key)


async def record_event(
    connection: Connection, *, account: str, source: str, event_key: str, message: str, turn: str | None
) -> bool:
    """Remember a platform's event; False when it was remembered before (then nothing is changed)."""
    inserted = await connection.execute(
        _insert_event(connection.dialect.name),
        {
            "account": account,
            "source": source,
            "event_key": event_key[:300],
            "message": message,
            "turn": turn,
            "created_at": utc_now(),
        },
    )
    # PostgreSQL reports rowcount -1 for an INSERT, so the returned row decides and not the rowcount.
    return inserted.first() is not None


@cache
def _insert_events(dialect: str) -> Executable:
    return insert_on_conflict(inbox, dialect).on_conflict_do_nothing()


async def record_events(connection: Connection, keys: Sequence[tuple[str, str, str]]) -> None:
    """Remember events (account, source, key) that led to nothing."""
    now = utc_now()
    await connection.execute(
        _insert_events(connection.dialect.name),
        [
            {
                "account": account,
                "source": source,
                "event_key": key[:300],
                "message": key[:40],
                "turn": None,
                "created_at": now,
            }
            for account, source, key in sorted(keys)
        ],
    )


async def get_recorded_event(
    connection: Connection, *, account: str, source: str, event_key: str
) -> tuple[str | None, str | None] | None:
    """Return (message, turn) that an event led to, or None when it is new."""
    given = {"whose": account, "from": source, "key": event_key[:300]}
    row = (await connection.execute(_RECORDED_EVENT, given)).first()
    return (row[0], row[1]) if row else None


async def delete_event_key(
    connection: Connection,
    account: str,
    source: str,
    event_key: str,
    *,
    turn: str | None = None,
    before: datetime | None = None,
) -> None:
    """Forget an event; with `turn` only if it led to this turn, with `before` only if it is older."""
    forgotten = delete(inbox).where(
        inbox.c.account == account, inbox.c.source == source, inbox.c.event_key == event_key
    )
    if turn is not None:
        forgotten = forgotten.where(inbox.c.turn == turn)
    if before is not None:
        forgotten = forgotten.where(inbox.c.created_at < before)
    await connection.execute(forgotten)


async def delete_inbox_before(connection: Connection, *, before: datetime) -> int:
    """Drop some keys that are older than the window of platform retries; return their number."""
    return await delete_batch(connection, inbox, inbox.c.created_at < before)


async def lock_fence(connection: Connection, conversation: str) -> FencedConversation:
    """Return the current fence of a conversation, which stays so until this transaction ends."""
    row = (await connection.execute(_CURRENT_FENCE, {"of": conversation})).first()
    return FencedConversation(fence=row[0], has_files=bool(row[1])) if row else FencedConversation()
