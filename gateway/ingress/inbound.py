"""What the reception has heard of one person at a time, and what is left to do about it after the commit."""

from __future__ import annotations

from dataclasses import dataclass

from channels.message import Address, Attachment, Author, Command, Message
from gateway.conversations.submission import Submitted
from gateway.ingress.commands import ParsedCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """What a person said, whether as a message or as a command; `update` is what brought it.

    `only_known`: it is for us only if there is a conversation already.
    """

    update: Message | Command
    text: str
    command: ParsedCommand | None
    attachments: tuple[Attachment, ...] = ()
    existing_conversation_only: bool = False

    @property
    def address(self) -> Address:
        """Where it was said."""
        return self.update.address

    @property
    def author(self) -> Author:
        """Who said it."""
        return self.update.author


@dataclass(slots=True)
class AfterCommit:
    """What is to be done once the transaction that heard something is committed."""

    reply: str | None = None
    ended_turns: tuple[str, ...] = ()
    submitted: Submitted | None = None
