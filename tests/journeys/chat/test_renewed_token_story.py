"""A token that is replaced while answers wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bot_messages import wait_for_bot_message
from channels.zalo.simulator import simulate
from channels.zalo.simulator.simulator import Simulator
from gateway_process import GatewayProcess, gateway
from turn_requests import poll_until

NEW_TOKEN = "4242001:another-simulated-token"


@asynccontextmanager
async def working_gateway(
    directory: Path,
) -> AsyncIterator[tuple[Simulator, GatewayProcess, aiohttp.ClientSession]]:
    """Run a gateway whose channel `zalo` has accepted a message, and works on the answer for a second."""
    async with (
        simulate() as platform,
        gateway(directory / "data", env={"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}) as process,
        process.http() as session,
    ):
        channel = {"name": "zalo", "kind": "zalo", "settings": platform.settings()}
        async with session.post("/accounts/me/channels", json=channel) as answer:
            assert answer.status == 201, await answer.text()
        await platform.say("", "!sleep 1; echo pigeon")
        await platform.wait_until(lambda: not platform.updates)
        yield platform, process, session


async def set_token(session: aiohttp.ClientSession, token: str) -> None:
    """Replace the channel's token."""
    change = {"settings": {"token": token}}
    async with session.patch("/accounts/me/channels/zalo", json=change) as answer:
        assert answer.status == 200, await answer.text()


async def waiting_delivery(process: GatewayProcess) -> dict[str, Any]:
    """Wait until the answer could not be delivered, and return its delivery."""
    found = await poll_until(process, "/deliveries?state=retrying", lambda found: bool(found["items"]))
    delivery: dict[str, Any] = found["items"][0]
    return delivery


async def test_what_waits_is_sent_once_the_token_is_replaced(tmp_path: Path) -> None:
    """The change of the channel's settings ends the wait, which is a quarter of an hour otherwise."""
    async with working_gateway(tmp_path) as (platform, process, session):
        platform.token = NEW_TOKEN
        await waiting_delivery(process)
        await set_token(session, NEW_TOKEN)
        await wait_for_bot_message(platform, "pigeon")


async def test_what_waits_for_a_refused_token_names_the_refusal(tmp_path: Path) -> None:
    """A wrong token is set while an answer is made: the delivery shows what the platform says of it."""
    async with working_gateway(tmp_path) as (platform, process, session):
        await set_token(session, NEW_TOKEN)
        assert "Unauthorized (401)" in (await waiting_delivery(process))["error"]
        await set_token(session, platform.token)
        await wait_for_bot_message(platform, "pigeon")


async def test_a_lost_refresh_token_is_shown_with_its_remedy(tmp_path: Path) -> None:
    """Zalo accepts each refresh token once: the channel says what to do, and recovers with a new one."""
    async with (
        simulate() as platform,
        gateway(tmp_path / "data", env={"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}) as process,
        process.http() as session,
    ):
        settings = platform.settings(platform="oa", refresh_token=platform.refresh)
        channel = {"name": "zalo", "kind": "zalo", "settings": settings}
        async with session.post("/accounts/me/channels", json=channel) as answer:
            assert answer.status == 201, await answer.text()
            number = (await answer.json())["id"]
        platform.hook_url = f"{process.url}/channels/{number}/inbound"
        status = f"/accounts/me/channels/{number}/status"
        await poll_until(process, status, lambda found: found["state"] == "receiving")
        platform.access, platform.refresh = "another-access", "whose-answer-was-lost"
        assert await platform.write_to_oa("!echo pigeon") == 200
        found = await poll_until(process, status, lambda found: found["state"] == "trouble")
        assert "authorize the Official Account again" in found["reason"]
        platform.refresh = "authorized-again"
        renewed = {"settings": platform.settings(platform="oa", refresh_token=platform.refresh)}
        async with session.patch(f"/accounts/me/channels/{number}", json=renewed) as answer:
            assert answer.status == 200
        await wait_for_bot_message(platform, "pigeon")
        await poll_until(process, status, lambda found: found["state"] == "receiving")
