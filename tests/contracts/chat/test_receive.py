"""How messages, edits, commands and floods are handled, on both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from channels.message import Author, Command, MessageDeleted, QuotedMessage
from channels.settings import RoomSettings
from delivery.database.engine import Database
from delivery.deliveries import destinations
from delivery.events.event import EventType
from gateway.store.accounts import records
from gateway.store.conversations import conversations, messages
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from ingress_harness import ANN, BOB, NOW, IngressHarness, attachment, in_group, open_ingress_harness


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """An update handler that admits everybody."""
    return await open_ingress_harness(database)


async def open_inputs(harness: IngressHarness, room: str = "room") -> list[str]:
    """Return what the open turns of a room ask."""
    return [turn.input for turn in await harness.list_open_turns(room)]


async def test_an_unknown_command_is_said_to_the_agent(harness: IngressHarness) -> None:
    """`/weather today` is text for the agent; a known command is executed and answered privately."""
    await harness.send_command("weather", "today")
    assert await open_inputs(harness) == ["/weather today"]
    assert harness.replies == []
    await harness.send_command("status")
    assert harness.replies[0].startswith("About to begin with")
    assert await open_inputs(harness) == ["/weather today"]
    assert await harness.list_delivery_bodies() == []


async def test_a_command_without_a_token_is_answered_in_the_conversation(harness: IngressHarness) -> None:
    """Where a platform wants no answer to the command itself, the conversation gets it."""
    await harness.send_command("help", token="")
    assert harness.replies == []
    (owed,) = await harness.list_delivery_bodies()
    assert "/queue" in owed


async def test_the_same_update_is_taken_once(harness: IngressHarness) -> None:
    """A platform's repetition of a message or a command changes nothing."""
    for _ in range(3):
        await harness.send_message("hello", key="same")
        await harness.send_command("weather", key="once")
    assert await open_inputs(harness) == ["hello", "/weather"]


@pytest.mark.parametrize(
    ("policy", "received"),
    [
        ("mention", ["@bot hi"]),
        ("always", ["hi", "@bot hi", "!ls"]),
        ("command", ["!ls"]),
    ],
)
async def test_a_room_says_which_messages_are_for_the_bot(
    harness: IngressHarness, policy: str, received: list[str]
) -> None:
    """A room's own policy goes before the channel's; a command is always meant."""
    rooms = {"room": RoomSettings.model_validate({"groups": policy})}
    context = {"rooms": rooms, "groups": "mention" if policy == "always" else "always"}
    await harness.send_message("hi", context=context, **in_group())
    await harness.send_message("@bot hi", context=context, **in_group(mentions_bot=True))
    await harness.send_message("!ls", context=context, **in_group())
    await harness.receive(
        Command(key="word", address=harness.address(), author=ANN, name="weather", rest="", sent_at=NOW),
        **context,
    )
    assert await open_inputs(harness) == [*received, "/weather"]


async def test_a_room_names_its_agent(harness: IngressHarness) -> None:
    """New conversations of a room go to its agent; a room whose agent is gone to the channel's."""
    second = harness.agents["second"]
    rooms = {
        "room": RoomSettings(agent=second.id),
        "gone": RoomSettings(agent="agt_gone"),
    }
    await harness.send_message("hi", context={"rooms": rooms})
    await harness.send_message("hi", context={"rooms": rooms}, address=harness.address("gone"))
    assert (await harness.get_conversation("room")).agent == second.id
    assert (await harness.get_conversation("gone")).agent == harness.agents["first"].id


async def test_stop_is_accepted_without_a_mention_where_the_bot_works(harness: IngressHarness) -> None:
    """In a group `/stop` ends what runs, unmentioned; where nothing was ever asked it opens nothing."""
    await harness.send_message("@bot work", **in_group(mentions_bot=True))
    running = await harness.start_first_turn()
    await harness.send_message("/stop", **in_group())
    assert harness.cancelled == [running.id]
    await harness.send_message("/stop", **in_group(address=harness.address("elsewhere")))
    assert await open_inputs(harness, "elsewhere") == []
    async with harness.database.read() as connection:
        found = await conversations.get_by_address(
            connection, harness.account, harness.address("elsewhere").key
        )
    assert found is None
    await harness.send_message("/stop", by=Author(id="9"), context={"allow": ("pairing",)}, **in_group())
    assert not any("You are not paired" in owed for owed in await harness.list_delivery_bodies())


