"""`channels test` for Telegram: what is well, what is missing, and what to do about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from channels.port import CheckResult
from channels.telegram import plugin
from channels.telegram.simulator import Simulator, simulate
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from egress.guard import TRUSTED

WEBHOOK: dict[str, Any] = {
    "mode": "webhook",
    "webhook_secret": "secret_1",
    "webhook_url": "http://127.0.0.1:9/inbound",
}


@asynccontextmanager
async def probe_simulator(
    *, privacy: bool = False, joins: bool = True, **settings: Any
) -> AsyncIterator[tuple[Simulator, dict[str, CheckResult]]]:
    """Yield a simulated Telegram and what the probe finds there, by subject."""
    async with simulate(privacy=privacy) as simulator:
        simulator.world.bot["can_join_groups"] = joins
        yield simulator, await findings(simulator, **settings)


async def findings(simulator: Simulator, **settings: Any) -> dict[str, CheckResult]:
    """Return what the probe finds, by subject."""
    found = await plugin.probe(plugin.settings.model_validate(simulator.settings(**settings)), TRUSTED)
    return {finding.subject: finding for finding in found}


@pytest.mark.parametrize(
    ("settings", "is_well"),
    [
        ({}, True),
        ({"groups": "always"}, False),
        ({"rooms": {"-42": {"groups": "always"}}}, False),
        ({"rooms": {"-42": {"groups": "mention"}}}, True),
    ],
)
async def test_privacy_mode_is_checked_against_the_rooms_setting(
    settings: dict[str, Any], is_well: bool
) -> None:
    """A bot that should receive every message, and cannot, is distinguished from one that need not."""
    async with probe_simulator(privacy=True, **settings) as (_, found):
        assert found["group messages"].ok is is_well
        assert "/setprivacy" in found["group messages"].remedy


async def test_a_bot_that_may_not_join_groups_is_reported_where_rooms_are_set() -> None:
    """Rooms in the settings want a bot that can be added to them."""
    async with probe_simulator(joins=False, rooms={"-42": {}}) as (_, found):
        assert not found["groups"].ok
        assert "/setjoingroups" in found["groups"].remedy
    async with probe_simulator(joins=False) as (_, found):
        assert found["groups"].ok


async def test_a_webhook_is_compared_with_the_settings() -> None:
    """Not registered yet is no fault; posts to another address are one."""
    async with probe_simulator(**WEBHOOK) as (simulator, found):
        assert found["webhook"].ok
        assert "DOVECOTE_PUBLIC_URL" in found["webhook"].detail
        await simulator.updates.set_webhook("http://127.0.0.1:9/elsewhere", "")
        elsewhere = (await findings(simulator, **WEBHOOK))["webhook"]
    assert (elsewhere.ok, "another URL, at 127.0.0.1:9;" in elsewhere.detail) == (False, True)
    assert elsewhere.remedy


async def test_failed_posts_of_telegram_are_reported() -> None:
    """Telegram's own last error is in the finding, with the number of updates that wait."""
    async with probe_simulator(**WEBHOOK) as (simulator, _):
        await simulator.updates.set_webhook(WEBHOOK["webhook_url"], "secret_1")
        await simulator.say(7, "hello")
        await simulator.wait_until(lambda: "last_error_message" in simulator.updates.info())
        found = (await findings(simulator, **WEBHOOK))["webhook"]
    assert (found.ok, "1 updates waiting" in found.detail, "Connection failed" in found.detail) == (
        False,
        True,
        True,
    )
    assert found.remedy


async def test_a_webhook_left_behind_is_reported_when_polling() -> None:
    """Polling removes the webhook, so the probe warns about it."""
    async with probe_simulator() as (simulator, found):
        assert found["polling"].ok
        await simulator.updates.set_webhook("http://127.0.0.1:9/elsewhere", "")
        assert "to 127.0.0.1:9; polling removes it" in (await findings(simulator))["polling"].detail


async def test_the_menu_of_commands_is_looked_at() -> None:
    """Before the first start there is none, after it there is."""
    async with probe_simulator() as (simulator, found):
        assert "when the gateway starts" in found["commands"].detail
        recorder = UpdateRecorder()
        async with open_connection(plugin, simulator.settings()) as bot, receiving(bot, recorder):
            await simulator.say(7, "hello")
            await recorder.wait(1)
        assert (await findings(simulator))["commands"].detail == "the menu is set"
        await simulator.fail(502, method="getMyCommands")
        assert not (await findings(simulator))["commands"].ok
