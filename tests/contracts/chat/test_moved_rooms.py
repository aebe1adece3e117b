"""What is on the way to a room that gets a new id: replies, reactions, and drafts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from channels.errors import Undeliverable
from channels.message import Address, RoomKind, RoomMigrated, ToolStep
from channels.port import ChannelFeature
from delivery.chat import draft_store
from delivery.chat.drafts import Drafts
from delivery.database.engine import Database
from delivery.database.tables import deliveries
from delivery.deliveries import routes
from delivery.deliveries.part import decode_part
from delivery.deliveries.port import Outcome, OutcomeKind
from delivery.events.event import Event, EventType
from draft_harness import EDITS, ROOM, STEPS, DraftHarness, open_draft_harness
from gateway.conversations.notices import post_notice
from gateway.ingress.room_changes import move_room
from ingress_harness import IngressHarness, open_ingress_harness

NEW = "moved"


async def deliver_after_retries(
    harness: DraftHarness, drafts: Drafts, text: str, *, target: Address
) -> Outcome:
    """Bring the final text as often as its outcome asks for: the draft may still be written."""
    while True:
        outcome = await harness.deliver_final_text(drafts, text, target=target)
        if outcome.kind is not OutcomeKind.RETRY:
            return outcome
        await asyncio.sleep(0.02)


async def queue_messages(harness: IngressHarness) -> None:
    """Queue a reply to message 5 and a reaction to it, which the platform has not accepted yet."""
    group: dict[str, Any] = {"room": RoomKind.GROUP}
    await harness.send_message("clean up", platform_id="5", mentions_bot=True, **group)
    conversation = await harness.get_conversation()
    address = harness.address()
    reaction = {"name": "👍", "platform_id": "5", "channel": address.channel, "room": address.room}
    async with harness.transactions.begin("notice") as tx:
        await post_notice(tx, conversation.id, "the reply", reply_to="5")
        tx.emit(Event.now(EventType.MESSAGE_REACTED, conversation.id, reaction))


@pytest.mark.parametrize("keeps_messages", [False, True])
async def test_what_waits_names_no_message_of_a_group_whose_numbers_are_new(
    database: Database, *, keeps_messages: bool
) -> None:
    """A supergroup has other numbers: what waits is a reply to no message, and reacts to none."""
    harness = await open_ingress_harness(database)
    await queue_messages(harness)
    moved = {"old": harness.address(), "new": harness.address(NEW)}
    await harness.receive(RoomMigrated(key="9", **moved, keeps_messages=keeps_messages))
    async with harness.database.read() as connection:
        rows = await connection.execute(
            select(deliveries.c.body, deliveries.c.state).order_by(deliveries.c.position.desc()).limit(2)
        )
        (reaction, reaction_state), (reply, reply_state) = [(decode_part(row[0]), row[1]) for row in rows]
    assert (reply.text, reply_state) == ("the reply", "pending")
    assert reply.reply_to == ("5" if keeps_messages else None)
    assert reaction.reply_to == "5"
    assert reaction_state == ("pending" if keeps_messages else "suppressed")


async def test_a_draft_of_a_room_that_moved_becomes_the_reply(tmp_path: Path) -> None:
    """Its message keeps its id: the final text edits it under the room's new id, and nothing is sent."""
    async with open_draft_harness(tmp_path) as harness:
        new = replace(ROOM, room=NEW)
        async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as shown:
            assert shown is not None
            shown.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: bool(harness.visible_texts))
            harness.channel.rooms[NEW] = harness.channel.rooms.pop(ROOM.room)
            async with harness.database.begin() as connection:
                await move_room(connection, "acc_1", RoomMigrated(key="9", old=ROOM, new=new))
                await draft_store.end_write(connection, "msg_1", new.encode())  # else waited for, for 3 s
            calls = len(harness.platform_calls)
            shown.show_text("msg_1", "Hello, th")
            await harness.deliver_final_text(drafts, "Hello, there.", target=new)
        assert harness.channel.texts(NEW) == ["Hello, there."]
        assert harness.platform_calls[calls:] == ["edit"]


async def test_a_draft_of_a_transferred_issue_becomes_the_reply(tmp_path: Path) -> None:
    """Its comment has another id in the other repository, and is found there by its key."""
    async with open_draft_harness(tmp_path) as harness:
        harness.features = EDITS | {ChannelFeature.FIND}
        old, new = replace(ROOM, thread="1"), replace(ROOM, room=NEW, thread="7")
        async with harness.database.begin() as connection:
            await routes.replace_target(connection, "cnv_1", old=ROOM.encode(), new=old.encode())
        async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as shown:
            assert shown is not None
            shown.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: bool(harness.visible_texts))
            harness.channel.rooms[NEW]["99"] = harness.channel.rooms.pop(ROOM.room)["1"]
            async with harness.database.begin() as connection:
                moved = RoomMigrated(key="9", old=old, new=new, keeps_messages=False)
                await move_room(connection, "acc_1", moved)
                await draft_store.end_write(connection, "msg_1", new.encode())  # else waited for, for 3 s
            calls = len(harness.platform_calls)
            shown.show_text("msg_1", "Hello, th")
            outcome = await harness.deliver_final_text(drafts, "Hello, there.", target=new)
        assert harness.channel.texts(NEW) == ["Hello, there."]
        assert (harness.platform_calls[calls:], outcome.platform_id) == (["find", "edit"], "99")


