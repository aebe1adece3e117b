"""Every command is answered on every surface: HTTP, WebSocket, `dovecote chat`, the console and a chat."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from channels.telegram.simulator import Simulator
from commands import PIPE, gateway_command
from console_driver import CHROMIUM, open_browser, open_console
from gateway.config.load import environment_without_ours
from gateway.ingress.commands.chat_commands import ChatCommands
from gateway_process import GatewayProcess
from telegram_gateway import CHAT, telegram_gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

FIRST = "!echo hello"
A_CHAT = 4

REPLIES = {
    "undo": "nothing to take back",
    "status": "Nothing is running",
    "stop": "Nothing is running",
    "jobs": "No jobs yet",
    "retry": "nothing to retry",
    "compact": "no language model",
    "model": "builtin:shell",
    "usage": "This conversation",
    "approve": "Which one",
    "deny": "Which one",
    "answer": "Which question",
    "queue": "Queue mode",
    "memory": "no notes for this chat",
    "schedule": "Nothing is scheduled",
    "remind": "Nothing is scheduled",
    "verbose": "tool",
    "link": "direct chat|same person|chat platform",
    "signin": "sign",
    "signout": "Which server",
    "title": "This conversation is called",
    "help": "starts a new conversation",
    "new": "new conversation (begins|has another name)",
}
"""What the reply to each command contains, without markup."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Simulator, GatewayProcess]]:
    """One gateway for all surfaces, at a simulated Telegram; each has its own conversation."""
    async with telegram_gateway(tmp_path_factory.mktemp("commands") / "data") as found:
        yield found


def wrong(replies: dict[str, str]) -> dict[str, str]:
    """Return the replies that do not fit their command."""
    return {
        name: replies[name]
        for name, expected in REPLIES.items()
        if not re.search(expected, replies[name].replace("`", ""))
    }


async def begin(process: GatewayProcess, conversation: str) -> None:
    """Say the first message of a conversation, and wait for its answer."""
    async with process.http() as session, asyncio.timeout(60):
        body = {"conversation": conversation, "input": FIRST}
        async with session.post("/agents/default/turns", json=body) as answer:
            queued = await answer.json()
        state = ""
        while state != "completed":
            async with session.get(queued["statusUrl"]) as answer:
                state = (await answer.json())["state"]
            await asyncio.sleep(0.05)


async def test_every_command_has_an_expected_reply() -> None:
    """A new command is tested on every surface."""
    assert set(REPLIES) == set(ChatCommands.NAMES)


async def test_over_http(chat: tuple[Simulator, GatewayProcess]) -> None:
    """The response to the message has the reply."""
    _, process = chat
    await begin(process, "http")
    replies = {}
    async with process.http() as session:
        for name in REPLIES:
            body = {"text": f"/{name}"}
            async with session.post("/conversations/http/messages", json=body) as answer:
                found = await answer.json()
            assert found["command"] == name, found
            replies[name] = str(found["reply"])
    assert wrong(replies) == {}


async def test_over_websocket(chat: tuple[Simulator, GatewayProcess]) -> None:
    """The frame that accepts the message has the reply."""
    _, process = chat
    await begin(process, "socket")
    replies = {}
    async with process.http() as session, session.ws_connect("/ws") as socket, asyncio.timeout(60):
        for name in REPLIES:
            sent = {"type": "send", "conversation": "socket", "text": f"/{name}", "id": name}
            await socket.send_json(sent)
            found = await socket.receive_json()
            assert (found["type"], found["id"], found["command"]) == ("accepted", name, name)
            replies[name] = str(found["reply"])
    assert wrong(replies) == {}


async def test_in_the_terminal(chat: tuple[Simulator, GatewayProcess], tmp_path: Path) -> None:
    """`dovecote chat` prints the replies to the lines of its input, also to the last one."""
    _, process = chat
    await begin(process, "terminal")
    env = environment_without_ours() | {"DOVECOTE_URL": process.url, "DOVECOTE_KEY": process.key}
    words = ("chat", "--conversation", "terminal")
    child = await gateway_command(*words, env=env, cwd=tmp_path, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(60):
        out, errors = await child.communicate("".join(f"/{name}\n" for name in REPLIES).encode())
    assert child.returncode == 0, errors
    said = " ".join(out.decode().split())
    assert wrong(dict.fromkeys(REPLIES, said)) == {}


async def test_in_a_chat(chat: tuple[Simulator, GatewayProcess]) -> None:
    """Each command gets one message, in order; few in each chat, since Telegram limits a chat's messages."""
    platform, _ = chat
    names, replies = list(REPLIES), dict[str, str]()
    rows = [names[place : place + A_CHAT] for place in range(0, len(names), A_CHAT)]
    for number, row in enumerate(rows):
        for name in row:
            await platform.say(CHAT + number, f"/{name}")
    for number, row in enumerate(rows):
        posts = await platform.wait_for_messages(len(row), chat=CHAT + number, seconds=60)
        replies |= dict(zip(row, [post.text for post in posts], strict=True))
    assert wrong(replies) == {}


@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, which draws the console")
async def test_in_the_console(chat: tuple[Simulator, GatewayProcess]) -> None:
    """The page shows each reply below its conversation."""
    _, process = chat
    replies = {}
    async with open_browser() as browser, open_console(browser) as console:
        await console.enter(process)
        await console.start_conversation(FIRST)
        assistant = console.page.locator('[data-kind="message"][data-role="assistant"]')
        await expect(assistant.last).to_contain_text("hello")
        notices = console.page.locator('[data-kind="message"][data-role="notice"]')
        for number, name in enumerate(REPLIES, start=1):
            await console.send_message(f"/{name}")
            await expect(notices).to_have_count(number)
            replies[name] = await notices.last.inner_text()
    assert wrong(replies) == {}
