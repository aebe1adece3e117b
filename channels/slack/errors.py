"""The one table from Slack's errors to ours."""

from __future__ import annotations

from channels.errors import Ambiguous, ChannelError, RateLimited, Rejected, Unauthorized, Undeliverable

_UNAUTHORIZED = (
    "invalid_auth not_authed token_revoked token_expired account_inactive missing_scope no_permission "
    "not_allowed_token_type org_login_required access_denied ekm_access_denied team_access_not_granted "
    "two_factor_setup_required"
)
_UNDELIVERABLE = (
    "channel_not_found is_archived not_in_channel user_not_in_channel user_not_found user_disabled "
    "restricted_action restricted_action_read_only_channel restricted_action_thread_only_channel "
    "restricted_action_non_threadable_channel restricted_action_thread_locked messages_tab_disabled "
    "cannot_dm_bot channel_is_limited_access thread_not_found cannot_reply_to_message"
)
_AMBIGUOUS = "internal_error fatal_error service_unavailable request_timeout"
_BY_WORD: dict[str, type[ChannelError]] = {
    **dict.fromkeys(_UNAUTHORIZED.split(), Unauthorized),
    **dict.fromkeys(_UNDELIVERABLE.split(), Undeliverable),
    **dict.fromkeys(_AMBIGUOUS.split(), Ambiguous),
}
_DEAD_WHEN_SENDING = frozenset({"account_inactive"})
"""What is about the person at the other end when a message is sent, and about our token otherwise."""

MARKUP_REFUSED = frozenset({"invalid_blocks", "invalid_blocks_format", "invalid_attachments"})


def translate(word: str, *, method: str, retry_after: float = 30.0) -> ChannelError:
    """Return our error for Slack's word of refusal."""
    detail = f"{method}: {word[:80]}"
    if word in {"ratelimited", "rate_limited", "message_limit_exceeded"}:
        return RateLimited(retry_after)
    if word in _DEAD_WHEN_SENDING and method.startswith(("chat.", "files.")):
        return Undeliverable(detail)
    return _BY_WORD.get(word, Rejected)(detail)
