"""The scopes that methods and events require, after their own pages."""

from __future__ import annotations

from channels.slack.simulator.failure import ApiFailure
from channels.slack.simulator.world import Raw, Room

ALL_SCOPES = frozenset(
    {
        "app_mentions:read",
        "channels:history",
        "chat:write",
        "commands",
        "files:read",
        "files:write",
        "groups:history",
        "im:history",
        "mpim:history",
        "reactions:read",
        "reactions:write",
    }
)
_METHODS = {
    "files.getUploadURLExternal": {"files:write"},
    "files.completeUploadExternal": {"files:write"},
    "files.info": {"files:read"},
    "reactions.add": {"reactions:write"},
    "reactions.remove": {"reactions:write"},
    "reactions.get": {"reactions:read"},
    "assistant.threads.setStatus": {"chat:write", "assistant:write"},
}
_EVENTS = {
    "app_mention": "app_mentions:read",
    "reaction_added": "reactions:read",
    "reaction_removed": "reactions:read",
}
_HISTORY = {
    "im": "im:history",
    "group": "groups:history",
    "mpim": "mpim:history",
    "channel": "channels:history",
}


def check_scope(method: str, given: Raw, rooms: dict[str, Room], granted: frozenset[str]) -> None:
    """Raise ApiFailure for a call without one of its scopes."""
    wanted = _METHODS.get(method, {"chat:write"} if method.startswith("chat.") else set())
    if method in {"conversations.history", "conversations.replies"}:
        room = rooms.get(str(given.get("channel")))
        wanted = {_HISTORY[room.kind if room else "channel"]}
    if wanted and not wanted & granted:
        details = {"needed": ",".join(sorted(wanted)), "provided": ",".join(sorted(granted))}
        raise ApiFailure("missing_scope", details=details)


def is_visible(event: Raw, granted: frozenset[str]) -> bool:
    """Return whether an app with these scopes receives an event."""
    wanted = _EVENTS.get(str(event.get("type"))) or _HISTORY.get(str(event.get("channel_type")))
    return wanted is None or wanted in granted