async def test_a_stop_ends_what_runs_and_what_waits(harness: IngressHarness) -> None:
    """All turns are asked to end, and only the running one reports it."""
    for text in ("one", "two", "three"):
        await harness.send_message(text)
    await harness.start_first_turn()
    await harness.send_command("stop")
    assert harness.replies == ["Stopping 3 turns."]
    line = await harness.list_open_turns()
    assert [(turn.cancel, turn.cancel_why) for turn in line] == [
        (True, "stopped"),
        (True, "stopped in line"),
        (True, "stopped in line"),
    ]


async def test_an_edit_changes_what_waits(harness: IngressHarness) -> None:
    """The turn gets the edited text, and an event reports it; the same text is no change."""
    first = await harness.send_message("remember teh milk")
    await harness.send_message("remember the milk", key="e1", platform_id=first, edited=True)
    await harness.send_message("remember the milk", key="e2", platform_id=first, edited=True)
    assert await open_inputs(harness) == ["remember the milk"]
    reported = [
        event.data for event in await harness.list_events() if event.type is EventType.MESSAGE_RECEIVED
    ]
    assert [one.get("edited", False) for one in reported] == [False, True]
    assert reported[0]["message"] == reported[1]["message"]


async def list_files(harness: IngressHarness) -> list[list[str]]:
    """Return the references of the files of each open turn."""
    async with harness.database.read() as connection:
        return [
            [one["ref"] for one in await messages.list_attachments(connection, turn.id)]
            for turn in await harness.list_open_turns()
        ]


async def test_an_edit_replaces_a_file(harness: IngressHarness) -> None:
    """The turn that waits gets the new file, a started one is followed by it; the same file is no change."""
    old, new, last = (attachment(name) for name in ("old.txt", "new.txt", "last.txt"))
    first = await harness.send_message("read this", attachments=(old,))
    edit: dict[str, Any] = {"platform_id": first, "edited": True}
    await harness.send_message("read this", key="e1", attachments=(replace(old, ref="again"),), **edit)
    assert await list_files(harness) == [["ref-old.txt"]]
    await harness.send_message("read this", key="e2", attachments=(new,), **edit)
    assert await list_files(harness) == [["ref-new.txt"]]
    await harness.start_first_turn()
    await harness.send_message("read this", key="e3", attachments=(last,), **edit)
    assert await list_files(harness) == [["ref-new.txt"], ["ref-last.txt"]]


async def test_an_edit_of_an_albums_caption_keeps_its_pictures(harness: IngressHarness) -> None:
    """The edit has one of them; if that is another one now, it replaces the picture of the same name."""
    pictures = [attachment(name) for name in ("1.jpg", "2.jpg")]
    first = await harness.send_message("these", attachments=tuple(pictures))
    edit: dict[str, Any] = {"platform_id": first, "edited": True}
    await harness.send_message("those", key="e1", attachments=(pictures[0],), **edit)
    assert await list_files(harness) == [["ref-1.jpg", "ref-2.jpg"]]
    other = replace(pictures[0], size=99, ref="other")
    await harness.send_message("those", key="e2", attachments=(other,), **edit)
    assert await list_files(harness) == [["other", "ref-2.jpg"]]
    assert await open_inputs(harness) == ["those"]


