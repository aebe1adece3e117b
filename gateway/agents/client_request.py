"""What a client's request adds to one turn: instructions, tools of its own, and the form of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any

from gateway.agents.port import AgentError, AgentSpec, OutputFormat, ToolSpec
from gateway.config.setting_types import ENTRY_PREFIX, SHELL

_TOOL_FIELDS = frozenset({"name", "description", "schema"})
CUSTOM_INPUT = "input"
"""The argument of a custom tool, which takes one text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientToolSpec(ToolSpec):
    """A tool of a client as the model gets it, and what the client calls it.

    `function` is its name in the `namespace` that groups it, both empty without one. A custom tool takes a
    text (the argument `CUSTOM_INPUT`), which the client gets in place of arguments.
    """

    function: str = ""
    namespace: str = ""
    namespace_description: str = ""
    is_custom: bool = False

    @property
    def client_name(self) -> str:
        """The name that the client declared."""
        return self.function or self.name

    @property
    def call_fields(self) -> Mapping[str, Any]:
        """What a call of it says about the tool, beside its name and arguments."""
        grouped = {"namespace": self.namespace, "tool": self.name} if self.namespace else {}
        return {**grouped, **({"custom": True} if self.is_custom else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """The part of a request that is stored with its turn.

    `instructions` are added to the agent's, for this turn alone. `tools` are offered to the model beside the
    agent's own, and in place of those of the same names; the client executes them. `called_tools` are those
    whose results came with the request. The answer has the `output_format`. `required_tool`, `required_after`
    and `single_calls` are those of `TurnInput`. `echo` is what responses repeat to the client, and
    `later_echoes` what those after a round of calls repeat instead, by the end of their ids.
    `deleted_responses` are the ends of the ids of those that the client deleted; it is empty for the first
    one. The turn of a `heartbeat` may end without a message.
    """

    instructions: str = ""
    tools: tuple[ClientToolSpec, ...] = ()
    called_tools: tuple[str, ...] = ()
    output_format: OutputFormat | None = None
    required_tool: str = ""
    required_after: int = 0
    single_calls: bool = False
    echo: Mapping[str, Any] = field(default_factory=dict)
    later_echoes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deleted_responses: tuple[str, ...] = ()
    heartbeat: bool = False

    def echo_after(self, endings: Sequence[str]) -> Mapping[str, Any]:
        """Return what the last of some responses repeats, of which these are the ends of the ids.

        What no earlier request kept about tools is what this one says.
        """
        known = [self.later_echoes[one] for one in endings if one in self.later_echoes]
        return {**self._tool_echo, **(known[-1] if known else self.echo)}

    def followed_by(self, later: ClientRequest, endings: Sequence[str]) -> ClientRequest:
        """Return the later request with what this one keeps: the echoes of earlier responses, and deletions.

        `endings` are those of all responses of the turn but the first; the last is of the later request.
        """
        said = _without_previous(later.echo_after(()))
        is_other = _without_previous(self.echo_after(endings[:-1])) != said
        return replace(
            later,
            echo={**self._tool_echo, **self.echo} if is_other else self.echo,
            later_echoes={**self.later_echoes, **({endings[-1]: said} if is_other else {})},
            deleted_responses=self.deleted_responses,
        )

    @property
    def _tool_echo(self) -> Mapping[str, Any]:
        """What responses repeat about tools, in OpenAI's form."""
        tools = [one for group in groupby(self.tools, _namespace) for one in _echo_tools(*group)]
        return {"tools": tools, "parallel_tool_calls": not self.single_calls}

    @property
    def tools_by_name(self) -> Mapping[str, ClientToolSpec]:
        """The client's tools, by the names that the model gets."""
        return {tool.name: tool for tool in self.tools}

    @property
    def changes_turn(self) -> bool:
        """Whether the request adds more than an echo, so that its turn cannot be shared."""
        return bool(self.instructions or self.tools or self.output_format)

    def format_for(self, agent: AgentSpec) -> OutputFormat | None:
        """Return the form of the turn's answer; raises AgentError if its agent has no language model."""
        model = agent.models[0]
        if self.output_format is not None and (model == SHELL or model.startswith(ENTRY_PREFIX)):
            raise AgentError(f"The agent {agent.name} answers with text only, because its model is {model}.")
        return self.output_format

    def to_json(self) -> dict[str, Any] | None:
        """Return the stored form; None for a request that adds nothing."""
        stored = {
            "instructions": self.instructions,
            "tools": [_store_tool(one) for one in self.tools],
            "called_tools": list(self.called_tools),
            "output_format": asdict(self.output_format) if self.output_format else None,
            "required_tool": self.required_tool,
            "required_after": self.required_after,
            "single_calls": self.single_calls,
            "echo": dict(self.echo),
            "later_echoes": dict(self.later_echoes),
            "deleted_responses": list(self.deleted_responses),
            "heartbeat": self.heartbeat,
        }
        return {name: value for name, value in stored.items() if value} or None

    @classmethod
    def parse(cls, stored: Mapping[str, Any] | None) -> ClientRequest:
        """Return the request of a stored form."""
        if not stored:
            return cls()
        return cls(
            instructions=stored.get("instructions", ""),
            tools=tuple(ClientToolSpec(**one) for one in stored.get("tools", ())),
            called_tools=tuple(stored.get("called_tools", ())),
            output_format=_parse_format(stored.get("output_format")),
            required_tool=stored.get("required_tool", ""),
            required_after=stored.get("required_after", 0),
            single_calls=stored.get("single_calls", False),
            echo=stored.get("echo", {}),
            later_echoes=stored.get("later_echoes", {}),
            deleted_responses=_parse_deleted(stored),
            heartbeat=stored.get("heartbeat", False),
        )


def _without_previous(echo: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an echo without the response that the first one of a turn continues."""
    return {name: value for name, value in echo.items() if name != "previous_response_id"}


def _store_tool(spec: ClientToolSpec) -> Mapping[str, Any]:
    """Return the stored form of a tool, without what only tools in namespaces and custom tools have."""
    return {name: value for name, value in asdict(spec).items() if value or name in _TOOL_FIELDS}


def _namespace(spec: ClientToolSpec) -> tuple[str, str]:
    return spec.namespace, spec.namespace_description


def _echo_tools(namespace: tuple[str, str], specs: Iterable[ClientToolSpec]) -> Sequence[Mapping[str, Any]]:
    """Return tools of one namespace in OpenAI's form."""
    name, description = namespace
    tools = [_echo_tool(one) for one in specs]
    return (
        [{"type": "namespace", "name": name, "description": description, "tools": tools}] if name else tools
    )


def _echo_tool(spec: ClientToolSpec) -> Mapping[str, Any]:
    named = {"name": spec.client_name, "description": spec.description}
    if spec.is_custom:
        return {"type": "custom", **named, "format": {"type": "text"}}
    return {"type": "function", **named, "parameters": dict(spec.schema), "strict": False}


def _parse_deleted(stored: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the deleted responses; earlier versions marked the turn, which mostly had one."""
    return tuple(stored.get("deleted_responses", [""] if stored.get("deleted") else []))


def _parse_format(given: Mapping[str, Any] | None) -> OutputFormat | None:
    return OutputFormat(**given) if given else None
