"""Settings of a Telegram bot."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from channels.settings import ChannelSettings
from egress.urls import EndpointUrl, endpoint

_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_.~-]{1,128}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")


def _check_token(token: SecretStr) -> SecretStr:
    if not _TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError("token is not a bot token: copy it from @BotFather (number, colon, key)")
    return token


def _check_secret(secret: SecretStr) -> SecretStr:
    if not _SECRET.fullmatch(secret.get_secret_value()):
        raise ValueError("webhook_secret must be 1 to 256 letters, digits, `_` and `-`")
    return secret


def _without_method_prefix(url: EndpointUrl) -> EndpointUrl:
    """Accept the URL as some documents give it, with `/bot` at its end."""
    return EndpointUrl(url.removesuffix("/bot"))


Url = Annotated[EndpointUrl, AfterValidator(_without_method_prefix)]


class TelegramSettings(ChannelSettings):
    """Settings of a Telegram bot; the gateway fills in `webhook_url`."""

    token: Annotated[SecretStr, AfterValidator(_check_token)] = Field(description="From @BotFather.")
    base_url: Url = Field(default=endpoint("https://api.telegram.org"), description="URL of the Bot API.")
    base_file_url: Url | None = Field(
        default=None, description="URL of file downloads; default `<base_url>/file`."
    )
    mode: Literal["polling", "webhook"] = Field(default="polling", description="How updates arrive.")
    webhook_secret: Annotated[SecretStr, AfterValidator(_check_secret)] | None = Field(
        default=None,
        description="The secret that Telegram sends with every update; required in webhook mode.",
    )
    webhook_url: Url | None = Field(
        default=None, description="The URL to which Telegram posts updates; set by the gateway."
    )
    webhook_connections: int = Field(
        default=1, ge=1, le=100, description="Updates in flight at once; more than 1 loses their order."
    )
    webhook_check_seconds: float = Field(
        default=60, ge=0.05, le=3600, description="Seconds between checks of the webhook registration."
    )
    poll_seconds: int = Field(default=25, ge=0, le=50, description="Seconds one poll waits for updates.")
    conflict_seconds: float = Field(
        default=15,
        ge=0,
        le=600,
        description="Seconds another poller of this bot is tolerated, as during a restart.",
    )

    album_seconds: float = Field(
        default=0.5, ge=0, le=1, description="Seconds to wait for further pictures of an album."
    )

    @model_validator(mode="after")
    def _webhooks_are_signed(self) -> Self:
        if self.mode == "webhook" and self.webhook_secret is None:
            raise ValueError("webhook mode needs webhook_secret: otherwise anyone could post updates")
        return self

    @property
    def bot_id(self) -> str:
        """The bot's user id, the part of the token before the colon."""
        return self.token.get_secret_value().partition(":")[0]

    @property
    def file_url(self) -> str:
        """The base URL of file downloads, without the bot's part."""
        return self.base_file_url or f"{self.base_url}/file"
