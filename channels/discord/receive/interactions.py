"""Verify posted interactions, and build the initial response to each kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from channels.discord.payloads import CHANNEL_MESSAGE
from channels.discord.receive import codec
from channels.discord.send import rendering
from channels.message import ButtonPress, Command, IgnoredUpdate, Message, Update
from channels.port import WebhookRequest

SIGNATURE_HEADER = "x-signature-ed25519"
TIMESTAMP_HEADER = "x-signature-timestamp"

PING, COMMAND, COMPONENT, AUTOCOMPLETE, MODAL = 1, 2, 3, 4, 5
"""Types of interactions."""

PONG: dict[str, Any] = {"type": 1}

DEFER_MESSAGE: dict[str, Any] = {"type": 5}
DEFER_UPDATE: dict[str, Any] = {"type": 6}
NO_CHOICES: dict[str, Any] = {"type": 8, "data": {"choices": []}}
OPEN_MODAL = 9
"""The type of an interaction response that opens a modal."""

FOREIGN_PLACE: dict[str, Any] = {
    "type": CHANNEL_MESSAGE,
    "data": rendering.notice(
        "I am not a member here: write to me in private, or in a server with me."
    ).payload,
}
UNKNOWN_COMMAND: dict[str, Any] = {
    "type": CHANNEL_MESSAGE,
    "data": rendering.notice("This bot does not have this command.").payload,
}
_INITIAL_RESPONSES = {
    COMMAND: UNKNOWN_COMMAND,
    COMPONENT: DEFER_UPDATE,
    AUTOCOMPLETE: NO_CHOICES,
    MODAL: DEFER_UPDATE,
}

_SIGNATURE = re.compile(r"[0-9a-fA-F]{128}")
_TIMESTAMP = re.compile(r"[0-9]{1,20}")


def is_signed(request: WebhookRequest, public_key: str) -> bool:
    """Return whether Discord signed exactly this body; malformed signatures give False."""
    signature = request.headers.get(SIGNATURE_HEADER, "")
    timestamp = request.headers.get(TIMESTAMP_HEADER, "")
    if not (_SIGNATURE.fullmatch(signature) and _TIMESTAMP.fullmatch(timestamp)):
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), timestamp.encode() + request.body)
    except (InvalidSignature, ValueError):
        return False
    return True


def initial_response(
    interaction: Mapping[str, Any], decoded: Update | IgnoredUpdate
) -> dict[str, Any] | None:
    """Return the initial response; None if it is not an interaction."""
    if isinstance(decoded, Message | Command):
        return DEFER_MESSAGE
    if isinstance(decoded, ButtonPress):
        return DEFER_UPDATE
    if isinstance(decoded, IgnoredUpdate) and decoded.reason == codec.FOREIGN:
        return FOREIGN_PLACE
    custom = codec.button_to_prompt(interaction)
    if custom is not None:
        return {"type": OPEN_MODAL, "data": rendering.modal(custom)}
    return _INITIAL_RESPONSES.get(_kind(interaction))


def _kind(interaction: Mapping[str, Any]) -> int:
    kind = interaction.get("type")
    return kind if isinstance(kind, int) else 0
