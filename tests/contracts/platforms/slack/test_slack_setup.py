"""Slack's setup: what the probe reports of a token, and that the manifest asks for what is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from aiohttp import web

from channels.port import CheckResult
from channels.slack import plugin
from channels.slack.scopes import SCOPES
from channels.slack.settings import SlackSettings
from channels.slack.simulator import Simulator
from channels.slack.simulator.api.scopes import ALL_SCOPES
from egress.guard import TRUSTED
from slack_connections import SECRET, slack_simulator  # noqa: F401 - fixtures

MANIFEST = Path(__file__).parents[4] / "docs/guide/channels/slack-manifest.yaml"
SAMPLES = Path(__file__).parents[4] / "channels/slack/samples"


async def found(settings: dict[str, Any]) -> dict[str, CheckResult]:
    """Return what `dovecote channels test` finds, by subject."""
    return {one.subject: one for one in await plugin.probe(SlackSettings(**settings), TRUSTED)}


def manifest() -> Any:
    """Return the manifest that users paste."""
    return yaml.safe_load(MANIFEST.read_text())


async def test_a_well_set_up_app_is_well(simulator: Simulator) -> None:
    """Token, workspace, scopes and socket are named."""
    findings = await found(simulator.settings())
    assert all(one.ok for one in findings.values())
    assert list(findings) == ["bot token", "scopes", "socket mode"]
    assert "U0BOT" in findings["bot token"].detail
    assert "T0SIMULATED" in findings["bot token"].detail


@pytest.mark.parametrize("missing", sorted(SCOPES))
async def test_each_missing_scope_is_named_with_what_to_do(simulator: Simulator, missing: str) -> None:
    """The operator reads the scope, what it is for and where to click."""
    await simulator.grant(ALL_SCOPES - {missing})
    finding = (await found(simulator.settings()))["scopes"]
    assert (finding.ok, missing in finding.detail) == (False, True)
    assert "OAuth & Permissions" in finding.remedy
    assert "Reinstall" in finding.remedy


async def test_an_app_token_that_is_none_is_reported(simulator: Simulator) -> None:
    """The bot's token in the app token's place opens no socket."""
    finding = (await found(simulator.settings(app_token=simulator.tokens[0])))["socket mode"]
    assert (finding.ok, "xapp-" in finding.remedy) == (False, True)
    assert simulator.tokens[0] not in repr(finding)


async def test_http_mode_asks_for_no_socket(simulator: Simulator) -> None:
    """The probe checks what it can, and names the rest."""
    findings = await found(simulator.settings(mode="http", signing_secret=SECRET))
    assert list(findings) == ["bot token", "scopes", "posts"]
    assert not [call for call in simulator.calls if call[0] == "apps.connections.open"]


@pytest.mark.parametrize("name", ["client_id", "client_secret"])
async def test_a_wrong_client_id_or_secret_is_reported(simulator: Simulator, name: str) -> None:
    """No workspace has installed the app yet; Slack refuses the id or secret and not the code."""
    right = await found(simulator.app_settings())
    wrong = await found(simulator.app_settings(**{name: "9.9"}))
    assert list(right) == ["client id and secret", "installation", "socket mode"]
    assert all(one.ok for one in right.values())
    finding = wrong["client id and secret"]
    assert (finding.ok, finding.detail) == (False, "oauth.v2.access: bad_client_secret")
    assert "Basic Information" in finding.remedy


async def test_a_persons_token_is_distinguished_from_a_bots() -> None:
    """It would speak in the person's name."""

    async def identify(_: web.Request) -> web.Response:
        return web.json_response({"ok": True, "user_id": "U0ADA", "team_id": "T0"})

    application = web.Application()
    application.router.add_post("/api/auth.test", identify)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/"
        given = {"bot_token": "xoxp-1", "signing_secret": SECRET, "mode": "http", "base_url": url}
        findings = await found(given)
    finally:
        await runner.cleanup()
    assert (findings["bot token"].ok, findings["scopes"].ok) == (False, True)
    assert "User OAuth Token" in findings["bot token"].remedy


def test_the_manifest_asks_for_the_scopes_the_probe_wants() -> None:
    """Neither list grows without the other."""
    assert manifest()["oauth_config"]["scopes"]["bot"] == sorted(SCOPES)


def test_the_manifest_subscribes_to_every_event_that_is_decoded() -> None:
    """Each recorded event that becomes an update comes by a subscription; so do those of `agent_view`."""
    events = set(manifest()["settings"]["event_subscriptions"]["bot_events"])
    reported = {event.partition(".")[0] for event in events}
    for path in SAMPLES.iterdir():
        sample = json.loads(path.read_text())
        if sample["update"].get("type") == "events_api" and sample["expected"]["type"] != "IgnoredUpdate":
            assert sample["update"]["payload"]["event"]["type"] in reported, path.name
    assert {
        "app_home_opened",
        "app_context_changed",
        "message.im",
        "message.channels",
        "message.groups",
    } <= events


def test_the_manifest_has_the_command_the_buttons_and_the_agent() -> None:
    """Pasting it is all there is to do, in Socket Mode."""
    app = manifest()
    assert [one["command"] for one in app["features"]["slash_commands"]] == ["/dovecote"]
    assert app["features"]["agent_view"]["agent_description"]
    assert app["features"]["app_home"]["messages_tab_read_only_enabled"] is False
    assert app["settings"]["interactivity"]["is_enabled"] is True
    assert app["settings"]["socket_mode_enabled"] is True
