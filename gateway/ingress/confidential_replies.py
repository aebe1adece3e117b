"""Replies to commands in rooms that only the person who gave the command may read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from channels.errors import ChannelError
from channels.message import ButtonPress, Command, Message
from delivery.deliveries.transactions import Transactions
from gateway.conversations.notices import post_notice

log = structlog.get_logger(__name__)

ReplyConfidentially = Callable[[Message | Command, str], Awaitable[None]]
"""Answers one person; raises ChannelError if the platform cannot do that here."""

ReplyPrivately = Callable[[ButtonPress | Command, str], Awaitable[None]]
"""Answers a button press or a slash command."""

NOT_POSSIBLE = (
    "I cannot answer here so that only you read it. Open a direct chat with me, and write `/{}` there."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentialReply:
    """The reply to a command that a person gave in a conversation of a room."""

    conversation: str
    command: str
    text: str


class ConfidentialReplies:
    """Sends confidential replies after the command's transaction; nothing of them is stored."""

    def __init__(
        self,
        transactions: Transactions,
        reply: ReplyConfidentially,
        reply_privately: ReplyPrivately,
    ) -> None:
        self._transactions = transactions
        self._reply = reply
        self._reply_privately = reply_privately

    async def send(self, to: Message | Command, reply: ConfidentialReply) -> None:
        """Send a reply; where that is not possible, say in the room what the person can do."""
        try:
            await self._reply(to, reply.text)
        except ChannelError as error:
            log.info("ingress.confidential_reply_failed", channel=to.address.channel, error=str(error))
            await self._explain(to, reply)

    async def _explain(self, to: Message | Command, reply: ConfidentialReply) -> None:
        text = NOT_POSSIBLE.format(reply.command)
        if isinstance(to, Command) and to.token:
            await self._reply_privately(to, text)
            return
        async with self._transactions.begin("reception") as tx:
            await post_notice(tx, reply.conversation, text, urgent=True)
