"""What a tool consists of: its spec, when it needs approval, its function, and the checks of arguments."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from delivery.events.event import Event
from gateway.agents.port import PendingToolCall, ToolResult, ToolSpec
from gateway.environments.agent_files import AgentFiles, Skill
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.attachments import FetchedAttachments
from gateway.files.collection import FileCollector
from gateway.jobs.jobs import Jobs
from gateway.memory.memories import TurnMemory
from gateway.schedules.schedules import Schedules
from gateway.store.accounts.records import Record
from gateway.store.turn_state import Interruption
from gateway.store.turns.turns import Turn
from sandbox import registry
from sandbox.config import SandboxConfig
from sandbox.model import OutputListener
from sandbox.port import Feature

SEVERAL = 2

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_TYPE_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}


class InvalidArguments(ValueError):
    """The arguments of a tool call do not match its schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The turn that a tool call belongs to, and the environment its commands run in."""

    turn: Turn
    environment: Environment
    environment_resolver: EnvironmentResolver
    jobs: Jobs
    files: FileCollector
    schedules: Schedules | None = None
    memory: TurnMemory | None = None
    agent: Record | None = None
    agent_files: AgentFiles | None = None
    skills: Sequence[Skill] = ()
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """The agent's environments by the names of their workspaces, if it has several."""
    interruption: Interruption = Interruption.NONE
    """How the attempt before this one ended, if it was interrupted."""
    publish_transient: PublishTransient | None = None
    """Publishes an event that is not stored; None: the turn cannot be followed."""
    on_output: OutputListener | None = None
    """Receives the output of the call's command while it runs."""
    answer: str | None = None
    """A person's answer to the question that the call asks."""
    answer_files: FetchedAttachments = field(default_factory=FetchedAttachments)
    """The files that came with the answer."""
    makes_job_calls: bool = False
    """Whether calls of a tool of this turn can be background jobs."""

    def in_workspace(self, args: Mapping[str, Any]) -> ToolContext:
        """Return the context with the environment that a call names; raises InvalidArguments."""
        name = args.get("workspace")
        if name is None or len(self.environments) < SEVERAL:
            return self
        if not isinstance(name, str) or name not in self.environments:
            raise InvalidArguments(f"workspace must be one of {', '.join(self.environments)}, not {name!r}")
        return replace(self, environment=self.environments[name])


PublishTransient = Callable[[Event], Awaitable[None]]
ToolFunction = Callable[[ToolContext, Mapping[str, Any], str], Awaitable[ToolResult]]
"""Execute a call; the key (third argument) is the same when the same call is executed again."""


