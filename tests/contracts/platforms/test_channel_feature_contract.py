"""What every installed channel promises about the features it declares, and about kinds of update."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import count

import pytest

from channel_rigs import ChannelRig, UpdateRecorder, receiving
from channels.errors import Unsupported
from channels.message import (
    Button,
    ButtonPress,
    Command,
    DraftText,
    Message,
    Reaction,
    Reply,
    StatusReaction,
    Update,
)
from channels.port import ChannelFeature, ChannelPlugin, Connection
from channels.registry import GROUP

MODULES = {entry.name: entry.module for entry in entry_points(group=GROUP)}
KINDS = ["message", "edit", "reaction", "command", "button press", "file"]

_numbers = count()


def new_key() -> str:
    """Return a key that no other delivery has."""
    return f"dlv_feature{next(_numbers)}.0"


def needs(plugin: ChannelPlugin, feature: ChannelFeature) -> None:
    """Skip for channels that do not have a feature."""
    if feature not in plugin.features:
        pytest.skip(f"the channel does not declare {feature.value}")


async def wait_for_update(recorder: UpdateRecorder, kind: type[Update]) -> Update:
    """Wait for an update of a kind."""
    async with asyncio.timeout(20):
        while True:
            found = next((update for update in recorder.updates if isinstance(update, kind)), None)
            if found is not None:
                return found
            await recorder.wait(len(recorder.updates) + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_a_sample_of_every_kind(plugin: ChannelPlugin, kind: str) -> None:
    """Each kind of update has a recorded payload beside its parser."""
    assert kind in {_kind_of(sample) for sample in _expected(plugin)} | {
        "file" for sample in _expected(plugin) if sample.get("attachments")
    }


def _expected(plugin: ChannelPlugin) -> list[dict[str, object]]:
    folder = files(MODULES[plugin.name]).joinpath("samples")
    return [json.loads(path.read_text())["expected"] for path in folder.iterdir()]


def _kind_of(sample: dict[str, object]) -> str:
    if sample["type"] == "Message":
        return "edit" if sample["edited"] else "message"
    return {"Reaction": "reaction", "Command": "command", "ButtonPress": "button press"}.get(
        str(sample["type"]), ""
    )


@pytest.mark.parametrize("feature", [ChannelFeature.REACT, ChannelFeature.STREAM, ChannelFeature.FIND])
async def test_an_undeclared_feature_raises(
    plugin: ChannelPlugin, connection: Connection, user_message: Message, feature: ChannelFeature
) -> None:
    """A method of an undeclared feature raises Unsupported, before anything is sent."""
    if feature in plugin.features:
        pytest.skip("declared: the tests below show that it works")
    channel, address, since = connection.sender, user_message.address, datetime.now(UTC)
    calls: dict[ChannelFeature, Callable[[], Awaitable[object]]] = {
        ChannelFeature.REACT: lambda: channel.react(address, user_message.platform_id, StatusReaction.SEEN),
        ChannelFeature.STREAM: lambda: channel.update_draft(address, DraftText(key=new_key(), text="x")),
        ChannelFeature.FIND: lambda: channel.find(address, new_key(), since=since),
    }
    with pytest.raises(Unsupported):
        await calls[feature]()


async def test_an_order_is_a_command(connection: Connection, rig: ChannelRig, user_message: Message) -> None:
    """However the platform spells it: a lower-case word without a slash, and what follows it."""
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.send_command("status")
        command = await wait_for_update(recorder, Command)
    assert isinstance(command, Command)
    assert (command.name, command.rest, command.address.room) == ("status", "", user_message.address.room)
    assert command.author.id == user_message.author.id
    await connection.sender.reply_privately(command, "fine")


async def test_a_changed_message_is_told_as_one(
    connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """The change has the message's id, a key of its own and the text as it is now."""
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.edit_message(user_message.platform_id, "hello again")
        async with asyncio.timeout(20):
            while not [update for update in recorder.updates if getattr(update, "edited", False)]:
                await recorder.wait(len(recorder.updates) + 1)
    update = recorder.updates[-1]
    assert isinstance(update, Message)
    assert (update.text, update.platform_id, update.address) == (
        "hello again",
        user_message.platform_id,
        user_message.address,
    )
    assert update.key != user_message.key


