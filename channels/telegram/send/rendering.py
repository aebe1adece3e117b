"""What we say in Telegram's parameters, and how Telegram measures it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.message import Address, Button, Reply
from channels.telegram.text import replace_surrogates


def target(address: Address) -> dict[str, Any]:
    """Return the parameters that say where."""
    thread = {"message_thread_id": address.thread} if address.thread else {}
    return {"chat_id": address.room, **thread}


def inline_keyboard(buttons: tuple[Button, ...]) -> dict[str, Any]:
    """Return one row of buttons under a message, or nothing."""
    row = [{"text": button.label, "callback_data": button.data} for button in buttons]
    return {"reply_markup": {"inline_keyboard": [row]}} if row else {}


def message_fields(text: str, entities: tuple[Mapping[str, Any], ...] = ()) -> dict[str, Any]:
    """Return the parameters of what is said; links are not fetched for a preview."""
    said: dict[str, Any] = {"text": replace_surrogates(text), "link_preview_options": {"is_disabled": True}}
    return {**said, "entities": list(entities)} if entities else said


def reply_parameters(reply: Reply) -> dict[str, Any]:
    """Return what ties an answer to a message; it is sent even if that message is gone."""
    if reply.reply_to is None or not reply.reply_to.isdecimal():
        return {}
    return {"reply_parameters": {"message_id": int(reply.reply_to), "allow_sending_without_reply": True}}
