"""An agent sends to the places that its record lists, and to no other; a repeated call sends nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.deliveries import routes
from delivery.deliveries.part import Part, decode_part
from delivery.deliveries.route import Route
from delivery.events import outbox
from delivery.events.event import EventType, new_id
from gateway.accounts import api_keys
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records
from gateway.store.conversations import conversations, handover, messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.messages import MessageRow
from gateway.tools.executor import ToolExecutor
from gateway.tools.external_tools import no_external_tools
from gateway.tools.messages.send_tools import with_send_tools
from turn_worker import TurnWorkerHarness, open_turn_worker

TEXT = {"to": "ops", "text": "The build is red."}


class SendingAgent:
    """An agent with a conversation that it may send to, and the tools of its turns."""

    def __init__(self, harness: TurnWorkerHarness) -> None:
        self.harness = harness
        self.other = ""

    async def open(self) -> SendingAgent:
        """Create the other conversation, with a chat on Telegram."""
        self.other = await self.add_conversation("ops-room", self.harness.agent.account)
        await self.configure(to={"ops": {"conversation": "ops-room"}})
        return self

    async def add_channel(self, kind: str) -> str:
        """Create a channel record; nothing connects it."""
        settings = {"telegram": {"token": "1:a"}, "zalo": {"token": "1:a"}}[kind]
        config = {"kind": kind, "agent": self.harness.agent.id, "settings": settings}
        async with self.harness.database.begin() as connection:
            saved = await Records(self.harness.vault).create(
                connection, self.harness.agent.account, "channel", name=f"my-{kind}", config=config
            )
        return saved.record.id

    async def add_conversation(self, name: str, account: str, *, channel: str = "") -> str:
        """Create a conversation; with a channel it has a chat there."""
        conversation = Conversation(
            id=new_id("cnv"),
            account=account,
            agent=self.harness.agent.id,
            name=name,
            channel=channel or None,
            address=Address(channel=channel, room="42").encode() if channel else None,
            created_at=utc_now(),
        )
        async with self.harness.database.begin() as connection:
            await conversations.insert_conversation(connection, conversation)
            await outbox.create_stream(
                connection, conversation=conversation.id, account=account, agent=conversation.agent
            )
            if channel:
                address = Address(channel=channel, room="42")
                chat = Route.to_chat(account=account, conversation=conversation.id, address=address)
                await routes.add_route(connection, chat)
        return conversation.id

    async def configure(self, **sends: Any) -> None:
        """Change the record's `sends`."""
        records = Records(self.harness.vault)
        for patch in ({"sends": None}, {"sends": sends}):
            async with self.harness.database.begin() as connection:
                saved = await records.update(connection, self.harness.agent, patch=patch)
            self.harness.agent = saved.record

    @asynccontextmanager
    async def tools(self, *, answers: str = "") -> AsyncIterator[ToolExecutor]:
        """Open the tools of a turn, which answers a chat's message with this id of its platform."""
        turn = await self.harness.add_turn(running=True)
        if answers:
            await self.say(turn.conversation, answers, turn=turn.id)
        opened = with_send_tools(self.harness.transactions, no_external_tools)
        async with self.harness.open_tools(opened, turn) as (tools, _external):
            yield tools

    async def say(self, conversation: str, platform_id: str, *, turn: str | None = None) -> str:
        """Store a person's message, and return its id."""
        row = MessageRow(
            id=new_id("msg"),
            role="user",
            author="7",
            text="hello",
            turn=turn,
            attachments=[],
            platform_id=platform_id,
            created_at=utc_now(),
        )
        async with self.harness.database.begin() as connection:
            await messages.add_message(connection, conversation, row)
        return row.id

    async def enter_chat(self, kind: str) -> str:
        """Have the turns of the agent take place in a chat; return its channel."""
        channel = await self.add_channel(kind)
        self.harness.conversation = await self.add_conversation(
            f"{kind}-chat", self.harness.agent.account, channel=channel
        )
        return channel

    async def react(self, args: dict[str, str], call: str = "1") -> tuple[bool, str]:
        """React in a turn that answers the message 31; return what the model reads."""
        async with self.tools(answers="31") as tools:
            result = await tools.call("react", args, call=call)
        return result.ok, result.content

    async def run(self, name: str, args: dict[str, Any], call: str = "call") -> tuple[bool, str]:
        """Run a call without asking anybody; return whether it succeeded, and what the model reads."""
        await self.configure_approval("never")
        async with self.tools() as tools:
            result = await tools.call(name, args, call=call)
        return result.ok, str(result.detail.get("message", result.content))

    async def configure_approval(self, approval: str) -> None:
        """Change whether a person must approve."""
        await self.configure(to=self.harness.agent.config["sends"]["to"], approval=approval)

    async def parts(self) -> Sequence[Part]:
        """Return what chats get, in order."""
        async with self.harness.database.read() as connection:
            rows = await connection.execute(select(deliveries.c.body).order_by(deliveries.c.position))
        return [decode_part(row.body) for row in rows]


