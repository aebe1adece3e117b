"""Deciding in a chat: a button, or a thumb under the question, counts as a person's decision."""

from __future__ import annotations

from channels.message import Press, Reaction
from delivery.deliveries import queries
from delivery.deliveries.transactions import Ledger
from gateway.conversations.approvals import AlreadyDecided, Approvals, NoSuchApproval, NotAllowed
from gateway.conversations.message_ids import question_of
from gateway.ingress.access import Admission, authorize
from gateway.ingress.channel_context import Desk
from gateway.ingress.commands import Answering
from gateway.store.turns import approvals as store

APPROVING = frozenset(
    {"👍", "✅", "✔", "+1", "thumbsup", "thumbs_up", "white_check_mark", "heavy_check_mark"}
)
DENYING = frozenset({"👎", "❌", "✖", "-1", "thumbsdown", "thumbs_down", "x", "heavy_multiplication_x"})

_TONES = {ord(tone): None for tone in "🏻🏼🏽🏾🏿\ufe0f"}


def verdict_of(emoji: str) -> bool | None:
    """Read a reaction, by its sign or its name at Slack: True approves, False denies, None says nothing."""
    plain = emoji.translate(_TONES).strip(":").partition("::")[0]
    if plain in APPROVING:
        return True
    return False if plain in DENYING else None


class Deciding:
    """Turns presses and reactions into decisions."""

    def __init__(self, ledger: Ledger, approvals: Approvals, answer: Answering) -> None:
        self._ledger = ledger
        self._approvals = approvals
        self._answer = answer

    async def press(self, desk: Desk, press: Press) -> None:
        """A button: decide, then answer the press; a late or repeated one is answered, not ignored."""
        async with self._ledger.database.read() as connection:
            admission = await authorize(connection, press, desk)
        if admission is not Admission.ADMITTED:
            await self._answer(press, "You may not decide this.")
            return
        verb, _, approval = press.data.partition(":")
        decision = verb.removesuffix("_with")
        if decision not in {"approve", "deny"}:
            await self._answer(press, "This button means nothing any more.")
            return
        await self._answer(press, await self._decide(desk, press, approval, decision == "approve"))

    async def reaction(self, desk: Desk, reaction: Reaction) -> None:
        """A thumb under a question decides it; every other reaction is nobody's business."""
        approved = verdict_of(reaction.emoji)
        if approved is None or not reaction.added:
            return
        async with self._ledger.database.read() as connection:
            if await authorize(connection, reaction, desk) is not Admission.ADMITTED:
                return
            asked = await queries.question_at(connection, reaction.address.destination, reaction.platform_id)
            found = (
                [
                    approval
                    for approval in await store.of_turn(connection, asked.turn or "")
                    if question_of(approval.id) == asked.event_id
                ]
                if asked is not None
                else []
            )
        if found:
            await self._decide(desk, reaction, found[0].id, approved)

    async def _decide(
        self,
        desk: Desk,
        given: Press | Reaction,
        approval: str,
        approved: bool,  # noqa: FBT001
    ) -> str:
        """Decide, and return what to tell the person."""
        try:
            decided = await self._approvals.decide(
                desk.record.account,
                approval,
                approved=approved,
                by=given.author.id,
                name=given.author.name,
                comment=given.comment if isinstance(given, Press) else "",
                seat=desk.seat(given.address),
            )
        except AlreadyDecided as error:
            return f"Too late: {error}."
        except NotAllowed as error:
            return str(error)
        except NoSuchApproval:
            return "This is no longer waiting."
        return f"{decided.state.capitalize()}."
