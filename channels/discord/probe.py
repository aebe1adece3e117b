"""Check a configured bot: the token, the application, its permissions, and how updates arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from discord.http import Route

from channels.discord import permissions
from channels.discord.api import Api, connect
from channels.discord.payloads import Bot
from channels.discord.settings import DiscordSettings
from channels.errors import ChannelError
from channels.inbox.checks import check
from channels.port import CheckResult
from egress.guard import EgressGuard

CONTENT_FLAGS = (1 << 18) | (1 << 19)
"""The application flags of the message content intent: granted, or allowed as a small bot."""

MIN_SESSION_STARTS = 50
"""Warn below this number of remaining sessions; Discord allows a thousand a day."""

MAX_SERVERS = 5
"""The number of servers whose missing permissions are listed."""

_REMEDIES = {
    "retry": "Check that api_url can be reached from this host, then try again.",
    "give_up": "Read Discord's message.",
    "operator": "Developer Portal, Bot, Reset Token.",
}


async def probe(settings: DiscordSettings, guard: EgressGuard) -> tuple[CheckResult, ...]:
    """Ask Discord about the bot, its application and its servers; return one result per check."""
    async with connect(settings, guard) as api:
        try:
            bot = await api.identify()
            application = await api.call(
                api.bot.request(Route("GET", "/applications/@me")), name="application"
            )
            servers = await api.call(api.bot.request(Route("GET", "/users/@me/guilds")), name="servers")
        except ChannelError as error:
            return (check("discord", "", problem=str(error), remedy=_REMEDIES[error.remedy]),)
        starts = await _session_start_checks(api) if settings.mode == "gateway" else ()
    application = application if isinstance(application, dict) else {}
    servers = [one for one in servers if isinstance(one, dict)] if isinstance(servers, list) else []
    return (
        check("bot", f"{bot.username} ({bot.id})"),
        _application_check(application, settings, bot),
        _message_content_check(application, settings),
        _servers_check(servers, bot.application_id),
        _permissions_check(servers, bot.application_id, reacts=settings.reactions),
        _receiving_check(application, settings),
        *starts,
    )


def _application_check(application: Mapping[str, Any], settings: DiscordSettings, bot: Bot) -> CheckResult:
    """Compare the application's id and public key with the settings."""
    number, key = str(application.get("id") or ""), str(application.get("verify_key") or "")
    if number and number != bot.application_id:
        remedy = f'Set application_id = "{number}".'
        return check("application", "", problem=f"the application's id is {number}", remedy=remedy)
    if settings.public_key and key and key.lower() != settings.public_key.lower():
        remedy = f'Set public_key = "{key}", or use the token of the same application.'
        return check("application", "", problem="public_key belongs to another application", remedy=remedy)
    return check("application", f"{number or bot.application_id}, the public key matches")


def _message_content_check(application: Mapping[str, Any], settings: DiscordSettings) -> CheckResult:
    flags = application.get("flags")
    granted = bool(isinstance(flags, int) and flags & CONTENT_FLAGS)
    needed = settings.mode == "gateway" and settings.message_content
    return CheckResult(
        subject="message content",
        ok=granted or not needed,
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
        detail=f"the bot is in {len(servers)} servers",
        remedy="" if servers else f"Invite it: {_invitation(application)}",
    )


def _permissions_check(servers: list[Mapping[str, Any]], application: str, *, reacts: bool) -> CheckResult:
    """Check what the servers' roles grant the bot; a channel may still deny it."""
    not_needed = 0 if reacts else permissions.BITS["Add Reactions"]
    granted = {str(one.get("name")): _number(one.get("permissions")) | not_needed for one in servers}
    missing_by_server = {name: permissions.missing(number) for name, number in granted.items()}
    missing_by_server = {name: missing for name, missing in missing_by_server.items() if missing}
    if not missing_by_server:
        detail = f"all needed permissions ({permissions.WANTED}) are granted by the servers"
        return check("permissions", detail)
    listed = [
        f"{name}: {', '.join(missing)}" for name, missing in list(missing_by_server.items())[:MAX_SERVERS]
    ]
    remedy = f"Grant it to the bot's role there, or invite it again: {_invitation(application)}"
    return check("permissions", "", problem="missing in " + "; ".join(listed), remedy=remedy)


def _number(value: object) -> int:
    """Return the granted permissions; assume all if Discord does not state them."""
    return int(value) if isinstance(value, str) and value.isdecimal() else permissions.WANTED


def _receiving_check(application: Mapping[str, Any], settings: DiscordSettings) -> CheckResult:
    url = application.get("interactions_endpoint_url")
    if settings.mode == "interactions":
        remedy = "" if url else "Developer Portal, General Information, Interactions Endpoint URL."
        return CheckResult(
            subject="interactions", ok=bool(url), detail=str(url or "no endpoint is set"), remedy=remedy
        )
    remedy = "Clear the Interactions Endpoint URL, or commands and buttons do not arrive by the gateway."
    return CheckResult(
        subject="gateway",
        ok=not url,
        detail="commands and buttons are posted to another URL" if url else "ready",
        remedy=remedy if url else "",
    )


async def _session_start_checks(api: Api) -> tuple[CheckResult, ...]:
    """Report how many sessions are left today; empty if Discord does not state it."""
    try:
        gateway = await api.call(api.bot.request(Route("GET", "/gateway/bot")), name="gateway")
    except ChannelError:
        return ()
    limit = gateway.get("session_start_limit") if isinstance(gateway, dict) else None
    remaining = limit.get("remaining") if isinstance(limit, dict) else None
    if not isinstance(remaining, int):
        return ()
    detail = f"{remaining} of {limit.get('total')} are left today" if isinstance(limit, dict) else ""
    problem = "" if remaining >= MIN_SESSION_STARTS else detail
    remedy = "A program connects as this bot again and again: find and stop it."
    return (check("sessions", detail, problem=problem, remedy=remedy),)
