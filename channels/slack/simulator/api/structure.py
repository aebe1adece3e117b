"""Parse structured arguments, and validate blocks and modals."""

from __future__ import annotations

import json
from typing import Any

from channels.slack.simulator.failure import ApiFailure
from channels.slack.simulator.world import Raw

SECTION_LIMIT = 3_000
MARKDOWN_LIMIT = 12_000
LABEL_LIMIT = 75
BLOCKS_LIMIT = 50
TITLE_LIMIT = 24
METADATA_LIMIT = 3_000
MODAL_BLOCKS_LIMIT = 100
ACTION_ID_LIMIT = 255


def parse_json(value: Any) -> Any:
    """Return a list or object that may be JSON text; raises ApiFailure."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ApiFailure("invalid_arguments") from None


def parse_flag(value: Any) -> bool:
    """Return a boolean that may be text."""
    return value is True or str(value).lower() in {"1", "true"}


def check_blocks(blocks: Any) -> None:
    """Raise ApiFailure for blocks that Slack refuses."""
    if not isinstance(blocks, list) or len(blocks) > BLOCKS_LIMIT:
        raise ApiFailure("invalid_blocks")
    names = [button.get("action_id") for block in blocks for button in block.get("elements", [])]
    if len(set(names)) != len(names) or any(len(str(name)) > ACTION_ID_LIMIT for name in names):
        raise ApiFailure("invalid_blocks")
    for block in blocks:
        _check_block(block)
    if sum(len(block["text"]) for block in blocks if block.get("type") == "markdown") > MARKDOWN_LIMIT:
        raise ApiFailure("invalid_blocks")


def _check_block(block: Any) -> None:
    if block.get("type") == "section" and not 1 <= len(block["text"]["text"]) <= SECTION_LIMIT:
        raise ApiFailure("invalid_blocks")
    if block.get("type") == "markdown" and not block.get("text"):
        raise ApiFailure("invalid_blocks")
    if block.get("type") == "actions" and not block.get("elements"):
        raise ApiFailure("invalid_blocks")
    for button in block.get("elements", []):
        if not 1 <= len(button["text"]["text"]) <= LABEL_LIMIT:
            raise ApiFailure("invalid_blocks")


def check_metadata(value: Any) -> Raw:
    """Return a message's metadata; raises ApiFailure."""
    mark = parse_json(value)
    good = isinstance(mark, dict) and isinstance(mark.get("event_payload"), dict) and mark.get("event_type")
    if not good:
        raise ApiFailure("invalid_metadata_format")
    return dict(mark)


def check_modal(view: Any) -> Raw:
    """Return a modal that Slack would open; raises ApiFailure."""
    if not isinstance(view, dict) or view.get("type") != "modal":
        raise ApiFailure("invalid_arguments")
    words = [view.get(name, {}).get("text", "") for name in ("title", "submit", "close")]
    blocks = view.get("blocks")
    if not isinstance(blocks, list) or len(blocks) > MODAL_BLOCKS_LIMIT:
        raise ApiFailure("invalid_arguments")
    if not words[0] or any(len(word) > TITLE_LIMIT for word in words):
        raise ApiFailure("invalid_arguments")
    asks = any(block.get("type") == "input" for block in blocks)
    if len(str(view.get("private_metadata", ""))) > METADATA_LIMIT or (asks and not words[1]):
        raise ApiFailure("invalid_arguments")
    return dict(view)
