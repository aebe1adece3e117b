"""The doorkeeper: whom the bot listens to now, and what it tells those it does not listen to."""

from __future__ import annotations

import structlog

from channels.message import Command, Message, Reaction
from delivery.deliveries.transactions import Entry
from gateway.conversations.direct_messages import say_aside
from gateway.ingress.access import Admission, authorize, is_ignored, person_of
from gateway.ingress.channel_context import Desk
from gateway.ingress.commands import Commands
from gateway.ingress.inbound import Afterwards, Heard
from gateway.ingress.rate_limit import Flood, Flow, FullLines, Strangers
from gateway.store.conversations import pairings

log = structlog.get_logger(__name__)


class Doorkeeper:
    """Asks the gate, offers strangers a code, and holds floods back."""

    def __init__(self, flood: Flood, full: FullLines, strangers: Strangers) -> None:
        self._flood = flood
        self._full = full
        self._strangers = strangers

    def drops(self, desk: Desk, heard: Heard) -> bool:
        """Say whether a message is turned away without a look.

        Its sender is never listened to, or was unknown a moment ago, or knows of the flood; or its line is
        full.
        """
        if is_ignored(heard.author, desk):
            return True
        if not isinstance(heard.update, Message) or heard.order is not None:
            self._full.look_again(heard.address.key)
            return False
        who = (desk.record.id, heard.address.room, heard.author.id)
        if self._strangers.is_one(who) or self._flood.drops(who, desk.messages_per_minute):
            return True
        return not heard.update.edited and self._full.is_full(heard.address.key)

    def tells_full(self, heard: Heard) -> bool:
        """Note that a line is full; say whether that is to be said now: always to who asks for an answer."""
        due = self._full.found(heard.address.key)
        return due or isinstance(heard.update, Command)

    async def lets_in(self, entry: Entry, desk: Desk, heard: Heard, afterwards: Afterwards) -> bool:
        """Say whether somebody is listened to now; who is not is told so, where that is due."""
        admission = await authorize(entry.connection, heard.update, desk)
        if admission is Admission.STRANGER:
            self._strangers.found((desk.record.id, heard.address.room, heard.author.id))
            said: str | None = "" if heard.only_known else await self._pairing_offer(entry, desk, heard)
        elif admission is Admission.ADMITTED:
            said = self.refusal(desk, heard)
        else:
            return False
        if said is None:
            return True
        if said:
            await self.say(entry, desk, heard, said, afterwards)
        return False

    def refusal(self, desk: Desk, heard: Heard) -> str | None:
        """Return what somebody is told who says too much ("" once they were told); None: go on."""
        if heard.order is not None and heard.order.name in Commands.ALWAYS:
            return None
        who = (desk.record.id, heard.address.room, heard.author.id)
        flow = self._flood.judge(who, desk.messages_per_minute)
        if flow is Flow.REFUSED:
            return f"Not taken: I take {desk.messages_per_minute} messages a minute from you here."
        return None if flow is Flow.TAKEN else ""

    async def _pairing_offer(self, entry: Entry, desk: Desk, heard: Heard) -> str:
        """Return what a stranger is told; "" while their code is good, unless only they would read it."""
        room = heard.update.room
        person = person_of(heard.author, room, heard.address.room)
        code, new = await pairings.offer_code(entry.connection, heard.address, person, name=heard.author.name)
        if not new and not (isinstance(heard.update, Command) and heard.update.token):
            return ""
        log.info("reception.stranger", channel=desk.record.name)
        return (
            "I do not know you yet. Ask the operator to let you in with "
            f"`dovecote channels pair {desk.record.name} {code}` within the hour."
        )

    @staticmethod
    async def say(entry: Entry, desk: Desk, heard: Heard, text: str, afterwards: Afterwards) -> None:
        """Say something outside any conversation, to that person alone where a command can be answered."""
        if isinstance(heard.update, Command) and heard.update.token:
            afterwards.answer = text
        else:
            await say_aside(entry, desk.record.account, heard.address, text, key=heard.update.key)

    def bears(self, desk: Desk, reaction: Reaction) -> bool:
        """Say whether one more reaction of this person is looked at."""
        who = (desk.record.id, reaction.address.room, reaction.author.id)
        return self._flood.judge(who, desk.messages_per_minute) is Flow.TAKEN
