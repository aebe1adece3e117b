"""The comments on lines of a review, which GitHub sends beside its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from channels.errors import ChannelError
from channels.github.api import Api, Bot
from channels.github.settings import GitHubSettings
from channels.github.threads import SUFFIX
from channels.inbox.text import identifier, mapping, text_at
from channels.inbox.updates import find_mention

LINE_COMMENTS = "line_comments"
"""The field of a payload that `Reviews` adds: the comments as the REST API lists them, None if unknown."""

_PATH = "/repos/{owner}/{repo}/pulls/{number}/reviews/{review}/comments?per_page=100"
"""The first hundred comments."""

log = structlog.get_logger(__name__)


class Reviews:
    """Reads the comments of reviews whose summaries are for the bot."""

    def __init__(self, api: Api, settings: GitHubSettings, bot: Bot) -> None:
        self._api = api
        self._settings = settings
        self._bot = bot

    async def complete(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the event of a review with its comments, and any other one as it is.

        Raises nothing: a summary whose comments cannot be read is received without them.
        """
        payload = mapping(update.get("payload"))
        room, summary = text_at(payload, "repository", "full_name"), text_at(payload, "review", "body")
        is_summary = update.get("event") == "pull_request_review" and payload.get("action") == "submitted"
        if not is_summary or not self._is_wanted(room, summary):
            return update
        return {**update, "payload": {**payload, LINE_COMMENTS: await self._read(room, payload)}}

    async def _read(self, room: str, payload: Mapping[str, Any]) -> Any:
        number, review = mapping(payload.get("pull_request")).get("number"), mapping(payload.get("review"))
        place = {"number": identifier(number), "review": identifier(review.get("id"))}
        try:
            return await self._api.call("GET", _PATH, room=room, **place)
        except ChannelError as error:
            log.warning("github.review_comments_not_read", room=room, error=str(error))
            return None

    def _is_wanted(self, room: str, summary: str) -> bool:
        found = self._settings.rooms.get(room)
        groups = (found.groups if found else None) or self._settings.groups
        return groups == "always" or find_mention(summary, self._bot.slug, suffix=SUFFIX)[0]
