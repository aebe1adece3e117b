"""What Slack refuses in one thread holds no other thread of the channel."""

from __future__ import annotations

import pytest

from channels.errors import ChannelError, NotPermitted, ThreadUndeliverable
from channels.slack.errors import translate_error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("restricted_action_non_threadable_channel", ThreadUndeliverable),
        ("restricted_action_thread_only_channel", ThreadUndeliverable),
        ("restricted_action_thread_locked", ThreadUndeliverable),
        ("restricted_action_read_only_channel", NotPermitted),
        ("posting_to_general_channel_denied", NotPermitted),
    ],
)
def test_a_restriction_of_a_channel_is_not_its_end(code: str, kind: type[ChannelError]) -> None:
    """A channel without threads takes the answer itself; one of threads alone takes those of its threads."""
    assert type(translate_error(code, method="chat.postMessage")) is kind
