"""What a tool is: a specification, when it asks, and what it does at a desk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.environments.agent_files import AgentFiles, Skill
from gateway.environments.resolver import Environment, EnvironmentResolver
from gateway.files.collection import FileCollector
from gateway.jobs.jobs import Jobs
from gateway.store.accounts.records import Record
from gateway.store.turns.turns import Turn
from sandbox.config import SandboxConfig

SEVERAL = 2


class InvalidArguments(ValueError):
    """The arguments of a tool call are not what its schema asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool works with: the turn it serves and the bench its commands run on."""

    turn: Turn
    environment: Environment
    environment_resolver: EnvironmentResolver
    jobs: Jobs
    files: FileCollector
    agent: Record | None = None
    agent_files: AgentFiles | None = None
    skills: Sequence[Skill] = ()
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """All of the agent's benches by their workspaces' names, where it has several."""

    def in_workspace(self, args: Mapping[str, Any]) -> ToolContext:
        """Return this desk with the bench that a call names; raises BadArguments."""
        name = args.get("workspace")
        if name is None or len(self.environments) < SEVERAL:
            return self
        if not isinstance(name, str) or name not in self.environments:
            raise InvalidArguments(f"workspace must be one of {', '.join(self.environments)}, not {name!r}")
        return replace(self, environment=self.environments[name])


ToolFunction = Callable[[ToolContext, Mapping[str, Any], str], Awaitable[ToolResult]]
"""Carry out a call: desk, arguments, and a key that is the same when the same call is made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool. `repeatable`: carrying it out again after a crash harms nobody. `fits`: it is of use here.

    `changes_files`: on a read-only workspace it can only be refused, so nobody is asked for it there.
    """

    spec: Callable[[ToolContext], ToolSpec]
    needs_approval: Callable[[SandboxConfig], bool]
    run: ToolFunction
    idempotent: bool
    is_available: Callable[[ToolContext], bool] = lambda _desk: True
    changes_files: bool = False
    uses_workspace: bool = True
    """It works in a workspace, so that with several of them a call names one."""


def str_argument(args: Mapping[str, Any], name: str, *, required: bool = True) -> str:
    """Return a text argument; raises BadArguments."""
    value = args.get(name)
    if isinstance(value, str) and (value or not required):
        return value
    if value is None and not required:
        return ""
    raise InvalidArguments(f"{name} must be a text, not {value!r}")


def bool_argument(args: Mapping[str, Any], name: str) -> bool:
    """Return a true-or-false argument, false when absent; raises BadArguments."""
    value = args.get(name, False)
    if isinstance(value, bool):
        return value
    raise InvalidArguments(f"{name} must be true or false, not {value!r}")
