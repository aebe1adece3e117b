"""One part of a reply to a chat, text or file: created by the router, sent by the chat sink."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from channels.message import Button


class BadPart(ValueError):
    """A stored part of a reply cannot be decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """A file to attach: its bytes are stored under `id`; `path` is its path in the workspace.

    `is_text`: it is the whole text of the message `id`, and may be shortened in its middle.
    `is_speech`: it is made from the text of the message `id`, and left out if that fails.
    """

    id: str
    name: str
    media_type: str
    size: int
    path: str = ""
    caption: str = ""
    is_text: bool = False
    is_speech: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """CommonMark text within the length limit, with optional buttons, or a file.

    `message` is the id of the message that begins with this part; its draft may already be visible.
    `reply_to` is the platform's id of the message to reply to. A part with a `file` has no text. A part
    that is `only_edit` changes a visible message, and is not sent where there is none to change. `edits` is
    the event whose message it changes, if that was not delivered when the part was created. A part that
    `needs_edits` is sent only where the platform can change it later; one that `deletes` deletes the message.
    A part with a `reaction`, the platform's name of an emoji, adds it to the message `reply_to`.
    """

    text: str
    message: str | None = None
    buttons: tuple[Button, ...] = ()
    reply_to: str | None = None
    file: FilePart | None = None
    only_edit: bool = False
    edits: str | None = None
    needs_edits: bool = False
    deletes: bool = False
    reaction: str | None = None


def encode_part(part: Part) -> bytes:
    """Return the body of a delivery row."""
    shape: dict[str, Any] = {
        "text": part.text,
        "buttons": [
            {"label": button.label, "data": button.data}
            | ({"prompt": button.prompt} if button.prompt else {})
            for button in part.buttons
        ],
        "reply_to": part.reply_to,
    }
    if part.message is not None:
        shape["message"] = part.message
    if part.file is not None:
        shape["file"] = asdict(part.file)
    if part.only_edit:
        shape["only_edit"] = True
    if part.edits is not None:
        shape["edits"] = part.edits
    if part.needs_edits:
        shape["needs_edits"] = True
    if part.deletes:
        shape["deletes"] = True
    if part.reaction is not None:
        shape["reaction"] = part.reaction
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":")).encode()


def decode_part(body: bytes) -> Part:
    """Return the part that `encode_part` wrote; raises BadPart."""
    try:
        shape: dict[str, Any] = json.loads(body)
        buttons = tuple(
            Button(label=raw["label"], data=raw["data"], prompt=raw.get("prompt", ""))
            for raw in shape.get("buttons") or ()
        )
        return Part(
            text=shape["text"],
            message=shape.get("message"),
            buttons=buttons,
            reply_to=shape.get("reply_to"),
            file=FilePart(**shape["file"]) if "file" in shape else None,
            only_edit=bool(shape.get("only_edit")),
            edits=shape.get("edits"),
            needs_edits=bool(shape.get("needs_edits")),
            deletes=bool(shape.get("deletes")),
            reaction=shape.get("reaction"),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadPart(f"the stored part cannot be decoded: {error!r}") from error
