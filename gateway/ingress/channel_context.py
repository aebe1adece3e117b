"""A channel as update handling needs it: its record, agent, and settings for people, rooms and rates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from channels.message import Address
from channels.port import Accept
from channels.settings import ChannelSettings, RoomSettings
from gateway.conversations.approver_rules import ApproverRule, DecisionContext
from gateway.conversations.commands.session_reset import SessionReset
from gateway.conversations.room_context import ContextLimits
from gateway.store.accounts.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """A channel's record, its agent, its allowed senders, and the settings of single rooms.

    `bot_user_id` is the bot's own account on the platform; its updates are ignored. `can_edit`: the platform
    can change messages of the bot.
    """

    record: Record
    agent: str
    allow: Sequence[str]
    groups: str = "mention"
    rooms: Mapping[str, RoomSettings] = field(default_factory=dict)
    approvers: ApproverRule = "anyone"
    messages_per_minute: int = 0
    bot_user_id: str = ""
    context_messages: int = 20
    context_bytes: int = 16_384
    reset_after: int = 0
    reset_daily: int | None = None
    reset_timezone: str | None = None
    can_edit: bool = True

    @classmethod
    def from_settings(
        cls, record: Record, *, agent: str, settings: ChannelSettings, bot_user_id: str, can_edit: bool = True
    ) -> ChannelContext:
        """Return the context of a channel with these settings."""
        return cls(
            record=record,
            agent=agent,
            allow=settings.allow,
            groups=settings.groups,
            rooms=settings.rooms,
            approvers=settings.approvers,
            messages_per_minute=settings.messages_per_minute,
            bot_user_id=bot_user_id,
            context_messages=settings.context_messages,
            context_bytes=settings.context_bytes,
            reset_after=settings.reset_after,
            reset_daily=settings.reset_daily,
            reset_timezone=settings.reset_timezone,
            can_edit=can_edit,
        )

    def groups_in(self, room: str) -> str:
        """Return which messages of a room are for the bot."""
        settings = self.rooms.get(room)
        return (settings.groups if settings else None) or self.groups

    def agent_in(self, room: str) -> str | None:
        """Return the agent configured for new conversations of a room, or None."""
        settings = self.rooms.get(room)
        return settings.agent if settings else None

    def reset_in(self, room: str) -> SessionReset:
        """Return when a conversation of a room ends."""
        settings = self.rooms.get(room)
        after = settings.reset_after if settings else None
        daily = settings.reset_daily if settings else None
        return SessionReset(
            after=self.reset_after if after is None else after,
            daily=self.reset_daily if daily is None else daily,
            timezone=self.reset_timezone,
        )

    def context_limits_in(self, room: str) -> ContextLimits:
        """Return how much of what was said before the model gets with a message of a room."""
        settings = self.rooms.get(room)
        messages = settings.context_messages if settings else None
        size = settings.context_bytes if settings else None
        return ContextLimits(
            messages=self.context_messages if messages is None else messages,
            size=self.context_bytes if size is None else size,
        )

    def decision_context(self, address: Address, *, may_be_for_others: bool = False) -> DecisionContext:
        """Return the decision context of a chat of this channel."""
        return DecisionContext(
            address=address,
            rule=self.approvers,
            posts_decisions=not self.can_edit,
            may_be_for_others=may_be_for_others,
        )


class UpdateAcceptor(Protocol):
    """Accepts the updates of a channel."""

    @abstractmethod
    def accept(self, context: ChannelContext) -> Accept:
        """Return the function that a channel's receiver calls with each update."""


def channel_identity(record: Record) -> Mapping[str, str]:
    """Return the fields that identify a channel in log lines: its name is unique in its account alone."""
    return {"account": record.account, "channel": record.name, "id": record.id}
