"""Run the ingress with a real database and nothing behind it, and read its effects from SQL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import select

from channels.message import Address, Attachment, Author, ButtonPress, Command, Message, Reaction, RoomKind
from channels.port import ChannelLimits
from delivery.broker.wake_ups import MemoryWakeUps
from delivery.database.engine import Database
from delivery.database.tables import deliveries, outbox
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Transactions
from delivery.events.event import Event, new_id
from delivery.events.port import EventStream
from delivery.events.relay import Relay
from gateway.accounts import api_keys
from gateway.agents.port import PendingToolCall
from gateway.conversations import approvals
from gateway.conversations.approvals import Approvals
from gateway.conversations.approver_rules import ApproverRule
from gateway.conversations.submissions.full_queues import FullQueues, RefusalReports
from gateway.conversations.submissions.submissions import Submissions
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.commands.chat_commands import ChatCommands
from gateway.ingress.commands.sandbox_commands import SandboxCommands
from gateway.ingress.rate_limit import SenderRateLimiter, UnknownSenders
from gateway.ingress.receive import UpdateHandler
from gateway.jobs.jobs import Jobs
from gateway.records.agent import OperatorModel
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn

ANN = Author(id="7", name="Ann")
BOB = Author(id="8", name="Bob")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class IngressHarness:
    """An update handler with one channel; `replies` holds the answers to presses and slash commands."""

    database: Database
    account: str
    channel_context: ChannelContext
    update_handler: UpdateHandler
    submissions: Submissions
    transactions: Transactions
    approvals: Approvals
    agents: dict[str, Record]
    refusal_reports: RefusalReports
    replies: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    keys: itertools.count[int] = field(default_factory=itertools.count)

    def address(self, room: str = "room", thread: str | None = None) -> Address:
        """Return an address in this channel."""
        return Address(channel=self.channel_context.record.id, room=room, thread=thread)

    async def receive(self, update: Any, **receiving_context: Any) -> None:
        """Give one update to the handler; `context` changes the channel's settings."""
        await self.update_handler.accept(replace(self.channel_context, **receiving_context))(update)

    async def send_message(
        self, text: str, *, by: Author = ANN, context: dict[str, Any] | None = None, **changes: Any
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
        await self.receive(message, **(context or {}))
        return message.platform_id

    async def send_command(self, name: str, rest: str = "", *, by: Author = ANN, **changes: Any) -> None:
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
        await self.receive(Command(**(values | changes)))

    async def press(
        self, data: str, *, by: Author = ANN, room: str = "room", **receiving_context: Any
    ) -> str:
        """Press a button and return what the press was answered."""
        key = f"p{next(self.keys)}"
        await self.receive(
            ButtonPress(key=key, address=self.address(room), author=by, data=data, token=key),
            **receiving_context,
        )
        return self.replies[-1]

    async def react(
        self,
        emoji: str,
        platform_id: str,
        *,
        by: Author = ANN,
        room: str = "room",
        may_be_bot: bool = False,
        **receiving_context: Any,
    ) -> None:
        """Put a reaction under a message."""
        reaction = Reaction(
            key=f"r{next(self.keys)}",
            address=self.address(room),
            author=by,
            emoji=emoji,
            added=True,
            platform_id=platform_id,
            may_be_bot=may_be_bot,
        )
        await self.receive(reaction, **receiving_context)

    async def get_conversation(self, room: str = "room") -> Conversation:
        """Return the room's conversation."""
        async with self.database.read() as connection:
            found = await conversations.get_by_address(connection, self.account, self.address(room).key)
        assert found is not None
        return found

    async def list_open_turns(self, room: str = "room", thread: str | None = None) -> list[Turn]:
        """Return the open turns of the conversation there, in order; none when there is no conversation."""
        async with self.database.read() as connection:
            key = self.address(room, thread).key
            found = await conversations.get_by_address(connection, self.account, key)
            return await turns.list_open(connection, found.id) if found else []

    async def start_first_turn(self) -> Turn:
        """Start the room's first turn, as a turn worker does."""
        (first, *_) = await self.list_open_turns()
        async with self.database.begin() as connection:
            fence = await conversations.raise_fence(connection, first.conversation)
            claimed = await turns.claim(connection, first, fence=fence, worker_id="here", crashes=0)
        assert claimed is not None
        return replace(first, input=claimed.input, state=TurnState.RUNNING, attempt=1)

    async def ask(self, args: Mapping[str, Any], *, tool: str = "ask_person") -> Approval:
        """Have a turn ask a question, or for the approval of another tool's call, and wait."""
        await self.send_message("order something")
        turn = await self.start_first_turn()
        async with self.transactions.begin("turn.pause") as tx:
            fence = await conversations.raise_fence(tx.connection, turn.conversation)
            await turns.pause(tx.connection, turn, fence=fence, state=b"")
            await approvals.request(tx, turn, [PendingToolCall(id="c1", name=tool, args=args)], "")
            (asked,) = await approval_store.list_for_turn(tx.connection, turn.id)
        return asked

    async def list_events(self) -> list[Event]:
        """Return every event, in order."""
        async with self.database.read() as connection:
            rows = await connection.execute(select(outbox.c.body).order_by(outbox.c.n))
        return [Event.decode(row.body) for row in rows]

    async def list_delivery_bodies(self) -> list[str]:
        """Return the bodies of the deliveries to chats."""
        async with self.database.read() as connection:
            rows = await connection.execute(select(deliveries.c.body).order_by(deliveries.c.position))
        return [bytes(row.body).decode() for row in rows]


def attachment(name: str) -> Attachment:
    """Return a file that a person sent."""
    return Attachment(name=name, media_type="text/plain", size=3, ref=f"ref-{name}")


def in_group(**more: Any) -> dict[str, Any]:
    """Return what makes a message one of a group."""
    return {"room": RoomKind.GROUP, **more}


async def open_ingress_harness(
    database: Database,
    *,
    approvers: ApproverRule = "anyone",
    clock: Any = None,
    limit: int = 50,
    name: str = "one",
    checkpoint: Callable[[str], None] = lambda _name: None,
    operator_model: OperatorModel | None = None,
) -> IngressHarness:
    """Create an account of this name with two agents and a channel, and an update handler for them."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, name)
        agents = {agent: _record("agent", account.id, agent, {}) for agent in ("first", "second")}
        settings = {"approvers": approvers if isinstance(approvers, str) else list(approvers)}
        channel = _record("channel", account.id, "chat", {"kind": "memory", "settings": settings})
        for record in (*agents.values(), channel):
            await records.add(connection, record)
    relay = Relay(database, cast("EventStream", None), lambda _name: None)
    transactions = Transactions(
        database, relay, Router(lambda _channel: ChannelLimits(text=4000)), MemoryWakeUps(), checkpoint
    )
    answered: list[str] = []
    cancelled: list[str] = []

    async def answer(_to: ButtonPress | Message | Command, text: str) -> None:
        answered.append(text)

    submissions = Submissions(transactions, limit=limit, cancel=cancelled.append)
    approvals = Approvals(transactions)
    commands = ChatCommands(
        answer,
        SandboxCommands(cast("Transactions", None), cast("Jobs", None)),
        reply_confidentially=answer,
        limit=limit,
        operator_model=operator_model or OperatorModel(),
    )
    full_queues = FullQueues(clock) if clock else FullQueues()
    handler = UpdateHandler(
        transactions,
        submissions,
        approvals,
        commands,
        rate_limiter=SenderRateLimiter(clock) if clock else None,
        full_queues=full_queues,
        unknown_senders=UnknownSenders(clock) if clock else None,
        cancel=cancelled.append,
    )
    context = ChannelContext(record=channel, agent=agents["first"].id, allow=("*",), approvers=approvers)
    return IngressHarness(
        database=database,
        account=account.id,
        channel_context=context,
        update_handler=handler,
        submissions=submissions,
        transactions=transactions,
        approvals=approvals,
        agents=agents,
        refusal_reports=RefusalReports(transactions, full_queues),
        replies=answered,
        cancelled=cancelled,
    )


def _record(kind: records.RecordKind, account: str, name: str, config: dict[str, Any]) -> Record:
    return Record(
        id=new_id(records.ID_PREFIXES[kind]),
        account=account,
        kind=kind,
        name=name,
        config=config,
        created_at=NOW,
        updated_at=NOW,
    )
