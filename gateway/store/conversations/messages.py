"""SQL of the messages of conversations: added, edited, and found by platform id, turn or conversation."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import bindparam, func, insert, select, update

from channels.message import Address
from delivery.database.engine import Connection
from gateway.store.tables import conversations, messages

MessageRole = Literal["user", "assistant", "notice", "operator"]
"""Who a message is from; a notice is from the gateway, an operator's from a person who took over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessageRow:
    """A message from a chat: its author, text and turn."""

    id: str
    conversation: str
    author: str
    text: str
    turn: str | None
    attachments: Sequence[Mapping[str, Any]]
    platform_id: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A stored message: role, text, author, time; `platform_id` is the chat platform's id for it."""

    id: str
    role: MessageRole
    author: str
    text: str
    turn: str | None
    attachments: Sequence[Any]
    platform_id: str | None = None
    created_at: datetime


_COLUMNS = [messages.c[name] for name in ChatMessageRow.__dataclass_fields__]
_ACCOUNT = select(conversations.c.account).where(conversations.c.id == bindparam("of")).scalar_subquery()
# Without a conversation, what is violated is the reference to it, as for every other row of it.
_ADD_MESSAGE = insert(messages).values(account=func.coalesce(_ACCOUNT, ""), conversation=bindparam("of"))


async def add_message(connection: Connection, conversation: str, message: MessageRow) -> None:
    """Insert a message; if the conversation was deleted, a dangling reference (`is_dangling_reference`)."""
    await connection.execute(
        _ADD_MESSAGE,
        {
            "id": message.id,
            "of": conversation,
            "turn": message.turn,
            "role": message.role,
            "author": message.author,
            "text": message.text,
            "attachments": list(message.attachments),
            "platform_id": message.platform_id,
            "created_at": message.created_at,
        },
    )


async def list_messages(connection: Connection, conversation: str, *, limit: int = 500) -> list[MessageRow]:
    """Return the last messages of a conversation, oldest first."""
    rows = (
        await connection.execute(
            select(
                messages.c.id,
                messages.c.role,
                messages.c.author,
                messages.c.text,
                messages.c.turn,
                messages.c.attachments,
                messages.c.created_at,
            )
            .where(messages.c.conversation == conversation)
            .order_by(messages.c.position.desc())
            .limit(limit)
        )
    ).mappings()
    return [MessageRow(**row) for row in reversed(list(rows))]


async def first_texts(connection: Connection, conversation: str) -> list[str]:
    """Return the texts of the first messages that people sent in a conversation."""
    rows = await connection.execute(
        select(messages.c.text)
        .where(messages.c.conversation == conversation, messages.c.role == "user")
        .order_by(messages.c.position)
        .limit(10)
    )
    return [row.text for row in rows]


async def has_author(connection: Connection, conversation: str, author: str) -> bool:
    """Return whether a person sent a message in a conversation that the agent got."""
    of_person = messages.c.role == "user", messages.c.author == author
    found = await connection.execute(
        select(messages.c.id).where(messages.c.conversation == conversation, *of_person).limit(1)
    )
    return found.first() is not None


async def count_replies(connection: Connection, turn: str) -> int:
    """Return how many messages the earlier attempts of a turn produced."""
    counted = await connection.execute(
        select(func.count())
        .select_from(messages)
        .where(messages.c.turn == turn, messages.c.role == "assistant")
    )
    return int(counted.scalar_one())


async def get_by_platform_id(
    connection: Connection, address: Address, platform_id: str
) -> ChatMessageRow | None:
    """Return the newest message that a room's platform calls so, whichever conversation it is in."""
    room = '%"room": ' + _escaped(json.dumps(address.room)) + "%"
    rows = await connection.execute(
        select(*_COLUMNS)
        .join(conversations, conversations.c.id == messages.c.conversation)
        .where(
            messages.c.platform_id == platform_id,
            messages.c.role == "user",
            conversations.c.channel == address.channel,
            conversations.c.address.like(room, escape="\\"),
        )
        .order_by(messages.c.position.desc())
        .limit(1)
    )
    row = rows.mappings().first()
    return ChatMessageRow(**row) if row else None


