"""A group and its bot: a wish, an order, a choice, a job through kill -9, a reminder and a private note."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bot_messages import wait_until_settled
from gateway_process import GatewayProcess, channel_env, gateway, reserve_port
from group_model import (
    BEGUN,
    FINISHES,
    GATE,
    NOTHING,
    ORDER,
    PRIVATE_NOTE,
    PRIVATE_QUESTION,
    PRIVATE_REQUEST,
    REMINDER,
    REPORT,
    WISH,
    GroupModel,
    question_of,
)
from group_room import ADA, BOB, CAROL, GroupRoom
from group_rooms import open_group_room
from openai_server import OpenAIServer
from process_calls import call

PLATFORMS = ("telegram", "slack", "discord", "github", "zalo", "pancake")
ADMIN = "an-admin-key-of-the-group-story-0123456789"
TALK = "the fence"
REFUSED = "Only the person who asked may decide this."


@asynccontextmanager
async def open_gateway(room: GroupRoom, model: OpenAIServer, data: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway in whose chats only the asker may answer, and whose agent runs commands unasked."""
    port = reserve_port()
    env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
    env |= {"OPENAI_API_KEY": "loopback", "DOVECOTE_PUBLIC_URL": f"http://127.0.0.1:{port}"}
    env |= channel_env(room.kind, {**room.settings(), "approvers": "asker"})
    process = GatewayProcess(data, env=env, port=port)
    try:
        await process.start()
        (channel,) = (await call(process, "GET", "/accounts/me/channels"))["items"]
        if room.needs_hook:
            room.set_hook(f"{process.url}/channels/{channel['id']}/inbound")
        await allow_commands(process)
        yield process
    finally:
        await process.stop()


async def allow_commands(process: GatewayProcess) -> None:
    """Let the agent run commands without asking."""
    free = {"config": {"provider": "host", "permissionMode": "bypass"}}
    await call(process, "PATCH", "/accounts/me/sandboxes/default", json=free)


async def wait_until_fired(process: GatewayProcess) -> dict[str, Any]:
    """Wait until the reminder was due, and return its schedule."""
    async with asyncio.timeout(60):
        while True:
            (schedule,) = (await call(process, "GET", "/accounts/me/schedules"))["items"]
            if schedule["fired"]:
                return dict(schedule)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_group_gets_what_it_decided_through_kill_9(platform: str, tmp_path: Path) -> None:
    """The bot has each person's wish, asks who may choose, and reports and reminds once, in the thread."""
    async with (
        open_group_room(platform) as room,
        OpenAIServer(GroupModel()) as model,
        open_gateway(room, model, tmp_path / "data") as process,
    ):
        if room.has_private_chats:
            await room.say_privately(CAROL, PRIVATE_REQUEST)
            await room.wait_for("I keep that to myself.", private=True)
            await room.say_privately(CAROL, PRIVATE_QUESTION)
            await room.wait_for(PRIVATE_NOTE, private=True)

        await room.say(ADA, WISH)
        await room.say(BOB, ORDER, to_bot=True)
        asked = question_of(room.id_of(BOB), room.id_of(ADA))
        question = await room.wait_for(asked)
        assert REFUSED in await room.choose(ADA, question, 1)
        assert "Answered" in await room.choose(BOB, question, 2)
        await room.wait_for(BEGUN)
        await wait_until_settled(process)

        await process.kill()
        await process.start()
        await call(process, "PUT", f"/accounts/me/workspaces/default/files/{GATE}", data=b"")
        await room.wait_for(REPORT)
        await room.wait_for(REMINDER)
        schedule = await wait_until_fired(process)
        assert (schedule["fired"], schedule["state"]) == (1, "ended")

        before = len(model.bodies)
        await room.say(CAROL, PRIVATE_QUESTION, to_bot=True)
        await room.wait_for(NOTHING)
        await wait_until_settled(process)
    assert not [body for body in model.bodies[before:] if PRIVATE_NOTE in str(body)]
    said = room.messages()
    for words in (BEGUN, REPORT, REMINDER, NOTHING):
        assert sum(words in one.text for one in said) == 1, [one.text for one in said]
    assert {one.thread for one in said} == {room.thread}


