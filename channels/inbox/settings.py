"""Settings that adapters share, and the types of theirs."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StringConstraints, model_validator

from channels.settings import ChannelSettings
from egress.urls import EndpointUrl


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_secret(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if len(text.strip()) < 8 or not text.isascii() or not text.isprintable():  # noqa: PLR2004
        raise ValueError("must have at least 8 characters, all of them printable ASCII")
    return secret


def matching(pattern: re.Pattern[str], problem: str) -> AfterValidator:
    """Return a validator that refuses a secret that does not match a pattern as a whole."""

    def check_match(secret: SecretStr) -> SecretStr:
        if not pattern.fullmatch(secret.get_secret_value()):
            raise ValueError(problem)
        return secret

    return AfterValidator(check_match)


PlatformId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$"), BeforeValidator(_as_text)]
"""An id of the platform; a number is accepted."""

Secret = Annotated[SecretStr, AfterValidator(_check_secret)]
"""A token or a key for signatures."""


def token_digest(token: SecretStr) -> str:
    """Return a name for the account of a token: 16 hexadecimal digits that do not reveal the token.

    A new token has another digest, also if it is for the same account.
    """
    return sha256(token.get_secret_value().encode()).hexdigest()[:16]


class TokenSettings(ChannelSettings):
    """Settings of a bot with one token, on a server of its operator."""

    url: EndpointUrl = Field(description="URL of the platform's server.")
    token: Secret = Field(description="The bot's token.")

    @property
    def account(self) -> str:
        """A name of the bot's account, without its token."""
        return token_digest(self.token)


class ModeSettings(ChannelSettings):
    """How updates arrive: posted by the platform, or polled."""

    mode: Literal["webhook", "polling"] = Field(default="webhook", description="How updates arrive.")

    @property
    def polls(self) -> bool:
        """Whether updates are polled."""
        return self.mode == "polling"


class PostedSettings(ModeSettings):
    """Settings of a platform that signs its posts with a secret; the gateway fills in `webhook_url`."""

    webhook_secret: Secret | None = Field(
        default=None,
        description="The secret that authenticates the platform's posts; required in webhook mode.",
    )
    webhook_url: EndpointUrl | None = Field(
        default=None, description="The URL to which the platform posts; set by the gateway."
    )

    @model_validator(mode="after")
    def _posts_are_signed(self) -> Self:
        if self.takes_posts and self.webhook_secret is None:
            raise ValueError("webhook mode needs webhook_secret: otherwise anyone could post updates")
        return self

    @property
    def takes_posts(self) -> bool:
        """Whether the platform posts updates, authenticated by `webhook_secret`."""
        return not self.polls

    @property
    def posting_secret(self) -> SecretStr | None:
        """The secret of posts; None if none are accepted."""
        return self.webhook_secret if self.takes_posts else None


class ReactionSettings(ChannelSettings):
    """Settings of a platform on which a reaction is the usual sign that a message was seen."""

    reactions: bool = Field(
        default=True, description="Whether the bot reacts to a message when it has seen and answered it."
    )


class CatchUpSettings(ModeSettings):
    """Settings of a platform that keeps updates, so that what was not posted is read later."""

    poll_seconds: float = Field(
        default=5, ge=0.05, le=3600, description="Seconds between questions in polling mode."
    )
    catch_up_seconds: float = Field(
        default=60,
        ge=0.05,
        le=3600,
        description="Seconds between searches for missed updates in webhook mode.",
    )

    @property
    def pause_seconds(self) -> float:
        """Seconds between two questions for updates."""
        return self.poll_seconds if self.polls else self.catch_up_seconds
