"""Decisions and answers in chats by a button or a reaction to the message."""

from __future__ import annotations

from channels.message import ButtonPress, Reaction
from delivery.database.engine import Connection
from delivery.deliveries import queries
from delivery.deliveries.transactions import Transactions
from gateway.accounts.persons import is_listed
from gateway.conversations.approvals import (
    AlreadyDecided,
    ApprovalNotFound,
    Approvals,
    NotAllowed,
)
from gateway.conversations.approver_rules import approver_rule
from gateway.conversations.message_ids import approval_event_id
from gateway.conversations.questions import InvalidAnswer
from gateway.ingress.access import AdmissionResult, authorize, is_known_person
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.confidential_replies import ReplyPrivately
from gateway.store.turns import approvals as store
from gateway.store.turns import turns

APPROVE_EMOJI = frozenset(
    {"👍", "✅", "✔", "+1", "thumbsup", "thumbs_up", "white_check_mark", "heavy_check_mark"}
)
DENY_EMOJI = frozenset({"👎", "❌", "✖", "-1", "thumbsdown", "thumbs_down", "x", "heavy_multiplication_x"})

_SKIN_TONES = {ord(tone): None for tone in "🏻🏼🏽🏾🏿\ufe0f"}


def parse_decision(emoji: str) -> bool | None:
    """Parse a reaction, an emoji or its Slack name: True approves, False denies, None is no decision."""
    plain = emoji.translate(_SKIN_TONES).strip(":").partition("::")[0]
    if plain in APPROVE_EMOJI:
        return True
    return False if plain in DENY_EMOJI else None


class ApprovalReplies:
    """Turns button presses and reactions into approval decisions."""

    def __init__(
        self, transactions: Transactions, approvals: Approvals, reply_privately: ReplyPrivately
    ) -> None:
        self._transactions = transactions
        self._approvals = approvals
        self._reply_privately = reply_privately

    async def on_button_press(self, context: ChannelContext, press: ButtonPress) -> None:
        """Decide by a button press and reply to it, also if it is late or repeated."""
        async with self._transactions.database.read() as connection:
            admission = await authorize(connection, press, context)
        if admission is not AdmissionResult.ADMITTED:
            await self._reply_privately(press, "You may not decide this.")
            return
        verb, _, approval = press.data.partition(":")
        if verb in {"answer", "answer_with"}:
            await self._reply_privately(press, await self._answer(context, press, approval))
            return
        decision = verb.removesuffix("_with")
        if decision not in {"approve", "deny"}:
            await self._reply_privately(press, "This button is no longer valid.")
            return
        await self._reply_privately(
            press, await self._decide(context, press, approval, decision == "approve")
        )

    async def _answer(self, context: ChannelContext, press: ButtonPress, question: str) -> str:
        """Answer a question by the number of a button or by the comment, and return the reply."""
        approval, _, number = question.partition(":")
        try:
            await self._approvals.answer(
                context.record.account,
                approval,
                number or press.comment,
                by=press.author.id,
                name=press.author.name,
                decision_context=context.decision_context(press.address),
            )
        except AlreadyDecided as error:
            return f"Too late: {error}."
        except (NotAllowed, InvalidAnswer) as error:
            return str(error)
        except ApprovalNotFound:
            return "This is no longer waiting."
        return "Answered."

    async def on_reaction(self, context: ChannelContext, reaction: Reaction) -> bool:
        """Decide by a reaction to an approval message; return whether it was to one.

        Of those who may be bots only persons decide who asked, are paired, or are named in the settings: bots
        also react to messages, for example to have people vote.
        """
        approved = parse_decision(reaction.emoji)
        if approved is None or not reaction.added:
            return False
        async with self._transactions.database.read() as connection:
            if await authorize(connection, reaction, context) is not AdmissionResult.ADMITTED:
                return False
            message = await queries.approval_message_at(
                connection, reaction.address.destination, reaction.platform_id
            )
            if message is None:
                return False
            matching = [
                approval
                for approval in await store.list_for_turn(connection, message.turn or "")
                if approval_event_id(approval.id) == message.event_id
            ]
            is_decision = await self._is_person(connection, context, reaction, message.turn or "")
        if matching and is_decision:
            await self._decide(context, reaction, matching[0].id, approved)
        return True

    async def _is_person(
        self, connection: Connection, context: ChannelContext, reaction: Reaction, turn: str
    ) -> bool:
        """Return whether the author of a reaction is certainly a person."""
        if await is_known_person(connection, context, reaction):
            return True
        author, rule = reaction.author, approver_rule(context.record)
        if isinstance(rule, tuple) and is_listed(rule, author.id, reaction.address):
            return True
        found = await turns.get(connection, context.record.account, turn)
        return found is not None and found.asker == author.id

    async def _decide(
        self,
        context: ChannelContext,
        update: ButtonPress | Reaction,
        approval: str,
        approved: bool,  # noqa: FBT001
    ) -> str:
        """Record the decision and return the reply to the person."""
        try:
            decided = await self._approvals.decide(
                context.record.account,
                approval,
                approved=approved,
                by=update.author.id,
                name=update.author.name,
                comment=update.comment if isinstance(update, ButtonPress) else "",
                decision_context=context.decision_context(update.address),
            )
        except AlreadyDecided as error:
            return f"Too late: {error}."
        except (NotAllowed, InvalidAnswer) as error:
            return str(error)
        except ApprovalNotFound:
            return "This is no longer waiting."
        return f"{decided.state.capitalize()}."
