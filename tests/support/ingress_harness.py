"""A reception with a real database and nothing behind it: what it accepts, says and queues, told from SQL."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import select

from channels.message import Address, Attachment, Author, Command, Message, Press, Reaction, Room
from channels.port import Limits
from delivery.broker.wake_ups import MemorySignals
from delivery.database.engine import Database
from delivery.database.tables import deliveries, outbox
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Ledger
from delivery.events.event import Event, new_id
from delivery.events.port import Stream
from delivery.events.relay import Relay
from gateway.accounts import api_keys
from gateway.conversations.approvals import Approvals
from gateway.conversations.approver_rules import Rule
from gateway.conversations.submission import Intake
from gateway.ingress.channel_context import Desk
from gateway.ingress.commands import Commands
from gateway.ingress.rate_limit import Flood, FullLines, Strangers
from gateway.ingress.receive import Reception
from gateway.ingress.sandbox_commands import Errands
from gateway.jobs.jobs import Jobs
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn

ANN = Author(id="7", name="Ann")
BOB = Author(id="8", name="Bob")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Stage:
    """A reception at one desk; `answered` is what presses and slash commands were answered."""

    database: Database
    account: str
    desk: Desk
    reception: Reception
    intake: Intake
    ledger: Ledger
    approvals: Approvals
    agents: dict[str, Record]
    answered: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    keys: itertools.count[int] = field(default_factory=itertools.count)

    def address(self, room: str = "room", thread: str | None = None) -> Address:
        """Return a place of this desk's channel."""
        return Address(channel=self.desk.record.id, room=room, thread=thread)

    async def bring(self, update: Any, **desk: Any) -> None:
        """Bring one update to the reception, at a desk that is otherwise set."""
        await self.reception.accept(replace(self.desk, **desk))(update)

    async def say(
        self, text: str, *, by: Author = ANN, desk: dict[str, Any] | None = None, **changes: Any
    ) -> str:
        """Say something in the room; returns the message's platform id."""
        number = str(next(self.keys))
        values: dict[str, Any] = {
            "key": f"m{number}",
            "address": self.address(),
            "author": by,
            "text": text,
            "sent_at": NOW,
            "platform_id": number,
        }
        message = Message(**(values | changes))
        await self.bring(message, **(desk or {}))
        return message.platform_id

    async def command(self, name: str, rest: str = "", *, by: Author = ANN, **changes: Any) -> None:
        """Give a command, with a token as a slash command has one."""
        values: dict[str, Any] = {
            "key": f"c{next(self.keys)}",
            "address": self.address(),
            "author": by,
            "name": name,
            "rest": rest,
            "sent_at": NOW,
            "token": "token",
        }
        await self.bring(Command(**(values | changes)))

    async def press(self, data: str, *, by: Author = ANN, room: str = "room", **desk: Any) -> str:
        """Press a button and return what the press was answered."""
        key = f"p{next(self.keys)}"
        await self.bring(Press(key=key, address=self.address(room), author=by, data=data, token=key), **desk)
        return self.answered[-1]

    async def react(self, emoji: str, platform_id: str, *, by: Author = ANN, **desk: Any) -> None:
        """Put a reaction under a message."""
        key = f"r{next(self.keys)}"
        reaction = Reaction(
            key=key, address=self.address(), author=by, emoji=emoji, added=True, platform_id=platform_id
        )
        await self.bring(reaction, **desk)

    async def talk(self, room: str = "room") -> Conversation:
        """Return the room's conversation."""
        async with self.database.read() as connection:
            found = await conversations.at_address(connection, self.account, self.address(room).key)
        assert found is not None
        return found

    async def line(self, room: str = "room") -> list[Turn]:
        """Return the open turns of the room's conversation, in order; none when there is no conversation."""
        async with self.database.read() as connection:
            found = await conversations.at_address(connection, self.account, self.address(room).key)
            return await turns.open_turns(connection, found.id) if found else []

    async def begin(self) -> Turn:
        """Let the room's first turn run, as a conductor would."""
        (first, *_) = await self.line()
        async with self.database.begin() as connection:
            fence = await conversations.raise_fence(connection, first.conversation)
            claimed = await turns.claim(connection, first, fence=fence, runner="here", crashes=0)
        return replace(first, input=claimed or "", state=TurnState.RUNNING, attempt=1)

    async def told(self) -> list[Event]:
        """Return every event, in order."""
        async with self.database.read() as connection:
            rows = await connection.execute(select(outbox.c.body).order_by(outbox.c.n))
        return [Event.load(row.body) for row in rows]

    async def owed(self) -> list[str]:
        """Return the bodies of what the chats are owed."""
        async with self.database.read() as connection:
            rows = await connection.execute(select(deliveries.c.body).order_by(deliveries.c.position))
        return [bytes(row.body).decode() for row in rows]


def attachment(name: str) -> Attachment:
    """Return a file that a person sent."""
    return Attachment(name=name, media_type="text/plain", size=3, ref=f"ref-{name}")


def grouped(**more: Any) -> dict[str, Any]:
    """Return what makes a message one of a group."""
    return {"room": Room.GROUP, **more}


async def open_stage(
    database: Database,
    *,
    approvers: Rule = "anyone",
    clock: Any = None,
    limit: int = 50,
    checkpoint: Callable[[str], None] = lambda _name: None,
) -> Stage:
    """Make an account with two agents and a channel, and a reception in front of them."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        agents = {name: _record("agent", account.id, name, {}) for name in ("first", "second")}
        settings = {"approvers": approvers if isinstance(approvers, str) else list(approvers)}
        channel = _record("channel", account.id, "chat", {"kind": "memory", "settings": settings})
        for record in (*agents.values(), channel):
            await records.add(connection, record)
    relay = Relay(database, cast("Stream", None), lambda _name: None)
    ledger = Ledger(database, relay, Router(lambda _channel: Limits(text=4000)), MemorySignals(), checkpoint)
    answered: list[str] = []
    cancelled: list[str] = []

    async def answer(_to: Press | Command, text: str) -> None:
        answered.append(text)

    intake = Intake(ledger, limit=limit, cancel=cancelled.append)
    approvals = Approvals(ledger)
    commands = Commands(answer, Errands(cast("Ledger", None), cast("Jobs", None)), limit=limit)
    reception = Reception(
        ledger,
        intake,
        approvals,
        commands,
        flood=Flood(clock) if clock else None,
        full=FullLines(clock) if clock else None,
        strangers=Strangers(clock) if clock else None,
        cancel=cancelled.append,
    )
    desk = Desk(record=channel, agent=agents["first"].id, allow=("*",), approvers=approvers)
    return Stage(
        database=database,
        account=account.id,
        desk=desk,
        reception=reception,
        intake=intake,
        ledger=ledger,
        approvals=approvals,
        agents=agents,
        answered=answered,
        cancelled=cancelled,
    )


def _record(kind: records.Kind, account: str, name: str, config: dict[str, Any]) -> Record:
    return Record(
        id=new_id(records.PREFIXES[kind]),
        account=account,
        kind=kind,
        name=name,
        config=config,
        created_at=NOW,
        updated_at=NOW,
    )
