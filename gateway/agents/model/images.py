"""Images in a conversation: sent with their prompt, never stored, removed if a model refuses them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.agents.clients.errors import ModelCallError
from gateway.agents.clients.messages import ChatMessage, ChatPart, image_item, is_image, with_parts
from gateway.agents.port import AgentImage

TOKENS_PER_IMAGE = 1000
"""Estimated tokens of an image."""

MAX_VIEWED = 10
"""Images of results that one attempt shows to the model."""

VIEWED = "[images that you asked to see]"
"""How the prompt begins that shows the images of results."""

TOO_MANY = f"[at most {MAX_VIEWED} images are shown in one turn: this one is not]"
NOT_SHOWN = "[the model does not take images: this one was not shown to you]"
SHOWN_EARLIER = " (shown to you then, not again)"
_ABOUT_IMAGES = re.compile(r"\bimages?\b|image_url|vision|multi-?modal|mmproj", re.IGNORECASE)
_BAD_REQUEST = 400

PromptItems = list[Any]
"""The texts and images of a prompt."""

ContentChange = Callable[[PromptItems], PromptItems]


def label(image: AgentImage) -> str:
    """Return the label of an image, which stays when its bytes are removed."""
    return f"[image: {image.name}]"


def prompt(text: str, images: Sequence[AgentImage]) -> str | PromptItems:
    """Return a prompt with its images, each after its label."""
    if not images:
        return text
    content: PromptItems = [text]
    for image in images:
        content += [label(image), _item(image)]
    return content


def _item(image: AgentImage) -> dict[str, str]:
    return image_item(image.media_type, base64.b64encode(image.content).decode())


def viewed(images: Sequence[AgentImage], before: int) -> PromptItems:
    """Return the prompt that shows the images of results, after `before` others; the rest are named alone."""
    allowed = max(MAX_VIEWED - before, 0)
    left = [f"{label(image)} {TOO_MANY}" for image in images[allowed:]]
    content = prompt(VIEWED, images[:allowed])
    return [*(content if isinstance(content, list) else [content]), *left]


def is_viewed(part: ChatPart) -> bool:
    """Return whether a part shows images of results, and is no message of a person."""
    return _items(part)[:1] == [VIEWED]


def without_image_bytes(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return messages without the bytes of images; their labels stay."""
    return _map_content(messages, lambda items: [item for item in items if not is_image(item)])


def for_history(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return messages for a later turn: images are replaced by a note."""

    def change(items: PromptItems) -> PromptItems:
        seen = NOT_SHOWN not in items
        return [
            f"{item}{SHOWN_EARLIER}" if seen and place > 0 and _is_label(item) else item
            for place, item in enumerate(items)
            if not is_image(item)
        ]

    return _map_content(messages, change)


def _is_label(item: object) -> bool:
    return isinstance(item, str) and item.startswith("[image: ") and item.endswith("]")


def restore_images(messages: Iterable[ChatMessage], images: Sequence[AgentImage]) -> list[ChatMessage]:
    """Return a turn's stored messages with its images at their labels."""
    by_label = {label(image): image for image in images}

    def change(items: PromptItems) -> PromptItems:
        content: PromptItems = []
        for place, item in enumerate(items):
            content.append(item)
            image = by_label.get(item) if isinstance(item, str) and place > 0 else None
            if image is not None and NOT_SHOWN not in items:
                content.append(_item(image))
        return content

    return _map_content(messages, change)


def replace_images(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return messages with notes in place of images, for a model that refuses images."""
    return _map_content(messages, lambda items: [NOT_SHOWN if is_image(item) else item for item in items])


def are_refused(error: ModelCallError, messages: Iterable[ChatMessage]) -> bool:
    """Return whether the model refused the images in these messages, by its server's error."""
    said = f"{error} {error.body}"
    return (error.status or 0) >= _BAD_REQUEST and bool(_ABOUT_IMAGES.search(said)) and count(messages) > 0


def count(messages: Iterable[ChatMessage]) -> int:
    """Return how many images messages show."""
    return sum(is_image(item) for message in messages for part in message["parts"] for item in _items(part))


def _items(part: ChatPart) -> PromptItems:
    """Return the items of a prompt that is a list, else nothing."""
    content = part.get("content")
    return content if part["part_kind"] == "user-prompt" and isinstance(content, list) else []


def _map_content(messages: Iterable[ChatMessage], change: ContentChange) -> list[ChatMessage]:
    return [_map_message(message, change) for message in messages]


def _map_message(message: ChatMessage, change: ContentChange) -> ChatMessage:
    """Return a message with changed content, or the same object if nothing has changed."""
    if not any(_items(part) for part in message["parts"]):
        return message
    parts = [_map_part(part, change) for part in message["parts"]]
    return message if parts == message["parts"] else with_parts(message, parts)


def _map_part(part: ChatPart, change: ContentChange) -> ChatPart:
    items = _items(part)
    if not items:
        return part
    changed = part.copy()
    changed["content"] = change(items)
    return changed
