"""Tools of OpenAI's clients: as requests declare them, and the results that they return."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr, ValidationInfo, field_validator, model_validator

from gateway.agents.client_request import CUSTOM_INPUT, ClientToolSpec
from gateway.agents.port import ANY_TOOL
from gateway.tools.external_tools import MAX_NAME, tool_name
from gateway.web.compat.openai_messages import LenientRequest

MAX_TOOLS = 128
MAX_SCHEMAS = 200_000
"""Characters of the schemas of all tools of a request together, and of the schema of its answer."""
_LEFT_OUT = frozenset({"image_generation", "tool_search"})
"""Types of tools, beside those of web searches, that are left out: a model can answer without them."""
_TEXT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
"""The arguments of a custom tool as the model gives them."""


class ToolKind(StrEnum):
    """What a tool of a request is; `HOSTED` ones are executed by OpenAI."""

    FUNCTION = "function"
    CUSTOM = "custom"
    NAMESPACE = "namespace"
    HOSTED = "hosted"


class ToolFormat(LenientRequest):
    """The form of a custom tool's text: any, or that of a grammar."""

    type: Literal["text", "grammar"]
    syntax: Annotated[StrictStr, Field(max_length=20)] = ""
    definition: Annotated[StrictStr, Field(max_length=MAX_SCHEMAS)] = ""

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, given: Any) -> Any:
        return {**given, **_nested(given, "grammar")} if isinstance(given, Mapping) else given


class ClientTool(LenientRequest):
    """A tool of the client, in the form of chat completions or of responses.

    The type is `function`, `custom`, `namespace`, or that of a tool that OpenAI executes. A function has
    `parameters`, a custom tool the `format` of its text, a namespace `tools` of both kinds.
    """

    type: Annotated[StrictStr, Field(max_length=60)] = ToolKind.FUNCTION
    name: Annotated[StrictStr, Field(pattern=rf"^[A-Za-z0-9_-]{{1,{MAX_NAME}}}$")]
    description: Annotated[StrictStr, Field(max_length=10_000)] = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    format: ToolFormat | None = None
    tools: Annotated[tuple[ClientTool, ...], Field(max_length=MAX_TOOLS)] = ()

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, given: Any) -> Any:
        stated = given.get("type", ToolKind.FUNCTION) if isinstance(given, Mapping) else None
        if not isinstance(stated, str):
            return given
        kind = _to_kind(stated)
        if kind is ToolKind.HOSTED:
            return {"type": stated, "name": stated}
        flat = _nested(given, kind)
        fields = {name: value for name, value in flat.items() if value is not None or name == "name"}
        members = fields.get("tools", ()) if kind is ToolKind.NAMESPACE else ()
        return {**fields, "tools": members, "type": str(kind)}

    @model_validator(mode="after")
    def _check_members(self) -> ClientTool:
        if any(tool.type not in {ToolKind.FUNCTION, ToolKind.CUSTOM} for tool in self.tools):
            raise ValueError("a namespace has tools of the types function and custom only")
        return self

    def to_specs(self) -> Iterator[ClientToolSpec]:
        """Yield the tools as the model gets them; none for what OpenAI would execute."""
        if self.type == ToolKind.FUNCTION:
            schema = {"type": "object", "properties": {}, **self.parameters}
            yield ClientToolSpec(name=self.name, description=self.description, schema=schema)
        elif self.type == ToolKind.CUSTOM:
            described = "\n\n".join(filter(None, [self.description, self._described_format]))
            yield ClientToolSpec(name=self.name, description=described, schema=_TEXT_SCHEMA, is_custom=True)
        for tool in self.tools:
            for spec in tool.to_specs():
                yield replace(
                    spec,
                    name=tool_name(f"{self.name}__{spec.name}"),
                    function=spec.name,
                    namespace=self.name,
                    namespace_description=self.description,
                )

    @property
    def _described_format(self) -> str:
        if self.format is None or not self.format.definition:
            return ""
        return f"The input must match this grammar ({self.format.syntax}):\n{self.format.definition}"


def _to_kind(stated: str) -> ToolKind:
    """Return the kind of a tool with this type; raises ValueError."""
    if stated in {ToolKind.FUNCTION, ToolKind.CUSTOM, ToolKind.NAMESPACE}:
        return ToolKind(stated)
    if stated in _LEFT_OUT or stated.startswith("web_search"):
        return ToolKind.HOSTED
    raise ValueError(
        f"tools of the type {stated[:MAX_NAME]!r} are not supported: give functions or custom tools"
    )


ClientTools = Annotated[tuple[ClientTool, ...], Field(max_length=MAX_TOOLS)]


def to_specs(tools: Sequence[ClientTool] | None) -> Sequence[ClientToolSpec]:
    """Return the tools of a request as the model gets them."""
    return [spec for tool in tools or () for spec in tool.to_specs()]


def check_tools(tools: Sequence[ClientTool] | None) -> Sequence[ClientTool] | None:
    """Return tools whose names differ and whose schemas are not too long; raises ValueError."""
    specs = to_specs(tools)
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise ValueError("two tools have the same name")
    if len(specs) > MAX_TOOLS:
        raise ValueError(f"a request may have {MAX_TOOLS} tools, those in namespaces included")
    described = sum(len(spec.description) for spec in specs if spec.is_custom)
    if sum(len(json.dumps(spec.schema)) for spec in specs) + described > MAX_SCHEMAS:
        raise ValueError(f"the parameters of all tools may have {MAX_SCHEMAS} characters together")
    return tools


def describe_namespaces(specs: Sequence[ClientToolSpec]) -> Sequence[str]:
    """Return what the model gets about the namespaces of tools."""
    return [
        f"Tools whose names begin with {name}__: {description}"
        for name, description in dict.fromkeys((one.namespace, one.namespace_description) for one in specs)
        if name and description
    ]


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
    """Return the name of a function or custom tool that a choice names; empty for other tools."""
    if not isinstance(given, Mapping) or given.get("type") not in ("function", "custom"):
        return ""
    name = _nested(given, str(given["type"])).get("name")
    return name if isinstance(name, str) else ""


def _nested(given: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the object in a field, in which chat completions have what responses have beside the type."""
    inner = given.get(field)
    return inner if isinstance(inner, Mapping) else given


def _check_choice(choice: object, tools: Sequence[ClientTool] | None) -> object:
    """Return a `tool_choice` that the tools of its request allow; raises ValueError."""
    found = read_choice(choice)
    if found is None:
        raise ValueError(
            "give 'none', 'auto', 'required', or a function, custom tool or allowed_tools of the field tools"
        )
    known = {spec.client_name for spec in to_specs(tools)}
    unknown = next((name for name in found.named if name not in known), None)
    if unknown is not None:
        raise ValueError(f"no tool named {unknown[:MAX_NAME]!r} is in the field tools")
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
    def offered_tools(self) -> Sequence[ClientToolSpec]:
        """The tools that the model may call."""
        allowed = self.choice.allowed
        return [one for one in to_specs(self.tools) if allowed is None or one.client_name in allowed]

    @property
    def required_tool(self) -> str:
        """The name that the model gets of the tool that it has to call; ANY_TOOL; or nothing."""
        required = self.choice.required
        return next((one.name for one in self.offered_tools if one.client_name == required), required)