@pytest.fixture
async def agent(database: Database, tmp_path: Path) -> SendingAgent:
    """An agent that may send to one other conversation."""
    return await SendingAgent(await open_turn_worker(database, tmp_path)).open()


async def test_an_agent_without_places_has_no_tools_to_send(agent: SendingAgent) -> None:
    """Nothing is offered unless the record lists a place; then a person must approve each message."""
    async with agent.tools() as tools:
        names = {spec.name for spec in tools.list()}
        assert {"send_message", "edit_message", "delete_message"} <= names
        assert await tools.needs_approval("send_message", TEXT, call="1")
        refused = await tools.call("send_message", TEXT, call="1")
    assert not refused.ok
    await agent.configure(to={})
    async with agent.tools() as tools:
        assert not any(spec.name.endswith("_message") for spec in tools.list())


async def test_a_message_is_sent_once_and_known_in_its_place(agent: SendingAgent) -> None:
    """A repetition of the call, as after a crash, finds the message; the agent there gets it as context."""
    turn = await agent.harness.add_turn(running=True)
    await agent.configure_approval("never")
    for _attempt in range(2):
        context = replace(await agent.harness.tool_context(turn), agent=agent.harness.agent)
        async with with_send_tools(agent.harness.transactions, no_external_tools)(context) as external:
            result = await external.tools["send_message"].run(context, TEXT, "job_1")
            assert result.ok
    async with agent.harness.database.read() as connection:
        said = await messages.list_messages(connection, agent.other)
        there = await conversations.get_by_id(connection, agent.other)
    assert [(one.role, one.text) for one in said] == [("assistant", TEXT["text"])]
    assert there is not None
    assert there.carried_context is not None
    (carried,) = there.carried_context["earlier"]
    assert (carried["name"], carried["text"]) == ("ada (agent)", TEXT["text"])


async def test_only_listed_places_of_the_account_are_sent_to(agent: SendingAgent) -> None:
    """Another account's conversation of the same name, and a place that is not listed, are refused."""
    async with agent.harness.database.begin() as connection:
        outsider, _key = await api_keys.create_account(connection, "two")
    await agent.add_conversation("theirs", outsider.id)
    await agent.configure(to={"ops": {"conversation": "theirs"}})
    sent, why = await agent.run("send_message", TEXT)
    assert (sent, "does not exist" in why) == (False, True)
    sent, why = await agent.run("send_message", TEXT | {"to": "elsewhere"}, "2")
    assert (sent, why) == (False, "wrong arguments: to must be one of ops, not 'elsewhere'")
    with pytest.raises(InvalidRecord):
        await agent.configure(to={"ops": {"conversation": "a", "channel": "b", "room": "c"}})


async def test_a_chat_without_a_conversation_gets_one(agent: SendingAgent) -> None:
    """The message goes to the room, and the channel's agent answers what people say there."""
    channel = await agent.add_channel("telegram")
    await agent.configure(to={"ada": {"channel": "my-telegram", "room": "7"}})
    assert (await agent.run("send_message", TEXT | {"to": "ada"}))[0]
    (part,) = await agent.parts()
    assert part.text == TEXT["text"]
    key = Address(channel=channel, room="7").key
    async with agent.harness.database.read() as connection:
        opened = await conversations.get_by_address(connection, agent.harness.agent.account, key)
    assert opened is not None
    assert opened.agent == agent.harness.agent.id


async def test_a_person_who_handles_a_conversation_is_not_interrupted(agent: SendingAgent) -> None:
    """The agent is silent there."""
    async with agent.harness.database.begin() as connection:
        await handover.start(connection, agent.other, by="key_1")
    sent, why = await agent.run("send_message", TEXT)
    assert (sent, "a person handles" in why) == (False, True)


