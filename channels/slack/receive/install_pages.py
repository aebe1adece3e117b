"""The pages on which a person installs the app in a workspace: Bolt's OAuth flow on the gateway's tables."""

from __future__ import annotations

import logging

from slack_bolt.oauth.async_oauth_flow import AsyncOAuthFlow
from slack_bolt.oauth.async_oauth_settings import AsyncOAuthSettings
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_bolt.response import BoltResponse

from channels.errors import ChannelError
from channels.port import ChannelSecrets, PageRequest, PageResponse
from channels.slack.api import Api
from channels.slack.installations import STATE_SECONDS, ChannelInstallationStore, ChannelStateStore
from channels.slack.scopes import SCOPES
from channels.slack.session import SDK_LOG

INSTALL, REDIRECT = "install", "oauth_redirect"
UNAVAILABLE = "The installation could not be completed. Please start again."

log = logging.getLogger(__name__)


class InstallPages:
    """The pages `install` and `oauth_redirect` of one app."""

    def __init__(self, api: Api, secrets: ChannelSecrets) -> None:
        settings = api.settings
        secret = settings.client_secret
        self._flow = AsyncOAuthFlow(
            client=api.client(None),
            logger=SDK_LOG,
            settings=AsyncOAuthSettings(
                client_id=settings.client_id,
                client_secret=secret.get_secret_value() if secret else "",
                scopes=sorted(SCOPES),
                user_scopes=[],
                install_path=INSTALL,
                redirect_uri_path=REDIRECT,
                authorization_url=f"{settings.base_url.removesuffix('api/')}oauth/v2/authorize",
                installation_store=ChannelInstallationStore(secrets),
                state_store=ChannelStateStore(secrets),
                state_expiration_seconds=STATE_SECONDS,
                logger=SDK_LOG,
            ),
        )

    async def show(self, request: PageRequest) -> PageResponse:
        """Return a page; 404 for an unknown one, 503 if Slack or the database cannot be reached."""
        handlers = {INSTALL: self._flow.handle_installation, REDIRECT: self._flow.handle_callback}
        handle = handlers.get(request.page)
        if handle is None:
            return PageResponse(status=404)
        given = AsyncBoltRequest(body="", query=request.query, headers=dict(request.headers))
        try:
            return _to_page(await handle(given))
        except (ChannelError, ValueError) as error:
            log.warning("slack.installation_failed: %s", error)
            return PageResponse(status=503, body=UNAVAILABLE)


def _to_page(answer: BoltResponse) -> PageResponse:
    headers = {name.title(): values[0] for name, values in answer.headers.items() if values}
    return PageResponse(status=answer.status, body=answer.body, headers=headers)
