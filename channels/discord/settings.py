"""Settings of a Discord bot."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from channels.inbox.settings import matching
from channels.settings import ChannelSettings
from egress.urls import EndpointUrl, SocketUrl, endpoint

_TOKEN = re.compile(r"[A-Za-z0-9_.~:=+/-]{1,256}")
_HINT = "token must be one word of letters, digits, dots and dashes, without `Bot ` before it"


class DiscordSettings(ChannelSettings):
    """Settings of a Discord bot: the token, and in interactions mode the application's public key."""

    token: Annotated[SecretStr, matching(_TOKEN, _HINT)] = Field(
        description="From the Developer Portal: Bot, Reset Token."
    )
    mode: Literal["gateway", "interactions"] = Field(
        default="gateway",
        description="How updates arrive: all by WebSocket, or commands and buttons by HTTP.",
    )
    public_key: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")] | None = Field(
        default=None,
        description="From the Developer Portal, General Information; required in interactions mode.",
    )
    application_id: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")] | None = Field(
        default=None, description="The application's id, if it differs from the bot's (only for old bots)."
    )
    api_url: EndpointUrl = Field(
        default=endpoint("https://discord.com/api"), description="URL of the REST API."
    )
    gateway_url: SocketUrl = Field(
        default=SocketUrl("wss://gateway.discord.gg/"), description="URL of the gateway."
    )
    cdn_url: EndpointUrl = Field(
        default=endpoint("https://cdn.discordapp.com"),
        description="URL of attachments, in addition to Discord's own hosts.",
    )
    message_content: bool = Field(
        default=True,
        description="Request the privileged intent to read messages that do not mention the bot.",
    )
    commands: bool = Field(default=True, description="Register the slash commands (/ask, /stop, /status …).")
    shards: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Connections to the gateway (0: one, or as many as Discord requires).",
    )
    backfill_minutes: int = Field(
        default=60,
        ge=0,
        le=1440,
        description="Minutes of history read at the first start; 0: missed messages are never read.",
    )

    @model_validator(mode="after")
    def _interactions_are_signed(self) -> Self:
        if self.mode == "interactions" and self.public_key is None:
            raise ValueError("interactions mode needs public_key: otherwise anyone could post interactions")
        return self

    @property
    def bot_id(self) -> str:
        """The bot's user id, the part of the token before the first dot, decoded from base64."""
        token = self.token.get_secret_value()
        head = token.partition(".")[0]
        try:
            number = base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)).decode("ascii")
        except ValueError:
            number = ""
        return number if number.isdecimal() else sha256(token.encode()).hexdigest()[:20]
