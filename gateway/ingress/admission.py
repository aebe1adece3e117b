"""The doorkeeper: whom the bot listens to now, and what it tells those it does not listen to."""

from __future__ import annotations

import structlog

from channels.message import Command, Message, Reaction
from delivery.deliveries.transactions import Transaction
from gateway.conversations.direct_messages import send_direct
from gateway.ingress.access import AdmissionResult, authorize, is_ignored, pairing_subject
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.commands import ChatCommands
from gateway.ingress.inbound import AfterCommit, InboundMessage
from gateway.ingress.rate_limit import FullQueues, RateDecision, SenderRateLimiter, UnknownSenders
from gateway.store.conversations import pairings

log = structlog.get_logger(__name__)


class Admission:
    """Asks the gate, offers strangers a code, and holds floods back."""

    def __init__(
        self, rate_limiter: SenderRateLimiter, full_queues: FullQueues, unknown_senders: UnknownSenders
    ) -> None:
        self._rate_limiter = rate_limiter
        self._full_queues = full_queues
        self._unknown_senders = unknown_senders

    def should_drop(self, context: ChannelContext, inbound: InboundMessage) -> bool:
        """Say whether a message is turned away without a look.

        Its sender is never listened to, or was unknown a moment ago, or knows of the flood; or its line is
        full.
        """
        if is_ignored(inbound.author, context):
            return True
        if not isinstance(inbound.update, Message) or inbound.command is not None:
            self._full_queues.recheck(inbound.address.key)
            return False
        who = (context.record.id, inbound.address.room, inbound.author.id)
        if self._unknown_senders.should_drop(who) or self._rate_limiter.will_drop(
            who, context.messages_per_minute
        ):
            return True
        return not inbound.update.edited and self._full_queues.is_full(inbound.address.key)

    def should_report_full(self, inbound: InboundMessage) -> bool:
        """Note that a line is full; say whether that is to be said now: always to who asks for an answer."""
        due = self._full_queues.record_full(inbound.address.key)
        return due or isinstance(inbound.update, Command)

    async def admit(
        self, tx: Transaction, context: ChannelContext, inbound: InboundMessage, after_commit: AfterCommit
    ) -> bool:
        """Say whether somebody is listened to now; who is not is told so, where that is due."""
        admission = await authorize(tx.connection, inbound.update, context)
        if admission is AdmissionResult.UNKNOWN_SENDER:
            self._unknown_senders.record((context.record.id, inbound.address.room, inbound.author.id))
            said: str | None = (
                "" if inbound.existing_conversation_only else await self._offer_pairing(tx, context, inbound)
            )
        elif admission is AdmissionResult.ADMITTED:
            said = self.rate_limit_reply(context, inbound)
        else:
            return False
        if said is None:
            return True
        if said:
            await self.reply(tx, context, inbound, said, after_commit)
        return False

    def rate_limit_reply(self, context: ChannelContext, inbound: InboundMessage) -> str | None:
        """Return what somebody is told who says too much ("" once they were told); None: go on."""
        if inbound.command is not None and inbound.command.name in ChatCommands.ALWAYS:
            return None
        who = (context.record.id, inbound.address.room, inbound.author.id)
        flow = self._rate_limiter.acquire(who, context.messages_per_minute)
        if flow is RateDecision.REFUSED:
            return f"Not taken: I take {context.messages_per_minute} messages a minute from you here."
        return None if flow is RateDecision.ACCEPTED else ""

    async def _offer_pairing(self, tx: Transaction, context: ChannelContext, inbound: InboundMessage) -> str:
        """Return what a stranger is told; "" while their code is good, unless only they would read it."""
        room = inbound.update.room
        person = pairing_subject(inbound.author, room, inbound.address.room)
        code, new = await pairings.issue_code(
            tx.connection, inbound.address, person, name=inbound.author.name
        )
        if not new and not (isinstance(inbound.update, Command) and inbound.update.token):
            return ""
        log.info("ingress.pairing_offered", channel=context.record.name)
        return (
            "I do not know you yet. Ask the operator to let you in with "
            f"`dovecote channels pair {context.record.name} {code}` within the hour."
        )

    @staticmethod
    async def reply(
        tx: Transaction,
        context: ChannelContext,
        inbound: InboundMessage,
        text: str,
        after_commit: AfterCommit,
    ) -> None:
        """Say something outside any conversation, to that person alone where a command can be answered."""
        if isinstance(inbound.update, Command) and inbound.update.token:
            after_commit.reply = text
        else:
            await send_direct(tx, context.record.account, inbound.address, text, key=inbound.update.key)

    def allows_reaction(self, context: ChannelContext, reaction: Reaction) -> bool:
        """Say whether one more reaction of this person is looked at."""
        who = (context.record.id, reaction.address.room, reaction.author.id)
        return self._rate_limiter.acquire(who, context.messages_per_minute) is RateDecision.ACCEPTED
