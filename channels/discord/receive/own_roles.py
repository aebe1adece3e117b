"""The role that Discord creates for a bot in each server, with the bot's name.

Discord offers it beside the bot when a person types `@` and the name, so a mention of it is one of the bot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.discord.api import Api
from channels.discord.receive.backfill import UNREADABLE_ERRORS
from channels.inbox.text import clean, mapping, mappings
from channels.receiving.asked_once import AskedOnce


class OwnRoles:
    """The bot's own role in each server."""

    def __init__(self, api: Api, bot_id: str) -> None:
        self._api = api
        self._bot_id = bot_id
        self._roles = AskedOnce(self._ask, never=UNREADABLE_ERRORS)

    def remember(self, guild: Mapping[str, Any]) -> None:
        """Remember the role of a server that Discord describes."""
        if isinstance(guild.get("id"), str) and isinstance(guild.get("roles"), list):
            self._roles.remember(guild["id"], self._find(guild["roles"]))

    async def get(self, guild: str) -> str | None:
        """Return the id of the bot's role in a server; None if it has none. Raises ChannelError."""
        return await self._roles.get(guild) or None

    async def _ask(self, guild: str) -> str:
        return self._find(await self._api.call(self._api.bot.get_roles(guild), name="roles"))

    def _find(self, roles: object) -> str:
        own = (role for role in mappings(roles) if mapping(role.get("tags")).get("bot_id") == self._bot_id)
        return next((clean(role.get("id")) for role in own), "")
