"""Messages and items of OpenAI's requests, read leniently: histories have items of many kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, model_validator

from gateway.agents.client_history import EarlierCall, EarlierMessage
from gateway.agents.client_request import CUSTOM_INPUT
from gateway.conversations.submissions.queue_policy import MAX_INPUT
from gateway.tools.external_tools import tool_name

Text = Annotated[StrictStr, Field(max_length=MAX_INPUT)]
InlineOrUrl = Annotated[StrictStr, Field(max_length=20_000_000)]
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
MAX_CALL_FIELD = 200
"""Characters that are kept of the id and the names of an earlier call."""

INSTRUCTION_ROLES = frozenset({"system", "developer"})


class LenientRequest(BaseModel):
    """Base of request models that ignore unknown keys, because OpenAI's clients send many."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class ImageUrl(LenientRequest):
    """The URL of an image: a `data:` URL, or a link to a stored file."""

    url: InlineOrUrl


class InlineFile(LenientRequest):
    """A file: its bytes as a `data:` URL, or the id of an uploaded one."""

    file_data: InlineOrUrl | None = None
    file_id: Annotated[StrictStr, Field(max_length=100)] | None = None
    filename: Annotated[StrictStr, Field(max_length=200)] | None = None


class InlineAudio(LenientRequest):
    """Audio: its bytes as base64, and the ending of its format."""

    data: InlineOrUrl
    format: Annotated[StrictStr, Field(pattern=r"^[a-z0-9]{1,10}$")]


class InputContentPart(LenientRequest):
    """A part of a message: text, an image, audio or a file; others have nothing that an agent can read."""

    type: Annotated[StrictStr, Field(max_length=60)]
    text: Text = ""
    image_url: ImageUrl | InlineOrUrl | None = None
    file: InlineFile | None = None
    input_audio: InlineAudio | None = None

    @model_validator(mode="before")
    @classmethod
    def _nest_file(cls, given: Any) -> Any:
        """Accept the file of a responses' part, which has its fields in the part itself."""
        if isinstance(given, Mapping) and str(given.get("type")) in {"input_file", "input_image"}:
            file = {name: given[name] for name in ("file_data", "file_id", "filename") if given.get(name)}
            if given.get("file_url"):
                file["file_data"] = given["file_url"]
            return {**given, "file": file or None, "text": ""}
        if isinstance(given, Mapping) and given.get("type") == "refusal":
            return {**given, "text": given.get("refusal") or ""}
        return given

    @property
    def picture(self) -> str | None:
        """The image's URL; None for other parts."""
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url

    @property
    def url(self) -> str:
        """The `data:` URL or link of an image, audio or file; empty for other parts."""
        if self.input_audio is not None:
            return f"data:audio/{self.input_audio.format};base64,{self.input_audio.data}"
        return self.picture or (self.file.file_data if self.file else None) or ""

    @property
    def mark(self) -> str:
        """A line that stands for an image, audio or file whose content is left out; empty for other parts."""
        if self.picture or (self.file and self.type == "input_image"):
            return "(an image)"
        if self.input_audio is not None:
            return "(audio)"
        named = self.file.filename if self.file else None
        return (f"(a file: {named})" if named else "(a file)") if self.file else ""

    @property
    def is_readable(self) -> bool:
        """Whether an agent can read the part."""
        return self.type in TEXT_PARTS or bool(self.text or self.url or (self.file and self.file.file_id))


class InputCall(LenientRequest):
    """A call of a tool that an earlier answer made; `name` is the tool's name in its `namespace`."""

    id: Text = ""
    name: Text = ""
    namespace: Text = ""
    arguments: str = ""
    is_custom: bool = False

    @property
    def line(self) -> str:
        """The call as a line of text."""
        return f"[called {self.name} {self.arguments}]"[:MAX_INPUT]

    def to_earlier(self) -> EarlierCall:
        """Return the call as the model made it."""
        name = f"{self.namespace}__{self.name}" if self.namespace else self.name
        given = {CUSTOM_INPUT: self.arguments}
        arguments = json.dumps(given, ensure_ascii=False) if self.is_custom else self.arguments
        return EarlierCall(id=self.id, name=tool_name(name or "unnamed"), arguments=arguments)


