"""The workspaces of an app, each with its bot and the Web API with that bot's token."""

from __future__ import annotations

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from slack_sdk.errors import SlackApiError, SlackTokenRotationError
from slack_sdk.oauth.installation_store import Bot as InstalledBot
from slack_sdk.oauth.token_rotation.async_rotator import AsyncTokenRotator

from channels.errors import ChannelError, Unauthorized, Unreachable
from channels.inbox.tokens import finish_renewal
from channels.message import Address
from channels.slack.api import Api
from channels.slack.errors import translate_error
from channels.slack.installations import ChannelInstallationStore
from channels.slack.payloads import Bot

ROTATE_MINUTES = 120
"""Minutes before a token expires when it is replaced; it lives for twelve hours."""

CHECK_SECONDS, RETRY_SECONDS = 600.0, 10.0
"""Seconds between checks of a bot token, and after a check that failed."""

OWNERS_SECONDS = 30.0
"""Seconds for which it is remembered whose bot each user is."""

REFUSED_SECONDS = 60.0
"""Seconds before a valid token is replaced, after an attempt that failed."""

_ROTATION_ERRORS = (SlackApiError, SlackTokenRotationError, KeyError, TypeError, ValueError)

TEAM, ENTERPRISE = "team", "enterprise"
UNINSTALL_EVENTS = frozenset({"app_uninstalled", "tokens_revoked"})

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """One workspace: its bot, the Web API as that bot, and what an address there carries to find it again."""

    bot: Bot
    api: Api
    extras: Mapping[str, str] = field(default_factory=dict)


class SlackWorkspaces(Protocol):
    """Where an app is installed."""

    @abstractmethod
    async def find(self, *, team: str, enterprise: str) -> Workspace | None:
        """Return a workspace, None if the app is not installed there; raises ChannelError."""

    @abstractmethod
    async def delete(self, event: Mapping[str, Any], *, team: str, enterprise: str, at: float) -> None:
        """Handle an uninstallation or a revocation of tokens that happened at a time."""

    async def find_mentioned(self, users: Collection[str]) -> Workspace | None:
        """Return the workspace whose bot is one of these users; raises ChannelError."""
        del users
        return None

    async def watch(self) -> None:
        """Wait until cancelled; raises Unauthorized once no workspace can be served."""
        await asyncio.Event().wait()


