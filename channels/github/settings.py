"""Settings of a GitHub App."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from channels.inbox.settings import PlatformId, Secret
from channels.settings import ChannelSettings
from egress.urls import EndpointUrl, endpoint


def _check_key(key: SecretStr) -> SecretStr:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    # An environment variable often holds the key with escaped line ends.
    text = key.get_secret_value().replace("\\n", "\n").strip() + "\n"
    try:
        load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError):
        raise ValueError(
            "private_key is not a private key: paste the whole .pem file of the app, BEGIN and END lines too"
        ) from None
    return SecretStr(text)


class GitHubSettings(ChannelSettings):
    """Settings of a GitHub App; the gateway fills in `webhook_url`."""

    app_id: PlatformId = Field(description="The app's App ID or Client ID.")
    private_key: Annotated[SecretStr, AfterValidator(_check_key)] = Field(
        description="The app's private key: the content of the .pem file."
    )
    mode: Literal["webhook", "polling"] = Field(default="webhook", description="How events arrive.")
    webhook_secret: Secret | None = Field(
        default=None, description="The secret with which GitHub signs events; required in webhook mode."
    )
    webhook_url: EndpointUrl | None = Field(
        default=None, description="The URL to which GitHub posts events; set by the gateway."
    )
    poll_seconds: float = Field(
        default=5, ge=0.05, le=3600, description="Seconds between questions for events in polling mode."
    )
    catch_up_seconds: float = Field(
        default=60,
        ge=0.05,
        le=3600,
        description="Seconds between searches for missed events in webhook mode.",
    )
    base_url: EndpointUrl = Field(
        default=endpoint("https://api.github.com"),
        description="URL of the REST API; `https://HOST/api/v3` for GitHub Enterprise Server.",
    )
    reactions: bool = Field(
        default=True, description="Whether the bot reacts to a message when it has seen and answered it."
    )

    @model_validator(mode="after")
    def _webhooks_are_signed(self) -> Self:
        if self.mode == "webhook" and self.webhook_secret is None:
            raise ValueError("webhook mode needs webhook_secret: otherwise anyone could post events")
        return self

    @property
    def graphql_url(self) -> str:
        """The URL of the GraphQL API, which belongs to `base_url`."""
        return f"{self.base_url.removesuffix('/v3')}/graphql"