def can_start_jobs(environment: Environment) -> bool:
    """Return whether a background job can run in the environment's sandbox."""
    return not environment.files_only and Feature.JOBS in registry.plugin(environment.provider).features


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCalls:
    """How calls of a tool become background jobs: at once, or those that take longer than `after` seconds.

    `server` is the MCP server of the tool. `exists` returns whether a call with this key is a job.
    """

    after: float | None = None
    server: str | None = None
    exists: Callable[[str], Awaitable[bool]] | None = None

    @property
    def note(self) -> str:
        """What the model gets about the calls."""
        if self.after is None:
            return "It runs on as a background job: you get its resultId at once and its result later."
        return (
            f"A call that takes longer than {self.after:g} s runs on as a background job: "
            "you get its resultId then and its result later."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool. `idempotent`: it can be executed again after a crash. `is_available`: it can be used here.

    `changes_files`: it is not offered in a read-only workspace. `objection` returns why a call obviously
    cannot work: it is refused before anybody is asked to approve it; a person who typed it gets a note.
    """

    spec: Callable[[ToolContext], ToolSpec]
    needs_approval: Callable[[SandboxConfig], bool]
    run: ToolFunction
    idempotent: bool
    is_available: Callable[[ToolContext], bool] = lambda _context: True
    objection: Callable[[ToolContext, Mapping[str, Any]], str | None] = lambda _context, _args: None
    call_needs_approval: Callable[[Mapping[str, Any]], bool] = lambda _args: False
    """Whether a call with these arguments needs an approval, whatever the permission mode."""
    changed_text: Callable[[Mapping[str, Any], str], str] | None = None
    """Returns a file's text after a call, given the text before; raises ValueError if it would not change."""
    present_note: Callable[[ToolContext, Mapping[str, Any]], Awaitable[str | None]] | None = None
    """Returns the text of the note that a call changes; None if the call changes no present note."""
    changes_files: bool = False
    asks_person: bool = False
    """Whether its calls are questions, which wait for an answer (`ToolContext.answer`)."""
    as_question: Callable[[ToolContext, PendingToolCall], PendingToolCall] | None = None
    """Returns a call that waits for a person as the call of which people see the question."""
    uses_workspace: bool = True
    """Whether it works in a workspace; with several workspaces a call names one."""
    address: Callable[[Mapping[str, Any]], str] | None = None
    """Returns what a call sends a request to, for the question whether it may."""
    definition: str | None = None
    """A hash of what its author states about it, if that can change while a call waits (`definition_of`)."""
    validate: Callable[[Mapping[str, Any], Mapping[str, Any]], None] | None = None
    """Raises InvalidArguments for arguments that do not match the schema; None: `validate_arguments`."""

    is_of_client: bool = False
    """Whether the client of the turn's request executes it; it takes the place of others of its name."""

    is_listed: bool = True
    """Whether the model may call it; calls that were made of one that it may not still get their results."""

    jobs: JobCalls | None = None
    """How its calls, which the gateway makes, become background jobs; None: they end with their turn."""

    async def is_job(self, key: str) -> bool:
        """Return whether the call with this key is a background job."""
        return self.jobs is not None and self.jobs.exists is not None and await self.jobs.exists(key)

    def context_of(self, context: ToolContext, args: Mapping[str, Any]) -> ToolContext:
        """Return the context of a call; raises InvalidArguments for a workspace that the agent does not have.

        Of a tool that works in none, `workspace` is an argument like any other.
        """
        return context.in_workspace(args) if self.uses_workspace else context

    def is_offered(self, context: ToolContext) -> bool:
        """Return whether a call can succeed in the context's environment."""
        if self.changes_files and context.environment.spec.read_only:
            return False
        return self.is_available(context)


def fixed(spec: ToolSpec) -> Callable[[ToolContext], ToolSpec]:
    """Return a tool's `spec` if it is the same in every context. The same object is encoded only once."""
    return lambda _context: spec


def call_key(turn: str, call: str) -> str:
    """Return the key of a turn's call, which is the id of its job if it has one."""
    return "job_" + hashlib.sha256(f"{turn}\n{call}".encode()).hexdigest()[:26]


def definition_of(spec: ToolSpec, *further: object) -> str:
    """Return a hash of what a tool's author states about it; `further` values decide what it does.

    The order of names in a list, such as `required`, does not count: some servers have another each time.
    """
    stated = [spec.name, spec.description, _sorted_names(spec.schema), *map(repr, further)]
    exact = json.dumps(stated, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()


def _sorted_names(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {name: _sorted_names(value) for name, value in schema.items()}
    if isinstance(schema, list | tuple):
        is_names = all(isinstance(one, str) for one in schema)
        return sorted(schema) if is_names else [_sorted_names(one) for one in schema]
    return schema


def str_argument(args: Mapping[str, Any], name: str, *, required: bool = True) -> str:
    """Return a text argument; raises InvalidArguments."""
    value = args.get(name)
    if isinstance(value, str) and (value or not required):
        return value
    if value is None and not required:
        return ""
    raise InvalidArguments(f"{name} must be a text, not {value!r}")


def bool_argument(args: Mapping[str, Any], name: str) -> bool:
    """Return a boolean argument, False when absent; raises InvalidArguments."""
    value = args.get(name, False)
    if isinstance(value, bool):
        return value
    raise InvalidArguments(f"{name} must be true or false, not {value!r}")


def validate_arguments(schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArguments unless the arguments match the schema.

    Supports what schemas of tools use: required, string, integer and boolean properties, enum, pattern,
    minimum and maximum. An optional argument may be null.
    """
    check_argument_names(schema, args)
    for name, value in args.items():
        if value is not None:
            _validate_value(name, value, schema["properties"][name])


def check_argument_names(schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArguments for missing and unknown arguments; their values are not checked.

    This is all that is checked against a foreign schema: a pattern in it could keep the gateway busy.
    """
    properties = schema.get("properties", {})
    unknown = sorted(args.keys() - properties.keys())
    if unknown and not schema.get("additionalProperties", False):
        known = ", ".join(properties) or "none"
        raise InvalidArguments(f"there is no argument {unknown[0]!r}; the arguments are: {known}")
    for name in schema.get("required", ()):
        if args.get(name) is None:
            raise InvalidArguments(f"{name} is missing")


def _validate_value(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    expected = schema["type"]
    is_bool = isinstance(value, bool)
    if not isinstance(value, _TYPES[expected]) or is_bool != (expected == "boolean"):
        raise InvalidArguments(f"{name} must be {_TYPE_NAMES[expected]}, not {value!r}")
    if "enum" in schema and value not in schema["enum"]:
        raise InvalidArguments(f"{name} must be one of {', '.join(schema['enum'])}, not {value!r}")
    if "pattern" in schema and not re.search(schema["pattern"], str(value)):
        raise InvalidArguments(f"{name} must match {schema['pattern']}, not {value!r}")
    least, most = schema.get("minimum", value), schema.get("maximum", value)
    if expected == "integer" and not least <= value <= most:
        raise InvalidArguments(f"{name} must be from {least} to {most}, not {value}")
