"""How Telegram's words are read: orders, and albums whose parts are not all in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telegram.constants import MessageType

from channels.inbox.commands import DESCRIPTIONS
from channels.message import Address, IgnoredUpdate, Message
from channels.telegram import payloads
from channels.telegram.commands import parse_slash, parse_words
from channels.telegram.receive import codec
from channels.telegram.send.rendering import target

BOT = payloads.Bot(id="1", username="dovecote_bot")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("/stop", ("stop", "", "")),
        ("/STOP", ("stop", "", "")),
        ("/jobs  logs job_1 ", ("jobs", "logs job_1", "")),
        ("/stop@other_bot now", ("stop", "now", "other_bot")),
        ("/start", ("help", "", "")),
        ("/deny apr_1 not\nnow", ("deny", "apr_1 not\nnow", "")),
        ("/stop.", None),
        ("/", None),
        ("/usr/bin", None),
        (" /stop", None),
        ("stop", None),
    ],
)
def test_a_slash_command_is_read(text: str, read: tuple[str, str, str] | None) -> None:
    """A word after the slash, the bot it names, and what follows; a path is none."""
    order = parse_slash(text)
    assert (order and (order.name, order.rest, order.bot_username)) == read


@pytest.mark.parametrize(
    "text", ["stop", "Status", "jobs logs job_1", "approve apr_1", "queue collect", "help"]
)
def test_words_that_are_nothing_but_an_order_are_one(text: str) -> None:
    """They follow a mention of the bot."""
    order = parse_words(text)
    assert order is not None
    assert order.is_known


@pytest.mark.parametrize(
    "text",
    [
        "",
        "stop it",
        "help me with this",
        "jobs are few",
        "approve of it",
        "deny",
        "queue up for lunch",
        "hello",
    ],
)
def test_talk_that_begins_like_an_order_is_talk(text: str) -> None:
    """A sentence stops no turn."""
    assert parse_words(text) is None


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read_without_fault(text: str) -> None:
    """What a person types raises nothing, and what is read is written back as the same order."""
    for order in (parse_slash(text), parse_words(text)):
        if order is not None:
            again = parse_slash(order.text)
            assert again is not None
            assert (again.name, again.rest) == (order.name, order.rest)


def test_the_menu_is_one_telegram_takes() -> None:
    """Names and descriptions keep to the limits of setMyCommands."""
    assert all(name.isascii() and name.islower() and len(name) <= 32 for name in DESCRIPTIONS)
    assert all(1 <= len(words) <= 100 for words in DESCRIPTIONS.values())


NOTICES = """
    boost_added channel_chat_created chat_background_set chat_owner_changed chat_owner_left chat_shared
    checklist_tasks_added checklist_tasks_done connected_website delete_chat_photo
    direct_message_price_changed forum_topic_closed forum_topic_created forum_topic_edited
    general_forum_topic_hidden general_forum_topic_unhidden gift gift_upgrade_sent giveaway_completed
    giveaway_created group_chat_created left_chat_member managed_bot_created
    message_auto_delete_timer_changed new_chat_members new_chat_photo new_chat_title
    paid_message_price_changed passport_data pinned_message poll_option_added poll_option_deleted
    proximity_alert_triggered refunded_payment successful_payment suggested_post_approval_failed
    suggested_post_approved suggested_post_declined suggested_post_info suggested_post_paid
    suggested_post_refunded supergroup_chat_created unique_gift users_shared video_chat_ended
    video_chat_participants_invited video_chat_scheduled video_chat_started web_app_data
    write_access_allowed
"""
"""Kinds of service messages that report an event and ask for no answer."""

ATTRIBUTES = {
    "business_connection_id",
    "effect_id",
    "live_photo",
    "sender_boost_count",
    "sender_business_bot",
}
"""What the library lists as kinds, although such a message has content of another kind as well."""


def test_each_kind_of_message_is_read_or_reports_an_event() -> None:
    """The table of the installed library lists the kinds."""
    kinds = {kind.value for kind in MessageType}
    assert kinds - set(payloads.Message.model_fields) == {*NOTICES.split()} | ATTRIBUTES


def part(number: int, **others: Any) -> dict[str, Any]:
    """Return a part of an album."""
    photo = [{"file_id": f"f{number}", "width": 1, "height": 1}]
    message = {"message_id": number, "chat": {"id": 7, "type": "private"}, "from": {"id": 7}}
    return {"update_id": number, "message": {**message, "media_group_id": "a", "photo": photo, **others}}


def test_an_albums_broken_part_takes_no_other_with_it() -> None:
    """The parts that make sense are one message, with the words of all of them."""
    parts = [
        part(1, photo="none"),
        part(2, caption="left"),
        part(3, caption="right"),
        part(4, caption="left"),
    ]
    album = codec.decode_album(parts, channel="chn_1", bot=BOT)
    assert isinstance(album, Message)
    assert (album.key, album.text) == ("1:2", "left\nright")
    assert [attachment.ref for attachment in album.attachments] == ["f2", "f3", "f4"]


def test_an_album_of_nothing_is_ignored() -> None:
    """No part of it makes sense."""
    decoded = codec.decode_album([part(1, photo="none"), part(2, chat=[])], channel="chn_1", bot=BOT)
    assert isinstance(decoded, IgnoredUpdate)


@pytest.mark.parametrize("name", [None, 7, "", "x" * 65, "a:b", "\ud800", "a\0"])
def test_an_odd_albums_name_is_none(name: object) -> None:
    """Its parts are messages of their own."""
    assert codec.album_of(part(1, media_group_id=name)) is None


@pytest.mark.parametrize("update", [None, [], {}, {"message": []}, {"message": {"media_group_id": "a"}}])
def test_what_is_no_message_is_of_no_album(update: object) -> None:
    """Invalid updates are recognised without an error."""
    assert codec.album_of(update) is None


def test_replies_to_direct_messages_of_a_channel_name_their_topic() -> None:
    """Telegram's two kinds of topics have parameters of their own."""
    room = Address(channel="chn_1", room="-100")
    assert target(room) == {"chat_id": "-100"}
    assert target(replace(room, thread="17")) == {"chat_id": "-100", "message_thread_id": "17"}
    direct = replace(room, thread="direct-4503599627370495")
    assert target(direct) == {"chat_id": "-100", "direct_messages_topic_id": "4503599627370495"}
