"""`channels test` for Discord: the token, the application, what the bot may do, how things come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.discord import permissions
from channels.discord.api import Api, connect
from channels.discord.payloads import Bot
from channels.discord.settings import DiscordSettings
from channels.errors import ChannelError
from channels.port import CheckResult

CONTENT_FLAGS = (1 << 18) | (1 << 19)
"""The application's flags for the message content intent, granted or taken as a small bot."""

MIN_SESSION_STARTS = 50
"""Sessions left of the day's thousand below which something begins them too often."""

MAX_SERVERS = 5
"""Servers whose missing permissions are named."""

_REMEDIES = {
    "retry": "See whether api_url can be reached from here, then try again.",
    "give_up": "See the message of Discord.",
    "operator": "Developer Portal, Bot, Reset Token.",
}


async def probe(settings: DiscordSettings) -> tuple[CheckResult, ...]:
    """Ask Discord who the bot is, what its application may do, and where it is."""
    async with connect(settings) as api:
        try:
            bot = await api.identify()
            application = await api.call("GET", "applications/@me", name="application")
            servers = await api.call("GET", "users/@me/guilds", name="servers")
        except ChannelError as error:
            return (
                CheckResult(subject="discord", ok=False, detail=str(error), remedy=_REMEDIES[error.remedy]),
            )
        starts = await _session_start_checks(api) if settings.mode == "gateway" else ()
    application = application if isinstance(application, dict) else {}
    servers = [one for one in servers if isinstance(one, dict)] if isinstance(servers, list) else []
    return (
        CheckResult(subject="bot", ok=True, detail=f"{bot.username} ({bot.id})"),
        _application_check(application, settings, bot),
        _message_content_check(application, settings),
        _servers_check(servers, bot.application_id),
        _permissions_check(servers, bot.application_id, reacts=settings.reactions),
        _receiving_check(application, settings),
        *starts,
    )


def _application_check(application: Mapping[str, Any], settings: DiscordSettings, bot: Bot) -> CheckResult:
    """The commands go to the application's id, and posts are verified with its key."""
    number, key = str(application.get("id") or ""), str(application.get("verify_key") or "")
    if number and number != bot.application_id:
        remedy = f'Set application_id = "{number}".'
        return CheckResult(subject="application", ok=False, detail=f"its id is {number}", remedy=remedy)
    if settings.public_key and key and key.lower() != settings.public_key.lower():
        remedy = f'Set public_key = "{key}", or use the token of the same application.'
        return CheckResult(
            subject="application", ok=False, detail="public_key is another application's", remedy=remedy
        )
    return CheckResult(subject="application", ok=True, detail=f"{number or bot.application_id}, its key fits")


def _message_content_check(application: Mapping[str, Any], settings: DiscordSettings) -> CheckResult:
    flags = application.get("flags")
    granted = bool(isinstance(flags, int) and flags & CONTENT_FLAGS)
    wanted = settings.mode == "gateway" and settings.message_content
    return CheckResult(
        subject="message content",
        ok=granted or not wanted,
        detail="all messages can be read" if granted else "only private messages and mentions can be read",
        remedy=""
        if granted
        else "Developer Portal, Bot, Message Content Intent (or message_content = false).",
    )


def _invitation(application: str) -> str:
    return (
        f"https://discord.com/oauth2/authorize?client_id={application}"
        f"&scope=bot%20applications.commands&permissions={permissions.WANTED}"
    )


def _servers_check(servers: list[Mapping[str, Any]], application: str) -> CheckResult:
    return CheckResult(
        subject="servers",
        ok=True,
        detail=f"the bot is in {len(servers)}",
        remedy="" if servers else f"Invite it: {_invitation(application)}",
    )


def _permissions_check(servers: list[Mapping[str, Any]], application: str, *, reacts: bool) -> CheckResult:
    """What a server's roles grant the bot; single channels may still take it away."""
    spared = 0 if reacts else permissions.BITS["Add Reactions"]
    granted = {str(one.get("name")): _number(one.get("permissions")) | spared for one in servers}
    lacking = {name: permissions.missing(number) for name, number in granted.items()}
    lacking = {name: missing for name, missing in lacking.items() if missing}
    if not lacking:
        detail = f"all that is needed ({permissions.WANTED}), as far as servers grant it"
        return CheckResult(subject="permissions", ok=True, detail=detail)
    named = [f"{name}: {', '.join(missing)}" for name, missing in list(lacking.items())[:MAX_SERVERS]]
    remedy = f"Grant it to the bot's role there, or invite it again: {_invitation(application)}"
    return CheckResult(
        subject="permissions", ok=False, detail="missing in " + "; ".join(named), remedy=remedy
    )


def _number(value: object) -> int:
    """Without a number nothing can be said to be missing."""
    return int(value) if isinstance(value, str) and value.isdecimal() else permissions.WANTED


def _receiving_check(application: Mapping[str, Any], settings: DiscordSettings) -> CheckResult:
    url = application.get("interactions_endpoint_url")
    if settings.mode == "interactions":
        remedy = "" if url else "Developer Portal, General Information, Interactions Endpoint URL."
        return CheckResult(
            subject="interactions", ok=bool(url), detail=str(url or "no endpoint is set"), remedy=remedy
        )
    remedy = "Clear the Interactions Endpoint URL, or commands and buttons do not come by the gateway."
    return CheckResult(
        subject="gateway",
        ok=not url,
        detail="commands and buttons are posted elsewhere" if url else "ready",
        remedy=remedy if url else "",
    )


async def _session_start_checks(api: Api) -> tuple[CheckResult, ...]:
    """Say how many sessions may still be begun today; nothing where Discord does not tell."""
    try:
        told = await api.call("GET", "gateway/bot", name="gateway")
    except ChannelError:
        return ()
    limit = told.get("session_start_limit") if isinstance(told, dict) else None
    left = limit.get("remaining") if isinstance(limit, dict) else None
    if not isinstance(left, int):
        return ()
    remedy = (
        ""
        if left >= MIN_SESSION_STARTS
        else "Something connects as this bot again and again: find it and stop it."
    )
    detail = f"{left} of {limit.get('total')} are left today" if isinstance(limit, dict) else ""
    return (CheckResult(subject="sessions", ok=left >= MIN_SESSION_STARTS, detail=detail, remedy=remedy),)
