"""Admission of messages: authorization, pairing codes and rate limits, with the replies they cause."""

from __future__ import annotations

import structlog

from channels.message import Command, Message, Reaction
from delivery.deliveries.transactions import Transaction
from gateway.accounts.persons import SeenPeople, Sighting, platform_name
from gateway.conversations.direct_messages import send_direct
from gateway.conversations.submissions.full_queues import FullQueues
from gateway.ingress.access import AdmissionResult, authorize, is_ignored, may_be_context, pairing_subject
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.commands.chat_commands import ChatCommands
from gateway.ingress.inbound import AfterCommit, InboundMessage
from gateway.ingress.rate_limit import RateDecision, SenderRateLimiter, UnknownSenders, seconds_between
from gateway.store.conversations import pairings

log = structlog.get_logger(__name__)


class Admission:
    """Authorizes senders, offers pairing codes to unknown senders and limits message rates."""

    def __init__(
        self, rate_limiter: SenderRateLimiter, full_queues: FullQueues, unknown_senders: UnknownSenders
    ) -> None:
        self._rate_limiter = rate_limiter
        self._full_queues = full_queues
        self._unknown_senders = unknown_senders
        self._kept_rate = SenderRateLimiter()
        self._seen_people = SeenPeople()

    def should_drop(self, context: ChannelContext, inbound: InboundMessage) -> bool:
        """Return whether to drop a message without a database access.

        Its sender is ignored, was unknown a moment ago, or has been told of the rate limit; or the queue of
        its conversation is full.
        """
        if is_ignored(inbound.author, inbound.address, context):
            return True
        if not isinstance(inbound.update, Message) or inbound.command is not None:
            self._full_queues.recheck(inbound.address.key)
            return False
        who = (context.record.id, inbound.address.room, inbound.author.id)
        if self._unknown_senders.should_drop(who) or self._rate_limiter.will_drop(
            who, context.messages_per_minute
        ):
            return True
        return not inbound.update.edited and self._full_queues.refuse_if_full(
            inbound.address.key, inbound.text
        )

    def should_report_full(self, inbound: InboundMessage, conversation: str) -> bool:
        """Record that a queue is full; returns whether to tell the sender now (commands: always)."""
        due = self._full_queues.record_full(inbound.address.key, conversation, inbound.text)
        return due or isinstance(inbound.update, Command)

    async def admit(
        self, tx: Transaction, context: ChannelContext, inbound: InboundMessage, after_commit: AfterCommit
    ) -> bool:
        """Return whether a message is admitted; if it is not, its sender gets a reply where one is due."""
        admission = await authorize(tx.connection, inbound.update, context)
        if admission is AdmissionResult.UNKNOWN_SENDER:
            self._unknown_senders.record((context.record.id, inbound.address.room, inbound.author.id))
            reply: str | None = (
                "" if inbound.existing_conversation_only else await self._offer_pairing(tx, context, inbound)
            )
        elif admission is AdmissionResult.ADMITTED:
            reply = self.rate_limit_reply(context, inbound)
            if reply is None:
                await self._see(tx, context, inbound)
        else:
            return False
        if reply is None:
            return True
        if reply:
            await self.reply(tx, context, inbound, reply, after_commit)
        return False

    async def _see(self, tx: Transaction, context: ChannelContext, inbound: InboundMessage) -> None:
        platform = platform_name(str(context.record.config["kind"]), inbound.address)
        author = inbound.author
        seen = Sighting(account=context.record.account, platform=platform, author=author.id, name=author.name)
        await self._seen_people.see(tx.connection, seen)

    def rate_limit_reply(self, context: ChannelContext, inbound: InboundMessage) -> str | None:
        """Return the reply to a sender over the rate limit, "" if it was sent before, None if within it."""
        if inbound.command is not None and inbound.command.name in ChatCommands.ALWAYS:
            return None
        who = (context.record.id, inbound.address.room, inbound.author.id)
        decision = self._rate_limiter.acquire(who, context.messages_per_minute)
        if decision is RateDecision.REFUSED:
            rate = context.messages_per_minute
            return (
                f"Rate limit: at most {rate} messages per minute. This message was not processed: "
                f"send it again after {seconds_between(rate)} s."
            )
        return None if decision is RateDecision.ACCEPTED else ""

    async def _offer_pairing(self, tx: Transaction, context: ChannelContext, inbound: InboundMessage) -> str:
        """Return the reply to an unknown sender; "" if a code was sent before and the reply is public."""
        person = pairing_subject(inbound.author, inbound.update.room, inbound.address)
        code, new = await pairings.issue_code(
            tx.connection, inbound.address, person, name=inbound.author.name
        )
        if not new and not (isinstance(inbound.update, Command) and inbound.update.token):
            return ""
        log.info("ingress.pairing_offered", channel=context.record.name)
        return (
            "You are not paired with this bot yet. Ask the operator to run "
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
        """Send a text outside any conversation; a command with a token is answered privately."""
        if isinstance(inbound.update, Command) and inbound.update.token:
            after_commit.reply = text
        else:
            await send_direct(tx, context.record.account, inbound.address, text, key=inbound.update.key)

    def allows_reaction(self, context: ChannelContext, reaction: Reaction) -> bool:
        """Return whether one more reaction of this person is within the rate limit."""
        who = (context.record.id, reaction.address.room, reaction.author.id)
        return self._rate_limiter.acquire(who, context.messages_per_minute) is RateDecision.ACCEPTED

    def may_keep(self, context: ChannelContext, message: Message) -> bool:
        """Return whether to keep a message that is not for the bot, decided without a database access."""
        if (
            not may_be_context(message, context)
            or not context.context_limits_in(message.address.room).messages
        ):
            return False
        who = (context.record.id, message.address.room, message.author.id)
        return self._kept_rate.acquire(who, context.messages_per_minute) is RateDecision.ACCEPTED
