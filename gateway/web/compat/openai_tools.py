"""Tools of OpenAI's clients: as requests declare them, and the results that they return."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def required_tool(choice: object) -> str:
    """Return the tool that a `tool_choice` requires, in the form of chat completions or of responses."""
    if not isinstance(choice, Mapping):
        return ANY_TOOL if choice == "required" else ""
    function = choice.get("function")
    name = (function if isinstance(function, Mapping) else choice).get("name")
    return name if choice.get("type") == "function" and isinstance(name, str) else ""


def _check_choice(choice: object, tools: Sequence[ClientTool] | None) -> object:
    """Return a `tool_choice` that the tools of its request allow; raises ValueError."""
    if choice is None or choice in ("none", "auto", "required"):
        return choice
    name = required_tool(choice)
    if not name:
        raise ValueError("give 'none', 'auto', 'required' or a function of the field tools")
    if name not in {tool.name for tool in tools or ()}:
        raise ValueError(f"no function named {name[:MAX_NAME]!r} is in the field tools")
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
