"""Files to and from Telegram: by their type, with their words, within its limits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from channels.errors import NotPermitted, RateLimited, Rejected
from channels.message import Address, File, Message
from channels.port import Connection
from channels.telegram import plugin
from channels.telegram.simulator import Simulator, simulate
from channels.testing.connections import UpdateRecorder, open_connection, receiving

ROOM = Address(channel="chn_contract", room="7")
MP4 = b"\0\0\0\x18ftypmp42"


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Telegram with a private chat."""
    async with simulate() as simulator:
        simulator.world.room(7)
        yield simulator


@pytest.fixture
async def telegram(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that polls."""
    async with open_connection(plugin, simulator.settings(poll_seconds=5)) as connection:
        yield connection


def make_file(media_type: str, content: bytes = b"x", **others: Any) -> File:
    """Return a file."""
    return File(name="a.bin", media_type=media_type, content=content, **others)


def uploads(simulator: Simulator) -> list[str]:
    """Return the methods that sent files."""
    return [name for name, _ in simulator.calls if name.startswith("send") and name != "sendMessage"]


@pytest.mark.parametrize(
    ("media_type", "content", "methods"),
    [
        ("image/jpeg", b"\xff\xd8picture", ["sendPhoto"]),
        ("image/png; charset=binary", b"\x89PNG", ["sendPhoto"]),
        ("image/png", b"no picture", ["sendPhoto", "sendDocument"]),
        ("image/gif", b"GIF89a", ["sendAnimation"]),
        ("audio/mpeg", b"ID3", ["sendAudio"]),
        ("audio/ogg", b"OggS", ["sendVoice"]),
        ("audio/ogg", b"no words", ["sendVoice", "sendDocument"]),
        ("video/mp4", MP4, ["sendVideo"]),
        ("video/mp4", b"no film", ["sendVideo", "sendDocument"]),
        ("application/pdf", b"%PDF", ["sendDocument"]),
        ("image/svg+xml", b"<svg/>", ["sendDocument"]),
    ],
)
async def test_a_file_is_shown_as_what_it_is(
    simulator: Simulator, telegram: Connection, media_type: str, content: bytes, methods: list[str]
) -> None:
    """Telegram shows pictures and plays films by itself; other files are documents."""
    await telegram.sender.upload(ROOM, make_file(media_type, content), key="dlv_1.1")
    assert uploads(simulator) == methods
    assert [post.file for post in simulator.messages()] == [content]


async def test_a_right_that_is_missing_for_pictures_may_be_there_for_documents(
    simulator: Simulator, telegram: Connection
) -> None:
    """A group without photos gets a document; one without documents an error that names the right."""
    await simulator.group(-42)
    await simulator.restrict(-42, forbidden=["photos"])
    group = Address(channel="chn_contract", room="-42")
    await telegram.sender.upload(group, make_file("image/jpeg", b"\xff\xd8"), key="dlv_1.1")
    await simulator.restrict(-42, forbidden=["photos", "documents", "text messages"])
    with pytest.raises(NotPermitted) as caught:
        await telegram.sender.upload(group, make_file("image/jpeg", b"\xff\xd8"), key="dlv_1.2")
    assert caught.value.permission == "can_send_documents"
    assert len(simulator.messages()) == 1


async def test_a_long_caption_goes_on_under_the_file(simulator: Simulator, telegram: Connection) -> None:
    """A caption has 1024 UTF-16 units; nothing of the rest is lost."""
    lines = [f"line {number} 😀 **bold**" for number in range(400)]
    file = make_file("application/pdf", caption="\n".join(lines))
    sent = await telegram.sender.upload(ROOM, file, key="dlv_1.1")
    said = simulator.messages()
    assert sent.platform_id == str(said[0].id)
    assert len(said) > 2
    shown = [line for post in said for line in post.text.split("\n") if line]
    assert shown == [line.replace("*", "") for line in lines]


async def test_a_caption_that_broke_off_goes_on_where_it_stopped(
    simulator: Simulator, telegram: Connection
) -> None:
    """Trying again sends the rest of the words, not the file a second time."""
    file = make_file("application/pdf", caption="\n\n".join(["word " * 150] * 4))
    await simulator.fail(429, method="sendMessage")
    with pytest.raises(RateLimited):
        await telegram.sender.upload(ROOM, file, key="dlv_1.1")
    sent = await telegram.sender.upload(ROOM, file, key="dlv_1.1")
    assert uploads(simulator) == ["sendDocument"]
    assert sent.platform_id == str(simulator.messages()[0].id)
    assert sum(post.text.count("word") for post in simulator.messages()) == 600


async def test_a_caption_is_formatted_where_telegram_takes_it(
    simulator: Simulator, telegram: Connection
) -> None:
    """Bold is bold under a file too, and plain text where entities are refused."""
    await telegram.sender.upload(ROOM, make_file("text/plain", caption="**done**"), key="dlv_1.1")
    description = "Bad Request: can't parse entities: something is odd"
    await simulator.fail(400, method="sendDocument", description=description)
    await telegram.sender.upload(ROOM, make_file("text/plain", caption="**done**"), key="dlv_1.2")
    assert [post.text for post in simulator.messages()] == ["done", "**done**"]


@pytest.mark.parametrize("kind", ["document", "audio", "voice", "video", "video_note", "animation"])
async def test_every_kind_of_file_is_fetched(simulator: Simulator, telegram: Connection, kind: str) -> None:
    """Users' files can be read, whatever Telegram calls their kind."""
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.send_file(7, b"content", name="a.bin", kind=kind)
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    (attachment,) = update.attachments
    assert b"".join([part async for part in telegram.sender.download(attachment.ref)]) == b"content"


async def test_the_largest_size_of_a_photo_is_fetched(simulator: Simulator, telegram: Connection) -> None:
    """A photo comes in several sizes."""
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.send_file(7, b"the whole picture")
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    (attachment,) = update.attachments
    assert b"".join([part async for part in telegram.sender.download(attachment.ref)]) == b"the whole picture"


async def test_a_file_too_large_to_fetch_is_rejected(simulator: Simulator, telegram: Connection) -> None:
    """Bots get files of 20 MB at the most."""
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.send_file(7, bytes(20_000_001), name="a.bin")
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    with pytest.raises(Rejected, match="too big"):
        _ = [part async for part in telegram.sender.download(update.attachments[0].ref)]


@pytest.mark.parametrize(
    "path",
    ["", "../secret", "a/../../b", "http://elsewhere.test/x", "a\\..\\b", "./x", None, 7],
)
async def test_an_odd_path_is_never_fetched(path: object) -> None:
    """A server that names a path out of the bot's files is not followed."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        me = {"id": 1, "is_bot": True, "first_name": "x", "username": "x"}
        result = me if request.path.endswith("/getMe") else {"file_id": "x", "file_path": path}
        return web.Response(text=json.dumps({"ok": True, "result": result}), content_type="application/json")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with open_connection(plugin, {"token": "1:a", "base_url": base}) as bot:
            with pytest.raises(Rejected):
                _ = [part async for part in bot.sender.download("x")]
    finally:
        await runner.cleanup()
    assert not [one for one in asked if one.startswith("/file")]
