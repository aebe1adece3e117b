"""The comments on lines of a review, which GitHub sends beside its summary.

A comment that is for the bot by itself, such as each where `groups` is `always`, is left to its own event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from channels.errors import ChannelError
from channels.github.api import Api, Bot
from channels.github.settings import GitHubSettings
from channels.github.threads import SUFFIX
from channels.inbox.text import clean, identifier, mapping, text_at
from channels.inbox.updates import find_mention

LINE_COMMENTS = "line_comments"
"""The field of a payload that `complete_review` adds: the comments as the REST API lists them."""

UNREAD = "[the comments on lines of this review could not be read]"
"""What a summary ends with if its comments are unknown."""

_PATH = "/repos/{owner}/{repo}/pulls/{number}/reviews/{review}/comments?per_page=100"
"""The first hundred comments."""

log = structlog.get_logger(__name__)


async def complete_review(
    update: Mapping[str, Any], *, api: Api, settings: GitHubSettings, bot: Bot
) -> Mapping[str, Any]:
    """Return the event of a review's summary that is for the bot with its comments, any other one as it is.

    Raises nothing: a summary whose comments cannot be read says so.
    """
    payload = mapping(update.get("payload"))
    room, review = text_at(payload, "repository", "full_name"), mapping(payload.get("review"))
    summary = clean(review.get("body")) if payload.get("action") == "submitted" else ""
    if settings.groups_in(room) == "always" or not find_mention(summary, bot.slug, suffix=SUFFIX)[0]:
        return update
    number = identifier(mapping(payload.get("pull_request")).get("number"))
    try:
        rows = await api.call("GET", _PATH, room=room, number=number, review=identifier(review.get("id")))
        changes = {LINE_COMMENTS: rows}
    except ChannelError as error:
        log.warning("github.review_comments_not_read", room=room, error=str(error))
        changes = {"review": {**review, "body": f"{summary}\n\n{UNREAD}"}}
    return {**update, "payload": {**payload, **changes}}
