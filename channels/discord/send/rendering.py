"""Build messages, buttons and modals from replies by discord.py; pure.

Every message uses `message`, so that a mention in it never notifies anyone.
"""

from __future__ import annotations

from typing import Any

import discord
from discord import ui
from discord.http import MultipartParameters, handle_message_parameters

from channels.discord.text import parse_custom_id
from channels.inbox.text import clean
from channels.message import Address, Button

MAX_BUTTONS = 25
TEXT_LIMIT = 2000
"""Code points, as Discord counts them."""

LABEL_LIMIT = 80
CUSTOM_ID_LIMIT = 100
MODAL_LABEL_LIMIT = 45
COMMENT_LIMIT = 1000
COMMENT_FIELD = "comment"
"""The id of a modal's field."""


def channel_id_of(address: Address) -> str:
    """Return the id of the channel or thread to send to."""
    return address.thread or address.room


def message(
    text: str,
    buttons: tuple[Button, ...] = (),
    *,
    is_ephemeral: bool = False,
    nonce: str | None = None,
    reply_to: str | None = None,
    files: tuple[discord.File, ...] = (),
) -> MultipartParameters:
    """Return a message without notifications and link previews; without buttons, earlier ones go.

    Discord recognises a repeated send by its `nonce` (at most 25 characters). An `is_ephemeral` message is
    seen only by the user of the interaction.
    """
    flags = discord.MessageFlags(suppress_embeds=True, ephemeral=is_ephemeral)
    others: dict[str, Any] = {"files": files} if files else {}
    if reply_to is not None and reply_to.isdecimal():  # it is sent even if the quoted message is gone
        others["message_reference"] = {"message_id": reply_to, "fail_if_not_exists": False}
    return handle_message_parameters(
        clean(text),
        view=_view(buttons) if buttons else None,
        allowed_mentions=discord.AllowedMentions.none(),
        flags=flags,
        nonce=nonce,
        **others,
    )


def notice(text: str) -> MultipartParameters:
    """Return a message that only the user of the interaction sees."""
    return message(text[:TEXT_LIMIT], is_ephemeral=True)


def _view(buttons: tuple[Button, ...]) -> ui.View:
    """Return the buttons, five in a row."""
    view = ui.View(timeout=None)
    for button in buttons[:MAX_BUTTONS]:
        view.add_item(ui.Button(label=button.label[:LABEL_LIMIT], custom_id=custom_id(button)))
    return view


def custom_id(button: Button) -> str:
    """Return a button's id with its data and its prompt, so that both survive a restart.

    The prompt is cut to the space that Discord leaves; the length before the data tells where the prompt
    begins.
    """
    if not button.prompt and not button.data.startswith("?"):
        return button.data
    return f"?{len(button.data):02d}{button.data}{clean(button.prompt)}"[:CUSTOM_ID_LIMIT]


def modal(custom: str) -> dict[str, Any]:
    """Return the modal that a button with a prompt opens; it has the button's id."""
    label = parse_custom_id(custom)[1][:MODAL_LABEL_LIMIT]
    field = ui.TextInput[ui.View](
        label=label,
        custom_id=COMMENT_FIELD,
        style=discord.TextStyle.paragraph,
        required=False,
        max_length=COMMENT_LIMIT,
    )
    return ui.Modal(title=label, custom_id=custom, timeout=None).add_item(field).to_dict()
