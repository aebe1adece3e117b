"""What a channel promises about sending, errors and secrets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
from structlog.testing import capture_logs

from channels.commonmark.markup import split
from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Unauthorized,
    Undeliverable,
    Unreachable,
    Unsupported,
)
from channels.message import Address, Button, ButtonPress, File, Message, Reply
from channels.port import ChannelFeature, ChannelPlugin, Connection, Sender
from channels.supervision import open_channel
from channels.testing.connections import CHANNEL, UpdateRecorder, open_connection, receive_message, receiving
from channels.testing.memory_state import MemoryChannelState
from channels.testing.rig import ChannelRig
from egress.guard import TRUSTED

_numbers = count()


def make_reply(text: str, **others: Any) -> Reply:
    """Return a reply with a key of its own, because a platform may recognise a repeated key."""
    return Reply(text=text, key=f"dlv_{next(_numbers)}.0", **others)


def _attachments(recorder: UpdateRecorder) -> tuple[Any, ...]:
    return next(
        (
            update.attachments
            for update in recorder.updates
            if isinstance(update, Message) and update.attachments
        ),
        (),
    )


async def _fetch(channel: Sender, ref: str) -> bytes:
    return b"".join([chunk async for chunk in channel.download(ref)])


def _make_press(message: Message) -> ButtonPress:
    return ButtonPress(key="k", address=message.address, author=message.author, data="d", token="none")


class SendingContract:
    """What a channel promises about sending, errors and secrets."""

    async def test_a_message_is_received_with_an_address_that_answers(
        self, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A message of a person arrives, and a reply to its address appears in the room."""
        assert (user_message.text, user_message.address.channel) == ("hello", CHANNEL)
        sent = await connection.sender.send(
            Address.decode(user_message.address.encode()), make_reply("good day")
        )
        assert sent.platform_id
        assert [(message.room, message.text) for message in rig.visible_messages()] == [
            (user_message.address.room, "good day")
        ]

    async def test_the_reply_lands_in_its_thread(self, connection: Connection, rig: ChannelRig) -> None:
        """A message in a thread has the thread in its address, and the reply appears there."""
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            thread = await rig.say_in_thread("in here")
            (update,) = await recorder.wait(1)
        assert isinstance(update, Message)
        assert update.address.thread == thread
        await connection.sender.send(update.address, make_reply("yes"))
        assert rig.visible_messages()[-1].thread == thread

    async def test_a_long_reply_is_split_and_loses_nothing(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """The platform accepts each part of a long reply, and every line arrives."""
        count = max(600, plugin.limits.text // 20)
        lines = [f"line{number} \N{GRINNING FACE} if a<b and c>d" for number in range(count)]
        text = "Intro\n\n```python\n" + "\n".join(lines) + "\n```\n\nThe *end*."
        for part in split(text, plugin.limits.text, plugin.limits.measure):
            await connection.sender.send(user_message.address, make_reply(part))
        visible = "\n".join(message.text for message in rig.visible_messages())
        assert len(rig.visible_messages()) > 1
        assert [line for line in visible.splitlines() if line.startswith("line")] == lines

    async def test_a_rate_limit_carries_the_platforms_delay(
        self, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """RateLimited has the delay in seconds, and nothing was sent."""
        await rig.throttle(17)
        with pytest.raises(RateLimited) as caught:
            await connection.sender.send(user_message.address, make_reply("too fast"))
        assert (caught.value.retry_after, caught.value.remedy, rig.visible_messages()) == (17, "retry", [])

    async def test_a_refused_token_needs_the_operator(
        self, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """Sending and receiving both raise Unauthorized once the token is revoked."""
        await rig.revoke()
        with pytest.raises(Unauthorized) as caught:
            await connection.sender.send(user_message.address, make_reply("anyone?"))
        assert caught.value.remedy == "operator"
        async with asyncio.timeout(30):
            with pytest.raises(Unauthorized):
                await connection.receiver.run(UpdateRecorder().accept, receiving=lambda *_: None)

    async def test_opening_with_a_wrong_token_needs_the_operator(
        self, plugin: ChannelPlugin, rig: ChannelRig
    ) -> None:
        """A wrong token is reported by `open` and by the probe."""
        wrong = rig.settings(token=rig.unknown_sender)
        with pytest.raises(Unauthorized):
            async with open_connection(plugin, wrong):
                pass
        findings = await plugin.probe(plugin.settings(**wrong), TRUSTED)
        assert any(not finding.ok and finding.remedy for finding in findings)

    async def test_the_probe_finds_a_working_channel_well(
        self, plugin: ChannelPlugin, rig: ChannelRig
    ) -> None:
        """The probe of a working channel has only good results."""
        findings = await plugin.probe(plugin.settings(**rig.settings()), TRUSTED)
        assert findings
        assert all(finding.ok for finding in findings)

    async def test_a_kicked_bot_gives_up(
        self, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A send to a room that removed the bot raises Undeliverable."""
        await rig.kick()
        with pytest.raises(Undeliverable) as caught:
            await connection.sender.send(user_message.address, make_reply("hello?"))
        assert caught.value.remedy == "give_up"

    async def test_a_server_error_is_ambiguous(
        self, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A server error raises Ambiguous, and the adapter does not send again."""
        await rig.fail()
        with pytest.raises(Ambiguous):
            await connection.sender.send(user_message.address, make_reply("once"))
        assert rig.send_count() == 1

    @pytest.mark.parametrize("carried_out", [True, False])
    async def test_a_broken_connection_is_ambiguous(
        self, connection: Connection, rig: ChannelRig, user_message: Message, carried_out: bool
    ) -> None:
        """A send without a response raises Ambiguous, and the adapter does not send again."""
        await rig.cut_sending(carried_out=carried_out)
        with pytest.raises(Ambiguous):
            await connection.sender.send(user_message.address, make_reply("once"))
        assert (rig.send_count(), len(rig.visible_messages())) == (1, int(carried_out))

    async def test_a_platform_that_cannot_be_reached_was_sent_nothing(
        self, connection: Connection, rig: ChannelRig
    ) -> None:
        """A refused connection is Unreachable and not Ambiguous."""
        await rig.stop()
        with pytest.raises(Unreachable):
            await connection.sender.send(Address(channel=CHANNEL, room="-4004"), make_reply("hello?"))

    async def test_refused_markup_is_sent_as_plain_text(
        self, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A message whose markup the platform refuses is sent again as plain text."""
        if not rig.refuses_markup:
            pytest.skip("the platform refuses no markup")
        await rig.refuse_markup()
        await connection.sender.send(user_message.address, make_reply("**bold** words"))
        assert [message.text for message in rig.visible_messages()] == ["**bold** words"]

    async def test_an_edit_may_be_repeated(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A message can be edited, which removes its buttons, and the same edit again succeeds."""
        if ChannelFeature.EDIT not in plugin.features:
            pytest.skip("the channel cannot edit")
        choices = (Button(label="Yes", data="apr_1:yes"), Button(label="No", data="apr_1:no"))
        buttons = choices if ChannelFeature.BUTTONS in plugin.features else ()
        sent = await connection.sender.send(user_message.address, make_reply("first", buttons=buttons))
        assert [one.buttons for one in rig.visible_messages()] == [len(buttons)]
        for _ in range(2):
            await connection.sender.edit(user_message.address, sent.platform_id, make_reply("**second**"))
        assert [(one.text, one.buttons) for one in rig.visible_messages()] == [("second", 0)]

    async def test_a_pressed_button_is_received(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """A press names the button, the room and the person, and can be answered."""
        if ChannelFeature.BUTTONS not in plugin.features:
            pytest.skip("the channel has no buttons")
        buttons = (Button(label="Yes", data="apr_1:yes"), Button(label="No", data="apr_1:no"))
        sent = await connection.sender.send(user_message.address, make_reply("May I?", buttons=buttons))
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.press(sent.platform_id, "apr_1:no")
            async with asyncio.timeout(30):
                while not isinstance(recorder.updates[-1] if recorder.updates else None, ButtonPress):
                    await recorder.wait(len(recorder.updates) + 1)
        press = recorder.updates[-1]
        assert isinstance(press, ButtonPress)
        assert (press.data, press.address, press.author) == (
            "apr_1:no",
            user_message.address,
            user_message.author,
        )
        await connection.sender.reply_privately(press, "noted")

    async def test_files_go_both_ways(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
    ) -> None:
        """An attachment's bytes can be fetched, and a file can be sent."""
        if not {ChannelFeature.UPLOAD, ChannelFeature.DOWNLOAD} <= plugin.features:
            pytest.skip("the channel has no files")
        content = bytes(range(256)) * 1000
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.send_file(content)
            async with asyncio.timeout(30):
                while not _attachments(recorder):
                    await recorder.wait(len(recorder.updates) + 1)
        (attachment,) = _attachments(recorder)
        assert await _fetch(connection.sender, attachment.ref) == content
        file = File(name="result.bin", media_type="application/octet-stream", content=content, caption="here")
        assert (await connection.sender.upload(user_message.address, file, key="dlv_2.0")).platform_id

    async def test_an_undeclared_feature_is_unsupported(
        self, plugin: ChannelPlugin, connection: Connection, user_message: Message
    ) -> None:
        """An undeclared feature raises Unsupported, and a declared one does not."""
        channel, address = connection.sender, user_message.address
        calls: dict[ChannelFeature, Callable[[], Awaitable[object]]] = {
            ChannelFeature.EDIT: lambda: channel.edit(address, "1", make_reply("x")),
            ChannelFeature.TYPING: lambda: channel.typing(address),
            ChannelFeature.UPLOAD: lambda: channel.upload(
                address, File(name="a", media_type="text/plain", content=b"a"), key="k"
            ),
            ChannelFeature.DOWNLOAD: lambda: _fetch(channel, "none"),
            ChannelFeature.BUTTONS: lambda: channel.reply_privately(_make_press(user_message), "x"),
        }
        for feature, call in calls.items():
            try:
                await call()
            except Unsupported:
                assert feature not in plugin.features
            except ChannelError:
                assert feature in plugin.features
            else:
                assert feature in plugin.features

    async def test_secrets_are_in_no_repr_and_no_log(
        self, plugin: ChannelPlugin, rig: ChannelRig, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The bot's token appears neither in reprs nor in errors or logs, whatever fails."""
        caplog.set_level(logging.DEBUG)
        parsed = plugin.settings(**rig.settings())
        seen = [repr(parsed), str(parsed), parsed.model_dump_json()]
        with capture_logs() as lines:
            seen += await self._list_texts_of_failures(plugin, rig)
        seen += [str(line) for line in lines]
        seen += [record.getMessage() for record in caplog.records if record.name != "aiohttp.access"]
        assert not [text for text in seen if any(secret in text for secret in rig.secrets)]

    async def _list_texts_of_failures(self, plugin: ChannelPlugin, rig: ChannelRig) -> list[str]:
        async with open_connection(plugin, rig.settings()) as connection:
            seen = [repr(connection), repr(vars(connection.receiver)), repr(vars(connection.sender))]
            await rig.fail()
            await rig.revoke()
            for _ in range(2):
                with pytest.raises(ChannelError) as caught:
                    await connection.sender.send(Address(channel=CHANNEL, room="7"), make_reply("x"))
                seen += [repr(caught.value), repr(caught.value.__cause__)]
        return seen

    async def test_calls_after_the_end_are_unreachable(self, plugin: ChannelPlugin, rig: ChannelRig) -> None:
        """A caller that still holds a closed channel's sender learns to try again; nothing was sent."""
        settings, state = plugin.settings(**rig.settings()), MemoryChannelState()
        async with open_channel(plugin, CHANNEL, settings, state, TRUSTED) as connection:
            address = (await receive_message(connection, rig)).address
        with pytest.raises(Unreachable):
            await connection.sender.send(address, make_reply("too late"))
        with pytest.raises(Unreachable):
            await _fetch(connection.sender, "any")
