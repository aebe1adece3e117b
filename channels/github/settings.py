"""Settings of a GitHub App."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from channels.inbox.settings import CatchUpSettings, PlatformId, PostedSettings, ReactionSettings
from channels.inbox.tokens import read_private_key
from egress.urls import EndpointUrl, endpoint


def _check_key(key: SecretStr) -> SecretStr:
    # An environment variable often holds the key with escaped line ends.
    text = key.get_secret_value().replace("\\n", "\n").strip() + "\n"
    try:
        read_private_key(text)
    except (ValueError, TypeError):
        raise ValueError(
            "private_key is not a private key: paste the whole .pem file of the app, BEGIN and END lines too"
        ) from None
    return SecretStr(text)


class GitHubSettings(ReactionSettings, PostedSettings, CatchUpSettings):
    """Settings of a GitHub App; the gateway fills in `webhook_url`."""

    app_id: PlatformId = Field(description="The app's App ID or Client ID.")
    private_key: Annotated[SecretStr, AfterValidator(_check_key)] = Field(
        description="The app's private key: the content of the .pem file."
    )
    base_url: EndpointUrl = Field(
        default=endpoint("https://api.github.com"),
        description="URL of the REST API; `https://HOST/api/v3` for GitHub Enterprise Server.",
    )

    @property
    def graphql_url(self) -> str:
        """The URL of the GraphQL API, which belongs to `base_url`."""
        return f"{self.base_url.removesuffix('/v3')}/graphql"
