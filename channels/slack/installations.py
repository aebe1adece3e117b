"""The workspaces that installed an app, and the states of installations in progress, as the SDK stores them.

An app that a whole organisation installed has one installation, under the organisation's id.
"""

from __future__ import annotations

import json
import re
import secrets as random
import time
from datetime import datetime
from typing import Any

from slack_sdk.oauth.installation_store import Bot as InstalledBot
from slack_sdk.oauth.installation_store import Installation
from slack_sdk.oauth.installation_store.async_installation_store import AsyncInstallationStore
from slack_sdk.oauth.state_store.async_state_store import AsyncOAuthStateStore

from channels.port import RECENT_PREFIX, ChannelSecrets

STATE_SECONDS = 600
PAGE_SIZE = 200
_PREFIX = "installation:"
_ID = re.compile(r"[A-Z0-9]{1,40}")
_STATE = re.compile(r"[A-Za-z0-9_-]{43}")


def owner_of(bot: InstalledBot) -> str:
    """Return the id of the workspace or organisation that installed a bot."""
    return (bot.enterprise_id if bot.is_enterprise_install else bot.team_id) or ""


class ChannelInstallationStore(AsyncInstallationStore):
    """The bots of one app, one for each workspace or organisation; their tokens are encrypted.

    `saved` is the bot that was stored last.
    """

    def __init__(self, secrets: ChannelSecrets) -> None:
        self._secrets = secrets
        self.saved: InstalledBot | None = None

    async def async_save(self, installation: Installation) -> None:
        """Store the bot of an installation; the tokens of people are not kept."""
        await self.async_save_bot(installation.to_bot())

    async def async_save_bot(self, bot: InstalledBot) -> None:
        """Store a bot, in place of an earlier one of the same workspace."""
        owner = owner_of(bot)
        if not owner or not _ID.fullmatch(owner) or not bot.bot_token:
            raise ValueError("the installation names no workspace, or has no bot token: add bot scopes")
        await self._secrets.set(_PREFIX + owner, json.dumps(bot.to_dict(), default=datetime.isoformat))
        self.saved = bot

    async def async_find_bot(
        self, *, enterprise_id: str | None, team_id: str | None, is_enterprise_install: bool | None = False
    ) -> InstalledBot | None:
        """Return the bot of a workspace, or that of its organisation, or None."""
        for owner in ("" if is_enterprise_install else team_id, enterprise_id):
            found = await self.find_bot(owner or "")
            if found is not None:
                return found
        return None

    async def find_bot(self, owner: str) -> InstalledBot | None:
        """Return the bot of the workspace or organisation with this id, or None."""
        found = await self._secrets.get(_PREFIX + owner) if _ID.fullmatch(owner) else None
        return None if found is None else InstalledBot(**json.loads(found))

    async def list_bots(self, *, after: str, limit: int) -> list[InstalledBot]:
        """Return the bots of the owners whose ids follow `after`, in the order of ids."""
        found = await self._secrets.list(_PREFIX, after=_PREFIX + after, limit=limit)
        return [InstalledBot(**json.loads(one)) for one in found.values()]

    async def list_owners(self) -> dict[str, str]:
        """Return the owner of each bot, by the bot's user id."""
        owners: dict[str, str] = {}
        page = await self.list_bots(after="", limit=PAGE_SIZE)
        while page:
            owners |= {bot.bot_user_id: owner_of(bot) for bot in page}
            page = await self.list_bots(after=owner_of(page[-1]), limit=PAGE_SIZE)
        return owners

    async def async_delete_bot(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        """Forget the bot of a workspace, or that of the organisation if no workspace is named."""
        owner = team_id or enterprise_id
        if owner and _ID.fullmatch(owner):
            await self._secrets.set(_PREFIX + owner, None)

    async def async_delete_all(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        """Forget all that is stored of a workspace."""
        await self.async_delete_bot(enterprise_id=enterprise_id, team_id=team_id)

    async def async_delete_installation(self, **_owner: Any) -> None:
        """Forget a person's installation: there is nothing to forget."""


class ChannelStateStore(AsyncOAuthStateStore):
    """The states of installations in progress: each is valid once, for ten minutes, on every replica."""

    def __init__(self, secrets: ChannelSecrets) -> None:
        self._secrets = secrets

    async def async_issue(self, *_args: Any, **_kwargs: Any) -> str:
        """Return a new state."""
        state = random.token_urlsafe(32)
        await self._secrets.set(_state_name(state), str(int(time.time())))
        return state

    async def async_consume(self, state: str) -> bool:
        """Return whether a state was issued and not used yet; it is used then."""
        if not _STATE.fullmatch(state or ""):
            return False
        issued = await self._secrets.take(_state_name(state))
        return issued is not None and time.time() - int(issued) <= STATE_SECONDS


def _state_name(state: str) -> str:
    return f"{RECENT_PREFIX}oauth-state:{state}"
