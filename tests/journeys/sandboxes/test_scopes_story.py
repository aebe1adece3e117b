"""Which conversations, users and agents share a reserved sandbox, by the isolation of its record."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_process import GatewayProcess, gateway
from telegram_gateway import send_and_wait, telegram_gateway, wait_for_message

PATIENCE = 30.0
MARK = "!echo {name} >>~/mark; sort -u ~/mark | tr '\\n' ' '"
GROUP = -4711
CALLERS = {
    "first": ("ada", "default"),
    "second": ("ada", "default"),
    "bob": ("bob", "default"),
    "other": ("ada", "other"),
    "apart": ("ada", "apart"),
}
"""Conversations by name: whose key asks in them, and which agent; `apart` has another workspace."""

SHARING = {
    "SESSION": {"first"},
    "USER": {"first", "second", "other"},
    "AGENT": {"first", "second", "bob"},
    "WORKSPACE": {"first", "second", "bob", "other"},
    "GLOBAL": {"first", "second", "bob", "other"},
}
"""Who is in one sandbox with `first`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopesGateway:
    """A gateway, and the keys of two users."""

    process: GatewayProcess
    keys: dict[str, str]

    async def ask(self, method: str, path: str, body: Any = None, *, person: str = "ada") -> Any:
        """Make one request with a person's key."""
        headers = {"Authorization": f"Bearer {self.keys[person]}"}
        async with (
            aiohttp.ClientSession(self.process.url, headers=headers) as session,
            session.request(method, path, json=body) as answer,
        ):
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def seen(self, caller: str, conversation: str) -> set[str]:
        """Leave a mark in HOME and return the marks that are there."""
        person, agent = CALLERS[caller]
        body = {"input": MARK.format(name=caller), "conversation": conversation}
        taken = await self.ask("POST", f"/agents/{agent}/turns", body, person=person)
        async with asyncio.timeout(PATIENCE):
            while True:
                turn = await self.ask("GET", f"/status/{taken['turnId']}")
                if turn["state"] not in ("queued", "running"):
                    return set(turn["output"].split()) & CALLERS.keys()
                await asyncio.sleep(0.02)


@pytest.fixture
async def scopes_gateway(tmp_path: Path) -> AsyncIterator[ScopesGateway]:
    """Run a gateway with three agents on two workspaces."""
    async with gateway(tmp_path / "data") as process:
        harness = ScopesGateway(process=process, keys={"ada": process.key})
        made = await harness.ask("POST", "/accounts/me/keys", {"name": "bob", "scopes": ["chat"]})
        harness.keys["bob"] = made["key"]
        await harness.ask("POST", "/accounts/me/workspaces", {"name": "apart"})
        for name, workspace in (("other", "default"), ("apart", "apart")):
            use = {"name": "work", "workspaceId": workspace}
            config = {"sandbox": "default", "workspaces": [use]}
            await harness.ask("POST", "/accounts/me/agents", {"name": name, "config": config})
        yield harness


async def test_a_scope_says_who_works_in_one_sandbox(scopes_gateway: ScopesGateway) -> None:
    """Each sees what those left in HOME with whom it shares, and nothing of anybody else's."""
    for scope, sharers in SHARING.items():
        await scopes_gateway.ask("PATCH", "/accounts/me/sandboxes/default", {"config": {"isolation": scope}})
        for caller in CALLERS:
            await scopes_gateway.seen(caller, f"{scope}-{caller}")
        assert await scopes_gateway.seen("first", f"{scope}-first") == sharers, scope
        apart = await scopes_gateway.seen("apart", f"{scope}-apart")
        assert apart == {"apart"}, scope


async def test_people_of_a_group_have_sandboxes_of_their_own(tmp_path: Path) -> None:
    """With USER two users in one room do not share, one in two rooms does; the name includes the platform."""
    async with telegram_gateway(tmp_path / "data") as (platform, process):
        await platform.group(GROUP)
        async with process.http() as session:
            change = {"config": {"isolation": "USER"}}
            async with session.patch("/accounts/me/sandboxes/default", json=change) as answer:
                assert answer.status == 200
        await platform.say(GROUP, "@dovecote_bot !echo of-ada >~/mark; echo kept", user=7)
        await wait_for_message(platform, "kept", chat=GROUP)
        await platform.say(GROUP, "@dovecote_bot !cat ~/mark || echo nothing-here", user=8)
        await wait_for_message(platform, "nothing-here", chat=GROUP)
        assert "of-ada" in await send_and_wait(platform, "!cat ~/mark", containing="of-ada", chat=7)
        with closing(
            sqlite3.connect(f"{(process.data / 'dovecote.db').as_uri()}?mode=ro", uri=True)
        ) as database:
            owners = {person for (person,) in database.execute("SELECT person FROM sandboxes")}
        assert owners == {"telegram:7", "telegram:8"}
