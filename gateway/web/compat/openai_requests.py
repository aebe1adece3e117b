"""Requests of OpenAI's clients, read as a message to an agent.

Their requests contain whole conversations and model settings; here the agent has its own. Settings
such as temperature are ignored; requests for more than an agent's answer are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, model_validator

from gateway.agents.client_history import to_history
from gateway.agents.client_request import ClientRequest
from gateway.agents.history import HistoryEntry
from gateway.agents.port import OutputFormat
from gateway.conversations.submissions.queue_policy import MAX_INPUT
from gateway.records.fields import Name
from gateway.web.compat import openai_ids
from gateway.web.compat.openai_messages import (
    INSTRUCTION_ROLES,
    InputMessage,
    LenientRequest,
    Text,
)
from gateway.web.compat.openai_parts import PartFiles, check_file_count, placed_parts, read_files
from gateway.web.compat.openai_tools import MAX_SCHEMAS, ClientTools, ToolRequest, describe_namespaces
from gateway.web.http.problems import invalid
from sandbox.config import ConfigProblem as Fault

MAX_METADATA = 16
MAX_MESSAGES = 5000
InputMessages = Annotated[tuple[InputMessage, ...], Field(min_length=1, max_length=MAX_MESSAGES)]

Metadata = Annotated[
    dict[Annotated[StrictStr, Field(max_length=64)], Annotated[StrictStr, Field(max_length=512)]],
    Field(max_length=MAX_METADATA),
]


class InputTokensCreate(LenientRequest):
    """A request whose tokens are counted."""

    input: Text | InputMessages
    instructions: Text | None = None
    tools: ClientTools | None = None


class StreamOptions(LenientRequest):
    """Options of a streamed completion."""

    include_usage: StrictBool = False


def _refuse(given: object) -> object:
    """Refuse a field that would change the answer; `null`, `false` and zero say what holds anyhow."""
    if given is not None and given is not False and given != 0:
        raise ValueError("is not supported: leave it out")
    return given


def _refuse_functions(given: object) -> object:
    """Refuse functions in the form that came before `tools`."""
    if given:
        raise ValueError("`functions` is not supported: use `tools`")
    return given


def _only_text(given: object) -> object:
    """Refuse forms of an answer beside text."""
    if given not in (None, [], ["text"]):
        raise ValueError("an agent answers with text: give ['text'] or leave it out")
    return given


def _without_logprobs(given: object) -> object:
    """Refuse probabilities of words; what else may be included is ignored."""
    if isinstance(given, Sequence) and LOGPROBS in given:
        raise ValueError(f"{LOGPROBS!r} is not supported: leave it out")
    return given


LOGPROBS = "message.output_text.logprobs"
NotSupported = Annotated[Any, AfterValidator(_refuse)]
"""A field that is refused, because an answer without it is not what the client asks for."""


class FormatOption(LenientRequest):
    """The form of the answer, as chat completions or responses have it ("Structured model outputs")."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "answer"
    description: Annotated[StrictStr, Field(max_length=10_000)] = ""
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: StrictBool = False

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        inner = given.get("json_schema")
        flat = {**inner, "type": given.get("type")} if isinstance(inner, Mapping) else given
        return {name: value for name, value in flat.items() if value is not None}

    @model_validator(mode="after")
    def _check_schema(self) -> FormatOption:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("the type json_schema needs a schema")
        if len(json.dumps(self.json_schema)) > MAX_SCHEMAS:
            raise ValueError(f"a schema may have {MAX_SCHEMAS} characters")
        return self

    def to_output(self) -> OutputFormat | None:
        """Return the form of the turn's answer; None for text."""
        if self.type == "text":
            return None
        schema = self.json_schema if self.type == "json_schema" else None
        return OutputFormat(
            schema=schema, name=self.name, description=self.description, is_strict=self.strict
        )


class ConversationReference(LenientRequest):
    """A conversation given as an object."""

    id: Name


class ChatCompletionCreate(ToolRequest):
    """A chat completion request; `model` is the agent's name.

    `conversation` is an extension: an id or a name of the caller's, in which the agent remembers. Without it
    each request is a new conversation, whose history are its earlier messages. So is `cancel_on_disconnect`.
    """

    model: Name
    messages: InputMessages
    stream: StrictBool | None = False
    cancel_on_disconnect: StrictBool = False
    stream_options: StreamOptions | None = None
    conversation: Name | None = None
    n: Annotated[StrictInt, Field(ge=1, le=1)] | None = 1
    response_format: FormatOption | None = None
    functions: Annotated[Any, AfterValidator(_refuse_functions)] = None
    logprobs: NotSupported = None
    top_logprobs: NotSupported = None
    modalities: Annotated[Any, AfterValidator(_only_text)] = None
    audio: NotSupported = None
    web_search_options: NotSupported = None

    @property
    def conversation_name(self) -> str | None:
        """The conversation's id or name, if one is given."""
        return openai_ids.to_conversation(self.conversation) if self.conversation is not None else None

    def client_request(self) -> ClientRequest:
        """Return what the request adds to its turn."""
        return _client_request(self, self.messages, self.response_format)


class TextOptions(LenientRequest):
    """Options of a response's text."""

    format: FormatOption | None = None


