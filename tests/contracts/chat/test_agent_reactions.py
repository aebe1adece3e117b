"""People's reactions become turns of agents that want them, and agents react to messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from channels.errors import Rejected, Unreachable
from channels.message import Author, Reaction, RoomKind
from channels.port import ChannelFeature, ChannelLimits
from chat_deliveries import chat_delivery
from delivery.chat.rate_limit import RateLimiter
from delivery.chat.sink import ChatSink, ConnectedBot
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.deliveries.part import decode_part, encode_part
from delivery.deliveries.port import OutcomeKind
from delivery.deliveries.rendering import render_text
from delivery.events.event import Event, EventType
from gateway.conversations.message_frame import frame_message
from gateway.conversations.message_ids import completed_event_id
from gateway.schedules.heartbeat import may_be_silent
from gateway.store.accounts import records
from ingress_harness import ANN, BOB, IngressHarness, in_group, open_ingress_harness
from memory_channel import MemoryChannel

ANSWER = "31"
"""What the platform calls the agent's answer."""


async def answer(harness: IngressHarness, text: str = "It is done.") -> None:
    """Have the agent say something in the room, as the message ANSWER."""
    conversation = await harness.get_conversation()
    async with harness.transactions.begin("turn.finish") as tx:
        data = {"message": "msg_1", "role": "assistant", "text": text, "files": []}
        tx.emit(
            Event.now(
                EventType.MESSAGE_COMPLETED, conversation.id, data, event_id=completed_event_id("msg_1")
            )
        )
    async with harness.database.begin() as connection:
        await connection.execute(
            update(deliveries)
            .where(deliveries.c.event_type == str(EventType.MESSAGE_COMPLETED))
            .values(state="delivered", platform_id=ANSWER)
        )


async def want_reactions(harness: IngressHarness) -> None:
    """Change the record of the room's agent."""
    wanting = replace(harness.agents["first"], config={"reactions": True}, updated_at=utc_now())
    async with harness.database.begin() as connection:
        await records.update_record(connection, wanting)


async def react(
    harness: IngressHarness, platform_id: str, key: str, *, allow: tuple[str, ...] = ("*",), **changes: Any
) -> None:
    """Put Bob's thumb under a message of the group."""
    values: dict[str, Any] = {"address": harness.address(), "author": BOB, "emoji": "👍", "added": True}
    values |= {"room": RoomKind.GROUP, **changes}
    await harness.receive(Reaction(key=key, platform_id=platform_id, **values), allow=allow)


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """A group with a question that waits, and an answer."""
    harness = await open_ingress_harness(database)
    await harness.send_message("what about it?", **in_group(mentions_bot=True))
    await answer(harness)
    return harness


async def test_an_agent_that_wants_reactions_gets_them_once(harness: IngressHarness) -> None:
    """The turn names the person, quotes the message, may be silent, and waits behind the other turn."""
    await react(harness, ANSWER, "1")
    assert len(await harness.list_open_turns()) == 1
    await want_reactions(harness)
    for _repetition in range(2):
        await react(harness, ANSWER, "2")
    _first, turn = await harness.list_open_turns()
    assert (turn.asker, turn.input) == (BOB.id, "(reaction to the quoted message: 👍)")
    assert may_be_silent(turn)
    shown = frame_message(turn.id, turn.origin, turn.input, turn.context)
    assert all(part in shown for part in ("It is done.", '"bot": "true"', '"name": "Bob"'))


async def test_other_reactions_start_no_turn(harness: IngressHarness) -> None:
    """A removed one, one to an unknown message or in another room, and one of an unknown user."""
    await want_reactions(harness)
    await react(harness, ANSWER, "1", added=False)
    await react(harness, "99", "2")
    await react(harness, ANSWER, "3", address=harness.address("elsewhere"))
    await react(harness, ANSWER, "4", room=RoomKind.DIRECT, allow=(ANN.id,))
    assert len(await harness.list_open_turns()) == 1


async def test_a_reaction_of_what_may_be_a_bot_starts_turns_for_known_persons_only(
    harness: IngressHarness,
) -> None:
    """A bot that reacts to each message would start turns, and two agents could do so for each other."""
    await want_reactions(harness)
    await react(harness, ANSWER, "1", author=Author(id="poll"), may_be_bot=True)
    await react(harness, ANSWER, "2", author=BOB, may_be_bot=True)
    by_bot = Author(id="poll", is_bot=True)
    await harness.send_message("Vote!", by=by_bot, **in_group(address=harness.address(thread="9")))
    await react(harness, ANSWER, "3", author=Author(id="poll"), may_be_bot=True)
    assert len(await harness.list_open_turns()) == 1
    await react(harness, ANSWER, "4", author=ANN, may_be_bot=True)  # she asked in the conversation
    await harness.send_message("I am here too.", by=BOB, **in_group())
    await react(harness, ANSWER, "5", author=BOB, may_be_bot=True)
    await react(harness, ANSWER, "6", author=Author(id="C"), may_be_bot=True, allow=("*", "C"))
    await react(harness, ANSWER, "7", author=Author(id="D"), may_be_bot=True, room=RoomKind.DIRECT)
    _asked, *reactions = await harness.list_open_turns()
    assert [turn.asker for turn in reactions] == [ANN.id, BOB.id, "C", "D"]


async def test_a_reaction_to_a_persons_message_quotes_it(harness: IngressHarness) -> None:
    """It is a message that the agent got; the frame does not say that the bot wrote it."""
    asked = await harness.send_message("shall we?", **in_group(mentions_bot=True))
    await want_reactions(harness)
    await react(harness, asked, "1")
    turn = (await harness.list_open_turns())[-1]
    assert turn.context == {"quoted": {"message": asked, "text": "shall we?"}}


async def test_a_reaction_is_sent_by_the_name_of_its_platform() -> None:
    """Failures of a moment are retried, a refusal ends the delivery; one without the feature gives up."""
    channel, limits = MemoryChannel(), ChannelLimits(text=4000, account_sends_per_second=1000)
    channel.errors += [Unreachable("gone for a moment"), Rejected("REACTION_INVALID")]
    data = {"name": "tada", "platform_id": "31", "channel": "chn_1", "room": "42"}
    event = Event.now(EventType.MESSAGE_REACTED, "cnv_1", data, turn="trn_1")
    part = render_text(event)
    assert part is not None
    assert decode_part(encode_part(part)) == part
    outcomes = []
    for features in (*[frozenset({ChannelFeature.REACT})] * 3, frozenset[ChannelFeature]()):
        bot = ConnectedBot(sender=channel, features=features, rate_limiter=RateLimiter(limits), limits=limits)
        outcomes.append((await ChatSink({"chn_1": bot}.get).send(chat_delivery(event, part))).kind)
    assert outcomes == [
        OutcomeKind.RETRY,
        OutcomeKind.GIVE_UP,
        OutcomeKind.DELIVERED,
        OutcomeKind.GIVE_UP,
    ]
    assert channel.reactions == [("42", "31", "tada")]
