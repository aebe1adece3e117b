"""What every installed channel promises: held to it through its own simulator."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import datetime
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channel_rigs import CHANNEL, RIGS, ChannelRig, UpdateRecorder, open_connection, open_rig, receiving
from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Unauthorized,
    Undeliverable,
    Unreachable,
    Unsupported,
)
from channels.markup import split
from channels.message import Address, Button, ButtonPress, File, Message, Reply
from channels.port import ChannelFeature, ChannelPlugin, Connection, Sender
from channels.registry import GROUP, installed
from memory_channel_state import MemoryChannelState

PLUGINS = list(installed().values())
MODULES = {entry.name: entry.module for entry in entry_points(group=GROUP)}
SAMPLES = [
    pytest.param(name, path, id=f"{name}-{path.name.removesuffix('.json')}")
    for name, module in MODULES.items()
    for path in sorted(files(module).joinpath("samples").iterdir(), key=lambda path: path.name)
]


_numbers = count()


def make_reply(text: str, **others: Any) -> Reply:
    """Return a reply, each with a key of its own: a platform may recognise a repeated one."""
    return Reply(text=text, key=f"dlv_{next(_numbers)}.0", **others)


def test_every_installed_channel_has_a_rig_and_samples() -> None:
    """An adapter cannot be installed without being held to the contract."""
    assert {plugin.name for plugin in PLUGINS} <= set(RIGS)
    assert {parameter.values[0] for parameter in SAMPLES} == {plugin.name for plugin in PLUGINS}


@pytest.mark.parametrize(("name", "path"), SAMPLES)
def test_a_sample_decodes_as_recorded(name: str, path: Any) -> None:
    """Each recorded payload decodes to the update, or the reason to ignore it, in the same sample."""
    sample = json.loads(path.read_text())
    codec = import_module(f"{MODULES[name]}.receive.codec")
    decoded = codec.decode(sample["update"], channel="chn_sample", bot=codec.Bot(**sample["bot"]))
    plain = json.loads(json.dumps(asdict(decoded), default=datetime.isoformat))
    assert {"type": type(decoded).__name__, **plain} == sample["expected"]


def test_a_manifest_imports_no_sdk() -> None:
    """Listing the installed channels loads none of their SDKs."""
    code = (
        "import sys; from channels.registry import installed; installed();"
        "print({'telegram', 'slack_sdk', 'discord', 'httpx', 'aiohttp'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@given(
    st.builds(
        Address,
        channel=st.text(),
        room=st.text(),
        thread=st.none() | st.text(),
        extras=st.dictionaries(st.text(), st.text()),
    )
)
def test_an_address_survives_dump_and_load(address: Address) -> None:
    """Days later a reply still finds its way."""
    assert Address.decode(address.encode()) == address


async def test_a_message_is_received_with_an_address_that_answers(
    connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """A user's message arrives, and a reply to its address is shown in the room."""
    assert (user_message.text, user_message.address.channel) == ("hello", CHANNEL)
    sent = await connection.sender.send(Address.decode(user_message.address.encode()), make_reply("good day"))
    assert sent.platform_id
    assert [(heard.room, heard.text) for heard in rig.visible_messages()] == [
        (user_message.address.room, "good day")
    ]


async def test_the_reply_lands_in_its_thread(connection: Connection, rig: ChannelRig) -> None:
    """A message of a thread has that thread in its address, and the answer goes there."""
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        thread = await rig.say_in_thread("in here")
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    assert update.address.thread == thread
    await connection.sender.send(update.address, make_reply("yes"))
    assert rig.visible_messages()[-1].thread == thread


