"""CommonMark as Slack shows it, and any payload at all."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.slack import text as slack_text
from channels.slack.receive import codec
from channels.slack.send import markup
from channels.slack.simulator.mrkdwn import notified_targets, render

_NAMES = (
    "type payload event team_id channel user text ts thread_ts subtype message previous_message edited files "
    "id name bot_id channel_id user_id trigger_id actions value container message_ts"
)
_VALUES = (
    "message events_api interactive slash_commands block_actions message_changed C0 D0 1767225600.000100"
)
_TEXT = st.text() | st.sampled_from(_VALUES.split()) | st.sampled_from(["\ud83d", "\0", "<@U0BOT> stop"])
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_NAMES.split()), inner, max_size=6)
        | st.fixed_dictionaries(
            {"type": st.just("message"), "channel": inner, "ts": st.just("1.2")},
            optional={"text": inner, "user": inner, "message": inner, "files": inner, "edited": inner},
        )
    ),
    max_leaves=20,
)
BOT = codec.Bot(id="U0BOT", bot_id="B0BOT", team="T0TEAM")


@pytest.mark.parametrize(
    ("markdown", "mrkdwn"),
    [
        ("**bold** *it* ~~gone~~ `a<b`", "*bold* _it_ ~gone~ `a&lt;b`"),
        ("# Head **line**\n\ntext", "*Head line*\n\ntext"),
        ("[the page](https://example.org/?a=1&b=2)", "<https://example.org/?a=1&amp;b=2|the page>"),
        ("<https://example.org>", "<https://example.org>"),
        ("[x](javascript:alert)", "[x](javascript:alert)"),
        ("[x](/relative)", "x (/relative)"),
        ("[a|b](https://example.org/p|q)", "<https://example.org/p%7Cq|a¦b>"),
        ("![cat](https://example.org/c.png)", "<https://example.org/c.png|cat>"),
        ("- one\n- two\n  1. deep", "• one\n• two\n  1. deep"),
        ("> said\n> so", "> said\n> so"),
        ("```python\nif a<b: pass\n```", "```\nif a&lt;b: pass\n```"),
        ("---", "———"),
        ("<!channel> & <@U1>", "&lt;!channel&gt; &amp; &lt;@U1&gt;"),
        ("Vec<T> and a<b and c>d", "Vec&lt;T&gt; and a&lt;b and c&gt;d"),
    ],
)
def test_markdown_becomes_mrkdwn(markdown: str, mrkdwn: str) -> None:
    """Each mark has Slack's own form, and everything else is escaped."""
    assert markup.render(markdown) == mrkdwn


@given(st.text(alphabet="ab<>&!@#|*_~`[]()-\n \\\"'1.:/"))
def test_no_text_notifies_anybody(text: str) -> None:
    """Whatever a model writes, Slack sees neither a person nor a channel in it."""
    assert notified_targets(markup.render(text)) == []


@given(st.lists(st.text(alphabet="abc<&", min_size=1, max_size=8), min_size=1, max_size=12))
def test_no_word_is_lost(words: list[str]) -> None:
    """Every letter of plain words is still to be read."""
    text = " ".join(words)
    kept = re.sub(r"[^abc<&]", "", render(markup.render(text)))
    assert kept == re.sub(r"[^abc<&]", "", text)


@pytest.mark.parametrize("hostile", ["[", "*", "`", "<", "> ", "- ", "![", "~~", "**a", "<@"])
def test_hostile_text_is_rendered(hostile: str) -> None:
    """Long runs of marks are rendered like other text, within the test's time limit."""
    assert markup.render(hostile * 8000)


@given(_JSON, st.sampled_from(["events_api", "interactive", "slash_commands"]))
def test_no_payload_raises(payload: Any, kind: str) -> None:
    """Any JSON gives an update or a reason."""
    for update in (payload, {"type": kind, "payload": payload}, _callback(payload)):
        codec.decode(update, channel="chn_1", bot=BOT)


def _callback(event: Any) -> dict[str, Any]:
    return {"type": "events_api", "payload": {"team_id": "T0TEAM", "event": event}}


def test_a_measure_counts_what_travels() -> None:
    """Escapes and pairs of surrogates count as Slack receives them."""
    assert slack_text.measure("a&<>\N{GRINNING FACE}") == 1 + 5 + 4 + 4 + 2
