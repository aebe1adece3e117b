"""A desk: a channel as the reception knows it, with what its settings say of people, rooms and rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from channels.message import Address
from channels.settings import ChannelSettings, RoomSettings
from gateway.conversations.approver_rules import ApproverRule, DecisionContext
from gateway.store.accounts.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """A channel's record, its agent, whom it lets in, and what is different in single rooms.

    `own` is the bot's own account on the platform, whose updates are never let in.
    """

    record: Record
    agent: str
    allow: Sequence[str]
    groups: str = "mention"
    rooms: Mapping[str, RoomSettings] = field(default_factory=dict)
    approvers: ApproverRule = "anyone"
    messages_per_minute: int = 0
    bot_user_id: str = ""

    @classmethod
    def from_settings(
        cls, record: Record, *, agent: str, settings: ChannelSettings, bot_user_id: str
    ) -> ChannelContext:
        """Return the desk of a channel with these settings."""
        return cls(
            record=record,
            agent=agent,
            allow=settings.allow,
            groups=settings.groups,
            rooms=settings.rooms,
            approvers=settings.approvers,
            messages_per_minute=settings.messages_per_minute,
            bot_user_id=bot_user_id,
        )

    def groups_in(self, room: str) -> str:
        """Return which messages of a room are for the bot."""
        said = self.rooms.get(room)
        return (said.groups if said else None) or self.groups

    def agent_in(self, room: str) -> str | None:
        """Return the agent that a room names for its new conversations."""
        said = self.rooms.get(room)
        return said.agent if said else None

    def decision_context(self, address: Address) -> DecisionContext:
        """Return where somebody in a chat of this channel decides from."""
        return DecisionContext(address=address, rule=self.approvers)
