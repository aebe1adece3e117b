"""Images in a conversation: sent with their prompt, never stored, removed if a model refuses them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    UserContent,
    UserPromptPart,
)

from gateway.agents.port import AgentImage

TOKENS_PER_IMAGE = 1000
"""Estimated tokens of an image."""

NOT_SHOWN = "[the model does not take images: this one was not shown to you]"
SHOWN_EARLIER = " (shown to you then, not again)"
_ABOUT_IMAGES = re.compile(r"\bimages?\b|image_url|vision|multi-?modal|mmproj", re.IGNORECASE)
_BAD_REQUEST = 400

PromptContent = str | Sequence[UserContent]
ContentChange = Callable[[Sequence[UserContent]], list[UserContent]]


def label(image: AgentImage) -> str:
    """Return the label of an image, which stays when its bytes are removed."""
    return f"[image: {image.name}]"


def prompt(text: str, images: Sequence[AgentImage]) -> PromptContent:
    """Return a prompt with its images, each after its label."""
    if not images:
        return text
    content: list[UserContent] = [text]
    for image in images:
        content += [label(image), BinaryContent(data=image.content, media_type=image.media_type)]
    return content


def without_image_bytes(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return messages without the bytes of images; their labels stay."""
    return _map_content(
        messages, lambda parts: [part for part in parts if not isinstance(part, BinaryContent)]
    )


def for_history(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return messages for a later turn: images are replaced by a note."""

    def change(parts: Sequence[UserContent]) -> list[UserContent]:
        seen = NOT_SHOWN not in parts
        return [
            f"{part}{SHOWN_EARLIER}" if seen and place > 0 and _is_label(part) else part
            for place, part in enumerate(parts)
            if not isinstance(part, BinaryContent)
        ]

    return _map_content(messages, change)


def _is_label(part: UserContent) -> bool:
    return isinstance(part, str) and part.startswith("[image: ") and part.endswith("]")


def restore_images(messages: Iterable[ModelMessage], images: Sequence[AgentImage]) -> list[ModelMessage]:
    """Return a turn's stored messages with its images at their labels."""
    by_label = {label(image): image for image in images}

    def change(parts: Sequence[UserContent]) -> list[UserContent]:
        content: list[UserContent] = []
        for place, part in enumerate(parts):
            content.append(part)
            image = by_label.get(part) if isinstance(part, str) and place > 0 else None
            if image is not None and NOT_SHOWN not in parts:
                content.append(BinaryContent(data=image.content, media_type=image.media_type))
        return content

    return _map_content(messages, change)


def replace_images(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return messages with notes in place of images, for a model that refuses images."""
    return _map_content(
        messages, lambda parts: [NOT_SHOWN if isinstance(part, BinaryContent) else part for part in parts]
    )


def are_refused(error: ModelHTTPError, messages: Iterable[ModelMessage]) -> bool:
    """Return whether the model refused the images in these messages, by its server's error."""
    said = f"{error} {error.body}"
    return error.status_code >= _BAD_REQUEST and bool(_ABOUT_IMAGES.search(said)) and count(messages) > 0


def count(messages: Iterable[ModelMessage]) -> int:
    """Return how many images messages show."""
    return sum(
        isinstance(item, BinaryContent)
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str)
        for item in part.content
    )


def _map_content(messages: Iterable[ModelMessage], change: ContentChange) -> list[ModelMessage]:
    return [_map_message(message, change) for message in messages]


def _map_message(message: ModelMessage, change: ContentChange) -> ModelMessage:
    """Return a message with changed content, or the same object if nothing has changed."""
    if not (isinstance(message, ModelRequest) and _has_list(message)):
        return message
    parts = [_map_part(part, change) for part in message.parts]
    return message if parts == list(message.parts) else dataclasses.replace(message, parts=parts)


def _has_list(message: ModelRequest) -> bool:
    return any(isinstance(part, UserPromptPart) and _is_list(part) for part in message.parts)


def _is_list(part: UserPromptPart) -> bool:
    return not isinstance(part.content, str)


def _map_part(part: ModelRequestPart, change: ContentChange) -> ModelRequestPart:
    if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
        return dataclasses.replace(part, content=change(part.content))
    return part