class ResponseCreate(ToolRequest):
    """A response request; `model` is the agent's name.

    The agent remembers the conversation: that of `previous_response_id`, or the named one.
    """

    model: Name
    input: Text | InputMessages
    instructions: Text | None = None
    previous_response_id: Annotated[StrictStr, Field(min_length=1, max_length=60)] | None = None
    conversation: Name | ConversationReference | None = None
    stream: StrictBool | None = False
    cancel_on_disconnect: StrictBool = False
    background: StrictBool | None = False
    metadata: Metadata | None = None
    text: TextOptions | None = None
    prompt: NotSupported = None
    max_tool_calls: NotSupported = None
    top_logprobs: NotSupported = None
    include: Annotated[Any, AfterValidator(_without_logprobs)] = None

    @model_validator(mode="after")
    def _one_conversation(self) -> ResponseCreate:
        if self.conversation is not None and self.previous_response_id is not None:
            raise ValueError("give either conversation or previous_response_id")
        return self

    @property
    def conversation_name(self) -> str | None:
        """The conversation's id or name, if one is given."""
        named = self.conversation
        name = named.id if isinstance(named, ConversationReference) else named
        return openai_ids.to_conversation(name) if name is not None else None

    @property
    def messages(self) -> Sequence[InputMessage]:
        """The input as messages."""
        return (InputMessage(role="user", content=self.input),) if isinstance(self.input, str) else self.input

    def client_request(self) -> ClientRequest:
        """Return what the request adds to its turn."""
        output = self.text.format if self.text else None
        shown = output.model_dump(by_alias=True, exclude_unset=True) if output else None
        stated = {
            "text": {"format": shown} if shown else None,
            "background": self.background or None,
            "metadata": self.metadata,
            "instructions": self.instructions,
            "previous_response_id": self.previous_response_id,
        }
        echo = {name: value for name, value in stated.items() if value}
        return _client_request(self, self.messages, output, instructions=self.instructions, echo=echo)


def _client_request(
    asked: ToolRequest,
    messages: Sequence[InputMessage],
    output: FormatOption | None,
    *,
    instructions: str | None = None,
    echo: Mapping[str, Any] | None = None,
) -> ClientRequest:
    offered = asked.offered_tools
    described = describe_namespaces(offered)
    return ClientRequest(
        instructions="\n\n".join(filter(None, [join_instructions(messages, instructions), *described])),
        tools=tuple(offered),
        output_format=output.to_output() if output else None,
        required_tool=asked.required_tool if offered else "",
        single_calls=bool(offered) and asked.parallel_tool_calls is False,
        echo=echo or {},
    )


def join_instructions(messages: Sequence[InputMessage], instructions: str | None = None) -> str:
    """Return the instructions of a request and its system messages as one text."""
    texts = [message.text for message in messages if message.role in INSTRUCTION_ROLES]
    return "\n\n".join(text for text in (instructions or "", *texts) if text)


CONTINUE = "(continue)"
"""The input of a request whose messages do not end with one of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInput(PartFiles):
    """The text of a turn, and its files."""

    text: str


def last_user_input(
    messages: Sequence[InputMessage], *, pointer: str, has_files: bool = False, continues: bool = False
) -> UserInput:
    """Return the last user input with its files; raises HttpProblem when it is empty.

    System messages are instructions and no input. `pointer` is the field of the messages. `has_files`: files
    are attached, so text may be empty. `continues`: messages that end with another role, such as those of an
    agent whose answer is to be structured, are all history, and the input is the line CONTINUE.
    """
    now = last_user_messages(without_instructions(messages))
    if continues and messages and not now:
        return UserInput(text=CONTINUE)
    text = "\n\n".join(message.text for message in now if message.text)
    found = read_files(placed_parts(messages, now, pointer))
    if not now or not (has_files or found.count or any(message.text for message in now)):
        raise invalid([Fault(pointer=pointer, detail="the last message must be a user's with text")])
    if len(text) > MAX_INPUT:
        raise invalid([Fault(pointer=pointer, detail=f"at most {MAX_INPUT} characters in all")])
    check_file_count([found], pointer)
    return UserInput(text=text or "(a file)", files=found.files, places=found.places, uploads=found.uploads)


def read_history(messages: Sequence[InputMessage]) -> HistoryEntry | None:
    """Return what a request says before its last user input, for an agent without a history of its own."""
    spoken = without_instructions(messages)
    before = spoken[: len(spoken) - len(last_user_messages(spoken))]
    return to_history([message.to_earlier() for message in before])


def last_user_messages(messages: Sequence[InputMessage]) -> Sequence[InputMessage]:
    """Return the user's messages at the end of the list."""
    return _last(messages, "user")


def without_instructions(messages: Sequence[InputMessage]) -> Sequence[InputMessage]:
    """Return the messages without system and developer messages."""
    return [message for message in messages if message.role not in INSTRUCTION_ROLES]


def last_tool_results(messages: Sequence[InputMessage]) -> Sequence[InputMessage]:
    """Return the results of the client's tools at the end of the list, or before its last user messages."""
    spoken = without_instructions(messages)
    return _last(spoken[: len(spoken) - len(last_user_messages(spoken))], "tool")


def _last(messages: Sequence[InputMessage], role: str) -> Sequence[InputMessage]:
    first = len(messages)
    while first and messages[first - 1].role == role:
        first -= 1
    return messages[first:]
