"""SQL of lists of conversations: what people and programs see of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select

from delivery.database.engine import Connection
from delivery.database.tables import streams
from gateway.store.conversations.conversations import COLUMNS, Conversation, to_id
from gateway.store.tables import IS_OPEN, IS_PENDING, approvals, conversations, records, turns
from gateway.store.turn_state import TurnState


class ConversationState(StrEnum):
    """What makes a conversation worth a look."""

    WAITING = "waiting"
    RUNNING = "running"
    FAILED = "failed"
    HUMAN = "human"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationView:
    """A conversation with the time of its last activity, and the name and kind of its channel.

    `room_name` is the name of the person whose id the room has, once it was looked up.
    """

    conversation: Conversation
    active_at: datetime
    channel_name: str | None
    channel_kind: str | None = None
    room_name: str | None = None

    @property
    def id(self) -> str:
        """The conversation's id."""
        return self.conversation.id


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationFilter:
    """Which conversations to list; None: any. `text` is part of a title, name, room or person."""

    channel: str | None = None
    room: str | None = None
    kind: str | None = None
    agent: str | None = None
    state: ConversationState | None = None
    text: str | None = None


async def get(connection: Connection, account: str, name_or_id: str) -> ConversationView | None:
    """Return an account's conversation by its id or its own name."""
    name_or_id = to_id(name_or_id)
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


_channel_kind = records.c.config["kind"].as_string()


def _views(account: str) -> Select[Any]:
    return (
        select(
            *COLUMNS,
            streams.c.active_at,
            records.c.name.label("channel_name"),
            _channel_kind.label("channel_kind"),
        )
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
    if wanted.kind is not None:
        query = query.where(_channel_kind == wanted.kind)
    if wanted.agent is not None:
        query = query.where(conversations.c.agent == wanted.agent)
    if wanted.text is not None:
        query = query.where(_mentions(wanted.text))
    return query if wanted.state is None else query.where(STATE_CONDITIONS[wanted.state])


def _mentions(text: str) -> ColumnElement[bool]:
    pattern = f"%{_escaped(text.lower())}%"
    searched = (conversations.c.title, conversations.c.name, conversations.c.address, records.c.name)
    return or_(*(func.lower(column).like(pattern, escape="\\") for column in searched))


def _last_turn_failed() -> ColumnElement[bool]:
    last = (
        select(func.max(turns.c.position))
        .where(turns.c.conversation == conversations.c.id)
        .correlate(conversations)
        .scalar_subquery()
    )
    failed = and_(turns.c.position == last, turns.c.state == TurnState.FAILED)
    return exists(select(turns.c.id).where(turns.c.conversation == conversations.c.id, failed))


STATE_CONDITIONS: Mapping[ConversationState, ColumnElement[bool]] = MappingProxyType(
    {
        ConversationState.WAITING: exists(
            select(approvals.c.id).where(approvals.c.conversation == conversations.c.id, IS_PENDING)
        ),
        ConversationState.RUNNING: exists(
            select(turns.c.id).where(turns.c.conversation == conversations.c.id, IS_OPEN)
        ),
        ConversationState.FAILED: _last_turn_failed(),
        ConversationState.HUMAN: conversations.c.handover_by.is_not(None),
    }
)
"""The condition for each state."""


async def _fetch(connection: Connection, query: Select[Any]) -> list[ConversationView]:
    rows = [dict(row) for row in (await connection.execute(query)).mappings()]
    return [
        ConversationView(
            active_at=row.pop("active_at"),
            channel_name=row.pop("channel_name"),
            channel_kind=row.pop("channel_kind"),
            conversation=Conversation(**row),
        )
        for row in rows
    ]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
