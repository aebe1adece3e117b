"""Requests of AG-UI's clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr, field_validator, model_validator

from gateway.conversations.questions import MAX_ANSWER, MAX_FIELDS
from gateway.records.fields import Name
from gateway.web.compat.openai_messages import InlineOrUrl, InputMessage, LenientRequest, Text
from gateway.web.compat.openai_tools import ClientTool, ClientTools, check_tools
from gateway.web.http.route import RequestModel

TEXT_ROLES: dict[str, Literal["system", "developer", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""The roles of messages that are read."""


class AguiSource(LenientRequest):
    """The bytes of a part: inline as base64, or a link to a stored file."""

    type: Literal["data", "url"]
    value: InlineOrUrl
    mimeType: StrictStr = ""


class AguiPart(LenientRequest):
    """A part of a message. `binary` is the form that files had before version 1.0 of the protocol."""

    type: StrictStr
    text: Text = ""
    source: AguiSource | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_binary(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("type") != "binary" or given.get("source"):
            return given
        kind = "data" if given.get("data") else "url"
        value = given.get(kind)
        return {**given, "source": {**given, "type": kind, "value": value}} if value else given


class AguiMessage(LenientRequest):
    """A message of the thread; the content of activities and reasoning is ignored."""

    role: StrictStr
    toolCallId: Annotated[StrictStr, Field(max_length=200)] | None = None
    toolCalls: tuple[Any, ...] | None = None
    content: Text | tuple[AguiPart, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_other_content(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        role = given.get("role")
        return given if isinstance(role, str) and role in TEXT_ROLES else {**given, "content": None}

    @property
    def parts(self) -> Sequence[AguiPart]:
        """The parts of the content."""
        if isinstance(self.content, str):
            return [AguiPart(type="text", text=self.content)]
        return self.content or ()

    def to_input(self) -> InputMessage:
        """Return the message as one of OpenAI's, with its text and calls."""
        text = "\n".join(part.text for part in self.parts if part.text)
        message = {"role": TEXT_ROLES[self.role], "content": text, "tool_call_id": self.toolCallId}
        calls = {"tool_calls": list(self.toolCalls)} if self.toolCalls else {}
        return InputMessage.model_validate(message | calls)


Answer = Annotated[StrictStr, Field(max_length=MAX_ANSWER)]


class ApprovalPayload(LenientRequest):
    """A person's decision, or the answer to a question: a text, or the fields of its form."""

    approved: bool = False
    answer: Answer | Annotated[dict[StrictStr, Answer], Field(max_length=MAX_FIELDS)] | None = None
    comment: Annotated[StrictStr, Field(max_length=2000)] = ""


class AguiResume(LenientRequest):
    """The answer to an interrupt."""

    interruptId: Annotated[StrictStr, Field(min_length=1, max_length=60)]
    status: Literal["resolved", "cancelled"]
    payload: ApprovalPayload | bool | None = None

    @property
    def approved(self) -> bool:
        """Whether the call is approved; only `true` approves."""
        approved = self.payload.approved if isinstance(self.payload, ApprovalPayload) else self.payload
        return self.status == "resolved" and approved is True

    @property
    def answer(self) -> str | Mapping[str, str] | None:
        """The answer to a question; None declines it."""
        given = self.payload.answer if isinstance(self.payload, ApprovalPayload) else None
        return given if self.status == "resolved" else None

    @property
    def comment(self) -> str:
        """What the person adds to a decision."""
        return self.payload.comment if isinstance(self.payload, ApprovalPayload) else ""


class AguiContext(LenientRequest):
    """Something that the application knows, such as what its page shows."""

    description: Text = ""
    value: Text = ""


class RunAgentInput(LenientRequest):
    """The body that starts a run."""

    threadId: Name
    runId: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    messages: Annotated[tuple[AguiMessage, ...], Field(max_length=1000)]
    resume: Annotated[tuple[AguiResume, ...], Field(max_length=100)] | None = None
    tools: ClientTools | None = None
    context: Annotated[tuple[AguiContext, ...], Field(max_length=100)] | None = None

    @property
    def shown_context(self) -> str:
        """The context as a part of the turn's instructions; empty if there is none."""
        lines = [f"{one.description}: {one.value}" for one in self.context or () if one.value]
        return "\n".join(["What the person's application shows or knows:", *lines]) if lines else ""

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, given: tuple[ClientTool, ...] | None) -> Sequence[ClientTool] | None:
        return check_tools(given)


class AgentQuery(RequestModel):
    """The agent of the run; by default the thread's, else the default agent."""

    agent: Name | None = None
