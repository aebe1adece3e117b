"""Requests of OpenAI's clients, read as a message to an agent.

Their requests contain whole conversations and model settings; here the agent has its own. Settings
such as temperature are ignored; requests for more than an agent's answer are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from gateway.conversations.queue_policy import MAX_INPUT
from gateway.records.fields import Name
from gateway.web.http.attachments import MAX_ATTACHMENTS, MAX_URL_LENGTH, AttachmentCreate
from gateway.web.http.problems import invalid
from sandbox.config import ConfigProblem as Fault

_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]{1,40});base64,", re.IGNORECASE)
Text = Annotated[StrictStr, Field(max_length=MAX_INPUT)]
InlineOrUrl = Annotated[StrictStr, Field(max_length=20_000_000)]


class LenientRequest(BaseModel):
    """Base of request models that ignore unknown keys, because OpenAI's clients send many."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ImageUrl(LenientRequest):
    """The URL of an image: a `data:` URL, or a link to a stored file."""

    url: InlineOrUrl


class InputContentPart(LenientRequest):
    """A part of a message: text or an image."""

    type: Literal["text", "input_text", "output_text", "image_url", "input_image"]
    text: Text = ""
    image_url: ImageUrl | InlineOrUrl | None = None

    @property
    def picture(self) -> str | None:
        """The image's URL; None for text."""
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url


class InputMessage(LenientRequest):
    """A message of the request."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | tuple[InputContentPart, ...] | None = None

    @property
    def text(self) -> str:
        """The message's text."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or () if part.text)

    @property
    def pictures(self) -> Sequence[str]:
        """The URLs of the message's images."""
        parts = () if isinstance(self.content, str) else self.content or ()
        return [part.picture for part in parts if part.picture]


class StreamOptions(LenientRequest):
    """Options of a streamed completion."""

    include_usage: StrictBool = False


InputMessages = Annotated[tuple[InputMessage, ...], Field(min_length=1, max_length=1000)]
NoTools = Annotated[tuple[Any, ...] | None, Field(max_length=0)]


def refuse_tools(given: Any, validate: Any) -> Any:
    """Refuse tools of the caller, which it would have to run itself."""
    if given:
        raise ValueError("tools of the caller are not supported: the agent has its own")
    return validate(given)


class ConversationReference(LenientRequest):
    """A conversation given as an object."""

    id: Name


class ChatCompletionCreate(LenientRequest):
    """A chat completion request; `model` is the agent's name.

    `conversation` is an extension: an id or a name of the caller's, in which the agent remembers. Without it
    each request is a new conversation, and the agent gets its earlier messages as a quotation.
    """

    model: Name
    messages: InputMessages
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    conversation: Name | None = None
    n: Annotated[StrictInt, Field(ge=1, le=1)] | None = 1
    tools: NoTools = None
    functions: NoTools = None

    @field_validator("tools", "functions", mode="wrap")
    @classmethod
    def _refuse_tools(cls, given: Any, validate: Any) -> Any:
        return refuse_tools(given, validate)


class ResponseCreate(LenientRequest):
    """A response request; `model` is the agent's name.

    The agent remembers the conversation: that of `previous_response_id`, or the named one.
    """

    model: Name
    input: Text | InputMessages
    instructions: Text | None = None
    previous_response_id: Annotated[StrictStr, Field(min_length=1, max_length=60)] | None = None
    conversation: Name | ConversationReference | None = None
    stream: StrictBool | None = False
    background: StrictBool | None = False
    tools: NoTools = None

    @field_validator("tools", mode="wrap")
    @classmethod
    def _refuse_tools(cls, given: Any, validate: Any) -> Any:
        return refuse_tools(given, validate)

    @model_validator(mode="after")
    def _one_conversation(self) -> ResponseCreate:
        if self.conversation is not None and self.previous_response_id is not None:
            raise ValueError("give either conversation or previous_response_id")
        return self

    @property
    def conversation_name(self) -> str | None:
        """The conversation's id or name, if one is given."""
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named

    def user_input(self) -> tuple[str, list[AttachmentCreate]]:
        """Return the last user input with its images; raises HttpProblem."""
        messages = (
            (InputMessage(role="user", content=self.input),) if isinstance(self.input, str) else self.input
        )
        alone = self.conversation is None and self.previous_response_id is None
        return last_user_input(messages, standalone=alone, pointer="/input", instructions=self.instructions)


def last_user_input(
    messages: Sequence[InputMessage],
    *,
    standalone: bool,
    pointer: str,
    instructions: str | None = None,
    has_files: bool = False,
) -> tuple[str, list[AttachmentCreate]]:
    """Return the last user input with its images; raises HttpProblem when it is empty.

    `standalone`: the agent knows nothing earlier, so earlier messages are quoted first; `instructions` always
    are. `pointer` is the field of the messages. `has_files`: files are attached, so text may be empty.
    """
    now = last_user_messages(messages)
    before = [InputMessage(role="system", content=instructions)] if instructions else []
    before += messages[: len(messages) - len(now)] if standalone else ()
    text = "\n\n".join(message.text for message in now if message.text)
    if before:
        text = f"{_quote(before)}\n\n{text}"
    pictures = [_to_attachment(place, url, pointer) for place, url in enumerate(_pictures(now))]
    if not now or not (has_files or any(message.text or message.pictures for message in now)):
        raise invalid([Fault(pointer=pointer, detail="the last message must be a user's with text")])
    if len(text) > MAX_INPUT:
        raise invalid([Fault(pointer=pointer, detail=f"at most {MAX_INPUT} characters in all")])
    if len(pictures) > MAX_ATTACHMENTS:
        raise invalid([Fault(pointer=pointer, detail=f"at most {MAX_ATTACHMENTS} images in one request")])
    return text or "(a file)", pictures


def last_user_messages(messages: Sequence[InputMessage]) -> Sequence[InputMessage]:
    """Return the user's messages at the end of the list."""
    first = len(messages)
    while first and messages[first - 1].role == "user":
        first -= 1
    return messages[first:]


def _quote(messages: Sequence[InputMessage]) -> str:
    """Return earlier messages with `> ` before each line, so that no line is taken for a command."""
    lines = [f"{message.role}: {message.text}" for message in messages if message.text]
    return "\n".join(f"> {line}" for whole in lines for line in whole.splitlines())


def _pictures(messages: Sequence[InputMessage]) -> Iterator[str]:
    for message in messages:
        yield from message.pictures


def _to_attachment(index: int, url: str, pointer: str) -> AttachmentCreate:
    found = _DATA_URL.match(url)
    if found is not None:
        kind = found[1].lower()
        name = f"picture-{index + 1}.{kind.partition('/')[2].partition('+')[0]}"
        return AttachmentCreate(name=name, type=kind, content=url[found.end() :])
    if len(url) > MAX_URL_LENGTH:
        raise invalid(
            [
                Fault(
                    pointer=pointer,
                    detail="an image must be a data: URL or a link to a stored file of this gateway",
                )
            ]
        )
    return AttachmentCreate(name=f"picture-{index + 1}", url=url)