async def forget_platform_ids(connection: Connection, conversation: str) -> None:
    """Forget the platform's ids of a conversation's messages, which belong to other messages now."""
    await connection.execute(
        update(messages)
        .where(messages.c.conversation == conversation, messages.c.platform_id.is_not(None))
        .values(platform_id=None)
    )


async def get_by_id(connection: Connection, message: str) -> ChatMessageRow | None:
    """Return a message."""
    row = (await connection.execute(select(*_COLUMNS).where(messages.c.id == message))).mappings().first()
    return ChatMessageRow(**row) if row else None


async def list_spoken(
    connection: Connection, account: str, ids: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Return the roles and texts of an account's messages by their ids; unknown ones are left out."""
    query = select(messages.c.id, messages.c.role, messages.c.text).where(
        messages.c.id.in_(ids), messages.c.account == account
    )
    return {row.id: (row.role, row.text) for row in await connection.execute(query)}


_ATTACHMENTS = (
    select(messages.c.attachments)
    .where(messages.c.turn == bindparam("of"), messages.c.role == "user")
    .order_by(messages.c.position)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMessage:
    """A message of an agent; `author` is the agent if it was sent from another conversation."""

    id: str
    conversation: str
    author: str


async def get_own(connection: Connection, message: str, *, last_of: str) -> OwnMessage | None:
    """Return a message that an agent said; "last" is the newest one of the conversation `last_of`."""
    query = select(messages.c.id, messages.c.conversation, messages.c.author).where(
        messages.c.role == "assistant"
    )
    if message == "last":
        query = query.where(messages.c.conversation == last_of).order_by(messages.c.position.desc()).limit(1)
    else:
        query = query.where(messages.c.id == message)
    row = (await connection.execute(query)).mappings().first()
    return OwnMessage(**row) if row else None


async def list_for_turn(connection: Connection, turn: str) -> list[ChatMessageRow]:
    """Return the user messages that a turn answers, in order."""
    rows = await connection.execute(
        select(*_COLUMNS)
        .where(messages.c.turn == turn, messages.c.role == "user")
        .order_by(messages.c.position)
    )
    return [ChatMessageRow(**row) for row in rows.mappings()]


async def list_replies(connection: Connection, turn: str) -> list[ChatMessageRow]:
    """Return a turn's own messages, in order."""
    rows = await connection.execute(
        select(*_COLUMNS)
        .where(messages.c.turn == turn, messages.c.role == "assistant")
        .order_by(messages.c.position)
    )
    return [ChatMessageRow(**row) for row in rows.mappings()]


async def list_attachments(connection: Connection, turn: str) -> Sequence[Mapping[str, Any]]:
    """Return the attachments of the messages that a turn answers: name, type, size, ref and channel."""
    rows = await connection.execute(_ATTACHMENTS, {"of": turn})
    return [one for row in rows for one in row[0]]


async def update_text(connection: Connection, message: str, text: str) -> None:
    """Replace a message's text with its edited text."""
    await connection.execute(update(messages).where(messages.c.id == message).values(text=text))


async def update_content(
    connection: Connection, message: str, text: str, attachments: Sequence[Mapping[str, Any]]
) -> None:
    """Replace a message's text and files with those that an edit has left."""
    changed = {"text": text, "attachments": list(attachments)}
    await connection.execute(update(messages).where(messages.c.id == message).values(changed))


async def reassign(connection: Connection, old: str, new: str) -> None:
    """Move the user messages of one turn to another."""
    await connection.execute(
        update(messages).where(messages.c.turn == old, messages.c.role == "user").values(turn=new)
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def visible_attachment(attachment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an attachment without the fields by which the gateway fetches it."""
    return {name: value for name, value in attachment.items() if name not in {"ref", "channel", "earlier"}}