async def move(harness: DraftHarness) -> None:
    """Give the room, which keeps its messages, its new id; the old one names it as well."""
    harness.channel.rooms[NEW] = harness.channel.rooms[ROOM.room]
    async with harness.database.begin() as connection:
        moved = RoomMigrated(key="9", old=ROOM, new=replace(ROOM, room=NEW))
        await move_room(connection, "acc_1", moved)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_draft_that_is_being_sent_while_its_room_moves_becomes_the_reply(
    tmp_path: Path, *, is_lost: bool
) -> None:
    """Its first call is answered after the move, or the answer is lost and its own key finds it."""
    async with open_draft_harness(tmp_path) as harness, harness.drafts() as drafts:
        harness.features = EDITS | {ChannelFeature.FIND}
        harness.channel.frozen, harness.channel.lost_answers = asyncio.Event(), int(is_lost)
        async with drafts.publish_while("cnv_1", "trn_1") as shown:
            assert shown is not None
            shown.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.platform_calls == ["send"])
            await move(harness)
            harness.channel.frozen.set()
            await harness.channel.until(lambda: bool(harness.visible_texts))
        new = replace(ROOM, room=NEW)
        await deliver_after_retries(harness, drafts, "Hello", target=new)
        assert harness.channel.texts(NEW) == ["Hello"]


async def test_a_draft_that_is_being_sent_while_its_issue_is_transferred_becomes_the_reply(
    tmp_path: Path,
) -> None:
    """The late answer names the comment that was left; the key finds the one in the other repository."""
    async with open_draft_harness(tmp_path) as harness, harness.drafts() as drafts:
        harness.features = EDITS | {ChannelFeature.FIND}
        old, new = replace(ROOM, thread="1"), replace(ROOM, room=NEW, thread="7")
        async with harness.database.begin() as connection:
            await routes.replace_target(connection, "cnv_1", old=ROOM.encode(), new=old.encode())
        harness.channel.frozen = asyncio.Event()
        async with drafts.publish_while("cnv_1", "trn_1") as shown:
            assert shown is not None
            shown.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: harness.platform_calls == ["send"])
            async with harness.database.begin() as connection:
                moved = RoomMigrated(key="9", old=old, new=new, keeps_messages=False)
                await move_room(connection, "acc_1", moved)
            harness.channel.frozen.set()
            await harness.channel.until(lambda: bool(harness.visible_texts))
        harness.channel.rooms[NEW]["99"] = harness.channel.rooms.pop(ROOM.room)["1"]
        outcome = await deliver_after_retries(harness, drafts, "Hello", target=new)
    assert (harness.channel.texts(NEW), outcome.platform_id) == (["Hello"], "99")


async def test_a_draft_with_an_id_is_not_sent_again_where_repeats_are_recognised(tmp_path: Path) -> None:
    """The platform may recognise the key in the former room only: the message is edited by its id."""
    async with open_draft_harness(tmp_path) as harness:
        harness.features = EDITS | {ChannelFeature.IDEMPOTENT_SEND}
        async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as shown:
            assert shown is not None
            shown.show_text("msg_1", "Hel")
            await harness.channel.until(lambda: bool(harness.visible_texts))
            await move(harness)
            new = replace(ROOM, room=NEW)
            async with harness.database.begin() as connection:
                await draft_store.end_write(connection, "msg_1", new.encode())  # else waited for, for 3 s
            await harness.deliver_final_text(drafts, "Hello, there.", target=new)
        assert (harness.channel.texts(NEW), harness.platform_calls[-1]) == (["Hello, there."], "edit")


async def test_the_steps_of_a_room_that_moved_are_ended_there(tmp_path: Path) -> None:
    """The platform refuses the old id; the message goes on under the new one, in this process or the next."""
    async with open_draft_harness(tmp_path) as harness:
        harness.features = STEPS
        step = ToolStep(id="1", title="bash: make")
        async with harness.drafts() as drafts, drafts.publish_while("cnv_1", "trn_1") as shown:
            assert shown is not None
            shown.show_step(step)
            await harness.channel.until(lambda: bool(harness.visible_texts))
            await move(harness)
            harness.channel.errors.append(Undeliverable("channel_not_found"))
            shown.show_step(replace(step, title="bash: test"))
            await harness.channel.until(lambda: harness.channel.texts(NEW) == ["bash: test running"])
            harness.channel.errors += [Undeliverable("the process is killed")] * 9
        harness.channel.errors.clear()
        async with harness.drafts(ended_turns=["trn_1"]):
            await harness.channel.until(lambda: harness.channel.step_updates[-1].has_ended)
        assert [one.platform_id for one in harness.channel.step_updates] == [None, "steps 1", "steps 1"]
