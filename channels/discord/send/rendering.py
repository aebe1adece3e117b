"""Build the fields of messages, buttons and modals from replies; pure.

Every message uses `message_fields`, so that a mention in it never notifies anyone.
"""

from __future__ import annotations

from typing import Any

from channels.discord.text import parse_custom_id, replace_surrogates
from channels.message import Address, Button, Reply

BUTTONS_PER_ROW = 5
MAX_ROWS = 5
TEXT_LIMIT = 2000
"""Code points, as Discord counts them."""

LABEL_LIMIT = 80
CUSTOM_ID_LIMIT = 100
MODAL_LABEL_LIMIT = 45
COMMENT_LIMIT = 1000
COMMENT_FIELD = "comment"
"""The id of a modal's field."""

SUPPRESS_EMBEDS = 4
"""The flag that keeps Discord from previewing links."""

EPHEMERAL = 64
"""The flag of a message that only the user of the interaction sees."""


def channel_id_of(address: Address) -> str:
    """Return the id of the channel or thread to send to."""
    return address.thread or address.room


def message_fields(text: str, buttons: tuple[Button, ...] = (), *, flags: int = 0) -> dict[str, Any]:
    """Return the fields of a message."""
    return {
        "content": replace_surrogates(text),
        "allowed_mentions": {"parse": []},
        "components": action_rows(buttons),
        "flags": SUPPRESS_EMBEDS | flags,
    }


def ephemeral_fields(text: str) -> dict[str, Any]:
    """Return the fields of a message that only the user of the interaction sees."""
    return message_fields(text[:TEXT_LIMIT], flags=EPHEMERAL)


def action_rows(buttons: tuple[Button, ...]) -> list[dict[str, Any]]:
    """Return buttons in rows of five; an empty list removes earlier ones."""
    components = [
        {"type": 2, "style": 2, "label": button.label[:LABEL_LIMIT], "custom_id": custom_id(button)}
        for button in buttons[: BUTTONS_PER_ROW * MAX_ROWS]
    ]
    return [
        {"type": 1, "components": components[first : first + BUTTONS_PER_ROW]}
        for first in range(0, len(components), BUTTONS_PER_ROW)
    ]


def custom_id(button: Button) -> str:
    """Return a button's id with its data and its prompt, so that both survive a restart.

    The prompt is cut to the space that Discord leaves; the length before the data tells where the prompt
    begins.
    """
    if not button.prompt and not button.data.startswith("?"):
        return button.data
    return f"?{len(button.data):02d}{button.data}{replace_surrogates(button.prompt)}"[:CUSTOM_ID_LIMIT]


def modal_fields(custom: str) -> dict[str, Any]:
    """Return the modal that a button with a prompt opens; it has the button's id."""
    label = parse_custom_id(custom)[1][:MODAL_LABEL_LIMIT]
    field = {
        "type": 4,
        "custom_id": COMMENT_FIELD,
        "style": 2,
        "label": label,
        "required": False,
        "max_length": COMMENT_LIMIT,
    }
    return {"custom_id": custom, "title": label, "components": [{"type": 1, "components": [field]}]}


def nonce_fields(key: str) -> dict[str, Any]:
    """Return the fields by which Discord recognises a repeated send (at most 25 characters)."""
    return {"nonce": key, "enforce_nonce": True}


def reply_fields(reply: Reply) -> dict[str, Any]:
    """Return the fields that quote a message; the reply is sent even if that one is gone."""
    if reply.reply_to is None or not reply.reply_to.isdecimal():
        return {}
    return {"message_reference": {"message_id": reply.reply_to, "fail_if_not_exists": False}}
