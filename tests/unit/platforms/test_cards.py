"""What other bots write in cards is read as their messages' text, and link previews of people are not."""

from __future__ import annotations

from typing import Any

import pytest

from channels.discord import payloads as discord_payloads
from channels.discord.receive import codec as discord
from channels.inbox.text import append_cards
from channels.message import IgnoredUpdate, Message
from channels.slack.payloads import Bot
from channels.slack.receive import codec as slack
from gateway.conversations.room_context import opens_thread

FIELDS = [{"title": "Host", "value": "db-1 &amp; db-2", "short": True}]
ATTACHMENT = {"fallback": "f", "color": "#f00", "title": "Disk full", "text": "98 %", "fields": FIELDS}
BUTTON = {"type": "button", "action_id": "a", "text": {"type": "plain_text", "text": "Silence"}}
RICH_TEXT = {"type": "rich_text_section", "elements": [{"type": "text", "text": "up"}]}
BLOCKS = [
    {"type": "header", "text": {"type": "plain_text", "text": "Disk full"}},
    {
        "type": "section",
        "text": {"type": "mrkdwn", "text": "see <https://a.example|runbook>"},
        "accessory": BUTTON,
    },
    {"type": "actions", "elements": [BUTTON]},
    {"type": "rich_text", "elements": [RICH_TEXT]},
]
EMBED = {"type": "rich", "title": "Disk full", "fields": [{"name": "Host", "value": "db-1"}], "url": "u"}


def decode_slack(event: dict[str, Any]) -> object:
    """Decode a message of a Slack channel."""
    event = {"type": "message", "channel": "C0ROOM", "ts": "1700000000.000100", **event}
    payload = {"type": "event_callback", "team_id": "T0", "event": event}
    return slack.decode(
        {"type": "events_api", "payload": payload}, channel="chn", bot=Bot(id="U0BOT", bot_id="B0BOT")
    )


def decode_discord(author: dict[str, Any], **content: Any) -> object:
    """Decode a message of a Discord channel."""
    message = {"id": "77", "channel_id": "4004", "guild_id": "1", "author": author, **content}
    bot = discord_payloads.Bot(id="1", username="dovecote")
    return discord.decode({"t": "MESSAGE_CREATE", "d": message}, channel="chn", bot=bot)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"attachments": [ATTACHMENT]}, "Disk full\n98 %\nHost\ndb-1 & db-2"),
        ({"text": "Disk full", "blocks": BLOCKS}, "Disk full\nsee runbook (https://a.example)"),
        (
            {"text": "", "blocks": BLOCKS[:1], "attachments": [ATTACHMENT]},
            "Disk full\n98 %\nHost\ndb-1 & db-2",
        ),
        ({"text": "all is well", "blocks": BLOCKS[3:]}, "all is well"),
    ],
    ids=["attachments", "blocks", "both", "rich text"],
)
def test_an_apps_message_in_slack_has_the_words_of_its_cards(content: dict[str, Any], expected: str) -> None:
    """Attachments and blocks are read; a text is not repeated, and buttons say nothing."""
    update = decode_slack({"subtype": "bot_message", "bot_id": "B0MON", **content})
    assert isinstance(update, Message)
    assert (update.text, update.author.is_bot, opens_thread(update)) == (expected, True, True)


def test_a_bots_message_in_discord_has_the_words_of_its_embeds() -> None:
    """Those of webhooks too; the embeds of a person are previews of links."""
    bot, person = {"id": "5", "username": "ci", "bot": True}, {"id": "7", "username": "ada"}
    for one in (decode_discord(bot, embeds=[EMBED]), decode_discord(person, webhook_id="5", embeds=[EMBED])):
        assert isinstance(one, Message)
        assert (one.text, one.author.is_bot, opens_thread(one)) == ("Disk full\nHost\ndb-1", True, True)
    assert isinstance(decode_discord(person, embeds=[EMBED]), IgnoredUpdate)


def test_the_previews_of_a_persons_links_in_slack_are_not_read() -> None:
    """Slack shows them as attachments."""
    update = decode_slack({"user": "U0ADA", "text": "look", "attachments": [ATTACHMENT], "blocks": BLOCKS})
    assert isinstance(update, Message)
    assert update.text == "look"


def test_the_innermost_of_many_cards_is_not_read() -> None:
    """Cards one in the other, more than Python's stack can take, are as good as none."""
    nested: dict[str, Any] = {"text": "innermost"}
    for _ in range(5_000):
        nested = {"blocks": [nested]}
    assert append_cards("up", [nested, {"text": "beside"}]) == "up\nbeside"
