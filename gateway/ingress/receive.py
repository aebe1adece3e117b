"""Reception: what platforms bring becomes ours in one transaction, or is turned away politely."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

import structlog

from channels.message import (
    Address,
    Command,
    Message,
    Moved,
    Press,
    Reaction,
    Update,
)
from channels.port import Accept
from delivery.database.clock import utc_now
from delivery.deliveries import destinations, store
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.route import Route, RouteKind
from delivery.deliveries.transactions import Entry, Ledger
from delivery.events.event import Event, Kind
from gateway.conversations import queue_policy
from gateway.conversations.approvals import Approvals
from gateway.conversations.notices import give_notice
from gateway.conversations.submission import Intake, QueueFull, Submission, shown
from gateway.ingress.access import Admission, authorize, is_meant
from gateway.ingress.admission import Doorkeeper
from gateway.ingress.approval_replies import Deciding
from gateway.ingress.channel_context import Desk
from gateway.ingress.commands import Commands, order_of, parse
from gateway.ingress.inbound import Afterwards, Heard
from gateway.ingress.rate_limit import Dropped, Flood, FullLines, Strangers
from gateway.ingress.status_reactions import Signs
from gateway.store.accounts import records
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import turns

__all__ = ["Desk", "Reception"]

log = structlog.get_logger(__name__)


class Reception:
    """Accepts updates of every channel. `cancel` ends a turn that is performed in this process."""

    def __init__(
        self,
        ledger: Ledger,
        intake: Intake,
        approvals: Approvals,
        commands: Commands,
        *,
        signs: Signs | None = None,
        flood: Flood | None = None,
        full: FullLines | None = None,
        strangers: Strangers | None = None,
        cancel: Callable[[str], None] = lambda _turn: None,
    ) -> None:
        self._ledger = ledger
        self._intake = intake
        self._commands = commands
        self._deciding = Deciding(ledger, approvals, commands.answer)
        self._signs = signs
        self._door = Doorkeeper(flood or Flood(), full or FullLines(), strangers or Strangers())
        self._dropped = Dropped()
        self._cancel = cancel

    def accept(self, desk: Desk) -> Accept:
        """Return what a channel's inbox calls with each update."""

        async def take(update: Update) -> None:
            match update:
                case Message(edited=True):
                    await self._edited(desk, update)
                case Message():
                    await self._message(desk, update)
                case Command():
                    await self._command(desk, update)
                case Press():
                    await self._deciding.press(desk, update)
                case Reaction():
                    await self._reaction(desk, update)
                case Moved():
                    await self._move(desk, update)

        return take

    async def _message(self, desk: Desk, message: Message) -> None:
        order = parse(message.text)
        meant = is_meant(message, desk.groups_in(message.address.room))
        if not meant and (order is None or order.name not in Commands.ALWAYS):
            return
        await self._hear(
            desk,
            Heard(
                update=message,
                text=message.text or "(no text)",
                order=order,
                attachments=message.attachments,
                only_known=not meant,
            ),
        )

    async def _command(self, desk: Desk, command: Command) -> None:
        order = order_of(command.name, command.rest.split())
        await self._hear(
            desk, Heard(update=command, text=f"/{command.name} {command.rest}".rstrip(), order=order)
        )

    async def _hear(self, desk: Desk, heard: Heard) -> None:
        if self._door.drops(desk, heard):
            await self._drop(desk, heard)
            return
        afterwards = Afterwards()
        async with self._ledger.entry("reception") as entry:
            dropped = await self._dropped.write(entry.connection)
            if await self._is_new(entry, desk, heard.update.key) and await self._door.lets_in(
                entry, desk, heard, afterwards
            ):
                await destinations.revive(entry.connection, heard.address.destination)
                await self._take_in(entry, desk, heard, afterwards)
        self._dropped.forget(dropped)
        await self._finish(heard, afterwards)

    async def _drop(self, desk: Desk, heard: Heard) -> None:
        """Turn a message away; that it was heard is written down with many others."""
        if self._dropped.add(desk.record.account, desk.record.id, heard.update.key):
            async with self._ledger.entry("reception") as entry:
                dropped = await self._dropped.write(entry.connection)
            self._dropped.forget(dropped)

    async def _take_in(self, entry: Entry, desk: Desk, heard: Heard, afterwards: Afterwards) -> None:
        conversation = await self._conversation_of(entry, desk, heard)
        if conversation is None:
            return
        if heard.order is None:
            await self._queue(entry, desk, conversation, heard, afterwards)
            return
        obeyed = await self._commands.obey(
            entry, conversation, heard.order, by=heard.author, seat=desk.seat(heard.address)
        )
        afterwards.ended = obeyed.ended
        await self._reply(entry, conversation, heard, obeyed.said, afterwards)

    async def _conversation_of(self, entry: Entry, desk: Desk, heard: Heard) -> Conversation | None:
        if heard.only_known:
            return await conversations.at_address(entry.connection, desk.record.account, heard.address.key)
        return await self.conversation(entry, desk, heard.address)

    @staticmethod
    async def _reply(
        entry: Entry, conversation: Conversation, heard: Heard, text: str | None, afterwards: Afterwards
    ) -> None:
        """Answer a command itself where the platform wants that, else say it in the conversation."""
        if isinstance(heard.update, Command) and heard.update.token:
            afterwards.answer = text or "It comes in a moment."
        elif text is not None:
            await give_notice(entry, conversation.id, text)

    async def _queue(
        self, entry: Entry, desk: Desk, conversation: Conversation, heard: Heard, afterwards: Afterwards
    ) -> None:
        submission = Submission(
            account=desk.record.account,
            text=heard.text,
            asker=heard.author.id,
            attachments=[
                {
                    "name": one.name,
                    "type": one.media_type,
                    "size": one.size,
                    "ref": one.ref,
                    "channel": desk.record.id,
                }
                for one in heard.attachments
            ],
            platform_id=heard.update.platform_id,
        )
        try:
            afterwards.submitted = await self._intake.queue(entry, conversation, submission)
        except QueueFull as error:
            if self._door.tells_full(heard):
                await self._reply(entry, conversation, heard, f"Not taken: {error}.", afterwards)

    async def _finish(self, heard: Heard, afterwards: Afterwards) -> None:
        """Do what a committed change calls for in this process; what is lost with it harms nobody."""
        for turn in afterwards.ended:
            self._cancel(turn)
        if afterwards.submitted is not None:
            self._intake.end_superseded(afterwards.submitted)
            if self._signs is not None:
                self._signs.seen(heard.address, heard.update.platform_id)
        if afterwards.answer is not None and isinstance(heard.update, Command):
            await self._commands.answer(heard.update, afterwards.answer)

    async def conversation(self, entry: Entry, desk: Desk, address: Address) -> Conversation:
        """Return the open conversation of a chat thread, opened when there is none."""
        account = desk.record.account
        found = await conversations.at_address(entry.connection, account, address.key)
        if found is not None:
            return found
        opened = await self._intake.open(
            entry,
            account=account,
            agent=await self._agent(entry, desk, address.room),
            channel=desk.record.id,
            address=address.dump(),
            address_key=address.key,
        )
        await delivery_store.add_route(
            entry.connection, Route.to_chat(account=account, conversation=opened.id, address=address)
        )
        return opened

    @staticmethod
    async def _agent(entry: Entry, desk: Desk, room: str) -> str:
        """Return who answers in a room: the agent it names, as long as there is one."""
        wanted = desk.agent_in(room)
        if wanted is None:
            return desk.agent
        found = await records.find(entry.connection, desk.record.account, "agent", wanted)
        if found is None:
            log.warning("reception.no_such_agent", channel=desk.record.name, room=room, agent=wanted)
            return desk.agent
        return found.id

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

    async def _edited(self, desk: Desk, message: Message) -> None:
        """A message says something else now: what waits is changed, what was answered is asked again."""
        heard = Heard(
            update=message, text=message.text or "(no text)", order=None, attachments=message.attachments
        )
        if self._door.drops(desk, heard):
            await self._drop(desk, heard)
            return
        afterwards = Afterwards()
        async with self._ledger.entry("reception") as entry:
            await self._dropped.write(entry.connection)
            if not await self._is_new(entry, desk, message.key):
                return
            if await authorize(entry.connection, message, desk) is not Admission.ADMITTED:
                return
            refused = self._door.refusal(desk, heard)
            if refused:
                await self._door.say(entry, desk, heard, refused, afterwards)
            elif refused is None and not await self._is_settled(entry, desk, heard):
                await self._take_in(entry, desk, heard, afterwards)
        await self._finish(heard, afterwards)

    @staticmethod
    async def _is_settled(entry: Entry, desk: Desk, heard: Heard) -> bool:
        """Change what still waits; say whether nothing is left to do about an edit."""
        message = heard.update
        kept = await messages.at_platform(entry.connection, message.address, message.platform_id)
        if kept is None:
            meant = isinstance(message, Message) and is_meant(message, desk.groups_in(message.address.room))
            return not meant or parse(heard.text) is not None
        if kept.author != heard.author.id or kept.text == heard.text:
            return True
        turn = await turns.find(entry.connection, desk.record.account, kept.turn or "")
        if turn is None or not await queue_policy.reword(entry.connection, turn, kept.id, heard.text):
            return False
        told = {
            "message": kept.id,
            "role": "user",
            "text": heard.text,
            "author": kept.author,
            "files": [shown(one) for one in kept.attachments],
            "edited": True,
        }
        entry.tell(Event.now(Kind.MESSAGE_RECEIVED, kept.conversation, told, turn=turn.id))
        return True

    async def _reaction(self, desk: Desk, reaction: Reaction) -> None:
        if self._door.bears(desk, reaction):
            await self._deciding.reaction(desk, reaction)

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
            await store.readdress(connection, old=moved.old, new=moved.new)
        log.info("reception.room_moved", channel=desk.record.name, at=utc_now().isoformat())


class Accepting(Protocol):
    """Whoever takes in what a channel brings."""

    @abstractmethod
    def accept(self, desk: Desk) -> Accept:
        """Return what a channel's inbox calls with each update."""
