"""The one table from Slack's errors to ours.

The text of each begins `method: word`, so that a refusal can be told from another by `word_of`.
"""

from __future__ import annotations

from channels.errors import (
    Ambiguous,
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
)

_UNAUTHORIZED = (
    "invalid_auth not_authed token_revoked token_expired account_inactive not_allowed_token_type "
    "org_login_required access_denied ekm_access_denied team_access_not_granted two_factor_setup_required"
)
_UNDELIVERABLE = (
    "channel_not_found is_archived user_not_in_channel user_not_found user_disabled "
    "restricted_action_thread_only_channel restricted_action_non_threadable_channel "
    "restricted_action_thread_locked cannot_dm_bot thread_not_found cannot_reply_to_message"
)
_AMBIGUOUS = "internal_error fatal_error service_unavailable request_timeout"
_BY_CODE: dict[str, type[ChannelError]] = {
    **dict.fromkeys(_UNAUTHORIZED.split(), Unauthorized),
    **dict.fromkeys(_UNDELIVERABLE.split(), Undeliverable),
    **dict.fromkeys(_AMBIGUOUS.split(), Ambiguous),
}
_MEMBER = ("membership", "the bot is not a member of this channel: /invite it there")
_POSTING = (
    "posting",
    "a setting of the workspace or channel keeps apps from posting here: an admin grants it",
)
_PERMISSIONS: dict[str, tuple[str, str]] = {
    "not_in_channel": _MEMBER,
    "no_permission": _MEMBER,
    "restricted_action": _POSTING,
    "restricted_action_read_only_channel": _POSTING,
    "channel_is_limited_access": _POSTING,
    "messages_tab_disabled": (
        "messages tab",
        "the app takes no private messages: switch on App Home, Messages Tab",
    ),
}
_RATE_LIMITED = {"ratelimited", "rate_limited"}
_WORKSPACE_RATE_LIMITED = {"message_limit_exceeded"}
_ROOM_METHODS = ("chat.", "reactions.", "conversations.", "assistant.")
"""Methods whose rate, or whose refusal at least, concerns one room; those of the others hold everywhere."""

_OPTIONAL_METHODS = (
    "chat.startStream",
    "chat.appendStream",
    "chat.stopStream",
    "assistant.",
    "reactions.",
    "views.",
)
"""Methods that not every host of the Web API has, such as a stand-in or a proxy."""

MARKUP_ERRORS = frozenset({"invalid_blocks", "invalid_blocks_format", "invalid_attachments"})


def translate_error(code: str, *, method: str, retry_after: float = 30.0, needed: str = "") -> ChannelError:
    """Return our error for Slack's word of refusal; `needed` is the scope that a missing_scope names."""
    if code in _RATE_LIMITED | _WORKSPACE_RATE_LIMITED:
        return rate_limited(method, retry_after, everywhere=code in _WORKSPACE_RATE_LIMITED)
    detail = f"{method}: {code[:80]}"
    if code == "missing_scope":
        scope = needed[:80] or "a scope"
        remedy = "add it under OAuth & Permissions, and install the app again"
        return NotPermitted(scope, f"{detail}: the app lacks {scope}: {remedy}")
    if code in _PERMISSIONS:
        permission, remedy = _PERMISSIONS[code]
        return NotPermitted(permission, f"{detail}: {remedy}")
    return _BY_CODE.get(code, Rejected)(detail)


def rate_limited(method: str, retry_after: float, *, everywhere: bool = False) -> RateLimited:
    """Return the wish to wait, for the room or for all of the app."""
    in_a_room = method.startswith(_ROOM_METHODS) and not everywhere
    return RateLimited(retry_after, scope="room" if in_a_room else "account")


def not_found(method: str) -> ChannelError:
    """Return what HTTP 404 means: a method that is not there, or an address that is wrong."""
    if method.startswith(_OPTIONAL_METHODS):
        return Rejected(f"{method}: unknown_method")
    return Unreachable(f"{method}: HTTP 404: is base_url right?")


def error_code(error: ChannelError) -> str:
    """Return Slack's word of a refusal that `translate` made."""
    return str(error).partition(": ")[2].partition(":")[0].strip()
