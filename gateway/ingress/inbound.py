"""An inbound message or command of a person, and the work left after its transaction is committed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any

from channels.message import Address, Attachment, Author, Command, Message, RoomKind
from gateway.conversations.message_frame import MessageOrigin
from gateway.conversations.submissions.submission import Submitted
from gateway.ingress.commands.chat_commands import ParsedCommand
from gateway.ingress.confidential_replies import ConfidentialReply


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """A message or command of a person; `update` is the platform's update.

    `existing_conversation_only`: it is ignored unless its chat thread has a conversation.
    """

    update: Message | Command
    text: str
    command: ParsedCommand | None
    attachments: tuple[Attachment, ...] = ()
    existing_conversation_only: bool = False

    @property
    def address(self) -> Address:
        """Return the chat thread of the update."""
        return self.update.address

    @property
    def may_be_for_others(self) -> bool:
        """Return whether other bots of the room may have got this command too; one with a token is ours."""
        is_shared = self.existing_conversation_only or isinstance(self.update, Command)
        has_token = isinstance(self.update, Command) and bool(self.update.token)
        return self.update.room is RoomKind.GROUP and is_shared and not has_token

    def origin(self, platform: str) -> dict[str, Any] | None:
        """Return who wrote the message, when and where; None in a direct chat."""
        update = self.update
        if update.room is RoomKind.DIRECT:
            return None
        time = update.sent_at.astimezone(UTC).isoformat(timespec="seconds")
        return MessageOrigin(
            name=update.author.name,
            id=update.author.id,
            platform=platform,
            room=update.address.room,
            thread=update.address.thread,
            time=time,
            message=update.platform_id or None,
            edited=True if isinstance(update, Message) and update.edited else None,
        ).encode()

    @property
    def author(self) -> Author:
        """Return the sender."""
        return self.update.author


@dataclass(slots=True)
class AfterCommit:
    """The work to do once the transaction of an inbound message is committed."""

    reply: str | None = None
    confidential: ConfidentialReply | None = None
    ended_turns: tuple[str, ...] = ()
    submitted: Submitted | None = None
