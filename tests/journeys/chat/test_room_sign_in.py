"""People sign in to an MCP server from a room: the link is for the person alone who asked."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from yarl import URL

from gateway_process import GatewayProcess, channel_env, gateway, reserve_port
from group_room import ADA, BOB, SECONDS, GroupRoom, RoomPerson
from group_rooms import open_group_room
from mcp_oauth import ProtectedMcpService, protected_mcp_service
from mcp_sign_in_steps import LINK, CookieClient, whoami_model
from openai_server import OpenAIServer

CONFIDENTIAL = ("telegram", "slack", "discord")
QUESTION = "must sign in to notes"
WHAT_TO_DO = "Open a direct chat with me"


@asynccontextmanager
async def open_gateway(
    room: GroupRoom, service: ProtectedMcpService, data: Path
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway in the room whose agent uses a server that people sign in to."""
    port = reserve_port()
    async with OpenAIServer(whoami_model) as model:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
            "DOVECOTE_PUBLIC_URL": f"http://127.0.0.1:{port}",
        }
        env |= channel_env(room.kind, room.settings())
        async with gateway(data, env=env, port=port) as process, process.http() as session:
            config = {"mcp": {"notes": {"url": service.url, "approval": "never"}}}
            path = "/accounts/me/agents/default"
            async with session.patch(path, json={"config": config}) as answer:
                assert answer.status == 200, await answer.text()
            if room.needs_hook:
                async with session.get("/accounts/me/channels") as answer:
                    (channel,) = (await answer.json())["items"]
                room.set_hook(f"{process.url}/channels/{channel['id']}/inbound")
            yield process


async def wait_for_text(room: GroupRoom, person: RoomPerson, words: str) -> str:
    """Wait for a text with these words that only one person sees."""

    def found() -> list[str]:
        return [text for text in room.texts_for(person) if words in text]

    await room.wait_until(lambda: bool(found()), seconds=SECONDS)
    return found()[-1]


async def ask_as_operator(process: GatewayProcess) -> str:
    """Give `/signin` over HTTP in the room's conversation, and return the reply."""
    async with process.http() as session:
        async with session.get("/conversations") as answer:
            (conversation,) = (await answer.json())["items"]
        path = f"/conversations/{conversation['id']}/messages"
        async with session.post(path, json={"text": "/signin"}) as answer:
            return str((await answer.json())["reply"])


@pytest.mark.parametrize("platform", CONFIDENTIAL)
async def test_who_asked_gets_the_link_alone(platform: str, tmp_path: Path) -> None:
    """The room sees no link, another person gets none, and the answer is the asker's."""
    async with (
        open_group_room(platform) as room,
        protected_mcp_service() as service,
        open_gateway(room, service, tmp_path / "data") as process,
        CookieClient() as browser,
    ):
        for person in (ADA, BOB):
            await room.open_private_chat(person)
        await room.say(ADA, "who am I", to_bot=True)
        await room.wait_for(QUESTION)
        await room.ask_for_sign_in(BOB)
        await wait_for_text(room, BOB, "Nothing waits")
        assert "for one person" in await ask_as_operator(process)
        await room.ask_for_sign_in(ADA)
        said = await wait_for_text(room, ADA, LINK)
        found = re.search(r"http\S+", said.replace("&amp;", "&"))
        assert found is not None
        back = await browser.begin(found.group().rstrip(">"))
        assert (await browser.open(URL(back, encoded=True)))[0] == 200
        await room.wait_for("you are ann")
    assert not [one.text for one in room.messages() if LINK in one.text]
    assert not [text for text in room.texts_for(BOB) if LINK in text]


@pytest.mark.parametrize("platform", ["telegram", "github", "zalo", "pancake"])
async def test_a_person_who_cannot_be_reached_privately_gets_instructions(
    platform: str, tmp_path: Path
) -> None:
    """Without a private chat, or on a platform where all is public, the room gets no link."""
    async with (
        open_group_room(platform) as room,
        protected_mcp_service() as service,
        open_gateway(room, service, tmp_path / "data"),
    ):
        await room.say(ADA, "who am I", to_bot=True)
        await room.wait_for(QUESTION)
        await room.ask_for_sign_in(ADA)
        await room.wait_for(WHAT_TO_DO)
    assert not [one.text for one in room.all_messages() if LINK in one.text]
