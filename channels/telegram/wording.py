"""What we say in Telegram's parameters, and how Telegram measures it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.message import Address, Button, Reply


def is_group(room: str) -> bool:
    """Say whether a chat is a group or channel; the ids of private chats are those of people, above 0."""
    return room.startswith("-")


def measure(text: str) -> int:
    """Count UTF-16 units, Telegram's measure of text."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def encodable(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 can carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean(text: str) -> str:
    """No store takes half a character, and PostgreSQL no NUL."""
    return encodable(text).replace("\0", "\ufffd")


def target(address: Address) -> dict[str, Any]:
    """Return the parameters that say where."""
    thread = {"message_thread_id": address.thread} if address.thread else {}
    return {"chat_id": address.room, **thread}


def keyboard(buttons: tuple[Button, ...]) -> dict[str, Any]:
    """Return one row of buttons under a message, or nothing."""
    row = [{"text": button.label, "callback_data": button.data} for button in buttons]
    return {"reply_markup": {"inline_keyboard": [row]}} if row else {}


def wording(text: str, entities: tuple[Mapping[str, Any], ...] = ()) -> dict[str, Any]:
    """Return the parameters of what is said; links are not fetched for a preview."""
    said: dict[str, Any] = {"text": encodable(text), "link_preview_options": {"is_disabled": True}}
    return {**said, "entities": list(entities)} if entities else said


def reply_parameters(reply: Reply) -> dict[str, Any]:
    """Return what ties an answer to a message; it is sent even if that message is gone."""
    if reply.reply_to is None or not reply.reply_to.isdecimal():
        return {}
    return {"reply_parameters": {"message_id": int(reply.reply_to), "allow_sending_without_reply": True}}