async def test_a_deleted_message_takes_its_file_out_of_the_turn(harness: IngressHarness) -> None:
    """The other messages of the turn stay, with their files."""
    await harness.send_message("first")
    await harness.send_command("queue", "collect")
    await harness.send_message("keep this", attachments=(attachment("kept.txt"),))
    gone = await harness.send_message("not this", attachments=(attachment("gone.txt"),))
    assert await list_files(harness) == [[], ["ref-kept.txt", "ref-gone.txt"]]
    await harness.receive(MessageDeleted(key="d1", address=harness.address(), platform_id=gone))
    assert (await open_inputs(harness))[1] == "keep this"
    assert await list_files(harness) == [[], ["ref-kept.txt"]]


async def test_an_edit_keeps_the_file_of_the_quoted_message(harness: IngressHarness) -> None:
    """It replaces the file of the edited message alone."""
    quoted = QuotedMessage(author=BOB, text="", attachments=(attachment("quoted.txt"),))
    said: dict[str, Any] = {"quoted": quoted, "attachments": (attachment("old.txt"),)}
    first = await harness.send_message("compare", **said)
    edited = said | {"platform_id": first, "edited": True, "attachments": (attachment("new.txt"),)}
    await harness.send_message("compare", key="e1", **edited)
    assert await list_files(harness) == [["ref-new.txt", "ref-quoted.txt"]]


async def test_an_edit_of_a_started_turn_is_submitted_again(harness: IngressHarness) -> None:
    """Once the turn runs, the corrected message becomes the next one; a repeated edit does not."""
    first = await harness.send_message("add 1 and 1")
    await harness.start_first_turn()
    await harness.send_message("add 1 and 2", key="e1", platform_id=first, edited=True)
    await harness.send_message("add 1 and 2", key="e1", platform_id=first, edited=True)
    await harness.send_message("add 1 and 2", key="e2", platform_id=first, edited=True)
    assert await open_inputs(harness) == ["add 1 and 1", "add 1 and 2"]


async def test_edits_that_are_none_of_ours_change_nothing(harness: IngressHarness) -> None:
    """An edit by another user, of an unaddressed message, or into a command is ignored."""
    first = await harness.send_message("mine")
    await harness.send_message("theirs", key="e1", by=BOB, platform_id=first, edited=True)
    await harness.send_message("chatter", key="e2", platform_id="99", edited=True, **in_group())
    await harness.send_message("/new", key="e3", platform_id="98", edited=True)
    assert await open_inputs(harness) == ["mine"]
    await harness.send_message(
        "@bot now", key="e4", platform_id="97", edited=True, **in_group(mentions_bot=True)
    )
    assert await open_inputs(harness) == ["mine", "@bot now"]


async def test_a_message_of_an_earlier_conversation_can_be_edited(harness: IngressHarness) -> None:
    """After `/new` an edit still finds its message, and what waits there is changed there."""
    first = await harness.send_message("old")
    old = await harness.get_conversation()
    await harness.send_command("new")
    await harness.send_message("newer", key="e1", platform_id=first, edited=True)
    async with harness.database.read() as connection:
        kept = await messages.get_by_platform_id(connection, harness.address(), first)
    assert kept is not None
    assert (kept.conversation, kept.text) == (old.id, "newer")


async def test_what_is_needed_to_fetch_a_file_is_kept_and_not_shown(harness: IngressHarness) -> None:
    """The turn has a file's ref and channel; readers of the stream see name, type and size."""
    await harness.send_message("look", attachments=(attachment("a.txt"),))
    (turn,) = await harness.list_open_turns()
    async with harness.database.read() as connection:
        (kept,) = await messages.list_attachments(connection, turn.id)
    shown = {"name": "a.txt", "type": "text/plain", "size": 3}
    assert kept == shown | {"ref": "ref-a.txt", "channel": harness.channel_context.record.id}
    (reported,) = [event for event in await harness.list_events() if event.type is EventType.MESSAGE_RECEIVED]
    assert reported.data["files"] == [shown]


