"""`dovecote channels test`: the token, its scopes, and the way events come in."""

from __future__ import annotations

from collections.abc import Mapping

from channels.errors import ChannelError
from channels.port import Finding
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


async def probe(settings: SlackSettings) -> tuple[Finding, ...]:
    """Look at a configured app, without sending anything."""
    async with connect(settings) as api:
        findings = await _token(api)
        findings.append(await _socket(api) if settings.mode == "socket" else _posts())
    return tuple(findings)


async def _token(api: Api) -> list[Finding]:
    try:
        bot, scopes = await api.introduce()
    except ChannelError as error:
        remedy = f"copy the Bot User OAuth Token (xoxb-…) from {_OAUTH}; check base_url"
        return [Finding(subject="bot token", ok=False, detail=str(error), remedy=remedy)]
    return [_identity(bot), _granted(scopes)]


def _identity(bot: Bot) -> Finding:
    if not bot.bot_id:
        return Finding(
            subject="bot token",
            ok=False,
            detail=f"it is the token of the person {bot.id}, not of a bot",
            remedy=f"copy the Bot User OAuth Token (xoxb-…), not the User OAuth Token, from {_OAUTH}",
        )
    return Finding(subject="bot token", ok=True, detail=f"user {bot.id} of workspace {bot.team or '?'}")


def _granted(scopes: frozenset[str] | None) -> Finding:
    """Name each scope that is missing, and what does not work without it."""
    if scopes is None:
        return Finding(subject="scopes", ok=True, detail="Slack did not say which ones the token has")
    missing = [f"{scope} ({why})" for scope, why in SCOPES.items() if scope not in scopes]
    if missing:
        return Finding(
            subject="scopes",
            ok=False,
            detail="missing: " + ", ".join(missing),
            remedy=f"{_OAUTH}, Bot Token Scopes: add them, then Reinstall to Workspace",
        )
    return Finding(subject="scopes", ok=True, detail=f"all {len(SCOPES)} that are needed are granted")


async def _socket(api: Api) -> Finding:
    try:
        await api.socket_url()
    except ChannelError as error:
        return Finding(
            subject="socket mode",
            ok=False,
            detail=str(error),
            remedy="https://api.slack.com/apps: your app, Socket Mode: switch it on; Basic Information, "
            "App-Level Tokens: make one with connections:write (xapp-…)",
        )
    return Finding(subject="socket mode", ok=True, detail="the app-level token opens a socket")


def _posts() -> Finding:
    return Finding(
        subject="posts",
        ok=True,
        detail="signed posts are taken; Slack tells only on its own page whether it knows our address: "
        "Event Subscriptions, Request URL has to say Verified",
    )
