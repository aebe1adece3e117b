"""Reception: what platforms bring becomes ours in one transaction, or is turned away politely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from channels.message import Address, Command, Message, Moved, Press, Update
from channels.port import Accept
from delivery import destinations, obligations
from delivery import store as delivery_store
from delivery.ledger import Entry, Ledger
from delivery.route import Route, RouteKind
from gateway.approvals import AlreadyDecided, Approvals, NoSuchApproval
from gateway.aside import say_aside
from gateway.commands import Commands, parse
from gateway.gate import Admission, authorize, is_meant, person_of
from gateway.intake import Intake, QueueFull, Submission
from gateway.notice import give_notice
from gateway.store import conversations, pairings
from gateway.store.conversations import Conversation
from gateway.store.records import Record

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A channel as the reception knows it: its record, its agent, and whom it lets in."""

    record: Record
    agent: str
    allow: Sequence[str]
    groups: str = "mention"


class Reception:
    """Accepts updates of every channel."""

    def __init__(self, ledger: Ledger, intake: Intake, approvals: Approvals, commands: Commands) -> None:
        self._ledger = ledger
        self._intake = intake
        self._approvals = approvals
        self._commands = commands

    def accept(self, desk: Desk) -> Accept:
        """Return what a channel's inbox calls with each update."""

        async def take(update: Update) -> None:
            if isinstance(update, Press):
                await self._press(desk, update)
            elif isinstance(update, Moved):
                await self._move(desk, update)
            elif isinstance(update, Message):
                await self._message(desk, update)
            elif isinstance(update, Command):
                await self._message(desk, _said(update))

        return take

    async def _message(self, desk: Desk, message: Message) -> None:
        if message.edited or not is_meant(message, desk.groups):
            return
        async with self._ledger.entry("reception") as entry:
            if not await self._is_new(entry, desk, message.key):
                return
            admission = await authorize(entry.connection, message, channel=desk.record.id, allow=desk.allow)
            if admission is Admission.STRANGER:
                await self._offer_pairing(entry, desk, message)
            if admission is Admission.ADMITTED:
                await destinations.revive(entry.connection, message.address.destination)
                await self._hear(entry, desk, message)

    async def _hear(self, entry: Entry, desk: Desk, message: Message) -> None:
        conversation = await self.conversation(entry, desk, message.address)
        command = parse(message.text)
        if command is not None:
            await self._commands.obey(entry, conversation, command, by=message.author)
            return
        submission = Submission(
            account=desk.record.account,
            text=message.text or "(no text)",
            asker=message.author.id,
            attachments=[
                {"name": one.name, "type": one.media_type, "size": one.size} for one in message.attachments
            ],
        )
        try:
            await self._intake.queue(entry, conversation, submission)
        except QueueFull as error:
            await give_notice(entry, conversation.id, f"Not taken: {error}.")

    async def conversation(self, entry: Entry, desk: Desk, address: Address) -> Conversation:
        """Return the open conversation of a chat thread, opened when there is none."""
        account = desk.record.account
        found = await conversations.at_address(entry.connection, account, address.key)
        if found is not None:
            return found
        opened = await self._intake.open(
            entry,
            account=account,
            agent=desk.agent,
            channel=desk.record.id,
            address=address.dump(),
            address_key=address.key,
        )
        await delivery_store.add_route(
            entry.connection, Route.to_chat(account=account, conversation=opened.id, address=address)
        )
        return opened

    @staticmethod
    async def _is_new(entry: Entry, desk: Desk, key: str) -> bool:
        return await conversations.remember(
            entry.connection,
            account=desk.record.account,
            source=desk.record.id,
            event_key=key,
            message=key[:40],
            turn=None,
        )

    async def _offer_pairing(self, entry: Entry, desk: Desk, message: Message) -> None:
        code, new = await pairings.offer_code(
            entry.connection,
            message.address,
            person_of(message.author, message.room, message.address.room),
            name=message.author.name,
        )
        if not new:
            return
        log.info("reception.stranger", channel=desk.record.name)
        text = (
            "I do not know you yet. Ask the operator to let you in with "
            f"`dovecote channels pair {desk.record.name} {code}` within the hour."
        )
        await say_aside(entry, desk.record.account, message.address, text, key=message.key)

    async def _press(self, desk: Desk, press: Press) -> None:
        """A button: decide, then answer the press; a late or repeated one is answered, not ignored."""
        async with self._ledger.database.read() as connection:
            admission = await authorize(connection, press, channel=desk.record.id, allow=desk.allow)
        if admission is not Admission.ADMITTED:
            await self._commands.answer(press, "You may not decide this.")
            return
        decision, _, approval = press.data.partition(":")
        try:
            decided = await self._approvals.decide(
                desk.record.account,
                approval,
                approved=decision == "approve",
                by=press.author.id,
                name=press.author.name,
            )
            said = f"{decided.state.capitalize()}."
        except AlreadyDecided as error:
            said = f"Too late: {error}."
        except NoSuchApproval:
            said = "This is no longer waiting."
        await self._commands.answer(press, said)

    async def _move(self, desk: Desk, moved: Moved) -> None:
        """A room has a new id: its conversation and everything still due follow it."""
        async with self._ledger.entry("reception") as entry:
            if not await self._is_new(entry, desk, moved.key):
                return
            connection, account = entry.connection, desk.record.account
            found = await conversations.at_address(connection, account, moved.old.key)
            if found is None:
                return
            await conversations.move_address(
                connection, found.id, address=moved.new.dump(), address_key=moved.new.key
            )
            await delivery_store.readdress(
                connection, kind=RouteKind.CHAT, old=moved.old.dump(), new=moved.new.dump()
            )
            await obligations.readdress(connection, old=moved.old, new=moved.new)
        log.info("reception.room_moved", channel=desk.record.name, at=datetime.now(UTC).isoformat())


def _said(command: Command) -> Message:
    """Return a command as the words it is made of, meant for the bot."""
    return Message(
        key=command.key,
        address=command.address,
        author=command.author,
        text=f"/{command.name} {command.rest}".rstrip(),
        sent_at=command.sent_at,
        room=command.room,
        mentions_bot=True,
        platform_id=command.platform_id,
    )