async def test_a_long_reply_is_split_and_loses_nothing(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """The platform accepts every part of a long answer, and each line arrives."""
    lines = [f"line{number} \N{GRINNING FACE} if a<b and c>d" for number in range(600)]
    text = "Intro\n\n```python\n" + "\n".join(lines) + "\n```\n\nThe *end*."
    for part in split(text, plugin.limits.text, plugin.limits.measure):
        await connection.sender.send(user_message.address, make_reply(part))
    heard = "\n".join(heard.text for heard in rig.visible_messages())
    assert len(rig.visible_messages()) > 1
    assert [line for line in heard.splitlines() if line.startswith("line")] == lines


async def test_a_rate_limit_carries_the_platforms_delay(
    connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """The caller gets the wait, and nothing was sent."""
    await rig.throttle(17)
    with pytest.raises(RateLimited) as caught:
        await connection.sender.send(user_message.address, make_reply("too fast"))
    assert (caught.value.retry_after, caught.value.remedy, rig.visible_messages()) == (17, "retry", [])


async def test_a_refused_token_needs_the_operator(
    connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """Neither sending nor receiving is tried for ever with a token that was revoked."""
    await rig.revoke()
    with pytest.raises(Unauthorized) as caught:
        await connection.sender.send(user_message.address, make_reply("anyone?"))
    assert caught.value.remedy == "operator"
    async with asyncio.timeout(20):
        with pytest.raises(Unauthorized):
            await connection.receiver.run(UpdateRecorder().accept, receiving=lambda *_: None)


async def test_opening_with_a_wrong_token_needs_the_operator(plugin: ChannelPlugin, rig: ChannelRig) -> None:
    """A wrong token is found when the channel is opened, and by the probe."""
    wrong = rig.settings(token=rig.unknown_sender)
    with pytest.raises(Unauthorized):
        async with open_connection(plugin, wrong):
            pass
    findings = await plugin.probe(plugin.settings(**wrong))
    assert any(not finding.ok and finding.remedy for finding in findings)


async def test_the_probe_finds_a_working_channel_well(plugin: ChannelPlugin, rig: ChannelRig) -> None:
    """`channels test` names what it checked."""
    findings = await plugin.probe(plugin.settings(**rig.settings()))
    assert findings
    assert all(finding.ok for finding in findings)


async def test_a_kicked_bot_gives_up(connection: Connection, rig: ChannelRig, user_message: Message) -> None:
    """A room that threw the bot out is dead for its deliveries."""
    await rig.kick()
    with pytest.raises(Undeliverable) as caught:
        await connection.sender.send(user_message.address, make_reply("hello?"))
    assert caught.value.remedy == "give_up"


async def test_a_fault_of_the_server_is_ambiguous(
    connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """After a 5xx it is unknown whether the message was sent; the adapter sends it once only."""
    await rig.fail()
    with pytest.raises(Ambiguous):
        await connection.sender.send(user_message.address, make_reply("once"))
    assert rig.send_count() == 1


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_broken_connection_is_ambiguous(
    connection: Connection, rig: ChannelRig, user_message: Message, carried_out: bool
) -> None:
    """A send whose answer never came is never repeated by the adapter."""
    await rig.cut_sending(carried_out=carried_out)
    with pytest.raises(Ambiguous):
        await connection.sender.send(user_message.address, make_reply("once"))
    assert (rig.send_count(), len(rig.visible_messages())) == (1, int(carried_out))


async def test_a_platform_that_cannot_be_reached_was_told_nothing(plugin: ChannelPlugin) -> None:
    """A refused connection is distinguished from an ambiguous one."""
    async with AsyncExitStack() as stack:
        async with open_rig(plugin) as rig:
            connection = await stack.enter_async_context(open_connection(plugin, rig.settings()))
        with pytest.raises(Unreachable):
            await connection.sender.send(Address(channel=CHANNEL, room="-4004"), make_reply("hello?"))


async def test_refused_markup_is_sent_as_plain_text(
    connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """If formatting is refused, the plain text is sent."""
    await rig.refuse_markup()
    await connection.sender.send(user_message.address, make_reply("**bold** words"))
    assert [heard.text for heard in rig.visible_messages()] == ["**bold** words"]


async def test_an_edit_may_be_repeated(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """A message can be edited, and repeating the edit succeeds."""
    if ChannelFeature.EDIT not in plugin.features:
        pytest.skip("the channel cannot edit")
    sent = await connection.sender.send(user_message.address, make_reply("first"))
    for _ in range(2):
        await connection.sender.edit(user_message.address, sent.platform_id, make_reply("**second**"))
    assert [heard.text for heard in rig.visible_messages()] == ["second"]


async def test_a_pressed_button_comes_back(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """A press names the button, the room and the person, and can be answered."""
    if ChannelFeature.BUTTONS not in plugin.features:
        pytest.skip("the channel has no buttons")
    buttons = (Button(label="Yes", data="apr_1:yes"), Button(label="No", data="apr_1:no"))
    sent = await connection.sender.send(user_message.address, make_reply("May I?", buttons=buttons))
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.press(sent.platform_id, "apr_1:no")
        async with asyncio.timeout(20):
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
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig, user_message: Message
) -> None:
    """An attachment's bytes can be fetched, and a file can be sent."""
    if not {ChannelFeature.UPLOAD, ChannelFeature.DOWNLOAD} <= plugin.features:
        pytest.skip("the channel has no files")
    content = bytes(range(256)) * 1000
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.send_file(content)
        async with asyncio.timeout(20):
            while not _attachments(recorder):
                await recorder.wait(len(recorder.updates) + 1)
    (attachment,) = _attachments(recorder)
    assert await _fetch(connection.sender, attachment.ref) == content
    file = File(name="result.bin", media_type="application/octet-stream", content=content, caption="here")
    assert (await connection.sender.upload(user_message.address, file, key="dlv_2.0")).platform_id


def _attachments(recorder: UpdateRecorder) -> tuple[Any, ...]:
    return next(
        (
            update.attachments
            for update in recorder.updates
            if isinstance(update, Message) and update.attachments
        ),
        (),
    )


async def test_an_undeclared_feature_is_unsupported(
    plugin: ChannelPlugin, connection: Connection, user_message: Message
) -> None:
    """What a channel does not declare it refuses, and what it declares works."""
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


async def _fetch(channel: Sender, ref: str) -> bytes:
    return b"".join([chunk async for chunk in channel.download(ref)])


def _make_press(message: Message) -> ButtonPress:
    return ButtonPress(key="k", address=message.address, author=message.author, data="d", token="none")


async def test_secrets_are_in_no_repr_and_no_log(
    plugin: ChannelPlugin, rig: ChannelRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens and webhook secrets appear in no repr, error or log, whatever fails."""
    caplog.set_level(logging.DEBUG)
    parsed = plugin.settings(**rig.webhook_settings())
    seen = [repr(parsed), str(parsed), parsed.model_dump_json()]
    async with plugin.open(CHANNEL, parsed, MemoryChannelState()) as connection:
        seen += [repr(connection), repr(vars(connection.receiver)), repr(vars(connection.sender))]
        await connection.receiver.receive(
            rig.webhook_request(rig.update("x"), secret="wrong"), UpdateRecorder().accept
        )
        await rig.fail()
        await rig.revoke()
        for _ in range(2):
            with pytest.raises(ChannelError) as caught:
                await connection.sender.send(Address(channel=CHANNEL, room="7"), make_reply("x"))
            seen += [repr(caught.value), repr(caught.value.__cause__)]
    seen += [record.getMessage() for record in caplog.records if record.name != "aiohttp.access"]
    assert not [text for text in seen if any(secret in text for secret in rig.secrets)]
