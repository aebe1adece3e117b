"""`channels test` for Discord: the token, what the bot may read, and how things come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.discord.api import connect
from channels.discord.settings import DiscordSettings
from channels.errors import ChannelError
from channels.port import Finding

CONTENT_FLAGS = (1 << 18) | (1 << 19)
"""The application's flags for the message content intent, granted or taken as a small bot."""

PERMISSIONS = 274878008320
"""View channels, send messages (also in threads), attach files, read message history."""

_REMEDIES = {
    "retry": "See whether api_url can be reached from here, then try again.",
    "give_up": "See the message of Discord.",
    "operator": "Developer Portal, Bot, Reset Token.",
}


async def probe(settings: DiscordSettings) -> tuple[Finding, ...]:
    """Ask Discord who the bot is, what its application may do, and where it is."""
    async with connect(settings) as api:
        try:
            bot = await api.identify()
            application = await api.call("GET", "applications/@me", name="application")
            servers = await api.call("GET", "users/@me/guilds", name="servers")
        except ChannelError as error:
            return (Finding(subject="discord", ok=False, detail=str(error), remedy=_REMEDIES[error.remedy]),)
    application = application if isinstance(application, dict) else {}
    return (
        Finding(subject="bot", ok=True, detail=f"{bot.username} ({bot.id})"),
        _content(application, settings),
        _servers(servers, bot.application_id),
        _reception(application, settings),
    )


def _content(application: Mapping[str, Any], settings: DiscordSettings) -> Finding:
    flags = application.get("flags")
    granted = bool(isinstance(flags, int) and flags & CONTENT_FLAGS)
    wanted = settings.mode == "gateway" and settings.message_content
    return Finding(
        subject="message content",
        ok=granted or not wanted,
        detail="all messages can be read" if granted else "only private messages and mentions can be read",
        remedy=""
        if granted
        else "Developer Portal, Bot, Message Content Intent (or message_content = false).",
    )


def _servers(servers: object, application: str) -> Finding:
    count = len(servers) if isinstance(servers, list) else 0
    invitation = (
        f"https://discord.com/oauth2/authorize?client_id={application}"
        f"&scope=bot%20applications.commands&permissions={PERMISSIONS}"
    )
    return Finding(
        subject="servers",
        ok=True,
        detail=f"the bot is in {count}",
        remedy="" if count else f"Invite it: {invitation}",
    )


def _reception(application: Mapping[str, Any], settings: DiscordSettings) -> Finding:
    url = application.get("interactions_endpoint_url")
    if settings.mode == "interactions":
        remedy = "" if url else "Developer Portal, General Information, Interactions Endpoint URL."
        return Finding(
            subject="interactions", ok=bool(url), detail=str(url or "no endpoint is set"), remedy=remedy
        )
    remedy = "Clear the Interactions Endpoint URL, or commands and buttons do not come by the gateway."
    return Finding(
        subject="gateway",
        ok=not url,
        detail="commands and buttons are posted elsewhere" if url else "ready",
        remedy=remedy if url else "",
    )
