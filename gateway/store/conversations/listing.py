"""SQL of lists of conversations: what people and programs see of each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, and_, or_, select

from delivery.database.engine import Connection
from delivery.database.tables import streams
from gateway.store.conversations.conversations import COLUMNS, Conversation
from gateway.store.tables import conversations, records


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationView:
    """A conversation with the time of its last activity and the name of its channel."""

    conversation: Conversation
    active_at: datetime
    channel_name: str | None

    @property
    def id(self) -> str:
        """The conversation's id."""
        return self.conversation.id


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFilter:
    """Which conversations to list; None: any channel, any room."""

    channel: str | None = None
    room: str | None = None


async def get(connection: Connection, account: str, name_or_id: str) -> ConversationView | None:
    """Return an account's conversation by its id or its own name."""
    column = conversations.c.id if name_or_id.startswith("cnv_") else conversations.c.name
    found = await _fetch(connection, _views(account).where(column == name_or_id))
    return found[0] if found else None


async def list_by_creation(
    connection: Connection, account: str, wanted: ConversationFilter, *, after: str | None, limit: int
) -> list[ConversationView]:
    """Return conversations, newest first, older than the id `after`."""
    query = _filtered(account, wanted)
    if after is not None:
        query = query.where(conversations.c.id < after)
    return await _fetch(connection, query.order_by(conversations.c.id.desc()).limit(limit))


async def list_by_activity(
    connection: Connection,
    account: str,
    wanted: ConversationFilter,
    *,
    after: tuple[datetime, str] | None,
    limit: int,
) -> list[ConversationView]:
    """Return conversations, last active first, after the time and id of the previous page's last one."""
    query = _filtered(account, wanted)
    if after is not None:
        moment, last = after
        query = query.where(
            or_(
                streams.c.active_at < moment,
                and_(streams.c.active_at == moment, streams.c.conversation < last),
            )
        )
    ordered = query.order_by(streams.c.active_at.desc(), streams.c.conversation.desc())
    return await _fetch(connection, ordered.limit(limit))


def _views(account: str) -> Select[Any]:
    return (
        select(*COLUMNS, streams.c.active_at, records.c.name.label("channel_name"))
        .select_from(
            streams.join(conversations, conversations.c.id == streams.c.conversation).outerjoin(
                records, records.c.id == conversations.c.channel
            )
        )
        .where(streams.c.account == account)
    )


def _filtered(account: str, wanted: ConversationFilter) -> Select[Any]:
    query = _views(account)
    if wanted.channel is not None:
        query = query.where(conversations.c.channel == wanted.channel)
    if wanted.room is not None:
        room = conversations.c.address.like(f'%"room": "{_escaped(wanted.room)}"%', escape="\\")
        query = query.where(room)
    return query


async def _fetch(connection: Connection, query: Select[Any]) -> list[ConversationView]:
    rows = [dict(row) for row in (await connection.execute(query)).mappings()]
    return [
        ConversationView(
            active_at=row.pop("active_at"),
            channel_name=row.pop("channel_name"),
            conversation=Conversation(**row),
        )
        for row in rows
    ]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
