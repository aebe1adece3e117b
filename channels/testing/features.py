"""What a channel promises about the features that it declares, and about each kind of update."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from channels.errors import ChannelError, Unsupported
from channels.message import (
    Button,
    ButtonPress,
    Command,
    DraftText,
    Message,
    Reaction,
    Reply,
    StatusReaction,
    StepState,
    ToolStep,
    ToolSteps,
    Update,
)
from channels.port import ChannelFeature, ChannelPlugin, Connection
from channels.testing.connections import UpdateRecorder, receiving
from channels.testing.rig import ChannelRig

_numbers = count()
STEP = ToolStep(id="call_1", title="bash: make")
UNDECLARED = (
    *(ChannelFeature.REACT, ChannelFeature.STREAM, ChannelFeature.STEPS),
    *(ChannelFeature.FIND, ChannelFeature.DELETE, ChannelFeature.CONFIDENTIAL),
)
"""Features whose methods raise Unsupported if they are not declared."""


def new_key() -> str:
    """Return a key that no other delivery has."""
    return f"dlv_feature{next(_numbers)}.0"


def needs(plugin: ChannelPlugin, feature: ChannelFeature) -> None:
    """Skip the test for channels without a feature."""
    if feature not in plugin.features:
        pytest.skip(f"the channel does not declare {feature.value}")


async def wait_for_update(recorder: UpdateRecorder, kind: type[Update]) -> Update:
    """Return the first update of a kind; raises TimeoutError after 20 s."""
    async with asyncio.timeout(30):
        while True:
            found = next((update for update in recorder.updates if isinstance(update, kind)), None)
            if found is not None:
                return found
            await recorder.wait(len(recorder.updates) + 1)


class ChannelFeatureContract:
    """What a channel promises about its declared features and about each kind of update."""

    @pytest.mark.parametrize("feature", UNDECLARED)
    async def test_an_undeclared_feature_raises(
        self, plugin: ChannelPlugin, connection: Connection, user_message: Message, feature: ChannelFeature
    ) -> None:
        """A method of an undeclared feature raises Unsupported."""
        if feature in plugin.features:
            pytest.skip("declared: the tests below show that it works")
        channel, address, since = connection.sender, user_message.address, datetime.now(UTC)
        steps = ToolSteps(key=new_key(), steps=(STEP,))
        calls: dict[ChannelFeature, Callable[[], Awaitable[object]]] = {
            ChannelFeature.REACT: lambda: channel.react(
                address, user_message.platform_id, StatusReaction.SEEN
            ),
            ChannelFeature.STREAM: lambda: channel.update_draft(address, DraftText(key=new_key(), text="x")),
            ChannelFeature.DELETE: lambda: channel.delete(address, user_message.platform_id),
            ChannelFeature.STEPS: lambda: channel.show_steps(address, steps),
            ChannelFeature.FIND: lambda: channel.find(address, new_key(), since=since),
            ChannelFeature.CONFIDENTIAL: lambda: channel.reply_confidentially(user_message, "for you"),
        }
        with pytest.raises(Unsupported):
            await calls[feature]()
        if feature is ChannelFeature.REACT:
            with pytest.raises(Unsupported):
                await channel.add_reaction(address, user_message.platform_id, "👍")

    async def test_a_command_is_received_as_one(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A command has a lower-case name without a slash, however the platform writes it."""
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.send_command("status")
            command = await wait_for_update(recorder, Command)
        assert isinstance(command, Command)
        assert (command.name, command.rest, command.address.room) == ("status", "", user_message.address.room)
        assert command.author.id == user_message.author.id
        if ChannelFeature.BUTTONS in plugin.features:
            await connection.sender.reply_privately(command, "fine")

    async def test_an_edited_message_is_received_as_one(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """The edit has the message's id, a key of its own and the new text."""
        needs(plugin, ChannelFeature.EDITS)
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.edit_message(user_message.platform_id, "hello again")
            async with asyncio.timeout(30):
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

    async def test_the_bots_reactions_replace_each_other(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A message has one reaction of the bot; setting it again succeeds, and None removes it."""
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

    async def test_an_emoji_is_added_to_a_message(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """It is added once, and stands beside the status unless a message has one reaction of the bot."""
        needs(plugin, ChannelFeature.REACT)
        sender, address, message = connection.sender, user_message.address, user_message.platform_id
        names = [plugin.emoji.name_of(emoji) for emoji in ("🎉", "👍")]
        await sender.react(address, message, StatusReaction.SEEN)
        for name in (names[0], *names):
            assert name is not None
            await sender.add_reaction(address, message, name)
        added = rig.reactions(message)
        assert len(added) == (1 if plugin.emoji.is_single else 3)
        if not plugin.emoji.is_single:
            await sender.react(address, message, StatusReaction.DONE)
            assert len(rig.reactions(message)) == 3
            assert set(rig.reactions(message)) >= {*names}
        with pytest.raises(ChannelError):
            await sender.add_reaction(address, message, "no such emoji")

    async def test_a_persons_reaction_is_received(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """It names the message, the person, and whether it was added or removed."""
        needs(plugin, ChannelFeature.REACTIONS)
        sent = await connection.sender.send(user_message.address, Reply(text="done", key=new_key()))
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.say("listening?")
            await recorder.wait(1)
            for is_added in (True, False):
                await rig.react(sent.platform_id, added=is_added)
            async with asyncio.timeout(30):
                while len([update for update in recorder.updates if isinstance(update, Reaction)]) < 2:
                    await recorder.wait(len(recorder.updates) + 1)
        added, removed = [update for update in recorder.updates if isinstance(update, Reaction)]
        assert (added.added, removed.added) == (True, False)
        assert {added.platform_id, removed.platform_id} == {sent.platform_id}
        assert (added.author.id, added.emoji, added.address.room) == (
            user_message.author.id,
            removed.emoji,
            user_message.address.room,
        )

    async def test_the_bots_message_is_deleted(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """It disappears, other messages stay, and deleting it again is no error."""
        needs(plugin, ChannelFeature.DELETE)
        channel, address = connection.sender, user_message.address
        status = await channel.send(address, Reply(text="working", key=new_key()))
        await channel.send(address, Reply(text="done", key=new_key()))
        for _ in range(2):
            await channel.delete(address, status.platform_id)
        assert [one.text for one in rig.visible_messages()] == ["done"]

    async def test_a_confidential_reply_is_for_one_person(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A message and a command are answered so that the room sees nothing."""
        needs(plugin, ChannelFeature.CONFIDENTIAL)
        await rig.open_private_chat()
        await connection.sender.reply_confidentially(user_message, "for you")
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.send_command("status")
            command = await wait_for_update(recorder, Command)
        assert isinstance(command, Command)
        await connection.sender.reply_confidentially(command, "and this")
        assert rig.confidential_texts() == ["for you", "and this"]
        assert [
            one for one in rig.visible_messages() if one.room == user_message.address.room and one.text
        ] == []

    async def test_a_draft_ends_as_one_message(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """The final text is an edit of the draft that was returned, or a message when none was."""
        needs(plugin, ChannelFeature.STREAM)
        channel, key, shown, platform_id = connection.sender, new_key(), "", None
        for text in ("Let me", "Let me look", "Let me look at **that**"):
            draft = DraftText(
                key=key,
                text=text,
                previous_text=shown,
                platform_id=platform_id,
                recipient_id=user_message.author.id,
            )
            sent = await channel.update_draft(user_message.address, draft)
            shown, platform_id = text, sent.platform_id if sent else None
        final = Reply(text="Let me look at that: done.", key=key)
        if platform_id is None:
            await channel.send(user_message.address, final)
        else:
            await channel.edit(user_message.address, platform_id, final)
        assert [one.text for one in rig.visible_messages()] == ["Let me look at that: done."]

    async def test_tool_calls_are_shown_beside_the_reply(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """They are one message, which is not the reply and does not hide it."""
        needs(plugin, ChannelFeature.STEPS)
        channel, steps = (
            connection.sender,
            ToolSteps(key=new_key(), steps=(STEP,), recipient_id=user_message.author.id),
        )
        sent = await channel.show_steps(user_message.address, steps)
        assert sent is not None
        done = replace(STEP, state=StepState.DONE)
        last = replace(steps, steps=(done,), platform_id=sent.platform_id, has_ended=True)
        await channel.show_steps(user_message.address, last)
        await channel.send(user_message.address, Reply(text="made", key=new_key()))
        assert [one.text for one in rig.visible_messages() if one.text] == ["made"]

    async def test_a_button_may_ask_for_text(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """The text that the person enters arrives with the press."""
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
        assert (press.data, press.comment, press.author.id) == (
            "apr_1:no",
            "too risky",
            user_message.author.id,
        )
        assert press.platform_id == sent.platform_id

    async def test_a_send_can_be_looked_up(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A key that was sent is found as its message; an unknown key is not found."""
        needs(plugin, ChannelFeature.FIND)
        rig.show_keys()
        since, key = datetime.now(UTC) - timedelta(minutes=5), new_key()
        sent = await connection.sender.send(user_message.address, Reply(text="once", key=key))
        assert await connection.sender.find(user_message.address, key, since=since) == sent
        assert await connection.sender.find(user_message.address, new_key(), since=since) is None

    async def test_a_repeated_send_is_carried_out_once(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """Two sends with one key are one message."""
        needs(plugin, ChannelFeature.IDEMPOTENT_SEND)
        reply = Reply(text="once", key=new_key())
        sent = [await connection.sender.send(user_message.address, reply) for _ in range(2)]
        assert sent[0] == sent[1]
        assert [one.text for one in rig.visible_messages()] == ["once"]
