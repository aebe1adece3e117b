"""A group and its bot: a wish, an order, a choice, a job through kill -9, a reminder and a private note."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway_process import GatewayProcess, channel_env, reserve_port
from group_model import (
    BEGUN,
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
from group_rooms import ADA, BOB, CAROL, GroupRoom, open_group_room
from openai_server import OpenAIServer

PLATFORMS = ("telegram", "slack", "discord", "github", "zalo", "pancake")
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
        free = {"config": {"provider": "host", "permissionMode": "bypass"}}
        await call(process, "PATCH", "/accounts/me/sandboxes/default", json=free)
        yield process
    finally:
        await process.stop()


async def call(process: GatewayProcess, method: str, path: str, **given: Any) -> dict[str, Any]:
    """Call the gateway as the account."""
    async with process.http() as session, session.request(method, path, **given) as response:
        assert response.status < 300, await response.text()
        return dict(await response.json()) if response.content_type == "application/json" else {}


async def wait_until_settled(process: GatewayProcess) -> None:
    """Wait until no delivery is open, so that a kill repeats nothing."""
    async with asyncio.timeout(60):
        while True:
            states = {one["state"] for one in (await call(process, "GET", "/deliveries"))["items"]}
            if states == {"delivered"}:
                return
            await asyncio.sleep(0.05)


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
    """The bot knows who wished what, asks who may choose, and reports and reminds once, in the thread."""
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
        assert "Answered." in await room.choose(BOB, question, 2)
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
