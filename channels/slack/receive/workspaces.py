"""Decide whether an envelope is for the bot's own workspace; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.slack.payloads import Bot


def is_foreign(envelope: object, bot: Bot) -> bool:
    """Return whether an envelope is for another workspace than the bot's.

    Slack signs all requests of one app with the same secret, whatever workspace they come from.
    """
    workspace = workspace_of(envelope)
    return bool(bot.team and workspace and workspace != bot.team)


def workspace_of(envelope: object) -> str:
    """Return the id of the workspace that installed the app, "" if the envelope names none.

    In a channel shared with another organisation `team_id` may be theirs. Then `authorizations` (events) or
    `app_installed_team_id` (modals) name the workspace of the app, as in Slack's Bolt.
    """
    payload = _object(_object(envelope).get("payload"))
    authorizations = payload.get("authorizations")
    first = authorizations[0] if isinstance(authorizations, list) and authorizations else None
    candidates = (
        _object(first).get("team_id"),
        _object(payload.get("view")).get("app_installed_team_id"),
        _object(payload.get("team")).get("id"),
        payload.get("team_id"),
    )
    return next((one for one in candidates if isinstance(one, str) and one), "")


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
