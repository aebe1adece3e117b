"""Another hand's Slack: the npm package `emulate`, where it is installed and Node can run it.

It has no sockets, slash commands, buttons or streams, and answers 404 for methods it does not have; what it
has is held against our adapter as it is. `npm install --global emulate` (with Node 22 or newer) has this run.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.message import Address, Button, DraftText, File, Reply, StatusReaction
from channels.port import Connection
from channels.slack import plugin
from channels.testing.connections import open_connection

TOKEN = "xoxb-emulated"
SCOPES = "chat:write channels:read channels:history files:read files:write reactions:read reactions:write"
SEED = f"""
slack:
  users:
    - {{name: dove, real_name: Dove, email: dove@example.org, is_bot: true}}
  tokens:
    - token: {TOKEN}
      user: dove
      scopes: [{", ".join(SCOPES.split())}]
"""
LONG_AGO = timedelta(minutes=5)


def program() -> str:
    """Return the emulator's program; skips if there is none, or if Node is too old."""
    found = shutil.which("emulate")
    if found is None:
        pytest.skip("the npm package `emulate` is not installed")
    if subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("`emulate` does not run here: it wants Node 22 or newer")
    return found


async def call(url: str, method: str, **given: str) -> Any:
    """Call a method without our adapter."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/api/{method}", data=given) as answer,
    ):
        return await answer.json()


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Run the emulator; returns its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seed = tmp_path / "seed.yaml"
    seed.write_text(SEED)
    options = ["--service", "slack", "--port", str(port), "--seed", str(seed)]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(program(), *options, cwd=tmp_path, stdout=pipe)
    assert child.stdout is not None
    try:
        async with asyncio.timeout(30):
            while b"Ready" not in await child.stdout.readline():
                assert not child.stdout.at_eof()
        yield f"http://localhost:{port}"  # the host of the addresses that it gives out
    finally:
        child.terminate()
        await child.wait()


@pytest.fixture
async def slack(url: str) -> AsyncIterator[Connection]:
    """Return our adapter, connected to it."""
    settings = {"bot_token": TOKEN, "app_token": "xapp-1", "base_url": f"{url}/api/"}
    async with open_connection(plugin, settings) as connection:
        yield connection


@pytest.fixture
async def room(url: str) -> Address:
    """Return a channel of it."""
    rooms = (await call(url, "conversations.list"))["channels"]
    return Address(channel="chn_contract", room=rooms[0]["id"])


async def test_what_is_said_is_found_there(url: str, slack: Connection, room: Address) -> None:
    """Messages, threads, edits, buttons and metadata, as another reader of Slack's pages has them."""
    since = datetime.now(UTC) - LONG_AGO
    root = await slack.sender.send(room, Reply(text="hello **you** <!channel>", key="dlv_1.0"))
    thread = Address(channel=room.channel, room=room.room, thread=root.platform_id)
    buttons = (Button(label="Yes", data="y"), Button(label="No", data="n", prompt="Why?"))
    asked = await slack.sender.send(thread, Reply(text="May I?", key="dlv_2.0", buttons=buttons))
    assert await slack.sender.find(room, "dlv_1.0", since=since) == root
    assert await slack.sender.find(thread, "dlv_2.0", since=since) == asked
    assert await slack.sender.find(thread, "dlv_9.0", since=since) is None
    await slack.sender.edit(thread, asked.platform_id, Reply(text="Approved", key="dlv_2.0"))
    reported = await call(url, "conversations.replies", channel=room.room, ts=root.platform_id)
    assert [one["text"] for one in reported["messages"]] == ["hello *you* &lt;!channel&gt;", "Approved"]


async def test_without_streams_and_status_a_message_grows(url: str, slack: Connection, room: Address) -> None:
    """A method that is not there is a refusal like another."""
    root = await slack.sender.send(room, Reply(text="tell me", key="dlv_1.0"))
    thread = Address(channel=room.channel, room=room.room, thread=root.platform_id)
    await slack.sender.typing(thread)
    sent = await slack.sender.update_draft(thread, DraftText(key="dlv_2.0", text="one", recipient_id="U1"))
    assert sent is not None
    await slack.sender.edit(thread, sent.platform_id, Reply(text="one two", key="dlv_2.0"))
    reported = await call(url, "conversations.replies", channel=room.room, ts=root.platform_id)
    assert [one["text"] for one in reported["messages"]] == ["tell me", "one two"]


async def test_signs_and_files_go_there_and_back(url: str, slack: Connection, room: Address) -> None:
    """One reaction at a time; a file in three steps, found by its key, and downloaded again."""
    root = await slack.sender.send(room, Reply(text="hello", key="dlv_1.0"))
    for reaction in (StatusReaction.SEEN, StatusReaction.DONE, StatusReaction.DONE):
        await slack.sender.react(room, root.platform_id, reaction)
    reported = await call(url, "reactions.get", channel=room.room, timestamp=root.platform_id)
    assert [one["name"] for one in reported["message"]["reactions"]] == ["white_check_mark"]
    file = File(name="r.txt", media_type="text/plain", content=b"result", caption="here")
    sent = await slack.sender.upload(room, file, key="dlv_2.0")
    assert await slack.sender.find(room, "dlv_2.0", since=datetime.now(UTC) - LONG_AGO) == sent
    assert b"".join([part async for part in slack.sender.download(sent.platform_id)]) == b"result"
