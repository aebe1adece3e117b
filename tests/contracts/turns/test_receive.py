"""What the reception makes of messages, edits, commands and floods, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from channels.message import Author, Command
from channels.settings import RoomSettings
from delivery.database.engine import Database
from delivery.events.event import Kind
from gateway.store.accounts import records
from gateway.store.conversations import conversations, messages
from ingress_harness import ANN, BOB, NOW, Stage, attachment, grouped, open_stage


@pytest.fixture
async def stage(database: Database) -> Stage:
    """A reception that lets anyone in."""
    return await open_stage(database)


async def inputs(stage: Stage, room: str = "room") -> list[str]:
    """Return what the open turns of a room ask."""
    return [turn.input for turn in await stage.line(room)]


async def test_an_unknown_command_is_said_to_the_agent(stage: Stage) -> None:
    """`/weather today` is a word for the agent; a command of ours is obeyed and answered alone."""
    await stage.command("weather", "today")
    assert await inputs(stage) == ["/weather today"]
    assert stage.answered == []
    await stage.command("status")
    assert stage.answered[0].startswith("About to begin with")
    assert await inputs(stage) == ["/weather today"]
    assert await stage.owed() == []


async def test_a_command_without_a_token_is_answered_in_the_conversation(stage: Stage) -> None:
    """Where a platform wants no answer to the command itself, the conversation is told."""
    await stage.command("help", token="")
    assert stage.answered == []
    (owed,) = await stage.owed()
    assert "/queue" in owed


async def test_the_same_update_is_taken_once(stage: Stage) -> None:
    """A platform's repetition of a message or a command changes nothing."""
    for _ in range(3):
        await stage.say("hello", key="same")
        await stage.command("weather", key="once")
    assert await inputs(stage) == ["hello", "/weather"]


@pytest.mark.parametrize(
    ("policy", "heard"),
    [
        ("mention", ["@bot hi"]),
        ("always", ["hi", "@bot hi", "!ls"]),
        ("command", ["!ls"]),
    ],
)
async def test_a_room_says_which_messages_are_for_the_bot(
    stage: Stage, policy: str, heard: list[str]
) -> None:
    """A room's own policy goes before the channel's; a command is always meant."""
    rooms = {"room": RoomSettings.model_validate({"groups": policy})}
    desk = {"rooms": rooms, "groups": "mention" if policy == "always" else "always"}
    await stage.say("hi", desk=desk, **grouped())
    await stage.say("@bot hi", desk=desk, **grouped(mentions_bot=True))
    await stage.say("!ls", desk=desk, **grouped())
    await stage.bring(
        Command(key="word", address=stage.address(), author=ANN, name="weather", rest="", sent_at=NOW),
        **desk,
    )
    assert await inputs(stage) == [*heard, "/weather"]


async def test_a_room_names_its_agent(stage: Stage) -> None:
    """New conversations of a room go to its agent; a room whose agent is gone to the channel's."""
    second = stage.agents["second"]
    rooms = {
        "room": RoomSettings(agent=second.id),
        "gone": RoomSettings(agent="agt_gone"),
    }
    await stage.say("hi", desk={"rooms": rooms})
    await stage.say("hi", desk={"rooms": rooms}, address=stage.address("gone"))
    assert (await stage.talk("room")).agent == second.id
    assert (await stage.talk("gone")).agent == stage.agents["first"].id


async def test_stop_is_heard_without_a_mention_where_the_bot_works(stage: Stage) -> None:
    """In a group `/stop` ends what runs, unmentioned; where nothing was ever asked it opens nothing."""
    await stage.say("@bot work", **grouped(mentions_bot=True))
    running = await stage.begin()
    await stage.say("/stop", **grouped())
    assert stage.cancelled == [running.id]
    await stage.say("/stop", **grouped(address=stage.address("elsewhere")))
    assert await inputs(stage, "elsewhere") == []
    async with stage.database.read() as connection:
        found = await conversations.at_address(connection, stage.account, stage.address("elsewhere").key)
    assert found is None
    await stage.say("/stop", by=Author(id="9"), desk={"allow": ("pairing",)}, **grouped())
    assert not any("I do not know you" in owed for owed in await stage.owed())


async def test_a_stop_ends_what_runs_and_what_waits(stage: Stage) -> None:
    """All of it is asked to end, and only the one at work will say so."""
    for text in ("one", "two", "three"):
        await stage.say(text)
    await stage.begin()
    await stage.command("stop")
    assert stage.answered == ["Stopping 3 turns."]
    line = await stage.line()
    assert [(turn.cancel, turn.cancel_why) for turn in line] == [
        (True, "stopped"),
        (True, "stopped in line"),
        (True, "stopped in line"),
    ]


