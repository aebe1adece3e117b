"""The workspaces of an app, and the pages that install it there, by Bolt's OAuth flow."""

from __future__ import annotations

from contextlib import suppress

import structlog
from slack_bolt.oauth.async_oauth_flow import AsyncOAuthFlow
from slack_bolt.oauth.async_oauth_settings import AsyncOAuthSettings
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse
from slack_sdk.oauth.installation_store import Bot as InstalledBot

from channels.errors import ChannelError, Unauthorized
from channels.port import ChannelInstallation, ChannelInstallations, ChannelSecrets, PageRequest, PageResponse
from channels.slack.api import Api
from channels.slack.installations import STATE_SECONDS, ChannelInstallationStore, ChannelStateStore, owner_of
from channels.slack.scopes import SCOPES
from channels.slack.session import SDK_LOG
from channels.slack.workspaces import ENTERPRISE, TEAM

INSTALL, REDIRECT = "install", "oauth"
UNAVAILABLE = "The installation could not be completed. Please start again."

log = structlog.get_logger(__name__)


class SlackInstallations(ChannelInstallations):
    """The workspaces and organisations that installed one app, and its pages `install` and `oauth`."""

    def __init__(self, api: Api, secrets: ChannelSecrets) -> None:
        self._api = api
        self._secrets = secrets
        self._store = ChannelInstallationStore(secrets)

    def _flow(self, store: ChannelInstallationStore) -> AsyncOAuthFlow:
        settings = self._api.settings
        return AsyncOAuthFlow(
            client=self._api.client(None),
            logger=SDK_LOG,
            settings=AsyncOAuthSettings(
                **settings.app_credentials,
                scopes=sorted(SCOPES),
                user_scopes=[],
                install_path=INSTALL,
                redirect_uri_path=REDIRECT,
                authorization_url=f"{settings.base_url.removesuffix('api/')}oauth/v2/authorize",
                installation_store=store,
                state_store=ChannelStateStore(self._secrets),
                state_expiration_seconds=STATE_SECONDS,
                logger=SDK_LOG,
            ),
        )

    async def show_page(self, request: PageRequest) -> PageResponse:
        """Return a page; 503 if Slack or the database cannot be reached."""
        store = ChannelInstallationStore(self._secrets)
        flow = self._flow(store)
        handle = flow.handle_installation if request.page == INSTALL else flow.handle_callback
        given = AsyncBoltRequest(body="", query=request.query, headers=dict(request.headers))
        try:
            return _to_page(await handle(given), store.saved)
        except (ChannelError, ValueError) as error:
            log.warning("slack.installation_failed", error=str(error))
            return PageResponse(status=503, body=UNAVAILABLE)

    async def list(self, *, after: str = "", limit: int = 200) -> list[ChannelInstallation]:
        """Return the installations that follow an id."""
        return [_to_installation(bot) for bot in await self._store.list_bots(after=after, limit=limit)]

    async def get(self, installation: str) -> ChannelInstallation | None:
        """Return one installation, or None."""
        bot = await self._store.find_bot(installation)
        return None if bot is None else _to_installation(bot)

    async def uninstall(self, installation: str) -> bool:
        """Uninstall the app with its own token, unless Slack did so already, and delete the token."""
        bot = await self._store.find_bot(installation)
        if bot is None:
            return False
        with suppress(Unauthorized):  # it was uninstalled at Slack, which told us nothing
            await self._api.with_token(bot.bot_token).call(
                "apps.uninstall", self._api.settings.app_credentials
            )
        await self._store.async_delete_bot(enterprise_id=installation, team_id=None)
        return True


def _to_installation(bot: InstalledBot) -> ChannelInstallation:
    is_organisation = bool(bot.is_enterprise_install)
    return ChannelInstallation(
        id=owner_of(bot),
        name=(bot.enterprise_name if is_organisation else bot.team_name) or "",
        installed_at=bot.to_dict()["installed_at"],
        is_organisation=is_organisation,
    )


def _to_page(answer: BoltResponse, saved: InstalledBot | None) -> PageResponse:
    headers = {name.title(): values[0] for name, values in answer.headers.items() if values}
    installed = {ENTERPRISE if saved.is_enterprise_install else TEAM: owner_of(saved)} if saved else None
    return PageResponse(status=answer.status, body=answer.body, headers=headers, installed=installed)
