"""Requests of the AI SDK's chat transport: the chat's id and its messages, of which the last is answered."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictStr

from gateway.records.fields import Name
from gateway.web.compat.openai_messages import (
    InlineOrUrl,
    InputContentPart,
    InputMessage,
    LenientRequest,
    Text,
)

_FILE_PART = "input_file"


class UiPart(LenientRequest):
    """A part of a message: text or a file; tools, reasoning, data and others are ignored."""

    type: Annotated[StrictStr, Field(max_length=200)]
    text: Text | None = None
    url: InlineOrUrl | None = None
    filename: Annotated[StrictStr, Field(max_length=200)] | None = None

    def to_content(self) -> list[InputContentPart]:
        """Return the part as one of OpenAI's; none for a part without words or bytes."""
        if self.type == "text" and self.text:
            return [InputContentPart(type="input_text", text=self.text)]
        if self.type == "file" and self.url:
            file = {"type": _FILE_PART, "file_data": self.url, "filename": self.filename}
            return [InputContentPart.model_validate(file)]
        return []


class UiMessage(LenientRequest):
    """A message of the chat."""

    id: Annotated[StrictStr, Field(max_length=200)] = ""
    role: Literal["system", "user", "assistant"]
    parts: Annotated[tuple[UiPart, ...], Field(max_length=1000)] = ()

    def to_input(self) -> InputMessage:
        """Return the message as one of OpenAI's."""
        content = tuple(part for one in self.parts for part in one.to_content())
        return InputMessage(role=self.role, content=content)


class UiChatCreate(LenientRequest):
    """A request of the transport; `id` is the chat's, under which the agent remembers it."""

    id: Name
    messages: Annotated[tuple[UiMessage, ...], Field(min_length=1, max_length=1000)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"

    @property
    def inputs(self) -> list[InputMessage]:
        """The messages as OpenAI's."""
        return [message.to_input() for message in self.messages]
