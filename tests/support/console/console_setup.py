"""What a person and another program do to the set-up places of the console, for its journeys."""

from __future__ import annotations

import json
from typing import Any

from playwright.async_api import Locator, Page

from channels.telegram.simulator import Simulator
from gateway_process import GatewayProcess


async def records(gateway: GatewayProcess, collection: str) -> list[dict[str, Any]]:
    """Return the account's records of a collection."""
    async with gateway.http() as session, session.get(f"/accounts/me/{collection}?limit=100") as response:
        found: list[dict[str, Any]] = (await response.json())["items"]
        return found


async def change(gateway: GatewayProcess, path: str, config: dict[str, Any]) -> None:
    """Change a record's config, as another tab or program does."""
    body = {"config": config}
    async with gateway.http() as session, session.patch(f"/accounts/me/{path}", json=body) as response:
        assert response.status == 200, await response.text()


def fault_of(field: Locator) -> Locator:
    """Return the fault that is shown at a field."""
    return field.locator("xpath=ancestor::div[1]").locator(".fault")


async def add_agent(gateway: GatewayProcess, name: str, config: dict[str, Any]) -> None:
    """Add an agent as a program does."""
    body = {"name": name, "config": config}
    async with gateway.http() as session, session.post("/accounts/me/agents", json=body) as response:
        assert response.status == 201, await response.text()


async def add_key(gateway: GatewayProcess, name: str) -> None:
    """Add a key that may read, as a program does."""
    body = {"name": name, "scopes": ["read"]}
    async with gateway.http() as session, session.post("/accounts/me/keys", json=body) as response:
        assert response.status == 201, await response.text()


async def connect_telegram(page: Page, platform: Simulator, name: str) -> None:
    """Fill in the form of a Telegram bot and send it."""
    form = page.get_by_role("form", name="Connect Telegram")
    await form.get_by_label("Name").fill(name)
    await form.get_by_label("Bot token").fill(str(platform.settings()["token"]))
    base_url = platform.settings()["base_url"]
    await form.get_by_label("Further settings").fill(json.dumps({"base_url": base_url, "allow": ["pairing"]}))
    await form.get_by_role("button", name="Connect").click()