async def test_a_flood_is_refused_once_and_does_not_come_back(database: Database) -> None:
    """Beyond the rate one refusal is sent; the rest is dropped for good; `/stop` and others pass."""
    now = [0.0]
    harness = await open_ingress_harness(database, clock=lambda: now[0])
    context = {"messages_per_minute": 2}
    for number in range(6):
        await harness.send_message(f"m{number}", key=f"flood{number}", context=context)
    assert await open_inputs(harness) == ["m0", "m1"]
    (refusal,) = await harness.list_delivery_bodies()
    assert "2 messages per minute" in refusal
    await harness.send_message("calm", by=BOB, context=context)
    await harness.send_message("/stop", context=context)
    assert all(turn.cancel for turn in await harness.list_open_turns())
    now[0] = 3600.0
    await harness.send_message("m4", key="flood4", context=context)
    await harness.send_message("later", context=context)
    assert await open_inputs(harness) == ["m0", "m1", "calm", "later"]


async def test_a_slash_command_of_an_unknown_sender_is_answered_privately(harness: IngressHarness) -> None:
    """The pairing code goes to the command's sender, and nothing is sent to the room."""
    command = Command(
        key="c",
        address=harness.address(),
        author=Author(id="9"),
        name="help",
        rest="",
        sent_at=NOW,
        token="t",
    )
    await harness.receive(command, allow=("pairing",))
    assert "dovecote channels pair chat" in harness.replies[0]
    await harness.receive(replace(command, key="again"), allow=("pairing",))
    assert harness.replies[1] == harness.replies[0]
    assert await harness.list_delivery_bodies() == []


async def test_a_new_conversation_goes_to_the_agent_that_the_channel_has_now(harness: IngressHarness) -> None:
    """The supervisor notices a changed channel later; the agent it still names may be deleted already."""
    channel, second = harness.channel_context.record, harness.agents["second"]
    async with harness.database.begin() as connection:
        await records.update_record(
            connection, replace(channel, config={**channel.config, "agent": second.id})
        )
        await records.delete_record(connection, harness.account, harness.agents["first"].id)
    await harness.send_message("hi")
    assert (await harness.get_conversation()).agent == second.id


async def test_a_room_without_its_agent_is_notified_and_served(harness: IngressHarness) -> None:
    """Removing the agent that a room names leaves the room to the channel's agent."""
    second = harness.agents["second"]
    context = replace(harness.channel_context, rooms={"room": RoomSettings(agent=second.id)})
    async with harness.database.begin() as connection:
        await records.delete_record(connection, harness.account, second.id)
    await harness.send_message("hi", context={"rooms": context.rooms})
    assert (await harness.get_conversation()).agent == harness.agents["first"].id


async def test_a_message_revives_a_dead_chat(harness: IngressHarness) -> None:
    """The chat from which a message comes is marked as alive; other chats stay dead."""
    rooms = [harness.address(room).destination for room in ("room", "other")]
    await harness.send_message("before")
    async with harness.database.begin() as connection:
        for room in rooms:
            await destinations.mark_dead(connection, room, account=harness.account, why="blocked")
    await harness.send_message("after")
    async with harness.database.read() as connection:
        reasons = [(await destinations.get_state(connection, room)).dead_reason for room in rooms]
    assert reasons == [None, "blocked"]
    await harness.send_message("the first", address=harness.address("other"))
    async with harness.database.read() as connection:
        assert (await destinations.get_state(connection, rooms[1])).dead_reason is None


async def test_a_thread_is_idle_once_its_turns_have_ended(harness: IngressHarness) -> None:
    """A turn that was cancelled and has not ended is still the next one of its conversation."""

    async def is_idle() -> bool:
        address = harness.address()
        async with harness.database.read() as connection:
            found = await conversations.get_thread(
                connection, harness.account, address.key, destination=address.destination
            )
        assert found is not None
        return found.is_idle

    await harness.send_message("work")
    assert not await is_idle()
    running = await harness.start_first_turn()
    await harness.send_command("stop")
    assert harness.cancelled == [running.id]
    assert not await is_idle()
    async with harness.database.begin() as connection:
        fence = await conversations.raise_fence(connection, running.conversation)
        assert await turns.settle(connection, running, fence=fence, state=TurnState.CANCELLED)
    assert await is_idle()
