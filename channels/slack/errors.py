"""Translate Slack's error codes into the port's errors.

Every error text begins with `method: code`, so that `error_code` can read the code again.
"""

from __future__ import annotations

from channels.errors import (
    Ambiguous,
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    ThreadUndeliverable,
    Unauthorized,
    Undeliverable,
    Unreachable,
)

INSTALL_CODES = ["invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive"]
"""Codes of tokens that have ended: the app must be installed again."""

_UNAUTHORIZED = (
    "accesslimited not_allowed_token_type org_login_required access_denied ekm_access_denied "
    "team_access_not_granted two_factor_setup_required"
)
_GONE = "channel_not_found is_archived user_not_in_channel user_not_found user_disabled cannot_dm_bot"
_THREAD_UNDELIVERABLE = (
    "restricted_action_thread_locked thread_not_found cannot_reply_to_message "
    "restricted_action_thread_only_channel restricted_action_non_threadable_channel"
)
_UNREACHABLE = "team_added_to_org external_channel_migrating"
_AMBIGUOUS = "internal_error fatal_error service_unavailable request_timeout update_failed file_update_failed"
_BY_CODE: dict[str, type[ChannelError]] = {
    **dict.fromkeys([*INSTALL_CODES, *_UNAUTHORIZED.split()], Unauthorized),
    **dict.fromkeys(_GONE.split(), Undeliverable),
    **dict.fromkeys(_THREAD_UNDELIVERABLE.split(), ThreadUndeliverable),
    **dict.fromkeys(_UNREACHABLE.split(), Unreachable),
    **dict.fromkeys(_AMBIGUOUS.split(), Ambiguous),
}
_MEMBER = ("membership", "the bot is not a member of this channel: /invite it")
_POSTING = ("posting", "a setting of the workspace or channel forbids apps to post here: ask an admin")
_PERMISSIONS: dict[str, tuple[str, str]] = {
    "not_in_channel": _MEMBER,
    "no_permission": _MEMBER,
    "restricted_action": _POSTING,
    "restricted_action_read_only_channel": _POSTING,
    "posting_to_general_channel_denied": _POSTING,
    "channel_is_limited_access": _POSTING,
    "messages_tab_disabled": (
        "messages tab",
        "the app accepts no private messages: enable App Home, Messages Tab",
    ),
}
_RATE_LIMITED = {"ratelimited", "rate_limited", "message_limit_exceeded"}
_ROOM_METHODS = ("chat.", "files.", "reactions.", "conversations.", "assistant.")
"""Methods whose rate limit or refusal holds one room; those of other methods apply everywhere.

Slack limits a method in a workspace. Another room of the workspace finds this out itself, while another
method, or another workspace of the app, is not held.
"""

_OPTIONAL_METHODS = (
    *("chat.startStream", "chat.appendStream", "chat.stopStream"),
    *("assistant.", "reactions.", "views."),
)
"""Methods that some hosts of the Web API lack, such as a simulator or a proxy."""

MARKUP_ERRORS = frozenset({"invalid_blocks", "invalid_blocks_format", "invalid_attachments"})


def translate_error(code: str, *, method: str, retry_after: float = 30.0, needed: str = "") -> ChannelError:
    """Return the port's error for Slack's error code; `needed` is the scope of a missing_scope."""
    if code in _RATE_LIMITED:
        return rate_limited(method, retry_after)
    detail = f"{method}: {code[:80]}"
    if code == "missing_scope":
        scope = needed[:80] or "a scope"
        remedy = "add it under OAuth & Permissions and reinstall the app"
        return NotPermitted(scope, f"{detail}: the app lacks {scope}: {remedy}")
    if code in _PERMISSIONS:
        permission, remedy = _PERMISSIONS[code]
        return NotPermitted(permission, f"{detail}: {remedy}")
    return _BY_CODE.get(code, Rejected)(detail)


def rate_limited(method: str, retry_after: float) -> RateLimited:
    """Return a RateLimited for the room or for the whole app."""
    return RateLimited(retry_after, scope="room" if method.startswith(_ROOM_METHODS) else "account")


def not_found(method: str) -> ChannelError:
    """Return the error for HTTP 404: the method does not exist, or the URL is wrong."""
    if method.startswith(_OPTIONAL_METHODS):
        return Rejected(f"{method}: unknown_method")
    return Unreachable(f"{method}: HTTP 404: check base_url")


def error_code(error: ChannelError) -> str:
    """Return Slack's error code from an error that `translate_error` made."""
    return str(error).partition(": ")[2].partition(":")[0].strip()