async def test_sent_messages_are_changed_and_deleted_where_the_platform_can(agent: SendingAgent) -> None:
    """The change names the event whose message it changes; a platform without the ability is named."""
    account = agent.harness.agent.account
    for kind in ("telegram", "zalo"):
        await agent.add_conversation(f"{kind}-room", account, channel=await agent.add_channel(kind))
    await agent.configure(
        to={kind: {"conversation": f"{kind}-room"} for kind in ("telegram", "zalo")}, approval="never"
    )
    _ok, message = await agent.run("send_message", TEXT | {"to": "telegram"}, "1")
    assert (await agent.run("edit_message", {"message": message, "text": "Green."}, "2"))[0]
    assert (await agent.run("delete_message", {"message": message}, "3"))[0]
    sent, changed, deleted = await agent.parts()
    assert (sent.text, changed.text) == (TEXT["text"], "Green.")
    assert changed.edits == deleted.edits
    assert (changed.deletes, deleted.deletes) == (False, True)
    _ok, message = await agent.run("send_message", TEXT | {"to": "zalo"}, "4")
    done, why = await agent.run("edit_message", {"message": message, "text": "Green."}, "5")
    assert (done, "Zalo" in why, "cannot change messages" in why) == (False, True, True)
    assert not (await agent.run("delete_message", {"message": "msg_unknown"}, "6"))[0]


async def test_messages_of_others_are_not_changed(agent: SendingAgent) -> None:
    """What another agent said in a listed place is not the agent's own."""
    _ok, message = await agent.run("send_message", TEXT)
    async with agent.harness.database.begin() as connection:
        saved = await Records(agent.harness.vault).create(
            connection,
            agent.harness.agent.account,
            "agent",
            name="eve",
            config={"sends": {"to": {"ops": {"conversation": "ops-room"}}}},
        )
    agent.harness.agent = saved.record
    done, why = await agent.run("delete_message", {"message": message}, "2")
    assert (done, "you sent no message" in why) == (False, True)
    async with agent.harness.database.read() as connection:
        events = await outbox.list_unpublished(connection, agent.other, after=0)
    assert EventType.MESSAGE_DELETED not in {event.type for event in events}


async def test_an_agent_reacts_to_the_message_it_answers_or_to_a_named_one(agent: SendingAgent) -> None:
    """The chat gets the platform's name of the emoji, once for each call, and no other chat gets it."""
    await agent.enter_chat("telegram")
    other = Address(channel=await agent.add_channel("zalo"), room="5")
    async with agent.harness.database.begin() as connection:
        chat = Route.to_chat(
            account=agent.harness.agent.account, conversation=agent.harness.conversation, address=other
        )
        await routes.add_route(connection, chat)
    earlier = await agent.say(agent.harness.conversation, "12")
    turn = await agent.harness.add_turn(running=True)
    await agent.say(agent.harness.conversation, "31", turn=turn.id)
    context = replace(await agent.harness.tool_context(turn), agent=agent.harness.agent)
    async with with_send_tools(agent.harness.transactions, no_external_tools)(context) as external:
        for _attempt in range(2):
            assert (await external.tools["react"].run(context, {"emoji": "❤️"}, "job_1")).ok
        for number, message in enumerate((earlier, "12")):
            args = {"emoji": ":fire:", "message": message}
            assert (await external.tools["react"].run(context, args, f"job_{number + 2}")).ok
    parts = await agent.parts()
    assert [(part.reaction, part.reply_to) for part in parts] == [("❤", "31"), ("🔥", "12"), ("🔥", "12")]


async def test_reactions_that_are_not_possible_are_refused(agent: SendingAgent) -> None:
    """The sentence says what is missing: a chat, a platform with reactions, the emoji, or the message."""
    assert "in no chat" in (await agent.react({"emoji": "👍"}))[1]
    await agent.enter_chat("zalo")
    assert "bots cannot react to messages on Zalo" in (await agent.react({"emoji": "👍"}))[1]
    await agent.enter_chat("telegram")
    assert "use one of 👍 👎" in (await agent.react({"emoji": "🧮"}))[1]
    elsewhere = await agent.say(agent.other, "77")
    for number, message in enumerate((elsewhere, "77", "no\0thing")):
        done, why = await agent.react({"emoji": "👍", "message": message}, f"of no message {number}")
        assert (done, "there is no message" in why) == (False, True)
    assert await agent.parts() == []