class SocketReader:
    """One person's WebSocket; `events` are the lasting ones that arrived."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.events: list[dict[str, Any]] = []

    async def send(self, **frame: Any) -> None:
        """Send a frame."""
        await self._socket.send_json(frame)

    async def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next frame that is wanted."""
        async with asyncio.timeout(60):
            while True:
                frame: dict[str, Any] = await self._socket.receive_json()
                if "n" in frame:
                    self.events.append(frame)
                if wanted(frame):
                    return frame

    async def wait_for_text(self, *words: str) -> None:
        """Wait until each of these texts was said in a message."""
        async with asyncio.timeout(60):
            while not all(any(one in text for text in self.texts()) for one in words):
                await self.wait_for(lambda frame: frame["type"] == "message.completed")

    def texts(self) -> list[str]:
        """Return what the bot said."""
        return [one["data"]["text"] for one in self.events if one["type"] == "message.completed"]


@asynccontextmanager
async def listen(process: GatewayProcess, key: str, *, after: int = 0) -> AsyncIterator[SocketReader]:
    """Open a WebSocket with a key, and subscribe to the conversation."""
    async with http_with(process, key) as session, session.ws_connect("/ws") as one:
        await one.send_json({"type": "subscribe", "conversation": TALK, "after": after, "deltas": False})
        yield SocketReader(one)


async def test_the_story_over_websocket_through_kill_9(tmp_path: Path) -> None:
    """Two keys share a conversation; another account cannot answer; the log has everything once, in order."""
    async with OpenAIServer(GroupModel()) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        env |= {"OPENAI_API_KEY": "loopback", "DOVECOTE_ADMIN_KEY": ADMIN}
        async with gateway(tmp_path / "data", env=env) as process:
            await allow_commands(process)
            bob = (await call(process, "POST", "/accounts/me/keys", json={"name": "bob"}))["key"]
            note = {"scope": "person", "subject": "telegram:9", "text": PRIVATE_NOTE}
            await call(process, "POST", "/accounts/me/memories", json=note)
            async with listen(process, process.key) as ada:
                await ada.send(type="send", conversation=TALK, text=WISH, id="wish")
                await ada.wait_for_text("Noted.")
            async with listen(process, bob) as one:
                await one.send(type="send", conversation=TALK, text=ORDER, id="order")
                asked = await one.wait_for(lambda frame: frame["type"] == "question.requested")
                assert asked["data"]["question"] == question_of("somebody", "somebody")
                assert asked["data"]["choices"] == list(FINISHES)
                answer = {"type": "approve", "approval": asked["data"]["approval"]}
                assert await refused(process, **answer, answer="2") == "not_found"
                await one.send(**answer, answer="Pink")
                assert (await one.wait_for(lambda frame: frame["type"] == "error"))["code"] == "invalid"
                await one.send(**answer, answer="2")
                await one.wait_for_text(BEGUN)
                last = one.events[-1]["seq"]
            await process.kill()
            await process.start()
            await call(process, "PUT", f"/accounts/me/workspaces/default/files/{GATE}", data=b"")
            async with listen(process, bob, after=last) as later:
                await later.wait_for_text(REPORT, REMINDER)
                await later.send(type="send", conversation=TALK, text=PRIVATE_QUESTION, id="question")
                await later.wait_for_text(NOTHING)
    events = one.events + later.events
    assert [event["n"] for event in events] == list(range(1, len(events) + 1))
    texts = one.texts() + later.texts()
    for words in (BEGUN, REPORT, REMINDER, NOTHING):
        assert sum(words in text for text in texts) == 1, texts
    assert not [body for body in model.bodies if PRIVATE_NOTE in str(body)]


async def refused(process: GatewayProcess, **frame: Any) -> str:
    """Send a frame with the key of another account, and return the code of the error."""
    made = {"name": "strangers"}
    async with http_with(process, ADMIN) as session, session.post("/accounts", json=made) as response:
        outsider = (await response.json())["key"]
    async with http_with(process, outsider) as session, session.ws_connect("/ws") as socket:
        listener = SocketReader(socket)
        await listener.send(**frame)
        return str((await listener.wait_for(lambda found: found["type"] == "error"))["code"])


def http_with(process: GatewayProcess, key: str) -> aiohttp.ClientSession:
    """Return a session that talks to the gateway with a key."""
    return aiohttp.ClientSession(process.url, headers={"Authorization": f"Bearer {key}"})
