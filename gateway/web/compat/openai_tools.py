"""Tools of OpenAI's clients: as requests declare them, and the results that they return."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictStr, ValidationInfo, field_validator, model_validator

from gateway.agents.port import ANY_TOOL, ToolSpec
from gateway.tools.executor import TOOLS
from gateway.tools.external_tools import MAX_NAME
from gateway.web.compat.openai_messages import LenientRequest

MAX_TOOLS = 128
MAX_SCHEMAS = 200_000
"""Characters of the schemas of all tools of a request together, and of the schema of its answer."""


class ClientTool(LenientRequest):
    """A function of the client, in the form of chat completions or of responses."""

    name: Annotated[StrictStr, Field(pattern=rf"^[A-Za-z0-9_-]{{1,{MAX_NAME}}}$")]
    description: Annotated[StrictStr, Field(max_length=10_000)] = ""
    parameters: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        kind, inner = given.get("type", "function"), given.get("function")
        if kind != "function":
            raise ValueError(f"tools of the type {kind!r} are not supported: give functions")
        flat = inner if isinstance(inner, Mapping) else given
        return {name: value for name, value in flat.items() if value is not None or name == "name"}

    @model_validator(mode="after")
    def _refuse_reserved(self) -> ClientTool:
        if self.name in TOOLS:
            raise ValueError(f"the agent has a tool named {self.name!r} itself: give yours another name")
        return self

    def to_spec(self) -> ToolSpec:
        """Return the tool as the model gets it."""
        schema = {"type": "object", "properties": {}, **self.parameters}
        return ToolSpec(name=self.name, description=self.description, schema=schema)


ClientTools = Annotated[tuple[ClientTool, ...], Field(max_length=MAX_TOOLS)]


def check_tools(tools: Sequence[ClientTool] | None) -> Sequence[ClientTool] | None:
    """Return tools whose names differ and whose schemas are not too long; raises ValueError."""
    names = [tool.name for tool in tools or ()]
    if len(set(names)) < len(names):
        raise ValueError("two tools have the same name")
    if sum(len(json.dumps(tool.parameters)) for tool in tools or ()) > MAX_SCHEMAS:
        raise ValueError(f"the parameters of all tools may have {MAX_SCHEMAS} characters together")
    return tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """What a `tool_choice` says: the tool that it requires, and those that it allows (None: all)."""

    required: str = ""
    allowed: Sequence[str] | None = None

    @property
    def named(self) -> Sequence[str]:
        """The tools that it names."""
        return self.allowed or ([self.required] if self.required not in {"", ANY_TOOL} else [])


_WORDS = {"none": ToolChoice(allowed=()), "auto": ToolChoice(), "required": ToolChoice(required=ANY_TOOL)}


def read_choice(choice: object) -> ToolChoice | None:
    """Return what a `tool_choice` of completions or responses says; None if it is of neither form."""
    if choice is None:
        return ToolChoice()
    if not isinstance(choice, Mapping):
        return _WORDS.get(choice) if isinstance(choice, str) else None
    if choice.get("type") == "allowed_tools":
        return _read_allowed(_nested(choice, "allowed_tools"))
    name = _function_name(choice)
    return ToolChoice(required=name) if name else None


def _read_allowed(given: Mapping[str, Any]) -> ToolChoice | None:
    mode, tools = given.get("mode"), given.get("tools")
    names = [_function_name(one) for one in tools] if isinstance(tools, list) else []
    if mode not in ("auto", "required") or not names or not all(names):
        return None
    return ToolChoice(required=_WORDS[mode].required, allowed=names)


def _function_name(given: object) -> str:
    """Return the name of a function that a choice names; empty for other tools."""
    if not isinstance(given, Mapping) or given.get("type") != "function":
        return ""
    name = _nested(given, "function").get("name")
    return name if isinstance(name, str) else ""


def _nested(given: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the object in a field, in which chat completions have what responses have beside the type."""
    inner = given.get(field)
    return inner if isinstance(inner, Mapping) else given


def _check_choice(choice: object, tools: Sequence[ClientTool] | None) -> object:
    """Return a `tool_choice` that the tools of its request allow; raises ValueError."""
    found = read_choice(choice)
    if found is None:
        raise ValueError("give 'none', 'auto', 'required', or a function or allowed_tools of the field tools")
    known = {tool.name for tool in tools or ()}
    unknown = next((name for name in found.named if name not in known), None)
    if unknown is not None:
        raise ValueError(f"no function named {unknown[:MAX_NAME]!r} is in the field tools")
    return choice


class ToolRequest(LenientRequest):
    """What requests of both forms say about tools."""

    tools: ClientTools | None = None
    tool_choice: Any = None
    parallel_tool_calls: StrictBool | None = None

    @field_validator("tools")
    @classmethod
    def _check_names(cls, given: tuple[ClientTool, ...] | None) -> Sequence[ClientTool] | None:
        return check_tools(given)

    @field_validator("tool_choice")
    @classmethod
    def _check_name(cls, given: Any, others: ValidationInfo) -> Any:
        return _check_choice(given, others.data["tools"]) if "tools" in others.data else given

    @property
    def choice(self) -> ToolChoice:
        """What the `tool_choice` says."""
        return read_choice(self.tool_choice) or ToolChoice()

    @property
    def offered_tools(self) -> Sequence[ClientTool]:
        """The tools that the model may call."""
        allowed = self.choice.allowed
        return [tool for tool in self.tools or () if allowed is None or tool.name in allowed]
