"""Build the parameters of Bot API calls from replies and addresses; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from channels.inbox.text import replace_surrogates
from channels.message import Address, Button, Reply
from channels.telegram.payloads import COMMENTS, DIRECT_TOPIC


def target(address: Address) -> dict[str, Any]:
    """Return the parameters that name the chat and the topic, or the post that is commented on."""
    thread = address.thread or ""
    if thread.startswith(COMMENTS):
        post = {"message_id": int(thread.removeprefix(COMMENTS))}
        return {"chat_id": address.room, "reply_parameters": post}
    topic = thread.removeprefix(DIRECT_TOPIC)
    name = "message_thread_id" if topic == thread else "direct_messages_topic_id"
    return {"chat_id": address.room, **({name: topic} if topic else {})}


def inline_keyboard(buttons: tuple[Button, ...]) -> dict[str, Any]:
    """Return one row of buttons, or no parameters."""
    row = [{"text": button.label, "callback_data": button.data} for button in buttons]
    return {"reply_markup": {"inline_keyboard": [row]}} if row else {}


def message_fields(text: str, entities: tuple[Mapping[str, Any], ...] = ()) -> dict[str, Any]:
    """Return the parameters of a text; link previews are switched off."""
    fields: dict[str, Any] = {"text": replace_surrogates(text), "link_preview_options": {"is_disabled": True}}
    return {**fields, "entities": list(entities)} if entities else fields


def chat_action_target(address: Address) -> dict[str, Any]:
    """Return the parameters of sendChatAction, which takes the thread of any chain of replies."""
    thread = address.thread or ""
    return target(replace(address, thread=thread.removeprefix(COMMENTS) or None))


def reply_parameters(address: Address, reply: Reply) -> dict[str, Any]:
    """Return the parameters that quote a message; the reply is sent even if that one is gone.

    Among comments it replies to the post: if the quoted comment were gone, it would be in the whole group.
    """
    is_comment = (address.thread or "").startswith(COMMENTS)
    if is_comment or reply.reply_to is None or not reply.reply_to.isdecimal():
        return {}
    return {"reply_parameters": {"message_id": int(reply.reply_to), "allow_sending_without_reply": True}}
