"""Settings of a Slack app."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from channels.inbox.settings import ReactionSettings, Secret, matching
from egress.urls import EndpointUrl

_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,512}")
_HINT = "a Slack token consists of letters, digits and dashes, such as xoxb-… or xapp-…"


def _with_slash(url: EndpointUrl) -> EndpointUrl:
    """Return the URL so that a method's name can be appended."""
    return EndpointUrl(f"{url}/")


Token = Annotated[SecretStr, matching(_TOKEN, _HINT)]


class SlackSettings(ReactionSettings):
    """Settings of a Slack app: the bot token, and the app token (socket) or signing secret (http)."""

    bot_token: Token | None = Field(
        default=None, description="Bot User OAuth Token, xoxb-…; for an app of one workspace."
    )
    client_id: str | None = Field(
        default=None,
        pattern=r"^[0-9A-Za-z.]{1,100}$",
        description="Client ID of an app that many workspaces install; instead of bot_token.",
    )
    client_secret: Token | None = Field(default=None, description="Client secret of such an app.")
    app_token: Token | None = Field(
        default=None, description="App-level token with connections:write, xapp-…; required in socket mode."
    )
    signing_secret: Secret | None = Field(
        default=None, description="The app's Signing Secret (Basic Information); required in http mode."
    )
    mode: Literal["socket", "http"] = Field(default="socket", description="How events arrive.")
    base_url: Annotated[EndpointUrl, AfterValidator(_with_slash)] = Field(
        default=EndpointUrl("https://slack.com/api/"), description="URL of the Web API."
    )

    @model_validator(mode="after")
    def _has_its_secrets(self) -> Self:
        if self.bot_token is not None and (self.client_id or self.client_secret):
            raise ValueError("set bot_token (one workspace) or client_id and client_secret (many), not both")
        if self.bot_token is None and not (self.client_id and self.client_secret):
            raise ValueError("set bot_token (one workspace), or client_id and client_secret (many)")
        if self.mode == "http" and self.signing_secret is None:
            raise ValueError("http mode needs signing_secret: otherwise anyone could post events")
        if self.mode == "socket" and self.app_token is None:
            raise ValueError("socket mode needs app_token (xapp-…, scope connections:write)")
        return self

    @property
    def account(self) -> str:
        """A name for the bot of a token, or of an app and its secret, that does not reveal them."""
        return _digest(self.bot_token.get_secret_value() if self.bot_token else f"{self.app_credentials}")

    @property
    def app_credentials(self) -> dict[str, Any]:
        """The id and the secret of an app that many workspaces install."""
        secret = self.client_secret.get_secret_value() if self.client_secret else ""
        return {"client_id": self.client_id or "", "client_secret": secret}

    @property
    def connection_key(self) -> str:
        """A name for the app-level token in use: Slack gives an event to any one of its connections."""
        uses_socket = self.mode == "socket" and self.app_token is not None
        return _digest(self.app_token.get_secret_value()) if uses_socket and self.app_token else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
