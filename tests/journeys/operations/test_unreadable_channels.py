"""A channel record that cannot be read concerns its account alone: the others receive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from sqlalchemy import select, update

from api_server import ApiClient
from channels.telegram.simulator import simulate
from delivery.database.engine import Database
from gateway.store.tables import records
from gateway_process import GatewayProcess, gateway

ENV = {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}
PERSON = 7
BAD = {
    "refused": "/settings/retired_setting: there is no such key",
    "damaged": "cannot be decrypted",
    "unknown": "pigeon",
}
"""Channels whose records cannot be read, and what their errors say."""


async def test_unreadable_channels_do_not_stop_the_others(tmp_path: Path) -> None:
    """The account sees why each is not open, corrects them, and the good one answers the whole time."""
    async with simulate() as platform, gateway(tmp_path / "data", env=ENV) as process:
        async with process.http() as session:
            mine = client(session, process)
            await add_channel(mine, "good", platform.settings())
            for name in BAD:
                await add_channel(mine, name, {"token": f"1:{name}", "base_url": platform.url})
        await process.stop()
        await damage(process.data)
        await process.start()
        async with process.http() as session:
            mine = client(session, process)
            for name, reason in BAD.items():
                status = await wait_for_status(mine, name, lambda status: status["state"] == "trouble")
                assert reason in status["reason"], status
                assert f"1:{name}" not in status["reason"]
                check = await mine.call("POST", f"/channels/{name}/test")
                assert (check.status, check.body["detail"]) == (409, status["reason"])
            await platform.say(PERSON, "!echo still here")
            await platform.wait_until(
                lambda: any(post.text == "still here" for post in platform.messages(PERSON)), seconds=30
            )
            change = {"settings": {"retired_setting": None}}
            corrected = await mine.call("PATCH", "/accounts/me/channels/refused", change)
            assert corrected.status == 200, corrected.body
            await wait_for_status(mine, "refused", lambda status: BAD["refused"] not in status["reason"])
            kept = await mine.call("PATCH", "/accounts/me/channels/damaged", {"paused": True})
            assert (kept.status, kept.body["errors"][0]["pointer"]) == (409, "/settings/token"), kept.body
            replaced = await mine.call(
                "PATCH", "/accounts/me/channels/damaged", {"settings": {"token": "1:replaced"}}
            )
            assert replaced.status == 200, replaced.body
            assert (await mine.call("DELETE", "/accounts/me/channels/damaged")).status == 204


def client(session: aiohttp.ClientSession, process: GatewayProcess) -> ApiClient:
    """Return a client of the default account."""
    return ApiClient(session=session, url=process.url, key=process.key)


async def add_channel(mine: ApiClient, name: str, settings: Mapping[str, Any]) -> None:
    """Add a Telegram channel."""
    body = {"name": name, "kind": "telegram", "settings": settings}
    added = await mine.call("POST", "/accounts/me/channels", body)
    assert added.status == 201, added.body


async def wait_for_status(
    mine: ApiClient, name: str, condition: Callable[[dict[str, str]], bool]
) -> dict[str, str]:
    """Return what a channel does as soon as the condition holds."""
    async with asyncio.timeout(60):
        while True:
            status = await mine.call("GET", f"/accounts/me/channels/{name}/status")
            assert status.status == 200, status.body
            if condition(status.body):
                return dict(status.body)
            await asyncio.sleep(0.05)


async def damage(data: Path) -> None:
    """Change the stored records as an upgrade, a disk and an uninstalled plugin do."""
    database = Database(f"sqlite+aiosqlite:///{data / 'dovecote.db'}")
    async with database.begin() as connection:
        stored = {row.name: row for row in await connection.execute(select(records))}
        config = stored["refused"].config
        changes: dict[str, dict[str, Any]] = {
            "refused": {"config": {**config, "settings": {**config["settings"], "retired_setting": "1"}}},
            "damaged": {"secrets": dict.fromkeys(stored["damaged"].secrets, "x")},
            "unknown": {"config": {**stored["unknown"].config, "kind": "pigeon"}},
        }
        for name, values in changes.items():
            await connection.execute(update(records).where(records.c.id == stored[name].id).values(values))
    await database.close()
