"""`dovecote channels test`: the token, its scopes, and the way events come in."""

from __future__ import annotations

from collections.abc import Mapping

from channels.errors import ChannelError
from channels.port import CheckResult
from channels.slack.api import Api, connect
from channels.slack.payloads import Bot
from channels.slack.settings import SlackSettings

SCOPES: Mapping[str, str] = {
    "app_mentions:read": "to be told when it is mentioned",
    "assistant:write": "to be opened as an assistant beside other channels",
    "channels:history": "to hear public channels, and to see what it said there",
    "chat:write": "to speak",
    "commands": "for /dovecote",
    "files:read": "to fetch what people attach",
    "files:write": "to send files",
    "groups:history": "to hear private channels it was invited to",
    "im:history": "to hear private messages",
    "mpim:history": "to hear private groups",
    "reactions:read": "to be told of signs under messages",
    "reactions:write": "to show by a sign that it saw a message",
}
"""What the app's manifest asks for, and why."""

_OAUTH = "https://api.slack.com/apps: your app, OAuth & Permissions"


async def probe(settings: SlackSettings) -> tuple[CheckResult, ...]:
    """Look at a configured app, without sending anything."""
    async with connect(settings) as api:
        findings = await _token_checks(api)
        findings.append(await _socket_check(api) if settings.mode == "socket" else _http_check())
    return tuple(findings)


async def _token_checks(api: Api) -> list[CheckResult]:
    try:
        bot, scopes = await api.auth_test()
    except ChannelError as error:
        remedy = f"copy the Bot User OAuth Token (xoxb-…) from {_OAUTH}; check base_url"
        return [CheckResult(subject="bot token", ok=False, detail=str(error), remedy=remedy)]
    return [_identity_check(bot), _scopes_check(scopes)]


def _identity_check(bot: Bot) -> CheckResult:
    if not bot.bot_id:
        return CheckResult(
            subject="bot token",
            ok=False,
            detail=f"it is the token of the person {bot.id}, not of a bot",
            remedy=f"copy the Bot User OAuth Token (xoxb-…), not the User OAuth Token, from {_OAUTH}",
        )
    return CheckResult(subject="bot token", ok=True, detail=f"user {bot.id} of workspace {bot.team or '?'}")


def _scopes_check(scopes: frozenset[str] | None) -> CheckResult:
    """Name each scope that is missing, and what does not work without it."""
    if scopes is None:
        return CheckResult(subject="scopes", ok=True, detail="Slack did not say which ones the token has")
    missing = [f"{scope} ({why})" for scope, why in SCOPES.items() if scope not in scopes]
    if missing:
        return CheckResult(
            subject="scopes",
            ok=False,
            detail="missing: " + ", ".join(missing),
            remedy=f"{_OAUTH}, Bot Token Scopes: add them, then Reinstall to Workspace",
        )
    return CheckResult(subject="scopes", ok=True, detail=f"all {len(SCOPES)} that are needed are granted")


async def _socket_check(api: Api) -> CheckResult:
    try:
        await api.socket_url()
    except ChannelError as error:
        return CheckResult(
            subject="socket mode",
            ok=False,
            detail=str(error),
            remedy="https://api.slack.com/apps: your app, Socket Mode: switch it on; Basic Information, "
            "App-Level Tokens: make one with connections:write (xapp-…)",
        )
    return CheckResult(subject="socket mode", ok=True, detail="the app-level token opens a socket")


def _http_check() -> CheckResult:
    return CheckResult(
        subject="posts",
        ok=True,
        detail="signed posts are taken; Slack tells only on its own page whether it knows our address: "
        "Event Subscriptions, Request URL has to say Verified",
    )
