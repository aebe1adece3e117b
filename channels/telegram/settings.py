"""The settings of a Telegram bot."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from channels.settings import ChannelSettings

_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_.~-]{1,128}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")


def _check_token(token: SecretStr) -> SecretStr:
    if not _TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError("a bot token is the bot's number, a colon and its key, as @BotFather gives it")
    return token


def _check_secret(secret: SecretStr) -> SecretStr:
    if not _SECRET.fullmatch(secret.get_secret_value()):
        raise ValueError("a webhook secret is 1 to 256 letters, digits, `_` and `-`")
    return secret


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or parts.username
        or parts.query
        or parts.fragment
    ):
        raise ValueError("an http or https address without user name, query and fragment is wanted")
    return url.rstrip("/").removesuffix("/bot")


Url = Annotated[str, AfterValidator(_check_url)]


class TelegramSettings(ChannelSettings):
    """What a bot needs; `webhook_url` is filled in by the gateway."""

    token: Annotated[SecretStr, AfterValidator(_check_token)] = Field(description="From @BotFather.")
    base_url: Url = Field(default="https://api.telegram.org", description="Where the Bot API is.")
    base_file_url: Url | None = Field(
        default=None, description="Where files are; `<base_url>/file` if not set."
    )
    mode: Literal["polling", "webhook"] = Field(default="polling", description="How updates come in.")
    webhook_secret: Annotated[SecretStr, AfterValidator(_check_secret)] | None = Field(
        default=None, description="What Telegram shows with every update; required in webhook mode."
    )
    webhook_url: Url | None = Field(
        default=None, description="Where Telegram posts updates; set by the gateway."
    )
    webhook_connections: int = Field(
        default=1, ge=1, le=100, description="Updates in flight at once; more than 1 gives up the order."
    )
    webhook_check_seconds: float = Field(
        default=60, ge=0.05, le=3600, description="How often Telegram is asked whether it still posts here."
    )
    poll_seconds: int = Field(default=25, ge=0, le=50, description="How long one poll waits for updates.")
    conflict_seconds: float = Field(
        default=15,
        ge=0,
        le=600,
        description="How long another poller of this bot is tolerated (a hand-over).",
    )

    album_seconds: float = Field(
        default=0.5, ge=0, le=1, description="How long the further pictures of an album are waited for."
    )

    @model_validator(mode="after")
    def _webhooks_are_signed(self) -> Self:
        if self.mode == "webhook" and self.webhook_secret is None:
            raise ValueError("webhook mode needs webhook_secret: without it anyone could post updates")
        return self

    @property
    def bot_id(self) -> str:
        """The bot's user id, which is the part of the token before the colon."""
        return self.token.get_secret_value().partition(":")[0]

    @property
    def file_url(self) -> str:
        """Where files are downloaded from, without the bot's part."""
        return self.base_file_url or f"{self.base_url}/file"
