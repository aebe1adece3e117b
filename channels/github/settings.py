"""Settings of a GitHub App."""

from __future__ import annotations

from pydantic import Field

from channels.inbox.settings import CatchUpSettings, PlatformId, PostedSettings, ReactionSettings
from channels.inbox.tokens import PrivateKey
from egress.urls import EndpointUrl, endpoint


class GitHubSettings(ReactionSettings, PostedSettings, CatchUpSettings):
    """Settings of a GitHub App; the gateway fills in `webhook_url`."""

    app_id: PlatformId = Field(description="The app's App ID or Client ID.")
    private_key: PrivateKey = Field(description="The app's private key: the content of the .pem file.")
    base_url: EndpointUrl = Field(
        default=endpoint("https://api.github.com"),
        description="URL of the REST API; `https://HOST/api/v3` for GitHub Enterprise Server.",
    )

    @property
    def graphql_url(self) -> str:
        """The URL of the GraphQL API, which belongs to `base_url`."""
        return f"{self.base_url.removesuffix('/v3')}/graphql"
