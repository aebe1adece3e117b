"""A person handles a conversation: the agent is silent and later gets what was said, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delivery.database.engine import Database
from delivery.events.event import new_id
from gateway.conversations.message_frame import frame_message
from gateway.conversations.room_context import MAX_TEXT_BYTES, build_context
from gateway.store.conversations import handover, messages
from gateway.store.conversations.handover import HandoverMessage
from gateway.store.conversations.messages import MessageRow
from gateway.store.turns import claims, turns
from gateway.store.turns.turns import HANDED_OVER, Turn
from ingress_harness import BOB, IngressHarness, in_group, open_ingress_harness


async def take_over(harness: IngressHarness) -> str:
    """Give the room's conversation to a person, and return its id."""
    conversation = (await harness.get_conversation()).id
    async with harness.database.begin() as connection:
        assert await handover.start(connection, conversation, by="key_1")
        assert not await handover.start(connection, conversation, by="key_2")
    return conversation


async def give_back(harness: IngressHarness, conversation: str) -> None:
    """Give the conversation back to its agent."""
    since = datetime.now(UTC) - timedelta(hours=1)
    async with harness.database.begin() as connection:
        said = await handover.list_messages(connection, conversation, since=since, limit=50)
        assert await handover.end(connection, conversation, carried=build_context(said))
        assert not await handover.end(connection, conversation, carried=None)


async def say_as_operator(harness: IngressHarness, conversation: str, text: str) -> None:
    """Store a message of the operator."""
    row = MessageRow(
        id=new_id("msg"),
        role="operator",
        author="Olga",
        text=text,
        turn=None,
        attachments=[],
        created_at=datetime.now(UTC),
    )
    async with harness.database.begin() as connection:
        await messages.add_message(connection, conversation, row)


async def test_no_turn_begins_while_a_person_handles_the_conversation(database: Database) -> None:
    """Messages are stored, and each turn that is queued during the handover is cancelled."""
    harness = await open_ingress_harness(database)
    await harness.send_message("hello")
    conversation = await take_over(harness)
    await harness.send_message("is anybody there?")
    of_job = Turn(
        id=new_id("trn"),
        account=harness.account,
        conversation=conversation,
        agent=harness.agents["first"].id,
        trigger="job",
        input="done",
        created_at=datetime.now(UTC),
    )
    async with database.begin() as connection:
        await turns.insert_turn(connection, of_job)
    queued = await harness.list_open_turns()
    assert [turn.cancel for turn in queued] == [False, True, True]
    assert {turn.cancel_why for turn in queued[1:]} == {HANDED_OVER}


async def test_the_agent_gets_once_what_was_said_during_a_handover(database: Database) -> None:
    """The first turn after the handover has the messages of the people and of the operator as context."""
    harness = await open_ingress_harness(database)
    await harness.send_message("@bot hello", **in_group(mentions_bot=True))
    conversation = await take_over(harness)
    await harness.send_message("@bot I want a refund", by=BOB, **in_group(mentions_bot=True))
    await say_as_operator(harness, conversation, "You get it today.")
    await give_back(harness, conversation)
    await harness.send_message("@bot thanks", by=BOB, **in_group(mentions_bot=True))
    await harness.send_message("@bot more", by=BOB, **in_group(mentions_bot=True))
    *_, first, second = await harness.list_open_turns()
    framed = frame_message(first.id, first.origin, first.input, first.context)
    assert framed.index("I want a refund") < framed.index("<operator-") < framed.index("You get it today.")
    assert not first.cancel
    assert second.context is None


def test_what_is_carried_over_is_limited() -> None:
    """The newest messages within the limit are carried over, and long ones are cut."""
    moment = datetime.now(UTC)
    said = [
        HandoverMessage(role="user", author="7", text=f"{number} " + "x" * 5_000, created_at=moment)
        for number in range(50)
    ]
    carried = build_context(said)
    assert carried is not None
    assert 1 < len(carried["earlier"]) < 10
    assert carried["earlier"][-1]["text"].startswith("49 ")
    assert all(len(one["text"].encode()) <= MAX_TEXT_BYTES for one in carried["earlier"])


async def test_a_request_that_has_changed_a_turn_does_not_wait_for_a_handover(database: Database) -> None:
    """It would claim the next turn; each would wait for a row that the other has changed."""
    harness = await open_ingress_harness(database)
    await harness.send_message("hello")
    conversation = (await harness.get_conversation()).id
    (turn,) = await harness.list_open_turns()
    if not database.is_sqlite:  # which has one transaction at a time
        async with database.begin() as taking, database.begin() as cancelling:
            assert await handover.start(taking, conversation, by="key_1")
            assert await turns.request_cancel(cancelling, turn.id) is not None
            assert await claims.raise_fence_if_free(cancelling, conversation) is None
    async with database.begin() as connection:
        claimed = await claims.raise_fence_if_free(connection, conversation)
    assert claimed is not None
    assert claimed.fence == 1