async def test_an_edit_changes_what_waits(stage: Stage) -> None:
    """The turn asks what the message says now, and an event tells of it; the same text is no change."""
    first = await stage.say("remember teh milk")
    await stage.say("remember the milk", key="e1", platform_id=first, edited=True)
    await stage.say("remember the milk", key="e2", platform_id=first, edited=True)
    assert await inputs(stage) == ["remember the milk"]
    told = [event.data for event in await stage.told() if event.type is Kind.MESSAGE_RECEIVED]
    assert [one.get("edited", False) for one in told] == [False, True]
    assert told[0]["message"] == told[1]["message"]


async def test_an_edit_of_what_was_begun_is_asked_anew(stage: Stage) -> None:
    """Once the turn runs, the corrected message becomes the next one; a repeated edit does not."""
    first = await stage.say("add 1 and 1")
    await stage.begin()
    await stage.say("add 1 and 2", key="e1", platform_id=first, edited=True)
    await stage.say("add 1 and 2", key="e1", platform_id=first, edited=True)
    await stage.say("add 1 and 2", key="e2", platform_id=first, edited=True)
    assert await inputs(stage) == ["add 1 and 1", "add 1 and 2"]


async def test_edits_that_are_none_of_ours_change_nothing(stage: Stage) -> None:
    """An edit by another person, of a message nobody meant for us, or into a command is ignored."""
    first = await stage.say("mine")
    await stage.say("theirs", key="e1", by=BOB, platform_id=first, edited=True)
    await stage.say("chatter", key="e2", platform_id="99", edited=True, **grouped())
    await stage.say("/new", key="e3", platform_id="98", edited=True)
    assert await inputs(stage) == ["mine"]
    await stage.say("@bot now", key="e4", platform_id="97", edited=True, **grouped(mentions_bot=True))
    assert await inputs(stage) == ["mine", "@bot now"]


async def test_a_message_of_an_earlier_conversation_can_be_edited(stage: Stage) -> None:
    """After `/new` an edit still finds its message, and what waits there is changed there."""
    first = await stage.say("old")
    old = await stage.talk()
    await stage.command("new")
    await stage.say("newer", key="e1", platform_id=first, edited=True)
    async with stage.database.read() as connection:
        kept = await messages.at_platform(connection, stage.address(), first)
    assert kept is not None
    assert (kept.conversation, kept.text) == (old.id, "newer")


async def test_what_is_needed_to_fetch_a_file_is_kept_and_not_shown(stage: Stage) -> None:
    """The turn knows a file's ref and channel; those who read the stream see name, type and size."""
    await stage.say("look", attachments=(attachment("a.txt"),))
    (turn,) = await stage.line()
    async with stage.database.read() as connection:
        (kept,) = await messages.attachments_of(connection, turn.id)
    shown = {"name": "a.txt", "type": "text/plain", "size": 3}
    assert kept == shown | {"ref": "ref-a.txt", "channel": stage.desk.record.id}
    (told,) = [event for event in await stage.told() if event.type is Kind.MESSAGE_RECEIVED]
    assert told.data["files"] == [shown]


async def test_a_flood_is_refused_once_and_does_not_come_back(database: Database) -> None:
    """Beyond the rate one refusal is said; the rest is dropped for good; `/stop` and others pass."""
    now = [0.0]
    stage = await open_stage(database, clock=lambda: now[0])
    desk = {"messages_per_minute": 2}
    for number in range(6):
        await stage.say(f"m{number}", key=f"flood{number}", desk=desk)
    assert await inputs(stage) == ["m0", "m1"]
    (refusal,) = await stage.owed()
    assert "2 messages a minute" in refusal
    await stage.say("calm", by=BOB, desk=desk)
    await stage.say("/stop", desk=desk)
    assert all(turn.cancel for turn in await stage.line())
    now[0] = 3600.0
    await stage.say("m4", key="flood4", desk=desk)
    await stage.say("later", desk=desk)
    assert await inputs(stage) == ["m0", "m1", "calm", "later"]


async def test_a_strangers_slash_command_is_answered_to_them_alone(stage: Stage) -> None:
    """The pairing code goes to who gave the command, and nothing is said in the room."""
    command = Command(
        key="c", address=stage.address(), author=Author(id="9"), name="help", rest="", sent_at=NOW, token="t"
    )
    await stage.bring(command, allow=("pairing",))
    assert "dovecote channels pair chat" in stage.answered[0]
    await stage.bring(replace(command, key="again"), allow=("pairing",))
    assert stage.answered[1] == stage.answered[0]
    assert await stage.owed() == []


async def test_a_room_without_its_agent_is_told_of_and_served(stage: Stage) -> None:
    """Removing the agent that a room names leaves the room to the channel's agent."""
    second = stage.agents["second"]
    desk = replace(stage.desk, rooms={"room": RoomSettings(agent=second.id)})
    async with stage.database.begin() as connection:
        await records.remove(connection, stage.account, second.id)
    await stage.say("hi", desk={"rooms": desk.rooms})
    assert (await stage.talk()).agent == stage.agents["first"].id