class SingleWorkspace(SlackWorkspaces):
    """The workspace of a bot token; a request that names no workspace is for it.

    Slack keeps a socket open whose bot token it has revoked, so the token is checked now and then.
    """

    def __init__(self, api: Api, bot: Bot, *, check_seconds: float = CHECK_SECONDS) -> None:
        self._workspace = Workspace(bot=bot, api=api)
        self._has_ignored = False
        self._check_seconds = check_seconds
        self._is_doubted = asyncio.Event()

    async def find(self, *, team: str, enterprise: str) -> Workspace | None:
        """Return the workspace, None for any other."""
        bot = self._workspace.bot
        own, given = (bot.enterprise, enterprise) if bot.is_org_wide else (bot.team, team)
        if own and given and given != own:
            if not self._has_ignored:
                log.warning("slack.workspace_ignored", workspace=given, reason="the bot_token is not of it")
            self._has_ignored = True
            return None
        return self._workspace

    async def delete(self, event: Mapping[str, Any], *, team: str, enterprise: str, at: float) -> None:
        """Let `watch` check the token, which belongs to the channel's settings."""
        del event, at
        if await self.find(team=team, enterprise=enterprise) is not None:
            self._is_doubted.set()

    async def watch(self) -> None:
        """Check the token now and then, and after a revocation; raises Unauthorized once Slack refuses it."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._check_seconds):
                    await self._is_doubted.wait()
            try:
                await self._workspace.api.identify()
                self._is_doubted.clear()
            except Unauthorized as error:
                raise Unauthorized(f"{error}: install the app again and set its bot_token") from error
            except ChannelError as error:
                log.warning("slack.token_not_checked", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)


class InstalledWorkspaces(SlackWorkspaces):
    """The workspaces that installed the app; expiring tokens are replaced when they are used."""

    def __init__(self, api: Api, store: ChannelInstallationStore) -> None:
        secret = api.settings.client_secret
        self._api = api
        self._store = store
        self._rotator = AsyncTokenRotator(
            client_id=api.settings.client_id or "",
            client_secret=secret.get_secret_value() if secret else "",
            client=api.client(None),
        )
        self._rotation = asyncio.Lock()
        self._refused_until: dict[str, float] = {}
        self._unstored: dict[str, InstalledBot] = {}
        """Bots with new tokens while storing them fails, by the refresh token that was used up for them."""
        self._owners: dict[str, str] = {}
        self._owners_until = float("-inf")

    async def find(self, *, team: str, enterprise: str) -> Workspace | None:
        """Return a workspace, with the token that is to be used now.

        An expired token that Slack refuses to replace is returned too: what the workspace sends is kept, and
        a call with the token is refused until the app is installed again.
        """
        installed = await self._store.async_find_bot(enterprise_id=enterprise, team_id=team)
        if installed is None:
            return None
        if _is_expiring(installed):
            installed = await finish_renewal(self._rotate(team=team, enterprise=enterprise))
        if installed is None:
            return None
        bot = Bot(
            id=installed.bot_user_id,
            bot_id=installed.bot_id or "",
            team=team or installed.team_id or "",
            enterprise=enterprise or installed.enterprise_id or "",
        )
        extras = {TEAM: bot.team} | ({ENTERPRISE: bot.enterprise} if bot.enterprise else {})
        return Workspace(bot=bot, api=self._api.with_token(installed.bot_token), extras=extras)

    async def find_mentioned(self, users: Collection[str]) -> Workspace | None:
        """Return the workspace whose bot is one of these users."""
        if time.monotonic() >= self._owners_until:
            self._owners = await self._store.list_owners()
            self._owners_until = time.monotonic() + OWNERS_SECONDS
        owners = [self._owners[user] for user in users if user in self._owners]
        installed = await self._store.find_bot(owners[0]) if owners else None
        if installed is None:
            return None
        return await self.find(team=installed.team_id or "", enterprise=installed.enterprise_id or "")

    async def delete(self, event: Mapping[str, Any], *, team: str, enterprise: str, at: float) -> None:
        """Delete an installation, unless it is newer than the event."""
        tokens = event.get("tokens")
        revoked = tokens.get("bot") if isinstance(tokens, dict) else None
        if event.get("type") == "tokens_revoked" and not revoked:
            return  # the tokens of people, which are not kept
        installed = await self._store.async_find_bot(enterprise_id=enterprise, team_id=team)
        if installed is not None and int(installed.installed_at) <= at:
            owner = {} if installed.is_enterprise_install else {"team_id": installed.team_id}
            await self._store.async_delete_all(
                **{"enterprise_id": installed.enterprise_id, "team_id": None, **owner}
            )
            log.info("slack.uninstalled", workspace=team or enterprise)

    async def _rotate(self, *, team: str, enterprise: str) -> InstalledBot | None:
        """Replace an expiring token, once; another replica may have done it already."""
        async with self._rotation:
            installed = await self._store.async_find_bot(enterprise_id=enterprise, team_id=team)
            if installed is None or not _is_expiring(installed):
                return installed
            used = installed.bot_refresh_token or ""
            if time.monotonic() < self._refused_until.get(used, 0.0):
                return installed
            try:
                rotated = self._unstored.get(used) or await self._rotator.perform_bot_token_rotation(
                    bot=installed, minutes_before_expiration=ROTATE_MINUTES
                )
            except (*_ROTATION_ERRORS, ChannelError) as error:
                return await self._after_failed_rotation(installed, _unless_final(error))
            if rotated is not None:
                self._unstored[used] = rotated
                await self._store.async_save_bot(rotated)
                del self._unstored[used]
            return rotated or installed

    async def _after_failed_rotation(self, installed: InstalledBot, error: Exception) -> InstalledBot:
        """Return the token of another replica, or the old one, which is replaced later.

        Raises Unreachable if it has expired, unless Slack refuses for ever to replace it. The first
        refusal may mean that another replica was faster and has not stored the next token yet.
        """
        found = await self._store.async_find_bot(
            enterprise_id=installed.enterprise_id,
            team_id=installed.team_id,
            is_enterprise_install=installed.is_enterprise_install,
        )
        if found is not None and found.bot_token_expires_at != installed.bot_token_expires_at:
            return found
        left, used = (installed.bot_token_expires_at or 0) - time.time(), installed.bot_refresh_token or ""
        is_final = isinstance(error, SlackTokenRotationError) and used in self._refused_until
        remedy = "install the app again" if is_final else "it is tried again"
        log.warning("slack.token_not_rotated", workspace=installed.team_id, error=repr(error), detail=remedy)
        wait = math.inf if is_final else min(REFUSED_SECONDS, left)
        self._refused_until[used] = time.monotonic() + wait
        if not is_final and left <= 0:
            raise Unreachable(f"the token has expired and is not replaced: {error}")
        return installed


def _unless_final(error: Exception) -> Exception:
    """Return the port's error for a refusal that passes, any other error as it is."""
    if not isinstance(error, SlackTokenRotationError):
        return error
    refusal = translate_error(str(error.api_error.response.get("error")), method="oauth.v2.access")
    return refusal if refusal.remedy == "retry" else error


def _is_expiring(installed: InstalledBot) -> bool:
    until = installed.bot_token_expires_at
    return until is not None and until <= time.time() + ROTATE_MINUTES * 60


def find_place(address: Address) -> dict[str, str]:
    """Return the workspace of an address, as `find` takes it."""
    return {TEAM: address.extras.get(TEAM, ""), ENTERPRISE: address.extras.get(ENTERPRISE, "")}
