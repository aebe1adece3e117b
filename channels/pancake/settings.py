"""Settings of a page in Pancake."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from channels.inbox.settings import CatchUpSettings, PlatformId, Secret
from egress.urls import EndpointUrl, endpoint

TEXT_LIMIT = 2000


class PancakeSettings(CatchUpSettings):
    """Settings of one page; the token is the page's, not a person's."""

    page_id: PlatformId = Field(description="The page's id in Pancake.")
    page_access_token: Secret = Field(description="The page's token: Settings, Tools, in Pancake.")
    poll_seconds: float = Field(
        default=10, ge=0.05, le=3600, description="Seconds between questions in polling mode."
    )
    page_name: str = Field(default="", description="The name by which a comment mentions the page.")
    comment_replies: Literal["public", "private"] = Field(
        default="public", description="Whether a comment is answered below it, or in private."
    )
    base_url: EndpointUrl = Field(
        default=endpoint("https://pages.fm/api/public_api"), description="URL of Pancake's public API."
    )
