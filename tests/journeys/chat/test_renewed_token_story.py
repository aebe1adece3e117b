"""A token that is replaced while answers wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

from channels.zalo.simulator import simulate
from gateway_process import gateway
from inbox_stories import wait_for_text

NEW_TOKEN = "4242001:another-simulated-token"


async def test_what_waits_is_sent_once_the_token_is_replaced(tmp_path: Path) -> None:
    """The change of the channel's settings ends the wait, which is a quarter of an hour otherwise."""
    async with (
        simulate() as platform,
        gateway(tmp_path / "data", env={"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}) as process,
        process.http() as session,
    ):
        channel = {"name": "zalo", "kind": "zalo", "settings": platform.settings()}
        async with session.post("/accounts/me/channels", json=channel) as answer:
            assert answer.status == 201, await answer.text()
            number = (await answer.json())["id"]
        await platform.say("", "!sleep 1; echo pigeon")
        await platform.wait_until(lambda: not platform.updates)
        platform.token = NEW_TOKEN
        async with asyncio.timeout(60):
            while True:
                async with session.get("/deliveries?state=retrying") as answer:
                    if (await answer.json())["items"]:
                        break
                await asyncio.sleep(0.1)
        renewed = {"settings": platform.settings(token=NEW_TOKEN)}
        async with session.patch(f"/accounts/me/channels/{number}", json=renewed) as answer:
            assert answer.status == 200
        await wait_for_text(platform, "pigeon")