async def test_our_signs_replace_each_other(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """A message has one reaction of the bot at a time; repeating it succeeds, and None removes it."""
    needs(plugin, ChannelFeature.REACT)
    seen = []
    for reaction in (
        StatusReaction.SEEN,
        StatusReaction.SEEN,
        StatusReaction.DONE,
        StatusReaction.FAILED,
        None,
        None,
    ):
        await connection.sender.react(user_message.address, user_message.platform_id, reaction)
        seen.append(rig.reactions(user_message.platform_id))
    assert [len(reactions) for reactions in seen] == [1, 1, 1, 1, 0, 0]
    assert seen[0] == seen[1]
    assert len({reactions[0] for reactions in seen[:4]}) == 3


async def test_a_persons_sign_is_told(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """It names the message, the person, and whether it came or went."""
    needs(plugin, ChannelFeature.REACT)
    sent = await connection.sender.send(user_message.address, Reply(text="done", key=new_key()))
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.say("listening?")
        await recorder.wait(1)
        for added in (True, False):
            await rig.react(sent.platform_id, added=added)
        async with asyncio.timeout(20):
            while len([update for update in recorder.updates if isinstance(update, Reaction)]) < 2:
                await recorder.wait(len(recorder.updates) + 1)
    came, went = [update for update in recorder.updates if isinstance(update, Reaction)]
    assert (came.added, went.added) == (True, False)
    assert {came.platform_id, went.platform_id} == {sent.platform_id}
    assert (came.author.id, came.emoji, came.address.room) == (
        user_message.author.id,
        went.emoji,
        user_message.address.room,
    )


async def test_what_is_shown_ends_as_one_message(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """A caller follows what `show` returns: the end is an edit of it, or a message like any other."""
    needs(plugin, ChannelFeature.STREAM)
    channel, key, shown, platform_id = connection.sender, new_key(), "", None
    for text in ("Let me", "Let me look", "Let me look at **that**"):
        showing = DraftText(
            key=key,
            text=text,
            previous_text=shown,
            platform_id=platform_id,
            recipient_id=user_message.author.id,
        )
        sent = await channel.update_draft(user_message.address, showing)
        shown, platform_id = text, sent.platform_id if sent else None
    final = Reply(text="Let me look at that: done.", key=key)
    if platform_id is None:
        await channel.send(user_message.address, final)
    else:
        await channel.edit(user_message.address, platform_id, final)
    assert [one.text for one in rig.visible_messages()] == ["Let me look at that: done."]


async def test_a_button_may_ask_for_words(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """What the person writes comes with the press."""
    needs(plugin, ChannelFeature.PROMPTS)
    button = Button(label="Deny", data="apr_1:no", prompt="Why not?")
    sent = await connection.sender.send(
        user_message.address, Reply(text="May I?", key=new_key(), buttons=(button,))
    )
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.press_with_text(sent.platform_id, button, "too risky")
        press = await wait_for_update(recorder, ButtonPress)
    assert isinstance(press, ButtonPress)
    assert (press.data, press.comment, press.author.id) == ("apr_1:no", "too risky", user_message.author.id)
    assert press.platform_id == sent.platform_id


async def test_a_send_can_be_looked_up(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """The lookup returns whether a key was used, and the message; an unknown key was not used."""
    needs(plugin, ChannelFeature.FIND)
    rig.show_keys()
    since, key = datetime.now(UTC) - timedelta(minutes=5), new_key()
    sent = await connection.sender.send(user_message.address, Reply(text="once", key=key))
    assert await connection.sender.find(user_message.address, key, since=since) == sent
    assert await connection.sender.find(user_message.address, new_key(), since=since) is None


async def test_a_send_whose_key_is_hidden_is_not_reported_as_missing(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """A platform that does not show keys cannot tell, so no second copy is sent on its word."""
    needs(plugin, ChannelFeature.FIND)
    rig.hide_keys()
    since, key = datetime.now(UTC) - timedelta(minutes=5), new_key()
    await connection.sender.send(user_message.address, Reply(text="once", key=key))
    with pytest.raises(Unsupported):
        await connection.sender.find(user_message.address, key, since=since)


async def test_a_repeated_send_is_carried_out_once(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """The same key is the same message."""
    needs(plugin, ChannelFeature.IDEMPOTENT_SEND)
    reply = Reply(text="once", key=new_key())
    sent = [await connection.sender.send(user_message.address, reply) for _ in range(2)]
    assert sent[0] == sent[1]
    assert [one.text for one in rig.visible_messages()] == ["once"]