class InputMessage(LenientRequest):
    """A message or another item of the request; `call` is the call whose result a `tool` message has.

    `calls` are those that an assistant's message makes. `reference` is the id of a message that the gateway
    has, in place of its text. `is_output`: it is the item of a result. `item`: it is neither a message nor a
    reference, as the client gave it.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | tuple[InputContentPart, ...] | None = None
    calls: tuple[InputCall, ...] = ()
    call: Annotated[StrictStr, Field(max_length=200)] | None = None
    reference: Annotated[StrictStr, Field(max_length=200)] | None = None
    is_output: bool = False
    item: Mapping[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_item(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        kind = str(given.get("type") or "message")
        read = _READERS.get(kind, _ignored)
        return {**read(given), "item": None if kind in _WITHOUT_ITEM else given}

    @property
    def text(self) -> str:
        """The message's text, with a line for each call."""
        return "\n".join(filter(None, [self._plain, *(part.text for part in self.parts), *self._call_lines]))

    @property
    def marked_text(self) -> str:
        """The text, with a line in place of each image and file too."""
        return "\n".join(filter(None, [self._said, *self._call_lines]))

    @property
    def _plain(self) -> str:
        """The content if it is one text."""
        return self.content if isinstance(self.content, str) else ""

    @property
    def _said(self) -> str:
        """What the message says, with a line in place of each image and file."""
        return "\n".join(filter(None, [self._plain, *(part.text or part.mark for part in self.parts)]))

    @property
    def _call_lines(self) -> Sequence[str]:
        return [call.line for call in self.calls]

    def to_earlier(self) -> EarlierMessage:
        """Return the message as a part of the history, without images and files."""
        role = self.role if self.role in ("assistant", "tool") else "user"
        calls = tuple(call.to_earlier() for call in self.calls)
        return EarlierMessage(role=role, text=self._said, calls=calls, call=self.call or "")

    @property
    def field(self) -> str:
        """The field of the request that has the content."""
        return "output" if self.is_output else "content"

    @property
    def parts(self) -> Sequence[InputContentPart]:
        """The parts of the content; none for plain text."""
        return () if isinstance(self.content, str) else self.content or ()


def _message(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message, with the calls of an assistant."""
    calls = given.get("tool_calls")
    if given.get("role") == "function":
        return {"role": "assistant", "content": given.get("content")}
    if given.get("role") != "assistant" or not isinstance(calls, list):
        return {**given, "calls": (), "call": given.get("tool_call_id")}
    made = [one for call in calls if isinstance(call, Mapping) for one in _nested_calls(call)]
    return {"role": "assistant", "content": given.get("content"), "calls": made}


def _nested_calls(call: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a call of chat completions, whose tool is in a field that is named by its type."""
    for kind in ("function", "custom"):
        if isinstance(tool := call.get(kind), Mapping):
            yield _read_call({**tool, "call_id": call.get("id")})


def _call(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": "assistant", "content": None, "calls": [_read_call(given)]}


def _read_call(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a call; those of a wrong type become text."""
    is_custom = "arguments" not in given and isinstance(given.get("input"), str)
    named = {name: _as_text(given.get(name))[:MAX_CALL_FIELD] for name in ("name", "namespace")}
    stated = given.get("arguments", given.get("input"))
    arguments = stated if isinstance(stated, str) else json.dumps(stated, ensure_ascii=False)
    id_ = _as_text(given.get("call_id"))[:MAX_CALL_FIELD]
    return {**named, "id": id_, "arguments": arguments, "is_custom": is_custom}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _output(given: Mapping[str, Any]) -> Mapping[str, Any]:
    output = given.get("output")
    content = output if isinstance(output, str | list) else json.dumps(output, ensure_ascii=False)
    return {"role": "tool", "call": given.get("call_id"), "content": content, "is_output": True}


def _reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": "assistant", "content": None, "reference": given.get("id")}


def _ignored(_given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an empty message for an item without words for the agent, such as reasoning."""
    return {"role": "assistant", "content": None}


_WITHOUT_ITEM = frozenset({"message", "item_reference"})
"""Types of which a conversation keeps the text alone; it keeps items of other types as they are."""

_READERS = {
    "message": _message,
    "function_call": _call,
    "custom_tool_call": _call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "item_reference": _reference,
}
