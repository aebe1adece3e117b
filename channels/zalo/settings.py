"""Settings of a bot of the Zalo Bot Platform, or of a Zalo Official Account."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from channels.inbox.settings import PlatformId, PostedSettings, Secret, matching
from egress.urls import EndpointUrl, endpoint

TEXT_LIMIT = 2000
_TOKEN = re.compile(r"[0-9]{1,30}:[A-Za-z0-9_.~-]{1,256}")
_HINT = "token is not a bot token: copy it from Zalo Bot Manager (number, colon, key)"


class ZaloSettings(PostedSettings):
    """Settings of a bot (`platform = "bot"`) or an Official Account (`"oa"`)."""

    platform: Literal["bot", "oa"] = Field(
        default="bot", description="`bot`: Zalo Bot Platform; `oa`: Official Account."
    )
    token: Annotated[SecretStr, matching(_TOKEN, _HINT)] | None = Field(
        default=None, description="The bot's token; required for `bot`."
    )
    mode: Literal["polling", "webhook"] = Field(
        default="polling", description="How a bot's updates arrive; an Official Account always uses webhooks."
    )
    poll_seconds: int = Field(default=30, ge=1, le=50, description="Seconds one poll waits for an update.")
    app_id: PlatformId | None = Field(default=None, description="The app's id; required for `oa`.")
    oa_secret: Secret | None = Field(
        default=None, description="The OA Secret Key, which signs webhooks; required for `oa`."
    )
    signature: Literal["sha256", "hmac"] = Field(
        default="sha256", description="How X-ZEvent-Signature is made: as documented, or by HMAC."
    )
    access_token: Secret | None = Field(default=None, description="An Official Account's access token.")
    app_secret: Secret | None = Field(
        default=None, description="The app's Secret Key; required with `refresh_token`."
    )
    refresh_token: Secret | None = Field(
        default=None, description="The first refresh token; later ones are stored encrypted."
    )
    base_url: EndpointUrl = Field(
        default=endpoint("https://bot-api.zaloplatforms.com"), description="URL of the Bot Platform."
    )
    oa_url: EndpointUrl = Field(
        default=endpoint("https://openapi.zalo.me"), description="URL of the Official Account API."
    )
    oauth_url: EndpointUrl = Field(
        default=endpoint("https://oauth.zaloapp.com"), description="URL at which tokens are renewed."
    )

    @model_validator(mode="after")
    def _has_its_secrets(self) -> Self:
        if self.platform == "bot":
            if self.token is None:
                raise ValueError("a bot needs token")
            return self
        if self.app_id is None or self.oa_secret is None:
            raise ValueError("an Official Account needs app_id and oa_secret, which sign its webhooks")
        if self.access_token is None and (self.refresh_token is None or self.app_secret is None):
            raise ValueError("an Official Account needs access_token, or refresh_token with app_secret")
        return self

    @property
    def polls(self) -> bool:
        """Whether updates are polled."""
        return self.platform == "bot" and self.mode == "polling"

    @property
    def takes_posts(self) -> bool:
        """Whether the platform posts a bot's updates; the posts of an Official Account have a signature."""
        return self.platform == "bot" and self.mode == "webhook"

    @property
    def account(self) -> str:
        """A name of the bot or the Official Account's app, without its secret."""
        token = self.token.get_secret_value() if self.token else ""
        return token.partition(":")[0] if self.platform == "bot" else f"oa-{self.app_id}"
