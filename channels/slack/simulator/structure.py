"""Arguments as they come, JSON in a string or not, and the checks of blocks and modals."""

from __future__ import annotations

import json
from typing import Any

from channels.slack.simulator.failure import Failure
from channels.slack.simulator.world import Raw

SECTION = 3_000
LABEL = 75
BLOCKS = 50
TITLE = 24
METADATA = 3_000
MODAL_BLOCKS = 100
ACTION = 255


def structure(value: Any) -> Any:
    """Return a list or object that may have come as JSON; raises Failure."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise Failure("invalid_arguments") from None


def flag(value: Any) -> bool:
    """Return a truth that may have come as text."""
    return value is True or str(value).lower() in {"1", "true"}


def check_blocks(blocks: Any) -> None:
    """Refuse blocks that Slack refuses."""
    if not isinstance(blocks, list) or len(blocks) > BLOCKS:
        raise Failure("invalid_blocks")
    names = [button.get("action_id") for block in blocks for button in block.get("elements", [])]
    if len(set(names)) != len(names) or any(len(str(name)) > ACTION for name in names):
        raise Failure("invalid_blocks")
    for block in blocks:
        _check_block(block)


def _check_block(block: Any) -> None:
    if block.get("type") == "section" and not 1 <= len(block["text"]["text"]) <= SECTION:
        raise Failure("invalid_blocks")
    if block.get("type") == "actions" and not block.get("elements"):
        raise Failure("invalid_blocks")
    for button in block.get("elements", []):
        if not 1 <= len(button["text"]["text"]) <= LABEL:
            raise Failure("invalid_blocks")


def check_metadata(value: Any) -> Raw:
    """Return a message's metadata; raises Failure."""
    mark = structure(value)
    good = isinstance(mark, dict) and isinstance(mark.get("event_payload"), dict) and mark.get("event_type")
    if not good:
        raise Failure("invalid_metadata_format")
    return dict(mark)


def check_modal(view: Any) -> Raw:
    """Return a modal that Slack would open; raises Failure."""
    if not isinstance(view, dict) or view.get("type") != "modal":
        raise Failure("invalid_arguments")
    words = [view.get(name, {}).get("text", "") for name in ("title", "submit", "close")]
    blocks = view.get("blocks")
    if not isinstance(blocks, list) or len(blocks) > MODAL_BLOCKS:
        raise Failure("invalid_arguments")
    if not words[0] or any(len(word) > TITLE for word in words):
        raise Failure("invalid_arguments")
    asks = any(block.get("type") == "input" for block in blocks)
    if len(str(view.get("private_metadata", ""))) > METADATA or (asks and not words[1]):
        raise Failure("invalid_arguments")
    return dict(view)
